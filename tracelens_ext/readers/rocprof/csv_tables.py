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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path

import numpy as np

from tracelens_ext.errors import TraceCutOffError, TraceError, TraceFormatError
from tracelens_ext.readers.builder import Interner, of_rows
from tracelens_ext.readers.csv_rows import UnfinishedRow, rows_of
from tracelens_ext.readers.rocprof.records import (
    ALLOCATION,
    COUNTER,
    DISPATCH,
    GEOMETRY,
    RECORD,
    Agent,
    RocprofRecords,
    kernel_name,
)
from tracelens_ext.readers.source import AGAIN, ByteSource, salvage_notes
from tracelens_ext.readers.sqlite_columns import MISSING
from tracelens_ext.text import NO_NAME
from tracelens_ext.trace import NONE, EventKind, Int64Array, Trace

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
#: Table of records → what they are, and the titles of their names and domains.
_RECORDS = {
    _CALLS: (EventKind.RUNTIME, "function", "domain"),
    _DISPATCHES: (EventKind.KERNEL, "kernel_name", ""),
    _COPIES: (EventKind.MEMCPY, "direction", "kind"),
}
#: Titles of rocprof and rocprofv2 → those of rocprofv3.
_EARLIER = {
    "kernelname": "kernel_name",
    "beginns": "start_timestamp",
    "endns": "end_timestamp",
    "gpu-id": "agent_id",
    "gpu_id": "agent_id",
    "queue-id": "queue_id",
    "pid": "process_id",
    "tid": "thread_id",
    **dict.fromkeys(("grd", "grid_size"), "grid_size_x"),  # of all dimensions
    **dict.fromkeys(("wgr", "workgroup_size"), "workgroup_size_x"),
}
_LEFT_OUT = {_COUNTERS: COUNTER, _ALLOCATIONS: ALLOCATION}
_NUMBER = re.compile(r"(?:(agent|gpu|cpu)\s+)?(\d{1,6})", re.IGNORECASE | re.ASCII)


def read(source: ByteSource) -> Trace:
    """Read a table and those beside it."""
    records = RocprofRecords()
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
    found = _TABLE.fullmatch(file.name) if file is not None else None
    if file is None or found is None:
        return []
    same = []
    with suppress(OSError):  # a folder that cannot be listed
        for path in sorted(file.absolute().parent.iterdir()):
            other = _TABLE.fullmatch(path.name)
            if other and other[1] == found[1] and path.is_file():
                same.append(path)
    if not any(path.name.removesuffix(".gz") == found[1] + _KERNELS for path in same):
        return []
    return [path for path in same if path.name != file.name]


class _Table:
    """A table whose titles were read; `kind` says which, `NONE` for no known one."""

    def __init__(
        self, source: ByteSource, titles: Sequence[str], rows: Iterator[tuple[int, list[str]]]
    ) -> None:
        self.source, self.width, self.rows = source, len(titles), rows
        self.places = {title.strip().casefold(): place for place, title in enumerate(titles)}
        for title, same in _EARLIER.items():
            if title in self.places:
                self.places.setdefault(same, self.places[title])
        self.kind = next((kind for kind, wanted in _TITLES if wanted <= {*self.places}), NONE)


def _opened(source: ByteSource) -> _Table:
    rows = rows_of(source, f"record with: {RECORD}")
    table = _Table(source, next(rows, (0, []))[1], rows)
    if table.kind != NONE:
        return table
    problem = "is no table of rocprofv3 that is read (of kernels, copies, calls or markers)"
    raise TraceFormatError(source.path, problem, f"record with: {RECORD} --output-format csv")


class _Piece:
    """Some rows of a table, column by column."""

    def __init__(self, table: _Table, rows: Sequence[Sequence[str]]) -> None:
        self._places, self._rows = table.places, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, title: str) -> bool:
        return title in self._places

    def texts(self, title: str) -> list[str]:
        """The cells of a column; empty ones if there is none."""
        place = self._places.get(title)
        return [""] * len(self) if place is None else [row[place] for row in self._rows]

    def whole(self, title: str) -> Int64Array:
        """The numbers of a column, `MISSING` where there is none, shape (m,)."""
        cells = self.texts(title)
        try:
            return np.fromiter(map(int, cells), np.int64, len(cells))
        except (ValueError, OverflowError):
            return np.fromiter(map(_whole, cells), np.int64, len(cells))

    def codes(self, title: str, code: Callable[[str], int]) -> Int64Array:
        """What is made of each cell, once for each distinct one, shape (m,)."""
        known: Interner[str] = Interner()
        numbers = known.codes(self.texts(title), len(self))
        return np.array([code(text) for text in known], dtype=np.int64)[numbers]


