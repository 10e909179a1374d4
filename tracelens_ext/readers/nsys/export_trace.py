"""Makes a trace of the tables of an Nsight Systems export, or of a report decoded into such tables.

Kernels, copies, memsets and graphs recorded whole become GPU events; CUDA runtime and driver calls
become launches; calls of cuBLAS and cuDNN become CPU operations; NVTX ranges and marks become
annotations. There may be several processes, GPUs and machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.builder import (
    TraceBuilder,
    map_distinct_ids,
    map_distinct_rows,
)
from tracelens_ext.readers.nsys.diagnostics import explanations
from tracelens_ext.readers.nsys.export_schema import (
    MEMSET_NAME,
    META_DATA,
    NVTX,
    STRINGS,
    Columns,
    Identities,
    api_name,
    memcpy_name,
)
from tracelens_ext.readers.nsys.nvtx import NvtxEvents
from tracelens_ext.readers.tables import MISSING, Tables
from tracelens_ext.text import NO_NAME
from tracelens_ext.trace import (
    MEMORY_KINDS,
    WHOLE_GRAPH,
    Conventions,
    EventKind,
    Int64Array,
    Trace,
)

#: Facts about the export that the trace keeps as metadata.
_KEPT_META_DATA = (
    "EXPORT_PRODUCT_NAME",
    "EXPORT_PRODUCT_VERSION",
    "EXPORT_SCHEMA_VERSION",
)

#: Tables of an export.
_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_MEMSETS = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_GPU_TABLES = (_KERNELS, _COPIES, _MEMSETS, _GRAPHS)
_CUDA_TABLES = _GPU_TABLES + (_CALLS,)
#: Table of the calls of a library → category of its events.
_LIBRARIES = {"CUBLAS_EVENTS": "cublas", "CUDNN_EVENTS": "cudnn"}

_GRID = ("gridX", "gridY", "gridZ")
_SHARED_MEMORY = ("staticSharedMemory", "dynamicSharedMemory")
_GPU_COLUMNS = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_CPU_COLUMNS = ("start", "end", "globalTid", "nameId")
#: Value of `eventClass` for calls of the CUDA driver.
_DRIVER_CLASS = 1
#: Larger sizes, of a grid in one dimension or of shared memory in bytes, are damaged.
_MOST_IN_A_DIMENSION = 2**20


def make_trace(
    tables: Tables,
    format_name: str,
    progress: Callable[[int, int | None], None] | None = None,
    notes: Iterable[str] = (),
) -> Trace:
    """Return the trace of the tables of an export, or of a report.

    Args:
        tables: the tables.
        format_name: what the trace reports as its format.
        progress: called with the number of bytes read so far, and the total.
        notes: sentences for the user about the file.

    Raises:
        TraceFormatError: the tables have no CUDA events.
    """
    if any(tables.has_rows(table) for table in _CUDA_TABLES):
        return _TraceOfTables(tables, notes).read(format_name, progress)
    other_tables = (NVTX, "OSRT_API", "COMPOSITE_EVENTS")
    recorded = [table for table in other_tables if tables.has_rows(table)]
    content = "its tables are empty"
    if recorded:
        content = f"it has {' and '.join(recorded)}"
    problem = f"is an Nsight Systems recording without CUDA events ({content})"
    raise TraceFormatError(
        tables.path, problem, "record with `nsys profile -t cuda,nvtx`"
    )


class _TraceOfTables:
    """Adds the rows of all tables to a builder."""

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
        """Read all tables and return the trace; the arguments are those of `make_trace`."""
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
        if schema:
            format_name += f" (schema {schema})"
        trace = self._builder.finish(
            devices=self._identities.devices(),
            metadata={
                name: metadata[name] for name in _KEPT_META_DATA if name in metadata
            },
            labels=self._identities.labels(),
            path=self._database.path,
            format_name=format_name,
            bytes_read=self._database.size,
            notes=tuple(self._notes),
        )
        conventions = Conventions(gpu_by_process=True, annotations_are_operations=True)
        return replace(trace, conventions=conventions)

    def _metadata(self) -> dict[str, str]:
        """Return the facts about the export, such as the version that wrote it."""
        for table in META_DATA:
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
        """If there is no GPU work, note the diagnostics of Nsight Systems that explain why."""
        if any(self._database.has_rows(table) for table in _GPU_TABLES):
            return
        diagnostics = self._database.pairs("DIAGNOSTIC_EVENT", "severity", "text")
        for text in explanations(diagnostics):
            self._notes.append(f"Nsight Systems reports: {text}")

    # Calls on CPU threads.

    def _add_calls(self) -> None:
        """Add CUDA runtime and driver calls, and calls of libraries."""
        columns = _CPU_COLUMNS + ("correlationId", "eventClass")
        for chunk in self._database.chunks(_CALLS, columns):
            is_driver = chunk["eventClass"] == _DRIVER_CLASS
            categories = self._builder.categories
            self._add_cpu_events(
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
                self._add_cpu_events(chunk, EventKind.CPU_OP, category_code, numbers={})

    def _add_cpu_events(
        self,
        chunk: Columns,
        kind: Int64Array | int,
        category: Int64Array | int,
        numbers: dict[str, Int64Array],
    ) -> None:
        """Add calls on CPU threads; the arguments are those of `TraceBuilder.add_rows`."""
        name = self._names(chunk["nameId"], api_name)
        thread = self._identities.cpu_threads(chunk["globalTid"])
        self._builder.add_rows(chunk, name, kind, thread, category, numbers)

    # GPU events.

    def _add_kernels(self) -> None:
        """Add kernels, with their blocks and their shared memory."""
        name_columns = ("demangledName", "shortName", "mangledName")
        columns = (*_GPU_COLUMNS, *name_columns, *_GRID, *_SHARED_MEMORY)
        for chunk in self._database.chunks(_KERNELS, columns):
            chunk["grid"] = _combined(chunk, _GRID, np.prod)
            chunk["shared memory"] = _combined(chunk, _SHARED_MEMORY, np.sum)
            # The first of these names that a kernel has.
            name_id = chunk[name_columns[0]]
            for column in name_columns[1:]:
                name_id = np.where(name_id == MISSING, chunk[column], name_id)
            self._add_gpu_events(
                chunk=chunk,
                kind=EventKind.KERNEL,
                name=self._names(name_id),
                category="kernel",
            )

    def _add_copies_and_memsets(self) -> None:
        copy_columns = _GPU_COLUMNS + ("bytes", "copyKind") + MEMORY_KINDS
        for chunk in self._database.chunks(_COPIES, copy_columns):
            name = map_distinct_ids(chunk["copyKind"], self._copy_name_codes)
            self._add_gpu_events(
                chunk=chunk, kind=EventKind.MEMCPY, name=name, category="gpu_memcpy"
            )
        for chunk in self._database.chunks(_MEMSETS, _GPU_COLUMNS + ("bytes",)):
            name = np.full(len(chunk["start"]), self._builder.names[MEMSET_NAME])
            self._add_gpu_events(
                chunk=chunk, kind=EventKind.MEMSET, name=name, category="gpu_memset"
            )

    def _add_graphs(self) -> None:
        """Add graphs that were recorded whole; each launch is one GPU event, named by its graph."""

        def name_of(graph_id: int) -> int:
            name = "CUDA graph" if graph_id == MISSING else f"CUDA graph {graph_id}"
            return self._builder.names[name]

        count = 0
        for chunk in self._database.chunks(_GRAPHS, _GPU_COLUMNS + ("graphId",)):
            name = map_distinct_rows(name_of, chunk["graphId"])
            self._add_gpu_events(
                chunk=chunk, kind=EventKind.KERNEL, name=name, category=WHOLE_GRAPH
            )
            count += len(name)
        if count:
            self._notes.append(
                f"CUDA graphs recorded as a whole, one GPU event each: {count:,}; "
                "record with `nsys profile --cuda-graph-trace=node` to see their "
                "kernels"
            )

    def _add_gpu_events(
        self, chunk: Columns, kind: EventKind, name: Int64Array, category: str
    ) -> None:
        """Add GPU events, with those arguments that their table has."""
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
        """Return the code of the name of each event, (m,).

        Args:
            ids: the ids of the names in the table of texts, (m,).
            spell: changes the spelling of a name.
        """

        def name_codes(distinct_ids: Int64Array) -> list[int]:
            codes = []
            for text in self._database.look_up(*STRINGS, distinct_ids):
                name = spell(text) if text else NO_NAME
                codes.append(self._builder.names[name])
            return codes

        return map_distinct_ids(ids, name_codes)

    def _copy_name_codes(self, kinds: Int64Array) -> list[int]:
        """Return the code of the name of each kind of copies."""
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
    """Return the product or sum of several columns, (m,); `MISSING` if any of them is missing."""
    values = np.array([chunk[column] for column in columns])
    is_known = (values != MISSING).all(axis=0)
    plausible = np.clip(values, 0, _MOST_IN_A_DIMENSION)
    return np.where(is_known, combine(plausible, axis=0), MISSING)
