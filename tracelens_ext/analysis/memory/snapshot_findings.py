"""The findings of a snapshot: peak, fragmentation, cached memory, and growth with iterations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.memory.snapshot import NO_FRAME, Snapshot
from tracelens_ext.lazy import pd
from tracelens_ext.trace import Int64Array
from tracelens_ext.trace.grouping import sums

#: Unused or cached memory is a finding if it exceeds this share of the reserved memory.
_LEAST_UNUSED_SHARE: Final = 0.2
#: Growth is a finding only if it is seen at the start of at least this many iterations.
_FEWEST_ITERATIONS: Final = 3
#: Growth is measured over at most this many iterations, the last ones.
_MOST_ITERATIONS: Final = 50
_MEGABYTE: Final = 1e6


class _SnapshotFinding(NamedTuple):
    """A row of the table of findings."""

    finding: str
    device: int
    title: str
    bytes: int
    python_frame: str
    advice: str


def snapshot_findings(
    snapshot: Snapshot, memory_peaks: pd.DataFrame, memory_at_peak: pd.DataFrame
) -> pd.DataFrame:
    """Return a row for each finding, by device.

    Args:
        snapshot: the snapshot.
        memory_peaks: the table with a row for each device.
        memory_at_peak: the table with the memory in use at the peak by frame, largest first.
    """
    findings: list[_SnapshotFinding] = []
    for index, peak in enumerate(memory_peaks.to_dict("records")):
        findings.append(_peak_finding(peak, memory_at_peak))
        findings.extend(_unused_findings(peak))
        growth = _growth(snapshot, index)
        if growth is not None:
            findings.append(_growth_finding(peak["device"], growth))
    return pd.DataFrame(findings, columns=list(_SnapshotFinding._fields))


def _peak_finding(peak: dict[Any, Any], held_at_peak: pd.DataFrame) -> _SnapshotFinding:
    """Return the finding about the peak of a device, which names the largest frame.

    Args:
        peak: the row of the device in the table `memory_peaks`.
        held_at_peak: the table `memory_at_peak`.
    """
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


def _unused_findings(peak: dict[Any, Any]) -> Iterator[_SnapshotFinding]:
    """Yield the findings about memory of a device that is reserved but not in use.

    Args:
        peak: the row of the device in the table `memory_peaks`.
    """
    unused = peak["unused_at_peak_bytes"]
    if unused > _LEAST_UNUSED_SHARE * peak["reserved_at_peak_bytes"]:
        yield _SnapshotFinding(
            finding="fragmentation",
            device=peak["device"],
            title=f"Fragmented memory at the peak: {unused / _MEGABYTE:,.0f} MB",
            bytes=unused,
            python_frame="",
            advice="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        )
    cached = peak["reserved_bytes"] - peak["end_total_bytes"]
    if cached > _LEAST_UNUSED_SHARE * peak["reserved_bytes"]:
        yield _SnapshotFinding(
            finding="cache",
            device=peak["device"],
            title="Memory still cached for later allocations at the end: "
            f"{cached / _MEGABYTE:,.0f} MB",
            bytes=cached,
            python_frame="",
            advice="Release it with torch.cuda.empty_cache() if another program "
            "needs it.",
        )


class _Growth(NamedTuple):
    """The memory of a frame that grows with each iteration."""

    frame: str
    bytes_per_iteration: int
    iterations: int


def _growth_finding(device: int, growth: _Growth) -> _SnapshotFinding:
    """Return the finding about memory of a device that grows with each iteration."""
    more = f"{growth.bytes_per_iteration / _MEGABYTE:,.1f} MB"
    return _SnapshotFinding(
        finding="leak",
        device=device,
        title=f"Memory grows by {more} in each of {growth.iterations} iterations",
        bytes=growth.bytes_per_iteration,
        python_frame=growth.frame,
        advice="Drop the references that keep these blocks alive.",
    )


def _growth(snapshot: Snapshot, device_index: int) -> _Growth | None:
    """Return the frame of a device whose memory grows most, and grows with each iteration.

    Returns None if there is no such frame, or if there are too few iterations.
    """
    last_events = _last_events_before_iterations(snapshot, device_index)
    if len(last_events) < _FEWEST_ITERATIONS:
        return None
    held_bytes = _held_bytes(snapshot, device_index, last_events)
    grows_each_time = (np.diff(held_bytes, axis=0) > 0).all(axis=0)
    growth_of_frame = np.where(grows_each_time, held_bytes[-1] - held_bytes[0], 0)
    frame = int(growth_of_frame.argmax())
    growth = int(growth_of_frame[frame])
    if growth == 0:
        return None
    return _Growth(
        frame=snapshot.frames[frame],
        bytes_per_iteration=growth // (len(last_events) - 1),
        iterations=len(last_events),
    )


def _last_events_before_iterations(snapshot: Snapshot, device_index: int) -> Int64Array:
    """Return the last event of a device before each of its last iterations begins."""
    events = snapshot.events
    first = events.first[device_index]
    last = events.last[device_index]
    device = int(events.devices[device_index])
    no_iterations = np.empty(0, dtype=np.int64)
    starts = snapshot.iterations.get(device, no_iterations)
    starts = starts[-_MOST_ITERATIONS:]
    times = events.time[first : last + 1]
    last_before_start = np.searchsorted(times, starts) + first - 1
    last_events: Int64Array = last_before_start[last_before_start >= first]
    return last_events


def _held_bytes(
    snapshot: Snapshot, device_index: int, after_events: Int64Array
) -> Int64Array:
    """Return the bytes of a device in use by frame right after each of n events, (n, frames).

    Only blocks whose allocation was recorded count.
    """
    events = snapshot.events
    birth = events.blocks.birth
    death = events.blocks.death
    is_of_device = (events.device_index[birth] == device_index) & snapshot.recorded[
        birth
    ]
    birth = birth[is_of_device]
    death = death[is_of_device]
    held_bytes = []
    for event in after_events.tolist():
        is_born = birth <= event
        is_not_freed = (death < 0) | (death > event)
        alive = birth[is_born & is_not_freed]
        held_bytes.append(
            sums(
                group_index=snapshot.frame[alive],
                values=events.size[alive],
                group_count=len(snapshot.frames),
            )
        )
    return np.array(held_bytes)
