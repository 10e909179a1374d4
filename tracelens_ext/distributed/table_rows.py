"""Access to rows and columns of tables with types that mypy accepts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.trace import Int64Array


def table_rows(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield the rows of a small table as tuples whose fields are its columns, and `Index`."""
    yield from frame.itertuples()


def whole_numbers(frame: pd.DataFrame, column: str) -> Int64Array:
    """Return a column of whole numbers, (n,)."""
    numbers: Int64Array = frame[column].to_numpy(np.int64)
    return numbers
