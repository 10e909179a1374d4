"""Arguments of CPU operations (shapes, types, strides, scalars) as the tables show them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.analysis.grouping import number_groups
from tracelens_ext.trace import NONE

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens_ext.trace import Int64Array, Trace


def op_argument(
    trace: Trace, rows: npt.NDArray[np.integer], name: str
) -> tuple[Int64Array, list[str]]:
    """An argument of some events.

    Args:
        trace: the events.
        rows: their rows, `NONE` for no event, shape (k,).
        name: the argument's name in the trace, such as `Input Dims`.

    Returns:
        Codes, shape (k,), and the distinct texts: tuples as Python writes them, empty where an
        event has no such argument.
    """
    column = trace.arg(name)
    code = np.where(rows == NONE, NONE, column.at(np.maximum(rows, 0)))
    first, compact = number_groups([code])
    raw = column.texts or []
    return compact, [as_tuples(raw[i]) if i != NONE else "" for i in code[first].tolist()]


def as_tuples(text: str) -> str:
    """`[[4, 3], []]` as `((4, 3), ())`; a text that is no JSON as it is."""

    def convert(value: object) -> object:
        return tuple(map(convert, value)) if isinstance(value, list) else value

    try:
        return repr(convert(json.loads(text)))
    except (ValueError, RecursionError):
        return text
