"""Readers: one file a format, each filling the same `Trace`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tracelens_ext.readers import foreign, kineto
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens_ext.readers.source import Readable

    #: Everything a trace can be given as.
    TraceSource = str | os.PathLike[str] | Readable | Mapping[str, object] | Trace

__all__ = ["read_trace"]


def read_trace(
    source: TraceSource, *, progress: Callable[[int, int | None], None] | None = None
) -> Trace:
    """Read a trace.

    Args:
        source: a path, an open file (binary or text), a loaded JSON document, or a `Trace`, which
            is returned as it is.
        progress: called with (bytes of the file read so far, its size or None) now and then.

    Returns:
        The trace; times in ns since its first event.

    Raises:
        TraceNotFoundError: nothing readable is there.
        TraceCutOffError: the file ends in the middle.
        TraceFormatError: it is no trace that can be analysed; the message says what it is.
    """
    if isinstance(source, Trace):
        return source
    if isinstance(source, Mapping):
        trace = _from_document(source)
    elif isinstance(source, str | os.PathLike) or hasattr(source, "read"):
        trace = _from_file(source, progress)
    else:
        raise TypeError(f"a trace is a path, an open file or a dict, not {type(source).__name__}")
    foreign.refuse_trace(trace)
    return trace


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
