"""Reads rocpd: the SQLite database that rocprofv3 writes by default since ROCm 7.

Supports: schemas 3.0.x (place in the row) and 4.1.0 (`rocpd_track`), by the columns that are there;
kernel dispatches, memory copies, calls, roctx ranges and marks, samples; several processes in one
file, each with tables of its own guid. A dispatch belongs to the region whose event has the same
`stack_id`; `correlation_id` is the program's own.
Ignores: views, arguments of calls, counters, memory allocations (counted).
Format: `source/share/rocprofiler-sdk-rocpd` of ROCm/rocm-systems.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
import numpy as np

from tracelens_ext.errors import TraceCutOffError, TraceFormatError
from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import looked_up, of_rows
from tracelens_ext.readers.rocprof import records as rocprof
from tracelens_ext.readers.rocprof.csv_tables import RocprofCsvTable, TableReader
from tracelens_ext.readers.source import SQLITE_MAGIC, ByteSource
from tracelens_ext.readers.sqlite_columns import Database
from tracelens_ext.readers.tables import MISSING
from tracelens_ext.text import NO_NAME, json_value, one_line
from tracelens_ext.trace import NONE, EventKind, Int64Array, Trace

Columns = dict[str, Int64Array]

FORMAT = "rocprofv3 database (rocpd)"

_LEFT_OUT = {
    "rocpd_memory_allocate": rocprof.ALLOCATION,
    "rocpd_pmc_event": rocprof.COUNTER,
}
_STRING = "rocpd_string"
_PLACE = ("pid", "tid", "agent_id", "queue_id", "stream_id")
#: Numbers of fewer digits fit in 64 bits.
_DIGITS_OF_INT64 = 19


class RocpdDatabase(Database):
    """An open database of rocprofv3."""

    format = "rocprofv3 database"
    remedy = f"record again with: {rocprof.RECORD}"

    def _is_ours(self) -> bool:
        has_regions = any(name.startswith("rocpd_region") for name in self.tables)
        return has_regions and bool(self.guids)

    @property
    def guids(self) -> list[str]:
        """The endings of the names of tables, one per process, sorted."""
        names = [name for name in self.tables if name.startswith(_STRING)]
        return sorted(name.removeprefix(_STRING) for name in names)


def read(source: ByteSource) -> Trace:
    """Read a database."""
    with RocpdDatabase(source.path, source.file_or_bytes()) as database:
        records = rocprof.RocprofRecords()
        guids = database.guids
        for number, guid in enumerate(guids):
            dispatches = f"rocpd_kernel_dispatch{guid}"
            if dispatches not in database.tables:
                problem = f"is a damaged {database.format} (it has no table {one_line(dispatches)})"
                raise TraceFormatError(source.path, problem, database.remedy)
            if source.progress is not None:
                source.progress(database.size * number // len(guids), database.size)
            _Tables(database=database, guid=guid, records=records).read()
        versions = {_schema_version(database, guid) for guid in guids} - {""}
        format_name = FORMAT
        if versions:
            format_name += f" (schema {', '.join(sorted(versions))})"
        return records.finish(source.path, format_name, database.size)


def _schema_version(database: RocpdDatabase, guid: str) -> str:
    """Return the version of the schema of a process; empty if it is not stored."""
    table = f"rocpd_metadata{guid}"
    tags = database.words(table, "tag")
    values = database.words(table, "value")
    for tag, value in zip(tags, values, strict=True):
        if tag == "schema_version":
            return value
    return ""


class _Tables:
    """The tables of one guid: one process as rocprofv3 writes it, but they may hold several."""

    def __init__(
        self, database: RocpdDatabase, guid: str, records: rocprof.RocprofRecords
    ) -> None:
        self._database = database
        self._guid = guid
        self._records = records
        self._names = records.builder.names
        self._categories = records.builder.categories
        self._tracks = self._by_id("rocpd_track", *_PLACE, "name_id")
        self._threads = self._by_id("rocpd_info_thread", "tid")
        self._events = self._by_id("rocpd_event", "stack_id", "category_id")
        self._processes: dict[int, int] = {}
        self._agents: dict[int, int] = {}

    def read(self) -> None:
        """Add all records."""
        self._describe_processes()
        self._describe_agents()
        self._read_calls()
        self._read_marks()
        self._read_dispatches()
        self._read_copies()
        for table, reason in _LEFT_OUT.items():
            self._records.drop(reason, self._database.count(table + self._guid))

    # Records.

    def _read_calls(self) -> None:
        for chunk in self._chunks("rocpd_region", "start", "end", "name_id", "tid"):
            self._add_calls(chunk)

    def _read_marks(self) -> None:
        """Add the marks of roctx; other samples are not analyzed."""
        for chunk in self._chunks("rocpd_sample", "timestamp", "name_id", "tid"):
            kind = self._records.kinds(chunk["domain"])
            is_mark = kind == EventKind.USER_ANNOTATION
            others = int(np.count_nonzero(~is_mark))
            self._records.drop("samples that are not marks", others)
            chunk["start"] = chunk["timestamp"]
            chunk["end"] = chunk["timestamp"]
            self._add_calls(
                {column: values[is_mark] for column, values in chunk.items()}
            )

    def _read_dispatches(self) -> None:
        columns = (
            "start",
            "end",
            "kernel_id",
            "agent_id",
            "queue_id",
        ) + rocprof.GEOMETRY
        for chunk in self._chunks("rocpd_kernel_dispatch", *columns):
            chunk["name"] = looked_up(chunk["kernel_id"], self._kernel_names)
            chunk["device"] = self._device(chunk["agent_id"])
            chunk["lane"] = chunk["queue_id"]
            self._records.add(EventKind.KERNEL, chunk)

    def _read_copies(self) -> None:
        columns = (
            "start",
            "end",
            "name_id",
            "src_agent_id",
            "dst_agent_id",
            "stream_id",
            "size",
        )
        for chunk in self._chunks("rocpd_memory_copy", *columns):
            chunk["name"] = looked_up(chunk["name_id"], self._texts_of)
            chunk["source"] = self._device(chunk["src_agent_id"])
            chunk["target"] = self._device(chunk["dst_agent_id"])
            chunk["lane"] = chunk["stream_id"]
            chunk["bytes"] = chunk["size"]
            self._records.add(EventKind.MEMCPY, chunk)

    def _chunks(self, table: str, *columns: str) -> Iterator[Columns]:
        """Yield records with process, correlation and domain.

        What the table has no column for is taken from the track of each record.
        """
        full_name = table + self._guid
        stored_columns = self._database.tables.get(full_name, frozenset())
        stored = []
        of_track = []
        for name in columns + ("pid", "event_id"):
            if name in stored_columns:
                stored.append(name)
            else:
                of_track.append(name)
        stored.append("track_id")
        for chunk in self._database.chunks(full_name, tuple(stored)):
            chunk |= _columns_at(self._tracks, chunk["track_id"], *of_track)
            event = _columns_at(
                self._events, chunk["event_id"], "stack_id", "category_id"
            )
            chunk["correlation"] = event["stack_id"]
            chunk["domain"] = looked_up(event["category_id"], self._domains)
            chunk["process"] = of_rows(self._process, chunk["pid"])
            yield chunk

    def _add_calls(self, chunk: Columns) -> None:
        chunk["name"] = looked_up(chunk["name_id"], self._texts_of)
        self._name_markers(chunk)
        number = chunk["tid"]
        threads = _columns_at(self._threads, number, "tid")
        tid = threads["tid"]
        chunk["thread"] = np.where(tid == MISSING, number, tid)
        self._records.add(EventKind.RUNTIME, chunk)

    def _name_markers(self, chunk: Columns) -> None:
        """Give ranges and marks their message, which older versions keep with the event."""
        starts_with_roctx = [name.startswith("roctx") for name in self._names]
        is_roctx = np.array(starts_with_roctx, dtype=bool)[chunk["name"]]
        is_marker = self._records.kinds(chunk["domain"]) == EventKind.USER_ANNOTATION
        rows = np.flatnonzero(is_marker & is_roctx)
        texts = self._look_up("rocpd_event", "extdata", chunk["event_id"][rows])
        for row, text in zip(rows.tolist(), texts, strict=True):
            members = json_value(text or "")
            if not isinstance(members, dict):
                continue
            message = members.get("message")
            if message and isinstance(message, str):
                chunk["name"][row] = self._names[message]

    # Processes and agents.

    def _describe_processes(self) -> None:
        """Name the processes and their threads."""
        processes = "rocpd_info_process"
        numbers = self._all(processes, "id", "pid")
        commands = self._words(processes, "command")
        for row, pid, command in zip(*_as_lists(numbers), commands, strict=True):
            self._processes[row] = self._records.process(
                (self._guid, row), pid, command
            )
        threads = "rocpd_info_thread"
        numbers = self._all(threads, "pid", "tid")
        names = self._words(threads, "name")
        for row, tid, name in zip(*_as_lists(numbers), names, strict=True):
            if name and row in self._processes:
                process = self._records.processes[self._processes[row]]
                self._records.thread_names[process, tid] = name

    def _describe_agents(self) -> None:
        """Number the GPUs."""
        table = "rocpd_info_agent"
        numbers = self._all(table, "type_index", "absolute_index", "id", "nid")
        machines = self._look_up("rocpd_info_node", "machine_id", numbers["nid"])
        agent_types = self._words(table, "type")
        products = self._words(table, "product_name")
        names = self._words(table, "name")
        descriptions = self._words(table, "extdata")
        for place, agent_type in enumerate(agent_types):
            if agent_type != "GPU":
                continue
            agent = rocprof.Agent()
            with suppress(msgspec.MsgspecError):
                agent = msgspec.json.decode(descriptions[place], type=rocprof.Agent)
            agent.name = names[place]
            agent.product_name = products[place]
            number = int(numbers["id"][place])
            indices = (
                numbers["type_index"][place],
                numbers["absolute_index"][place],
                number,
            )
            ordinal = _first_usable(map(int, indices))
            self._agents[number] = self._records.device(machines[place], ordinal, agent)

    def _process(self, row: int) -> int:
        """Return the number of the process that a row describes; the row may be missing."""
        if row not in self._processes:
            pid: int | str = row
            if row == MISSING:
                pid = "?"
            self._processes[row] = self._records.process((self._guid, row), pid)
        return self._processes[row]

    def _device(self, agents: Int64Array) -> Int64Array:
        return of_rows(lambda agent: self._agents.get(agent, NONE), agents)

    # Names.

    def _domains(self, categories: Int64Array) -> list[int]:
        """Return the codes of the names of categories, which are empty where one is missing."""
        table = "rocpd_info_category"  # since 4.1.0
        if table + self._guid in self._database.tables:
            names = self._look_up(table, "name", categories)
        else:
            names = self._look_up(_STRING, "string", categories)
        return [self._categories[name or ""] for name in names]

    def _texts_of(self, ids: Int64Array) -> list[int]:
        return [
            self._names[text or NO_NAME]
            for text in self._look_up(_STRING, "string", ids)
        ]

    def _kernel_names(self, ids: Int64Array) -> list[int]:
        table = "rocpd_info_kernel_symbol"
        shown_names = self._look_up(table, "display_name", ids)
        symbol_names = self._look_up(table, "kernel_name", ids)
        codes = []
        for number, shown_name, symbol in zip(
            ids.tolist(), shown_names, symbol_names, strict=True
        ):
            codes.append(self._names[rocprof.kernel_name(shown_name or symbol, number)])
        return codes

    # The tables of this guid.

    def _all(self, table: str, *columns: str) -> Columns:
        return self._database.whole(table + self._guid, *columns)

    def _words(self, table: str, column: str) -> list[str]:
        return self._database.words(table + self._guid, column)

    def _look_up(self, table: str, column: str, ids: Int64Array) -> list[str | None]:
        return self._database.look_up(table + self._guid, column, ids)

    def _by_id(self, table: str, *columns: str) -> pd.DataFrame:
        """Return a small table, by id; the first row of each id."""
        rows = pd.DataFrame(self._all(table, "id", *columns))
        return rows.drop_duplicates("id").set_index("id")


def _as_lists(columns: Columns) -> list[list[int]]:
    return [column.tolist() for column in columns.values()]


def _first_usable(ordinals: Iterable[int]) -> int:
    """Return the first number that a GPU may have; 0 if there is none."""
    for ordinal in ordinals:
        if 0 <= ordinal < rocprof.MOST_GPUS:
            return ordinal
    return 0


def _columns_at(table: pd.DataFrame, ids: Int64Array, *columns: str) -> Columns:
    """Return columns of the rows with some ids, shaped as these; `MISSING` for a missing row."""
    rows = table.reindex(index=ids, columns=list(columns), fill_value=MISSING)
    return {name: rows[name].to_numpy(dtype=np.int64) for name in columns}


# What rocprof, before rocprofv3, writes: `results.db` and `results.json`. Of databases HIP and HSA
# calls, rocTX ranges, kernels (OPS, or KERN where it is empty) and copies, joined by `Index`; of
# JSON the same, joined by `DataFlow`. They become the rows of rocprofv3's tables. Format:
# `bin/tblextr.py` and `bin/sqlitedb.py` of ROCm/rocprofiler.


class _RecordKind(NamedTuple):
    """What a record is: the title of its name in rocprofv3's tables, and its domain or kind."""

    title: str
    domain: str


