"""What was compared, and how, in words: the facts and notes of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.compare.measurement import TRACELENS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens_ext.compare.comparison import Comparison
    from tracelens_ext.compare.measurement import Measurement, TableName

#: Share of the baseline's GPU time in kernels of shared names below which kernels are not
#: worth comparing, percent.
_SHARED_KERNELS = 50.0
#: Share of the GPU time outside of whole iterations that deserves a word, percent.
_MUCH_OUTSIDE = 1.0


def facts_of(comparison: Comparison) -> list[tuple[str, object]]:
    """Files, devices, iterations and total time of each trace."""
    told = " ".join(each.text for each in comparison.verdicts)
    facts: list[tuple[str, object]] = [("Verdict", told)]
    for letter, measured in comparison.named:
        role = " (baseline)" if letter == comparison.letters[0] else ""
        facts += [
            (f"{letter}{role}", measured.path),
            (f"{letter} devices", measured.devices),
            (f"{letter} iterations", _iterations(measured)),
        ]
    facts.append(("Times", time_basis(comparison)))
    if comparison.unit.kind == "period":
        counts = zip(comparison.letters, comparison.unit.counts, strict=True)
        told = ", ".join(f"{letter} {count:.4g}" for letter, count in counts)
        facts.append(("Periods of kernel names", told))
    totals = _total_times(comparison)
    for letter, total in zip(comparison.letters, totals, strict=True):
        facts.append((f"{letter} total time (ms)", total))
    return facts


def notes_of(comparison: Comparison) -> list[str]:
    """How total time changed; then how the comparison was made, a sentence each."""
    notes = _total_changes(comparison)
    without = [letter for letter, measured in comparison.named if not measured.iterations]
    if comparison.basis == "iteration":
        notes.append(
            "Times and counts are of an average iteration: GPU events launched in whole iterations,"
            " divided by the number of iterations. Idle and total time count a gap after each"
            " iteration; the one after the last is taken to be average."
        )
        notes += _single_iteration_notes(comparison)
        notes += _outside_notes(comparison)
    elif reports := [letter for letter, measured in comparison.named if measured.report]:
        notes.append(
            f"Whole traces are compared, as {' and '.join(reports)}"
            f" {_have(reports, 'is a report', 'are reports')}, without the times of iterations."
        )
    elif comparison.basis == "period":
        notes.append(
            "Times and counts are of an average period of kernel names, as not every trace has"
            " iterations: all GPU events, divided by how often the kernels come back."
        )
    elif without and len(without) < len(comparison.letters):
        notes.append(
            f"Whole traces are compared, as {' and '.join(without)} {_have(without)} no whole"
            " iteration (a ProfilerStep annotation that launched GPU work and ended in time)."
        )
    empty = [letter for letter, measured in comparison.named if measured.events == 0]
    if empty:
        notes.append(f"{' and '.join(empty)} {_have(empty, 'holds', 'hold')} no GPU events.")
    return notes + _report_notes(comparison) + _different_kernels_notes(comparison)


#: What a table shows where some report holds no more than TraceLens's sheets do.
_AS_REFERENCE: Mapping[TableName, str] = {
    "categories": "Categories are those of operations, by their names, without communication",
    "operations": "Operations are those that launched GPU work, with its busy time, without"
    " communication",
    "kernels": "Kernels are told apart by name alone, and copies and fills do not count",
}


def _report_notes(comparison: Comparison) -> list[str]:
    """What reports do not hold, and what that means for the comparison."""
    notes = []
    for name, said in _AS_REFERENCE.items():
        lacking = [
            letter
            for letter, figures in zip(comparison.letters, comparison.figures, strict=True)
            if name not in figures.tables
        ]
        if not lacking:
            continue
        holds = f"{' and '.join(lacking)} {_have(lacking, 'does', 'do')} not hold"
        if name in comparison.aligned:
            notes.append(f"{said}, as in TraceLens's sheets: {holds} more.")
        else:
            notes.append(f"There is no table of {name}, which {holds}.")
    makers = {measured.report for measured in comparison.measurements}
    if TRACELENS in makers and len(makers) > 1:
        notes.append(
            "TraceLens's timeline leaves out GPU events without a launch; with"
            " --exclude-unlinked-kernels (which `compare` takes beside such a report) so does ours."
            " It files some operations, such as those of flash attention, under `other`."
        )
    return notes + [
        f"{letter}: {note}." for letter, measured in comparison.named for note in measured.notes
    ]


def time_basis(comparison: Comparison) -> str:
    """What the times are of: `per iteration`, `per period` or `of the whole trace`."""
    basis = comparison.basis
    return "of the whole trace" if basis == "trace" else f"per {basis}"


def _iterations(measured: Measurement) -> str:
    if measured.report:
        return "not in the report"
    if not measured.iterations:
        return "none whole" if measured.left_out else "none"
    label = measured.iteration_label
    shown = f"{measured.iterations} ({label})"
    return f"{shown}, not {measured.left_out}" if measured.left_out else shown


def _total_times(comparison: Comparison) -> list[float]:
    """The total time of each trace, ms; of its longest device where it has several."""
    kinds = comparison.aligned["timeline"].keys["type"].to_numpy()
    totals = comparison.times_ms("timeline")[kinds == "total_time"]
    return [float(total) for total in totals.max(axis=0, initial=0.0)]


def _total_changes(comparison: Comparison) -> list[str]:
    """How total time changed, for each trace but the baseline."""
    before, *totals = _total_times(comparison)
    return [
        f"{letter} against {comparison.letters[0]}, total time {time_basis(comparison)}:"
        f" {before:,.3f} to {total:,.3f} ms, {total - before:+,.3f} ms"
        f"{f' ({100 * (total - before) / before:+.1f} %)' if before else ''}."
        for letter, total in zip(comparison.letters[1:], totals, strict=True)
    ]


def _outside_notes(comparison: Comparison) -> list[str]:
    """How much GPU time of each trace is in none of its whole iterations."""
    notes = []
    for letter, measured in comparison.named:
        counted = measured.whole_iterations
        if counted is None or not measured.total.gpu_ns:
            continue
        outside = 100 * (1 - counted.gpu_ns / measured.total.gpu_ns)
        if outside >= _MUCH_OUTSIDE:
            notes.append(
                f"{letter}: {outside:.1f} % of the GPU time was not launched in whole iterations,"
                " or has no launch in the trace, and does not count; --total compares all of it."
            )
    return notes


def _have(letters: list[str], one: str = "has", several: str = "have") -> str:
    return one if len(letters) == 1 else several


def _single_iteration_notes(comparison: Comparison) -> list[str]:
    """Traces of one iteration beside such of several: the gap between iterations is unknown."""
    single = [letter for letter, measured in comparison.named if measured.iterations == 1]
    if not single or len(single) == len(comparison.letters):
        return []
    note = (
        f"{' and '.join(single)} {_have(single)} a single whole iteration, and so no gap between"
        " iterations: idle and total time are short of one."
    )
    return [note]


def _different_kernels_notes(comparison: Comparison) -> list[str]:
    """Where two traces run other kernels: on another device, with another library or version."""
    if "kernels" not in comparison.aligned:
        return []
    times = comparison.times_ms("kernels")
    notes = []
    for at, letter in enumerate(comparison.letters[1:], start=1):
        baseline = times[:, 0].sum()
        if not baseline or not times[:, at].sum():
            continue
        shared = 100 * times[times[:, at] > 0, 0].sum() / baseline
        if shared < _SHARED_KERNELS:
            notes.append(
                f"{letter} runs other kernels: those that {comparison.letters[0]} has too make"
                f" {shared:.1f} % of {comparison.letters[0]}'s GPU time. Compare places."
            )
    return notes
