"""Reader of what rocprof, before rocprofv3, writes: `results.db`, `results.json`, sums of kernels.

Supports: of databases HIP and HSA calls, rocTX ranges, kernels (OPS, or KERN where it is empty) and
copies, joined by `Index`; of JSON the same, joined by `DataFlow`. They become the rows of
rocprofv3's tables. rocprof's own table of kernels, and rocprofv2's, are among `csv_tables.py`.
Format: `bin/tblextr.py` and `bin/sqlitedb.py` of ROCm/rocprofiler.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.errors import TraceCutOffError
from tracelens_ext.readers.rocprof.csv_tables import TableReader
from tracelens_ext.readers.rocprof.records import RocprofRecords
from tracelens_ext.readers.source import SQLITE_MAGIC
from tracelens_ext.readers.sqlite_columns import Database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens_ext.readers.source import ByteSource
    from tracelens_ext.trace import Trace

#: What a record is: the title of its name in rocprofv3's tables, and its domain or kind.
_Kind = tuple[str, str]
_KERNELS, _COPIES = ("kernel_name", ""), ("direction", "MEMORY_COPY")
_TABLES: Final[dict[str, _Kind]] = {
    "HIP": ("function", "HIP_API"),
    "HSA": ("function", "HSA_API"),
    "rocTX": ("function", "MARKER_API"),
    "OPS": _KERNELS,
    "KERN": _KERNELS,
    "COPY": _COPIES,
}
_TIMES: Final = {"BeginNs", "EndNs"}
_PROCESSES: Final[tuple[tuple[re.Pattern[str], _Kind], ...]] = (
    (re.compile(r"CPU HIP"), _TABLES["HIP"]),
    (re.compile(r"CPU HSA"), _TABLES["HSA"]),
    (re.compile(r"Markers"), _TABLES["rocTX"]),
    (re.compile(r"COPY"), _COPIES),
    (re.compile(r"GPU\d+$"), _KERNELS),
)


class ResultsDatabase(Database):
    """An open database of rocprof."""

    format = "database of rocprof"
    remedy = "record with rocprofv3 --sys-trace"

    def _is_ours(self) -> bool:
        return any(self.tables.get(name, set()) >= _TIMES for name in _TABLES)


def read(source: ByteSource) -> Trace:
    """Read a database or a document."""
    records = RocprofRecords()
    reader = TableReader(records)
    is_database = source.peek(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    found: dict[_Kind, list[list[str]]] = defaultdict(list)
    for kind, row in _of_database(source) if is_database else _of_json(source):
        found[kind].append(row)
    for (title, domain), rows in found.items():
        titles = ["start_timestamp", "end_timestamp", "process_id", "thread_id", "queue_id", title]
        titles += ["correlation_id", "agent_id", "domain", "source_agent_id", "kind", "stream_id"]
        for row in rows:
            row += [domain, row[-1], domain, row[4]]
        reader.read_rows(source, titles, rows)
    return records.finish(source.path, "rocprof results", source.bytes_read)


def _of_database(source: ByteSource) -> Iterator[tuple[_Kind, list[str]]]:
    """What each record is; begin, end, process, thread, queue, name, correlation, GPU."""
    with ResultsDatabase(source.path, source.file_or_bytes()) as database:
        skipped = "KERN" if database.has_rows("OPS") else "OPS"
        for table, kind in _TABLES.items():
            if table == skipped or table not in database.tables:
                continue
            ours = ("Name", "Index", "dev-id") if table != "KERN" else ("KernelName", "", "gpu-id")
            columns = [
                database.words(table, column)
                for column in ("BeginNs", "EndNs", "pid", "tid", "queue-id", *ours)
            ]
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


def _of_json(source: ByteSource) -> Iterator[tuple[_Kind, list[str]]]:
    """As `_of_database`."""
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
        kind = next((kind for pattern, kind in _PROCESSES if pattern.match(process)), None)
        args = event.get("args")
        if event.get("ph") == "X" and isinstance(args, dict) and kind is not None:
            cells = [args.get(key, "") for key in ("BeginNs", "EndNs", "pid", "tid", "queue-id")]
            ids = flows.get(_place(event))
            cells += [args.get("Name", event.get("name")), ids.pop() if ids else ""]
            gpu = args.get("dev-id", process.removeprefix("GPU"))
            yield kind, [*map(str, cells), f"GPU {gpu}"]


def _place(event: dict[str, object]) -> tuple[str, ...]:
    return tuple(str(event.get(key)) for key in ("pid", "tid", "ts"))
