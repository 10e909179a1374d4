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
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.builder import (
    TraceBuilder,
    map_distinct_ids,
    map_distinct_rows,
)
from tracelens_ext.readers.cache.file import TEMPORARY_SUFFIX
from tracelens_ext.readers.nsys.diagnostics import explanations
from tracelens_ext.readers.nsys.export_schema import (
    MEMSET_NAME,
    NVTX,
    STRINGS,
    Columns,
    Identities,
    api_name,
    memcpy_name,
)
from tracelens_ext.readers.nsys.nvtx import NvtxEvents
from tracelens_ext.readers.source import SQLITE_MAGIC, ByteSource
from tracelens_ext.readers.sqlite_columns import Database
from tracelens_ext.readers.tables import MISSING, Tables
from tracelens_ext.text import NO_NAME, one_line
from tracelens_ext.trace import (
    MEMORY_KINDS,
    WHOLE_GRAPH,
    Conventions,
    EventKind,
    Int64Array,
    Trace,
)

_KEPT_META_DATA = (
    "EXPORT_PRODUCT_NAME",
    "EXPORT_PRODUCT_VERSION",
    "EXPORT_SCHEMA_VERSION",
)
_META_DATA = ("META_DATA_EXPORT", "EXPORT_META_DATA")
#: How tables begin that an export has even if nothing was recorded.
_OF_EVERY_EXPORT = _META_DATA + ("META_DATA_CAPTURE", "TARGET_INFO_", "ENUM_NSYS_")


class NsysDatabase(Database):
    """An open export."""

    format = "Nsight Systems export"
    remedy = "export it with `nsys export --type sqlite REPORT.nsys-rep`"

    def _is_ours(self) -> bool:
        if any(name.startswith(_OF_EVERY_EXPORT) for name in self.tables):
            return True
        if "StringIds" not in self.tables:
            return False
        if NVTX in self.tables:
            return True
        return any(name.startswith("CUPTI_ACTIVITY_KIND_") for name in self.tables)


FORMAT = "Nsight Systems SQLite export"

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_MEMSETS = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_GPU_TABLES = (_KERNELS, _COPIES, _MEMSETS, _GRAPHS)
_CUDA_TABLES = _GPU_TABLES + (_CALLS,)
#: Tables of calls of libraries → the category of their events.
_LIBRARIES = {"CUBLAS_EVENTS": "cublas", "CUDNN_EVENTS": "cudnn"}

_GRID = ("gridX", "gridY", "gridZ")
_SHARED_MEMORY = ("staticSharedMemory", "dynamicSharedMemory")
_GPU_COLUMNS = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_CPU_COLUMNS = ("start", "end", "globalTid", "nameId")
_DRIVER_CLASS = 1
#: Larger numbers of blocks or bytes cannot be right.
_MOST_IN_A_DIMENSION = 2**20


