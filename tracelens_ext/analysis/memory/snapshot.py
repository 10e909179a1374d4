"""Snapshots of PyTorch's CUDA allocator, as `torch.cuda.memory._dump_snapshot` pickles them.

A snapshot contains the segments of the allocator with their blocks at the time of the dump, and the
last events of each device before it. Format: `torch/csrc/cuda/memory_snapshot.cpp`. A block is in
use from `alloc` to `free_completed`; its size is the requested one. Only plain containers, texts
and numbers are unpickled, so nothing in the file is executed.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.memory.blocks import BEFORE
from tracelens_ext.analysis.memory.events import MemoryEvents
from tracelens_ext.errors import TraceFormatError
from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import Interner
from tracelens_ext.readers.plain_pickle import unpickled
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.text import encodable
from tracelens_ext.trace import NONE, BoolArray, Int64Array

#: Stands for the frame of memory that no Python frame of the user's program allocated.
NO_FRAME = "(no frame)"
_REMEDY: Final = "record it with torch.cuda.memory._dump_snapshot('snapshot.pickle')"
#: Sizes of 256 TB or more cannot be right.
_MOST_BYTES: Final = 2**48
#: Whole: a float could not hold the times of a snapshot exactly.
_NS_PER_US: Final = 1000
#: Times of this many µs (142 years) or more cannot be right. Smaller times, and differences between
#: two of them, fit in 64 bits as ns.
_MOST_TIME: Final = 2**52
#: Actions of events.
_ALLOCATES: Final = "alloc"
_FREES: Final = "free_completed"
#: Actions with which the allocator gets memory from the driver (1) or returns it (-1).
_SEGMENT_ACTIONS: Final = {
    "segment_alloc": 1,
    "segment_map": 1,
    "segment_free": -1,
    "segment_unmap": -1,
}
#: States of blocks that are in use.
_HELD_STATES: Final = frozenset({"active_allocated", "active_pending_free"})
#: Columns that identify a block: an address may be in use on several devices.
_BLOCK_KEY: Final = ["device", "address"]
#: Files of packages and of Python's own library, which are not the user's program.
_LIBRARY_FILE: Final = re.compile(
    r"(?:^|[/\\])(?:(?:site|dist)-packages|lib[/\\]python3[^/\\]*)[/\\]"
)


class Segment(NamedTuple):
    """A segment that the allocator got from the driver; sizes are bytes."""

    device: int
    segment_type: str
    stream: int
    total_bytes: int
    allocated_bytes: int
    active_bytes: int


class _HeldBlock(NamedTuple):
    """A block that is in use at the end."""

    device: int
    address: int
    size: int  #: bytes
    frame: int  #: code of the Python frame that allocated it


class _Event(NamedTuple):
    """An allocation or a free."""

    device: int
    address: int
    size: int  #: bytes
    time: int  #: µs
    frame: int  #: code of the Python frame that allocated, `NONE` for a free
    is_free: bool


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The content of a snapshot, in which times are ns since the first recorded event.

    Attributes:
        path: the file.
        events: k allocations and frees. Blocks that were in use before the first event of a device
            have allocations that were made up and precede it.
        frame: the frame that allocated, as an index into `frames`; `NONE` for a free, (k,).
        frames: labels of Python frames.
        recorded: mask of the events that are in the file, and not made up, (k,).
        segments: the segments at the end.
        segment_changes: changes of the reserved memory, with the columns `device`, `time` and
            `bytes`: above 0, the allocator got memory from the driver; below 0, it returned memory.
        iterations: device → start of each step of the profiler, ascending.
        dropped: number of events without a valid size, address or time.
    """

    path: str
    events: MemoryEvents
    frame: Int64Array
    frames: list[str]
    recorded: BoolArray
    segments: list[Segment]
    segment_changes: pd.DataFrame
    iterations: dict[int, Int64Array]
    dropped: int


def may_be_snapshot(path: str | os.PathLike[str]) -> bool:
    """Return True if a file may be a snapshot: its name or its first bytes are those of a pickle.

    Only regular files are opened. Opening a pipe would wait for a writer, and the bytes that are
    read from a pipe are gone.
    """
    name = Path(path).name.lower().removesuffix(".gz")
    if name.endswith((".pickle", ".pkl")):
        return True
    if not Path(path).is_file():
        return False
    with suppress(OSError), Path(path).open("rb") as file:
        head = file.read(2)
        return head[:1] == b"\x80" and head[1:] <= b"\x05"
    return False


def read_snapshot(
    path: str | os.PathLike[str], reading: ReadingOptions = DEFAULT_READING_OPTIONS
) -> Snapshot:
    """Read a snapshot.

    Raises:
        TraceError: the file cannot be read, or is not a snapshot.
    """
    with ByteSource(path, reading=reading) as source:
        content = unpickled(
            path=source.path,
            data=source.read_all(),
            what="memory snapshot",
            remedy=_REMEDY,
        )
        dictionary = _checked_content(source.path, content)
        try:
            return _snapshot_of(source.path, dictionary)
        except (
            TypeError,
            ValueError,
            KeyError,
            AttributeError,
            OverflowError,
            RecursionError,
        ):
            raise TraceFormatError(
                source.path, "is a damaged memory snapshot", _REMEDY
            ) from None


