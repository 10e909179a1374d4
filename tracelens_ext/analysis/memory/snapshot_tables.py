"""The tables of a snapshot of PyTorch's CUDA allocator, and their comparison."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracelens_ext.analysis.memory.blocks import blocks_of, by_owner
from tracelens_ext.analysis.memory.owners import LabelledCodes
from tracelens_ext.analysis.memory.snapshot import Segment, Snapshot
from tracelens_ext.analysis.memory.snapshot_findings import snapshot_findings
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_MS, BoolArray, Int64Array
from tracelens_ext.trace.grouping import percent, sums


def snapshot_tables(snapshot: Snapshot) -> dict[str, pd.DataFrame]:
    """Return the tables of a snapshot by name.

    They are `memory_peaks`, `memory_at_peak`, `memory_at_end`, `memory_segments` and `findings`.
    """
    segments = pd.DataFrame(snapshot.segments, columns=list(Segment._fields))
    tables = {
        "memory_peaks": _peaks(snapshot, segments),
        "memory_at_peak": _held_after(snapshot, snapshot.events.peak),
        "memory_at_end": _held_after(snapshot, snapshot.events.last),
        "memory_segments": _segment_table(segments),
    }
    tables["findings"] = snapshot_findings(
        snapshot, tables["memory_peaks"], tables["memory_at_peak"]
    )
    return tables


def _peaks(snapshot: Snapshot, segments: pd.DataFrame) -> pd.DataFrame:
    """Return a row per device: its events, and the memory in use and reserved at the peak."""
    events = snapshot.events
    device_count = len(events.devices)

    def count_recorded(chosen: BoolArray) -> Int64Array:
        """Return the number of chosen events of each device that are in the file."""
        return np.bincount(
            events.device_index[snapshot.recorded & chosen], minlength=device_count
        )

    reserved_by_device = segments.groupby("device")["total_bytes"].sum()
    reserved = reserved_by_device.reindex(events.devices, fill_value=0).to_numpy()
    peak_level = events.level[events.peak]
    reserved_later = _reserved_later(snapshot, events.time[events.peak])
    reserved_at_peak = np.maximum(reserved - reserved_later, peak_level)
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
    """Return the bytes that each device reserved after its peak, less those that it returned.

    Args:
        snapshot: the snapshot.
        peak_time: the time of the peak of each device, ns, (d,).
    """
    devices = snapshot.events.devices
    changes = snapshot.segment_changes
    changes = changes[changes["device"].isin(devices)]
    device_index = np.searchsorted(devices, changes["device"].to_numpy())
    is_later = changes["time"].to_numpy() > peak_time[device_index]
    return sums(
        group_index=device_index[is_later],
        values=changes["bytes"].to_numpy()[is_later],
        group_count=len(devices),
    )


def _segment_table(segments: pd.DataFrame) -> pd.DataFrame:
    """Return the number and the sizes of the segments by device, type and stream."""
    sizes = ["total_bytes", "allocated_bytes", "active_bytes"]
    groups = segments.groupby(["device", "segment_type", "stream"])[sizes]
    table = groups.sum()
    table.insert(0, "segments", groups.size())
    return table.reset_index()


def _held_after(snapshot: Snapshot, event_of_device: Int64Array) -> pd.DataFrame:
    """Return the memory in use right after an event of each device by frame, largest first.

    Args:
        snapshot: the snapshot.
        event_of_device: index of an event of each device, (d,).
    """
    events = snapshot.events
    owners = {"python_frame": LabelledCodes(snapshot.frame, snapshot.frames)}
    blocks = blocks_of(events, owners, events.alive_after(event_of_device))
    table = by_owner(owners, blocks)
    table = table.sort_values(
        ["device_index", "bytes"], ascending=[True, False], ignore_index=True
    )
    device_index = table.pop("device_index").to_numpy()
    table.insert(0, "device", events.devices[device_index])
    level = events.level[event_of_device]
    table["% of all"] = percent(table["bytes"].to_numpy(), level[device_index])
    return table


def compare_snapshots(first: Snapshot, second: Snapshot) -> dict[str, pd.DataFrame]:
    """Return tables of two snapshots side by side: peaks, and memory by frame.

    The tables are `memory_peaks`, `memory_at_peak` and `memory_at_end`. Frames whose memory differs
    most come first.
    """
    first_tables = snapshot_tables(first)
    second_tables = snapshot_tables(second)
    result = {
        "memory_peaks": _side_by_side(
            first=first_tables["memory_peaks"],
            second=second_tables["memory_peaks"],
            keys=["device"],
        )
    }
    for name in ("memory_at_peak", "memory_at_end"):
        table = _side_by_side(
            first=first_tables[name],
            second=second_tables[name],
            keys=["device", "python_frame"],
            compared=["blocks", "bytes"],
        )
        change = table["bytes B - A"].abs()
        largest_change_first = np.lexsort((-change, table["device"]))
        result[name] = table.iloc[largest_change_first].reset_index(drop=True)
    return result


def _side_by_side(
    first: pd.DataFrame,
    second: pd.DataFrame,
    keys: list[str],
    compared: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Return columns of two tables, and their differences, as `A`, `B` and `B - A`.

    Args:
        first: table A.
        second: table B.
        keys: columns that identify a row. A row that one table lacks counts as zeros.
        compared: the columns to compare; by default, all other columns.
    """
    first = first.set_index(keys)
    second = second.set_index(keys)
    if compared is None:
        compared = list(first.columns)
    columns: dict[str, pd.Series] = {}
    for column in compared:
        pair = pd.concat([first[column], second[column]], axis=1, keys=["A", "B"])
        pair = pair.fillna(0)
        columns[f"{column} A"] = pair["A"]
        columns[f"{column} B"] = pair["B"]
        columns[f"{column} B - A"] = pair["B"] - pair["A"]
    return pd.DataFrame(columns).reset_index()
