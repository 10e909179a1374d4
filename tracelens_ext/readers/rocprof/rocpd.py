"""Reader of rocpd: the SQLite database that rocprofv3 writes by default since ROCm 7.

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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

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

_LEFT_OUT = {"rocpd_memory_allocate": rocprof.ALLOCATION, "rocpd_pmc_event": rocprof.COUNTER}
_STRING = "rocpd_string"
_PLACE = ("pid", "tid", "agent_id", "queue_id", "stream_id")


class RocpdDatabase(Database):
    """An open database of rocprofv3."""

    format = "database of rocprofv3"
    remedy = f"record again with: {rocprof.RECORD}"

    def _is_ours(self) -> bool:
        return any(name.startswith("rocpd_region") for name in self.tables) and bool(self.guids)

    @property
    def guids(self) -> list[str]:
        """How the names of the tables of each process end, sorted."""
        return sorted(n.removeprefix(_STRING) for n in self.tables if n.startswith(_STRING))


def read(source: ByteSource) -> Trace:
    """Read a database."""
    with RocpdDatabase(source.path, source.file_or_bytes()) as database:
        records = rocprof.RocprofRecords()
        guids = database.guids
        for number, guid in enumerate(guids):
            if (table := f"rocpd_kernel_dispatch{guid}") not in database.tables:
                problem = f"is a damaged {database.format} (it has no table {one_line(table)})"
                raise TraceFormatError(source.path, problem, database.remedy)
            if source.progress is not None:
                source.progress(database.size * number // len(guids), database.size)
            _Tables(database, guid, records).read()
        versions = set()
        for table in (f"rocpd_metadata{guid}" for guid in guids):
            about = zip(database.words(table, "tag"), database.words(table, "value"), strict=True)
            versions.add(next((value for tag, value in about if tag == "schema_version"), ""))
        told = ", ".join(sorted(filter(None, versions)))
        form = f"{FORMAT} (schema {told})" if told else FORMAT
        return records.finish(source.path, form, database.size)


class _Tables:
    """The tables of one guid: one process as rocprofv3 writes it, but they may hold several."""

    def __init__(self, database: RocpdDatabase, guid: str, records: rocprof.RocprofRecords) -> None:
        self._database = database
        self._guid = guid
        self._records = records
        self._names = records.builder.names
        self._categories = records.builder.categories
        self._tracks, self._threads, self._events = (
            pd.DataFrame(self._all(*wanted)).drop_duplicates("id").set_index("id")
            for wanted in (
                ("rocpd_track", "id", *_PLACE, "name_id"),
                ("rocpd_info_thread", "id", "tid"),
                ("rocpd_event", "id", "stack_id", "category_id"),
            )
        )
        self._processes: dict[int, int] = {}
        self._agents: dict[int, int] = {}

    def read(self) -> None:
        """Add all records."""
        self._describe()
        for chunk in self._chunks("rocpd_region", "start", "end", "name_id", "tid"):
            self._add_calls(chunk)
        # Marks of roctx; other samples are of what is not analysed.
        for chunk in self._chunks("rocpd_sample", "timestamp", "name_id", "tid"):
            marks = self._records.kinds(chunk["domain"]) == EventKind.USER_ANNOTATION
            self._records.drop("samples that are no marks", int((~marks).sum()))
            chunk["start"] = chunk["end"] = chunk["timestamp"]
            self._add_calls({column: values[marks] for column, values in chunk.items()})
        columns = ("start", "end", "kernel_id", "agent_id", "queue_id", *rocprof.GEOMETRY)
        for chunk in self._chunks("rocpd_kernel_dispatch", *columns):
            chunk["name"] = looked_up(chunk["kernel_id"], self._kernel_names)
            chunk["device"], chunk["lane"] = self._device(chunk["agent_id"]), chunk["queue_id"]
            self._records.add(EventKind.KERNEL, chunk)
        columns = ("start", "end", "name_id", "src_agent_id", "dst_agent_id", "stream_id", "size")
        for chunk in self._chunks("rocpd_memory_copy", *columns):
            chunk["name"] = looked_up(chunk["name_id"], self._texts_of)
            ends = (self._device(chunk[end]) for end in ("src_agent_id", "dst_agent_id"))
            chunk["source"], chunk["target"] = ends
            chunk["lane"], chunk["bytes"] = chunk["stream_id"], chunk["size"]
            self._records.add(EventKind.MEMCPY, chunk)
        for table, reason in _LEFT_OUT.items():
            self._records.drop(reason, self._database.count(table + self._guid))

    # What is where.

    def _all(self, table: str, *columns: str) -> Columns:
        return self._database.whole(table + self._guid, *columns)

    def _rows(self, table: str, numbers: Sequence[str], texts: Sequence[str]) -> Iterator[Any]:
        """The rows of a table: whole numbers, then texts."""
        whole = (column.tolist() for column in self._all(table, *numbers).values())
        words = (self._database.words(table + self._guid, column) for column in texts)
        return zip(*whole, *words, strict=True)

    def _look_up(self, table: str, column: str, ids: Int64Array) -> list[str | None]:
        return self._database.look_up(table + self._guid, column, ids)

    def _describe(self) -> None:
        """Say what processes, threads and agents are."""
        for row, pid, command in self._rows("rocpd_info_process", ("id", "pid"), ("command",)):
            self._processes[row] = self._records.process((self._guid, row), pid, command)
        for row, tid, name in self._rows("rocpd_info_thread", ("pid", "tid"), ("name",)):
            if name and row in self._processes:
                process = self._records.processes[self._processes[row]]
                self._records.thread_names[process, tid] = name
        table = "rocpd_info_agent"
        texts = ("type", "product_name", "name", "extdata")
        rows = self._rows(table, ("type_index", "absolute_index", "id"), texts)
        machines = self._look_up("rocpd_info_node", "machine_id", self._all(table, "nid")["nid"])
        for machine, (*numbers, kind, product, name, more) in zip(machines, rows, strict=True):
            if kind == "GPU":
                agent = rocprof.Agent()
                with suppress(msgspec.MsgspecError):
                    agent = msgspec.json.decode(more, type=rocprof.Agent)
                agent.name = name
                agent.product_name = product
                ordinal = next((n for n in numbers if 0 <= n < rocprof.MOST_GPUS), 0)
                self._agents[numbers[-1]] = self._records.device(machine, ordinal, agent)

    def _process(self, row: int) -> int:
        """The number of the process that a row of `rocpd_info_process` is, which may be missing."""
        if row not in self._processes:
            pid = "?" if row == MISSING else row
            self._processes[row] = self._records.process((self._guid, row), pid)
        return self._processes[row]

    def _device(self, agents: Int64Array) -> Int64Array:
        return of_rows(lambda agent: self._agents.get(agent, NONE), agents)

    # Records.

    def _chunks(self, table: str, *columns: str) -> Iterator[Columns]:
        """Records with process, correlation and domain; what has no column is the track's."""
        have = self._database.tables.get(table + self._guid, frozenset())
        wanted = (*columns, "pid", "event_id")
        own = [name for name in wanted if name in have]
        further = [name for name in wanted if name not in have]
        for chunk in self._database.chunks(table + self._guid, (*own, "track_id")):
            chunk |= _at(self._tracks, chunk["track_id"], *further)
            event = _at(self._events, chunk["event_id"], "stack_id", "category_id")
            chunk["correlation"] = event["stack_id"]
            chunk["domain"] = looked_up(event["category_id"], self._domains)
            chunk["process"] = of_rows(self._process, chunk["pid"])
            yield chunk

    def _domains(self, categories: Int64Array) -> list[int]:
        """The codes of the names of categories, which are empty for one that is not there."""
        own = "rocpd_info_category"  # since 4.1.0
        named = (own, "name") if own + self._guid in self._database.tables else (_STRING, "string")
        return [self._categories[name or ""] for name in self._look_up(*named, categories)]

    def _texts_of(self, ids: Int64Array) -> list[int]:
        return [self._names[text or NO_NAME] for text in self._look_up(_STRING, "string", ids)]

    def _add_calls(self, chunk: Columns) -> None:
        chunk["name"] = looked_up(chunk["name_id"], self._texts_of)
        # Ranges and marks are called by their message, which older versions keep with the event.
        roctx = np.array([name.startswith("roctx") for name in self._names] or [False])
        kinds = self._records.kinds(chunk["domain"])
        rows = np.flatnonzero((kinds == EventKind.USER_ANNOTATION) & roctx[chunk["name"]])
        texts = self._look_up("rocpd_event", "extdata", chunk["event_id"][rows])
        for row, text in zip(rows.tolist(), texts, strict=True):
            members = json_value(text or "")
            message = members.get("message") if isinstance(members, dict) else None
            if message and isinstance(message, str):
                chunk["name"][row] = self._names[message]
        known = _at(self._threads, chunk["tid"], "tid")["tid"]
        chunk["thread"] = np.where(known == MISSING, chunk["tid"], known)
        self._records.add(EventKind.RUNTIME, chunk)

    def _kernel_names(self, ids: Int64Array) -> list[int]:
        table = "rocpd_info_kernel_symbol"
        texts = (self._look_up(table, name, ids) for name in ("display_name", "kernel_name"))
        names = zip(ids.tolist(), *texts, strict=True)
        return [self._names[rocprof.kernel_name(shown or own, row)] for row, shown, own in names]


