"""A `Trace` as named columns and JSON, and back: what the cache keeps of it."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from tracelens_ext.trace import (
    NONE,
    PROGRAM_SHIFT,
    ArgColumn,
    Conventions,
    Device,
    EventKind,
    Provenance,
    Trace,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens_ext.cache.file import Column

#: Fields with one number an event, and fields that are lists of texts.
_PER_EVENT = ("ts", "dur", "name", "kind", "thread", "correlation", "external_id", "category")
_TEXT_LISTS = ("names", "categories")
_DTYPES = {"kind": np.uint8, "name": np.int32, "thread": np.int32, "category": np.int32}


def trace_columns(trace: Trace) -> tuple[dict[str, object], dict[str, Column]]:
    """What to keep of a trace: what is kept as JSON, and the columns.

    Raises TypeError or ValueError for what cannot be given back as it was.
    """
    columns: dict[str, Column] = {name: getattr(trace, name) for name in _PER_EVENT + _TEXT_LISTS}
    lists: dict[int, str] = {}  # arguments share their list of texts
    arguments = []
    for number, (name, column) in enumerate(trace.args.items()):
        of_texts = None
        if column.texts is not None:
            of_texts = lists.setdefault(id(column.texts), f"texts {len(lists)}")
            columns[of_texts] = column.texts
        columns[f"rows {number}"], columns[f"values {number}"] = column.rows, column.values
        arguments.append([name, of_texts])
    made = trace.provenance
    provenance = {field.name: getattr(made, field.name) for field in fields(made)}
    columns["instruction rows"] = trace.instructions.rows
    columns["instructions"] = trace.instructions.values
    for number, program in enumerate(trace.programs):
        columns[f"program {number}"] = np.frombuffer(program, dtype=np.uint8)
    about: dict[str, object] = {
        "programs": len(trace.programs),
        "args": arguments,
        "threads": trace.threads,
        "base_ns": trace.base_ns,
        "devices": [asdict(device) for device in trace.devices],
        "metadata": dict(trace.metadata),
        "process_names": list(trace.process_names.items()),
        "process_labels": list(trace.process_labels.items()),
        "thread_names": [[*thread, name] for thread, name in trace.thread_names.items()],
        "provenance": provenance | {"dropped": dict(made.dropped), "notes": list(made.notes)},
        "conventions": asdict(trace.conventions),
        "replays": trace.replays,  # none; JSON refuses others
    }
    if unknown := {field.name for field in fields(trace)} - columns.keys() - about.keys():
        raise TypeError(f"a Trace has fields that the cache does not know: {sorted(unknown)}")
    if repr(json.loads(json.dumps(about["metadata"]))) != repr(about["metadata"]):
        raise ValueError("the metadata has values that JSON does not give back as they were")
    return about, columns


def trace_of(about: Mapping[str, Any], columns: Mapping[str, Column], path: str) -> Trace:
    """The trace that was kept."""
    found = cast("dict[str, Any]", columns)
    try:
        kept = msgspec.convert(about, _Kept)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    args = {
        name: ArgColumn(
            found[f"rows {number}"],
            found[f"values {number}"],
            None if texts is None else found[texts],
        )
        for number, (name, texts) in enumerate(kept.args)
    }
    trace = Trace(
        **{name: found[name] for name in _PER_EVENT + _TEXT_LISTS},
        args=args,
        threads=kept.threads,
        base_ns=kept.base_ns,
        devices=tuple(kept.devices),
        metadata=kept.metadata,
        process_names=dict(kept.process_names),
        process_labels=dict(kept.process_labels),
        thread_names={(process, thread): name for process, thread, name in kept.thread_names},
        provenance=Provenance(**(msgspec.structs.asdict(kept.provenance) | {"path": path})),
        conventions=Conventions(**kept.conventions),
        programs=tuple(found[f"program {i}"].tobytes() for i in range(kept.programs)),
        instructions=ArgColumn(found["instruction rows"], found["instructions"]),
    )
    _check_columns(trace)
    last = len(trace.programs) << PROGRAM_SHIFT
    _check_range("instructions", trace.instructions.values, 0, last)
    return trace


_Label = int | str


class _Made(msgspec.Struct, forbid_unknown_fields=True):
    """A `Provenance`."""

    path: str
    format: str
    bytes_read: int
    present: int
    metadata_events: int
    dropped: dict[str, int]
    notes: tuple[str, ...]


class _Kept(msgspec.Struct):
    """What is kept of a trace as JSON, and its types."""

    programs: int
    args: list[tuple[str, str | None]]
    threads: list[tuple[_Label, _Label]]
    base_ns: int
    devices: list[Device]
    metadata: dict[str, Any]
    process_names: list[tuple[_Label, str]]
    process_labels: list[tuple[_Label, str]]
    thread_names: list[tuple[_Label, _Label, str]]
    provenance: _Made
    conventions: dict[str, Any]


def _check_columns(trace: Trace) -> None:
    """Check that every code stands for something, and that every time is possible."""
    count = len(trace)
    most: dict[str, int | None] = {
        "name": len(trace.names),
        "category": len(trace.categories),
        "thread": len(trace.threads),
        "kind": max(EventKind) + 1,
        "ts": None,
        "dur": None,
    }
    for name in _PER_EVENT:
        column = getattr(trace, name)
        if len(column) != count or column.dtype != _DTYPES.get(name, np.int64):
            raise ValueError(f"the column {name} has another length or type")
        if name in most:
            _check_range(name, column, 0, most[name])
    for name, arg in (*trace.args.items(), ("instructions", trace.instructions)):
        if len(arg.rows) != len(arg.values) or (arg.rows[1:] <= arg.rows[:-1]).any():
            raise ValueError(f"the rows of {name} are not in order")
        _check_range(name, arg.rows, 0, count)
        if arg.texts is not None:
            _check_range(name, arg.values, 0, len(arg.texts))


def check_links(trace: Trace, links: Mapping[str, Column]) -> None:
    """Check that the links of a trace's tree are of events that it has."""
    if not links:
        return
    found = cast("dict[str, Any]", links)
    rows, parent, gpu = found["rows"], found["parent_position"], len(trace.gpu_rows)
    _check_range("rows", rows, 0, len(trace))
    _check_range("parents", parent, -1, None)
    lengths = {len(found["launch_of_gpu"]), len(found["cpu_op_of_gpu"])}
    if len(parent) != len(rows) or (parent >= np.arange(len(rows))).any() or lengths != {gpu}:
        raise ValueError("the links are of another trace")
    for name in ("launch_of_gpu", "cpu_op_of_gpu"):
        _check_range(name, found[name], NONE, len(trace))
        if not np.isin(found[name][found[name] != NONE], rows).all():
            raise ValueError(f"{name} is not in the tree")


def _check_range(name: str, values: Any, least: int, end: int | None) -> None:  # noqa: ANN401
    if len(values) and (values.min() < least or (end is not None and values.max() >= end)):
        raise ValueError(f"{name} is out of range")