def _checked_content(path: str, content: object) -> dict[str, Any]:
    """Return the content of a pickle; raise a `TraceFormatError` if it is not a snapshot."""
    if not isinstance(content, dict):
        raise TraceFormatError(path, "is a pickle, but not a memory snapshot", _REMEDY)
    if {"entries", "pg_config"} <= content.keys():
        raise TraceFormatError(
            path,
            "is a dump of PyTorch's flight recorder, not a memory snapshot",
            f"run: tracelens-ext ranks {shlex.quote(path)}",
        )
    if not isinstance(content.get("device_traces"), list):
        raise TraceFormatError(path, "is a pickle, but not a memory snapshot", _REMEDY)
    return content


def _snapshot_of(path: str, content: dict[str, Any]) -> Snapshot:
    """Return the snapshot that the dictionaries of a file describe."""
    frames = _FrameLabels()
    recorded_segments = content.get("segments") or []
    segments = [segment for segment in recorded_segments if isinstance(segment, dict)]
    held_blocks = _held_blocks(segments, frames)
    all_events = _allocations_and_frees(content["device_traces"], frames)
    has_size = all_events["size"].between(0, _MOST_BYTES - 1)
    has_address = all_events["address"] >= 0
    has_time = all_events["time"].abs() < _MOST_TIME
    is_usable = has_size & has_address & has_time
    code_of_before = frames.labels[BEFORE]  # gives the label a code if it has none
    events = _with_older_allocations(
        events=all_events[is_usable],
        held_blocks=held_blocks,
        before_code=code_of_before,
    )
    is_recorded = events["recorded"].to_numpy(dtype=bool)
    time_ns = events["time"].to_numpy() * _NS_PER_US
    start_ns = 0
    if is_recorded.any():
        start_ns = int(time_ns[is_recorded].min())
    time_since_start = np.where(is_recorded, time_ns - start_ns, 0)
    annotations = content.get("external_annotations") or []
    return Snapshot(
        path=path,
        events=_memory_events(events, time_since_start),
        frame=events["frame"].to_numpy(),
        frames=list(frames.labels),
        recorded=is_recorded,
        segments=[_segment(segment) for segment in segments],
        segment_changes=_segment_changes(content["device_traces"], start_ns),
        iterations=_iterations(annotations, start_ns),
        dropped=int((~is_usable).sum()),
    )


def _held_blocks(
    segments: Sequence[dict[str, Any]], frames: _FrameLabels
) -> list[_HeldBlock]:
    """Return the blocks that are in use at the end."""
    held_blocks = []
    for segment in segments:
        # The blocks of a segment follow one another, which gives blocks without an address theirs.
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] in _HELD_STATES:
                held_blocks.append(
                    _HeldBlock(
                        device=segment.get("device", 0),
                        address=block.get("address", address),
                        size=block.get("requested_size") or block["size"],
                        frame=frames.code(block),
                    )
                )
            address += block["size"]
    return held_blocks


def _allocations_and_frees(
    device_traces: Sequence[Any], frames: _FrameLabels
) -> pd.DataFrame:
    """Return a row for each allocation and free, by device and in the order of the file."""
    events = []
    for device, trace in enumerate(device_traces):
        for event in trace:
            action = event["action"]
            if action not in {_ALLOCATES, _FREES}:
                continue
            is_free = action == _FREES
            events.append(
                _Event(
                    device=device,
                    address=event.get("addr", NONE),
                    size=event.get("size", NONE),
                    time=event.get("time_us", 0),
                    frame=NONE if is_free else frames.code(event),
                    is_free=is_free,
                )
            )
    table = pd.DataFrame(events, columns=list(_Event._fields), dtype=np.int64)
    return table.astype({"is_free": bool})


def _segment_changes(device_traces: Sequence[Any], start_ns: int) -> pd.DataFrame:
    """Return a row for each change of the reserved memory; see `Snapshot.segment_changes`."""
    rows = []
    for device, trace in enumerate(device_traces):
        for event in trace:
            sign = _SEGMENT_ACTIONS.get(event["action"])
            size = event.get("size", NONE)
            time = event.get("time_us", 0)
            if sign is None or not 0 <= size < _MOST_BYTES or abs(time) >= _MOST_TIME:
                continue
            rows.append((device, time * _NS_PER_US - start_ns, sign * size))
    return pd.DataFrame(rows, columns=["device", "time", "bytes"], dtype=np.int64)


def _with_older_allocations(
    events: pd.DataFrame, held_blocks: Sequence[_HeldBlock], before_code: int
) -> pd.DataFrame:
    """Return the events, preceded by allocations of the blocks that were in use before them.

    Two kinds of blocks must have been in use before the first event of their device:

    * blocks that are freed without having been allocated, whose frame gets `before_code`;
    * blocks in use at the end that no event allocates, whose frame the file has.
    """
    parts = [
        _freed_first(events).assign(frame=before_code, recorded=False),
        _held_throughout(events, held_blocks).assign(time=0, recorded=False),
        events.assign(recorded=True),
    ]
    all_events = pd.concat(parts)
    # Each event that is not recorded stands for an allocation, even if it is a copy of a free.
    is_free = all_events["is_free"].eq(True) & all_events["recorded"]
    all_events["is_free"] = is_free
    return all_events.sort_values("device", kind="stable")