class TableReader:
    """Adds tables to the records, of the same run."""

    def __init__(self, records: RocprofRecords) -> None:
        self._records = records
        self._guids: Interner[str] = Interner()
        self._process_of_thread: dict[tuple[int, int], int] = {}
        self._processes_of_guid: defaultdict[int, set[int]] = defaultdict(set)
        self._gpus: dict[int, int] = {}  # by the number of the agent's node
        self._visible: dict[int, int] = {}  # by its number among those that the program sees
        self._has_agents = False
        self._told = False

    def read(self, table: _Table) -> None:
        """Add a table."""
        for piece in self._pieces(table):
            if table.kind in _RECORDS:
                self._add_records(table.kind, piece)
            elif table.kind in _LEFT_OUT:
                self._records.drop(_LEFT_OUT[table.kind], len(piece))
            else:
                (self._add_agents if table.kind == _AGENTS else self._add_sums)(piece)

    def read_rows(
        self, source: ByteSource, titles: Sequence[str], rows: Iterable[list[str]]
    ) -> None:
        """Add the rows of a table that is no file of its own."""
        self.read(_Table(source, titles, enumerate(rows)))

    def _add_sums(self, piece: _Piece) -> None:
        """Add as many calls of each kernel as are told, in a row, each of mean duration."""
        builder = self._records.builder
        calls, total = (np.maximum(piece.whole(t), 0) for t in ("calls", "totaldurationns"))
        if calls.sum(dtype=np.float64) > _MOST_CALLS:
            raise TraceFormatError("the table", f"has over {_MOST_CALLS:,} calls", "make it again")
        first = np.repeat(np.cumsum(calls) - calls, calls)
        rest = np.arange(len(first)) - first < np.repeat(total % np.maximum(calls, 1), calls)
        end = np.cumsum(np.repeat(total // np.maximum(calls, 1), calls) + rest)
        name = piece.codes("name", lambda text: builder.names[kernel_name(text, 0)])
        zeros = np.zeros(len(end), dtype=np.int64)
        columns = {
            "start": np.append(0, end[:-1])[: len(end)],
            "end": end,
            "process": zeros + self._records.process("?", "?"),
            "name": np.repeat(name, calls),
            "domain": zeros + builder.categories[DISPATCH],
            "device": zeros,
            "lane": zeros,
        }
        self._records.add(EventKind.KERNEL, columns)
        self._records.notes.append(
            "The file has sums alone: each call of a kernel has its mean duration; when it ran, on"
            " which GPU, and what launched it is not known."
        )

    def _pieces(self, table: _Table) -> Iterator[_Piece]:
        count = 0
        while True:
            some: list[list[str]] = []
            damage: TraceCutOffError | None = None
            try:
                for _, row in islice(table.rows, _ROWS_AT_ONCE):
                    some.append(row)
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
                yield _Piece(table, whole)
            notes = salvage_notes(table.source, damage, table.source.bytes_read, count)
            self._records.notes += notes
            if notes:
                return

    # Agents.

    def _add_agents(self, piece: _Piece) -> None:
        self._has_agents = True
        numbers = ("node_id", "logical_node_id", "cu_count", "wave_front_size")
        texts = zip(*map(piece.texts, ("agent_type", "name", "product_name")), strict=True)
        told = zip(*(piece.whole(title).tolist() for title in numbers), strict=True)
        for (node, visible, units, warp), (kind, name, product) in sorted(
            zip(told, texts, strict=True), key=lambda agent: agent[0][0]
        ):
            if kind.strip() == "GPU":
                ordinal = self._gpus.setdefault(node, len(self._gpus))
                self._visible[visible] = ordinal
                gpu = Agent(name=name, product_name=product, cu_count=units, wave_front_size=warp)
                self._records.describe(gpu.device(ordinal))

    def _device(self, text: str) -> int:
        """The GPU that `Agent 4`, `GPU 0` or `4` is; `NONE` of a CPU.

        `Agent 4` counts what the program sees; a bare number (or `--agent-index absolute`) nodes.
        """
        found = _NUMBER.fullmatch(text.strip())
        if found is None or (found[1] or "").casefold() == "cpu":
            return NONE
        number = int(found[2])
        if (found[1] or "").casefold() == "gpu":
            return number
        if self._has_agents:
            node = self._gpus.get(number, NONE)
            return self._visible.get(number, node) if found[1] else node
        if not self._told:
            self._told = True
            self._records.notes.append(
                "GPUs have their numbers as agents, which count CPUs too: PREFIX_agent_info.csv,"
                " which tells them apart and names them, is not beside the tables."
            )
        return number

    # Records.

    def _add_records(self, table: int, piece: _Piece) -> None:
        builder = self._records.builder
        kind, name, domain = _RECORDS[table]
        is_kernel = kind == EventKind.KERNEL
        columns = {
            "start": piece.whole("start_timestamp"),
            "end": piece.whole("end_timestamp"),
            "correlation": piece.whole("correlation_id"),
            "name": piece.codes(
                name, lambda t: builder.names[kernel_name(t, 0) if is_kernel else t or NO_NAME]
            ),
            "domain": piece.codes(
                domain, lambda t: builder.categories[DISPATCH if is_kernel else t]
            ),
        }
        if kind == EventKind.RUNTIME:
            columns["thread"] = piece.whole("thread_id")
        elif is_kernel:
            columns["device"] = piece.codes("agent_id", self._device)
            columns["lane"] = piece.whole("queue_id" if "queue_id" in piece else "stream_id")
            columns |= {title: piece.whole(title) for title in GEOMETRY}
        else:
            ends = ("source_agent_id", "destination_agent_id")
            gpus = (piece.codes(title, self._device) for title in ends)
            columns["device"] = self._records.device_of_copy(columns["name"], *gpus)
            columns["lane"] = piece.whole("stream_id")
        on_host = kind == EventKind.RUNTIME or "process_id" in piece
        columns["process"] = self._processes(piece, on_host=on_host)
        self._records.add(kind, columns)

    def _processes(self, piece: _Piece, *, on_host: bool) -> Int64Array:
        """The process of each row: what it says, else that of its thread, else the only one."""
        titles = ("process_id", "thread_id") if on_host else ("thread_id",)
        guids = piece.codes("guid", self._guids.__getitem__)
        return of_rows(self._process, guids, *map(piece.whole, titles))

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
