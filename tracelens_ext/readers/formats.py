"""The readers that take part, and which of them reads a source.

This distribution's own readers (`builtin.py`) and those of plugins come through the hook
`tracelens_readers`. The first that recognises a file reads it. Plugins of others are asked only
about files that none of our own can read, so that none of them can take PyTorch's traces over.

Apart from `read_trace`, because a trace that the cache holds needs no reader.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.hooks import Offered, PluginAnswerError, PluginRegistry, Reader, default_registry
from tracelens_ext.readers import unsupported
from tracelens_ext.readers.source import SQLITE_MAGIC, ByteSource
from tracelens_ext.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens_ext.cache.store import TraceCache
    from tracelens_ext.readers import TraceSource

#: How much of a file a reader sees before it says whether it recognises it.
HEAD_BYTES = 4096


def offered_readers(registry: PluginRegistry | None = None) -> list[Offered[Reader]]:
    """All readers: our own, then those of other plugins, each in order of precedence.

    Args:
        registry: the plugins to ask instead of the installed ones.
    """
    offered = (registry or default_registry()).offers("tracelens_readers", _check)
    return sorted(offered, key=lambda each: not each.plugin.own)


def suffixes_of(reader: Reader) -> tuple[str, ...]:
    """The suffixes of a reader, which need not derive from `Reader`."""
    return tuple(getattr(reader, "suffixes", ()))


def read_document(document: Mapping[str, object] | list[object], path: str = "<dict>") -> Trace:
    """The trace of a loaded JSON document, or of its list of events.

    Raises:
        TraceFormatError: it is no trace that can be analysed.
    """
    from tracelens_ext.readers.kineto import reader

    members = document if isinstance(document, Mapping) else {"traceEvents": document}
    events = members.get("traceEvents")
    if not isinstance(events, list):
        raise unsupported.refuse_members(path, map(str, members))
    others = {key: value for key, value in members.items() if key != "traceEvents"}
    trace = reader.from_events(events, others, path)
    unsupported.refuse_trace(trace)
    return trace


def read_with_own(
    source: TraceSource,
    progress: Callable[[int, int | None], None] | None,
    cache: TraceCache | None,
    registry: PluginRegistry | None,
) -> Trace:
    """Read a trace with the reader of this distribution that recognises it.

    Args:
        source: as of `read_trace`, like the others.
        progress: told how far it is.
        cache: where what is converted may be kept.
        registry: the plugins to ask instead of the installed ones.

    Raises:
        TraceError: it cannot be read; the message says what it is.
        TypeError: no trace is given as such an object.
    """
    if isinstance(source, Mapping | list):
        return read_document(source)
    if not isinstance(source, str | os.PathLike) and not hasattr(source, "read"):
        raise TypeError(f"a trace is a path, an open file or a dict, not {type(source).__name__}")
    with ByteSource(source, progress, cache) as opened:
        head = opened.peek(HEAD_BYTES)
        readers = offered_readers(registry)
        for each in readers:
            if each.plugin.own and each.item.recognises(Path(opened.path), head):
                return _as_trace(_answer(each.item, opened), opened.path)
        raise _unknown(opened, head, readers)


def read_with_others(
    path: str | os.PathLike[str], registry: PluginRegistry | None = None
) -> Trace | None:
    """Read a file with the first plugin of others that recognises it.

    Args:
        path: the file.
        registry: the plugins to ask instead of the installed ones.

    Returns:
        The trace; None if no plugin recognises the file, or the one that did failed (then a
        problem of the registry says how).

    Raises:
        TraceFormatError: the trace that a plugin made cannot be analysed.
    """
    registry = registry or default_registry()
    others = [each for each in offered_readers(registry) if not each.plugin.own]
    if not others:
        return None
    with ByteSource(path) as source:
        head = source.peek(HEAD_BYTES)
        for each in others:
            found = recognised = None
            with registry.guard(each.plugin.name):
                recognised = each.item.recognises(Path(path), head)
            if recognised:
                with registry.guard(each.plugin.name):
                    found = _answer(each.item, source)
                return None if found is None else _as_trace(found, source.path)
    return None


def is_recognised(path: Path, head: bytes) -> bool:
    """Whether a reader that takes part recognises a file by its path and its first bytes."""
    registry = default_registry()
    for each in offered_readers(registry):
        with registry.guard(each.plugin.name):
            if each.item.recognises(path, head):
                return True
    return False


def _answer(reader: Reader, source: ByteSource) -> Mapping[str, object] | Trace:
    """What a reader makes of a file."""
    read_source = getattr(reader, "read_source", None)
    found = read_source(source) if read_source else Reader.read_source(reader, source)
    if not isinstance(found, Mapping | Trace):
        raise PluginAnswerError(f"{reader.name}: {type(found).__name__} is no trace")
    return found


def _as_trace(found: Mapping[str, object] | Trace, path: str) -> Trace:
    """A reader's answer under the file's own name, refused if it cannot be analysed."""
    if isinstance(found, Mapping):
        trace = read_document(found, path)
        return replace(trace, provenance=replace(trace.provenance, format="read by a plugin"))
    trace = replace(found, provenance=replace(found.provenance, path=path))
    unsupported.refuse_trace(trace)
    return trace


def _unknown(source: ByteSource, head: bytes, readers: list[Offered[Reader]]) -> TraceFormatError:
    from tracelens_ext.readers.nsys import NsysDatabaseReader

    if head.startswith(SQLITE_MAGIC):
        NsysDatabaseReader().read_source(source)  # says which tables the database has
    if not readers:
        return TraceFormatError(source.path, "has no reader", "install tracelens-ext again")
    formats = [
        f"{each.item.name} ({', '.join(suffixes)})"
        if (suffixes := suffixes_of(each.item))
        else each.item.name
        for each in readers
    ]
    return unsupported.refuse_bytes(source.path, head, formats)


def _check(reader: object) -> None:
    if not callable(getattr(reader, "recognises", None)):
        raise PluginAnswerError(f"tracelens_readers: {reader!r} has no method 'recognises'")
    if not any(callable(getattr(reader, name, None)) for name in ("read", "read_source")):
        raise PluginAnswerError(f"tracelens_readers: {reader!r} has no method 'read'")
