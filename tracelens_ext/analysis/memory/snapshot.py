"""Snapshots of PyTorch's CUDA allocator, as `torch.cuda.memory._dump_snapshot` pickles them.

A snapshot has the segments with their blocks at the end, and for each device the last events before
it. Format: `torch/csrc/cuda/memory_snapshot.cpp`. A block is held from `alloc` to `free_completed`;
sizes are those that were requested. Nothing in the file is run: only plain containers, texts and
numbers are unpickled.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.memory.events import MemoryEvents
from tracelens_ext.analysis.memory.usage import BEFORE, blocks_of, by_owner
from tracelens_ext.errors import TraceFormatError
from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import Interner
from tracelens_ext.readers.plain_pickle import unpickled
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.text import encodable
from tracelens_ext.trace import NONE, NS_PER_MS, BoolArray, Int64Array
from tracelens_ext.trace.grouping import percent, sums

NO_FRAME = "(no frame)"
_REMEDY: Final = "record it with torch.cuda.memory._dump_snapshot('snapshot.pickle')"
#: Sizes beyond this, 256 TB, cannot be right.
_MOST_BYTES: Final = 2**48
#: Times beyond this (µs, thousands of years) cannot be right; in ns smaller ones fit in 64 bits.
_MOST_TIME: Final = _MOST_BYTES * 2**10
_ALLOCATES: Final = "alloc"
_FREES: Final = "free_completed"
#: Events in which the allocator gets memory from the driver, or gives it back, and their sign.
_RESERVES: Final = {
    "segment_alloc": 1,
    "segment_map": 1,
    "segment_free": -1,
    "segment_unmap": -1,
}
_HELD_STATES: Final = frozenset({"active_allocated", "active_pending_free"})
#: Files of packages and of Python's own library.
_NOT_USERS: Final = re.compile(
    r"(?:^|[/\\])(?:(?:site|dist)-packages|lib[/\\]python3[^/\\]*)[/\\]"
)
_NS_PER_US: Final = 1000


class Segment(NamedTuple):
    """A segment that the allocator got from the driver; sizes are bytes."""

    device: int
    segment_type: str
    stream: int
    total_bytes: int
    allocated_bytes: int
    active_bytes: int


class _HeldBlock(NamedTuple):
    """A block that is held at the end."""

    device: int
    address: int
    size: int
    frame: int


class _Event(NamedTuple):
    """An allocation or a free; times are µs."""

    device: int
    address: int
    size: int
    time: int
    frame: int
    frees: bool


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What a snapshot says.

    Attributes:
        path: the file.
        events: the k allocations and frees. What was held before the first event of a device is
            allocated before it.
        frame: who allocated, an index into `frames`, of each event, (k,).
        frames: the Python frames.
        recorded: which events the file has, (k,).
        segments: the segments at the end.
        segment_changes: columns `device`, `time`, ns, and `bytes`: when the allocator got memory
            from the driver (more than 0), or gave it back (less).
        iterations: by device, when the steps of the profiler began, ns, ascending.
        dropped: events without a usable size, address or time.
    """

    path: str
    events: MemoryEvents
    frame: Int64Array
    frames: list[str]
    recorded: np.ndarray
    segments: list[Segment]
    segment_changes: pd.DataFrame
    iterations: dict[int, Int64Array]
    dropped: int


# Reading.


