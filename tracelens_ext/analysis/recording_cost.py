"""The cost of recording: how much longer recorded iterations took than the iterations before them.

The command `record` measures both, and notes them in the trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from tracelens_ext.text import ms_text

#: The key in the metadata of a trace under which `record` notes how it was recorded.
RECORDING_FACTS: Final = "tracelens_ext_recording"
#: Two times whose ratio is at most this count as equal.
_MAX_RATIO_OF_EQUAL = 1.05


def recording_cost_note(metadata: Mapping[str, object]) -> str:
    """Return a sentence about the cost of recording a trace; empty if the trace lacks the times.

    Args:
        metadata: the metadata of the trace.
    """
    facts = metadata.get(RECORDING_FACTS)
    if not isinstance(facts, dict):
        return ""
    recorded_ms = facts.get("recorded_ms")
    before_ms = facts.get("before_ms")
    if not isinstance(recorded_ms, list):
        return ""
    numbers = [time for time in recorded_ms if isinstance(time, int | float)]
    if not isinstance(before_ms, int | float):
        before_ms = None
    return recording_cost_sentence(numbers, before_ms)


def recording_cost_sentence(
    recorded_ms: Sequence[float], before_ms: float | None
) -> str:
    """Return a sentence about the cost of recording; empty if it is unknown.

    Args:
        recorded_ms: the wall time of each recorded iteration.
        before_ms: the median wall time of the iterations before them; None if there were too few.
    """
    if not recorded_ms or before_ms is None or before_ms <= 0:
        return ""
    typical_ms = median(recorded_ms)
    ratio = typical_ms / before_ms
    if 1 / _MAX_RATIO_OF_EQUAL <= ratio <= _MAX_RATIO_OF_EQUAL:
        return (
            f"The recorded iterations took as long as those before them: "
            f"{ms_text(typical_ms)} (median)."
        )
    if ratio < 1:
        return (
            f"The recorded iterations were faster than those before them: "
            f"{ms_text(typical_ms)} instead of {ms_text(before_ms)} (medians)."
        )
    return (
        f"Recording made the iterations {ratio:,.1f} times as long: {ms_text(typical_ms)} "
        f"instead of {ms_text(before_ms)} (medians of the recorded ones and of those before)."
    )
