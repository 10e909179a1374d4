"""Writes a trace as text in Kineto's own layout.

Kineto indents by hand: an event's common keys stand on one line, its times on the next, its
arguments on a line of their own, and times have exactly three decimals. Readers that cut a file
into slices, or look at its first lines, meet the same text as in a real trace.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tracelens_ext.demo.events import MARKER
from tracelens_ext.errors import UsageError
from tracelens_ext.report.atomic import written_beside

if TYPE_CHECKING:
    import io
    from pathlib import Path

_TIMES = ("ts", "dur")
_SPAN_LINES = (("ph", "cat", "name", "pid", "tid"), ("ts", "dur"))
_PROFILER_LINES = (("ph", "cat", "ts", "dur"), ("pid", "tid"), ("name",))
_NAME_LINES = (("name", "ph", "ts", "pid", "tid"),)
_FLOW_LINES = (("ph", "id", "pid", "tid", "ts"), ("cat", "name", "bp"))
_INSTANT_LINES = (("ph", "cat", "s", "name"), ("pid", "tid"), ("ts",))
_MARK_LINES = (("name", "ph", "s"), ("pid", "tid", "ts"))
_DEVICE_LINES = (
    ("id", "name", "totalGlobalMem"),
    ("computeMajor", "computeMinor"),
    ("maxThreadsPerBlock", "maxThreadsPerMultiprocessor"),
    ("regsPerBlock", "warpSize"),
    ("sharedMemPerBlock", "numSms"),
)
_BATCH = 2048
_LOOK_BYTES = 16384


def trace_text(document: Mapping[str, object]) -> Iterator[str]:
    """The text of a trace, in pieces.

    Args:
        document: the trace as `build_demo_trace` returns it.
    """
    yield "\n{\n"
    separator = ""
    for key, value in document.items():
        yield f'{separator}  "{key}": '
        if key == "traceEvents" and isinstance(value, list):
            yield "[\n"
            yield from _joined([_event(event) for event in value])
            yield "\n  ]"
        elif key == "deviceProperties" and isinstance(value, list):
            yield "[\n" + ",\n".join(_device(device) for device in value) + "\n  ]"
        else:
            yield _json(value)
        separator = ",\n"
    yield "\n}"


def write_trace(document: Mapping[str, object], path: Path) -> None:
    """Write a trace beside its place and move it there when it is complete.

    Args:
        document: the trace.
        path: ends in ``.json`` or ``.json.gz``.

    Raises:
        UsageError: the name has another ending.
        OutputError: the file cannot be written.
    """
    if not path.name.endswith((".json", ".json.gz")):
        raise UsageError(f"{path}: a trace's name ends in .json or .json.gz; choose such a name")
    with written_beside(path) as beside, beside.open("wb") as file:
        _write(document, file, compressed=path.suffix == ".gz")


def starts_like_demo(path: Path) -> bool:
    """Whether the first lines of a file carry the demo's mark."""
    if not path.is_file():
        return False
    opener = gzip.open if path.name.endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            beginning = file.read(_LOOK_BYTES)
    except (OSError, EOFError, zlib.error):
        return False
    return f'"{MARKER}":'.encode() in beginning


def _write(document: Mapping[str, object], file: io.BufferedIOBase, *, compressed: bool) -> None:
    if not compressed:
        file.writelines(piece.encode() for piece in trace_text(document))
        return
    # Neither a time nor a name in the header, so that equal traces are equal files.
    with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) as stream:
        for piece in trace_text(document):
            stream.write(piece.encode())


def _joined(events: list[str]) -> Iterator[str]:
    """The events with commas between them, some thousand at a time."""
    for start in range(0, len(events), _BATCH):
        if start:
            yield ",\n"
        yield ",\n".join(events[start : start + _BATCH])


def _device(device: Mapping[str, object]) -> str:
    """One entry of deviceProperties; what only some devices have follows on a line of its own."""
    lines = [_pairs({key: device[key] for key in keys}) for keys in _DEVICE_LINES]
    text = "    {\n      " + ",\n      ".join(lines)
    known = {key for keys in _DEVICE_LINES for key in keys}
    rest = {key: value for key, value in device.items() if key not in known}
    return f"{text}\n    , {_pairs(rest)}\n    }}"


def _event(event: Mapping[str, object]) -> str:
    """One event as Kineto lays it out: which keys share a line depends on its kind."""
    lines = [_pairs({key: event[key] for key in keys if key in event}) for keys in _lines(event)]
    args = event.get("args")
    if isinstance(args, Mapping):
        lines.append(f'"args": {{\n      {_pairs(args)}\n    }}')
    return "  {\n    " + ",\n    ".join(lines) + "\n  }"


def _lines(event: Mapping[str, object]) -> tuple[tuple[str, ...], ...]:
    phase = event["ph"]
    if phase == "X":
        return _PROFILER_LINES if event["cat"] == "Trace" else _SPAN_LINES
    if phase == "M":
        return _NAME_LINES
    if phase == "i":
        return _INSTANT_LINES if "cat" in event else _MARK_LINES
    return _FLOW_LINES


def _pairs(mapping: Mapping[str, object]) -> str:
    """Keys and values on one line, times with exactly three decimals."""
    return ", ".join(
        f'"{key}": {value:.3f}' if key in _TIMES else f"{_json(key)}: {_json(value)}"
        for key, value in mapping.items()
    )


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
