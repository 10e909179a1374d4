"""Finds the reader of a file or document, and explains files that no reader recognizes.

The readers of this distribution (`builtin.py`) and those of other plugins are registered through
the hook `tracelens_readers`. Other plugins are tried only for files that no reader of this
distribution can read, so that a plugin cannot take over the traces of PyTorch.
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
from tracelens_ext.readers.messages import REMEDY_RECORD_WITH_PYTORCH, in_a_line
from tracelens_ext.readers.unsupported_documents import error_for_document
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.trace import NONE, EventKind, Trace

#: Number of bytes of a file by which readers recognize their format.
HEAD_BYTES = 4096


def offered_readers(registry: PluginRegistry | None = None) -> list[Offered[Reader]]:
    """Return the readers of this distribution, then those of other plugins, by precedence."""
    offered = (registry or default_registry()).offers("tracelens_readers", _check)
    return sorted(offered, key=lambda reader: not reader.plugin.own)


def suffixes_of(reader: Reader) -> tuple[str, ...]:
    """Return the suffixes of a reader; it need not derive from `Reader`, so it may have none."""
    return tuple(getattr(reader, "suffixes", ()))


def read_document(
    document: Mapping[str, object] | list[object],
    path: str = "<dict>",
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
) -> Trace:
    """Return the trace of JSON that is already parsed.

    Args:
        document: a document, its list of events, or a list of documents of several ranks.
        path: what messages call the document.
        reading: the options of the reader.

    Raises:
        TraceFormatError: the document is not a trace that can be analyzed.
    """
    from tracelens_ext.readers.kineto import documents, reader
    from tracelens_ext.readers.rocprof import json_records

    if isinstance(document, list) and _are_documents(document):
        documents_of_ranks = cast("list[Mapping[str, object]]", document)
        trace = documents.from_documents(documents_of_ranks, path)
        return with_directions(trace)
    members = document if isinstance(document, Mapping) else {"traceEvents": document}
    if json_records.ROOT in members:
        return json_records.from_document(members, path, reading)
    events = members.get("traceEvents")
    if not isinstance(events, list):
        raise error_for_document(path, map(str, members))
    other_members = {
        key: value for key, value in members.items() if key != "traceEvents"
    }
    trace = with_directions(reader.from_events(events, other_members, path))
    refuse_trace(trace)
    return trace


def _are_documents(items: list[Any]) -> bool:
    """Return True for a list of documents (one per rank), False for a list of events."""
    return bool(items) and all(
        isinstance(item, Mapping) and "traceEvents" in item for item in items
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
    """Read a file with the first reader that recognizes it.

    Args:
        source: the file; it and the next arguments are those of `read_trace`.
        progress: as above.
        cache: as above.
        registry: as above.
        reading: as above.
        own: True to try the readers of this distribution, False to try those of other plugins. An
            error in another plugin becomes a problem of the registry.

    Returns:
        The trace; None if `own` is False and no plugin can read the file.

    Raises:
        TraceError: the file cannot be read, or is not a trace that can be analyzed.
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
            answer = None
            with nullcontext() if own else registry.guard(reader.plugin.name):
                is_recognized = reader.item.recognises(Path(opened.path), head)
                if is_recognized:
                    answer = _answer_of(reader.item, opened)
            if is_recognized:
                return _trace_of(answer, opened.path, reading)
        if not own:
            return None
        if not offered:
            raise TraceFormatError(
                opened.path, "has no reader", "reinstall tracelens-ext"
            )
        raise _refusal(opened, head)


def _answer_of(
    reader: Reader, opened: given.ByteSource
) -> Mapping[str, object] | Trace:
    """Return what a reader returns for a file: a trace, or a document of Kineto.

    Raises:
        PluginAnswerError: the reader of a plugin returned something else.
    """
    read_source = getattr(reader, "read_source", None) or partial(
        Reader.read_source, reader
    )
    answer = read_source(opened)
    if not isinstance(answer, Mapping | Trace):
        raise PluginAnswerError(
            f"{reader.name}: {type(answer).__name__} is not a trace"
        )
    return answer


def _trace_of(
    answer: Mapping[str, object] | Trace | None, path: str, reading: ReadingOptions
) -> Trace | None:
    """Return the trace of a reader's answer; None if the reader failed and gave no answer."""
    if answer is None:
        return None
    if isinstance(answer, Mapping):
        trace = read_document(answer, path, reading)
        provenance = replace(trace.provenance, format="read by a plugin")
        return replace(trace, provenance=provenance)
    trace = with_directions(answer)
    if trace.provenance.path != path:
        trace = replace(trace, provenance=replace(trace.provenance, path=path))
    refuse_trace(trace)
    return trace


