"""Rows of tables, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracelens_ext.lazy import pd


def table_rows(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield the rows of a small table as tuples whose fields are its columns, and `Index`."""
    yield from frame.itertuples()
