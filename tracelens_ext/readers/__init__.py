"""Reads traces of all formats. `read_trace` finds the reader for a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from tracelens_ext.errors import TraceCutOffError, TraceFormatError
from tracelens_ext.hooks import PluginRegistry
from tracelens_ext.readers.source import Readable
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions

if TYPE_CHECKING:
    from tracelens_ext.readers.cache.store import TraceCache
    from tracelens_ext.trace import Trace

    TraceSource = (
        str | os.PathLike[str] | Readable | Mapping[str, object] | list[object] | Trace
    )

__all__ = ["read_trace"]


def read_trace(
    source: TraceSource,
    *,
    progress: Callable[[int, int | None], None] | None = None,
    cache: TraceCache | bool | None = None,
    registry: PluginRegistry | None = None,
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
) -> Trace:
    """Read a trace.

    Args:
        source: a path, an open file (binary or text), parsed JSON (a document or its list of
            events), or a `Trace`, which is returned as it is.
        progress: called repeatedly with the bytes of the file read so far, and its size or None.
        cache: True to look for the trace in the user's cache, and to keep a large one there; or
            another cache to use.
        registry: the plugins whose readers are used instead of those of the installed plugins.
        reading: options for damaged, large and untrusted files.

    Returns:
        The trace, with times in ns since its first event.

    Raises:
        TraceNotFoundError: the file does not exist or cannot be read.
        TraceCutOffError: the file is cut off.
        TraceFormatError: the file is not a trace that can be analyzed; the message says what it is.
        UsageError: `reading` names a rank that the file does not contain.
    """
    # `--help` imports this module through the hooks, so slow imports are deferred.
    from tracelens_ext.trace import Trace

    if isinstance(source, Trace):
        return source
    trace = _read_whole(
        source=source,
        progress=progress,
        cache=cache,
        registry=registry,
        reading=reading,
    )
    if reading.rank is None:
        return trace
    from tracelens_ext.trace.rank_traces import rank_of_merged_file

    return rank_of_merged_file(trace, reading.rank)


def _read_whole(
    source: str | os.PathLike[str] | Readable | Mapping[str, object] | list[object],
    progress: Callable[[int, int | None], None] | None,
    cache: TraceCache | bool | None,
    registry: PluginRegistry | None,
    reading: ReadingOptions,
) -> Trace:
    """Read a file or document with all its ranks; the arguments are those of `read_trace`."""
    from tracelens_ext.readers.cache.store import open_cache

    if isinstance(source, Mapping | list):
        from tracelens_ext.readers.formats import read_document

        return read_document(source, reading=reading)
    is_path = isinstance(source, str | os.PathLike)
    if not is_path and not hasattr(source, "read"):
        raise TypeError(
            f"a trace is a path, an open file or a dict, not {type(source).__name__}"
        )
    store = open_cache(cache, reading)

    def parse() -> Trace:
        # Imported here, because a cached trace needs no reader.
        from tracelens_ext.readers.formats import read_file

        return cast(
            "Trace",
            read_file(
                source=source,
                progress=progress,
                cache=store,
                registry=registry,
                reading=reading,
                own=True,
            ),
        )

    try:
        if store is None or not isinstance(source, str | os.PathLike):
            return parse()
        if reading.nsys is not None and _is_nsys_report(source):
            # A cached trace may have been read without the program `nsys`.
            return parse()
        return store.read(source, parse)
    except TraceFormatError as error:
        if not is_path or isinstance(error, TraceCutOffError):
            raise
        # No reader of this distribution recognizes the file; a reader of another plugin may.
        from tracelens_ext.readers.formats import read_file

        trace = read_file(source, registry=registry, reading=reading, own=False)
        if trace is None:
            raise
        return trace


def _is_nsys_report(source: str | os.PathLike[str]) -> bool:
    from tracelens_ext.readers.builtin import NSYS_REPORTS

    return os.fspath(source).lower().endswith(NSYS_REPORTS)
