"""Reader for SQLite exports of Nsight Systems, and for reports that `nsys export` converts.

Supports: exports of 2022 to today (schema 2.9 to 3.25): kernels, copies, memsets, graphs recorded
whole, CUDA runtime and driver calls, calls of cuBLAS and cuDNN, NVTX ranges and marks; several
processes, devices and machines.
Ignores: all other tables, such as calls of the operating system, samples, and counters.
Format: the SQLite schema reference in the documentation of Nsight Systems.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.builder import TraceBuilder, looked_up, of_rows
from tracelens_ext.readers.cache.file import TEMPORARY_SUFFIX
from tracelens_ext.readers.nsys import export_schema as places
from tracelens_ext.readers.nsys.diagnostics import explanations
from tracelens_ext.readers.source import SQLITE_MAGIC, ByteSource
from tracelens_ext.readers.sqlite_columns import Database
from tracelens_ext.readers.tables import MISSING, Tables
from tracelens_ext.text import NO_NAME, one_line
from tracelens_ext.trace import MEMORY_KINDS, WHOLE_GRAPH, Conventions, EventKind, Int64Array, Trace

_KEPT_META_DATA = ("EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")
_META_DATA = ("META_DATA_EXPORT", "EXPORT_META_DATA")
#: How tables begin that an export has even if nothing was recorded.
_OF_EVERY_EXPORT = (*_META_DATA, "META_DATA_CAPTURE", "TARGET_INFO_", "ENUM_NSYS_")


class NsysDatabase(Database):
    """An open export."""

    format = "export of Nsight Systems"
    remedy = "export it with `nsys export --type sqlite REPORT.nsys-rep`"

    def _is_ours(self) -> bool:
        events = "StringIds" in self.tables and any(
            name == "NVTX_EVENTS" or name.startswith("CUPTI_ACTIVITY_KIND_") for name in self.tables
        )
        return events or any(name.startswith(_OF_EVERY_EXPORT) for name in self.tables)


FORMAT = "Nsight Systems SQLite export"

_CUDA = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME")
_OF_CUDA = tuple(f"CUPTI_ACTIVITY_KIND_{name}" for name in _CUDA)
_KERNELS, _COPIES, _MEMSETS, _GRAPHS, _CALLS = _OF_CUDA
_LIBRARIES = {"CUBLAS_EVENTS": "cublas", "CUDNN_EVENTS": "cudnn"}

_GRID = ("gridX", "gridY", "gridZ")
_SHARED = ("staticSharedMemory", "dynamicSharedMemory")
_ON_GPU = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_ON_HOST = ("start", "end", "globalTid", "nameId")
_DRIVER_CLASS = 1


def read(source: ByteSource) -> Trace:
    """Read an export, or a report that the program `nsys` shall convert to one.

    Raises TraceFormatError where it is damaged, no export of Nsight Systems, or has no CUDA events.
    """
    is_export = source.peek(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    with (
        nullcontext(source.file_or_bytes()) if is_export else _exported(source) as export,
        NsysDatabase(source.path, export) as database,
    ):
        return trace_of(database, FORMAT, source.progress)


def trace_of(
    tables: Tables,
    format_name: str,
    progress: Callable[[int, int | None], None] | None = None,
    notes: Iterable[str] = (),
) -> Trace:
    """The trace of the tables of an export, or of those that a report would be exported to.

    Raises TraceFormatError where it has no CUDA events.
    """
    if any(map(tables.has_rows, _OF_CUDA)):
        return _Export(tables, notes).read(format_name, progress)
    recorded = filter(tables.has_rows, (places.NVTX, "OSRT_API", "COMPOSITE_EVENTS"))
    told = " and ".join(recorded)
    has = f"it has {told}" if told else "its tables are empty"
    problem = f"is a recording of Nsight Systems without CUDA events ({has})"
    raise TraceFormatError(tables.path, problem, "record with `nsys profile -t cuda,nvtx`")


class _Export:
    """An export on its way to a trace."""

    def __init__(self, database: Tables, notes: Iterable[str]) -> None:
        self._database = database
        self._builder = TraceBuilder()
        self._places = places.Places(database, self._builder)
        self._notes = [*notes]

    def read(self, format_name: str, progress: Callable[[int, int | None], None] | None) -> Trace:
        """The trace."""
        size = self._database.size
        progress = progress or (lambda *_: None)
        steps = (self._calls, self._places.add_nvtx, self._kernels, self._copies, self._graphs)
        for number, step in enumerate(steps):
            progress(size * number // len(steps), size)
            step()
        progress(size, size)
        tables = (self._database.pairs(table, "name", "value") for table in _META_DATA)
        about = dict(next(filter(None, tables), []))
        schema = about.get("EXPORT_SCHEMA_VERSION", "")
        if count := self._places.open_ranges:
            what = "NVTX ranges that were open when recording ended, without a length here"
            self._notes.append(f"{what}: {count:,}")
        if not any(map(self._database.has_rows, _OF_CUDA[:-1])):
            diagnostics = self._database.pairs("DIAGNOSTIC_EVENT", "severity", "text")
            for text in explanations(diagnostics):
                self._notes.append(f"Nsight Systems says: {text}")
        trace = self._builder.finish(
            devices=self._places.devices(),
            metadata={name: about[name] for name in _KEPT_META_DATA if name in about},
            labels=self._places.labels(),
            path=self._database.path,
            format_name=f"{format_name} (schema {schema})" if schema else format_name,
            bytes_read=self._database.size,
            notes=tuple(self._notes),
        )
        conventions = Conventions(gpu_by_process=True, annotations_are_operations=True)
        return replace(trace, conventions=conventions)

    def _calls(self) -> None:
        """Calls on host threads."""
        categories = self._builder.categories
        for table, word in {_CALLS: "cuda_runtime", **_LIBRARIES}.items():
            for chunk in self._database.chunks(table, (*_ON_HOST, "correlationId", "eventClass")):
                kind: Int64Array | int = EventKind.CPU_OP
                category: Int64Array | int = categories[word]
                numbers = {}
                if table == _CALLS:
                    driver = chunk["eventClass"] == _DRIVER_CLASS
                    kind = np.where(driver, EventKind.DRIVER, EventKind.RUNTIME)
                    category = np.where(driver, categories["cuda_driver"], category)
                    numbers = {"correlation": chunk["correlationId"]}
                name = self._names(chunk["nameId"], places.api_name)
                thread = self._places.host_threads(chunk["globalTid"])
                self._builder.add_rows(chunk, name, kind, thread, category, numbers)

    # Work on the GPU.

    def _kernels(self) -> None:
        ids = ("demangledName", "shortName", "mangledName")
        for chunk in self._database.chunks(_KERNELS, (*_ON_GPU, *ids, *_GRID, *_SHARED)):
            for argument, columns in (("grid", _GRID), ("shared memory", _SHARED)):
                told = np.array([chunk[column] for column in columns])
                sane = np.clip(told, 0, 2**20)  # more blocks in a dimension mean no more here
                total = (np.prod if columns is _GRID else np.sum)(sane, axis=0)
                chunk[argument] = np.where((told != MISSING).all(axis=0), total, MISSING)
            name = chunk[ids[0]]
            for other in ids[1:]:
                name = np.where(name == MISSING, chunk[other], name)
            self._add_gpu(chunk, EventKind.KERNEL, self._names(name), "kernel")

    def _copies(self) -> None:
        for chunk in self._database.chunks(_COPIES, (*_ON_GPU, "bytes", "copyKind", *MEMORY_KINDS)):
            name = looked_up(chunk["copyKind"], self._copy_names)
            self._add_gpu(chunk, EventKind.MEMCPY, name, "gpu_memcpy")
        for chunk in self._database.chunks(_MEMSETS, (*_ON_GPU, "bytes")):
            name = np.full(len(chunk["start"]), self._builder.names[places.MEMSET_NAME])
            self._add_gpu(chunk, EventKind.MEMSET, name, "gpu_memset")

    def _graphs(self) -> None:
        """Graphs recorded as a whole: one GPU event each, called after its graph."""
        count = 0
        names = self._builder.names
        for chunk in self._database.chunks(_GRAPHS, (*_ON_GPU, "graphId")):
            ids = chunk["graphId"]
            name = of_rows(lambda n: names["CUDA graph" + f" {n}" * (n != MISSING)], ids)
            self._add_gpu(chunk, EventKind.KERNEL, name, WHOLE_GRAPH)
            count += len(name)
        if count:
            remedy = "record with `nsys profile --cuda-graph-trace=node` to see their kernels"
            found = f"CUDA graphs recorded whole, one GPU event each: {count:,}"
            self._notes.append(f"{found}; {remedy}")

    def _add_gpu(self, chunk: places.Columns, kind: EventKind, name: Int64Array, word: str) -> None:
        thread, device = self._places.streams(chunk)
        numbers = {"correlation": chunk["correlationId"], "stream": chunk["streamId"]}
        told = ("bytes", "grid", "shared memory", *MEMORY_KINDS)
        numbers |= {name: chunk[name] for name in told if name in chunk} | {"device": device}
        self._builder.add_rows(chunk, name, kind, thread, self._builder.categories[word], numbers)

    # Names.

    def _names(self, ids: Int64Array, spell: Callable[[str], str] = str) -> Int64Array:
        """The name that each id of a text stands for, as the builder numbers it."""
        names = self._builder.names
        find = partial(self._database.look_up, *places.STRINGS)
        return looked_up(ids, lambda used: [names[spell(t) if t else NO_NAME] for t in find(used)])

    def _copy_names(self, kinds: Int64Array) -> list[int]:
        """The names of kinds of copies; of unknown ones, as the export itself calls them."""
        table = "ENUM_CUDA_MEMCPY_OPER"
        ids = self._database.whole(table, "id")["id"].tolist()
        labels = dict(zip(ids, self._database.words(table, "label"), strict=True))
        return [self._builder.names[places.memcpy_name(k, labels.get(k))] for k in kinds.tolist()]


# Reports.

_TROUBLE = re.compile(
    r"error|fail|cannot|can't|could not|unable|invalid|corrupt|unsupported|not supported|no such"
    r"|denied|not found|newer|version|what\(\)",
    re.IGNORECASE,
)


@contextmanager
def _exported(source: ByteSource) -> Iterator[Path]:
    """The export of a report while it is read: of the cache, kept there, or removed again."""
    path = source.path
    cache = source.cache
    where = None
    if source.file is None or source.compressed:
        problem = "is a report of Nsight Systems that is gzipped or an open file"
        raise TraceFormatError(path, problem, "unpack it and give its path")
    if cache is not None:
        if (kept := cache.conversion(path)) is not None:
            yield kept
            return
        with suppress(OSError):  # the cache says so when it keeps the export
            cache.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            where = cache.folder if os.access(cache.folder, os.W_OK) else None  # no copying then
    with TemporaryDirectory(prefix=".nsys-", suffix=TEMPORARY_SUFFIX, dir=where) as folder:
        made = Path(folder) / "export.sqlite"
        _export(path, made, source.reading.nsys or "nsys")
        yield (cache.keep_conversion(path, made) if cache is not None else None) or made


def _export(path: str, made: Path, chosen: str) -> None:
    name = Path(path)
    program = shutil.which(chosen)
    if program is None:
        why = f"there is no program {chosen} to convert it"
        remedy = "leave out --nsys, as reports are read without it; or run"
        remedy += f" `nsys export --type sqlite {name.name}` where Nsight Systems is installed"
        remedy += f" and give {name.stem}.sqlite"
        raise TraceFormatError(path, f"is a report of Nsight Systems, and {why}", remedy)
    command = [program, "export", "--type=sqlite", "--force-overwrite=true", f"--output={made}"]
    command.append(str(name.absolute()))
    why = "`nsys export` wrote no database"
    try:
        nothing = subprocess.DEVNULL
        done = subprocess.run(command, stdin=nothing, capture_output=True, check=False)  # noqa: S603
        if done.returncode == 0 and made.is_file():
            return
        if done.returncode != 0:
            said = _telling(done.stderr) or _telling(done.stdout) or "it says nothing"
            why = f"`nsys export` failed with exit code {done.returncode} ({said})"
    except OSError as error:
        why = f"{program} cannot be run ({error.strerror or error})"
    remedy = "is the report whole, and nsys not older than what recorded it?"
    raise TraceFormatError(path, f"cannot be converted: {why}", remedy)


def _telling(output: bytes) -> str:
    """What a program said went wrong: its lines about errors, else its last line."""
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    telling = [line.strip() for line in lines if _TROUBLE.search(line)]
    return one_line("; ".join(dict.fromkeys(telling or lines[-1:])))
