"""Tables of whole numbers and texts, wherever they are stored: what the Nsight readers read.

An SQLite database (`sqlite_columns.py`) and a decoded report (`nsys/report_tables.py`) offer the
same methods, so that one reader makes a trace of either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from tracelens_ext.trace import Int64Array

#: What a column holds where a row has no whole number; as a time it is beyond all limits.
MISSING = -(2**62)


class Equal(NamedTuple):
    """A condition on rows: a column has this value."""

    column: str
    value: int


class Tables:
    """Named tables; one that is not there is read as empty, a column that is not there as missing.

    Attributes: `path`, as the user named the file; `size` of the file in bytes; `tables`, the
    columns of each table.
    """

    path: str
    size: int
    tables: Mapping[str, frozenset[str]]

    def has_rows(self, table: str) -> bool:
        """Return True if a table is there and not empty."""
        raise NotImplementedError

    def chunks(
        self, table: str, columns: tuple[str, ...], where: Equal | None = None
    ) -> Iterator[dict[str, Int64Array]]:
        """Whole numbers of a table, some hundred thousand rows at a time, in the table's order."""
        raise NotImplementedError

    def texts(
        self, table: str, column: str, where: Equal | None = None
    ) -> Iterator[bytes | None]:
        """The texts of a column in the table's order; None for a row, or a column, without."""
        raise NotImplementedError

    def look_up(self, table: str, column: str, ids: Int64Array) -> list[str | None]:
        """The texts of a column that ids of a table stand for; None of one that is not there."""
        raise NotImplementedError

    def words(self, table: str, column: str) -> list[str]:
        """The texts of a column; empty ones where there are none."""
        return [
            (text or b"").decode("utf-8", "replace")
            for text in self.texts(table, column)
        ]

    def pairs(self, table: str, first: str, second: str) -> list[tuple[str, str]]:
        """The texts of two columns of a table, row by row."""
        return list(
            zip(self.words(table, first), self.words(table, second), strict=True)
        )

    def whole(self, table: str, *columns: str) -> dict[str, Int64Array]:
        """Whole numbers of all rows; otherwise as `chunks`."""
        chunks = list(self.chunks(table, columns))
        empty = np.empty(0, dtype=np.int64)
        return {
            name: np.concatenate([empty] + [c[name] for c in chunks])
            for name in columns
        }
