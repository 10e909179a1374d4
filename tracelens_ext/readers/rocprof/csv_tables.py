"""Reads the CSV tables of rocprofv3: those in one folder that have one prefix are one trace.

Tables of rocprof and rocprofv2 (a row per kernel, or sums of kernels) are read one at a time.

Supports: `PREFIX_kernel_trace.csv`, `…_memory_copy_trace.csv`, the tables of calls and markers
(`…_hip_api_trace.csv`, `…_marker_api_trace.csv` …) and `…_agent_info.csv`, old and new columns, and
those of `rocpd convert` (with a `Guid`). A table is recognized by its titles; the tables beside one
are read with it if kernels are among them. A dispatch belongs to the call with its correlation id.
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
from tracelens_ext.readers.builder import Interner, of_rows
from tracelens_ext.readers.csv_rows import UnfinishedRow, rows_of
from tracelens_ext.readers.rocprof import records as rocprof
from tracelens_ext.readers.source import AGAIN, ByteSource, salvage_notes
from tracelens_ext.readers.tables import MISSING
from tracelens_ext.text import NO_NAME
from tracelens_ext.trace import NONE, EventKind, Int64Array, Trace

Rows = Iterator[tuple[int, list[str]]]

FORMAT = "rocprofv3 tables (CSV)"

_ROWS_AT_ONCE = 1 << 15
_TABLE = re.compile(
    r"(.*?)(?:(?:kernel|memory_copy|memory_allocation|scratch_memory"
    r"|(?:hip|hsa|marker|rccl|rocdecode|rocjpeg)(?:_api)?)_trace|counter_collection|agent_info)"
    r"\.csv(?:\.gz)?",
    re.DOTALL,
)
_KERNELS = "kernel_trace.csv"
_MOST_CALLS = 10**7


class TableKind(IntEnum):
    """What a table lists; its tables are read in this order.

    Calls come before kernels, whose process may only be known from the calls of their thread.
    """

    UNKNOWN = NONE
    AGENTS = 0
    CALLS = 1
    DISPATCHES = 2
    COPIES = 3
    COUNTERS = 4
    ALLOCATIONS = 5
    SUMS = 6


_TIMES = {"start_timestamp", "end_timestamp"}
#: The first of these whose titles are all there is what a table lists.
_TITLES_OF_KIND: dict[TableKind, set[str]] = {
    TableKind.AGENTS: {"node_id", "agent_type"},
    TableKind.COUNTERS: {"counter_name", "counter_value"},
    TableKind.DISPATCHES: {"kernel_name", "agent_id"} | _TIMES,
    TableKind.COPIES: {"direction"} | _TIMES,
    TableKind.CALLS: {"domain", "function"} | _TIMES,
    TableKind.ALLOCATIONS: {"operation"} | _TIMES,
    TableKind.SUMS: {"name", "calls", "totaldurationns"},
}


@dataclass(frozen=True)
class _RecordColumns:
    """What the records of a table are, and under which titles it has their columns."""

    kind: EventKind
    name: str
    domain: str = ""
    #: of columns of whole numbers
    numbers: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)  #: of columns of devices


_NUMBERS_OF_ALL = {
    "start": "start_timestamp",
    "end": "end_timestamp",
    "correlation": "correlation_id",
}
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
#: Titles of rocprof and rocprofv2 → those of rocprofv3; a stream where there is no queue.
_EARLIER_TITLES = {
    "kernelname": "kernel_name",
    "beginns": "start_timestamp",
    "endns": "end_timestamp",
    "gpu-id": "agent_id",
    "gpu_id": "agent_id",
    "queue-id": "queue_id",
    "pid": "process_id",
    "tid": "thread_id",
    "grd": "grid_size_x",  # of all dimensions
    "grid_size": "grid_size_x",
    "wgr": "workgroup_size_x",
    "workgroup_size": "workgroup_size_x",
    "stream_id": "queue_id",
}
_LEFT_OUT = {
    TableKind.COUNTERS: rocprof.COUNTER,
    TableKind.ALLOCATIONS: rocprof.ALLOCATION,
}
_GPU_NUMBERS_NOTE = (
    "GPUs are numbered by agent, and CPUs are agents too: PREFIX_agent_info.csv, "
    "which distinguishes and names them, is not next to the tables."
)
_SUMS_NOTE = (
    "The file contains only totals: each call of a kernel has its mean duration; when "
    "it ran, on which GPU, and what launched it are unknown."
)
_NUMBER = re.compile(r"(?:(agent|gpu|cpu)\s+)?(\d{1,6})", re.IGNORECASE | re.ASCII)


def read(source: ByteSource) -> Trace:
    """Read a table and those beside it."""
    records = rocprof.RocprofRecords()
    with ExitStack() as opened:
        tables = [_open_table(source)]
        for path in _tables_beside(source.file):
            try:
                file = ByteSource(path, reading=source.reading)
                beside = opened.enter_context(file)
                tables.append(_open_table(beside))
            except TraceError as error:
                note = f"{path.name}, which is next to it, is ignored: {error.problem}."
                records.notes.append(note)
        reader = TableReader(records)
        for table in sorted(tables, key=attrgetter("kind")):
            reader.read(table)
    # The size is left out: the cache would notice a change of one file, but no new one beside it.
    return records.finish(source.path, FORMAT, bytes_read=0)


def _tables_beside(file: Path | None) -> list[Path]:
    """Return the other tables with the prefix of a file, if kernels are listed among them."""
    if file is None:
        return []
    own_name = _TABLE.fullmatch(file.name)
    if own_name is None:
        return []
    prefix = own_name[1]
    same_prefix = []
    with suppress(OSError):  # a folder that cannot be listed
        folder = file.absolute().parent
        for path in sorted(folder.iterdir()):
            name = _TABLE.fullmatch(path.name)
            has_prefix = name is not None and name[1] == prefix
            if has_prefix and path.is_file():
                same_prefix.append(path)
    table_names = [path.name.removesuffix(".gz") for path in same_prefix]
    table_of_kernels = prefix + _KERNELS
    if table_of_kernels not in table_names:
        return []
    return [path for path in same_prefix if path.name != file.name]


class RocprofCsvTable:
    """A table whose titles were read.

    Attributes:
        source: the file.
        width: how many cells a row has.
        rows: the rows below the titles, each with the number of its line.
        places: title → the place of its column; titles in lower case, earlier ones translated.
        kind: what the table lists.
    """

    def __init__(self, source: ByteSource, titles: Sequence[str], rows: Rows) -> None:
        self.source = source
        self.width = len(titles)
        self.rows = rows
        self.places: dict[str, int] = {}
        for place, title in enumerate(titles):
            self.places[title.strip().casefold()] = place
        for title, current_title in _EARLIER_TITLES.items():
            if title in self.places:
                self.places.setdefault(current_title, self.places[title])
        self.kind = self._find_kind()

    def _find_kind(self) -> TableKind:
        for kind, titles in _TITLES_OF_KIND.items():
            if titles <= self.places.keys():
                return kind
        return TableKind.UNKNOWN


def _open_table(source: ByteSource) -> RocprofCsvTable:
    remedy = f"record with: {rocprof.RECORD}"
    rows = rows_of(source, remedy)
    _, titles = next(rows, (0, []))
    table = RocprofCsvTable(source=source, titles=titles, rows=rows)
    if table.kind != TableKind.UNKNOWN:
        return table
    problem = "is not a supported rocprofv3 table (kernels, copies, calls or markers)"
    raise TraceFormatError(source.path, problem, f"{remedy} --output-format csv")


class _Piece(dict[str, Sequence[str]]):
    """The cells of some rows of a table, by title; empty ones where there is no such column."""

    def __init__(
        self, places: Mapping[str, int], rows: Sequence[Sequence[str]]
    ) -> None:
        super().__init__()
        columns = list(zip(*rows, strict=True))
        for title, place in places.items():
            cells = columns[place]
            self[title] = cells
        self.count = len(rows)

    def __missing__(self, title: str) -> Sequence[str]:
        return [""] * self.count

    def whole(self, title: str) -> Int64Array:
        """Return the numbers of a column, `MISSING` where there is none, shape (m,)."""
        try:
            return np.fromiter(map(int, self[title]), np.int64, self.count)
        except (ValueError, OverflowError):
            return np.fromiter(map(_whole_number, self[title]), np.int64, self.count)

    def codes(self, title: str, code_of: Callable[[str], int]) -> Int64Array:
        """Return a number for each cell, asked for once per distinct cell, shape (m,)."""
        distinct: Interner[str] = Interner()
        index = distinct.codes(self[title], self.count)
        codes = [code_of(text) for text in distinct]
        code_of_distinct = np.array(codes, dtype=np.int64)
        return code_of_distinct[index]


class TableReader:
    """Adds tables of one run to the records."""

    def __init__(self, records: rocprof.RocprofRecords) -> None:
        self._records = records
        self._guids: Interner[str] = Interner()
        self._process_of_thread: dict[tuple[int, int], int] = {}
        self._processes_of_guid: defaultdict[int, set[int]] = defaultdict(set)
        self._gpu_of_node: dict[int, int] = {}
        self._gpu_of_visible_agent: dict[int, int] = {}
        self._has_agents = False

    def read(self, table: RocprofCsvTable) -> None:
        """Add the rows of a table."""
        for piece in self._pieces(table):
            if table.kind in _RECORDS:
                self._add_records(_RECORDS[table.kind], piece)
            elif table.kind in _LEFT_OUT:
                self._records.drop(_LEFT_OUT[table.kind], piece.count)
            elif table.kind == TableKind.AGENTS:
                self._add_agents(piece)
            else:
                self._add_sums(piece)

    def _add_sums(self, piece: _Piece) -> None:
        """Add as many kernels as each row counts, one after another, each of the mean duration.

        Example: 3 calls of 10 ns in total take 4, 3 and 3 ns.
        """
        calls = np.maximum(piece.whole("calls"), 0)
        total = np.maximum(piece.whole("totaldurationns"), 0)
        if calls.sum(dtype=np.float64) > _MOST_CALLS:
            raise TraceFormatError(
                "the table", f"has more than {_MOST_CALLS:,} calls", "create it again"
            )
        mean, remainder = np.divmod(total, np.maximum(calls, 1))
        first_kernel = np.cumsum(calls) - calls
        number_in_row = np.arange(calls.sum()) - np.repeat(first_kernel, calls)
        takes_one_more = number_in_row < np.repeat(remainder, calls)
        duration = np.repeat(mean, calls) + takes_one_more
        end = np.cumsum(duration)
        names = piece.codes("name", self._kernel_name)
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
        self._records.notes.append(_SUMS_NOTE)

    def _kernel_name(self, text: str) -> int:
        return self._records.builder.names[rocprof.kernel_name(text, 0)]

    def _name(self, text: str) -> int:
        return self._records.builder.names[text or NO_NAME]

    def _pieces(self, table: RocprofCsvTable) -> Iterator[_Piece]:
        """Yield the rows of a table in pieces, up to where it is cut off."""
        row_count = 0
        while True:
            rows: list[list[str]] = []
            damage: TraceCutOffError | None = None
            try:
                for _, row in islice(table.rows, _ROWS_AT_ONCE):
                    rows.append(row)  # what was read before an error is kept
            except TraceFormatError as error:
                damage = TraceCutOffError(error.path, error.problem, AGAIN)
            if not rows and damage is None:
                return
            if (
                rows
                and isinstance(rows[-1], UnfinishedRow)
                and len(rows[-1]) < table.width
            ):
                rows.pop()
                damage = TraceCutOffError(
                    table.source.path, "its last line is incomplete", AGAIN
                )
            filled_rows = [row for row in rows if row]
            whole_rows = [row for row in filled_rows if len(row) == table.width]
            odd_rows = len(filled_rows) - len(whole_rows)
            self._records.drop("rows with more or fewer cells than columns", odd_rows)
            row_count += len(whole_rows)
            if whole_rows:
                yield _Piece(table.places, whole_rows)
            notes = salvage_notes(
                source=table.source,
                damage=damage,
                at=table.source.bytes_read,
                events=row_count,
            )
            self._records.notes += notes
            if notes:
                return

    # Agents.

    def _add_agents(self, piece: _Piece) -> None:
        self._has_agents = True
        nodes = piece.whole("node_id")
        visible_agents = piece.whole("logical_node_id")
        compute_units = piece.whole("cu_count")
        warp_sizes = piece.whole("wave_front_size")
        for row in np.argsort(nodes, kind="stable").tolist():
            if piece["agent_type"][row].strip() != "GPU":
                continue
            ordinal = self._gpu_of_node.setdefault(
                int(nodes[row]), len(self._gpu_of_node)
            )
            agent = rocprof.Agent(
                type=rocprof.GPU_AGENT,
                name=piece["name"][row],
                product_name=piece["product_name"][row],
                cu_count=int(compute_units[row]),
                wave_front_size=int(warp_sizes[row]),
            )
            gpu = self._records.device(None, ordinal, agent)
            self._gpu_of_visible_agent[int(visible_agents[row])] = gpu

    def _device(self, text: str) -> int:
        """Return the GPU that `Agent 4`, `GPU 0` or `4` is; `NONE` for a CPU.

        `Agent 4` counts what the program sees; a bare number (or `--agent-index absolute`) nodes.
        """
        agent = _NUMBER.fullmatch(text.strip())
        if agent is None:
            return NONE
        word = (agent[1] or "").casefold()
        number = int(agent[2])
        if word == "cpu":
            return NONE
        if word == "gpu":
            return number
        if self._has_agents:
            gpu = self._gpu_of_node.get(number, NONE)
            if word:
                return self._gpu_of_visible_agent.get(number, gpu)
            return gpu
        if _GPU_NUMBERS_NOTE not in self._records.notes:
            self._records.notes.append(_GPU_NUMBERS_NOTE)
        return number

    # Records.

    def _add_records(self, record: _RecordColumns, piece: _Piece) -> None:
        columns = {}
        for column, title in (_NUMBERS_OF_ALL | dict(record.numbers)).items():
            columns[column] = piece.whole(title)
        for column, title in record.devices.items():
            columns[column] = piece.codes(title, self._device)
        if record.kind == EventKind.KERNEL:
            columns["name"] = piece.codes(record.name, self._kernel_name)
        else:
            categories = self._records.builder.categories
            columns["name"] = piece.codes(record.name, self._name)
            columns["domain"] = piece.codes(record.domain, categories.__getitem__)
        columns["process"] = self._processes(record.kind, piece)
        self._records.add(record.kind, columns)

    def _processes(self, kind: EventKind, piece: _Piece) -> Int64Array:
        """Return the process of each row: its own, else that of its thread, else the only one."""
        guids = piece.codes("guid", self._guids.__getitem__)
        threads = piece.whole("thread_id")
        if kind == EventKind.RUNTIME or "process_id" in piece:
            return of_rows(
                self._process_with_id, guids, piece.whole("process_id"), threads
            )
        return of_rows(self._process_of, guids, threads)

    def _process_with_id(self, guid: int, pid: int, thread: int) -> int:
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


def _whole_number(cell: str) -> int:
    try:
        number = int(cell)
    except ValueError:
        return MISSING
    if abs(number) < -MISSING:
        return number
    return MISSING
