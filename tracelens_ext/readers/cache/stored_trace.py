"""Converts a `Trace` to columns and JSON that the cache can store, and back.

The cache may be damaged, so `check` verifies that a restored trace is consistent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens_ext.readers.cache.file import Array, Column
from tracelens_ext.trace import NONE, PROGRAM_SHIFT, ArgColumn, EventKind, Trace

#: Fields of a `Trace` with one number per event → their types.
_PER_EVENT: Mapping[str, npt.DTypeLike] = {
    "ts": np.int64,
    "dur": np.int64,
    "correlation": np.int64,
    "external_id": np.int64,
    "name": np.int32,
    "thread": np.int32,
    "category": np.int32,
    "kind": np.uint8,
}
#: All fields that are columns: the last two are lists of texts.
_FIELDS = tuple(_PER_EVENT) + ("names", "categories")


class StoredTrace(NamedTuple):
    """A trace in the form in which it is stored."""

    about: dict[str, object]  #: all that is not a column, as JSON
    columns: dict[str, Column]


def trace_columns(trace: Trace) -> StoredTrace:
    """Return a trace in the form in which it is stored.

    Raises:
        TypeError, ValueError: the trace cannot be stored.
    """
    columns: dict[str, Column] = {name: getattr(trace, name) for name in _FIELDS}
    about: dict[str, object] = {}
    for field in fields(trace):
        if field.name not in columns:
            about[field.name] = getattr(trace, field.name)
    column_of_texts: dict[
        int, str
    ] = {}  # arguments share lists of texts, which are stored once
    texts_of_arguments: list[str | None] = []
    arguments = list(trace.args.values())
    arguments.append(trace.instructions)
    for number, column in enumerate(arguments):
        columns[f"rows {number}"] = column.rows
        columns[f"values {number}"] = column.values
        texts = None
        if column.texts is not None:
            new_name = f"texts {len(column_of_texts)}"
            texts = column_of_texts.setdefault(id(column.texts), new_name)
            columns[texts] = column.texts
        texts_of_arguments.append(texts)
    for number, program in enumerate(trace.programs):
        columns[f"program {number}"] = np.frombuffer(program, dtype=np.uint8)
    about |= {
        "args": list(zip(trace.args, texts_of_arguments, strict=False)),
        "instructions": None,
        "metadata": dict(trace.metadata),
        "programs": len(trace.programs),
        "process_names": list(trace.process_names.items()),
        "process_labels": list(trace.process_labels.items()),
        "thread_names": list(trace.thread_names.items()),
    }
    if repr(json.loads(json.dumps(about["metadata"]))) != repr(about["metadata"]):
        raise ValueError(
            "the metadata has values that JSON does not give back as they were"
        )
    return StoredTrace(about, columns)


def trace_of(
    about: Mapping[str, Any], columns: Mapping[str, Column], path: str
) -> Trace:
    """Return a stored trace.

    Args:
        about: all that is not a column.
        columns: the columns.
        path: the file of the trace as the user named it.

    Raises:
        One of `DAMAGE`: the data is damaged.
    """
    stored = cast("dict[str, Any]", columns)
    args = {}
    for number, (name, texts) in enumerate(about["args"]):
        args[name] = _stored_argument(stored, number, texts)
    program_columns = [stored[f"program {n}"] for n in range(about["programs"])]
    members = {
        **about,
        **{name: stored[name] for name in _FIELDS},
        "args": args,
        "instructions": _stored_argument(stored, len(about["args"]), None),
        "programs": [column.tobytes() for column in program_columns],
        "process_names": dict(about["process_names"]),
        "process_labels": dict(about["process_labels"]),
        "thread_names": {tuple(thread): name for thread, name in about["thread_names"]},
        "provenance": {**about["provenance"], "path": path},
    }
    return msgspec.convert(members, Trace)


def _stored_argument(
    columns: Mapping[str, Any], number: int, texts: str | None
) -> ArgColumn:
    """Return an argument, given its number and the name of the column with its texts."""
    texts_of_argument = None
    if texts is not None:
        texts_of_argument = columns[texts]
    return ArgColumn(
        rows=columns[f"rows {number}"],
        values=columns[f"values {number}"],
        texts=texts_of_argument,
    )


def check(trace: Trace, links: Mapping[str, Column]) -> None:
    """Verify that all codes, times and links of a stored trace are possible.

    Args:
        trace: the trace.
        links: the links of its call tree; empty if they were not stored.

    Raises:
        One of `DAMAGE`: a code or a link has no counterpart, or a time is negative.
    """
    ends = {
        "name": len(trace.names),
        "category": len(trace.categories),
        "thread": len(trace.threads),
        "kind": max(EventKind) + 1,
    }
    for name, dtype in _PER_EVENT.items():
        column = getattr(trace, name)
        if len(column) != len(trace) or column.dtype != dtype:
            raise ValueError(f"the column {name} has another length or type")
        if name not in ("correlation", "external_id"):
            _check_range(name=name, values=column, least=0, end=ends.get(name))
    for name, argument in trace.args.items():
        _check_argument(name, argument, len(trace))
    _check_argument(name="instructions", argument=trace.instructions, count=len(trace))
    end_of_instructions = len(trace.programs) << PROGRAM_SHIFT
    _check_range(
        name="instructions",
        values=trace.instructions.values,
        least=0,
        end=end_of_instructions,
    )
    if links:
        _check_links(trace, links)


def _check_argument(name: str, argument: ArgColumn, count: int) -> None:
    """Raise ValueError unless rows ascend, and rows and codes of texts are in range."""
    rows = argument.rows
    has_same_length = len(rows) == len(argument.values)
    is_in_order = (rows[1:] > rows[:-1]).all()
    if not (has_same_length and is_in_order):
        raise ValueError(f"the rows of {name} are not in order")
    _check_range(name=name, values=rows, least=0, end=count)
    if argument.texts is not None:
        _check_range(
            name=name, values=argument.values, least=0, end=len(argument.texts)
        )


def _check_links(trace: Trace, links: Mapping[str, Column]) -> None:
    """Raise ValueError unless the links of a call tree belong to a trace."""
    count = len(trace)
    rows = cast("Array", links["rows"])
    parent = cast("Array", links["parent_position"])
    _check_range(name="rows", values=rows, least=0, end=count)
    _check_range(name="parents", values=parent, least=-1, end=None)
    if len(parent) != len(rows) or (parent >= np.arange(len(rows))).any():
        raise ValueError("the links are of another trace")
    for name in ("launch_of_gpu", "cpu_op_of_gpu"):
        linked = cast("Array", links[name])
        _check_range(name=name, values=linked, least=NONE, end=count)
        if (
            len(linked) != len(trace.gpu_rows)
            or not np.isin(linked[linked != NONE], rows).all()
        ):
            raise ValueError("what launched GPU events is not in the tree")


def _check_range(name: str, values: Array, least: int, end: int | None) -> None:
    """Raise ValueError unless all values are at least `least` and below `end`."""
    if not len(values):
        return
    is_too_small = values.min() < least
    is_too_large = end is not None and values.max() >= end
    if is_too_small or is_too_large:
        raise ValueError(f"{name} is out of range")
