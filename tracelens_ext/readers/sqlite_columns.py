"""An SQLite database of a profiler as columns: opened read-only, its content not trusted.

Only real tables and stored columns are read: a view, a virtual table or a generated column of a
hostile file could run any query. A table or a column that is not there is read as empty, since
tables without rows are often absent and every version of a profiler has other columns.
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
_WRITE_VERSION = slice(18, 20)
_WAL = b"\x02\x02"


class OtherDatabaseError(TraceFormatError):
    """The file is a database, of something else."""


class Database(Tables):
    """An open database: a file, or the whole of it; `tables` are each table's columns.

    `format` is what it should be, in words, and `remedy` what to do when it is not, or is damaged.
    Raises TraceNotFoundError, TraceFormatError; OtherDatabaseError of one of something else.
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
            for setting in ("query_only=1", "trusted_schema=0", "cell_size_check=1", "mmap_size=0"):
                self._connection.execute(f"PRAGMA {setting}")
            try:
                self.tables = self._real_tables()
            except (sqlite3.Error, UnicodeDecodeError, MemoryError):
                self._connection.close()
                raise
        if not self._is_ours():
            self.close()
            shown = one_line(", ".join(sorted(self.tables)[:5])) + " …" * (len(self.tables) > 5)
            has = f"its tables: {shown}" if self.tables else "it has no tables"
            problem = f"is an SQLite database, but no {self.format} ({has})"
            raise OtherDatabaseError(self.path, problem, self.remedy)

    @classmethod
    def is_one(cls, path: Path) -> bool | None:
        """Whether a file is such a database; None where that cannot be known: it may be damaged."""
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
        if beside := journal_beside(file):
            problem = f"is being written, or its writer was interrupted ({beside.name} is there)"
            remedy = "wait for its writer to end, or make it again"
            raise TraceFormatError(self.path, problem, remedy)
        name = quote(str(file.absolute()))
        return sqlite3.connect(f"file:{name}?mode=ro&immutable=1", uri=True, isolation_level=None)

    def _real_tables(self) -> dict[str, frozenset[str]]:
        listed = self._connection.execute(
            "SELECT CAST(name AS TEXT) FROM sqlite_master"
            " WHERE type = 'table' AND sql LIKE 'CREATE TABLE%' AND rootpage > 0"
        )
        return {
            name: frozenset(
                _text(row[1])
                for row in self._connection.execute(f"PRAGMA table_xinfo({_quoted(name)})")
                if row[6] == 0  # hidden and generated columns have another number
            )
            for name in [_text(row[0]) for row in listed.fetchall()]
        }

    def _is_ours(self) -> bool:
        """Whether `tables` are those of the format."""
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
        """Say of an error of SQLite which file it is about, and what to do."""
        try:
            yield
        except (sqlite3.Error, MemoryError, UnicodeDecodeError) as error:
            why = one_line(str(error))
            if isinstance(error, MemoryError):  # a length in it that is wrong, as a rule
                why = "it asks for more memory than there is"
            elif isinstance(error, UnicodeDecodeError):  # SQLite quotes what is damaged
                why = "its texts are no UTF-8"
            problem = f"is a damaged SQLite database ({why})"
            raise TraceFormatError(self.path, problem, self.remedy) from None
        except OSError as error:
            raise TraceNotFoundError.of(self.path, error) from None

    def has_rows(self, table: str) -> bool:
        """Whether a table is there and not empty."""
        return any(self._rows(table, ["1"], " LIMIT 1"))

    def count(self, table: str) -> int:
        """How many rows a table has; 0 for one that is not there."""
        return sum(int(count) for [(count,)] in self._rows(table, ["count(*)"]))

    def _rows(self, table: str, wanted: list[str], rest: str = "") -> Iterator[list[Any]]:
        """What a query answers, a batch at a time in the table's order, whatever its indices."""
        if table not in self.tables:
            return
        query = f"SELECT {', '.join(wanted)} FROM {_quoted(table)} NOT INDEXED{rest}"  # noqa: S608  # quoted
        with self._explained():
            cursor = self._connection.execute(query)
        done = 0
        while True:
            with self._explained():
                rows = cursor.fetchmany(_ROWS_AT_ONCE)
                done += len(rows)
                if done > self.size:  # in bytes
                    raise sqlite3.DatabaseError("a table has no end")
            if not rows:
                return
            yield rows

    def chunks(
        self, table: str, columns: tuple[str, ...], where: Equal | None = None
    ) -> Iterator[dict[str, Int64Array]]:
        """Whole numbers of a table, some hundred thousand rows at a time, in the table's order.

        A table that is not there has no rows; `MISSING` is where a row has no whole number. A
        condition is on a column that is certain to be there.
        """
        own = [name for name in columns if name in self.tables.get(table, ())]
        wanted = [_WHOLE.format(_quoted(name), MISSING) for name in own]
        for rows in self._rows(table, wanted or ["1"], _condition(where)):
            cells = np.fromiter(chain.from_iterable(rows), np.int64).reshape(len(rows), -1)
            found = dict(zip(own, np.ascontiguousarray(cells.T), strict=False))
            missing = np.full(len(rows), MISSING, dtype=np.int64)
            yield {name: found.get(name, missing) for name in columns}

    def texts(self, table: str, column: str, where: Equal | None = None) -> Iterator[bytes | None]:
        """The texts of a column in the table's order; None for a row, or a column, without."""
        have = column in self.tables.get(table, ())
        wanted = f"CAST({_quoted(column)} AS TEXT)" if have else "NULL"
        for rows in self._rows(table, [wanted], _condition(where)):
            yield from (text for (text,) in rows)

    def look_up(self, table: str, column: str, ids: Int64Array) -> list[str | None]:
        """The texts of a column that ids of a table stand for; None of one that is not there."""
        if not {"id", column} <= self.tables.get(table, frozenset()):
            return [None] * len(ids)
        wanted = np.unique(ids[ids != MISSING]).tolist()
        found: dict[int, str] = {}
        for at in range(0, len(wanted), _IDS_AT_ONCE):
            listed = ",".join(map(str, wanted[at : at + _IDS_AT_ONCE]))
            wanted_of = ["id", f"CAST({_quoted(column)} AS TEXT)"]
            for rows in self._rows(table, wanted_of, f" WHERE id IN ({listed})"):
                found.update((number, _text(text)) for number, text in rows if text is not None)
        return [found.get(number) for number in ids.tolist()]


_WHOLE = "CASE typeof({0}) WHEN 'integer' THEN {0} ELSE {1} END"


def _condition(where: Equal | None) -> str:
    return f" WHERE {_quoted(where.column)} = {int(where.value)}" if where is not None else ""


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _in_memory(content: bytes) -> sqlite3.Connection:
    """A database of bytes; one that was last written with a write-ahead log is opened without."""
    if content[_WRITE_VERSION] == _WAL:
        content = content[: _WRITE_VERSION.start] + b"\x01\x01" + content[_WRITE_VERSION.stop :]
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(content)
    return connection