def is_snapshot(path: str | os.PathLike[str]) -> bool:
    """Tell whether a file may be a pickle, by its name or its first bytes.

    What is not a regular file is not looked into: opening a pipe waits for who writes to it, and
    what is read of it is gone.
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
        if isinstance(content, dict) and {"entries", "pg_config"} <= content.keys():
            raise TraceFormatError(
                source.path,
                "is a dump of PyTorch's flight recorder, not a memory snapshot",
                f"run: tracelens-ext ranks {shlex.quote(source.path)}",
            )
        if not isinstance(content, dict) or not isinstance(
            content.get("device_traces"), list
        ):
            raise TraceFormatError(
                source.path, "is a pickle, but not a memory snapshot", _REMEDY
            )
        try:
            return _read(source.path, content)
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


def _read(path: str, content: dict[str, Any]) -> Snapshot:
    """Return the snapshot of the dicts of a file."""
    frames = _SnapshotFrames()
    recorded_segments = content.get("segments") or []
    segments = [segment for segment in recorded_segments if isinstance(segment, dict)]
    held_blocks = _held_blocks(segments, frames)
    all_events = _allocations_and_frees(content["device_traces"], frames)
    has_size = all_events["size"].between(0, _MOST_BYTES - 1)
    has_address = all_events["address"] >= 0
    has_time = all_events["time"].abs() < _MOST_TIME
    is_usable = has_size & has_address & has_time
    events = _with_older(
        events=all_events[is_usable],
        held_blocks=held_blocks,
        before_code=frames.names[BEFORE],
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
        frames=list(frames.names),
        recorded=is_recorded,
        segments=[_segment(segment) for segment in segments],
        segment_changes=_segment_changes(content["device_traces"], start_ns),
        iterations=_iterations(annotations, start_ns),
        dropped=int((~is_usable).sum()),
    )


def _held_blocks(
    segments: Sequence[dict[str, Any]], frames: _SnapshotFrames
) -> list[_HeldBlock]:
    """Return the blocks that are held at the end."""
    held = []
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] in _HELD_STATES:
                held.append(
                    _HeldBlock(
                        device=segment.get("device", 0),
                        address=block.get("address", address),
                        size=block.get("requested_size") or block["size"],
                        frame=frames.code(block),
                    )
                )
            address += block["size"]
    return held


def _allocations_and_frees(
    device_traces: Sequence[Any], frames: _SnapshotFrames
) -> pd.DataFrame:
    """Return a row for each allocation and free of the devices, in their order."""
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
                    frees=is_free,
                )
            )
    frame = pd.DataFrame(events, columns=list(_Event._fields), dtype=np.int64)
    return frame.astype({"frees": bool})


def _segment_changes(device_traces: Sequence[Any], start_ns: int) -> pd.DataFrame:
    """Return a row for each segment that a device got or gave back; see `Snapshot`."""
    rows = []
    for device, trace in enumerate(device_traces):
        for event in trace:
            sign = _RESERVES.get(event["action"])
            size = event.get("size", NONE)
            time = event.get("time_us", 0)
            if sign is None or not 0 <= size < _MOST_BYTES or abs(time) >= _MOST_TIME:
                continue
            rows.append((device, time * _NS_PER_US - start_ns, sign * size))
    return pd.DataFrame(rows, columns=["device", "time", "bytes"], dtype=np.int64)


def _with_older(
    events: pd.DataFrame, held_blocks: Sequence[_HeldBlock], before_code: int
) -> pd.DataFrame:
    """Return the events, and as allocations before them what was held before a device's first.

    That is what is freed without having been allocated, and blocks of the end that no event has
    allocated. The former have the frame of `before_code`.
    """
    place = ["device", "address"]
    is_free = events["frees"]
    is_first_of_address = ~events.duplicated(place)
    freed_first = events[is_free & is_first_of_address].sort_values(place)
    freed_first = freed_first.assign(frame=before_code, recorded=False)

    is_last_of_address = ~events.duplicated(place, keep="last")
    allocated_last = events[~is_free & is_last_of_address]
    seen = set(zip(allocated_last["device"], allocated_last["address"], strict=True))
    older_blocks = [
        block
        for block in held_blocks
        if (block.device, block.address) not in seen and _is_plausible(block)
    ]
    held_throughout = pd.DataFrame(
        older_blocks, columns=list(_HeldBlock._fields), dtype=np.int64
    )
    held_throughout = held_throughout.assign(time=0, recorded=False)

    all_events = pd.concat([freed_first, held_throughout, events.assign(recorded=True)])
    all_events["frees"] = all_events["frees"].eq(True) & all_events["recorded"]
    return all_events.sort_values("device", kind="stable")


def _is_plausible(block: _HeldBlock) -> bool:
    return 0 <= block.address < 2**63 and 0 <= block.size < _MOST_BYTES


def _memory_events(events: pd.DataFrame, time_ns: Int64Array) -> MemoryEvents:
    """Return the columns that the events of a snapshot share with those of a trace."""
    unknown = np.full(len(events), NONE, dtype=np.int64)
    devices, place = np.unique(events["device"].to_numpy(), return_inverse=True)
    return MemoryEvents(
        row=unknown,
        time=time_ns,
        thread=unknown,
        size=np.where(events["frees"], -events["size"], events["size"]),
        address=events["address"].to_numpy(),
        total=unknown,
        reserved=unknown,
        place=place.reshape(-1),
        devices=devices,
        unusable=0,
    )


class _SnapshotFrames:
    """The innermost Python frames of the user's own code, each looked at once."""

    def __init__(self) -> None:
        self.names: Interner[str] = Interner()
        self._code_of_stack = dict[int, int]()
        self._label_of_frame = dict[int, str]()

    def code(self, holder: dict[str, Any]) -> int:
        """Return the code of the frame of a block or an event."""
        stack = holder.get("frames") or ()
        if id(stack) not in self._code_of_stack:
            labels = map(self._label, stack)
            innermost = next(filter(None, labels), NO_FRAME)
            self._code_of_stack[id(stack)] = self.names[innermost]
        return self._code_of_stack[id(stack)]

    def _label(self, frame: dict[str, Any]) -> str:
        """Return `FILE(LINE): NAME`; empty for a frame that is not Python or not the user's."""
        if id(frame) not in self._label_of_frame:
            self._label_of_frame[id(frame)] = _frame_label(frame)
        return self._label_of_frame[id(frame)]