def _freed_first(events: pd.DataFrame) -> pd.DataFrame:
    """Return the frees that are the first events of their address, by device and address."""
    is_first_of_address = ~events.duplicated(_BLOCK_KEY)
    freed_first = events[events["is_free"] & is_first_of_address]
    return freed_first.sort_values(_BLOCK_KEY)


def _held_throughout(
    events: pd.DataFrame, held_blocks: Sequence[_HeldBlock]
) -> pd.DataFrame:
    """Return a row for each block that is in use at the end and that no event allocates."""
    is_last_of_address = ~events.duplicated(_BLOCK_KEY, keep="last")
    allocated_last = events[~events["is_free"] & is_last_of_address]
    recorded_blocks = set(
        zip(allocated_last["device"], allocated_last["address"], strict=True)
    )
    older_blocks = []
    for held_block in held_blocks:
        is_recorded = (held_block.device, held_block.address) in recorded_blocks
        if not is_recorded and _is_plausible(held_block):
            older_blocks.append(held_block)
    return pd.DataFrame(older_blocks, columns=list(_HeldBlock._fields), dtype=np.int64)


def _is_plausible(block: _HeldBlock) -> bool:
    return 0 <= block.address < 2**63 and 0 <= block.size < _MOST_BYTES


def _memory_events(events: pd.DataFrame, time_ns: Int64Array) -> MemoryEvents:
    """Return the events as memory events, without what only a trace has."""
    unknown = np.full(len(events), NONE, dtype=np.int64)
    devices, device_index = np.unique(events["device"].to_numpy(), return_inverse=True)
    return MemoryEvents(
        row=unknown,
        time=time_ns,
        thread=unknown,
        size=np.where(events["is_free"], -events["size"], events["size"]),
        address=events["address"].to_numpy(),
        total=unknown,
        reserved=unknown,
        device_index=device_index.reshape(-1),
        devices=devices,
        unusable_count=0,
    )


class _FrameLabels:
    """Labels of the innermost frames of the user's program, each computed once.

    Blocks and events with the same stack share one list of frames, and stacks share frames. Both
    are recognized by their `id`, which stays valid because the file's content is kept meanwhile.
    """

    def __init__(self) -> None:
        self.labels: Interner[str] = Interner()
        self._code_of_stack = dict[int, int]()
        self._label_of_frame = dict[int, str]()

    def code(self, holder: dict[str, Any]) -> int:
        """Return the code of the label for a block or an event."""
        stack = holder.get("frames") or ()
        if id(stack) not in self._code_of_stack:
            innermost = next(self._user_labels(stack), NO_FRAME)
            self._code_of_stack[id(stack)] = self.labels[innermost]
        return self._code_of_stack[id(stack)]

    def _user_labels(self, stack: Sequence[dict[str, Any]]) -> Iterator[str]:
        """Yield the labels of the frames of the user's program, innermost first."""
        for frame in stack:
            if id(frame) not in self._label_of_frame:
                self._label_of_frame[id(frame)] = _frame_label(frame)
            label = self._label_of_frame[id(frame)]
            if label:
                yield label


def _frame_label(frame: dict[str, Any]) -> str:
    """Return `FILE(LINE): NAME`; empty for a frame that is not Python or not the user's."""
    file = frame.get("filename")
    line = frame.get("line")
    name = frame.get("name")
    if (
        not isinstance(file, str)
        or not file.endswith(".py")
        or _LIBRARY_FILE.search(file)
    ):
        return ""
    if isinstance(line, int) and isinstance(name, str):
        return encodable(f"{file}({line}): {name}")
    return encodable(file)


def _segment(segment: dict[str, Any]) -> Segment:
    segment_type = segment.get("segment_type")
    if not isinstance(segment_type, str):
        segment_type = ""
    return Segment(
        device=int(segment.get("device", 0)),
        segment_type=encodable(segment_type),
        stream=int(segment.get("stream", 0)),
        total_bytes=int(segment.get("total_size", 0)),
        allocated_bytes=int(segment.get("allocated_size", 0)),
        active_bytes=int(segment.get("active_size", 0)),
    )


def _iterations(
    annotations: Sequence[dict[str, Any]], start_ns: int
) -> dict[int, Int64Array]:
    """Return the start of each step of the profiler on each device; see `Snapshot`."""
    starts: dict[int, list[int]] = {}
    for annotation in annotations:
        is_step = str(annotation.get("name")).startswith("ProfilerStep#")
        if is_step and annotation.get("stage") == "START":
            device = int(annotation.get("device", 0))
            time = annotation["time_us"]
            if abs(time) >= _MOST_TIME:
                continue
            start = time * _NS_PER_US - start_ns
            starts.setdefault(device, []).append(start)
    return {
        device: np.array(sorted(times), dtype=np.int64)
        for device, times in starts.items()
    }
