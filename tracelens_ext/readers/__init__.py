"""Readers: one file a format, each filling the same `Trace`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.errors import TraceCutOffError, TraceFormatError
from tracelens_ext.readers import foreign, kineto
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens_ext.readers.source import Readable

    #: Everything a trace can be given as.
    TraceSource = str | os.PathLike[str] | Readable | Mapping[str, object] | Trace

__all__ = ["read_trace"]

_HEAD_BYTES = 4096


def read_trace(
    source: TraceSource,
    *,
    progress: Callable[[int, int | None], None] | None = None,
    other_formats: Callable[[Path, bytes], Mapping[str, object] | Trace | None] | None = None,
) -> Trace:
    """Read a trace.

    Args:
        source: a path, an open file (binary or text), a loaded JSON document, or a `Trace`, which
            is returned as it is.
        progress: called with (bytes of the file read so far, its size or None) now and then.
        other_formats: asked about a file that no reader here understands, with its path and its
            first bytes, unpacked; answers a document, a `Trace`, or None.

    Returns:
        The trace; times in ns since its first event.

    Raises:
        TraceNotFoundError: nothing readable is there.
        TraceCutOffError: the file ends in the middle.
        TraceFormatError: it is no trace that can be analysed; the message says what it is.
    """
    if isinstance(source, Trace):
        return source
    try:
        trace = _read(source, progress)
        foreign.refuse_trace(trace)
    except TraceCutOffError:
        raise
    except TraceFormatError:
        if other_formats is None or not isinstance(source, str | os.PathLike):
            raise
        with ByteSource(source) as opened:
            head = opened.peek(_HEAD_BYTES)
        found = other_formats(Path(source), head)
        if found is None:
            raise
        return read_trace(found)
    return trace


def _read(source: TraceSource, progress: Callable[[int, int | None], None] | None) -> Trace:
    if isinstance(source, Mapping):
        return _from_document(source)
    if isinstance(source, str | os.PathLike) or hasattr(source, "read"):
        return _from_file(source, progress)
    raise TypeError(f"a trace is a path, an open file or a dict, not {type(source).__name__}")


def _from_document(document: Mapping[str, object]) -> Trace:
    events = document.get("traceEvents")
    if not isinstance(events, list):
        raise foreign.refuse_members("<dict>", map(str, document))
    members = {key: value for key, value in document.items() if key != "traceEvents"}
    return kineto.from_events(events, members, "<dict>")


def _from_file(
    source: str | os.PathLike[str] | Readable,
    progress: Callable[[int, int | None], None] | None,
) -> Trace:
    with ByteSource(source, progress) as opened:
        foreign.refuse_bytes(opened.path, opened.peek(64))
        trace, members = kineto.read(opened)
        if trace is None:
            raise foreign.refuse_members(opened.path, members)
        return trace
