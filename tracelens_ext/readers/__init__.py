"""Readers: one file a format, each filling the same `Trace`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.cache.store import open_cache
from tracelens_ext.errors import TraceCutOffError, TraceFormatError
from tracelens_ext.readers import unsupported as foreign
from tracelens_ext.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracelens_ext.cache.store import TraceCache
    from tracelens_ext.readers.source import Readable

    #: Everything a trace can be given as.
    TraceSource = str | os.PathLike[str] | Readable | Mapping[str, object] | list[object] | Trace

__all__ = ["read_trace"]


def read_trace(
    source: TraceSource,
    *,
    progress: Callable[[int, int | None], None] | None = None,
    other_formats: Callable[[Path, bytes], Mapping[str, object] | Trace | None] | None = None,
    cache: TraceCache | bool | None = None,
) -> Trace:
    """Read a trace.

    Args:
        source: a path, an open file (binary or text), a loaded JSON document (or its list of
            events), or a `Trace`, which is returned as it is.
        progress: called with (bytes of the file read so far, its size or None) now and then.
        other_formats: asked about a file that no reader here understands, with its path and its
            first bytes, unpacked; answers a document, a `Trace`, or None.
        cache: whether a file is looked for in the user's cache, and kept there when it is large;
            or a cache of your own.

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
        trace = _cached(source, progress, open_cache(cache))
    except TraceCutOffError:
        raise
    except TraceFormatError:
        if other_formats is None or not isinstance(source, str | os.PathLike):
            raise
        from tracelens_ext.readers import formats

        found = other_formats(Path(source), formats.head_of(source))
        if found is None:
            raise
        return formats.from_plugin(found, os.fspath(source))
    return trace


def _cached(
    source: TraceSource,
    progress: Callable[[int, int | None], None] | None,
    cache: TraceCache | None,
) -> Trace:
    def parse() -> Trace:
        trace = _read(source, progress, cache)
        foreign.refuse_trace(trace)
        return trace

    if cache is not None and isinstance(source, str | os.PathLike):
        return cache.read(source, parse)
    return parse()


def _read(
    source: TraceSource,
    progress: Callable[[int, int | None], None] | None,
    cache: TraceCache | None,
) -> Trace:
    from tracelens_ext.readers import formats

    return formats.read(source, progress, cache)
