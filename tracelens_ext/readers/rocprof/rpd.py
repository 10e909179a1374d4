"""Reads the databases of rocmProfileData (`.rpd`), which `runTracer.sh` and rpdTracerControl write.

Supports: schemas 1 to 3; the tables and columns of the file decide, not its version. A file may
contain several processes.

* `rocpd_op` lists GPU operations (kernels, copies, fills), `rocpd_api` calls and markers, and
  `rocpd_api_ops` links each operation with the call that started it.
* A marker is a row named `UserMarker`. A marker of PyTorch's `emit_nvtx` becomes the CPU operation
  that its text describes.
* The samples in `rocpd_monitor` become counters of their GPU.

Ignores: views, tables that later analyses add (`ext_…`), stack frames and arguments of calls.
Barriers and counter values are ignored, too, but counted.
Format: `rocpd_python/rocpd/schema_data` and `rpd_tracer` of ROCm/rocmProfileData.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

import msgspec
import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.builder import (
    distinct_rows,
    map_distinct_ids,
    map_distinct_rows,
)
from tracelens_ext.readers.emitted_operations import describe_ranges
from tracelens_ext.readers.rocprof import records as rocprof
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.readers.sqlite_columns import Database
from tracelens_ext.readers.tables import MISSING
from tracelens_ext.text import NO_NAME
from tracelens_ext.trace import NONE, BoolArray, EventKind, Int64Array, Trace

Columns = dict[str, Int64Array]

FORMAT: Final = "rocmProfileData database (rpd)"
RECORD: Final = "runTracer.sh -o run.rpd python train.py"

_OPERATIONS: Final = "rocpd_op"
_CALLS: Final = "rocpd_api"
_LINKS: Final = "rocpd_api_ops"
_STRINGS: Final = "rocpd_string"
#: Texts that rarely repeat, such as arguments, and are stored anew for each row; since schema 3.
_UNIQUE_STRINGS: Final = "rocpd_ustring"
_MONITOR: Final = "rocpd_monitor"
#: HSA calls; only the converter from rocprof's files writes this table.
_HSA_CALLS: Final = "rocpd_hsaApi"
#: Tables whose rows are dropped, and the reason.
_REASON_OF_DROPPED_TABLE: Final = {"rocpd_counter": rocprof.COUNTER}
_BARRIER: Final = "barriers, which are not GPU work"
_EARLY_SAMPLE: Final = "monitoring samples from before the first call"

#: Names of rows of `rocpd_api` that are markers; earlier versions of `rocpd.autograd` wrote
#: `PytorchAutograd`.
_MARKER_NAMES: Final = frozenset({"UserMarker", "PytorchAutograd"})
#: Domains of calls, since schema 3. A row of any other domain is a range that the program named.
_DOMAINS_OF_CALLS: Final = frozenset({"", "hip", "cuda", "hsa", "rpd_tracer"})
_MARKER_CATEGORY: Final = "UserMarker"
_CALL_CATEGORY: Final = "rocpd_api"
_HSA_CATEGORY: Final = "rocpd_hsaApi"
_MONITOR_CATEGORY: Final = "rocpd_monitor"

_COPY: Final = re.compile(r"copy|memcpy", re.IGNORECASE)
_FILL: Final = re.compile(r"fill|memset", re.IGNORECASE)
_BARRIER_TYPE: Final = re.compile(r"(?:internal)?marker|\w*barrier", re.IGNORECASE)
#: Types of copies that rocprofiler-sdk recorded begin like this. Their `gpuId` is meaningless.
_COPY_WITHOUT_GPU: Final = "MEMORY_COPY_"
#: Types of operations that CUPTI recorded. Their `queueId` is the context, `sequenceId` the stream.
_OPERATIONS_OF_CUPTI: Final = frozenset(
    {"Kernel", "ConcurrentKernel", "Memcpy", "Memset"}
)

_GRID: Final = ("gridX", "gridY", "gridZ")
_WORKGROUP: Final = ("workgroupX", "workgroupY", "workgroupZ")
#: Launch calls whose grid is in work items; the grid of all other launch calls is in blocks.
_LAUNCHES_OF_WORK_ITEMS: Final = frozenset(
    {"hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel"}
)


class RpdDatabase(Database):
    """A database of rocmProfileData that is open for reading."""

    format = "rocmProfileData database"
    remedy = f"record again with: {RECORD}"

    def _is_ours(self) -> bool:
        return {_OPERATIONS, _CALLS, _STRINGS} <= self.tables.keys()


def read(source: ByteSource) -> Trace:
    """Read a database."""
    with RpdDatabase(source.path, source.file_or_bytes()) as database:
        for table in (_OPERATIONS, _CALLS):
            missing = {"id", "start", "end"} - database.tables[table]
            if missing:
                columns = ", ".join(sorted(missing))
                problem = f"is a damaged {database.format} ({table} has no {columns})"
                raise TraceFormatError(source.path, problem, database.remedy)
        advice = rocprof.RecordingAdvice(
            command=RECORD, calls="record with rpd_tracer, which records calls"
        )
        records = rocprof.RocprofRecords(advice)
        _RpdTables(database, records).read()
        format_name = FORMAT
        version = dict(database.pairs("rocpd_metadata", "tag", "value"))
        if version.get("schema_version", "").isdecimal():
            format_name += f" (schema {version['schema_version'][:9]})"
        return records.finish(source.path, format_name, database.size)


class _NumberOfId(NamedTuple):
    """A column of a table as a lookup from the id of a row to its number."""

    ids: Int64Array  #: distinct, ascending, (k,)
    numbers: Int64Array  #: the number of each id, (k,)

    @classmethod
    def of(cls, ids: Int64Array, numbers: Int64Array) -> _NumberOfId:
        """Return the lookup for unsorted ids and their numbers; the first row of an id counts."""
        distinct_ids, first_row = np.unique(ids, return_index=True)
        return cls(distinct_ids, numbers[first_row])

    def at(self, ids: Int64Array) -> Int64Array:
        """Return the number of each given id, (m,); `MISSING` for an id without a row."""
        if not len(self.ids):
            return np.full(len(ids), MISSING, dtype=np.int64)
        # `searchsorted` gives the index at which each id is stored, if the table has it.
        last_index = len(self.ids) - 1
        index = np.searchsorted(self.ids, ids)
        index = np.minimum(index, last_index)
        is_in_table = self.ids[index] == ids
        return np.where(is_in_table, self.numbers[index], MISSING)


class _RpdTables:
    """Reads the tables of a database and adds their rows to the records."""

    def __init__(self, database: RpdDatabase, records: rocprof.RocprofRecords) -> None:
        self._database = database
        self._records = records
        self._names = records.builder.names
        self._categories = records.builder.categories
        links = database.whole(_LINKS, "op_id", "api_id")
        self._call_of_operation = _NumberOfId.of(links["op_id"], links["api_id"])
        call_ids, operation_counts = np.unique(links["api_id"], return_counts=True)
        self._operation_count_of_call = _NumberOfId(call_ids, operation_counts)
        calls = database.whole(_CALLS, "id", "pid", "apiName_id", "start")
        self._process_of_call = _NumberOfId.of(calls["id"], calls["pid"])
        self._name_of_call = _NumberOfId.of(calls["id"], calls["apiName_id"])
        self._processes = np.unique(calls["pid"])
        self._first_call_ns = int(calls["start"].min(initial=2**62))

    def read(self) -> None:
        """Add all records."""
        self._read_calls()
        self._read_hsa_calls()
        self._read_operations()
        self._read_monitor()
        for table, reason in _REASON_OF_DROPPED_TABLE.items():
            self._records.drop(reason, self._database.count(table))

    # Calls and markers.

    def _read_calls(self) -> None:
        """Add calls, markers and named ranges, which are all rows of the same table."""
        columns = ("id", "pid", "tid", "start", "end", "apiName_id", "args_id")
        for chunk in self._database.chunks(_CALLS, columns + ("domain_id",)):
            chunk["name"] = map_distinct_ids(chunk["apiName_id"], self._name_codes)
            chunk["process"] = self._process(chunk["pid"])
            chunk["thread"] = chunk["tid"]
            chunk["correlation"] = chunk["id"]
            chunk["domain"] = map_distinct_ids(chunk["domain_id"], self._domain_codes)
            marker_codes = [self._names[name] for name in sorted(_MARKER_NAMES)]
            is_user_marker = np.isin(chunk["name"], marker_codes)
            is_call = self._is_domain(chunk, _DOMAINS_OF_CALLS.__contains__)
            is_call &= ~is_user_marker
            self._add_markers(_selected(chunk, is_user_marker))
            self._add_named_ranges(_selected(chunk, ~is_call & ~is_user_marker))
            self._add_calls(_selected(chunk, is_call))

    def _add_calls(self, chunk: Columns) -> None:
        """Add runtime calls. Before schema 3, calls have no domain."""
        if not len(chunk["start"]):
            return
        has_no_domain = chunk["domain"] == self._categories[""]
        call_category = self._categories[_CALL_CATEGORY]
        chunk["domain"] = np.where(has_no_domain, call_category, chunk["domain"])
        self._records.add(EventKind.RUNTIME, chunk)

    def _read_hsa_calls(self) -> None:
        """Add HSA calls."""
        columns = ("pid", "tid", "start", "end", "apiName_id")
        for chunk in self._database.chunks(_HSA_CALLS, columns):
            chunk["name"] = map_distinct_ids(chunk["apiName_id"], self._name_codes)
            chunk["process"] = self._process(chunk["pid"])
            chunk["thread"] = chunk["tid"]
            chunk["domain"] = np.full_like(
                chunk["pid"], self._categories[_HSA_CATEGORY]
            )
            self._records.add(EventKind.RUNTIME, chunk)

    def _add_markers(self, chunk: Columns) -> None:
        """Add markers. The text of a marker is stored as the arguments of its row."""
        table = _STRINGS
        if _UNIQUE_STRINGS in self._database.tables:
            table = _UNIQUE_STRINGS
        texts = self._database.look_up(table, "string", chunk["args_id"])
        described = describe_ranges(
            [(text or NO_NAME).encode() for text in texts], self._records.builder
        )
        chunk["name"] = described.name
        numbers = {
            "External id": described.call,
            "Sequence number": described.sequence,
        }
        dims = {"Input Dims": described.dims}
        self._add_ranges(chunk=chunk, kind=described.kind, numbers=numbers, texts=dims)

    def _add_named_ranges(self, chunk: Columns) -> None:
        """Add ranges in a domain that the program itself defined."""
        kind = np.full_like(chunk["start"], EventKind.USER_ANNOTATION)
        self._add_ranges(chunk=chunk, kind=kind, numbers={}, texts={})

    def _add_ranges(
        self, chunk: Columns, kind: Int64Array, numbers: Columns, texts: Columns
    ) -> None:
        """Add ranges, or marks if start and end are equal."""
        if not len(kind):
            return
        is_mark = chunk["start"] == chunk["end"]
        kind = np.where(is_mark, EventKind.INSTANT, kind)
        category = self._categories[_MARKER_CATEGORY]
        chunk["domain"] = np.full_like(kind, category)
        self._records.add_ranges(chunk, kind, numbers, texts)

    # GPU operations.

    def _read_operations(self) -> None:
        """Add GPU operations."""
        columns = (
            "id",
            "start",
            "end",
            "gpuId",
            "queueId",
            "sequenceId",
            "description_id",
            "opType_id",
        )
        usage = self._gpu_usage()
        launches = _LaunchTables(
            database=self._database, name_of_call=self._name_of_call
        )
        for chunk in self._operations(*columns):
            chunk["name"] = self._operation_names(chunk, launches)
            chunk["process"] = self._process(usage.processes(chunk))
            chunk["device"] = usage.devices(chunk, self._is_copy_without_gpu(chunk))
            is_cupti = self._is_domain(chunk, _OPERATIONS_OF_CUPTI.__contains__)
            chunk["lane"] = np.where(is_cupti, chunk["sequenceId"], chunk["queueId"])
            self._add_operations(chunk, launches)

    def _operations(self, *columns: str) -> Iterator[Columns]:
        """Yield chunks of operations, with columns that other tables add.

        The added columns are `correlation` (id of the call that started the operation), `pid`
        (process of that call), and `domain` (code of the type of the operation).
        """
        for chunk in self._database.chunks(_OPERATIONS, columns):
            chunk["correlation"] = self._call_of_operation.at(chunk["id"])
            chunk["pid"] = self._process_of_call.at(chunk["correlation"])
            chunk["domain"] = map_distinct_ids(chunk["opType_id"], self._domain_codes)
            yield chunk

    def _gpu_usage(self) -> _GpuUsage:
        """Return which processes used which GPUs, by the operations that name both."""
        pairs: set[_ProcessAndGpu] = set()
        for chunk in self._operations("id", "gpuId", "opType_id"):
            pid = chunk["pid"]
            gpu = chunk["gpuId"]
            names_both = pid != MISSING
            names_both &= ~self._is_copy_without_gpu(chunk)
            distinct = distinct_rows(pid[names_both], gpu[names_both])
            for row in distinct.rows:
                pairs.add(_ProcessAndGpu(*row))
        return _GpuUsage(self._processes.tolist(), pairs)

    def _is_copy_without_gpu(self, chunk: Columns) -> BoolArray:
        return self._is_domain(chunk, lambda name: name.startswith(_COPY_WITHOUT_GPU))

    def _operation_names(self, chunk: Columns, launches: _LaunchTables) -> Int64Array:
        """Return the code of the name of each operation, (m,).

        The name is the description, else the name of the launched kernel, else the type.
        """
        description = map_distinct_ids(chunk["description_id"], self._codes_of_texts)
        kernel_name_ids = launches.kernel_names(chunk)
        kernel_name = map_distinct_ids(kernel_name_ids, self._codes_of_texts)
        is_kernel = self._is_domain(chunk, _is_kernel_type)
        kernel_name[~is_kernel] = NONE
        type_name = map_distinct_ids(chunk["opType_id"], self._name_codes)
        name = np.where(kernel_name != NONE, kernel_name, type_name)
        return np.where(description != NONE, description, name)

    def _add_operations(self, chunk: Columns, launches: _LaunchTables) -> None:
        """Add operations as memsets, copies or kernels, by their types; drop barriers."""
        is_barrier = self._is_domain(chunk, _BARRIER_TYPE.match)
        barriers = int(np.count_nonzero(is_barrier))
        self._records.drop(_BARRIER, barriers)
        is_fill = self._is_domain(chunk, _FILL.search)
        is_fill &= ~is_barrier
        is_copy = self._is_domain(chunk, _COPY.search)
        is_copy &= ~(is_barrier | is_fill)
        is_kernel = ~(is_barrier | is_fill | is_copy)
        self._add_gpu_events(EventKind.MEMSET, _selected(chunk, is_fill))
        copies = _selected(chunk, is_copy)
        copies["bytes"] = launches.bytes_of(copies, self._operation_count_of_call)
        self._add_gpu_events(EventKind.MEMCPY, copies)
        kernels = _selected(chunk, is_kernel)
        kernels |= launches.geometry(kernels)
        self._add_gpu_events(EventKind.KERNEL, kernels)

    def _add_gpu_events(self, kind: EventKind, chunk: Columns) -> None:
        if len(chunk["start"]):
            self._records.add(kind, chunk)

    # Counters.

    def _read_monitor(self) -> None:
        """Add samples of clocks and power as counters; drop those from before the first call."""
        columns = ("deviceId", "start", "end")
        values = self._database.texts(_MONITOR, "value")
        names = self._database.texts(_MONITOR, "monitorType")
        for chunk in self._database.chunks(_MONITOR, columns):
            count = len(chunk["start"])
            value_codes = [self._json_code(text) for text in islice(values, count)]
            name_codes = [self._text_code(text) for text in islice(names, count)]
            chunk["value"] = np.array(value_codes, dtype=np.int64)
            chunk["name"] = np.array(name_codes, dtype=np.int64)
            is_early = chunk["end"] < self._first_call_ns
            self._records.drop(_EARLY_SAMPLE, int(np.count_nonzero(is_early)))
            self._add_samples(_selected(chunk, ~is_early))

    def _add_samples(self, chunk: Columns) -> None:
        """Add samples as events with the value as an argument."""
        if not len(chunk["start"]):
            return
        chunk["start"] = np.maximum(chunk["start"], self._first_call_ns)
        builder = self._records.builder
        builder.add_rows(
            chunk,
            chunk["name"],
            EventKind.OTHER,
            map_distinct_rows(self._monitor_thread, chunk["deviceId"]),
            self._categories[_MONITOR_CATEGORY],
            {},
            {"": chunk["value"]},
        )

    def _monitor_thread(self, device: int) -> int:
        return self._records.builder.threads[f"GPU {device} Counters", "monitor"]

    def _json_code(self, text: bytes | None) -> int:
        """Return the code of a text as an argument, which is JSON."""
        value = (text or b"").decode("utf-8", "replace")
        return self._records.builder.texts[msgspec.json.encode(value)]

    def _text_code(self, text: bytes | None) -> int:
        """Return the code of a text as a name."""
        return self._names[(text or b"").decode("utf-8", "replace") or NO_NAME]

    # Codes.

    def _process(self, pids: Int64Array) -> Int64Array:
        """Return the number of the process of each event, (m,), given its pid."""
        return map_distinct_rows(self._process_number, pids)

    def _process_number(self, pid: int) -> int:
        if pid == MISSING:
            return self._records.process("?", "?")
        return self._records.process(pid, pid)

    def _is_domain(self, chunk: Columns, fits: Callable[[str], object]) -> BoolArray:
        """Return whether `fits` is true for the domain (or type) of each event, (m,)."""
        is_fitting_code = [bool(fits(name)) for name in self._categories]
        return np.array(is_fitting_code, dtype=bool)[chunk["domain"]]

    def _texts(self, ids: Int64Array) -> list[str | None]:
        """Return the strings with some ids; None for an unknown id."""
        return self._database.look_up(_STRINGS, "string", ids)

    def _name_codes(self, ids: Int64Array) -> list[int]:
        """Return the code of the text of each id as a name."""
        return [self._names[text or NO_NAME] for text in self._texts(ids)]

    def _codes_of_texts(self, ids: Int64Array) -> list[int]:
        """Return the code of the text of each id as a name; `NONE` for an empty text."""
        return [self._code_of_text(text) for text in self._texts(ids)]

    def _code_of_text(self, text: str | None) -> int:
        if not text:
            return NONE
        return self._names[text]

    def _domain_codes(self, ids: Int64Array) -> list[int]:
        """Return the code of the text of each id as a category; empty for an unknown id."""
        return [self._categories[text or ""] for text in self._texts(ids)]


def _is_kernel_type(type_name: str) -> bool:
    """Return True if operations of this type are kernels: not barriers, fills or copies."""
    is_barrier = _BARRIER_TYPE.match(type_name)
    is_fill = _FILL.search(type_name)
    is_copy = _COPY.search(type_name)
    return not (is_barrier or is_fill or is_copy)


def _selected(chunk: Columns, is_selected: BoolArray) -> Columns:
    """Return some of the rows of a chunk."""
    return {name: values[is_selected] for name, values in chunk.items()}


class _ProcessAndGpu(NamedTuple):
    """A process, and a GPU that it used."""

    pid: int
    gpu: int


class _GpuUsage:
    """Which process used which GPU; tells what the row of an operation itself leaves open."""

    def __init__(self, pids: list[int], pairs: set[_ProcessAndGpu]) -> None:
        self._only_process = MISSING
        if len(pids) == 1:
            self._only_process = pids[0]
        gpus_of_process = defaultdict(set)
        processes_of_gpu = defaultdict(set)
        for pid, gpu in pairs:
            gpus_of_process[pid].add(gpu)
            processes_of_gpu[gpu].add(pid)
        self._gpu_of_process = _only_values(gpus_of_process)
        self._process_of_gpu = _only_values(processes_of_gpu)

    def processes(self, chunk: Columns) -> Int64Array:
        """Return the pid of each operation, (m,).

        An operation without a call belongs to the only process that used its GPU, or else to the
        only process of the file. If neither exists, its pid is `MISSING`.
        """

        def process_of(pid: int, gpu: int) -> int:
            if pid != MISSING:
                return pid
            return self._process_of_gpu.get(gpu, self._only_process)

        return map_distinct_rows(process_of, chunk["pid"], chunk["gpuId"])

    def devices(self, chunk: Columns, is_unsure: BoolArray) -> Int64Array:
        """Return the GPU of each operation, (m,).

        Args:
            chunk: m operations.
            is_unsure: whether the `gpuId` of the operation is meaningless, (m,). The operation is
                then attributed to the GPU of its process, if the process used only one.
        """

        def device_of(pid: int, gpu: int, is_guessed: int) -> int:
            if is_guessed:
                return self._gpu_of_process.get(pid, gpu)
            return gpu

        gpus = np.maximum(chunk["gpuId"], NONE)
        return map_distinct_rows(
            device_of, chunk["pid"], gpus, is_unsure.astype(np.int64)
        )


def _only_values(sets: Mapping[int, set[int]]) -> dict[int, int]:
    """Return, for each key whose set has exactly one value, that value."""
    return {key: min(values) for key, values in sets.items() if len(values) == 1}


class _LaunchTables:
    """The arguments of launches and copies: kernel name, grid, workgroup, number of bytes.

    Since schema 2 the arguments are stored by call, before by operation.

    Args:
        database: the open database.
        name_of_call: id of a call → id of its name.
    """

    def __init__(self, database: RpdDatabase, name_of_call: _NumberOfId) -> None:
        self._database = database
        self._name_of_call = name_of_call
        self._kernels = self._table("rocpd_kernelapi", "rocpd_kernelop")
        self._copies = self._table("rocpd_copyapi", "rocpd_copyop")
        self._sizes = self._columns_by_id(self._copies, "size")["size"]
        kernels = self._columns_by_id(
            self._kernels, *_GRID, *_WORKGROUP, "kernelName_id"
        )
        self._kernel_name = kernels.pop("kernelName_id")
        self._geometry = self._in_work_items(kernels)

    def _table(self, table_by_call: str, table_by_operation: str) -> _LaunchTable:
        if table_by_call in self._database.tables:
            return _LaunchTable(
                name=table_by_call, id_column="api_ptr_id", key="correlation"
            )
        return _LaunchTable(name=table_by_operation, id_column="op_ptr_id", key="id")

    def _columns_by_id(
        self, table: _LaunchTable, *names: str
    ) -> dict[str, _NumberOfId]:
        """Return columns as lookups by the id of their row.

        Column names of SQLite are case-insensitive, and schemas spell them differently.
        """
        stored_names = self._database.tables.get(table.name, frozenset())
        spelling = {name.casefold(): name for name in stored_names}
        spelled_names = [spelling.get(name.casefold(), name) for name in names]
        columns = self._database.whole(table.name, table.id_column, *spelled_names)
        ids = columns[table.id_column]
        return {
            name: _NumberOfId.of(ids, columns[spelled_name])
            for name, spelled_name in zip(names, spelled_names, strict=True)
        }

    def _in_work_items(self, columns: dict[str, _NumberOfId]) -> dict[str, _NumberOfId]:
        """Return the columns with all grids in work items, as rocprofv3 counts them.

        The unit of a grid depends on the recorder, which the file does not name. roctracer records
        the arguments of the call: blocks, but for two calls that take work items. rocprofiler-sdk
        always records work items, so each of its grids is a multiple of the workgroup.
        If one grid of the file is not such a multiple, the recorder was roctracer, and all grids
        are converted from blocks. If every grid is a multiple, the unit is unknown, and only the
        grids of those two calls are kept.
        """
        grid = np.array([columns[name].numbers for name in _GRID])
        workgroup = np.array([columns[name].numbers for name in _WORKGROUP])
        is_in_items = self._is_launch_of_work_items(columns[_GRID[0]].ids)
        remainder = grid % np.maximum(workgroup, 1)
        is_multiple = (remainder == 0).all(axis=0)
        is_certainly_blocks = ~is_in_items & ~is_multiple
        items_of_blocks: Int64Array | int = NONE
        if is_certainly_blocks.any():
            most = 2**31  # keeps the product within 64 bits
            items_of_blocks = np.clip(grid, 0, most) * np.clip(workgroup, 0, most)
        items = np.where(is_in_items, grid, items_of_blocks)
        for name, numbers in zip(_GRID, items, strict=True):
            ids = columns[name].ids
            columns[name] = _NumberOfId(ids, numbers)
        return columns

    def _is_launch_of_work_items(self, launch_ids: Int64Array) -> BoolArray:
        """Return whether each launch is one of the calls whose grid is in work items, (m,)."""
        name_ids = self._name_of_call.at(launch_ids)
        if not self._kernels.is_by_call:
            name_ids = np.full_like(launch_ids, MISSING)
        distinct_ids, index = np.unique(name_ids, return_inverse=True)
        names = self._database.look_up(_STRINGS, "string", distinct_ids)
        is_name_of_such_call = [name in _LAUNCHES_OF_WORK_ITEMS for name in names]
        return np.array(is_name_of_such_call, dtype=bool)[index]

    def kernel_names(self, chunk: Columns) -> Int64Array:
        """Return the id of the name of the launched kernel of each operation, (m,).

        The id is `MISSING` for an operation without a launch.
        """
        return self._kernel_name.at(chunk[self._kernels.key])

    def bytes_of(
        self, copies: Columns, operation_count_of_call: _NumberOfId
    ) -> Int64Array:
        """Return the number of bytes of each copy, (m,); negative if it is unknown.

        A size that is stored by call is not known to be that of a single copy if the call started
        several.
        """
        size = self._sizes.at(copies[self._copies.key])
        if not self._copies.is_by_call:
            return size
        is_one_of_several = operation_count_of_call.at(copies["correlation"]) > 1
        return np.where(is_one_of_several, NONE, size)

    def geometry(self, kernels: Columns) -> Columns:
        """Return grid and workgroup of each kernel, under the column names of rocprofv3."""
        ids = kernels[self._kernels.key]
        sizes = [self._geometry[name].at(ids) for name in _GRID + _WORKGROUP]
        return dict(zip(rocprof.GEOMETRY, sizes, strict=True))


class _LaunchTable(NamedTuple):
    """A table with arguments of launches or copies."""

    name: str
    id_column: str
    key: str  #: column of operations with the matching ids: `correlation` or `id`

    @property
    def is_by_call(self) -> bool:
        """True if a row describes a call, False if it describes an operation."""
        return self.key == "correlation"
