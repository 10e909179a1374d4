"""What is said of a comparison: how much work a trace did and how fast; the facts; notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from tracelens_ext.compare.measurement import TRACELENS
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from tracelens_ext.compare.comparison import Comparison

#: The largest rows that a verdict names.
_NAMED = 3
#: What is no change: of the amount of work, and of speed in percent.
_SAME_WORK, _SAME_SPEED = 0.005, 0.5


@dataclass(frozen=True)
class Unit:
    """What times are divided by."""

    kind: Literal["iteration", "period", "trace"]
    counts: Sequence[float]  #: how many each trace holds
    #: 1 for annotated iterations; of periods the share of the GPU time that comes back; else 0
    confidence: float


@dataclass(frozen=True)
class Verdict:
    """What became of the work of one trace, compared with the baseline."""

    text: str  #: a sentence
    work_ratio: float | None  #: its amount of work by that of the baseline
    speed_ratio: float | None  #: its GPU time by that of the baseline, for the same work
    places: pd.DataFrame  #: the rows that changed most


def prefixes(letters: Sequence[str]) -> dict[str, str]:
    """What the columns of each trace but the baseline begin with, by its letter."""
    return {letter: "" if len(letters) == 2 else f"{letter}_" for letter in letters[1:]}


def verdict(
    letters: tuple[str, str], ratios: tuple[float | None, float | None], rows: pd.DataFrame
) -> Verdict:
    """Say what happened."""
    (a, b), (work, speed), told = letters, ratios, ""
    if work is not None:
        same = abs(work - 1) < _SAME_WORK
        told = f"{b} did the work of {a}" if same else work_text(b, work, a)
    if speed is not None:
        change = 100 * (speed - 1)
        more = f"{abs(change):.1f} % {'more' if change > 0 else 'less'}"
        other = f", and took {more} GPU time for the same work"
        told += " at the same speed" if abs(change) < _SAME_SPEED else other
    changed = next(column for column in rows if str(column).endswith("difference_ms"))
    largest = rows[rows[changed].abs() > 0].head(_NAMED)
    named = [f"{_name(row)} {row[changed]:+,.3f} ms" for row in largest.to_dict("records")]
    told = told or f"{a} and {b} share nothing that could be compared"
    told += f"; the largest changes: {', '.join(named)}" if named else "; nothing differs"
    return Verdict(f"{told}.", work, speed, largest)


def work_text(letter: str, ratio: float, baseline: str) -> str:
    """How much work a trace did, beside the baseline."""
    return f"{letter} did {ratio:.2f} {'times' if ratio >= 1 else 'of'} {baseline}'s work"


#: How the columns end that say what a row is about; the first with a text counts.
_NAMES: Final = ("operation", "_name", "category", "cpu_op", "launcher", "type")


def _name(row: Mapping[Any, Any]) -> str:
    texts = [str(value) for column, value in row.items() if str(column).endswith(_NAMES)]
    name = next((text for text in texts if text), "")
    path = str(row.get("path") or "").rpartition("/")[2]
    return f"{name} in {path}" if path else name


#: Share of the baseline's GPU time in kernels of shared names below which kernels are not
#: worth comparing, percent.
_SHARED_KERNELS = 50.0
#: Share of the GPU time outside of whole iterations that deserves a word, percent.
_MUCH_OUTSIDE = 1.0


def facts_of(comparison: Comparison) -> list[tuple[str, object]]:
    """Files, devices, iterations and total time of each trace."""
    facts: dict[str, object] = {"Verdict": " ".join(each.text for each in comparison.verdicts)}
    for letter, each in comparison.named:
        facts[letter if len(facts) > 1 else f"{letter} (baseline)"] = each.path
        facts |= {f"{letter} devices": each.devices, f"{letter} iterations": each.iterations_told}
    facts["Times"] = time_basis(comparison)
    if comparison.unit.kind == "period":
        counts = zip(comparison.letters, comparison.unit.counts, strict=True)
        told = (f"{letter} {count:.4g}" for letter, count in counts)
        facts["Periods of kernel names"] = ", ".join(told)
    for letter, total in zip(comparison.letters, _total_times(comparison), strict=True):
        facts[f"{letter} total time (ms)"] = total
    return [*facts.items()]


def notes_of(comparison: Comparison) -> list[str]:
    """How total time changed; then how the comparison was made, a sentence each."""
    named, basis = comparison.named, comparison.basis
    before, *totals = _total_times(comparison)
    notes = [
        f"{letter} against {comparison.letters[0]}, total time {time_basis(comparison)}:"
        f" {before:,.3f} to {total:,.3f} ms, {total - before:+,.3f} ms"
        f"{f' ({100 * (total - before) / before:+.1f} %)' if before else ''}."
        for letter, total in zip(comparison.letters[1:], totals, strict=True)
    ]
    without = [letter for letter, measured in named if not measured.iterations]
    reports = [letter for letter, measured in named if measured.report]
    if basis == "iteration":
        notes.append(
            "Times and counts are of an average iteration: GPU events launched in whole iterations,"
            " divided by the number of iterations. Idle and total time count a gap after each"
            " iteration; the one after the last is taken to be average."
        )
        single = [letter for letter, measured in named if measured.iterations == 1]
        if 0 < len(single) < len(named):  # the gap between iterations is unknown
            text = f"{_do(single, 'has', 'have')} a single whole iteration, and so no gap between"
            notes.append(f"{text} iterations: idle and total time are short of one.")
        notes += _outside_notes(comparison)
    elif reports:
        text = (
            f"Whole traces are compared, as {_do(reports, 'is a report', 'are reports')}, without"
        )
        notes.append(f"{text} the times of iterations.")
    elif basis == "period":
        text = "Times and counts are of an average period of kernel names, as not every trace has"
        text += " iterations: all GPU events, divided by how often the kernels come back."
        notes.append(text)
    elif without and len(without) < len(named):
        text = f"Whole traces are compared, as {_do(without, 'has', 'have')} no whole iteration (a"
        notes.append(f"{text} ProfilerStep annotation that launched GPU work and ended in time).")
    if empty := [letter for letter, measured in named if measured.events == 0]:
        notes.append(f"{_do(empty, 'holds', 'hold')} no GPU events.")
    return notes + _report_notes(comparison) + _different_kernels_notes(comparison)


def _do(letters: Sequence[str], one: str, several: str) -> str:
    return f"{' and '.join(letters)} {one if len(letters) == 1 else several}"


#: What a table shows where some report holds no more than TraceLens's sheets do.
_AS_REFERENCE: Mapping[str, str] = {
    "categories": "Categories are those of operations, by their names, without communication",
    "operations": "Operations are those that launched GPU work, with its busy time, without"
    " communication",
    "kernels": "Kernels are told apart by name alone, and copies and fills do not count",
}


def _report_notes(comparison: Comparison) -> list[str]:
    """What reports do not hold, and what that means for the comparison."""
    notes, held = [], list(zip(comparison.letters, comparison.figures, strict=True))
    for name, said in _AS_REFERENCE.items():
        if lacking := [letter for letter, figures in held if name not in figures.tables]:
            holds = f"{_do(lacking, 'does', 'do')} not hold"
            there = f"{said}, as in TraceLens's sheets: {holds} more."
            absent = f"There is no table of {name}, which {holds}."
            notes.append(there if name in comparison.aligned else absent)
    makers = {measured.report for measured in comparison.measurements}
    if TRACELENS in makers and len(makers) > 1:
        notes.append(
            "TraceLens's timeline leaves out GPU events without a launch; with"
            " --exclude-unlinked-kernels (which `compare` takes beside such a report) so does ours."
            " It files some operations, such as those of flash attention, under `other`."
        )
    return notes + [f"{letter}: {n}." for letter, each in comparison.named for n in each.notes]


def time_basis(comparison: Comparison) -> str:
    """What the times are of: `per iteration`, `per period` or `of the whole trace`."""
    basis = comparison.basis
    return "of the whole trace" if basis == "trace" else f"per {basis}"


def _total_times(comparison: Comparison) -> list[float]:
    """The total time of each trace, ms; of its longest device where it has several."""
    kinds = comparison.aligned["timeline"].keys["type"].to_numpy()
    totals = comparison.times_ms("timeline")[kinds == "total_time"]
    return [float(total) for total in totals.max(axis=0, initial=0.0)]


def _outside_notes(comparison: Comparison) -> list[str]:
    """How much GPU time of each trace is in none of its whole iterations."""
    counted = (
        (letter, 100 * (1 - (each.figures("iteration").whole("ns") or 0) / whole))
        for letter, each in comparison.named
        if (whole := each.total.whole("ns"))
    )
    return [
        f"{letter}: {outside:.1f} % of the GPU time was not launched in whole iterations,"
        " or has no launch in the trace, and does not count; --total compares all of it."
        for letter, outside in counted
        if outside >= _MUCH_OUTSIDE
    ]


def _different_kernels_notes(comparison: Comparison) -> list[str]:
    """Where two traces run other kernels: on another device, with another library or version."""
    if "kernels" not in comparison.aligned:
        return []
    (a, *others), (own, *theirs) = comparison.letters, comparison.times_ms("kernels").T
    shared = [100 * own[of > 0].sum() / (own.sum() or 1) for of in theirs]
    return [
        f"{letter} runs other kernels: those that {a} has too make {share:.1f} % of {a}'s GPU time."
        " Compare places."
        for letter, share, of in zip(others, shared, theirs, strict=True)
        if share < _SHARED_KERNELS and own.sum() and of.sum()
    ]
