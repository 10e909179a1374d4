"""Arguments of operations, which are parsed once for each distinct text."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from tracelens_ext.trace import NONE, Int64Array, IntArray, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.grouping import number_groups

#: Arguments by which tables distinguish launches of one operation.
ARGUMENTS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")

Value = TypeVar("Value")


class ArgumentValues(NamedTuple, Generic[Value]):
    """The values that an argument has in n events."""

    code: Int64Array  #: index into `values`, (n,)
    values: list[Value]


class ParsedArgument(NamedTuple):
    """The parsed value of an argument."""

    value: object  #: the JSON value, with arrays as tuples; a text that is not JSON stays a text
    text: str  #: the value as a Python literal: `((4, 3), ())`


def argument_values(
    trace: Trace,
    rows: IntArray,
    name: str,
    convert: Callable[[str], Value],
    missing: Value,
) -> ArgumentValues[Value]:
    """Return an argument of events, converted once for each distinct text.

    Args:
        trace: the trace.
        rows: the events, (n,); `NONE` stands for no event.
        name: the name of the argument.
        convert: function that makes a value of the JSON text of an argument.
        missing: the value for an event without the argument, and for `NONE`.
    """
    column = trace.arg(name)
    text_of_row = np.where(rows == NONE, NONE, column.at(np.maximum(rows, 0)))
    first, code = number_groups([text_of_row])
    all_texts = column.texts or []
    values: list[Value] = []
    for text_index in text_of_row[first].tolist():
        if text_index == NONE:
            values.append(missing)
        else:
            values.append(convert(all_texts[text_index]))
    return ArgumentValues(code, values)


def op_argument(trace: Trace, rows: IntArray, name: str) -> ArgumentValues[str]:
    """Return an argument of events, such as `Input Dims`, as the text that tables show.

    Arrays are shown as tuples: `[[4, 3], []]` as `((4, 3), ())`. An event without the argument has
    an empty text.
    """
    return argument_values(
        trace=trace, rows=rows, name=name, convert=_text_maker(trace), missing=""
    )


@cached_per_object
def _text_maker(_: Trace) -> Callable[[str], str]:
    """Return a function that makes the text to show, and remembers it for other tables."""
    return cache(lambda text: parsed(text).text)


def parsed(text: str) -> ParsedArgument:
    """Parse the JSON text of an argument."""
    try:
        value = _as_tuple(json.loads(text))
        return ParsedArgument(value, repr(value))
    except (ValueError, RecursionError):
        return ParsedArgument(text, text)


def _as_tuple(value: object) -> object:
    """Return a JSON value with arrays at all levels as tuples."""
    if isinstance(value, list):
        return tuple(map(_as_tuple, value))
    return value
