"""A trace as an SQLite database: its events, and on demand the tables of a report."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from tracelens_ext.analysis.iterations.selection import find_iterations, iteration_at
from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.compatibility.earlier_names import (
    earlier_names_wanted,
    earlier_table,
    earlier_table_name,
    new_table_name,
)
from tracelens_ext.distributed.rank_numbers import rank_hints
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.formats import plain_column, plain_headers
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.registry import offered_tables
from tracelens_ext.report.tables.table import Table
from tracelens_ext.trace import HOST_KINDS, NONE, Int64Array
from tracelens_ext.trace.gpu_events import KIND_NAMES, GpuEvents
from tracelens_ext.trace.nesting import ROOT

#: Grows when a table or a column gets another meaning.
SCHEMA_VERSION = 1

#: `parent` is the launch of a GPU event, the event around one of the host; times are ns since the
#: first event; `exposed_ns` is the time in which nothing else ran on the event's device.
SCHEMA = """
create table meta(key text primary key, value);
create table names(id integer primary key, name text, category text);
create table events(id integer primary key, ts_ns integer, dur_ns integer, name_id integer,
  kind text, rank integer, device integer, stream integer, thread text, correlation integer,
  parent integer, iteration integer);
create table gpu_work(id integer primary key, operation text, exposed_ns integer);
create view gpu_events as select n.name, n.category, g.operation, e.parent as launch_id, e.device,
  e.stream, e.ts_ns, e.dur_ns, g.exposed_ns, e.id, e.kind, e.iteration
  from gpu_work g join events e using(id) join names n on n.id = e.name_id;
create view launches as select l.id, n.name, l.ts_ns, l.dur_ns, l.thread, l.correlation,
  count(*) as gpu_events, sum(e.dur_ns) as gpu_ns, min(e.ts_ns) - l.ts_ns as delay_ns
  from gpu_work g join events e using(id) join events l on l.id = e.parent
  join names n on n.id = l.name_id group by l.id;
