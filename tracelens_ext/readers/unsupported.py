"""Errors for files of other tools: they are recognised, so that the message says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.trace import EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens_ext.trace import Trace

_UNPACK = "unpack it and give one trace of it"
_TAR_PLACE = slice(257, 263)
#: How text in other encodings begins: with a byte order mark, or with a bracket.
_ENCODINGS = (
    ((b"\xff\xfe\0\0", b"\0\0\xfe\xff", b"{\0\0\0", b"[\0\0\0", b"\0\0\0"), "UTF-32"),
    ((b"\xff\xfe", b"\xfe\xff", b"{\0", b"[\0", b"\0{", b"\0["), "UTF-16"),
)
#: First bytes of a file → what it is, and what to do; nothing but to give another file if empty.
_MAGIC: tuple[tuple[bytes, str, str], ...] = (
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
_LONGEST_NAME = 60
_RECORD = "record with torch.profiler and export_chrome_trace(), or use that tool's own viewer"

#: Processes of the legacy profiler.
_LEGACY = {"CPU functions", "CUDA functions"}
_MOST_QUOTED = 300
_MOST_DEVICES = 128

#: A top-level member that only one tool writes → the tool.
_MEMBERS = {
    "nodes": "a PyTorch execution trace (ExecutionTraceObserver)",
    "otherData": "a Chrome trace of another tool",
    "shared": "a speedscope file",
    "resourceSpans": "OpenTelemetry spans",
}


def one_line(text: str) -> str:
    """What a file or another program says, as a line that a message can quote."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _MOST_QUOTED else f"{line[:_MOST_QUOTED]}…"


def encoding_of(head: bytes) -> str | None:
    """`UTF-16` or `UTF-32` if a file begins as such text does; None of any other."""
    for marks, name in _ENCODINGS:
        if head.startswith(marks):
            return name
    return None


def refuse_bytes(path: str, head: bytes) -> TraceFormatError:
    """The error for a file that no reader recognises."""
    text = head.lstrip(b" \t\r\n\xef\xbb\xbf")
    if not text:
        return TraceFormatError(path, "is empty", "record the trace again")
    if encoding := encoding_of(head):
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


def refuse_members(path: str, members: Iterable[str]) -> TraceFormatError:
    """The error for a JSON document without `traceEvents`."""
    names = list(members)
    for name in names:
        if name in _MEMBERS and name != "otherData":
            return TraceFormatError(path, f"is {_MEMBERS[name]}, which is not supported", _RECORD)
    if "traceEvents" in names:
        return TraceFormatError(path, "has traceEvents that are no list", _RECORD)
    shown = ", ".join(map(_in_a_line, names[:6])) + (" …" if len(names) > 6 else "")
    has = f"it has: {shown}" if names else "it is empty"
    return TraceFormatError(path, f"is JSON without traceEvents ({has})", _RECORD)


def _in_a_line(name: str) -> str:
    """A name out of a file, fit for a message: on one line, short, and text that can be printed."""
    return " ".join(name.split())[:_LONGEST_NAME].encode("utf-8", "replace").decode()


def refuse_trace(trace: Trace) -> None:
    """Raise when a trace holds nothing that PyTorch's profiler records."""
    path = trace.provenance.path
    _refuse_many_devices(trace)
    known = trace.rows_of(*(k for k in EventKind if k < EventKind.FLOW_START))
    if len(known):
        return
    if not trace.provenance.present:
        raise TraceFormatError(path, "holds no events", "record it again")
    processes = [str(name) for name in trace.process_names.values()]
    if any(name.startswith(("/device:", "/host:")) for name in processes):
        raise TraceFormatError(
            path,
            "is a JAX/XLA trace, and no event in it is known to be of a GPU or of its host",
            "give the file that JAX wrote itself, of a run on a GPU",
        )
    if _LEGACY & {process for process, _ in trace.threads}:
        problem = "is an export of PyTorch's legacy profiler (torch.autograd.profiler)"
        raise TraceFormatError(path, f"{problem}, which is not supported", _RECORD)
    kinds = sorted({c for c in trace.categories if c})
    listed = ", ".join(map(_in_a_line, kinds[:5]))
    shown = f"its events are of kinds {listed}" if kinds else "its events have no cat"
    what = "holds no event that PyTorch's profiler records"
    if "otherData" in trace.metadata:
        what = "is a Chrome trace of another tool"
    raise TraceFormatError(path, f"{what} ({shown})", _RECORD)


def _refuse_many_devices(trace: Trace) -> None:
    """Raise when a trace has more devices than any machine: tables have rows for each of them."""
    device = trace.device
    if not len(device) or int(device.max()) - int(device.min()) < _MOST_DEVICES:
        return
    count = len(np.unique(device))
    if count > _MOST_DEVICES:
        raise TraceFormatError(
            trace.provenance.path,
            f"has GPU events of {count:,} devices (at most {_MOST_DEVICES} are analysed)",
            "give the traces one by one",
        )
