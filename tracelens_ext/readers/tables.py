"""Defines the interface of a set of tables, of which columns of whole numbers and texts are read.

An SQLite database (`sqlite_columns.py`) and a decoded report of Nsight Systems
(`nsys/report_tables.py`) implement it, so that the same code makes a trace of either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from tracelens_ext.trace import Int64Array

#: Number in a column for a row that has no whole number. As a time it is beyond all limits.
MISSING = -(2**62)


class Equal(NamedTuple):
    """A condition on rows: a column has a certain value."""

    column: str
    value: int


class Tables:
    """A set of named tables.

    A table that does not exist is read as an empty one, a column that does not exist as one of
    missing values.

    Attributes:
        path: the file as the user named it.
        size: the size of the file in bytes.
        tables: the names of the columns of each table.
    """

    path: str
    size: int
    tables: Mapping[str, frozenset[str]]

    def has_rows(self, table: str) -> bool:
        """Return True if a table exists and is not empty."""
        raise NotImplementedError

    def chunks(
        self, table: str, columns: tuple[str, ...], where: Equal | None = None
    ) -> Iterator[dict[str, Int64Array]]:
        """Yield columns of whole numbers in chunks of some hundred thousand rows.

        Args:
            table: the name of the table.
            columns: the names of the columns.
            where: a condition that the rows meet.

        Yields:
            Column → its numbers in consecutive rows, in the order of the table.
        """
        raise NotImplementedError

    def texts(
        self, table: str, column: str, where: Equal | None = None
    ) -> Iterator[bytes | None]:
        """Yield the texts of a column in the order of the table; None for a missing text."""
        raise NotImplementedError

    def look_up(self, table: str, column: str, ids: Int64Array) -> list[str | None]:
        """Return the texts of a column in the rows with the given ids; None for a missing row."""
        raise NotImplementedError

    def words(self, table: str, column: str) -> list[str]:
        """Return the texts of a column; empty texts for missing ones."""
        return [
            (text or b"").decode("utf-8", "replace")
            for text in self.texts(table, column)
        ]

    def pairs(self, table: str, first: str, second: str) -> list[tuple[str, str]]:
        """Return the texts of two columns of a table, row by row."""
        return list(
            zip(self.words(table, first), self.words(table, second), strict=True)
        )

    def whole(self, table: str, *columns: str) -> dict[str, Int64Array]:
        """Return columns of whole numbers with all rows of a table."""
        chunks = list(self.chunks(table, columns))
        empty = np.empty(0, dtype=np.int64)
        whole_columns = {}
        for name in columns:
            parts = [chunk[name] for chunk in chunks]
            whole_columns[name] = np.concatenate([empty] + parts)
        return whole_columns
