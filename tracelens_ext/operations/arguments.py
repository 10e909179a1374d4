"""Arguments of CPU operations (shapes, types, strides, scalars) as the tables show them."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tracelens_ext.trace import NONE
from tracelens_ext.work.grouping import number_groups

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens_ext.trace import Int64Array, IntArray, Trace

Value = TypeVar("Value")


def argument_values(
    trace: Trace,
    rows: IntArray,
    name: str,
    convert: Callable[[str], Value],
    missing: Value,
) -> tuple[Int64Array, list[Value]]:
    """An argument of some events, converted once for each distinct text.

    Args:
        trace: the events.
        rows: their rows, `NONE` for no event, shape (k,).
        name: the argument's name in the trace.
        convert: what is made of its raw JSON text.
        missing: what stands for an event that has no such argument.

    Returns:
        Codes, shape (k,), and the values that they stand for.
    """
    column = trace.arg(name)
    code = np.where(rows == NONE, NONE, column.at(np.maximum(rows, 0)))
    first, number = number_groups([code])
    raw = column.texts or []
    return number, [convert(raw[i]) if i != NONE else missing for i in code[first].tolist()]


def op_argument(trace: Trace, rows: IntArray, name: str) -> tuple[Int64Array, list[str]]:
    """An argument of some events, such as `Input Dims`, as a table shows it.

    Returns:
        Codes, shape of `rows`, and the distinct texts: tuples as Python writes them, empty where an
        event has no such argument.
    """
    return argument_values(trace, rows, name, as_tuples, "")


@lru_cache(maxsize=1024)  # the types of operations repeat
def as_tuples(text: str) -> str:
    """`[[4, 3], []]` as `((4, 3), ())`; a text that is no JSON as it is."""
    return parsed(text)[1]


def parsed(text: str) -> tuple[object, str]:
    """What a JSON text stands for, arrays as tuples, and that as Python writes it.

    A text that is no JSON stands for itself.
    """
    try:
        value = _as_tuple(json.loads(text))
        return value, repr(value)
    except (ValueError, RecursionError):
        return text, text


def _as_tuple(value: object) -> object:
    if not isinstance(value, list):
        return value
    return tuple([_as_tuple(v) if isinstance(v, list) else v for v in value])