def _at(table: pd.DataFrame, ids: Int64Array, *columns: str) -> Columns:
    """Columns of the rows with these ids, `MISSING` where there is none; shapes as `ids`."""
    found = table.reindex(index=ids, columns=list(columns), fill_value=MISSING)
    return {name: found[name].to_numpy(dtype=np.int64) for name in columns}


# What rocprof, before rocprofv3, writes: `results.db` and `results.json`. Of databases HIP and HSA
# calls, rocTX ranges, kernels (OPS, or KERN where it is empty) and copies, joined by `Index`; of
# JSON the same, joined by `DataFlow`. They become the rows of rocprofv3's tables. Format:
# `bin/tblextr.py` and `bin/sqlitedb.py` of ROCm/rocprofiler.

#: What a record is: the title of its name in rocprofv3's tables, and its domain or kind.
_Kind = tuple[str, str]
_KERNELS = ("kernel_name", "")
_COPIES = ("direction", "MEMORY_COPY")
_HIP, _HSA, _MARKS = (("function", domain) for domain in ("HIP_API", "HSA_API", "MARKER_API"))
_TABLES: dict[str, _Kind] = {"HIP": _HIP, "HSA": _HSA, "rocTX": _MARKS, "OPS": _KERNELS}
_TABLES |= {"KERN": _KERNELS, "COPY": _COPIES}
_TIMES: Final = {"BeginNs", "EndNs"}
_PROCESSES: dict[str, _Kind] = {"CPU HIP": _HIP, "CPU HSA": _HSA, "Markers": _MARKS}
_PROCESSES |= {"COPY": _COPIES, r"GPU\d+$": _KERNELS}


