"""The verdict of a comparison: how much work a trace did, how fast, and what changed most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from tracelens_ext.compare.alignment import WorkAndSpeed
from tracelens_ext.lazy import pd

#: How many rows a verdict names.
_NAMED_ROWS = 3
#: Smaller changes of the amount of work, and of the speed in percent, count as none.
_SAME_WORK = 0.005
_SAME_SPEED_PERCENT = 0.5
#: Endings of the columns that can contain the name of a row. The first one with a text is used.
_NAME_COLUMNS: Final = ("operation", "_name", "category", "cpu_op", "launcher", "type")


@dataclass(frozen=True)
class WorkUnit:
    """The unit of work by whose number times are divided."""

    kind: Literal["iteration", "period", "trace"]
    counts: Sequence[float]  #: the number of units of each trace
    #: 1 for iterations; for periods, the share of GPU time in similar periods; 0 for whole traces
    confidence: float


@dataclass(frozen=True)
class ComparisonVerdict:
    """The verdict on one trace, compared with the baseline."""

    text: str  #: the verdict as a sentence
    work_ratio: float | None  #: the trace's amount of work divided by the baseline's
    #: the trace's GPU time divided by the baseline's, for the same work
    speed_ratio: float | None
    places: pd.DataFrame  #: the rows that changed most


def prefixes(letters: Sequence[str]) -> dict[str, str]:
    """Return letter → prefix of its columns, for each trace except the baseline.

    With two traces, the columns need no prefix.
    """
    if len(letters) == 2:
        return {letters[1]: ""}
    return {letter: f"{letter}_" for letter in letters[1:]}


def verdict(
    baseline: str, letter: str, ratios: WorkAndSpeed, rows: pd.DataFrame
) -> ComparisonVerdict:
    """Return the verdict on a trace.

    Args:
        baseline: the letter of the baseline.
        letter: the letter of the trace.
        ratios: work and speed of the trace, compared with the baseline.
        rows: a table that compares the two, the row with the largest change first.
    """
    text = _work_and_speed_text(baseline, letter, ratios)
    if not text:
        text = f"{baseline} and {letter} have nothing in common that could be compared"
    largest = _largest_changes(rows)
    if len(largest):
        difference_column = _difference_column(rows)
        names = [
            f"{_name(row)} {row[difference_column]:+,.3f} ms"
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
    compared_work = "the same work"
    if ratios.work is not None:
        if abs(ratios.work - 1) >= _SAME_WORK:
            text = work_text(letter, ratios.work, baseline)
        else:
            text = f"{letter} did the same work as {baseline}"
            compared_work = "it"
    if ratios.speed is not None:
        change_percent = 100 * (ratios.speed - 1)
        if abs(change_percent) < _SAME_SPEED_PERCENT:
            text += " at the same speed"
        else:
            direction = "more" if change_percent > 0 else "less"
            change = f"{abs(change_percent):.1f} % {direction}"
            text += f", and took {change} GPU time for {compared_work}"
    return text


def work_text(letter: str, ratio: float, baseline: str) -> str:
    """Return how much work a trace did compared with the baseline, as a clause."""
    relation = "times" if ratio >= 1 else "of"
    return f"{letter} did {ratio:.2f} {relation} {baseline}'s work"


def _difference_column(rows: pd.DataFrame) -> str:
    """Return the name of the column with the differences of a table of two traces."""
    for column in rows:
        if str(column).endswith("difference_ms"):
            return str(column)
    raise ValueError("the table shows no differences")


def _largest_changes(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that changed most, at most three."""
    has_changed = rows[_difference_column(rows)].abs() > 0
    return rows[has_changed].head(_NAMED_ROWS)


def _name(row: Mapping[Any, Any]) -> str:
    """Return the name of a row, with the end of its path if it has one."""
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