def _frame_label(frame: dict[str, Any]) -> str:
    file = frame.get("filename")
    line = frame.get("line")
    name = frame.get("name")
    if not isinstance(file, str) or not file.endswith(".py") or _NOT_USERS.search(file):
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
    """Return when each device began the steps of the profiler, ns."""
    begins: dict[int, list[int]] = {}
    for annotation in annotations:
        is_step = str(annotation.get("name")).startswith("ProfilerStep#")
        if is_step and annotation.get("stage") == "START":
            device = int(annotation.get("device", 0))
            begin = annotation["time_us"] * _NS_PER_US - start_ns
            begins.setdefault(device, []).append(begin)
    return {
        device: np.array(sorted(times), dtype=np.int64)
        for device, times in begins.items()
    }


# Tables.

#: The share of the reserved memory that must be unused for a finding.
_LEAST_UNUSED = 0.2
_LEAST_ITERATIONS = 3
#: Growth is measured over so many iterations at the end.
_MOST_ITERATIONS = 50
_MEGABYTE: Final = 1e6


def snapshot_tables(snapshot: Snapshot) -> dict[str, pd.DataFrame]:
    """Return `memory_peaks`, `memory_at_peak`, `memory_at_end`, `memory_segments`, `findings`."""
    segments = pd.DataFrame(snapshot.segments, columns=list(Segment._fields))
    tables = {
        "memory_peaks": _peaks(snapshot, segments),
        "memory_at_peak": _held_at(snapshot, snapshot.events.peak),
        "memory_at_end": _held_at(snapshot, snapshot.events.last),
        "memory_segments": _segment_table(segments),
    }
    tables["findings"] = _findings(snapshot, tables)
    return tables


def _peaks(snapshot: Snapshot, segments: pd.DataFrame) -> pd.DataFrame:
    events = snapshot.events
    device_count = len(events.devices)

    def count_recorded(chosen: BoolArray) -> Int64Array:
        return np.bincount(
            events.place[snapshot.recorded & chosen], minlength=device_count
        )

    reserved_by_device = segments.groupby("device")["total_bytes"].sum()
    reserved = reserved_by_device.reindex(events.devices, fill_value=0).to_numpy()
    peak_level = events.level[events.peak]
    reserved_at_peak = np.maximum(
        reserved - _reserved_later(snapshot, events.time[events.peak]), peak_level
    )
    return pd.DataFrame(
        {
            "device": events.devices,
            "allocations": count_recorded(events.size > 0),
            "frees": count_recorded(events.size < 0),
            "peak_allocated_bytes": peak_level,
            "peak_at_ms": events.time[events.peak] / NS_PER_MS,
            "end_total_bytes": events.level[events.last],
            "reserved_at_peak_bytes": reserved_at_peak,
            "unused_at_peak_bytes": reserved_at_peak - peak_level,
            "reserved_bytes": reserved,
        }
    )


