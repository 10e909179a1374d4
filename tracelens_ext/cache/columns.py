"""A `Trace` as named columns and JSON, and back: what the cache keeps of it."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tracelens_ext.trace import ArgColumn, Conventions, Device, Provenance, Trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens_ext.cache.file import Column

#: Fields with one number an event, and fields that are lists of texts.
_PER_EVENT = ("ts", "dur", "name", "kind", "thread", "correlation", "external_id", "category")
_TEXT_LISTS = ("names", "categories")


def trace_columns(trace: Trace) -> tuple[dict[str, object], dict[str, Column]]:
    """What to keep of a trace.

    Returns:
        What is kept as JSON, and the columns.

    Raises:
        TypeError, ValueError: something in it cannot be kept and given back as it was.
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
    about: dict[str, object] = {
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
    }
    if unknown := {field.name for field in fields(trace)} - columns.keys() - about.keys():
        raise TypeError(f"a Trace has fields that the cache does not know: {sorted(unknown)}")
    if repr(json.loads(json.dumps(about["metadata"]))) != repr(about["metadata"]):
        raise ValueError("the metadata has values that JSON does not give back as they were")
    return about, columns


def trace_of(about: Mapping[str, Any], columns: Mapping[str, Column], path: str) -> Trace:
    """The trace that was kept.

    Raises:
        KeyError, TypeError, ValueError: it does not hold together.
    """
    found = cast("dict[str, Any]", columns)
    rows = {len(found[name]) for name in _PER_EVENT}
    if len(rows) != 1 or not all(isinstance(found[name], np.ndarray) for name in _PER_EVENT):
        raise ValueError("its columns differ in length")
    args = {
        name: ArgColumn(
            found[f"rows {number}"],
            found[f"values {number}"],
            None if texts is None else found[texts],
        )
        for number, (name, texts) in enumerate(about["args"])
    }
    made = about["provenance"]
    provenance = Provenance(**(made | {"notes": tuple(made["notes"])}))
    return Trace(
        **{name: found[name] for name in _PER_EVENT + _TEXT_LISTS},
        args=args,
        threads=[(process, thread) for process, thread in about["threads"]],
        base_ns=about["base_ns"],
        devices=tuple(Device(**device) for device in about["devices"]),
        metadata=about["metadata"],
        process_names=dict(about["process_names"]),
        process_labels=dict(about["process_labels"]),
        thread_names={(process, thread): name for process, thread, name in about["thread_names"]},
        provenance=replace(provenance, path=path),
        conventions=Conventions(**about["conventions"]),
    )
