"""What a source is, and the reader of that format.

Apart from `read_trace`, because a trace that the cache holds needs no reader.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.readers import unsupported as foreign
from tracelens_ext.readers.kineto import reader as kineto
from tracelens_ext.readers.nsys import csv_tables as nsys_csv
from tracelens_ext.readers.nsys import csv_trace as nsys_csv_trace
from tracelens_ext.readers.nsys import export as nsys_export
from tracelens_ext.readers.nsys import sqlite as nsys_sqlite
from tracelens_ext.readers.nsys.database import SQLITE_MAGIC
from tracelens_ext.readers.source import ByteSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens_ext.cache.store import TraceCache
    from tracelens_ext.readers import TraceSource
    from tracelens_ext.readers.source import Readable
    from tracelens_ext.trace import Trace

_HEAD_BYTES = 4096
_PIECE_BYTES = 1 << 20


def read(
    source: TraceSource,
    progress: Callable[[int, int | None], None] | None,
    cache: TraceCache | None,
) -> Trace:
    """Read a trace of a format that is known here; the arguments are those of `read_trace`.

    Raises:
        TraceError: it cannot be read; the message says what it is.
        TypeError: no trace is given as such an object.
    """
    if isinstance(source, Mapping):
        return _from_document(source)
    if isinstance(source, list):
        return _from_document({"traceEvents": source})
    if isinstance(source, str | os.PathLike) or hasattr(source, "read"):
        return _from_file(source, progress, cache)
    raise TypeError(f"a trace is a path, an open file or a dict, not {type(source).__name__}")


def head_of(path: str | os.PathLike[str]) -> bytes:
    """A file's first bytes, unpacked."""
    with ByteSource(path) as opened:
        return opened.peek(_HEAD_BYTES)


def from_plugin(found: Mapping[str, object] | Trace, path: str) -> Trace:
    """What a plugin made of a file, under the file's own name.

    Raises:
        TraceFormatError: it is no trace that can be analysed.
    """
    if isinstance(found, Mapping):
        trace = _from_document(found, path)
        provenance = replace(trace.provenance, format="read by a plugin")
    else:
        trace = found
        provenance = replace(found.provenance, path=path)
    trace = replace(trace, provenance=provenance)
    foreign.refuse_trace(trace)
    return trace


def _from_document(document: Mapping[str, object], path: str = "<dict>") -> Trace:
    events = document.get("traceEvents")
    if not isinstance(events, list):
        raise foreign.refuse_members(path, map(str, document))
    members = {key: value for key, value in document.items() if key != "traceEvents"}
    return kineto.from_events(events, members, path)


def _from_file(
    source: str | os.PathLike[str] | Readable,
    progress: Callable[[int, int | None], None] | None,
    cache: TraceCache | None,
) -> Trace:
    if isinstance(source, str | os.PathLike) and nsys_export.is_report(Path(source)):
        with nsys_export.exported(os.fspath(source), cache) as database:
            return nsys_sqlite.read(os.fspath(source), database, progress)
    with ByteSource(source, progress) as opened:
        head = opened.peek(64)
        if head.startswith(SQLITE_MAGIC):
            return _from_database(source, opened, progress)
        if nsys_csv.report_in(opened.peek(_HEAD_BYTES)) is not None:
            return nsys_csv_trace.read_gpu_trace(opened)
        foreign.refuse_bytes(opened.path, head)
        trace, members = kineto.read(opened)
        if trace is None:
            raise foreign.refuse_members(opened.path, members)
        return trace


def _from_database(
    source: str | os.PathLike[str] | Readable,
    opened: ByteSource,
    progress: Callable[[int, int | None], None] | None,
) -> Trace:
    """A database is read where it lies; one that is gzipped or an open file, from memory."""
    if isinstance(source, str | os.PathLike) and not opened.compressed:
        return nsys_sqlite.read(opened.path, Path(source), progress)
    content = bytearray()
    while piece := opened.read(_PIECE_BYTES):
        content += piece
    return nsys_sqlite.read(opened.path, bytes(content), progress)