class ResultsDatabase(Database):
    """An open database of rocprof."""

    format = "database of rocprof"
    remedy = "record with rocprofv3 --sys-trace"

    def _is_ours(self) -> bool:
        return any(self.tables.get(name, set()) >= _TIMES for name in _TABLES)


def read_results(source: ByteSource) -> Trace:
    """Read a database or a document of rocprof."""
    records = rocprof.RocprofRecords()
    reader = TableReader(records)
    is_database = source.peek(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    found: dict[_Kind, list[list[str]]] = defaultdict(list)
    for kind, row in _rows_of_database(source) if is_database else _rows_of_json(source):
        found[kind].append(row)
    for (title, domain), rows in found.items():
        titles = f"start_timestamp end_timestamp process_id thread_id queue_id {title}"
        titles += " correlation_id agent_id domain"
        table = RocprofCsvTable(source, titles.split(), enumerate([*row, domain] for row in rows))
        table.places |= {"stream_id": 4, "source_agent_id": 7, "kind": 8}
        reader.read(table)
    return records.finish(source.path, "rocprof results", source.bytes_read)


def _rows_of_database(source: ByteSource) -> Iterator[tuple[_Kind, list[str]]]:
    """What each record is; begin, end, process, thread, queue, name, correlation, GPU."""
    with ResultsDatabase(source.path, source.file_or_bytes()) as database:
        skipped = "KERN" if database.has_rows("OPS") else "OPS"
        for table, kind in _TABLES.items():
            if table == skipped:
                continue
            ours = ("Name", "Index", "dev-id") if table != "KERN" else ("KernelName", "", "gpu-id")
            titles = ("BeginNs", "EndNs", "pid", "tid", "queue-id", *ours)
            columns = [database.words(table, title) for title in titles]
            columns[5] = _names(database, columns[5])
            for *row, gpu in zip(*columns, strict=True):
                yield kind, [*row, f"GPU {gpu}"]


def _names(database: Database, names: list[str]) -> list[str]:
    """Names, where they are numbers of texts in a table of their own."""
    strings = next((n for n, have in database.tables.items() if {"id", "string"} <= have), None)
    if strings is None or not all(name.isdecimal() and len(name) < 19 for name in names):
        return names
    found = database.look_up(strings, "string", np.array(names, dtype=np.int64))
    return [text or name for text, name in zip(found, names, strict=True)]


def _rows_of_json(source: ByteSource) -> Iterator[tuple[_Kind, list[str]]]:
    """As `_rows_of_database`."""
    try:
        events = json.loads(source.read_all())["traceEvents"]
        events = [each for each in events if isinstance(each, dict)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        problem = f"is damaged JSON of rocprof ({type(error).__name__})"
        raise TraceCutOffError(source.path, problem, "copy or record it again") from None
    processes: dict[str, str] = {}
    flows: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for event in reversed(events):
        if event.get("name") == "process_name" and isinstance(args := event.get("args"), dict):
            processes[str(event.get("pid"))] = str(args.get("name"))
        elif event.get("cat") == "DataFlow":
            flows[_place(event)].append(str(event.get("id")))
    for event in events:
        process = processes.get(str(event.get("pid")), "")
        kind = next(
            (kind for pattern, kind in _PROCESSES.items() if re.match(pattern, process)), None
        )
        args = event.get("args")
        if event.get("ph") == "X" and isinstance(args, dict) and kind is not None:
            cells = [args.get(key, "") for key in ("BeginNs", "EndNs", "pid", "tid", "queue-id")]
            ids = flows.get(_place(event))
            cells += [args.get("Name", event.get("name")), ids.pop() if ids else ""]
            cells.append(f"GPU {args.get('dev-id', process.removeprefix('GPU'))}")
            yield kind, [*map(str, cells)]


def _place(event: dict[str, object]) -> tuple[str, ...]:
    return tuple(str(event.get(key)) for key in ("pid", "tid", "ts"))