def _reserved_later(snapshot: Snapshot, peak_time: Int64Array) -> Int64Array:
    """Return how much each device reserved after its peak, less what it gave back, bytes."""
    changes = snapshot.segment_changes
    devices = snapshot.events.devices
    place = np.searchsorted(devices, changes["device"].to_numpy())
    is_known = np.isin(changes["device"].to_numpy(), devices)
    place = place[is_known]
    times = changes["time"].to_numpy()[is_known]
    amounts = changes["bytes"].to_numpy()[is_known]
    is_later = times > peak_time[place]
    return sums(
        group_index=place[is_later], values=amounts[is_later], group_count=len(devices)
    )


def _segment_table(segments: pd.DataFrame) -> pd.DataFrame:
    sizes = ["total_bytes", "allocated_bytes", "active_bytes"]
    groups = segments.groupby(["device", "segment_type", "stream"])[sizes]
    table = groups.sum()
    table.insert(0, "segments", groups.size())
    return table.reset_index()


def _held_at(snapshot: Snapshot, moments: Int64Array) -> pd.DataFrame:
    """Return what is held after an event of each device, by frame, the most first."""
    events = snapshot.events
    owners = {"python_frame": (snapshot.frame, snapshot.frames)}
    table = by_owner(owners, blocks_of(events, owners, events.alive_at(moments)))
    table = table.sort_values(
        ["place", "bytes"], ascending=[True, False], ignore_index=True
    )
    place = table.pop("place").to_numpy()
    table.insert(0, "device", events.devices[place])
    table["% of all"] = percent(table["bytes"].to_numpy(), events.level[moments][place])
    return table


class _Growth(NamedTuple):
    """A frame whose blocks grow with each iteration."""

    frame: str
    bytes_per_iteration: int
    iterations: int


def _growth(snapshot: Snapshot, place: int) -> _Growth | None:
    """Return the frame of a device whose blocks grow most, and in each iteration; None without."""
    events = snapshot.events
    first = events.first[place]
    last = events.last[place]
    device = int(events.devices[place])
    no_iterations = np.empty(0, dtype=np.int64)
    begins = snapshot.iterations.get(device, no_iterations)
    begins = begins[-_MOST_ITERATIONS:]
    times = events.time[first : last + 1]
    first_in_iteration = np.searchsorted(times, begins) + first
    last_before_begin = first_in_iteration - 1
    moments = last_before_begin[last_before_begin >= first]
    if len(moments) < _LEAST_ITERATIONS:
        return None
    birth = events.blocks.birth
    death = events.blocks.death
    is_of_device = (events.place[birth] == place) & snapshot.recorded[birth]
    birth = birth[is_of_device]
    death = death[is_of_device]
    held_by_frame = []
    for moment in moments.tolist():
        is_born = birth <= moment
        is_not_freed = (death < 0) | (death > moment)
        alive = birth[is_born & is_not_freed]
        held_by_frame.append(
            sums(
                group_index=snapshot.frame[alive],
                values=events.size[alive],
                group_count=len(snapshot.frames),
            )
        )
    changes = np.diff(held_by_frame, axis=0)
    grows_each_time = (changes > 0).all(axis=0)
    total_change = held_by_frame[-1] - held_by_frame[0]
    growth = np.where(grows_each_time, total_change, 0)
    most = int(growth.argmax())
    if growth[most] == 0:
        return None
    return _Growth(
        frame=snapshot.frames[most],
        bytes_per_iteration=int(growth[most]) // (len(moments) - 1),
        iterations=len(moments),
    )


class _SnapshotFinding(NamedTuple):
    """A row of the table of findings."""

    finding: str
    device: int
    title: str
    bytes: int
    python_frame: str
    advice: str


