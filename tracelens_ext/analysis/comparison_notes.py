"""What a comparison says in words: what was compared and how, and what changed most."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tracelens_ext.analysis.comparison import Comparison, Measurement

#: Changes that are named, and the share of the baseline's GPU time below which none is, percent.
_MOST_NAMED, _WORTH_NAMING = 3, 0.1
#: Share of the baseline's GPU time in kernels of shared names below which kernels are not
#: worth comparing, percent.
_SHARED_KERNELS = 50.0
#: Share of the GPU time outside of whole iterations that deserves a word, percent.
_MUCH_OUTSIDE = 1.0


def comparison_facts(comparison: Comparison) -> list[tuple[str, object]]:
    """Files, devices, iterations and total time of each trace."""
    facts: list[tuple[str, object]] = []
    for letter, measured in zip(comparison.letters, comparison.measurements, strict=True):
        role = " (baseline)" if letter == comparison.letters[0] else ""
        facts += [
            (f"{letter}{role}", measured.path),
            (f"{letter} devices", measured.devices),
            (f"{letter} iterations", _iterations(measured)),
        ]
    facts.append(("Times", time_basis(comparison)))
    totals = _total_times(comparison)
    for letter, total in zip(comparison.letters, totals, strict=True):
        facts.append((f"{letter} total time (ms)", total))
    return facts


def comparison_notes(comparison: Comparison) -> list[str]:
    """How total time changed and what most; then how the comparison was made, a sentence each."""
    notes = _largest_changes(comparison)
    without = [
        letter
        for letter, measured in zip(comparison.letters, comparison.measurements, strict=True)
        if not measured.iterations
    ]
    if comparison.per_iteration:
        notes.append(
            "Times and counts are of an average iteration: GPU events launched in whole iterations,"
            " divided by the number of iterations. Idle and total time count a gap after each"
            " iteration; the one after the last is taken to be average."
        )
        notes += _single_iteration_notes(comparison)
        notes += _outside_notes(comparison)
    elif without and len(without) < len(comparison.letters):
        notes.append(
            f"Whole traces are compared, as {' and '.join(without)} {_have(without)} no whole"
            " iteration (a ProfilerStep annotation that launched GPU work and ended in time)."
        )
    empty = [
        letter
        for letter, measured in zip(comparison.letters, comparison.measurements, strict=True)
        if not measured.events
    ]
    if empty:
        notes.append(f"{' and '.join(empty)} {_have(empty, 'holds', 'hold')} no GPU events.")
    return notes + _different_kernels_notes(comparison)


def time_basis(comparison: Comparison) -> str:
    """What the times are of: `per iteration` or `of the whole trace`."""
    return "per iteration" if comparison.per_iteration else "of the whole trace"


def _iterations(measured: Measurement) -> str:
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


def _largest_changes(comparison: Comparison) -> list[str]:
    """The categories that changed most, for each trace but the baseline."""
    aligned, times = comparison.aligned["categories"], comparison.times_ms("categories")
    names = aligned.keys["kernel_category"].tolist()
    totals = _total_times(comparison)
    notes = []
    for at, letter in enumerate(comparison.letters[1:], start=1):
        difference = totals[at] - totals[0]
        notes.append(
            f"{letter} against {comparison.letters[0]}, total time {time_basis(comparison)}:"
            f" {totals[0]:,.3f} to {totals[at]:,.3f} ms,"
            f" {difference:+,.3f} ms{_in_percent(difference, totals[0])}."
        )
        change = times[:, at] - times[:, 0]
        worth = _WORTH_NAMING / 100 * times[:, 0].sum()
        order = np.argsort(-np.abs(change), kind="stable")[:_MOST_NAMED].tolist()
        told = [
            f"{names[row]} {change[row]:+,.3f} ms{_in_percent(change[row], times[row, 0])}"
            for row in order
            if abs(change[row]) > worth
        ]
        if told:
            notes.append(f"{letter}, largest changes by category: {'; '.join(told)}.")
        else:
            notes.append(
                f"{letter}: no category changed by more than {_WORTH_NAMING} % of the GPU time."
            )
    return notes


def _in_percent(change: float, baseline: float) -> str:
    return f" ({100 * change / baseline:+.1f} %)" if baseline else " (new)"


def _outside_notes(comparison: Comparison) -> list[str]:
    """How much GPU time of each trace is in none of its whole iterations."""
    notes = []
    for letter, measured in zip(comparison.letters, comparison.measurements, strict=True):
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
    single = [
        letter
        for letter, measured in zip(comparison.letters, comparison.measurements, strict=True)
        if measured.iterations == 1
    ]
    if not single or len(single) == len(comparison.letters):
        return []
    note = (
        f"{' and '.join(single)} {_have(single)} a single whole iteration, and so no gap between"
        " iterations: idle and total time are short of one."
    )
    return [note]


def _different_kernels_notes(comparison: Comparison) -> list[str]:
    """Where two traces run other kernels: on another device, with another library or version."""
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
                f" {shared:.1f} % of {comparison.letters[0]}'s GPU time. Compare categories and"
                " operations."
            )
    return notes
