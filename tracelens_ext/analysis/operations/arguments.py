"""Arguments of operations: parsed once for each distinct text, and shown as Python writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from tracelens_ext.trace import NONE, Int64Array, IntArray, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.grouping import number_groups

#: Arguments that tell two launches of one operation apart.
ARGUMENTS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")

Value = TypeVar("Value")


class ArgumentValues(NamedTuple, Generic[Value]):
    """An argument of n events."""

    code: Int64Array  #: index into `values`, (n,)
    values: list[Value]


class ParsedArgument(NamedTuple):
    """What the text of an argument stands for."""

    value: object  #: arrays as tuples; a text that is not JSON stands for itself
    text: str  #: the value as Python writes it


def argument_values(
    trace: Trace,
    rows: IntArray,
    name: str,
    convert: Callable[[str], Value],
    missing: Value,
) -> ArgumentValues[Value]:
    """Return an argument of some events, converted once for each distinct text.

    Args:
        trace: the trace.
        rows: the events; `NONE` has no arguments, (n,).
        name: the argument.
        convert: makes a value of the JSON text of an argument.
        missing: the value of an event without the argument.
    """
    column = trace.arg(name)
    text_number = np.where(rows == NONE, NONE, column.at(np.maximum(rows, 0)))
    first, code = number_groups([text_number])
    distinct_texts = column.texts or []
    values = [
        missing if number == NONE else convert(distinct_texts[number])
        for number in text_number[first].tolist()
    ]
    return ArgumentValues(code, values)


def op_argument(trace: Trace, rows: IntArray, name: str) -> ArgumentValues[str]:
    """Return an argument of some events, such as `Input Dims`, as a table shows it.

    Tuples as Python writes them, empty where an event has none.
    """
    return argument_values(
        trace=trace, rows=rows, name=name, convert=_shown_once(trace), missing=""
    )


@cached_per_object
def _shown_once(_: Trace) -> Callable[[str], str]:
    """`[[4, 3], []]` as `((4, 3), ())`, each text once: several tables show the same."""
    return cache(lambda text: parsed(text).text)


def parsed(text: str) -> ParsedArgument:
    """Return what the JSON text of an argument stands for."""
    try:
        value = _as_tuple(json.loads(text))
        return ParsedArgument(value, repr(value))
    except (ValueError, RecursionError):
        return ParsedArgument(text, text)


def _as_tuple(value: object) -> object:
    if isinstance(value, list):
        return tuple(map(_as_tuple, value))
    return value