_KERNELS = _RecordKind("kernel_name", "")
_COPIES = _RecordKind("direction", "MEMORY_COPY")
_HIP = _RecordKind("function", "HIP_API")
_HSA = _RecordKind("function", "HSA_API")
_MARKS = _RecordKind("function", "MARKER_API")
_KIND_OF_TABLE = {
    "HIP": _HIP,
    "HSA": _HSA,
    "rocTX": _MARKS,
    "OPS": _KERNELS,
    "KERN": _KERNELS,
    "COPY": _COPIES,
}
_TIMES: Final = {"BeginNs", "EndNs"}
#: How the names of processes of the JSON begin.
_KIND_OF_PROCESS = {
    "CPU HIP": _HIP,
    "CPU HSA": _HSA,
    "Markers": _MARKS,
    "COPY": _COPIES,
    r"GPU\d+$": _KERNELS,
}
#: The titles of rocprofv3 for what is read of a record; that of its name is left out.
_TITLES_BEFORE_NAME = (
    "start_timestamp",
    "end_timestamp",
    "process_id",
    "thread_id",
    "queue_id",
)
_TITLES_AFTER_NAME = ("correlation_id", "agent_id", "domain")


class _Record(NamedTuple):
    """A record of rocprof, as texts."""

    begin: str
    end: str
    process: str
    thread: str
    queue: str
    name: str
    correlation: str
    gpu: str


