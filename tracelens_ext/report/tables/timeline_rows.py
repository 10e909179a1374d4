"""Rows of the table `gpu_timeline` about the analyzed time, for all devices."""

from __future__ import annotations

from typing import Final

from tracelens_ext.lazy import pd

ANALYZED: Final = "analyzed_"
#: What of the wall time of a device is not analyzed.
SET_ASIDE: Final = ("not_recorded_time", "warm_up_time")
#: What the analyzed time divides into, by the `type` without `analyzed_`.
_PARTS: Final = (
    "computation_time",
    "exposed_comm_time",
    "exposed_memcpy_time",
    "busy_time",
    "idle_time",
)


def analyzed_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows about what is analyzed and what is not; none if all is analyzed everywhere.

    Of a device of which everything is analyzed, the table has no such rows; they are added.
    """
    kind = frame["type"].astype(str)
    is_shown = kind.str.startswith(ANALYZED) | kind.isin(list(SET_ASIDE))
    if "device" not in frame or not is_shown.any():
        return frame[is_shown]
    blocks = []
    for _, of_device in frame.groupby("device", sort=False):
        rows = of_device[is_shown[of_device.index]]
        if not len(rows):
            rows = _all_analyzed(of_device)
        blocks.append(rows)
    return pd.concat(blocks, ignore_index=True)


def _all_analyzed(of_device: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a device of which everything is analyzed."""
    total = of_device[of_device["type"] == "total_time"]
    parts = of_device[of_device["type"].isin(list(_PARTS))]
    nothing = [
        total.assign(**{"type": kind, "time ms": 0.0, "percent": 0.0})
        for kind in SET_ASIDE
    ]
    whole = total.assign(type=f"{ANALYZED}time")
    named_parts = parts.assign(type=ANALYZED + parts["type"].astype(str))
    return pd.concat(nothing + [whole, named_parts], ignore_index=True)
