"""The readers that take part, and which of them reads a source; errors for files that none reads.

This distribution's own readers (`builtin.py`) and those of plugins come through the hook
`tracelens_readers`. Plugins of others are asked only about files that none of our own can read, so
that none of them can take PyTorch's traces over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.hooks import Offered, PluginAnswerError, PluginRegistry, Reader, default_registry
from tracelens_ext.readers import source as given
from tracelens_ext.readers.builder import distinct_rows
from tracelens_ext.readers.cache.store import TraceCache
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.trace import NONE, EventKind, Trace

#: How much of a file a reader sees before it says whether it recognises it.
HEAD_BYTES = 4096


def offered_readers(registry: PluginRegistry | None = None) -> list[Offered[Reader]]:
    """All readers: our own, then those of other plugins, each in order of precedence."""
    offered = (registry or default_registry()).offers("tracelens_readers", _check)
    return sorted(offered, key=lambda each: not each.plugin.own)


def suffixes_of(reader: Reader) -> tuple[str, ...]:
    """The suffixes of a reader, which need not derive from `Reader`."""
    return tuple(getattr(reader, "suffixes", ()))


def read_document(
    document: Mapping[str, object] | list[object],
    path: str = "<dict>",
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
) -> Trace:
    """The trace of a loaded JSON document, or of its list of events."""
    from tracelens_ext.readers.kineto import reader
    from tracelens_ext.readers.rocprof import json_records

    members = document if isinstance(document, Mapping) else {"traceEvents": document}
    if json_records.ROOT in members:
        return json_records.from_document(members, path, reading)
    events = members.get("traceEvents")
    if not isinstance(events, list):
        raise given.refuse_members(path, map(str, members))
    others = {key: value for key, value in members.items() if key != "traceEvents"}
    trace = with_directions(reader.from_events(events, others, path))
    refuse_trace(trace)
    return trace


def read_file(
    source: str | os.PathLike[str] | given.Readable,
    progress: Callable[[int, int | None], None] | None = None,
    cache: TraceCache | None = None,
    registry: PluginRegistry | None = None,
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
    *,
    own: bool,
) -> Trace | None:
    """Read a file with the first reader that recognises it; arguments as of `read_trace`.

    `own` tells whether this distribution's readers are asked, or those of other plugins: an error
    of theirs becomes a problem of the registry, and None is for a file that none of them can read.
    Raises TraceError where the file cannot be read, or holds no trace that can be analysed.
    """
    registry = registry or default_registry()
    readers = offered_readers(registry)
    with given.ByteSource(source, progress, cache, reading) as opened:
        head = opened.peek(HEAD_BYTES)
        for each in readers:
            if each.plugin.own is not own:
                continue
            recognised = False
            found = None
            with nullcontext() if own else registry.guard(each.plugin.name):
                recognised = each.item.recognises(Path(opened.path), head)
                if recognised:
                    read_source = getattr(each.item, "read_source", None)
                    found = (read_source or partial(Reader.read_source, each.item))(opened)
                    if not isinstance(found, Mapping | Trace):
                        problem = f"{each.item.name}: {type(found).__name__} is no trace"
                        raise PluginAnswerError(problem)
            if isinstance(found, Mapping):
                trace = read_document(found, opened.path, reading)
                about = replace(trace.provenance, format="read by a plugin")
                return replace(trace, provenance=about)
            if isinstance(found, Trace):
                trace = with_directions(found)
                trace = replace(trace, provenance=replace(trace.provenance, path=opened.path))
                refuse_trace(trace)
                return trace
            if recognised:
                return None
        if own and not readers:
            raise TraceFormatError(opened.path, "has no reader", "install tracelens-ext again")
        if own and head.startswith(given.SQLITE_MAGIC):
            from tracelens_ext.readers.nsys import sqlite

            sqlite.read(opened)  # says which tables the database has
        if own:
            raise refuse_bytes(opened.path, head)
    return None


def is_recognised(path: Path, head: bytes) -> bool:
    """Whether a reader that takes part recognises a file by its path and its first bytes."""
    registry = default_registry()
    for each in offered_readers(registry):
        with registry.guard(each.plugin.name):
            if each.item.recognises(path, head):
                return True
    return False


def _check(reader: object) -> None:
    for names in (("recognises",), ("read", "read_source")):
        if not any(callable(getattr(reader, name, None)) for name in names):
            raise PluginAnswerError(f"tracelens_readers: {reader!r} has no method {names[0]!r}")


_ARGUMENTS: Final = ("copy kind", "src kind", "dst kind")


def with_directions(trace: Trace) -> Trace:
    """The trace with names such as `Memcpy HtoD (Pageable -> Device)`."""
    if _ARGUMENTS[0] not in trace.args:
        return trace
    rows = trace.rows_of(EventKind.MEMCPY)
    rows = rows[trace.named(trace.name[rows], lambda name: name == "Memcpy")]
    columns = [trace.arg(name) for name in _ARGUMENTS]
    distinct, place = distinct_rows(*(column.at(rows) for column in columns))
    texts = next(column.texts or [] for column in columns)  # the same of all
    codes = {name: code for code, name in enumerate(trace.names)}
    made = []
    for row in distinct:
        kind, *ends = (texts[code].strip('"') if code != NONE else "" for code in row)
        name = " ".join(filter(None, ("Memcpy", kind)))
        name += f" ({' -> '.join(map(str.capitalize, ends))})" if all(ends) else ""
        made.append(codes.setdefault(name, len(codes)))
    names = trace.name.copy()
    names[rows] = np.array(made, dtype=np.int32)[place]
    return replace(trace, name=names, names=list(codes))


# Files of other tools are recognised, so that the message says what to do.

_UNPACK = "unpack it and give one trace of it"
_TAR_PLACE = slice(257, 263)
#: How text in other encodings begins: with a byte order mark, or with a bracket.
_ENCODINGS = (
    ((b"\xff\xfe\0\0", b"\0\0\xfe\xff", b"{\0\0\0", b"[\0\0\0", b"\0\0\0"), "UTF-32"),
    ((b"\xff\xfe", b"\xfe\xff", b"{\0", b"[\0", b"\0{", b"\0["), "UTF-16"),
)
#: First bytes of a file, what it is, and what to do; nothing but to give another file if empty.
_MAGIC = (
    (b"\x1f\x8b", "gzipped twice", "unpack it once with gunzip"),
    (b"PK\x03\x04", "a zip archive", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it with `zstd -d`"),
    (b"BZh", "compressed with bzip2", "unpack it with bunzip2"),
    (b"\xfd7zXZ", "compressed with xz", "unpack it with unxz"),
    (b"\x89HDF", "an HDF5 file", ""),
    (b"PAR1", "a Parquet file", ""),
    (b"<", "HTML or XML", ""),
)
_A_PICKLE = "is a pickle, no trace; a memory snapshot of PyTorch is read by one command"

#: Processes of the legacy profiler.
_LEGACY = {"CPU functions", "CUDA functions"}
_MOST_DEVICES = 128


def refuse_bytes(path: str, head: bytes) -> TraceFormatError:
    """The error for a file that no reader recognises."""
    text = head.lstrip(b" \t\r\n\xef\xbb\xbf")
    if not text:
        return TraceFormatError(path, "is empty", "record the trace again")
    for marks, encoding in _ENCODINGS:
        if head.startswith(marks):
            return TraceFormatError(path, f"is {encoding} text", "save it as UTF-8")
    if path.lower().removesuffix(".gz").endswith((".pickle", ".pkl")):
        return TraceFormatError(path, _A_PICKLE, "run: tracelens-ext memory FILE")
    if head[_TAR_PLACE].startswith(b"ustar"):
        return TraceFormatError(path, "is a tar archive, not a trace", f"{_UNPACK} (`tar -xf`)")
    expected = "see the formats that are read with: tracelens-ext formats"
    for magic, what, remedy in _MAGIC:
        if text.startswith(magic):
            return TraceFormatError(path, f"is {what}, not a trace", remedy or expected)
    return TraceFormatError(path, "is no trace of a known format", expected)


def refuse_trace(trace: Trace) -> None:
    """Raise when a trace holds nothing that PyTorch's profiler records."""
    path = trace.provenance.path
    device = trace.device
    if len(device) and int(device.max()) - int(device.min()) >= _MOST_DEVICES:
        count = len(np.unique(device))
        if count > _MOST_DEVICES:  # than any machine has; tables have rows for each
            problem = f"has GPU events of {count:,} devices (at most {_MOST_DEVICES} are analysed)"
            raise TraceFormatError(path, problem, "give the traces one by one")
    if trace.count_of(*(k for k in EventKind if k < EventKind.FLOW_START)):
        return
    if not trace.provenance.present:
        raise TraceFormatError(path, "holds no events", "record it again")
    if any(str(n).startswith(("/device:", "/host:")) for n in trace.process_names.values()):
        problem = "is a JAX/XLA trace, and no event in it is known to be of a GPU or of its host"
        remedy = "give the file that JAX wrote itself, of a run on a GPU"
        raise TraceFormatError(path, problem, remedy)
    if _LEGACY & {process for process, _ in trace.threads}:
        problem = "is an export of PyTorch's legacy profiler (torch.autograd.profiler)"
        raise TraceFormatError(path, f"{problem}, which is not supported", given.RECORD)
    listed = ", ".join(map(given.in_a_line, sorted({c for c in trace.categories if c})[:5]))
    shown = f"its events are of kinds {listed}" if listed else "its events have no cat"
    what = "holds no event that PyTorch's profiler records"
    if "otherData" in trace.metadata:
        what = "is a Chrome trace of another tool"
    raise TraceFormatError(path, f"{what} ({shown})", given.RECORD)
