"""One SQL query about a trace: it reads, it ends, and it cannot do anything else."""

from __future__ import annotations

import re
import sqlite3
import time
from typing import TYPE_CHECKING

from tracelens_ext.errors import UsageError
from tracelens_ext.export.database import (
    OWN_NAMES,
    add_table,
    open_database,
    table_of_report,
    tables_of_report,
)
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer

_READS = frozenset(
    (
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
    )
)
_NO_TABLE = re.compile(r"no such table: (?:main\.)?(.+)")
_LONGEST_VALUE = 100_000_000  # bytes
_STEPS = 10_000  # of SQLite's machine between two looks at the clock


def query(
    analyzer: TreePerfAnalyzer,
    sql: str,
    *,
    limit: int,
    timeout: float,
    longest: int = _LONGEST_VALUE,
) -> tuple[pd.DataFrame, bool]:
    """The rows that a query gives, and whether there are more than `limit` of them.

    Tables of the report are made where the query names them. No value is longer than `longest`.

    Raises:
        UsageError: the query is wrong, does more than read, or takes too long.
    """
    connection = open_database(analyzer)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
    try:
        while True:
            try:
                return _answer(connection, sql, limit, timeout)
            except sqlite3.OperationalError as error:
                missing = _NO_TABLE.fullmatch(str(error))
                if missing is None or not _added(connection, analyzer, missing[1]):
                    raise
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
        raise UsageError(f"this SQL is refused: {_reason(error, timeout)}") from None
    except MemoryError:
        raise UsageError("this SQL is refused: there is not enough memory for it") from None
    finally:
        connection.close()


def _answer(
    connection: sqlite3.Connection, sql: str, limit: int, timeout: float
) -> tuple[pd.DataFrame, bool]:
    ends = time.monotonic() + timeout
    connection.set_authorizer(_only_reading)
    connection.set_progress_handler(lambda: time.monotonic() > ends, _STEPS)
    try:
        cursor = connection.execute(sql)
        if cursor.description is None:
            raise sqlite3.ProgrammingError("it is no query; write SELECT …")
        rows = cursor.fetchmany(limit + 1)
        names = [column[0] for column in cursor.description]
    finally:
        connection.set_authorizer(None)
        connection.set_progress_handler(None, 0)
    return pd.DataFrame(rows[:limit], columns=names, dtype=object), len(rows) > limit


def _only_reading(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY


def _added(connection: sqlite3.Connection, analyzer: TreePerfAnalyzer, name: str) -> bool:
    """Whether the table of the report that is missed could be made."""
    wanted = name.lower()
    own = wanted.removeprefix("table_")
    for each, sheet in tables_of_report().items():
        if each.lower() == (own if own in OWN_NAMES else wanted):
            frame = table_of_report(analyzer, sheet)
            if frame is None:
                why = f"the trace has no table {each}"
                raise sqlite3.ProgrammingError(why)
            add_table(connection, each, frame)
            return True
    return False


def _reason(error: Exception, timeout: float) -> str:
    text = " ".join(str(error).split())
    if text == "interrupted":
        return f"it takes more than {timeout:g} s; see --timeout"
    if text in ("not authorized", "authorization denied") or "prohibited" in text:
        return "it does more than read"
    if text.startswith("no such table"):
        return f"{text}; 'tracelens-ext sql --schema' lists them"
    return text