#: A place of an event of the JSON: process, thread and time.
_Place = tuple[str, str, str]


class ResultsDatabase(Database):
    """An open database of rocprof."""

    format = "rocprof database"
    remedy = "record with rocprofv3 --sys-trace"

    def _is_ours(self) -> bool:
        return any(self.tables.get(name, set()) >= _TIMES for name in _KIND_OF_TABLE)


def read_results(source: ByteSource) -> Trace:
    """Read a database or a document of rocprof."""
    beginning = source.peek(len(SQLITE_MAGIC))
    if beginning == SQLITE_MAGIC:
        kinds_and_records = _records_of_database(source)
    else:
        kinds_and_records = _records_of_json(source)
    records_of_kind: dict[_RecordKind, list[_Record]] = defaultdict(list)
    for kind, record in kinds_and_records:
        records_of_kind[kind].append(record)
    records = rocprof.RocprofRecords()
    reader = TableReader(records)
    for kind, of_kind in records_of_kind.items():
        table = _csv_table(source, kind, of_kind)
        reader.read(table)
    return records.finish(source.path, "rocprof results", source.bytes_read)


def _csv_table(
    source: ByteSource, kind: _RecordKind, records: list[_Record]
) -> RocprofCsvTable:
    """Return records as rocprofv3 would have them in a table."""
    titles = _TITLES_BEFORE_NAME + (kind.title,) + _TITLES_AFTER_NAME
    rows = (list(record) + [kind.domain] for record in records)
    table = RocprofCsvTable(source=source, titles=titles, rows=enumerate(rows))
    table.places["stream_id"] = table.places["queue_id"]
    table.places["source_agent_id"] = table.places["agent_id"]
    table.places["kind"] = table.places["domain"]
    return table


