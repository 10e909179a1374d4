"""Columns of a database give exact whole numbers; all other values count as missing."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens_ext.readers import sqlite_columns
from tracelens_ext.readers.builder import distinct_rows
from tracelens_ext.readers.sqlite_columns import Database
from tracelens_ext.readers.tables import MISSING

if TYPE_CHECKING:
    import pytest

_WHOLE = st.integers(-(2**63), 2**63 - 1)
_ANYTHING = st.one_of(
    _WHOLE,
    st.none(),
    st.floats(allow_nan=False),
    st.text("0123,- x", max_size=4),
    st.binary(),
)


class AnyDatabase(Database):
    format = "database"
    remedy = "make it again"

    def _is_ours(self) -> bool:
        return True


def read(rows: list[tuple[Any, Any]]) -> list[tuple[int, ...]]:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (a, b)")
    connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
    connection.commit()
    with AnyDatabase("<memory>", connection.serialize()) as database:
        assert database.count("t") == len(rows)
        chunks = list(database.chunks("t", ("b", "absent", "a")))
    connection.close()
    assert all((chunk["absent"] == MISSING).all() for chunk in chunks)
    return [
        row
        for c in chunks
        for row in zip(c["a"].tolist(), c["b"].tolist(), strict=True)
    ]


@given(st.lists(st.tuples(_ANYTHING, _ANYTHING), max_size=8))
def test_only_whole_numbers_are_read(rows: list[tuple[Any, Any]]) -> None:
    expected = [
        tuple(v if isinstance(v, int) else MISSING for v in row) for row in rows
    ]
    found = read(rows)
    for one, other, row in zip(found, expected, rows, strict=True):
        for value, wanted, stored in zip(one, other, row, strict=True):
            # A text of digits may pass for the number that it spells.
            assert value == wanted or (
                isinstance(stored, str | bytes) and value == int(stored)
            )


def test_columns_are_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_columns, "_ROWS_AT_ONCE", 3)
    rows: list[tuple[Any, Any]] = [(number, -number) for number in range(10)]
    assert read(rows) == rows
    rows[7] = ("x", 1.5)
    assert read(rows) == [*rows[:7], (MISSING, MISSING), *rows[8:]]
    assert read([]) == []


def test_columns_that_are_absent_can_be_changed_one_by_one() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (a)")
    connection.execute("INSERT INTO t VALUES (1)")
    connection.commit()
    with AnyDatabase("<memory>", connection.serialize()) as database:
        (chunk,) = database.chunks("t", ("absent", "absent_too"))
    connection.close()
    chunk["absent"][0] = 7
    assert chunk["absent_too"].tolist() == [MISSING]


@given(st.data(), st.integers(1, 3), st.integers(0, 20))
def test_distinct_rows_are_numbered(
    data: st.DataObject, columns: int, rows: int
) -> None:
    numbers = st.one_of(st.integers(0, 3), st.sampled_from([MISSING, -5, 2**40]))
    table = [
        data.draw(st.lists(numbers, min_size=rows, max_size=rows))
        for _ in range(columns)
    ]
    distinct, number = distinct_rows(
        *(np.array(column, dtype=np.int64) for column in table)
    )
    assert [distinct[n] for n in number.tolist()] == list(zip(*table, strict=True))
    assert len(set(distinct)) == len(distinct)
