"""Why the GPU was idle, in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.gaps.causes import CAUSES
from tracelens_ext.iterations.selection import Selection
from tracelens_ext.recording.told import no_gpu_work
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US
from tracelens_ext.work.grouping import maxima, minima, sums

if TYPE_CHECKING:
    from tracelens_ext.gaps.classified import ClassifiedGaps

_WORTH_SAYING = 0.0005  # of the idle time: less would be shown as 0.0 %


def answer(classified: ClassifiedGaps, selection: Selection | None = None) -> str:
    """How long the GPU was idle, of how long, and why.

    Args:
        classified: the gaps of whole devices; or of streams, then the sentence is about those.
        selection: what the gaps were found with.
    """
    chosen = selection or Selection()
    if not len(classified.work):
        return no_gpu_work(classified.work)
    if not classified.events.any():
        return f"No GPU event is selected: none is of {chosen.text}."
    who, several = _who(classified, chosen)
    subject = f"In ProfilerStep#{chosen.pstep} {who}" if chosen.pstep is not None else who
    subject = subject[0].upper() + subject[1:]
    pieces = classified.pieces.chosen(classified.pieces.gap != NONE)
    idle = sums(pieces.cause, pieces.end - pieces.start, len(CAUSES))
    total = int(idle.sum())
    before = f" before work of the category {chosen.category}" if chosen.category else ""
    if not total:
        was = "were" if several else "was"
        return f"{subject} {was} never idle{before} between the first and the last event."
    was = "were together" if several else "was"
    order = [int(i) for i in np.argsort(-idle, kind="stable") if idle[i]]
    shown = [i for i in order if idle[i] >= total * _WORTH_SAYING]
    shares = ", ".join(
        f"{CAUSES[i].replace('_', ' ')} {100.0 * idle[i] / total:.1f} %" for i in shown
    )
    span = watched_time(classified)
    return (
        f"{subject} {was} idle{before} for {in_words(total)} of {in_words(span)}"
        f" ({_percent(total, span)}): {shares}."
    )


def watched_time(classified: ClassifiedGaps) -> int:
    """The time that idle time is a part of, ns, summed over the devices or streams.

    From the first start to the last end of the selected events, as `total_time` of the timeline;
    and where the first of them ends a gap, from the beginning of that.
    """
    work, lanes, selected = classified.work, classified.gaps.lanes, classified.selected
    lane = lanes.of_gpu[selected]
    first = minima(lane, work.start[selected], len(lanes))
    np.minimum.at(first, classified.gaps.lane, classified.gaps.start)
    last = maxima(lane, work.end[selected], len(lanes))
    used = classified.events > 0
    return int((last[used] - first[used]).sum())


def _who(classified: ClassifiedGaps, selection: Selection) -> tuple[str, bool]:
    """Who was idle, and whether that is several."""
    count = int(np.count_nonzero(classified.events))
    device = f"device {selection.device}" if selection.device is not None else ""
    if classified.gaps.lanes.scope == "device":
        one, several = device or "the GPU", f"the {count} GPUs"
    else:
        of_device = f" of {device}" if device else ""
        number = f" {selection.stream}" if selection.stream is not None else ""
        one = f"stream{number}{of_device}" if number else f"the stream{of_device}"
        several = f"the {count} streams{number}{of_device}"
    return (several, True) if count > 1 else (one, False)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if part >= whole * _WORTH_SAYING else "<0.1 %"


def in_words(nanoseconds: int, like: int | None = None) -> str:
    """A time in the unit that shows its digits, or those of another time."""
    size = nanoseconds if like is None else like
    if size < NS_PER_US:
        return f"{nanoseconds} ns"
    if size < NS_PER_MS:
        return f"{nanoseconds / NS_PER_US:.3f} μs"
    return f"{nanoseconds / NS_PER_MS:,.3f} ms"
