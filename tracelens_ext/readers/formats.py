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
from typing import Any, Final, cast

import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.hooks import (
    Offered,
    PluginAnswerError,
    PluginRegistry,
    Reader,
    default_registry,
)
from tracelens_ext.readers import source as given
from tracelens_ext.readers.builder import distinct_rows
from tracelens_ext.readers.cache.store import TraceCache
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.trace import NONE, EventKind, Trace

#: How much of a file a reader sees before it says whether it recognizes it.
HEAD_BYTES = 4096


def offered_readers(registry: PluginRegistry | None = None) -> list[Offered[Reader]]:
    """Return all readers: our own, then those of other plugins, each in order of precedence."""
    offered = (registry or default_registry()).offers("tracelens_readers", _check)
    return sorted(offered, key=lambda reader: not reader.plugin.own)


def suffixes_of(reader: Reader) -> tuple[str, ...]:
    """Return the suffixes of a reader, which need not derive from `Reader`."""
    return tuple(getattr(reader, "suffixes", ()))


def read_document(
    document: Mapping[str, object] | list[object],
    path: str = "<dict>",
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
) -> Trace:
    """Return the trace of a loaded JSON document, or of its list of events."""
    from tracelens_ext.readers.kineto import documents, reader
    from tracelens_ext.readers.rocprof import json_records

    if isinstance(document, list) and _are_documents(document):
        of_ranks = cast("list[Mapping[str, object]]", document)
        trace = documents.from_documents(of_ranks, path)
        return with_directions(trace)
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


def _are_documents(listed: list[Any]) -> bool:
    """Return True for a list of documents, one a rank; False for one of events."""
    return bool(listed) and all(
        isinstance(item, Mapping) and "traceEvents" in item for item in listed
    )


def read_file(
    source: str | os.PathLike[str] | given.Readable,
    progress: Callable[[int, int | None], None] | None = None,
    cache: TraceCache | None = None,
    registry: PluginRegistry | None = None,
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
    *,
    own: bool,
) -> Trace | None:
    """Read a file with the first reader that recognizes it; arguments as of `read_trace`.

    If `own` is True this distribution's readers are asked, else those of other plugins. An error of
    theirs becomes a problem of the registry, and None is returned for a file that none of them can
    read. Raises TraceError where the file cannot be read, or holds no trace that can be analyzed.
    """
    registry = registry or default_registry()
    offered = offered_readers(registry)
    with given.ByteSource(
        source=source, progress=progress, cache=cache, reading=reading
    ) as opened:
        head = opened.peek(HEAD_BYTES)
        for reader in offered:
            if reader.plugin.own is not own:
                continue
            is_recognized = False
            value = None
            with nullcontext() if own else registry.guard(reader.plugin.name):
                is_recognized = reader.item.recognises(Path(opened.path), head)
                if is_recognized:
                    value = _value_of(reader.item, opened)
            if is_recognized:
                return _trace_of(value, opened.path, reading)
        if not own:
            return None
        if not offered:
            raise TraceFormatError(
                opened.path, "has no reader", "reinstall tracelens-ext"
            )
        raise _refusal(opened, head)


def _value_of(reader: Reader, opened: given.ByteSource) -> Mapping[str, object] | Trace:
    """Ask a reader, which may be a stranger's and answer anything, for the trace of a file."""
    read_source = getattr(reader, "read_source", None) or partial(
        Reader.read_source, reader
    )
    value = read_source(opened)
    if not isinstance(value, Mapping | Trace):
        raise PluginAnswerError(f"{reader.name}: {type(value).__name__} is not a trace")
    return value


