"""Memory, and what is paid for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import own_texts
from tracelens_ext.memory.events import HOST, has_memory_events
from tracelens_ext.memory.usage import find_memory, memory_at_peak, memory_peaks
from tracelens_ext.operations.launchers import recomputed
from tracelens_ext.text import ms_text
from tracelens_ext.trace import NS_PER_MS

if TYPE_CHECKING:
    from tracelens_ext.findings.inspection import Inspection


def recompute(inspection: Inspection) -> Finding | None:
    """What activation checkpointing costs: time for memory, so it only informs."""
    again = inspection.wall.about(recomputed(inspection.work))
    cost, share = again.saving_ns / NS_PER_MS, inspection.share_percent(again)
    return inspection.finding(
        "recompute",
        again,
        title=f"Activation checkpointing runs parts of the forward again: {ms_text(cost)}"
        f" ({share:.1f} %)",
        informs=True,
        evidence=[Evidence("GPU time of the second forward", cost, "ms", "ops_unique_args")],
    )


_MEGABYTE = 1e6
#: A part of the peak below this, percent, is not worth a change.
_LEAST_PERCENT = 5.0
#: Nor is what was reserved at the peak below this share of the device's memory, percent, where
#: that is known.
_LEAST_OF_DEVICE = 30.0
_MOST_OWNERS = 3  # operations that are named
#: The phases and what is reserved without being in use, as in `texts.toml`, and where that is seen.
_PARTS = dict.fromkeys(("forward", "backward", "optimizer"), "memory_at_peak")
_PARTS |= {"unused": "memory_peaks"}


def memory_peak(inspection: Inspection) -> Finding | None:
    """What the most memory was allocated for, and what to change to need less."""
    if not has_memory_events(inspection.work.trace):
        return None
    memory = find_memory(inspection.work.tree)
    peaks = memory_peaks(memory).dropna(subset="peak_allocated_bytes")
    peaks = peaks[peaks["device"] != HOST].fillna({"unused_at_peak_bytes": 0})
    if not len(peaks):
        return None
    row = peaks.nlargest(1, "peak_allocated_bytes").iloc[0]
    peak, device = int(row["peak_allocated_bytes"]), int(row["device"])
    described = inspection.work.trace.described(device)
    held = peak + int(row["unused_at_peak_bytes"])
    if described and 100.0 * held < _LEAST_OF_DEVICE * described.memory_bytes:
        return None
    alive = memory_at_peak(memory)
    alive = alive[alive["device"] == device]
    parts = alive.groupby("phase")["bytes"].sum().to_dict()
    owners = alive[alive["outer_operation"] != ""].groupby("outer_operation", sort=False)["bytes"]
    parts["unused"] = row["unused_at_peak_bytes"]
    sizes = {part: int(parts.get(part, 0)) for part in _PARTS}
    largest = max(sizes, key=lambda part: sizes[part])
    share = 100.0 * sizes[largest] / max(peak, 1)
    if share < _LEAST_PERCENT:
        return None
    texts = own_texts()["memory-peak"]
    values = {"peak": f"{peak / _MEGABYTE:,.0f}", "size": f"{sizes[largest] / _MEGABYTE:,.0f}"}
    values |= {"device": str(device), "share": f"{share:.1f}", "what": texts[largest]["what"]}
    return inspection.finding(
        "memory-peak",
        None,
        informs=True,
        variant=largest,
        values=values,
        evidence=[
            Evidence("most memory allocated at once", peak / _MEGABYTE, "MB", "memory_peaks"),
            *(
                Evidence(texts[part]["what"], size / _MEGABYTE, "MB", _PARTS[part])
                for part, size in sizes.items()
            ),
            *(
                Evidence(f"of it by {name}", size / _MEGABYTE, "MB", "memory_at_peak")
                for name, size in owners.sum().nlargest(_MOST_OWNERS).items()
            ),
        ],
    )
