"""What became of the work of a trace: how much it did compared with the baseline, and how fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from tracelens_ext.compare.alignment import WorkAndSpeed
from tracelens_ext.lazy import pd

#: The largest rows that a verdict names.
_NAMED_ROWS = 3
#: What is no change: of the amount of work, and of speed in percent.
_SAME_WORK = 0.005
_SAME_SPEED_PERCENT = 0.5
#: How the columns end that say what a row is about; the first with a text counts.
_NAME_COLUMNS: Final = ("operation", "_name", "category", "cpu_op", "launcher", "type")


@dataclass(frozen=True)
class WorkUnit:
    """What times are divided by."""

    kind: Literal["iteration", "period", "trace"]
    counts: Sequence[float]  #: how many each trace has
    #: 1 for annotated iterations; of periods the share of the GPU time that comes back; else 0
    confidence: float


@dataclass(frozen=True)
class ComparisonVerdict:
    """What became of the work of one trace, compared with the baseline."""

    text: str  #: a sentence
    work_ratio: float | None  #: its amount of work by that of the baseline
    #: its GPU time by that of the baseline, for the same work
    speed_ratio: float | None
    places: pd.DataFrame  #: the rows that changed most


def prefixes(letters: Sequence[str]) -> dict[str, str]:
    """Return what the columns of each trace but the baseline begin with, by its letter."""
    is_pair = len(letters) == 2
    return {letter: "" if is_pair else f"{letter}_" for letter in letters[1:]}


def verdict(
    baseline: str, letter: str, ratios: WorkAndSpeed, rows: pd.DataFrame
) -> ComparisonVerdict:
    """Return what happened.

    Args:
        baseline: what the first trace is called.
        letter: what the other one is called.
        ratios: of the other one to the baseline.
        rows: a table of both, the largest change first.
    """
    text = _work_and_speed_text(baseline, letter, ratios)
    if not text:
        text = f"{baseline} and {letter} have nothing in common that could be compared"
    largest = _largest_changes(rows)
    if len(largest):
        changed = _difference_column(rows)
        names = [
            f"{_name(row)} {row[changed]:+,.3f} ms"
            for row in largest.to_dict("records")
        ]
        text = f"{text}; the largest changes: {', '.join(names)}"
    else:
        text = f"{text}; there are no differences"
    return ComparisonVerdict(
        text=f"{text}.",
        work_ratio=ratios.work,
        speed_ratio=ratios.speed,
        places=largest,
    )


def _work_and_speed_text(baseline: str, letter: str, ratios: WorkAndSpeed) -> str:
    """Return how much work a trace did and how fast; empty if neither is known."""
    text = ""
    compared = "the same work"
    if ratios.work is not None:
        if abs(ratios.work - 1) >= _SAME_WORK:
            text = work_text(letter, ratios.work, baseline)
        else:
            text = f"{letter} did the same work as {baseline}"
            compared = "it"
    if ratios.speed is not None:
        change_percent = 100 * (ratios.speed - 1)
        if abs(change_percent) < _SAME_SPEED_PERCENT:
            text += " at the same speed"
        else:
            direction = "more" if change_percent > 0 else "less"
            change = f"{abs(change_percent):.1f} % {direction}"
            text += f", and took {change} GPU time for {compared}"
    return text


def work_text(letter: str, ratio: float, baseline: str) -> str:
    """Return how much work a trace did, beside the baseline."""
    relation = "times" if ratio >= 1 else "of"
    return f"{letter} did {ratio:.2f} {relation} {baseline}'s work"


def _difference_column(rows: pd.DataFrame) -> str:
    """Return the column of differences of a table of two traces."""
    for column in rows:
        if str(column).endswith("difference_ms"):
            return str(column)
    raise ValueError("the table shows no differences")


def _largest_changes(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that changed most."""
    changed = rows[rows[_difference_column(rows)].abs() > 0]
    return changed.head(_NAMED_ROWS)


def _name(row: Mapping[Any, Any]) -> str:
    """Return what a row is about, and the end of its path."""
    name = ""
    for column, value in row.items():
        is_name = str(column).endswith(_NAME_COLUMNS)
        if is_name and str(value):
            name = str(value)
            break
    path = str(row.get("path") or "")
    _, _, path_end = path.rpartition("/")
    if path_end:
        return f"{name} in {path_end}"
    return name
