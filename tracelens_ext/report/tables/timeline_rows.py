"""The rows of the table `gpu_timeline` about the analyzed time, for all devices."""

from __future__ import annotations

from typing import Final

from tracelens_ext.lazy import pd

#: How the `type` of rows about the analyzed time begins.
ANALYZED: Final = "analyzed_"
#: The `type` of rows about time of a device that is not analyzed.
SET_ASIDE: Final = ("not_recorded_time", "warm_up_time")
#: The `type` of rows about the parts of the analyzed time, without `analyzed_`.
_PARTS: Final = (
    "computation_time",
    "exposed_comm_time",
    "exposed_memcpy_time",
    "busy_time",
    "idle_time",
)


def analyzed_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows about analyzed and not analyzed time; empty if all time is analyzed.

    The table has no such rows for a device whose time is all analyzed. They are added if another
    device has them.
    """
    row_type = frame["type"].astype(str)
    is_shown = row_type.str.startswith(ANALYZED) | row_type.isin(list(SET_ASIDE))
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
    """Return the rows for a device whose time is all analyzed."""
    total = of_device[of_device["type"] == "total_time"]
    parts = of_device[of_device["type"].isin(list(_PARTS))]
    zero_rows = [
        total.assign(**{"type": row_type, "time ms": 0.0, "percent": 0.0})
        for row_type in SET_ASIDE
    ]
    analyzed_time = total.assign(type=f"{ANALYZED}time")
    named_parts = parts.assign(type=ANALYZED + parts["type"].astype(str))
    return pd.concat(zero_rows + [analyzed_time, named_parts], ignore_index=True)