def _records_of_database(source: ByteSource) -> Iterator[tuple[_RecordKind, _Record]]:
    with ResultsDatabase(source.path, source.file_or_bytes()) as database:
        skipped = "KERN" if database.has_rows("OPS") else "OPS"
        for table, kind in _KIND_OF_TABLE.items():
            if table == skipped:
                continue
            name_title = "Name"
            correlation_title = "Index"
            gpu_title = "dev-id"
            if table == "KERN":
                name_title = "KernelName"
                correlation_title = ""
                gpu_title = "gpu-id"
            columns = zip(
                database.words(table, "BeginNs"),
                database.words(table, "EndNs"),
                database.words(table, "pid"),
                database.words(table, "tid"),
                database.words(table, "queue-id"),
                _names(database, database.words(table, name_title)),
                database.words(table, correlation_title),
                [f"GPU {gpu}" for gpu in database.words(table, gpu_title)],
                strict=True,
            )
            for cells in columns:
                yield kind, _Record(*cells)


def _names(database: Database, names: list[str]) -> list[str]:
    """Return names, looked up where they are numbers of texts in a table of their own."""
    strings = _table_of_strings(database)
    if strings is None or not all(map(_is_whole_number, names)):
        return names
    numbers = np.array(names, dtype=np.int64)
    texts = database.look_up(strings, "string", numbers)
    shown_names = []
    for text, name in zip(texts, names, strict=True):
        shown_names.append(text or name)
    return shown_names


