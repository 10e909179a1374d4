"""Answer SQL queries about a trace: read-only, with limits for rows, time and memory."""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from typing import Final, NamedTuple

from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.compatibility.earlier_names import (
    earlier_names_wanted,
    new_table_name,
)
from tracelens_ext.errors import UsageError
from tracelens_ext.export.database import (
    OWN_NAMES,
    add_table,
    open_database,
    tables_of_report,
)
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table

#: What a query may do.
_ALLOWED_ACTIONS: Final = frozenset(
    (
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
    )
)
#: What `sqlite3` raises for a query that is wrong, or needs too much.
_QUERY_ERRORS: Final = (
    sqlite3.Error,
    sqlite3.Warning,
    OverflowError,
    ValueError,
    MemoryError,
)
_NO_TABLE: Final = re.compile(r"no such table: (?:main\.)?(.+)")
_MAX_VALUE_BYTES: Final = 100_000_000
#: SQLite executes this many of its instructions between two looks at the clock.
_INSTRUCTIONS_PER_CHECK: Final = 10_000


class QueryResult(NamedTuple):
    """The result of a query."""

    rows: pd.DataFrame  #: the first rows, at most as many as the limit
    has_more: bool  #: True if the query has more rows


def query(
    analyzer: TreePerfAnalyzer,
    sql: str,
    *,
    limit: int,
    timeout: float,
    max_value_bytes: int = _MAX_VALUE_BYTES,
) -> QueryResult:
    """Run a query on the events of a trace and the tables of its report.

    Args:
        analyzer: the analyzer of the trace.
        sql: the query. Each table of the report that it names is built for it.
        limit: the most rows in the result.
        timeout: the most time that the query may take, s.
        max_value_bytes: the largest value that the query may create.

    Raises:
        UsageError: the query is invalid, does more than read, or exceeds a limit.
    """
    with closing(open_database(analyzer)) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max_value_bytes)
        try:
            while True:
                try:
                    return _run_query(connection, sql, limit=limit, timeout=timeout)
                except sqlite3.OperationalError as error:
                    missing = _NO_TABLE.fullmatch(str(error))
                    if missing is None:
                        raise
                    table = _report_table(missing[1])
                    if table is None:
                        raise
                    _add_report_table(connection, analyzer, table)
        except _QUERY_ERRORS as error:
            reason = _reason(error, timeout)
            raise UsageError(f"this SQL is rejected: {reason}") from None


def _run_query(
    connection: sqlite3.Connection, sql: str, *, limit: int, timeout: float
) -> QueryResult:
    """Run a query that may only read, and stop it after the timeout."""
    deadline = time.monotonic() + timeout

    def authorize(action: int, *_details: str | None) -> int:
        if action in _ALLOWED_ACTIONS:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    connection.set_authorizer(authorize)
    connection.set_progress_handler(
        lambda: time.monotonic() > deadline, _INSTRUCTIONS_PER_CHECK
    )
    try:
        cursor = connection.execute(sql)
        if cursor.description is None:
            raise sqlite3.ProgrammingError("it is not a query; write SELECT …")
        rows = cursor.fetchmany(limit + 1)
        names = [column[0] for column in cursor.description]
    finally:
        connection.set_authorizer(None)
        connection.set_progress_handler(None, 0)
    frame = pd.DataFrame(rows[:limit], columns=names, dtype=object)
    return QueryResult(rows=frame, has_more=len(rows) > limit)


def _report_table(name: str) -> Table | None:
    """Return the table of the report that a query calls by a name; None if there is none."""
    table_name = name.lower()
    without_prefix = table_name.removeprefix("table_")
    if without_prefix in OWN_NAMES:
        table_name = without_prefix
    if earlier_names_wanted():
        table_name = new_table_name(table_name)
    for report_name, table in tables_of_report().items():
        if report_name.lower() == table_name:
            return table
    return None


def _add_report_table(
    connection: sqlite3.Connection, analyzer: TreePerfAnalyzer, table: Table
) -> None:
    """Build a table of the report, and add it to the database.

    Raises:
        sqlite3.ProgrammingError: the trace has nothing for the table.
    """
    options = ReportOptions()
    if isinstance(getattr(options, table.enabled_by, None), bool):
        options = replace(options, **{table.enabled_by: True})  # type: ignore[arg-type]
    frame = None
    if not table.why_absent(analyzer, options):
        frame = table.build_with(analyzer, options)
    if frame is None:
        raise sqlite3.ProgrammingError(f"the trace has no table {table.name}")
    add_table(connection, table.name, frame)


def _reason(error: Exception, timeout: float) -> str:
    """Return why a query failed, in words for the person who wrote it."""
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
