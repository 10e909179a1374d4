"""Reads the CSV tables of rocprofv3: all tables with one prefix in a folder are one trace.

Supports: `PREFIX_kernel_trace.csv`, `PREFIX_memory_copy_trace.csv`, the tables of calls and markers
(`PREFIX_hip_api_trace.csv`, `PREFIX_marker_api_trace.csv` …) and `PREFIX_agent_info.csv`, with the
columns of old and new versions, and the tables of `rocpd convert` (with a column `Guid`).

* The titles of a table say what it lists, not its name.
* When the user names one table, the others with its prefix are read, too, if one of them lists
  kernels.
* A dispatch belongs to the call with the same correlation id.
* Tables of rocprof and rocprofv2 (a row per kernel, or totals by kernel) are read one at a time.

Ignores: memory allocations and counter collections, which are counted.
Format: "Using rocprofv3" in the documentation of ROCprofiler-SDK.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from operator import attrgetter
from pathlib import Path

import numpy as np

from tracelens_ext.errors import TraceCutOffError, TraceError, TraceFormatError
from tracelens_ext.readers.builder import Interner, map_distinct_rows
from tracelens_ext.readers.csv_rows import UnfinishedRow, rows_of
from tracelens_ext.readers.messages import REMEDY_COPY_AGAIN
from tracelens_ext.readers.rocprof import records as rocprof
from tracelens_ext.readers.salvage import salvage_notes
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.readers.tables import MISSING
from tracelens_ext.text import NO_NAME
from tracelens_ext.trace import NONE, EventKind, Int64Array, Trace

Rows = Iterator[tuple[int, list[str]]]

FORMAT = "rocprofv3 tables (CSV)"

_ROWS_AT_ONCE = 1 << 15
#: Name of a table of rocprofv3; the group is its prefix.
_TABLE_NAME = re.compile(
    r"(.*?)(?:(?:kernel|memory_copy|memory_allocation|scratch_memory"
    r"|(?:hip|hsa|marker|rccl|rocdecode|rocjpeg)(?:_api)?)_trace|counter_collection|agent_info)"
    r"\.csv(?:\.gz)?",
    re.DOTALL,
)
_KERNELS = "kernel_trace.csv"
#: A table of totals with more calls is refused: each call becomes an event.
_MOST_CALLS = 10**7


class TableKind(IntEnum):
    """What a table lists. The tables of a trace are read in the order of these values.

    Calls are read before kernels, because a kernel may only name its thread: the calls of that
    thread then tell the process.
    """

    UNKNOWN = NONE
    AGENTS = 0
    CALLS = 1
    DISPATCHES = 2
    COPIES = 3
    COUNTERS = 4
    ALLOCATIONS = 5
    TOTALS = 6


_TIMES = {"start_timestamp", "end_timestamp"}
#: Titles that a table of each kind has. The first kind whose titles are all present is the kind of
#: a table.
_TITLES_OF_KIND: dict[TableKind, set[str]] = {
    TableKind.AGENTS: {"node_id", "agent_type"},
    TableKind.COUNTERS: {"counter_name", "counter_value"},
    TableKind.DISPATCHES: {"kernel_name", "agent_id"} | _TIMES,
    TableKind.COPIES: {"direction"} | _TIMES,
    TableKind.CALLS: {"domain", "function"} | _TIMES,
    TableKind.ALLOCATIONS: {"operation"} | _TIMES,
    TableKind.TOTALS: {"name", "calls", "totaldurationns"},
}


@dataclass(frozen=True)
class _RecordColumns:
    """The kind of the records of a table, and the title of each column that is read."""

    kind: EventKind
    name: str  #: title of the column with the name
    domain: str = ""  #: title of the column with the domain; empty if there is none
    #: column of whole numbers → title
    numbers: Mapping[str, str] = field(default_factory=dict)
    #: column of devices → title
    devices: Mapping[str, str] = field(default_factory=dict)


#: Columns of numbers that all records have → their titles.
_COMMON_NUMBERS = {
    "start": "start_timestamp",
    "end": "end_timestamp",
    "correlation": "correlation_id",
}
#: Kinds of tables that list records, and their columns.
_RECORDS = {
    TableKind.CALLS: _RecordColumns(
        kind=EventKind.RUNTIME,
        name="function",
        domain="domain",
        numbers={"thread": "thread_id"},
    ),
    TableKind.DISPATCHES: _RecordColumns(
        kind=EventKind.KERNEL,
        name="kernel_name",
        numbers={"lane": "queue_id"} | {title: title for title in rocprof.GEOMETRY},
        devices={"device": "agent_id"},
    ),
    TableKind.COPIES: _RecordColumns(
        kind=EventKind.MEMCPY,
        name="direction",
        domain="kind",
        numbers={"lane": "stream_id"},
        devices={"source": "source_agent_id", "target": "destination_agent_id"},
    ),
}
#: Titles of rocprof, rocprofv2 and early rocprofv3 → current titles. If a table has both, the
#: column with the current title is read. If a table has no queues, streams are read as queues.
_CURRENT_TITLE_OF = {
    "kernelname": "kernel_name",
    "beginns": "start_timestamp",
    "endns": "end_timestamp",
    "gpu-id": "agent_id",
    "gpu_id": "agent_id",
    "queue-id": "queue_id",
    "pid": "process_id",
    "tid": "thread_id",
    "grd": "grid_size_x",  # this and the next three are the product of all dimensions
    "grid_size": "grid_size_x",
    "wgr": "workgroup_size_x",
    "workgroup_size": "workgroup_size_x",
    "stream_id": "queue_id",
}
#: Kinds of tables whose rows are dropped, and the reason.
_REASON_OF_DROPPED_TABLE = {
    TableKind.COUNTERS: rocprof.COUNTER,
    TableKind.ALLOCATIONS: rocprof.ALLOCATION,
}
_GPU_NUMBERS_NOTE = (
    "GPUs are numbered by agent, and CPUs are agents too: PREFIX_agent_info.csv, "
    "which distinguishes and names them, is not next to the tables."
)
_TOTALS_NOTE = (
    "The file contains only totals: each call of a kernel has its mean duration; when "
    "it ran, on which GPU, and what launched it are unknown."
)
#: An agent as a table names it; the groups are the word and the number.
_AGENT = re.compile(r"(?:(agent|gpu|cpu)\s+)?(\d{1,6})", re.IGNORECASE | re.ASCII)


def read(source: ByteSource) -> Trace:
    """Read a table, together with the other tables of its run in the same folder."""
    records = rocprof.RocprofRecords()
    with ExitStack() as opened:
        tables = [_open_table(source)]
        for path in _tables_beside(source.file):
            try:
                file = ByteSource(path, reading=source.reading)
                other_source = opened.enter_context(file)
                tables.append(_open_table(other_source))
            except TraceError as error:
                note = f"{path.name}, which is next to it, is ignored: {error.problem}."
                records.notes.append(note)
        reader = TableReader(records)
        for table in sorted(tables, key=attrgetter("kind")):
            reader.read(table)
    # A size of 0 keeps the trace out of the cache, which would notice a change of this file, but
    # not a change of the other tables.
    return records.finish(source.path, FORMAT, bytes_read=0)


def _tables_beside(file: Path | None) -> list[Path]:
    """Return the other tables with the prefix of a file; none unless a table lists kernels."""
    if file is None:
        return []
    own_name = _TABLE_NAME.fullmatch(file.name)
    if own_name is None:
        return []
    prefix = own_name[1]
    same_prefix = []
    with suppress(OSError):  # raised for a folder that cannot be listed
        folder = file.absolute().parent
        for path in sorted(folder.iterdir()):
            name = _TABLE_NAME.fullmatch(path.name)
            has_prefix = name is not None and name[1] == prefix
            if has_prefix and path.is_file():
                same_prefix.append(path)
    table_names = [path.name.removesuffix(".gz") for path in same_prefix]
    table_of_kernels = prefix + _KERNELS
    if table_of_kernels not in table_names:
        return []
    return [path for path in same_prefix if path.name != file.name]


class RocprofCsvTable:
    """A table whose titles were read, and whose rows follow.

    Attributes:
        source: the file.
        width: number of cells in a complete row.
        rows: the rows below the titles, each with the number of its line.
        column_of_title: title in lower case → index of its column; contains both the titles of the
            file and their current equivalents.
        kind: what the table lists.
    """

    def __init__(self, source: ByteSource, titles: Sequence[str], rows: Rows) -> None:
        self.source = source
        self.width = len(titles)
        self.rows = rows
        self.column_of_title: dict[str, int] = {}
        for column, title in enumerate(titles):
            self.column_of_title[title.strip().casefold()] = column
        for title, current_title in _CURRENT_TITLE_OF.items():
            if title in self.column_of_title:
                column = self.column_of_title[title]
                self.column_of_title.setdefault(current_title, column)
        self.kind = self._find_kind()

    def _find_kind(self) -> TableKind:
        for kind, titles in _TITLES_OF_KIND.items():
            if titles <= self.column_of_title.keys():
                return kind
        return TableKind.UNKNOWN


def _open_table(source: ByteSource) -> RocprofCsvTable:
    """Read the titles of a table.

    Raises:
        TraceFormatError: the titles are not those of a supported table.
    """
    remedy = f"record with: {rocprof.RECORD}"
    rows = rows_of(source, remedy)
    _, titles = next(rows, (0, []))
    table = RocprofCsvTable(source=source, titles=titles, rows=rows)
    if table.kind != TableKind.UNKNOWN:
        return table
    problem = "is not a supported rocprofv3 table (kernels, copies, calls or markers)"
    raise TraceFormatError(source.path, problem, f"{remedy} --output-format csv")


class _RowBatch(dict[str, Sequence[str]]):
    """The cells of m consecutive rows of a table by title, each column of length m.

    A title that the table does not have gives a column of empty cells.
    """

    def __init__(
        self, column_of_title: Mapping[str, int], rows: Sequence[Sequence[str]]
    ) -> None:
        super().__init__()
        columns = list(zip(*rows, strict=True))
        for title, column in column_of_title.items():
            self[title] = columns[column]
        self.count = len(rows)

    def __missing__(self, title: str) -> Sequence[str]:
        return [""] * self.count

    def whole_numbers(self, title: str) -> Int64Array:
        """Return the whole numbers of a column, (m,); `MISSING` for a cell with anything else."""
        try:
            return np.fromiter(map(int, self[title]), np.int64, self.count)
        except (ValueError, OverflowError):
            numbers = map(_whole_number_or_missing, self[title])
            return np.fromiter(numbers, np.int64, self.count)

    def codes(self, title: str, code_of: Callable[[str], int]) -> Int64Array:
        """Return `code_of` of each cell of a column, (m,); it is called once per distinct text."""
        distinct: Interner[str] = Interner()
        index = distinct.codes(self[title], self.count)
        codes = [code_of(text) for text in distinct]
        code_of_distinct = np.array(codes, dtype=np.int64)
        return code_of_distinct[index]


class TableReader:
    """Adds the rows of the tables of one run to the records."""

    def __init__(self, records: rocprof.RocprofRecords) -> None:
        self._records = records
        self._guids: Interner[str] = Interner()
        self._process_of_thread: dict[tuple[int, int], int] = {}
        self._processes_of_guid: defaultdict[int, set[int]] = defaultdict(set)
        self._gpu_of_node: dict[int, int] = {}
        self._gpu_of_visible_agent: dict[int, int] = {}
        self._has_agents = False

    def read(self, table: RocprofCsvTable) -> None:
        """Add the rows of a table.

        Raises:
            TraceFormatError: a table of totals has so many calls that it must be wrong.
            TraceCutOffError: the table is damaged, and damaged files are not to be salvaged.
        """
        for batch in self._row_batches(table):
            if table.kind in _RECORDS:
                self._add_records(_RECORDS[table.kind], batch)
            elif table.kind in _REASON_OF_DROPPED_TABLE:
                self._records.drop(_REASON_OF_DROPPED_TABLE[table.kind], batch.count)
            elif table.kind == TableKind.AGENTS:
                self._add_agents(batch)
            else:
                self._add_totals(batch)

    def _add_totals(self, batch: _RowBatch) -> None:
        """Add a kernel for each call that a row counts, one after another.

        The durations within a row differ by 1 ns at most and add up to the total.
        Example: 3 calls of 10 ns in total take 4, 3 and 3 ns.
        """
        calls = np.maximum(batch.whole_numbers("calls"), 0)
        total = np.maximum(batch.whole_numbers("totaldurationns"), 0)
        if calls.sum(dtype=np.float64) > _MOST_CALLS:
            raise TraceFormatError(
                "the table", f"has more than {_MOST_CALLS:,} calls", "create it again"
            )
        mean, remainder = np.divmod(total, np.maximum(calls, 1))
        # Rows of 3 and 2 calls give 5 kernels, with the indices 0, 1, 2, 0, 1 within their rows.
        first_kernel_of_row = np.cumsum(calls) - calls
        index_in_row = np.arange(calls.sum()) - np.repeat(first_kernel_of_row, calls)
        takes_1_ns_more = index_in_row < np.repeat(remainder, calls)
        duration = np.repeat(mean, calls) + takes_1_ns_more
        end = np.cumsum(duration)
        names = batch.codes("name", self._kernel_name)
        zeros = np.zeros_like(end)
        columns = {
            "start": end - duration,
            "end": end,
            "process": np.full_like(end, self._records.process("?", "?")),
            "name": np.repeat(names, calls),
            "device": zeros,
            "lane": zeros,
        }
        self._records.add(EventKind.KERNEL, columns)
        self._records.notes.append(_TOTALS_NOTE)

    def _kernel_name(self, text: str) -> int:
        return self._records.builder.names[rocprof.kernel_name(text, 0)]

    def _name(self, text: str) -> int:
        return self._records.builder.names[text or NO_NAME]

    def _row_batches(self, table: RocprofCsvTable) -> Iterator[_RowBatch]:
        """Yield the rows of a table in batches, up to where it is damaged or cut off.

        Raises:
            TraceCutOffError: the table is damaged, and damaged files are not to be salvaged.
        """
        row_count = 0
        while True:
            rows: list[list[str]] = []
            damage: TraceCutOffError | None = None
            try:
                for _, row in islice(table.rows, _ROWS_AT_ONCE):
                    rows.append(row)  # one by one: rows before an error are kept
            except TraceFormatError as error:
                damage = TraceCutOffError(error.path, error.problem, REMEDY_COPY_AGAIN)
            if not rows and damage is None:
                return
            if rows and _is_incomplete(rows[-1], table.width):
                rows.pop()
                damage = TraceCutOffError(
                    table.source.path, "its last line is incomplete", REMEDY_COPY_AGAIN
                )
            filled_rows = [row for row in rows if row]
            whole_rows = [row for row in filled_rows if len(row) == table.width]
            odd_rows = len(filled_rows) - len(whole_rows)
            self._records.drop("rows with more or fewer cells than columns", odd_rows)
            row_count += len(whole_rows)
            if whole_rows:
                yield _RowBatch(table.column_of_title, whole_rows)
            notes = salvage_notes(
                source=table.source,
                damage=damage,
                end_of_text=table.source.bytes_read,
                events=row_count,
            )
            self._records.notes += notes
            if notes:
                return

    # Agents.

    def _add_agents(self, batch: _RowBatch) -> None:
        """Number the GPUs among the agents, in the order of their nodes, and describe them."""
        self._has_agents = True
        nodes = batch.whole_numbers("node_id")
        visible_agents = batch.whole_numbers("logical_node_id")
        compute_units = batch.whole_numbers("cu_count")
        warp_sizes = batch.whole_numbers("wave_front_size")
        for row in np.argsort(nodes, kind="stable").tolist():
            if batch["agent_type"][row].strip() != "GPU":
                continue
            ordinal = self._gpu_of_node.setdefault(
                int(nodes[row]), len(self._gpu_of_node)
            )
            agent = rocprof.Agent(
                type=rocprof.GPU_AGENT,
                name=batch["name"][row],
                product_name=batch["product_name"][row],
                cu_count=int(compute_units[row]),
                wave_front_size=int(warp_sizes[row]),
            )
            gpu = self._records.device(None, ordinal, agent)
            self._gpu_of_visible_agent[int(visible_agents[row])] = gpu

    def _device(self, text: str) -> int:
        """Return the number of the GPU that a table calls `Agent 4`, `GPU 0` or `4`.

        The number after `GPU` counts GPUs. The number after `Agent` counts the agents that the
        program can see. A bare number (of `--agent-index absolute` as well) is that of a node.
        The result is `NONE` for a CPU and for an unknown agent.
        """
        agent = _AGENT.fullmatch(text.strip())
        if agent is None:
            return NONE
        word = (agent[1] or "").casefold()
        agent_index = int(agent[2])
        if word == "cpu":
            return NONE
        if word == "gpu":
            return agent_index
        if self._has_agents:
            gpu = self._gpu_of_node.get(agent_index, NONE)
            if word == "agent":
                return self._gpu_of_visible_agent.get(agent_index, gpu)
            return gpu
        if _GPU_NUMBERS_NOTE not in self._records.notes:
            self._records.notes.append(_GPU_NUMBERS_NOTE)
        return agent_index

    # Records.

    def _add_records(self, record: _RecordColumns, batch: _RowBatch) -> None:
        """Add the records in a batch of rows: calls, dispatches or copies."""
        columns = {}
        for column, title in (_COMMON_NUMBERS | dict(record.numbers)).items():
            columns[column] = batch.whole_numbers(title)
        for column, title in record.devices.items():
            columns[column] = batch.codes(title, self._device)
        if record.kind == EventKind.KERNEL:
            columns["name"] = batch.codes(record.name, self._kernel_name)
        else:
            categories = self._records.builder.categories
            columns["name"] = batch.codes(record.name, self._name)
            columns["domain"] = batch.codes(record.domain, categories.__getitem__)
        columns["process"] = self._processes(record.kind, batch)
        self._records.add(record.kind, columns)

    def _processes(self, kind: EventKind, batch: _RowBatch) -> Int64Array:
        """Return the number of the process of each row, (m,).

        The process is the one that the row names, or the process of the row's thread, or the only
        process with the row's guid.
        """
        guids = batch.codes("guid", self._guids.__getitem__)
        threads = batch.whole_numbers("thread_id")
        if kind == EventKind.RUNTIME or "process_id" in batch:
            process_ids = batch.whole_numbers("process_id")
            return map_distinct_rows(self._process_with_id, guids, process_ids, threads)
        return map_distinct_rows(self._process_of, guids, threads)

    def _process_with_id(self, guid: int, pid: int, thread: int) -> int:
        """Return the number of a process, and remember it for rows that only have its thread."""
        label: int | str = pid
        if pid == MISSING:
            label = "?"
        process = self._records.process((guid, pid), label)
        self._process_of_thread[guid, thread] = process
        self._processes_of_guid[guid].add(process)
        return process

    def _process_of(self, guid: int, thread: int) -> int:
        """Return the process of a thread, or the only one of its guid."""
        if (guid, thread) in self._process_of_thread:
            return self._process_of_thread[guid, thread]
        processes = self._processes_of_guid[guid]
        if len(processes) == 1:
            return next(iter(processes))
        return self._records.process((guid, "?"), "?")


def _is_incomplete(row: Sequence[str], width: int) -> bool:
    """Return True if the file ends within this row."""
    return isinstance(row, UnfinishedRow) and len(row) < width


def _whole_number_or_missing(cell: str) -> int:
    try:
        number = int(cell)
    except ValueError:
        return MISSING
    if abs(number) < -MISSING:
        return number
    return MISSING