def _is_whole_number(text: str) -> bool:
    return text.isdecimal() and len(text) < _DIGITS_OF_INT64


def _table_of_strings(database: Database) -> str | None:
    for table, columns in database.tables.items():
        if {"id", "string"} <= columns:
            return table
    return None


def _records_of_json(source: ByteSource) -> Iterator[tuple[_RecordKind, _Record]]:
    events = _json_events(source)
    process_names = _process_names(events)
    flows = _flows(events)
    for event in events:
        process_name = process_names.get(str(event.get("pid")), "")
        kind = _kind_of_process(process_name)
        args = event.get("args")
        if event.get("ph") != "X" or not isinstance(args, dict) or kind is None:
            continue
        correlation = ""
        ids = flows.get(_place_of(event))
        if ids:
            correlation = ids.pop()
        gpu = args.get("dev-id", process_name.removeprefix("GPU"))
        record = _Record(
            begin=str(args.get("BeginNs", "")),
            end=str(args.get("EndNs", "")),
            process=str(args.get("pid", "")),
            thread=str(args.get("tid", "")),
            queue=str(args.get("queue-id", "")),
            name=str(args.get("Name", event.get("name"))),
            correlation=correlation,
            gpu=f"GPU {gpu}",
        )
        yield kind, record


def _json_events(source: ByteSource) -> list[dict[str, object]]:
    try:
        events = json.loads(source.read_all())["traceEvents"]
        return [event for event in events if isinstance(event, dict)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        problem = f"has damaged rocprof JSON ({type(error).__name__})"
        raise TraceCutOffError(
            source.path, problem, "copy or record it again"
        ) from None


def _process_names(events: Sequence[dict[str, object]]) -> dict[str, str]:
    """Return the first name of each process."""
    names: dict[str, str] = {}
    for event in events:
        if event.get("name") != "process_name":
            continue
        args = event.get("args")
        if not isinstance(args, dict):
            continue
        process = str(event.get("pid"))
        name = str(args.get("name"))
        names.setdefault(process, name)
    return names


def _flows(events: Sequence[dict[str, object]]) -> dict[_Place, list[str]]:
    """Return the ids of the flows at each place, the last one first."""
    flows: dict[_Place, list[str]] = defaultdict(list)
    for event in reversed(events):
        if event.get("cat") != "DataFlow":
            continue
        place = _place_of(event)
        flow_id = str(event.get("id"))
        flows[place].append(flow_id)
    return flows


def _kind_of_process(name: str) -> _RecordKind | None:
    for pattern, kind in _KIND_OF_PROCESS.items():
        if re.match(pattern, name):
            return kind
    return None


def _place_of(event: dict[str, object]) -> _Place:
    return str(event.get("pid")), str(event.get("tid")), str(event.get("ts"))
