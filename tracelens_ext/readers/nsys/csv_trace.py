"""Reads a `cuda_gpu_trace` table of `nsys stats` as a trace: GPU events without launches.

Supports: kernels, copies and memsets, with device, stream, correlation id and kinds of memory.
Ignores: sizes of grids and blocks, registers and throughput.
Format: the Nsight Systems Analysis Guide, "Statistical Reports".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.builder import Interner, TraceBuilder, map_distinct_rows
from tracelens_ext.readers.kineto.schema import CATEGORY_OF_KIND, MISSING_NS
from tracelens_ext.readers.nsys.csv_tables import (
    NsysCsvReport,
    RowBatch,
    TableSource,
    open_report,
)
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.trace import (
    MEMORY_KINDS,
    NONE,
    Device,
    EventKind,
    Int64Array,
    IntArray,
    Trace,
)

FORMAT = "nsys stats cuda_gpu_trace (CSV)"

#: Beginning of a name → kind of the event; events with other names are kernels.
_KIND_OF_PREFIX = {
    "[CUDA memcpy": EventKind.MEMCPY,
    "[CUDA memset": EventKind.MEMSET,
}
#: Kind of memory as tables spell it → its number in traces.
_MEMORY_KIND = {"pageable": 0, "pinned": 1, "device": 2, "array": 3, "managed": 4}
#: A device with its name and its number.
_NUMBERED_DEVICE = re.compile(r"(.*?)\s*\((\d{1,9})\)\s*", re.DOTALL)
#: Ids from this value on are treated as unknown.
_MOST_ID = 2**62


def read(source: TableSource | ByteSource) -> Trace:
    """Read a `cuda_gpu_trace` table.

    The times of the trace count from the beginning of the recording; its threads are pairs of
    device and stream.

    Raises:
        TraceFormatError: the table is another report, is damaged, or has no events.
    """
    table = open_report(source, NsysCsvReport.GPU_TRACE)
    builder = TraceBuilder()
    devices: dict[str, Device] = {}
    for batch in table.batches:
        _add_events(batch, builder, devices)
    if not builder.present:
        remedy = "record it again with: nsys profile -t cuda,nvtx"
        raise TraceFormatError(table.source, "contains no events", remedy)
    device_of_ordinal: dict[int, Device] = {}
    for device in devices.values():
        if device.name:
            device_of_ordinal.setdefault(device.ordinal, device)
    bytes_read = 0
    if isinstance(source, ByteSource):
        bytes_read = source.bytes_read
    return builder.finish(
        devices=tuple(
            device_of_ordinal[number] for number in sorted(device_of_ordinal)
        ),
        path=table.source,
        format_name=FORMAT,
        bytes_read=bytes_read,
        notes=("The table has no launches, so all GPU events are unlinked.",),
    )


def _device_of(text: str, devices: dict[str, Device]) -> Device:
    """Return the device that a text names.

    Example: `NVIDIA H100 (1)` is the device 1. Devices whose texts have no number are numbered in
    the order in which they occur.

    Args:
        text: the text.
        devices: the devices that occurred before, by their texts.
    """
    name_and_number = _NUMBERED_DEVICE.fullmatch(text)
    if name_and_number is not None:
        return Device(ordinal=int(name_and_number[2]), name=name_and_number[1])
    ordinal = 0
    for earlier_text in devices:
        if not _NUMBERED_DEVICE.fullmatch(earlier_text):
            ordinal += 1
    return Device(ordinal=ordinal, name=text)


def _kind_of(name: str) -> EventKind:
    """Return the kind of a GPU event with this name."""
    for prefix, kind in _KIND_OF_PREFIX.items():
        if name.startswith(prefix):
            return kind
    return EventKind.KERNEL


def _add_events(
    batch: RowBatch, builder: TraceBuilder, devices: dict[str, Device]
) -> None:
    """Add the events in a batch of rows to a builder, and their devices to `devices`."""
    names = batch.texts("name")
    count = len(names)
    device_texts = batch.texts("device")
    for text in dict.fromkeys(device_texts):
        if text not in devices:
            devices[text] = _device_of(text, devices)
    ordinals = [devices[text].ordinal for text in device_texts]
    device = np.array(ordinals, dtype=np.int64)
    stream = _ids(batch.whole("strm"))
    numbers = {
        "correlation": _ids(batch.whole("corrid")),
        "device": device,
        "stream": stream,
    }
    for argument, column in zip(MEMORY_KINDS, ("srcmemkd", "dstmemkd"), strict=True):
        if column in batch.columns:
            texts = batch.texts(column)
            kinds_of_memory = [_MEMORY_KIND.get(text.lower(), NONE) for text in texts]
            numbers[argument] = np.array(kinds_of_memory, dtype=np.int64)

    # Name, kind and category are found once for each distinct name.
    distinct_names: Interner[str] = Interner()
    name_index = distinct_names.codes(names, count)
    kinds = [_kind_of(text) for text in distinct_names]
    name_codes = builder.names.codes(distinct_names, len(distinct_names))
    categories = [CATEGORY_OF_KIND[kind] for kind in kinds]
    category_codes = builder.categories.codes(categories, len(categories))
    columns: dict[str, IntArray] = {
        "ts": _times(batch.nanoseconds("start")),
        "dur": _times(batch.nanoseconds("duration")),
        "name": name_codes[name_index],
        "kind": np.array(kinds, dtype=np.int64)[name_index],
        "thread": map_distinct_rows(
            lambda *device_and_stream: builder.threads[device_and_stream],
            device,
            stream,
        ),
        "category": category_codes[name_index],
    }
    rows = np.arange(count)
    arguments = {argument: (rows, values) for argument, values in numbers.items()}
    builder.add(columns, arguments, {})


def _times(values: Sequence[int | None]) -> Int64Array:
    """Return times, (m,), with `MISSING_NS` for missing ones, which the builder drops."""
    return np.array(
        [MISSING_NS if value is None else value for value in values], dtype=np.int64
    )


def _ids(values: Sequence[int | None]) -> Int64Array:
    """Return ids, (m,), with `NONE` for those that are missing or implausible."""
    ids = _times(values)
    return np.where((ids < 0) | (ids >= _MOST_ID), NONE, ids)
