"""How much work a trace did and how fast, compared with another: unit, ratios, a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens_ext.compare.alignment import Aligned
    from tracelens_ext.trace import Float64Array

#: The largest rows that a verdict names.
_NAMED = 3
#: What is no change: of the amount of work, and of speed in percent.
_SAME_WORK, _SAME_SPEED = 0.005, 0.5
#: How far the counts of periods may lie from what calls say.
_PERIODS_AGREE = 0.1
_NS = 6  # decimals of ms


@dataclass(frozen=True)
class Unit:
    """What times are divided by."""

    kind: Literal["iteration", "period", "trace"]
    counts: Sequence[float]  #: how many each trace holds
    #: 1 for annotated iterations; of periods the share of the GPU time that comes back; else 0
    confidence: float

    def document(self, letters: Sequence[str]) -> dict[str, object]:
        """As JSON has it."""
        counts = {f"{name}_count": n for name, n in zip(letters, self.counts, strict=True)}
        return {"kind": self.kind, **counts, "confidence": round(self.confidence, 3)}


@dataclass(frozen=True)
class Verdict:
    """What became of the work of one trace, compared with the baseline."""

    text: str  #: a sentence
    work_ratio: float | None  #: its amount of work by that of the baseline
    speed_ratio: float | None  #: its GPU time by that of the baseline, for the same work
    places: pd.DataFrame  #: the rows that changed most

    def document(self) -> dict[str, object]:
        """As JSON has it."""
        places = self.places.to_dict("records")
        return {"text": self.text, "speed_ratio": self.speed_ratio, "places": places}


def shares_of_change(
    times_ms: Sequence[Float64Array], calls: Sequence[Float64Array], prefix: str
) -> dict[str, Float64Array]:
    """What of each difference is the number of calls, in whole ns, and what their speed.

    What is on one side alone is all number of calls.
    """
    both, difference = (calls[0] > 0) & (calls[1] > 0), times_ms[1] - times_ms[0]
    per_call = np.divide(times_ms[0], calls[0], out=np.zeros(len(both)), where=both)
    amount = np.round((calls[1] - calls[0]) * per_call, _NS)
    amount = np.where(both, amount, difference)
    speed = np.round(difference - amount, _NS + 3) + 0.0  # what rounding leaves is no difference
    return {f"{prefix}by_calls_ms": amount, f"{prefix}by_speed_ms": speed}


def work_and_speed(rows: Aligned, at: int) -> tuple[float | None, float | None]:
    """The ratios of whole traces by the calls of what both have.

    Returns:
        The median ratio of calls, weighted by A's time; and B's time by that of as many calls of A.
    """
    pair = [0, at]
    both = ((rows.ns[:, pair] > 0) & (rows.calls[:, pair] > 0)).all(axis=1)
    if not both.any():
        return None, None
    ns, ratio = rows.ns[both], rows.calls[both, at] / rows.calls[both, 0]
    order = np.argsort(ratio)
    weight = np.cumsum(ns[order, 0])
    median = float(ratio[order][np.searchsorted(weight, weight[-1] / 2)])
    return median, float(ns[:, at].sum() / (ns[:, 0] * ratio).sum())


def periods_agree(counts: Sequence[float], ratios: Sequence[float | None]) -> bool:
    """Whether the counts of periods are of one amount of work, as the calls are."""
    return all(
        ratio is not None and abs(count / counts[0] / ratio - 1) <= _PERIODS_AGREE
        for count, ratio in zip(counts[1:], ratios, strict=True)
    )


def verdict(
    letters: tuple[str, str], ratios: tuple[float | None, float | None], rows: pd.DataFrame
) -> Verdict:
    """Say what happened.

    Args:
        letters: of the baseline and of the other.
        ratios: of work and of speed, as far as they are known.
        rows: a table of the comparison, the largest change first.
    """
    a, b = letters
    work, speed = ratios
    said = []
    if work is not None:
        same = abs(work - 1) < _SAME_WORK
        said.append(f"{b} did the work of {a}" if same else f"{b} did {work:.2f} of {a}'s work")
    if speed is not None:
        change = 100 * (speed - 1)
        same = abs(change) < _SAME_SPEED
        more = f"{abs(change):.1f} % {'more' if change > 0 else 'less'}"
        said.append(
            " at the same speed" if same else f", and took {more} GPU time for the same work"
        )
    changed = next(column for column in rows if str(column).endswith("difference_ms"))
    largest = rows[rows[changed].abs() > 0].head(_NAMED)
    named = [f"{_name(row)} {row[changed]:+,.3f} ms" for row in largest.to_dict("records")]
    told = "".join(said) or f"{a} and {b} share nothing that could be compared"
    told += f"; the largest changes: {', '.join(named)}" if named else "; nothing differs"
    return Verdict(f"{told}.", work, speed, largest)


def _name(row: Mapping[Any, Any]) -> str:
    """What a row is called in a sentence."""
    texts = [str(v) for k, v in row.items() if str(k).endswith(("operation", "_name", "category"))]
    name = next((text for text in texts if text), "")
    path = str(row.get("path") or "").rpartition("/")[2]
    return f"{name} in {path}" if path else name
