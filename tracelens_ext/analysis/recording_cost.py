"""How much longer the recorded iterations took than those before, as `record` notes in a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from tracelens_ext.text import ms_text

#: The member of a trace in which `record` notes how it was recorded.
RECORDING_FACTS: Final = "tracelens_ext_recording"
#: A difference up to this is none, as a ratio.
_SAME = 1.05


def recording_cost_note(metadata: Mapping[str, object]) -> str:
    """Return what the recording of a trace cost; empty if the trace does not say.

    Args:
        metadata: The members of a trace beside its events.
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
    """Return how much longer recorded iterations took; empty if that is not known.

    Args:
        recorded_ms: The wall time of each recorded iteration.
        before_ms: The median wall time of the iterations before; None if there were too few.
    """
    if not recorded_ms or before_ms is None or before_ms <= 0:
        return ""
    typical_ms = median(recorded_ms)
    ratio = typical_ms / before_ms
    if 1 / _SAME <= ratio <= _SAME:
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