def _refusal(opened: given.ByteSource, head: bytes) -> TraceFormatError:
    """Return the error for a file that no reader of this distribution recognizes."""
    if not head.startswith(given.SQLITE_MAGIC):
        return refuse_bytes(opened.path, head)
    from tracelens_ext.readers.nsys import sqlite
    from tracelens_ext.readers.other_databases import refuse_database

    refusal = refuse_database(opened)
    if refusal is not None:
        return refusal
    try:
        sqlite.read(opened)
    except TraceFormatError as error:  # its message lists the tables of the database
        return error
    return refuse_bytes(opened.path, head)


def is_recognised(path: Path, head: bytes) -> bool:
    """Return True if any reader recognizes a file by its path and its first bytes."""
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


#: Arguments of a copy: its direction, and the kinds of memory that it reads and writes.
_COPY_ARGUMENTS: Final = ("copy kind", "src kind", "dst kind")


def with_directions(trace: Trace) -> Trace:
    """Return a trace in which copies named `Memcpy` have full names.

    Example: `Memcpy HtoD (Pageable -> Device)`, from the arguments of the copy.
    """
    if _COPY_ARGUMENTS[0] not in trace.args:
        return trace
    rows = trace.rows_of(EventKind.MEMCPY)
    has_no_direction = trace.named(trace.name[rows], lambda name: name == "Memcpy")
    rows = rows[has_no_direction]
    columns = [trace.arg(name) for name in _COPY_ARGUMENTS]
    texts = columns[0].texts or []  # all text arguments of a trace share a list
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
    names[rows] = code_of_distinct[distinct.row_index]
    return replace(trace, name=names, names=list(code_of_name))


def _name_of_copy(direction: str, source: str, target: str) -> str:
    name = f"Memcpy {direction}" if direction else "Memcpy"
    if source and target:
        name += f" ({source.capitalize()} -> {target.capitalize()})"
    return name


# Errors for files of other tools, which say what the file is and what to do.

_UNPACK = "unpack it and give one of its traces"
_ANALYZE_WORKBOOK = (
    "give the trace that the report was made from, or compare reports with: "
    "tracelens-ext compare"
)
#: Bytes of a tar archive with its mark.
_TAR_MARK = slice(257, 263)
#: Beginnings of text in other encodings (a byte order mark or a bracket), and the encoding.
_ENCODINGS = (
    ((b"\xff\xfe\0\0", b"\0\0\xfe\xff", b"{\0\0\0", b"[\0\0\0", b"\0\0\0"), "UTF-32"),
    ((b"\xff\xfe", b"\xfe\xff", b"{\0", b"[\0", b"\0{", b"\0["), "UTF-16"),
)
#: First bytes of a file, what it is, and what to do with it (empty if it cannot be converted).
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

#: Names of the processes in exports of PyTorch's legacy profiler.
_LEGACY_PROCESSES = {"CPU functions", "CUDA functions"}
_MOST_DEVICES = 128
#: A trace without events of these kinds cannot be analyzed.
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
    if head[_TAR_MARK].startswith(b"ustar"):
        return TraceFormatError(
            path, "is a tar archive, not a trace", f"{_UNPACK} (`tar -xf`)"
        )
    expected = "list the supported formats with: tracelens-ext formats"
    if name.endswith(".xlsx"):
        return TraceFormatError(path, "is a workbook, not a trace", _ANALYZE_WORKBOOK)
    for magic, description, remedy in _MAGIC:
        if text.startswith(magic):
            problem = f"is {description}, not a trace"
            return TraceFormatError(path, problem, remedy or expected)
    return TraceFormatError(path, "is not a trace in a known format", expected)


def refuse_trace(trace: Trace) -> None:
    """Raise TraceFormatError for a trace without any event that can be analyzed."""
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
    if _LEGACY_PROCESSES & {process for process, _ in trace.threads}:
        problem = "is an export of PyTorch's legacy profiler (torch.autograd.profiler)"
        raise TraceFormatError(
            path, f"{problem}, which is not supported", REMEDY_RECORD_WITH_PYTORCH
        )
    categories = sorted({category for category in trace.categories if category})
    kinds = "its events have no cat"
    if categories:
        kinds = f"its event categories are {', '.join(map(in_a_line, categories[:5]))}"
    problem = "contains no event that PyTorch's profiler records"
    if "otherData" in trace.metadata:
        problem = "is a Chrome trace from another tool"
    raise TraceFormatError(path, f"{problem} ({kinds})", REMEDY_RECORD_WITH_PYTORCH)


def _refuse_many_devices(trace: Trace) -> None:
    """Raise TraceFormatError for more devices than any machine has.

    Tables have rows for each device, so a damaged file could make them very large.
    """
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