"""
_INDEXES = """
create index events_correlation on events(correlation);
create index events_parent on events(parent);
create index events_ts on events(ts_ns);
"""
OWN_NAMES = frozenset(("meta", "names", "events", "gpu_work", "gpu_events", "launches"))


def open_database(
    analyzer: TreePerfAnalyzer, path: str = ":memory:"
) -> sqlite3.Connection:
    """A database of the events of a trace."""
    connection = sqlite3.connect(path)
    connection.executescript(
        "pragma journal_mode = off; pragma synchronous = off;" + SCHEMA
    )
    work = analyzer.work
    trace = analyzer.trace
    about = trace.provenance
    facts = {
        "schema_version": SCHEMA_VERSION,
        "trace": about.path,
        "format": about.format,
    }
    facts |= {"base_ns": trace.base_ns, "events": trace.recorded}
    _insert(connection, "meta", facts, facts.values())
    category = np.full(len(trace), NONE, dtype=np.int64)
    labels = []
    if work.categories is not None:
        category[work.rows] = work.categories.code
        labels = work.categories.labels
    pairs = trace.name.astype(np.int64) * (len(labels) + 1) + category + 1
    distinct, name_id = np.unique(pairs, return_inverse=True)
    names, codes = (part.tolist() for part in np.divmod(distinct, len(labels) + 1))
    texts = [trace.names[name] for name in names]
    labels_or_none = [None] + labels
    _insert(
        connection,
        "names",
        range(len(texts)),
        texts,
        [labels_or_none[code] for code in codes],
    )
    _insert(connection, "events", *_events(analyzer, name_id))
    code, operations = work.tree.cpu_op_label_of_gpu
    operation = [operations[operation_code] for operation_code in code.tolist()]
    _insert(
        connection, "gpu_work", work.rows.tolist(), operation, _exposed(work).tolist()
    )
    connection.executescript(_INDEXES)
    return connection


def _events(analyzer: TreePerfAnalyzer, name_id: Int64Array) -> list[Iterable[object]]:
    work = analyzer.work
    trace = analyzer.trace
    tree = analyzer.tree
    parent = np.full(len(trace), NONE, dtype=np.int64)
    inner = tree.parent_position != ROOT
    parent[tree.rows[inner]] = tree.rows[tree.parent_position[inner]]
    parent[work.rows] = tree.launch_of_gpu
    device = np.full(len(trace), NONE, dtype=np.int64)
    stream = device.copy()
    iteration = device.copy()
    device[work.rows] = trace.device
    stream[work.rows] = trace.stream
    iterations = find_iterations(tree)
    numbers = np.array(iterations.number + [NONE], dtype=np.int64)
    iteration[work.rows] = numbers[iterations.of_gpu]
    host = np.flatnonzero(np.isin(trace.kind, HOST_KINDS))
    process = trace.process_of_thread[trace.thread[host]].astype(np.int64)
    spans = (iterations.process, iterations.start, iterations.end)
    iteration[host] = numbers[iteration_at(spans, process, trace.ts[host])]
    threads = [f"{process}/{thread}" for process, thread in trace.threads]
    rank = rank_hints(trace.metadata, trace.provenance.path, devices=()).known_rank
    columns = (device, stream, trace.correlation, parent, iteration)
    on, streams, *last = (
        [None if value == NONE else value for value in column.tolist()]
        for column in columns
    )
    kinds = [KIND_NAMES[kind] for kind in trace.kind.tolist()]
    ranks = [rank] * len(trace)
    where = [threads[thread] for thread in trace.thread.tolist()]
    times = (trace.ts.tolist(), trace.dur.tolist(), name_id.tolist())
    return [range(len(trace)), *times, kinds, ranks, on, streams, where, *last]


def _exposed(work: GpuEvents) -> Int64Array:
    """How long each GPU event ran with nothing else on its device, ns, (g,)."""
    result = np.zeros(len(work), dtype=np.int64)
    for device in np.unique(work.trace.device).tolist():
        events_of_device = np.flatnonzero(work.trace.device == device)
        start = work.start[events_of_device]
        end = work.end[events_of_device]
        times = np.unique(np.concatenate((start, end)))
        first = np.searchsorted(times, start)
        last = np.searchsorted(times, end)
        begun, ended = (
            np.cumsum(np.bincount(places, minlength=len(times)))
            for places in (first, last)
        )
        alone = np.where((begun - ended)[:-1] == 1, np.diff(times), 0)
        total = np.concatenate(([0], np.cumsum(alone)))
        result[events_of_device] = total[last] - total[first]
    return result


def add_table(connection: sqlite3.Connection, name: str, frame: pd.DataFrame) -> None:
    """A table of the report under its name; `table_` before one that has a name of ours."""
    frame = earlier_table(frame, name)
    name = earlier_table_name(name)
    quoted_name = quoted(f"table_{name}" if name.lower() in OWN_NAMES else name)
    connection.execute(
        f"create table {quoted_name} ({', '.join(map(quoted, plain_headers(frame)))})"
    )
    _insert(
        connection, quoted_name, *(plain_column(column) for _, column in frame.items())
    )


def _insert(
    connection: sqlite3.Connection, table: str, *columns: Iterable[object]
) -> None:
    marks = ", ".join("?" * len(columns))
    rows = zip(*columns, strict=True)
    connection.executemany(f"insert into {table} values ({marks})", rows)  # noqa: S608  # ours


def quoted(name: str) -> str:
    """A name in SQL, whatever is in it."""
    return '"' + name.replace('"', '""').replace("\0", "") + '"'


def tables_of_report() -> dict[str, Table]:
    """The tables that a report can have, by name."""
    return {offered.item.name: offered.item for offered in offered_tables()}


def write_database(analyzer: TreePerfAnalyzer, output: Path) -> None:
    """Write a database with the events of a trace and the tables of its report."""
    from tracelens_ext.perf_report import build_perf_report
    from tracelens_ext.report.manifest import written_beside

    report = build_perf_report(analyzer, iterations=True, counters=True)
    with (
        written_beside(output) as beside,
        closing(open_database(analyzer, str(beside))) as made,
    ):
        for name, frame in report.sheets.items():
            add_table(made, name, frame)
        made.commit()


_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ}
_READS |= {sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_NO_TABLE = re.compile(r"no such table: (?:main\.)?(.+)")
_LONGEST = 100_000_000  # bytes of a value
_STEPS = 10_000  # of SQLite's machine between two looks at the clock


def query(
    analyzer: TreePerfAnalyzer,
    sql: str,
    *,
    limit: int,
    timeout: float,
    longest: int = _LONGEST,
) -> tuple[pd.DataFrame, bool]:
    """The rows that a query gives, and whether there are more than `limit` of them.

    Tables of the report are made where the query names them. No value is longer than `longest`.
    """
    with closing(open_database(analyzer)) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
        try:
            while True:
                try:
                    return _answer(db=connection, sql=sql, limit=limit, wait=timeout)
                except sqlite3.OperationalError as error:
                    missing = _NO_TABLE.fullmatch(str(error))
                    if missing is None or not _added(connection, analyzer, missing[1]):
                        raise
        except (
            sqlite3.Error,
            sqlite3.Warning,
            OverflowError,
            ValueError,
            MemoryError,
        ) as error:
            raise UsageError(
                f"this SQL is rejected: {_reason(error, timeout)}"
            ) from None


def _answer(
    db: sqlite3.Connection, sql: str, limit: int, wait: float
) -> tuple[pd.DataFrame, bool]:
    ends = time.monotonic() + wait
    db.set_authorizer(
        lambda a, *_: sqlite3.SQLITE_OK if a in _READS else sqlite3.SQLITE_DENY
    )
    db.set_progress_handler(lambda: time.monotonic() > ends, _STEPS)
    try:
        cursor = db.execute(sql)
        if cursor.description is None:
            raise sqlite3.ProgrammingError("it is not a query; write SELECT …")
        rows = cursor.fetchmany(limit + 1)
        names = [column[0] for column in cursor.description]
    finally:
        db.set_authorizer(None)
        db.set_progress_handler(None, 0)
    return pd.DataFrame(rows[:limit], columns=names, dtype=object), len(rows) > limit


def _added(
    connection: sqlite3.Connection, analyzer: TreePerfAnalyzer, name: str
) -> bool:
    """Add a table of the report that a query misses; return True if there is such a table."""
    table_name = name.lower().removeprefix("table_")
    wanted = table_name if table_name in OWN_NAMES else name.lower()
    if earlier_names_wanted():
        wanted = new_table_name(wanted)
    sheet_of_name = {}
    for sheet_name, table in tables_of_report().items():
        sheet_of_name[sheet_name.lower()] = table
    sheet = sheet_of_name.get(wanted)
    if sheet is None:
        return False
    options = ReportOptions()
    if isinstance(getattr(options, sheet.enabled_by, None), bool):
        options = replace(options, **{sheet.enabled_by: True})  # type: ignore[arg-type]
    if (
        sheet.why_absent(analyzer, options)
        or (frame := sheet.build_with(analyzer, options)) is None
    ):
        raise sqlite3.ProgrammingError(f"the trace has no table {sheet.name}")
    add_table(connection, sheet.name, frame)
    return True


def _reason(error: Exception, timeout: float) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    if text == "interrupted":
        return f"it takes longer than {timeout:g} s; raise the limit with --timeout"
    if text in ("not authorized", "authorization denied") or "prohibited" in text:
        return "it does more than read data"
    if text.startswith("no such table"):
        return f"{text}; list them with 'tracelens-ext sql --schema'"
    return text
