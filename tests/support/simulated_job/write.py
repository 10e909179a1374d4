"""Writes a trace as text in Kineto's own layout.

Kineto indents by hand: an event's common keys stand on one line, its times on the next, its
arguments on a line of their own, and times have exactly three decimals. Readers that cut a file
into slices, or look at its first lines, meet the same text as in a real trace.
"""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tracelens_ext.errors import UsageError
from tracelens_ext.report.atomic_files import written_beside

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# Which keys share a line, by kind of event.
_LINES = {
    "X": ("ph cat name pid tid", "ts dur"),
    "Trace": ("ph cat ts dur", "pid tid", "name"),
    "M": ("name ph ts pid tid",),
    "memory": ("ph cat s name", "pid tid", "ts"),
    "i": ("name ph s", "pid tid ts"),
    "s": ("ph id pid tid ts", "cat name"),
    "f": ("ph id pid tid ts", "cat name bp"),
}


def trace_text(document: Mapping[str, Any]) -> Iterator[str]:
    """The text of a trace, in pieces."""
    yield "\n{\n"
    for place, (key, value) in enumerate(document.items()):
        yield (",\n" if place else "") + f'  "{key}": '
        if key not in ("traceEvents", "deviceProperties"):
            yield json.dumps(value, ensure_ascii=False)
            continue
        yield "[\n"
        for at, item in enumerate(value):
            yield (",\n" if at else "") + _laid_out(item)
        yield "\n  ]"
    yield "\n}"


def write_trace(document: Mapping[str, Any], path: Path) -> None:
    """Write a trace beside its place and move it there when it is complete.

    Raises:
        UsageError: the name does not end in ``.json`` or ``.json.gz``.
        OutputError: the file cannot be written.
    """
    if not path.name.endswith((".json", ".json.gz")):
        raise UsageError(
            f"{path}: a trace's name ends in .json or .json.gz; choose such a name"
        )
    with written_beside(path) as beside, beside.open("wb") as file:
        text = "".join(trace_text(document)).encode()
        if path.suffix != ".gz":
            file.write(text)
            return
        # Neither a time nor a name in the header, so that equal traces are equal files.
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
            packed.write(text)


def _laid_out(item: Mapping[str, Any]) -> str:
    """An event or device as Kineto lays it out: which keys share a line depends on its kind."""
    if "ph" not in item:
        return f"    {{\n      {_pairs(item)}\n    }}"
    kind = item["ph"]
    if item.get("cat") == "Trace":
        kind = "Trace"
    elif item.get("name") == "[memory]":
        kind = "memory"
    lines = [_pairs({key: item[key] for key in keys.split()}) for keys in _LINES[kind]]
    if "args" in item:
        lines.append(f'"args": {{\n      {_pairs(item["args"])}\n    }}')
    return "  {\n    " + ",\n    ".join(lines) + "\n  }"


def _pairs(mapping: Mapping[str, object]) -> str:
    """Keys and values on one line, times with exactly three decimals."""
    return ", ".join(
        [
            f'"{key}": {value:.3f}'
            if key in ("ts", "dur")
            else f'"{key}": {_value(value)}'
            for key, value in mapping.items()
        ]
    )


def _value(value: object) -> str:
    """A value as JSON; for most, which are a text or a whole number, without asking a library."""
    if type(value) is int:
        return str(value)
    return _text(value) if type(value) is str else _ENCODE(value)


_ENCODE = json.JSONEncoder(ensure_ascii=False).encode
_text = lru_cache(100_000)(_ENCODE)
