"""Reads columns of a profiler's SQLite database, which is opened read-only and not trusted.

Only real tables and stored columns are read, because a view, a virtual table or a generated column
of a hostile file could run any query. A missing table or column is read as empty: profilers often
leave out tables without rows, and each version of a profiler has different columns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import quote

import numpy as np

from tracelens_ext.errors import TraceError, TraceFormatError, TraceNotFoundError
from tracelens_ext.readers.cache.folder import journal_beside
from tracelens_ext.readers.source import SQLITE_MAGIC
from tracelens_ext.readers.tables import MISSING, Equal, Tables
from tracelens_ext.text import one_line
from tracelens_ext.trace import Int64Array

_ROWS_AT_ONCE = 1 << 17
_IDS_AT_ONCE = 20_000
#: Bytes of the header that say how the database is written, and their two values.
_WRITE_VERSION = slice(18, 20)
_WRITE_AHEAD_LOG = b"\x02\x02"
_ROLLBACK_JOURNAL = b"\x01\x01"
_SETTINGS = ("query_only=1", "trusted_schema=0", "cell_size_check=1", "mmap_size=0")
#: A message about an unknown database names this many of its tables.
_TABLES_IN_MESSAGE = 5
#: SQL for the whole number in a column (0), or a substitute (1) if a row has none.
_WHOLE_NUMBER = "CASE typeof({0}) WHEN 'integer' THEN {0} ELSE {1} END"


class OtherDatabaseError(TraceFormatError):
    """The file is a database of another program."""


class Database(Tables):
    """An open database. Each supported kind of database is a subclass.

    Args:
        path: the name of the file in messages.
        source: the path of the database, or its bytes.

    Attributes:
        format: the name of this kind of database in messages.
        remedy: what the user should do if the file is something else, or damaged.
        path: the name of the file in messages.
        size: the size of the database in bytes.
        tables: the names of the columns of each table.

    Raises:
        TraceNotFoundError: the file cannot be opened.
        TraceFormatError: it is damaged, or is being written.
        OtherDatabaseError: it is a database of another program.
    """

    format: ClassVar[str]
    remedy: ClassVar[str]

    def __init__(self, path: str, source: Path | bytes) -> None:
        self.path = path
        with self._explained():
            if isinstance(source, bytes):
                self.size = len(source)
                self._connection = _in_memory(source)
            else:
                self.size = source.stat().st_size
                self._connection = self._open(source)
            self._connection.text_factory = bytes
            for setting in _SETTINGS:
                self._connection.execute(f"PRAGMA {setting}")
            try:
                self.tables = self._real_tables()
            except (sqlite3.Error, UnicodeDecodeError, MemoryError):
                self._connection.close()
                raise
        if not self._is_ours():
            self.close()
            article = "an" if self.format.startswith("Nsight") else "a"
            problem = (
                f"is an SQLite database, but not {article} {self.format} "
                f"({self._tables_in_words()})"
            )
            raise OtherDatabaseError(self.path, problem, self.remedy)

    def _tables_in_words(self) -> str:
        """Return a clause that names some of the tables."""
        if not self.tables:
            return "it has no tables"
        names = sorted(self.tables)
        words = one_line(", ".join(names[:_TABLES_IN_MESSAGE]))
        if len(names) > _TABLES_IN_MESSAGE:
            words += " …"
        return f"its tables: {words}"

    @classmethod
    def is_one(cls, path: Path) -> bool | None:
        """Return True if a file is a database of this kind; None if it is damaged or unreadable."""
        try:
            with path.open("rb") as file:
                if file.read(len(SQLITE_MAGIC)) != SQLITE_MAGIC:
                    return None
            cls(str(path), path).close()
        except OtherDatabaseError:
            return False
        except (OSError, TraceError):
            return None
        return True

    def _open(self, file: Path) -> sqlite3.Connection:
        """Open a database read-only; refuse one that is being written."""
        journal = journal_beside(file)
        if journal:
            problem = (
                f"is being written, or its writer was interrupted ({journal.name} "
                "exists)"
            )
            remedy = "wait until it is written, or create it again"
            raise TraceFormatError(self.path, problem, remedy)
        name = quote(str(file.absolute()))
        return sqlite3.connect(
            f"file:{name}?mode=ro&immutable=1", uri=True, isolation_level=None
        )

    def _real_tables(self) -> dict[str, frozenset[str]]:
        """Return the stored columns of each table, without views and virtual tables."""
        rows = self._connection.execute(
            "SELECT CAST(name AS TEXT) FROM sqlite_master"
            " WHERE type = 'table' AND sql LIKE 'CREATE TABLE%' AND rootpage > 0"
        )
        names = [_text(row[0]) for row in rows.fetchall()]
        return {name: self._stored_columns(name) for name in names}

    def _stored_columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table, without hidden and generated ones."""
        columns = set()
        for row in self._connection.execute(f"PRAGMA table_xinfo({_quoted(table)})"):
            name = row[1]
            hidden_or_generated = row[6]
            if not hidden_or_generated:
                columns.add(_text(name))
        return frozenset(columns)

    def _is_ours(self) -> bool:
        """Return True if the database, by its `tables`, is of this kind."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Convert errors of SQLite to errors that name the file and say what to do."""
        try:
            yield
        except (sqlite3.Error, MemoryError, UnicodeDecodeError) as error:
            reason = one_line(str(error))
            if isinstance(error, MemoryError):  # usually because a length is damaged
                reason = "it requests more memory than is available"
            elif isinstance(error, UnicodeDecodeError):
                # The error is about a message of SQLite that quotes the file.
                reason = "its text is not UTF-8"
            problem = f"is a damaged SQLite database ({reason})"
            raise TraceFormatError(self.path, problem, self.remedy) from None
        except OSError as error:
            raise TraceNotFoundError.of(self.path, error) from None

    def has_rows(self, table: str) -> bool:
        """Return True if a table exists and has a row."""
        return any(self._rows(table, ["1"], " LIMIT 1"))

    def count(self, table: str) -> int:
        """Return the number of rows of a table; 0 if it does not exist."""
        return sum(int(count) for [(count,)] in self._rows(table, ["count(*)"]))

    def _rows(
        self, table: str, expressions: list[str], where: str = ""
    ) -> Iterator[list[Any]]:
        """Yield the rows of a query in batches, in the order of the table.

        Args:
            table: the name of the table; one that does not exist has no rows.
            expressions: the SQL expressions to select.
            where: the rest of the query, such as a condition.
        """
        if table not in self.tables:
            return
        selected = ", ".join(expressions)
        query = f"SELECT {selected} FROM {_quoted(table)} NOT INDEXED{where}"  # noqa: S608  # quoted
        with self._explained():
            cursor = self._connection.execute(query)
        row_count = 0
        while True:
            with self._explained():
                rows = cursor.fetchmany(_ROWS_AT_ONCE)
                row_count += len(rows)
                # A row takes at least a byte, so more rows mean that the table is a circle.
                if row_count > self.size:
                    raise sqlite3.DatabaseError("a table has no end")
            if not rows:
                return
            yield rows

    def chunks(
        self, table: str, columns: tuple[str, ...], where: Equal | None = None
    ) -> Iterator[dict[str, Int64Array]]:
        """Yield columns of whole numbers in chunks of some hundred thousand rows.

        Args:
            table: the name of the table; one that does not exist has no rows.
            columns: the names of the columns.
            where: a condition that the rows meet; its column must exist.

        Yields:
            Column → its numbers in consecutive rows, in the order of the table, with `MISSING` for
            a row without a whole number.
        """
        stored_columns = self.tables.get(table, frozenset())
        stored = [name for name in columns if name in stored_columns]
        expressions = [_WHOLE_NUMBER.format(_quoted(name), MISSING) for name in stored]
        if not expressions:
            expressions = ["1"]
        for rows in self._rows(table, expressions, _condition(where)):
            cells = np.fromiter(chain.from_iterable(rows), np.int64)
            cells_by_column = np.ascontiguousarray(cells.reshape(len(rows), -1).T)
            chunk = {
                name: np.full(len(rows), MISSING, dtype=np.int64) for name in columns
            }
            chunk.update(zip(stored, cells_by_column, strict=False))
            yield chunk

    def texts(
        self, table: str, column: str, where: Equal | None = None
    ) -> Iterator[bytes | None]:
        """Yield the texts of a column in the order of the table; None for a missing text."""
        expression = "NULL"
        if column in self.tables.get(table, frozenset()):
            expression = f"CAST({_quoted(column)} AS TEXT)"
        for rows in self._rows(
            table=table, expressions=[expression], where=_condition(where)
        ):
            for (text,) in rows:
                yield text

    def look_up(self, table: str, column: str, ids: Int64Array) -> list[str | None]:
        """Return the texts of a column in the rows with the given ids; None for a missing row."""
        columns = self.tables.get(table, frozenset())
        if not {"id", column} <= columns:
            return [None] * len(ids)
        expressions = ["id", f"CAST({_quoted(column)} AS TEXT)"]
        known_ids = ids[ids != MISSING]
        distinct_ids = np.unique(known_ids).tolist()
        text_of_id: dict[int, str] = {}
        for first in range(0, len(distinct_ids), _IDS_AT_ONCE):
            some_ids = distinct_ids[first : first + _IDS_AT_ONCE]
            listed = ",".join(map(str, some_ids))
            condition = f" WHERE id IN ({listed})"
            for rows in self._rows(table, expressions, condition):
                for number, text in rows:
                    if text is None:
                        continue
                    text_of_id[number] = _text(text)
        return [text_of_id.get(number) for number in ids.tolist()]


def _condition(where: Equal | None) -> str:
    """Return a condition in SQL; empty for no condition."""
    if where is None:
        return ""
    return f" WHERE {_quoted(where.column)} = {int(where.value)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _in_memory(content: bytes) -> sqlite3.Connection:
    """Open the bytes of a database.

    SQLite cannot open bytes that were written with a write-ahead log, so the header is changed to
    say that they were written with a rollback journal.
    """
    if content[_WRITE_VERSION] == _WRITE_AHEAD_LOG:
        before = content[: _WRITE_VERSION.start]
        after = content[_WRITE_VERSION.stop :]
        content = before + _ROLLBACK_JOURNAL + after
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(content)
    return connection
