"""Readers: one file a format, each filling the same `Trace`; `read_trace` finds the right one."""

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
        source: a path, an open file (binary or text), a loaded JSON document (or its list of
            events), or a `Trace`, which is returned as it is.
        progress: called with (bytes of the file read so far, its size or None) now and then.
        cache: whether a file is looked for in the user's cache, and kept there when it is large;
            or a cache of your own.
        registry: the plugins whose readers are asked, instead of the installed ones.
        reading: what is done about broken, huge and foreign files.

    Returns:
        The trace; times in ns since its first event.

    Raises:
        TraceNotFoundError: nothing readable is there.
        TraceCutOffError: the file ends in the middle.
        TraceFormatError: it is no trace that can be analyzed; the message says what it is.
        UsageError: `reading` names a rank that the file does not hold.
    """
    # The hook's module lies in this package, and `--help` imports it: so what is slow comes here.
    from tracelens_ext.trace import Trace

    if isinstance(source, Trace):
        return source
    whole = _read_whole(
        source=source,
        progress=progress,
        cache=cache,
        registry=registry,
        reading=reading,
    )
    if reading.rank is None:
        return whole
    from tracelens_ext.trace.rank_traces import rank_of_merged_file

    return rank_of_merged_file(whole, reading.rank)


def _read_whole(
    source: str | os.PathLike[str] | Readable | Mapping[str, object] | list[object],
    progress: Callable[[int, int | None], None] | None,
    cache: TraceCache | bool | None,
    registry: PluginRegistry | None,
    reading: ReadingOptions,
) -> Trace:
    """Read all of a file or document; arguments as of `read_trace`."""
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
        # a cached trace needs no reader
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
            return parse()  # what the cache holds was perhaps read without it
        return store.read(source, parse)
    except TraceFormatError as error:
        if not is_path or isinstance(error, TraceCutOffError):
            raise
        from tracelens_ext.readers.formats import read_file

        trace = read_file(source, registry=registry, reading=reading, own=False)
        if trace is None:
            raise
        return trace


def _is_nsys_report(source: str | os.PathLike[str]) -> bool:
    from tracelens_ext.readers.builtin import NSYS_REPORTS

    return os.fspath(source).lower().endswith(NSYS_REPORTS)
