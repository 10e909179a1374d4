"""Reads `results.db` and `results.json` of rocprof, the predecessor of rocprofv3.

Supports: HIP and HSA calls, rocTX ranges, kernels and copies. A database has its kernels in the
table `OPS`, or in `KERN` if `OPS` is empty; `Index` links a call with its GPU work. In JSON, flow
events of the category `DataFlow` link them. Each record becomes a row of the table that rocprofv3
would write, and the reader of those tables (`csv_tables.py`) does the rest.
Ignores: everything else.
Format: `bin/tblextr.py` and `bin/sqlitedb.py` of ROCm/rocprofiler.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.errors import TraceCutOffError
from tracelens_ext.readers.rocprof import records as rocprof
from tracelens_ext.readers.rocprof.csv_tables import RocprofCsvTable, TableReader
from tracelens_ext.readers.source import SQLITE_MAGIC, ByteSource
from tracelens_ext.readers.sqlite_columns import Database
from tracelens_ext.trace import Trace

#: Numbers of fewer digits fit in 64 bits.
_DIGITS_OF_INT64 = 19


class _RecordKind(NamedTuple):
    """How rocprofv3's tables present the records of one kind."""

    name_title: str  #: title of the column with the name of the record
    #: content of the column with the domain of a call, or the kind of a copy
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
#: Pattern of the name of a process in JSON → kind of its events. The "processes" of the file are
#: the sections in which a viewer shows the events; the arguments of an event name its real process.
_KIND_OF_SECTION = {
    "CPU HIP": _HIP,
    "CPU HSA": _HSA,
    "Markers": _MARKS,
    "COPY": _COPIES,
    r"GPU\d+$": _KERNELS,
}
#: Titles in rocprofv3's tables, in the order of the fields of `_Record`. The title of the name
#: depends on the kind of the record.
_TITLES_BEFORE_NAME = (
    "start_timestamp",
    "end_timestamp",
    "process_id",
    "thread_id",
    "queue_id",
)
_TITLES_AFTER_NAME = ("correlation_id", "agent_id", "domain")


class _Record(NamedTuple):
    """A record of rocprof. All fields are texts; an unknown one is empty."""

    begin: str
    end: str
    process: str
    thread: str
    queue: str
    name: str
    correlation: str
    gpu: str


class _FlowEnd(NamedTuple):
    """Identifies the event in JSON at which a flow begins or ends."""

    process: str
    thread: str
    time: str


class ResultsDatabase(Database):
    """A database of rocprof that is open for reading."""

    format = "rocprof database"
    remedy = "record with rocprofv3 --sys-trace"

    def _is_ours(self) -> bool:
        return any(self.tables.get(name, set()) >= _TIMES for name in _KIND_OF_TABLE)


def read(source: ByteSource) -> Trace:
    """Read a database or a JSON document of rocprof."""
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
    for kind, records_to_add in records_of_kind.items():
        table = _csv_table(source, kind, records_to_add)
        reader.read(table)
    return records.finish(source.path, "rocprof results", source.bytes_read)


def _csv_table(
    source: ByteSource, kind: _RecordKind, records: list[_Record]
) -> RocprofCsvTable:
    """Return the table that rocprofv3 would write for records of one kind."""
    titles = _TITLES_BEFORE_NAME + (kind.name_title,) + _TITLES_AFTER_NAME
    rows = (list(record) + [kind.domain] for record in records)
    table = RocprofCsvTable(source=source, titles=titles, rows=enumerate(rows))
    # rocprofv3's table of copies has other titles for the same columns.
    table.column_of_title["stream_id"] = table.column_of_title["queue_id"]
    table.column_of_title["source_agent_id"] = table.column_of_title["agent_id"]
    table.column_of_title["kind"] = table.column_of_title["domain"]
    return table


def _records_of_database(source: ByteSource) -> Iterator[tuple[_RecordKind, _Record]]:
    """Yield the records in the tables of a database, with their kinds."""
    with ResultsDatabase(source.path, source.file_or_bytes()) as database:
        # Both tables list the kernels.
        ignored_table = "OPS"
        if database.has_rows("OPS"):
            ignored_table = "KERN"
        for table, kind in _KIND_OF_TABLE.items():
            if table == ignored_table:
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
    """Return names; if all are ids of rows in a table of texts, return these texts instead."""
    text_table = _table_of_texts(database)
    if text_table is None or not all(map(_is_whole_number, names)):
        return names
    ids = np.array(names, dtype=np.int64)
    texts = database.look_up(text_table, "string", ids)
    resolved_names = []
    for text, name in zip(texts, names, strict=True):
        resolved_names.append(text or name)
    return resolved_names


def _is_whole_number(text: str) -> bool:
    return text.isdecimal() and len(text) < _DIGITS_OF_INT64


def _table_of_texts(database: Database) -> str | None:
    for table, columns in database.tables.items():
        if {"id", "string"} <= columns:
            return table
    return None


def _records_of_json(source: ByteSource) -> Iterator[tuple[_RecordKind, _Record]]:
    """Yield the records in a JSON document, with their kinds."""
    events = _json_events(source)
    section_names = _section_names(events)
    flow_ids_at = _flow_ids(events)
    for event in events:
        section_name = section_names.get(str(event.get("pid")), "")
        kind = _kind_of_section(section_name)
        args = event.get("args")
        if event.get("ph") != "X" or not isinstance(args, dict) or kind is None:
            continue
        correlation = ""
        flow_ids = flow_ids_at.get(_flow_end(event))
        if flow_ids:
            correlation = flow_ids.pop()
        gpu = args.get("dev-id", section_name.removeprefix("GPU"))
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
    """Return the events of a JSON document; raise TraceCutOffError if it is damaged."""
    try:
        events = json.loads(source.read_all())["traceEvents"]
        return [event for event in events if isinstance(event, dict)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        problem = f"has damaged rocprof JSON ({type(error).__name__})"
        raise TraceCutOffError(
            source.path, problem, "copy or record it again"
        ) from None


def _section_names(events: Sequence[dict[str, object]]) -> dict[str, str]:
    """Return the name of each section by its number; the first name counts."""
    names: dict[str, str] = {}
    for event in events:
        if event.get("name") != "process_name":
            continue
        args = event.get("args")
        if not isinstance(args, dict):
            continue
        section = str(event.get("pid"))
        name = str(args.get("name"))
        names.setdefault(section, name)
    return names


def _flow_ids(events: Sequence[dict[str, object]]) -> dict[_FlowEnd, list[str]]:
    """Return the ids of the flows that begin or end at each event.

    Several events may begin at the same time on the same thread. Their flows stand in the order of
    the events, so each list is reversed: `pop()` gives the id for the next event.
    """
    flow_ids: dict[_FlowEnd, list[str]] = defaultdict(list)
    for event in reversed(events):
        if event.get("cat") != "DataFlow":
            continue
        flow_id = str(event.get("id"))
        flow_ids[_flow_end(event)].append(flow_id)
    return flow_ids


def _kind_of_section(name: str) -> _RecordKind | None:
    """Return the kind of the events in a section; None if they are not analyzed."""
    for pattern, kind in _KIND_OF_SECTION.items():
        if re.match(pattern, name):
            return kind
    return None


def _flow_end(event: dict[str, object]) -> _FlowEnd:
    return _FlowEnd(
        process=str(event.get("pid")),
        thread=str(event.get("tid")),
        time=str(event.get("ts")),
    )
