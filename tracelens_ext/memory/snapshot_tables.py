"""Tables of allocator snapshots: peaks, who held what, segments, findings; and two compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.memory.snapshot import NO_FRAME
from tracelens_ext.trace import NS_PER_MS
from tracelens_ext.work.grouping import maxima, number_groups, percent, sums

if TYPE_CHECKING:
    from tracelens_ext.memory.snapshot import Snapshot
    from tracelens_ext.trace import Int64Array

_SEGMENT: Final = ["device", "segment_type", "stream"]
_SIZES: Final = ["total_bytes", "allocated_bytes", "active_bytes"]
_LEAST_UNUSED, _LEAST_ITERATIONS, _MOST_ITERATIONS = 0.2, 3, 50
_MEGABYTE: Final = 1e6


def snapshot_tables(snapshot: Snapshot) -> dict[str, pd.DataFrame]:
    """`memory_peaks`, `memory_at_peak`, `memory_at_end`, `memory_segments`, `findings`."""
    events, count = snapshot.events, len(snapshot.events.devices)
    segments = pd.DataFrame(snapshot.segments, columns=[*_SEGMENT, *_SIZES])
    reserved = segments.groupby("device")["total_bytes"].sum()
    place, recorded = events.place, snapshot.recorded
    at_end = _held(snapshot, events.last)
    peaks = pd.DataFrame(
        {
            "device": events.devices,
            "allocations": np.bincount(place[recorded & (events.size > 0)], minlength=count),
            "frees": np.bincount(place[recorded & (events.size < 0)], minlength=count),
            "peak_allocated_bytes": events.level[events.peak],
            "peak_at_ms": events.time[events.peak] / NS_PER_MS,
            "end_total_bytes": events.level[events.last],
            "reserved_bytes": reserved.reindex(events.devices, fill_value=0).to_numpy(),
        }
    )
    of_segments = segments.groupby(_SEGMENT)[_SIZES]
    table = of_segments.sum()
    table.insert(0, "segments", of_segments.size())
    tables = {
        "memory_peaks": peaks,
        "memory_at_peak": _held(snapshot, events.peak),
        "memory_at_end": at_end,
        "memory_segments": table.reset_index(),
    }
    return tables | {"findings": _findings(snapshot, tables)}


def _held(snapshot: Snapshot, moments: Int64Array) -> pd.DataFrame:
    """What is held after an event of each device, by frame, the most first."""
    events = snapshot.events
    birth = events.blocks.birth[events.alive_at(moments)]
    device, size, frame = events.place[birth], events.size[birth], snapshot.frame[birth]
    first, number = number_groups([device, frame])
    place, bytes_ = device[first], sums(number, size, len(first))
    table = pd.DataFrame(
        {
            "device": events.devices[place],
            "python_frame": [snapshot.frames[code] for code in frame[first].tolist()],
            "blocks": np.bincount(number, minlength=len(first)),
            "bytes": bytes_,
            "largest_bytes": maxima(number, size, len(first)),
            "% of all": percent(bytes_, events.level[moments][place]),
        }
    )
    return table.iloc[np.lexsort((-bytes_, place))].reset_index(drop=True)


def _growth(snapshot: Snapshot, place: int) -> tuple[str, int, int] | None:
    """The frame whose blocks grow with each iteration: bytes an iteration, over how many."""
    events = snapshot.events
    first, last = events.first[place], events.last[place]
    begins = snapshot.iterations.get(int(events.devices[place]), first[:0] if first.ndim else [])
    at = np.searchsorted(events.time[first : last + 1], begins[-_MOST_ITERATIONS:]) - 1 + first
    at = at[at >= first]
    if len(at) < _LEAST_ITERATIONS:
        return None
    birth, death = events.blocks.birth, events.blocks.death
    those = (events.place[birth] == place) & snapshot.recorded[birth]
    birth, death = birth[those], death[those]
    frame, size = snapshot.frame[birth], events.size[birth]
    held = np.stack(
        [
            sums(frame[alive], size[alive], len(snapshot.frames))
            for moment in at.tolist()
            for alive in [(birth <= moment) & ((death < 0) | (death > moment))]
        ]
    )
    grows = (np.diff(held, axis=0) > 0).all(axis=0)
    amount = np.where(grows, held[-1] - held[0], 0)
    most = int(amount.argmax())
    if not amount[most]:
        return None
    return snapshot.frames[most], int(amount[most]) // (len(at) - 1), len(at)


def _findings(snapshot: Snapshot, tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """What to look at, by device; the largest frames that can be changed are named."""
    rows = []
    for place, peak in enumerate(tables["memory_peaks"].to_dict("records")):
        device, most = peak["device"], peak["peak_allocated_bytes"]
        held = tables["memory_at_peak"]
        held = held[(held["device"] == device) & ~held["python_frame"].str.startswith("(")]
        frame = held["python_frame"].iloc[0] if len(held) else NO_FRAME
        size = int(held["bytes"].iloc[0]) if len(held) else 0
        title = f"{most / _MEGABYTE:,.0f} MB at the peak, {size / _MEGABYTE:,.0f} MB of one frame"
        rows.append(("memory-peak", device, title, size, frame, "keep less of it, or later"))
        unused = peak["reserved_bytes"] - peak["end_total_bytes"]
        if unused > _LEAST_UNUSED * peak["reserved_bytes"]:
            title = f"{unused / _MEGABYTE:,.0f} MB are reserved and not in use at the end"
            advice = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
            rows.append(("fragmentation", device, title, unused, "", advice))
        if (found := _growth(snapshot, place)) is not None:
            frame, size, iterations = found
            title = f"{size / _MEGABYTE:,.1f} MB more are held at each of {iterations} iterations"
            rows.append(("leak", device, title, size, frame, "drop what refers to them"))
    return pd.DataFrame(
        rows, columns=["finding", "device", "title", "bytes", "python_frame", "advice"]
    )


def compare_snapshots(first: Snapshot, second: Snapshot) -> dict[str, pd.DataFrame]:
    """Peaks, and what was held at them and at the end by frame, of two snapshots side by side."""
    tables = [snapshot_tables(each) for each in (first, second)]
    result = {}
    for name, keys in (
        ("memory_peaks", ["device"]),
        ("memory_at_peak", ["device", "python_frame"]),
        ("memory_at_end", ["device", "python_frame"]),
    ):
        a, b = (each[name].set_index(keys) for each in tables)
        columns: dict[str, pd.Series] = {}
        for column in a.columns.intersection(["blocks", "bytes"] if len(keys) > 1 else a.columns):
            pair = pd.concat([a[column], b[column]], axis=1, keys=["A", "B"]).fillna(0)
            columns |= {f"{column} {letter}": pair[letter] for letter in "AB"}
            columns[f"{column} B - A"] = pair["B"] - pair["A"]
        table = pd.DataFrame(columns).reset_index()
        if len(keys) > 1:
            change = table["bytes B - A"].abs()
            table = table.iloc[np.lexsort((-change, table["device"]))].reset_index(drop=True)
        result[name] = table
    return result
