"""Reader of `cuda_gpu_trace` CSVs (`gputrace` in its older name): every GPU event, no host events.

Supported: kernels, memcpys and memsets with start, duration, correlation id, device, context and
stream. Ignored: grid and block sizes, registers, memory kinds, throughput. There are no launches
in such a file, so every GPU event is unlinked; times are ns since the recording began.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.builder import Interner, TraceBuilder, distinct_rows
from tracelens_ext.readers.kineto.schema import MISSING_NS, WORDS
from tracelens_ext.readers.nsys.csv_tables import Piece, Report, open_report
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.trace import MEMORY_KINDS, NONE, Device, EventKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.readers.nsys.csv_tables import TableSource
    from tracelens_ext.trace import Int64Array, Trace

FORMAT = "nsys stats cuda_gpu_trace (CSV)"

_KINDS = (("[CUDA memcpy", EventKind.MEMCPY), ("[CUDA memset", EventKind.MEMSET))
#: How tables spell the kinds of memory.
_MEMORY = {"pageable": 0, "pinned": 1, "device": 2, "array": 3, "managed": 4}
_ORDINAL = re.compile(r"(.*?)\s*\((\d{1,9})\)\s*", re.DOTALL)
_MOST_ID = 2**62


def read(source: TableSource | ByteSource) -> Trace:
    """Read a `cuda_gpu_trace` table.

    Returns:
        A trace of GPU events; `threads` are (device, stream).
    """
    table = open_report(source, Report.GPU_TRACE)
    builder = TraceBuilder()
    devices = _Devices()
    for piece in table.pieces:
        _add(piece, builder, devices)
    trace = builder.finish(
        devices=devices.described(),
        path=table.source,
        format_name=FORMAT,
        bytes_read=source.bytes_read if isinstance(source, ByteSource) else 0,
        notes=("The table has no launches, so all GPU events are unlinked.",),
    )
    if not trace.provenance.present:
        raise TraceFormatError(
            table.source, "holds no events", "record it again, with: nsys profile -t cuda,nvtx"
        )
    return trace


def _add(piece: Piece, builder: TraceBuilder, devices: _Devices) -> None:
    names = piece.texts("name")
    count = len(names)
    device = devices.codes(piece.texts("device") if "device" in piece.columns else [""] * count)
    stream = _ids(piece.whole("strm") if "strm" in piece.columns else [None] * count)
    places, place_of = distinct_rows(device, stream)
    threads = builder.threads.codes(((place[0], place[1]) for place in places), len(places))
    known: Interner[str] = Interner()
    name_of = known.codes(names, count)
    kinds = [_kind(name) for name in known]
    categories = builder.categories.codes((WORDS[kind] for kind in kinds), len(kinds))
    rows = np.arange(count)
    numbers = {"correlation": (rows, _ids(piece.whole("corrid")))}
    for argument, column in zip(MEMORY_KINDS, ("srcmemkd", "dstmemkd"), strict=True):
        if column in piece.columns:
            kinds_of = [_MEMORY.get(text.lower(), NONE) for text in piece.texts(column)]
            numbers[argument] = rows, np.array(kinds_of, dtype=np.int64)
    builder.add(
        {
            "ts": _filled(piece.nanoseconds("start"), MISSING_NS),
            "dur": _filled(piece.nanoseconds("duration"), MISSING_NS),
            "name": builder.names.codes(known, len(known))[name_of],
            "kind": np.array(kinds, dtype=np.int64)[name_of],
            "thread": threads[place_of],
            "category": categories[name_of],
        },
        numbers | {"device": (rows, device), "stream": (rows, stream)},
        {},
    )


def _kind(name: str) -> EventKind:
    return next((kind for start, kind in _KINDS if name.startswith(start)), EventKind.KERNEL)


def _ids(values: Sequence[int | None]) -> Int64Array:
    """Ids; `NONE` for one that is missing or no id."""
    ids = _filled(values, NONE)
    return np.where((ids < 0) | (ids >= _MOST_ID), NONE, ids)


def _filled(values: Sequence[int | None], missing: int) -> Int64Array:
    """Numbers; `MISSING_NS` for times that are missing, which the builder counts out."""
    if None in values:
        values = [missing if value is None else value for value in values]
    return np.array(values, dtype=np.int64)


class _Devices:
    """Numbers of devices: `NVIDIA H100 (1)` is 1; without a number, in order of first sight."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._unnumbered: Interner[str] = Interner()

    def codes(self, texts: Sequence[str]) -> Int64Array:
        for text in set(texts) - self._numbers.keys():
            found = _ORDINAL.fullmatch(text)
            if found:
                self._numbers[text] = int(found[2])
        for text in texts:
            if text not in self._numbers:
                self._numbers[text] = self._unnumbered[text]
        return np.fromiter(map(self._numbers.__getitem__, texts), np.int64, len(texts))

    def described(self) -> tuple[Device, ...]:
        named: dict[int, str] = {}
        for text, number in self._numbers.items():
            found = _ORDINAL.fullmatch(text)
            named.setdefault(number, found[1] if found else text)
        return tuple(Device(number, name) for number, name in sorted(named.items()) if name)