def read(source: ByteSource) -> Trace:
    """Read an export, or a report that the program `nsys` shall convert to one.

    Raises:
        TraceFormatError: it is damaged, no export of Nsight Systems, or has no CUDA events.
    """
    is_export = source.peek(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    with (
        nullcontext(source.file_or_bytes())
        if is_export
        else _exported(source) as export,
        NsysDatabase(source.path, export) as database,
    ):
        return trace_of(database, FORMAT, source.progress)


def trace_of(
    tables: Tables,
    format_name: str,
    progress: Callable[[int, int | None], None] | None = None,
    notes: Iterable[str] = (),
) -> Trace:
    """Return the trace of the tables of an export, or of those of a report.

    Args:
        tables: the tables.
        format_name: what the format is called.
        progress: called with bytes read so far, and bytes in all.
        notes: what the user should know about the file, a sentence each.

    Raises:
        TraceFormatError: it has no CUDA events.
    """
    if any(tables.has_rows(table) for table in _CUDA_TABLES):
        return _TraceOfTables(tables, notes).read(format_name, progress)
    other_tables = (NVTX, "OSRT_API", "COMPOSITE_EVENTS")
    recorded = [table for table in other_tables if tables.has_rows(table)]
    content = f"it has {' and '.join(recorded)}" if recorded else "its tables are empty"
    problem = f"is an Nsight Systems recording without CUDA events ({content})"
    raise TraceFormatError(
        tables.path, problem, "record with `nsys profile -t cuda,nvtx`"
    )


class _TraceOfTables:
    """Makes a trace of the tables of an export."""

    def __init__(self, database: Tables, notes: Iterable[str]) -> None:
        self._database = database
        self._builder = TraceBuilder()
        self._identities = Identities(database, self._builder)
        self._nvtx = NvtxEvents(
            database=database, builder=self._builder, identities=self._identities
        )
        self._notes = list(notes)

    def read(
        self, format_name: str, progress: Callable[[int, int | None], None] | None
    ) -> Trace:
        """Return the trace."""
        size = self._database.size
        steps = (
            self._add_calls,
            self._nvtx.add_all,
            self._add_kernels,
            self._add_copies_and_memsets,
            self._add_graphs,
        )
        for number, step in enumerate(steps):
            if progress is not None:
                progress(size * number // len(steps), size)
            step()
        if progress is not None:
            progress(size, size)
        self._note_open_ranges()
        self._note_diagnostics()
        metadata = self._metadata()
        schema = metadata.get("EXPORT_SCHEMA_VERSION", "")
        trace = self._builder.finish(
            devices=self._identities.devices(),
            metadata={
                name: metadata[name] for name in _KEPT_META_DATA if name in metadata
            },
            labels=self._identities.labels(),
            path=self._database.path,
            format_name=f"{format_name} (schema {schema})" if schema else format_name,
            bytes_read=self._database.size,
            notes=tuple(self._notes),
        )
        conventions = Conventions(gpu_by_process=True, annotations_are_operations=True)
        return replace(trace, conventions=conventions)

    def _metadata(self) -> dict[str, str]:
        """Return what the export says about itself."""
        for table in _META_DATA:
            pairs = self._database.pairs(table, "name", "value")
            if pairs:
                return dict(pairs)
        return {}

    def _note_open_ranges(self) -> None:
        count = self._nvtx.open_ranges
        if count:
            self._notes.append(
                "NVTX ranges that were open when the recording ended, without a "
                f"length here: {count:,}"
            )

    def _note_diagnostics(self) -> None:
        """Quote what Nsight Systems says about missing GPU work."""
        if any(self._database.has_rows(table) for table in _GPU_TABLES):
            return
        diagnostics = self._database.pairs("DIAGNOSTIC_EVENT", "severity", "text")
        for text in explanations(diagnostics):
            self._notes.append(f"Nsight Systems reports: {text}")

    # Calls on CPU threads.

    def _add_calls(self) -> None:
        columns = _CPU_COLUMNS + ("correlationId", "eventClass")
        for chunk in self._database.chunks(_CALLS, columns):
            is_driver = chunk["eventClass"] == _DRIVER_CLASS
            categories = self._builder.categories
            self._add_cpu(
                chunk,
                kind=np.where(is_driver, EventKind.DRIVER, EventKind.RUNTIME),
                category=np.where(
                    is_driver, categories["cuda_driver"], categories["cuda_runtime"]
                ),
                numbers={"correlation": chunk["correlationId"]},
            )
        for table, category in _LIBRARIES.items():
            for chunk in self._database.chunks(table, columns):
                category_code = self._builder.categories[category]
                self._add_cpu(chunk, EventKind.CPU_OP, category_code, numbers={})

    def _add_cpu(
        self,
        chunk: Columns,
        kind: Int64Array | int,
        category: Int64Array | int,
        numbers: dict[str, Int64Array],
    ) -> None:
        name = self._names(chunk["nameId"], api_name)
        thread = self._identities.cpu_threads(chunk["globalTid"])
        self._builder.add_rows(chunk, name, kind, thread, category, numbers)

    # GPU events.

    def _add_kernels(self) -> None:
        name_columns = ("demangledName", "shortName", "mangledName")
        columns = (*_GPU_COLUMNS, *name_columns, *_GRID, *_SHARED_MEMORY)
        for chunk in self._database.chunks(_KERNELS, columns):
            chunk["grid"] = _combined(chunk, _GRID, np.prod)
            chunk["shared memory"] = _combined(chunk, _SHARED_MEMORY, np.sum)
            name_id = chunk[name_columns[0]]
            for column in name_columns[1:]:
                name_id = np.where(name_id == MISSING, chunk[column], name_id)
            self._add_gpu(
                chunk=chunk,
                kind=EventKind.KERNEL,
                name=self._names(name_id),
                category="kernel",
            )

    def _add_copies_and_memsets(self) -> None:
        copy_columns = _GPU_COLUMNS + ("bytes", "copyKind") + MEMORY_KINDS
        for chunk in self._database.chunks(_COPIES, copy_columns):
            name = map_distinct_ids(chunk["copyKind"], self._copy_names)
            self._add_gpu(
                chunk=chunk, kind=EventKind.MEMCPY, name=name, category="gpu_memcpy"
            )
        for chunk in self._database.chunks(_MEMSETS, _GPU_COLUMNS + ("bytes",)):
            name = np.full(len(chunk["start"]), self._builder.names[MEMSET_NAME])
            self._add_gpu(
                chunk=chunk, kind=EventKind.MEMSET, name=name, category="gpu_memset"
            )

    def _add_graphs(self) -> None:
        """Add graphs that were recorded whole: one GPU event each, called after its graph."""

        def name_of(graph_id: int) -> int:
            name = "CUDA graph" if graph_id == MISSING else f"CUDA graph {graph_id}"
            return self._builder.names[name]

        count = 0
        for chunk in self._database.chunks(_GRAPHS, _GPU_COLUMNS + ("graphId",)):
            name = map_distinct_rows(name_of, chunk["graphId"])
            self._add_gpu(
                chunk=chunk, kind=EventKind.KERNEL, name=name, category=WHOLE_GRAPH
            )
            count += len(name)
        if count:
            self._notes.append(
                f"CUDA graphs recorded as a whole, one GPU event each: {count:,}; "
                "record with `nsys profile --cuda-graph-trace=node` to see their "
                "kernels"
            )

    def _add_gpu(
        self, chunk: Columns, kind: EventKind, name: Int64Array, category: str
    ) -> None:
        thread, device = self._identities.streams(chunk)
        numbers = {"correlation": chunk["correlationId"], "stream": chunk["streamId"]}
        for argument in ("bytes", "grid", "shared memory") + MEMORY_KINDS:
            if argument in chunk:
                numbers[argument] = chunk[argument]
        numbers["device"] = device
        category_code = self._builder.categories[category]
        self._builder.add_rows(chunk, name, kind, thread, category_code, numbers)

    # Names.

    def _names(self, ids: Int64Array, spell: Callable[[str], str] = str) -> Int64Array:
        """Return the name that each id of a text stands for, as the builder numbers it."""

        def codes(distinct_ids: Int64Array) -> list[int]:
            texts = self._database.look_up(*STRINGS, distinct_ids)
            return [
                self._builder.names[spell(text) if text else NO_NAME] for text in texts
            ]

        return map_distinct_ids(ids, codes)

    def _copy_names(self, kinds: Int64Array) -> list[int]:
        """Return the names of kinds of copies; of unknown ones, as the export itself calls them."""
        table = "ENUM_CUDA_MEMCPY_OPER"
        ids = self._database.whole(table, "id")["id"].tolist()
        label_of_kind = dict(
            zip(ids, self._database.words(table, "label"), strict=True)
        )
        names = [memcpy_name(kind, label_of_kind.get(kind)) for kind in kinds.tolist()]
        return [self._builder.names[name] for name in names]


def _combined(
    chunk: Columns, columns: tuple[str, ...], combine: Callable[..., Int64Array]
) -> Int64Array:
    """Return the product or sum of some columns, `MISSING` where one of them is, (m,)."""
    values = np.array([chunk[column] for column in columns])
    is_known = (values != MISSING).all(axis=0)
    plausible = np.clip(values, 0, _MOST_IN_A_DIMENSION)
    return np.where(is_known, combine(plausible, axis=0), MISSING)


# Reports.

_TROUBLE = re.compile(
    r"error|fail|cannot|can't|could not|unable|invalid|corrupt|unsupported|not supported|no such"
    r"|denied|not found|newer|version|what\(\)",
    re.IGNORECASE,
)


@contextmanager
def _exported(source: ByteSource) -> Iterator[Path]:
    """Provide the export of a report while it is read: from the cache, or made and kept there."""
    path = source.path
    if source.file is None or source.compressed:
        problem = "is an Nsight Systems report that is gzipped or an open file"
        raise TraceFormatError(path, problem, "unpack it and give its path")
    cache = source.cache
    folder_for_export = None
    if cache is not None:
        kept = cache.conversion(path)
        if kept is not None:
            yield kept
            return
        with suppress(OSError):  # the cache says so when it keeps the export
            cache.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # so that nothing has to be copied later
            if os.access(cache.folder, os.W_OK):
                folder_for_export = cache.folder
    with TemporaryDirectory(
        prefix=".nsys-", suffix=TEMPORARY_SUFFIX, dir=folder_for_export
    ) as folder:
        export = Path(folder) / "export.sqlite"
        _run_export(path, export, source.reading.nsys or "nsys")
        kept = None
        if cache is not None:
            kept = cache.keep_conversion(path, export)
        yield kept or export


def _run_export(path: str, export: Path, program_name: str) -> None:
    """Have the program `nsys` export a report.

    Raises:
        TraceFormatError: there is no such program, or it fails.
    """
    name = Path(path)
    program = shutil.which(program_name)
    if program is None:
        problem = (
            f"is an Nsight Systems report, and the program {program_name} to convert "
            "it was not found"
        )
        remedy = (
            "leave out --nsys, because reports can be read without it; or run `nsys "
            f"export --type sqlite {name.name}` where Nsight Systems is installed, "
            f"and give {name.stem}.sqlite"
        )
        raise TraceFormatError(path, problem, remedy)
    command = [
        program,
        "export",
        "--type=sqlite",
        "--force-overwrite=true",
        f"--output={export}",
        str(name.absolute()),
    ]
    reason = "`nsys export` wrote no database"
    try:
        finished = subprocess.run(  # noqa: S603
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if finished.returncode == 0 and export.is_file():
            return
        if finished.returncode != 0:
            output = (
                _telling(finished.stderr) or _telling(finished.stdout) or "no message"
            )
            reason = (
                f"`nsys export` failed with exit code {finished.returncode} ({output})"
            )
    except OSError as error:
        reason = f"{program} cannot be run ({error.strerror or error})"
    remedy = (
        "check that the report is complete and that nsys is not older than the "
        "version that recorded it"
    )
    raise TraceFormatError(path, f"cannot be converted: {reason}", remedy)


def _telling(output: bytes) -> str:
    """Return what a program says went wrong: its lines about errors, else its last line."""
    text = output.decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    about_errors = [line for line in lines if _TROUBLE.search(line)]
    quoted = about_errors or lines[-1:]
    distinct = dict.fromkeys(quoted)
    return one_line("; ".join(distinct))