def _findings(snapshot: Snapshot, tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return what to look at, by device; the largest frames that can be changed are named."""
    findings = []
    for place, peak in enumerate(tables["memory_peaks"].to_dict("records")):
        findings.append(_peak_finding(peak, tables["memory_at_peak"]))
        unused = peak["unused_at_peak_bytes"]
        if unused > _LEAST_UNUSED * peak["reserved_at_peak_bytes"]:
            findings.append(
                _SnapshotFinding(
                    finding="fragmentation",
                    device=peak["device"],
                    title=f"Fragmented memory at the peak: {unused / _MEGABYTE:,.0f} MB",
                    bytes=unused,
                    python_frame="",
                    advice="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
                )
            )
        cached = peak["reserved_bytes"] - peak["end_total_bytes"]
        if cached > _LEAST_UNUSED * peak["reserved_bytes"]:
            findings.append(
                _SnapshotFinding(
                    finding="cache",
                    device=peak["device"],
                    title="Memory still cached for later allocations at the end: "
                    f"{cached / _MEGABYTE:,.0f} MB",
                    bytes=cached,
                    python_frame="",
                    advice="Release it with torch.cuda.empty_cache() if another program "
                    "needs it.",
                )
            )
        growth = _growth(snapshot, place)
        if growth is not None:
            more = f"{growth.bytes_per_iteration / _MEGABYTE:,.1f} MB"
            findings.append(
                _SnapshotFinding(
                    finding="leak",
                    device=peak["device"],
                    title=f"Memory grows by {more} in each of {growth.iterations} "
                    "iterations",
                    bytes=growth.bytes_per_iteration,
                    python_frame=growth.frame,
                    advice="Drop the references that keep these blocks alive.",
                )
            )
    return pd.DataFrame(findings, columns=list(_SnapshotFinding._fields))


def _peak_finding(peak: dict[Any, Any], held_at_peak: pd.DataFrame) -> _SnapshotFinding:
    """Return the finding about the peak of a device."""
    is_of_device = held_at_peak["device"] == peak["device"]
    is_frame = ~held_at_peak["python_frame"].str.startswith("(")
    held_by_frames = held_at_peak[is_of_device & is_frame]
    frame = NO_FRAME
    size = 0
    if len(held_by_frames):
        frame = held_by_frames["python_frame"].iloc[0]
        size = int(held_by_frames["bytes"].iloc[0])
    peak_mb = peak["peak_allocated_bytes"] / _MEGABYTE
    return _SnapshotFinding(
        finding="memory-peak",
        device=peak["device"],
        title=f"Peak memory: {peak_mb:,.0f} MB, of which one frame allocated "
        f"{size / _MEGABYTE:,.0f} MB",
        bytes=size,
        python_frame=frame,
        advice="Allocate less there, or free it earlier.",
    )


def compare_snapshots(first: Snapshot, second: Snapshot) -> dict[str, pd.DataFrame]:
    """Return peaks, and what was held at them and at the end by frame, of two snapshots."""
    first_tables = snapshot_tables(first)
    second_tables = snapshot_tables(second)
    result = {
        "memory_peaks": _side_by_side(
            first_tables=first_tables,
            second_tables=second_tables,
            name="memory_peaks",
            keys=["device"],
        )
    }
    for name in ("memory_at_peak", "memory_at_end"):
        keys = ["device", "python_frame"]
        table = _side_by_side(
            first_tables=first_tables,
            second_tables=second_tables,
            name=name,
            keys=keys,
            compared=["blocks", "bytes"],
        )
        change = table["bytes B - A"].abs()
        largest_change_first = np.lexsort((-change, table["device"]))
        result[name] = table.iloc[largest_change_first].reset_index(drop=True)
    return result


def _side_by_side(
    first_tables: dict[str, pd.DataFrame],
    second_tables: dict[str, pd.DataFrame],
    name: str,
    keys: list[str],
    compared: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Return columns of a table of two snapshots, `A`, `B` and their difference; all by default."""
    first = first_tables[name].set_index(keys)
    second = second_tables[name].set_index(keys)
    columns: dict[str, pd.Series] = {}
    for column in first.columns if compared is None else compared:
        pair = pd.concat(
            [first[column], second[column]], axis=1, keys=["A", "B"]
        ).fillna(0)
        columns[f"{column} A"] = pair["A"]
        columns[f"{column} B"] = pair["B"]
        columns[f"{column} B - A"] = pair["B"] - pair["A"]
    return pd.DataFrame(columns).reset_index()
