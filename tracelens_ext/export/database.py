"""A trace as an SQLite database: its events, and tables of its report."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import numpy as np

from tracelens_ext.analysis.iterations.iterations import find_iterations, iteration_at
from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.compatibility.earlier_names import (
    earlier_table,
    earlier_table_name,
)
from tracelens_ext.distributed.rank_numbers import rank_hints
from tracelens_ext.lazy import pd
from tracelens_ext.report.formats import plain_column, plain_headers
from tracelens_ext.report.tables.registry import offered_tables
from tracelens_ext.report.tables.table import Table
from tracelens_ext.trace import HOST_KINDS, NONE, Int64Array, Trace
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.gpu_events import KIND_NAMES, GpuEvents
from tracelens_ext.trace.nesting import ROOT

#: The version of `SCHEMA`; it grows when a table or a column changes its meaning.
SCHEMA_VERSION = 1

# The `parent` of a GPU event is its launch; that of a host event is the event around it. Times are
# ns since the first event. `exposed_ns` is the time during which nothing else ran on the device.
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
#: The tables and views of `SCHEMA`. A table of a report with such a name gets the prefix `table_`.
OWN_NAMES = frozenset(("meta", "names", "events", "gpu_work", "gpu_events", "launches"))
#: A new database needs no protection against crashes, which would take most of the time.
_WITHOUT_JOURNAL = "pragma journal_mode = off; pragma synchronous = off;"
_LARGEST_INTEGER = 2**63 - 1

_Value = TypeVar("_Value")


def open_database(
    analyzer: TreePerfAnalyzer, path: str = ":memory:"
) -> sqlite3.Connection:
    """Create a database of the events of a trace, and return the open connection."""
    connection = sqlite3.connect(path)
    connection.executescript(_WITHOUT_JOURNAL + SCHEMA)
    gpu_events = analyzer.gpu_events
    _fill_meta(connection, analyzer.trace)
    name_id = _fill_names(connection, gpu_events)
    _fill_events(connection, gpu_events, name_id)
    _fill_gpu_work(connection, gpu_events)
    connection.executescript(_INDEXES)
    return connection


def _fill_meta(connection: sqlite3.Connection, trace: Trace) -> None:
    facts = {
        "schema_version": SCHEMA_VERSION,
        "trace": trace.provenance.path,
        "format": trace.provenance.format,
        "base_ns": trace.base_ns,
        "events": trace.recorded,
    }
    _insert(connection, "meta", {"key": facts.keys(), "value": facts.values()})


def _fill_names(connection: sqlite3.Connection, gpu_events: GpuEvents) -> Int64Array:
    """Add the distinct pairs of a name and a category; return the pair of each event, (n,)."""
    trace = gpu_events.trace
    labels: list[str] = []
    category = np.full(len(trace), NONE, dtype=np.int64)
    if gpu_events.categories is not None:
        labels = gpu_events.categories.labels
        category[gpu_events.rows] = gpu_events.categories.code
    # Each pair is one integer: the code of the name, times the number of categories with `NONE`
    # as the first one, plus the code of the category.
    category_count = len(labels) + 1
    pair = trace.name.astype(np.int64) * category_count + category + 1
    name_id: Int64Array
    distinct_pairs, name_id = np.unique(pair, return_inverse=True)
    name_of_pair, category_of_pair = np.divmod(distinct_pairs, category_count)
    labels_with_none = [None] + labels
    columns = {
        "id": range(len(distinct_pairs)),
        "name": [trace.names[name] for name in name_of_pair.tolist()],
        "category": [labels_with_none[code] for code in category_of_pair.tolist()],
    }
    _insert(connection, "names", columns)
    return name_id


def _fill_events(
    connection: sqlite3.Connection, gpu_events: GpuEvents, name_id: Int64Array
) -> None:
    trace = gpu_events.trace
    rank = rank_hints(trace.metadata, trace.provenance.path, devices=()).known_rank
    threads = [f"{process}/{thread}" for process, thread in trace.threads]
    columns = {
        "id": range(len(trace)),
        "ts_ns": trace.ts.tolist(),
        "dur_ns": trace.dur.tolist(),
        "name_id": name_id.tolist(),
        "kind": [KIND_NAMES[kind] for kind in trace.kind.tolist()],
        "rank": [rank] * len(trace),
        "device": _without_none(_of_all_events(gpu_events, trace.device)),
        "stream": _without_none(_of_all_events(gpu_events, trace.stream)),
        "thread": [threads[thread] for thread in trace.thread.tolist()],
        "correlation": _without_none(trace.correlation),
        "parent": _without_none(_parents(gpu_events.tree)),
        "iteration": _iteration_numbers(gpu_events),
    }
    _insert(connection, "events", columns)


def _fill_gpu_work(connection: sqlite3.Connection, gpu_events: GpuEvents) -> None:
    operation_code, labels = gpu_events.tree.cpu_op_label_of_gpu
    columns = {
        "id": gpu_events.rows.tolist(),
        "operation": [labels[code] for code in operation_code.tolist()],
        "exposed_ns": _exposed_ns(gpu_events).tolist(),
    }
    _insert(connection, "gpu_work", columns)


def _of_all_events(gpu_events: GpuEvents, values: Int64Array) -> Int64Array:
    """Return a column of the GPU events for all events; other events have `NONE`, (n,)."""
    column = np.full(len(gpu_events.trace), NONE, dtype=np.int64)
    column[gpu_events.rows] = values
    return column


def _without_none(column: Int64Array) -> list[int | None]:
    """Return a column as Python numbers, with None for `NONE`."""
    return [None if value == NONE else value for value in column.tolist()]


def _parents(tree: CallTree) -> Int64Array:
    """Return the launch of each GPU event, and the event around each host event, (n,)."""
    parent = np.full(len(tree.trace), NONE, dtype=np.int64)
    has_parent = tree.parent_position != ROOT
    position_above = tree.parent_position[has_parent]
    parent[tree.rows[has_parent]] = tree.rows[position_above]
    parent[tree.trace.gpu_rows] = tree.launch_of_gpu
    return parent


def _iteration_numbers(gpu_events: GpuEvents) -> list[int | None]:
    """Return the number of the iteration of each event, None for an event outside of them.

    A GPU event belongs to the iteration that launched it, a host event to the one in which it
    starts. SQLite cannot store a number of more than 64 bits, which is left out.
    """
    trace = gpu_events.trace
    iterations = find_iterations(gpu_events.tree)
    iteration = _of_all_events(gpu_events, iterations.of_gpu)
    host_rows = np.flatnonzero(np.isin(trace.kind, HOST_KINDS))
    process = trace.process_of_thread[trace.thread[host_rows]].astype(np.int64)
    iteration[host_rows] = iteration_at(
        spans=iterations.spans, process=process, time=trace.ts[host_rows]
    )
    numbers: list[int | None] = [
        number if abs(number) <= _LARGEST_INTEGER else None
        for number in iterations.number
    ]
    numbers.append(None)  # `NONE` is -1, the index of this last number
    return [numbers[index] for index in iteration.tolist()]


def _exposed_ns(gpu_events: GpuEvents) -> Int64Array:
    """Return how long each GPU event runs with nothing else on its device, ns, (g,).

    Events from 0 to 10 and from 6 to 8 overlap from 6 to 8: 8 ns and 0 ns are exposed.
    """
    exposed_ns = np.zeros(len(gpu_events), dtype=np.int64)
    device_of_event = gpu_events.trace.device
    for device in np.unique(device_of_event).tolist():
        events_of_device = np.flatnonzero(device_of_event == device)
        start = gpu_events.start[events_of_device]
        end = gpu_events.end[events_of_device]
        # A sweep over all times at which an event starts or ends. From one of these times to the
        # next, as many events run as have started so far and not ended.
        times = np.unique(np.concatenate((start, end)))
        index_of_start = np.searchsorted(times, start)
        index_of_end = np.searchsorted(times, end)
        started = np.cumsum(np.bincount(index_of_start, minlength=len(times)))
        ended = np.cumsum(np.bincount(index_of_end, minlength=len(times)))
        running = started - ended
        runs_alone = running[:-1] == 1
        # The time up to each of `times` during which exactly one event runs. What passes of it
        # between the start and the end of an event is the exposed time of that event.
        alone_ns = np.zeros(len(times), dtype=np.int64)
        alone_ns[1:] = np.cumsum(np.where(runs_alone, np.diff(times), 0))
        exposed_ns[events_of_device] = alone_ns[index_of_end] - alone_ns[index_of_start]
    return exposed_ns


def add_table(connection: sqlite3.Connection, name: str, frame: pd.DataFrame) -> None:
    """Add a table of the report under its name, or with the prefix `table_` if that is taken."""
    frame = earlier_table(frame, name)
    table_name = earlier_table_name(name)
    if table_name.lower() in OWN_NAMES:
        table_name = f"table_{table_name}"
    headers = plain_headers(frame)
    columns: dict[str, Iterable[object]] = {}
    for header, (_, column) in zip(headers, frame.items(), strict=True):
        columns[header] = plain_column(column)
    column_list = ", ".join(map(quoted, headers))
    connection.execute(f"create table {quoted(table_name)} ({column_list})")
    _insert(connection, table_name, columns)


def _insert(
    connection: sqlite3.Connection,
    table: str,
    columns: Mapping[str, Iterable[object]],
) -> None:
    """Insert rows, which are given by column, into a table."""
    column_list = ", ".join(map(quoted, columns))
    marks = ", ".join("?" * len(columns))
    statement = f"insert into {quoted(table)} ({column_list}) values ({marks})"  # noqa: S608  # quoted
    connection.executemany(statement, zip(*columns.values(), strict=True))


def quoted(name: str) -> str:
    """Return a name as an SQL identifier, whatever characters it has."""
    return '"' + name.replace('"', '""').replace("\0", "") + '"'


def tables_of_report() -> dict[str, Table]:
    """Return the tables that a report can have, by name."""
    return {offered.item.name: offered.item for offered in offered_tables()}


def write_database(analyzer: TreePerfAnalyzer, output: Path) -> None:
    """Write a database with the events of a trace and the tables of its report."""
    from tracelens_ext.perf_report import build_perf_report
    from tracelens_ext.report.atomic_files import written_beside

    report = build_perf_report(analyzer, iterations=True, counters=True)
    with (
        written_beside(output) as temporary_path,
        closing(open_database(analyzer, str(temporary_path))) as connection,
    ):
        for name, frame in report.sheets.items():
            add_table(connection, name, frame)
        connection.commit()