def _trace_of(
    value: Mapping[str, object] | Trace | None, path: str, reading: ReadingOptions
) -> Trace | None:
    """Return the trace that a reader's answer stands for; None where it failed."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        trace = read_document(value, path, reading)
        provenance = replace(trace.provenance, format="read by a plugin")
        return replace(trace, provenance=provenance)
    trace = with_directions(value)
    if trace.provenance.path != path:
        trace = replace(trace, provenance=replace(trace.provenance, path=path))
    refuse_trace(trace)
    return trace


def _refusal(opened: given.ByteSource, head: bytes) -> TraceFormatError:
    """Return the error for a file that none of our readers recognizes."""
    if not head.startswith(given.SQLITE_MAGIC):
        return refuse_bytes(opened.path, head)
    from tracelens_ext.readers.nsys import sqlite
    from tracelens_ext.readers.other_databases import refuse_database

    refusal = refuse_database(opened)
    if refusal is not None:
        return refusal
    try:
        sqlite.read(opened)
    except TraceFormatError as error:  # it says which tables the database has
        return error
    return refuse_bytes(opened.path, head)


def is_recognised(path: Path, head: bytes) -> bool:
    """Return True if a reader that takes part recognizes a file by its path and first bytes."""
    registry = default_registry()
    for reader in offered_readers(registry):
        with registry.guard(reader.plugin.name):
            if reader.item.recognises(path, head):
                return True
    return False


def _check(reader: object) -> None:
    """Raise PluginAnswerError for an object without the methods of a reader."""
    if not callable(getattr(reader, "recognises", None)):
        raise PluginAnswerError(
            f"tracelens_readers: {reader!r} has no method 'recognises'"
        )
    reads = (getattr(reader, name, None) for name in ("read", "read_source"))
    if not any(map(callable, reads)):
        raise PluginAnswerError(f"tracelens_readers: {reader!r} has no method 'read'")


#: Arguments of a copy, texts: its direction, and the kinds of memory on both sides.
_COPY_ARGUMENTS: Final = ("copy kind", "src kind", "dst kind")


def with_directions(trace: Trace) -> Trace:
    """Return the trace with names such as `Memcpy HtoD (Pageable -> Device)` for `Memcpy`."""
    if _COPY_ARGUMENTS[0] not in trace.args:
        return trace
    rows = trace.rows_of(EventKind.MEMCPY)
    has_no_direction = trace.named(trace.name[rows], lambda name: name == "Memcpy")
    rows = rows[has_no_direction]
    columns = [trace.arg(name) for name in _COPY_ARGUMENTS]
    texts = columns[0].texts or []  # all columns share them
    values = [column.at(rows) for column in columns]
    distinct = distinct_rows(*values)

    code_of_name = {name: code for code, name in enumerate(trace.names)}
    codes = []
    for row in distinct.rows:
        words = [texts[code].strip('"') if code != NONE else "" for code in row]
        name = _name_of_copy(*words)
        code = code_of_name.setdefault(name, len(code_of_name))
        codes.append(code)
    code_of_distinct = np.array(codes, dtype=np.int32)
    names = trace.name.copy()
    names[rows] = code_of_distinct[distinct.number]
    return replace(trace, name=names, names=list(code_of_name))


def _name_of_copy(direction: str, source: str, target: str) -> str:
    name = f"Memcpy {direction}" if direction else "Memcpy"
    if source and target:
        name += f" ({source.capitalize()} -> {target.capitalize()})"
    return name


# Files of other tools are recognized, so that the message says what to do.

_UNPACK = "unpack it and give one of its traces"
_ANALYZE_WORKBOOK = (
    "give the trace that the report was made from, or compare reports with: "
    "tracelens-ext compare"
)
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
_NSIGHT_COMPUTE = (
    "is an Nsight Compute report, which measures single kernels and has no timeline"
)
_RECORD_TIMELINE = "record one with nsys profile -t cuda, or with torch.profiler"
_A_FLIGHT_DUMP = "is a dump of PyTorch's flight recorder, not a trace"
_A_PICKLE = (
    "is a pickle, not a trace; PyTorch memory snapshots are read by one command only"
)

#: Processes of the legacy profiler.
_LEGACY = {"CPU functions", "CUDA functions"}
_MOST_DEVICES = 128
#: Kinds of events of which a trace needs one.
_RECORDED_KINDS = tuple(kind for kind in EventKind if kind < EventKind.FLOW_START)


def refuse_bytes(path: str, head: bytes) -> TraceFormatError:
    """Return the error for a file that no reader recognizes."""
    text = head.lstrip(b" \t\r\n\xef\xbb\xbf")
    name = path.lower()
    if not text:
        return TraceFormatError(path, "is empty", "record the trace again")
    for marks, encoding in _ENCODINGS:
        if head.startswith(marks):
            return TraceFormatError(path, f"is {encoding} text", "save it as UTF-8")
    if head.startswith(b"\x80") and b"pg_config" in head:
        return TraceFormatError(path, _A_FLIGHT_DUMP, "run: tracelens-ext ranks FILE")
    unpacked_name = name.removesuffix(".gz")
    if unpacked_name.endswith((".pickle", ".pkl")):
        return TraceFormatError(path, _A_PICKLE, "run: tracelens-ext memory FILE")
    if head.startswith(b"NVR\0") or name.endswith(".ncu-rep"):
        return TraceFormatError(path, _NSIGHT_COMPUTE, _RECORD_TIMELINE)
    if head[_TAR_PLACE].startswith(b"ustar"):
        return TraceFormatError(
            path, "is a tar archive, not a trace", f"{_UNPACK} (`tar -xf`)"
        )
    expected = "list the supported formats with: tracelens-ext formats"
    if name.endswith(".xlsx"):
        return TraceFormatError(path, "is a workbook, not a trace", _ANALYZE_WORKBOOK)
    for magic, what, remedy in _MAGIC:
        if text.startswith(magic):
            return TraceFormatError(path, f"is {what}, not a trace", remedy or expected)
    return TraceFormatError(path, "is not a trace in a known format", expected)


def refuse_trace(trace: Trace) -> None:
    """Raise a TraceFormatError for a trace that holds nothing that PyTorch's profiler records."""
    path = trace.provenance.path
    _refuse_many_devices(trace)
    if trace.count_of(*_RECORDED_KINDS):
        return
    if not trace.provenance.present:
        raise TraceFormatError(path, "contains no events", "record it again")
    names = map(str, trace.process_names.values())
    if any(name.startswith(("/device:", "/host:")) for name in names):
        problem = (
            "is a JAX/XLA trace, but none of its events is known to come from a GPU "
            "or its CPU"
        )
        remedy = "give the file that JAX itself wrote during a run on a GPU"
        raise TraceFormatError(path, problem, remedy)
    if _LEGACY & {process for process, _ in trace.threads}:
        problem = "is an export of PyTorch's legacy profiler (torch.autograd.profiler)"
        raise TraceFormatError(path, f"{problem}, which is not supported", given.RECORD)
    categories = sorted({category for category in trace.categories if category})
    kinds = "its events have no cat"
    if categories:
        kinds = (
            "its event categories are "
            f"{', '.join(map(given.in_a_line, categories[:5]))}"
        )
    problem = "contains no event that PyTorch's profiler records"
    if "otherData" in trace.metadata:
        problem = "is a Chrome trace from another tool"
    raise TraceFormatError(path, f"{problem} ({kinds})", given.RECORD)


def _refuse_many_devices(trace: Trace) -> None:
    """Raise a TraceFormatError for more devices than any machine has; tables have rows for each."""
    device = trace.device
    if not len(device):
        return
    largest_difference = int(device.max()) - int(device.min())
    if largest_difference < _MOST_DEVICES:
        return
    count = len(np.unique(device))
    if count > _MOST_DEVICES:
        problem = f"has GPU events of {count:,} devices (at most {_MOST_DEVICES} are analyzed)"
        raise TraceFormatError(
            trace.provenance.path, problem, "give the traces one by one"
        )
