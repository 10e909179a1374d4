"""Reader of the CSV tables of rocprofv3: those in one folder that have one prefix are one trace.

Those of rocprof and rocprofv2, a row a kernel, are read alone, and rocprof's sums of kernels.

Supports: `PREFIX_kernel_trace.csv`, `…_memory_copy_trace.csv`, the tables of calls and markers
(`…_hip_api_trace.csv`, `…_marker_api_trace.csv` …) and `…_agent_info.csv`, old and new columns, and
those of `rocpd convert` (with a `Guid`). A table is recognised by its titles; the tables beside one
are read with it if kernels are among them. A dispatch belongs to the call with its correlation id.
Ignores: memory allocations and counter collections, which are counted.
Format: "Using rocprofv3" in the documentation of ROCprofiler-SDK.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from operator import itemgetter
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
#: What has all these columns is that table; the first that fits. Read in the order of the numbers:
#: kernels tell their process by calls of their thread.
_AGENTS, _CALLS, _DISPATCHES, _COPIES, _COUNTERS, _ALLOCATIONS, _SUMS = range(7)
_TIMES = {"start_timestamp", "end_timestamp"}
_TITLES: tuple[tuple[int, set[str]], ...] = (
    (_AGENTS, {"node_id", "agent_type"}),
    (_COUNTERS, {"counter_name", "counter_value"}),
    (_DISPATCHES, {"kernel_name", "agent_id", *_TIMES}),
    (_COPIES, {"direction", *_TIMES}),
    (_CALLS, {"domain", "function", *_TIMES}),
    (_ALLOCATIONS, {"operation", *_TIMES}),
    (_SUMS, {"name", "calls", "totaldurationns"}),
)
_OF_ALL = {"start": "start_timestamp", "end": "end_timestamp", "correlation": "correlation_id"}
#: Table of records → what they are, the titles of their names and domains, and where more numbers
#: and devices stand.
_OF_DISPATCHES = {"lane": "queue_id"} | {title: title for title in rocprof.GEOMETRY}
_ENDS = {"source": "source_agent_id", "target": "destination_agent_id"}
_RECORDS: dict[int, tuple[EventKind, str, str, dict[str, str], dict[str, str]]] = {
    _CALLS: (EventKind.RUNTIME, "function", "domain", {"thread": "thread_id"}, {}),
    _DISPATCHES: (EventKind.KERNEL, "kernel_name", "", _OF_DISPATCHES, {"device": "agent_id"}),
    _COPIES: (EventKind.MEMCPY, "direction", "kind", {"lane": "stream_id"}, _ENDS),
}
#: Titles of rocprof and rocprofv2 → those of rocprofv3; a stream where there is no queue.
_EARLIER = (
    {"kernelname": "kernel_name", "beginns": "start_timestamp", "endns": "end_timestamp"}
    | {"gpu-id": "agent_id", "gpu_id": "agent_id", "queue-id": "queue_id", "pid": "process_id"}
    | {"tid": "thread_id", "grd": "grid_size_x", "grid_size": "grid_size_x"}  # of all dimensions
    | {"wgr": "workgroup_size_x", "workgroup_size": "workgroup_size_x", "stream_id": "queue_id"}
)
_LEFT_OUT = {_COUNTERS: rocprof.COUNTER, _ALLOCATIONS: rocprof.ALLOCATION}
_NUMBER = re.compile(r"(?:(agent|gpu|cpu)\s+)?(\d{1,6})", re.IGNORECASE | re.ASCII)


def read(source: ByteSource) -> Trace:
    """Read a table and those beside it."""
    records = rocprof.RocprofRecords()
    with ExitStack() as opened:
        tables = [_opened(source)]
        for path in _beside(source.file):
            try:
                beside = opened.enter_context(ByteSource(path, reading=source.reading))
                tables.append(_opened(beside))
            except TraceError as error:
                said = f"{path.name}, which is beside it, is left out: {error.problem}."
                records.notes.append(said)
        reader = TableReader(records)
        for table in sorted(tables, key=lambda table: table.kind):
            reader.read(table)
    # The size is not told: the cache knows when one file changes, not when another comes beside it.
    return records.finish(source.path, FORMAT, bytes_read=0)


def _beside(file: Path | None) -> list[Path]:
    """The other tables with the prefix of one, if those of kernels are among them."""
    if file is None or (found := _TABLE.fullmatch(file.name)) is None:
        return []
    same = []
    with suppress(OSError):  # a folder that cannot be listed
        for path in sorted(file.absolute().parent.iterdir()):
            other = _TABLE.fullmatch(path.name)
            same += [path] if other and other[1] == found[1] and path.is_file() else []
    if not any(path.name.removesuffix(".gz") == found[1] + _KERNELS for path in same):
        return []
    return [path for path in same if path.name != file.name]


class RocprofCsvTable:
    """A table whose titles were read; `kind` says which, `NONE` for no known one."""

    def __init__(self, source: ByteSource, titles: Sequence[str], rows: Rows) -> None:
        self.source = source
        self.width = len(titles)
        self.rows = rows
        self.places = {title.strip().casefold(): place for place, title in enumerate(titles)}
        for title, same in _EARLIER.items():
            if title in self.places:
                self.places.setdefault(same, self.places[title])
        self.kind = next((kind for kind, wanted in _TITLES if wanted <= {*self.places}), NONE)


def _opened(source: ByteSource) -> RocprofCsvTable:
    remedy = f"record with: {rocprof.RECORD}"
    rows = rows_of(source, remedy)
    table = RocprofCsvTable(source, next(rows, (0, []))[1], rows)
    if table.kind != NONE:
        return table
    problem = "is no table of rocprofv3 that is read (of kernels, copies, calls or markers)"
    raise TraceFormatError(source.path, problem, f"{remedy} --output-format csv")


class _Piece(dict[str, Sequence[str]]):
    """The cells of some rows of a table, by title; empty ones where there is no such column."""

    def __init__(self, places: Mapping[str, int], rows: Sequence[Sequence[str]]) -> None:
        columns = list(zip(*rows, strict=True))
        super().__init__((title, columns[place]) for title, place in places.items())
        self.count = len(rows)

    def __missing__(self, title: str) -> Sequence[str]:
        return [""] * self.count

    def whole(self, title: str) -> Int64Array:
        """The numbers of a column, `MISSING` where there is none, shape (m,)."""
        try:
            return np.fromiter(map(int, self[title]), np.int64, self.count)
        except (ValueError, OverflowError):
            return np.fromiter(map(_whole, self[title]), np.int64, self.count)

    def codes(self, title: str, code: Callable[[str], int]) -> Int64Array:
        """What is made of each cell, once for each distinct one, shape (m,)."""
        known: Interner[str] = Interner()
        numbers = known.codes(self[title], self.count)
        return np.array([code(text) for text in known], dtype=np.int64)[numbers]


class TableReader:
    """Adds tables to the records, of the same run."""

    def __init__(self, records: rocprof.RocprofRecords) -> None:
        self._records = records
        self._guids: Interner[str] = Interner()
        self._process_of_thread: dict[tuple[int, int], int] = {}
        self._processes_of_guid: defaultdict[int, set[int]] = defaultdict(set)
        self._gpus: dict[int, int] = {}  # by the number of the agent's node
        self._visible: dict[int, int] = {}  # by its number among those that the program sees
        self._has_agents = False

    def read(self, table: RocprofCsvTable) -> None:
        """Add a table."""
        for piece in self._pieces(table):
            if table.kind in _RECORDS:
                self._add_records(table.kind, piece)
            elif table.kind in _LEFT_OUT:
                self._records.drop(_LEFT_OUT[table.kind], piece.count)
            else:
                (self._add_agents if table.kind == _AGENTS else self._add_sums)(piece)

    def _add_sums(self, piece: _Piece) -> None:
        """Add as many calls of each kernel as are told, in a row, each of mean duration."""
        names = self._records.builder.names
        calls, total = (np.maximum(piece.whole(t), 0) for t in ("calls", "totaldurationns"))
        if calls.sum(dtype=np.float64) > _MOST_CALLS:
            raise TraceFormatError("the table", f"has over {_MOST_CALLS:,} calls", "make it again")
        mean, rest = np.divmod(total, np.maximum(calls, 1))
        number = np.arange(calls.sum()) - np.repeat(np.cumsum(calls) - calls, calls)
        end = np.cumsum(np.repeat(mean, calls) + (number < np.repeat(rest, calls)))
        name = piece.codes("name", lambda text: names[rocprof.kernel_name(text, 0)])
        zeros = np.zeros_like(end)
        columns = {
            "start": np.append(0, end)[:-1],
            "end": end,
            "process": zeros + self._records.process("?", "?"),
            "name": np.repeat(name, calls),
            **dict.fromkeys(("device", "lane"), zeros),
        }
        self._records.add(EventKind.KERNEL, columns)
        self._records.notes.append(
            "The file has sums alone: each call of a kernel has its mean duration; when it ran, on"
            " which GPU, and what launched it is not known."
        )

    def _pieces(self, table: RocprofCsvTable) -> Iterator[_Piece]:
        count = 0
        while True:
            some: list[list[str]] = []
            damage: TraceCutOffError | None = None
            try:
                some.extend(row for _, row in islice(table.rows, _ROWS_AT_ONCE))
            except TraceFormatError as error:
                damage = TraceCutOffError(error.path, error.problem, AGAIN)
            if not some and damage is None:
                return
            if some and isinstance(some[-1], UnfinishedRow) and len(some[-1]) < table.width:
                some.pop()
                damage = TraceCutOffError(table.source.path, "its last line is cut off", AGAIN)
            whole = [row for row in some if len(row) == table.width]
            odd = sum(len(row) > 0 for row in some) - len(whole)
            self._records.drop("rows with more or fewer cells than titles", odd)
            count += len(whole)
            if whole:
                yield _Piece(table.places, whole)
            notes = salvage_notes(table.source, damage, table.source.bytes_read, count)
            self._records.notes += notes
            if notes:
                return

    # Agents.

    def _add_agents(self, piece: _Piece) -> None:
        self._has_agents = True
        numbers = ("node_id", "logical_node_id", "cu_count", "wave_front_size")
        texts = zip(*map(piece.__getitem__, ("agent_type", "name", "product_name")), strict=True)
        told = zip(*(piece.whole(title).tolist() for title in numbers), texts, strict=True)
        for node, visible, units, warp, (kind, name, product) in sorted(told, key=itemgetter(0)):
            if kind.strip() == "GPU":
                ordinal = self._gpus.setdefault(node, len(self._gpus))
                gpu = rocprof.Agent(rocprof.Handle(), 2, 0, name, product, units, warp)
                self._visible[visible] = self._records.device(None, ordinal, gpu)

    def _device(self, text: str) -> int:
        """The GPU that `Agent 4`, `GPU 0` or `4` is; `NONE` of a CPU.

        `Agent 4` counts what the program sees; a bare number (or `--agent-index absolute`) nodes.
        """
        found = _NUMBER.fullmatch(text.strip())
        if found is None or (word := (found[1] or "").casefold()) == "cpu":
            return NONE
        number = int(found[2])
        if word == "gpu":
            return number
        if self._has_agents:
            node = self._gpus.get(number, NONE)
            return self._visible.get(number, node) if word else node
        note = (
            "GPUs have their numbers as agents, which count CPUs too: PREFIX_agent_info.csv,"
            " which tells them apart and names them, is not beside the tables."
        )
        if note not in self._records.notes:
            self._records.notes.append(note)
        return number

    # Records.

    def _add_records(self, table: int, piece: _Piece) -> None:
        kind, name, domain, numbers, devices = _RECORDS[table]
        names = self._records.builder.names
        categories = self._records.builder.categories
        columns = {column: piece.whole(title) for column, title in (_OF_ALL | numbers).items()}
        columns |= {column: piece.codes(title, self._device) for column, title in devices.items()}
        if kind == EventKind.KERNEL:
            columns["name"] = piece.codes(name, lambda text: names[rocprof.kernel_name(text, 0)])
        else:
            columns["name"] = piece.codes(name, lambda text: names[text or NO_NAME])
            columns["domain"] = piece.codes(domain, categories.__getitem__)
        # The process of each row: what it says, else that of its thread, else the only one.
        told = kind == EventKind.RUNTIME or "process_id" in piece
        place = map(piece.whole, ("process_id", "thread_id") if told else ("thread_id",))
        guids = piece.codes("guid", self._guids.__getitem__)
        columns["process"] = of_rows(self._process, guids, *place)
        self._records.add(kind, columns)

    def _process(self, guid: int, *place: int) -> int:
        """A process, of a thread that may be known, or with its own id before it."""
        *pid, thread = place
        if pid:
            process = self._records.process((guid, *pid), "?" if pid == [MISSING] else pid[0])
            self._process_of_thread[guid, thread] = process
            self._processes_of_guid[guid].add(process)
            return process
        if (guid, thread) in self._process_of_thread:
            return self._process_of_thread[guid, thread]
        if len(only := self._processes_of_guid[guid]) == 1:
            return next(iter(only))
        return self._records.process((guid, "?"), "?")


def _whole(cell: str) -> int:
    try:
        number = int(cell)
    except ValueError:
        return MISSING
    return number if abs(number) < -MISSING else MISSING
