"""The facts and notes of a comparison: how total time changed, and how the traces were compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from tracelens_ext.compare.alignment import Aligned
from tracelens_ext.compare.measurement import TRACELENS, Figures, Measurement
from tracelens_ext.compare.verdict import ComparisonVerdict, WorkUnit
from tracelens_ext.compare.wall_time import wall_time_sentences, wall_times
from tracelens_ext.trace import Float64Array

#: A note warns if kernels that both traces run take less than this share of the baseline's time.
_MIN_SHARED_KERNELS_PERCENT = 50.0
#: A note mentions GPU time outside of whole iterations from this share on.
_MUCH_OUTSIDE_PERCENT = 1.0
#: Table → what it contains if its stand-in is compared (`STAND_INS`).
_STAND_IN_DESCRIPTIONS: Mapping[str, str] = {
    "categories": "Categories are those of operations, by name, without communication",
    "operations": (
        "Operations are those that launched GPU work, with its busy time, without "
        "communication"
    ),
    "kernels": "Kernels are distinguished by name only; copies and memsets are not included",
}


class ComparedTraces(Protocol):
    """The part of `Comparison` that facts and notes need."""

    @property
    def measurements(self) -> Sequence[Measurement]:
        """One measurement for each trace, A first."""

    @property
    def letters(self) -> list[str]:
        """The letters of the traces."""

    @property
    def named(self) -> list[tuple[str, Measurement]]:
        """The letter and the measurement of each trace."""

    @property
    def unit(self) -> WorkUnit:
        """The unit of work."""

    @property
    def basis(self) -> str:
        """The unit to which the times refer: `iteration`, `period` or `trace`."""

    @property
    def divisors(self) -> list[float]:
        """The number by which the time of each trace is divided."""

    @property
    def figures(self) -> list[Figures]:
        """The figures of each trace that are compared."""

    @property
    def aligned(self) -> dict[str, Aligned]:
        """The tables with the figures of all traces, before they are divided."""

    @property
    def verdicts(self) -> list[ComparisonVerdict]:
        """The verdict on each trace except the baseline."""

    def times_ms(self, name: str) -> Float64Array:
        """Return the times of a table as they are shown, ms."""


def facts_of(comparison: ComparedTraces) -> list[tuple[str, object]]:
    """Return the verdict, and the file, devices, iterations and total time of each trace."""
    sentences = []
    times = wall_times(comparison)
    if times:
        sentences += wall_time_sentences(
            times=times, letters=comparison.letters, basis=comparison.basis
        )
    sentences += [verdict.text for verdict in comparison.verdicts]
    facts: dict[str, object] = {"Verdict": " ".join(sentences)}
    for index, (letter, measurement) in enumerate(comparison.named):
        label = letter if index else f"{letter} (baseline)"
        facts[label] = measurement.path
        facts[f"{letter} devices"] = measurement.devices
        facts[f"{letter} iterations"] = measurement.iterations_text
    facts["Times"] = time_basis(comparison)
    if comparison.unit.kind == "period":
        counts = zip(comparison.letters, comparison.unit.counts, strict=True)
        texts = [f"{letter} {count:.4g}" for letter, count in counts]
        facts["Periods of kernel names"] = ", ".join(texts)
    for letter, total_ms in zip(
        comparison.letters, _total_times(comparison), strict=True
    ):
        facts[f"{letter} total time (ms)"] = total_ms
    return list(facts.items())


def notes_of(comparison: ComparedTraces) -> list[str]:
    """Return sentences about how total time changed, then about how the traces were compared."""
    notes = list(_total_time_notes(comparison))
    notes.extend(_basis_notes(comparison))
    empty_traces = []
    for letter, measurement in comparison.named:
        if measurement.events == 0:
            empty_traces.append(letter)
    if empty_traces:
        subject = _subject(empty_traces, "contains", "contain")
        notes.append(f"{subject} no GPU events.")
    notes.extend(_report_notes(comparison))
    notes.extend(_different_kernels_notes(comparison))
    return notes


def _total_time_notes(comparison: ComparedTraces) -> Iterator[str]:
    """Yield how the total time of each trace differs from that of the baseline."""
    totals_ms = _total_times(comparison)
    baseline_ms = totals_ms[0]
    baseline = comparison.letters[0]
    for letter, total_ms in zip(comparison.letters[1:], totals_ms[1:], strict=True):
        change_ms = total_ms - baseline_ms
        text = (
            f"{letter} compared with {baseline}, total time {time_basis(comparison)}: "
            f"{baseline_ms:,.3f} ms → {total_ms:,.3f} ms, {change_ms:+,.3f} ms"
        )
        if baseline_ms:
            text = f"{text} ({100 * change_ms / baseline_ms:+.1f} %)"
        yield f"{text}."


def _basis_notes(comparison: ComparedTraces) -> Iterator[str]:
    """Yield which unit the times refer to, and why."""
    named = comparison.named
    without_iterations = [
        letter for letter, measurement in named if not measurement.iterations
    ]
    reports = [letter for letter, measurement in named if measurement.report]
    if comparison.basis == "iteration":
        yield from _iteration_notes(comparison)
    elif reports:
        subject = _subject(reports, "is a report", "are reports")
        yield f"Whole traces are compared because {subject} without times of iterations."
    elif comparison.basis == "period":
        yield (
            "Times and counts are per average repetition of the kernel sequence, "
            "because not every trace has iterations: all GPU events, divided by the "
            "number of repetitions."
        )
    elif 0 < len(without_iterations) < len(named):
        subject = _subject(without_iterations, "has", "have")
        yield (
            f"Whole traces are compared because {subject} no complete iteration (a "
            "ProfilerStep annotation that launched GPU work and ended before the "
            "recording did)."
        )


def _iteration_notes(comparison: ComparedTraces) -> Iterator[str]:
    """Yield what an average iteration contains, and what it does not."""
    yield (
        "Times and counts are per average iteration: GPU events launched in complete "
        "iterations, divided by the number of iterations. Idle and total time include "
        "the gap after each iteration; the gap after the last one is assumed to be "
        "average."
    )
    named = comparison.named
    single = [letter for letter, measurement in named if measurement.iterations == 1]
    # With a single iteration, the gap between iterations is not known.
    if 0 < len(single) < len(named):
        subject = _subject(single, "has", "have")
        yield (
            f"{subject} only one complete iteration, and so no gap between "
            "iterations: idle and total time do not include one."
        )
    yield from _outside_notes(comparison)


def _subject(letters: Sequence[str], singular: str, plural: str) -> str:
    """Return the letters of traces with a verb: `A has`, `A and B have`."""
    verb = singular if len(letters) == 1 else plural
    return f"{' and '.join(letters)} {verb}"


def _report_notes(comparison: ComparedTraces) -> Iterator[str]:
    """Yield which tables the reports lack, and what is compared in their place."""
    for table, description in _STAND_IN_DESCRIPTIONS.items():
        traces_without_table = [
            letter
            for letter, figures in zip(
                comparison.letters, comparison.figures, strict=True
            )
            if table not in figures.tables
        ]
        if not traces_without_table:
            continue
        subject = _subject(traces_without_table, "does", "do")
        if table in comparison.aligned:
            yield (
                f"{description}, as in TraceLens's sheets, because {subject} not "
                "contain more."
            )
        else:
            yield f"There is no table of {table}, because {subject} not contain it."
    programs = {measurement.report for measurement in comparison.measurements}
    if TRACELENS in programs and len(programs) > 1:
        yield (
            "TraceLens's timeline leaves out GPU events without a launch; with "
            "--exclude-unlinked-kernels (which `compare` accepts with such a report), "
            "so does ours. TraceLens puts some operations, such as those of flash "
            "attention, under `other`."
        )
    for letter, measurement in comparison.named:
        for note in measurement.notes:
            yield f"{letter}: {note}."


def time_basis(comparison: ComparedTraces) -> str:
    """Return the unit of the times in words, such as `per iteration` or `of the whole trace`."""
    if comparison.basis == "trace":
        return "of the whole trace"
    return f"per {comparison.basis}"


def _total_times(comparison: ComparedTraces) -> list[float]:
    """Return the total time of each trace, ms; with several devices, that of the longest one."""
    kinds = comparison.aligned["timeline"].keys["type"].to_numpy()
    totals = comparison.times_ms("timeline")[kinds == "total_time"]
    longest: list[float] = totals.max(axis=0, initial=0.0).tolist()
    return longest


def _outside_notes(comparison: ComparedTraces) -> Iterator[str]:
    """Yield how much GPU time of each trace is outside of its whole iterations."""
    for letter, measurement in comparison.named:
        inside_ns = measurement.figures("iteration").whole("ns") or 0
        whole_ns = measurement.total.whole("ns") or 0
        if not whole_ns:
            continue
        outside_percent = 100 * (1 - inside_ns / whole_ns)
        if outside_percent >= _MUCH_OUTSIDE_PERCENT:
            yield (
                f"{letter}: {outside_percent:.1f} % of the GPU time was not launched "
                "in complete iterations, or has no launch in the trace, and is not "
                "included; use --total to compare all of it."
            )


def _different_kernels_notes(comparison: ComparedTraces) -> Iterator[str]:
    """Yield a warning about traces that mostly run other kernels than the baseline.

    This happens on different devices, or with different versions of libraries.
    """
    if "kernels" not in comparison.aligned:
        return
    baseline = comparison.letters[0]
    times = comparison.times_ms("kernels")
    baseline_times = times[:, 0]
    baseline_time = baseline_times.sum()
    for index, letter in enumerate(comparison.letters[1:], start=1):
        other_times = times[:, index]
        if not baseline_time or not other_times.sum():
            continue
        shared_percent = 100 * baseline_times[other_times > 0].sum() / baseline_time
        if shared_percent < _MIN_SHARED_KERNELS_PERCENT:
            yield (
                f"{letter} runs different kernels: those that {baseline} has too make "
                f"up {shared_percent:.1f} % of {baseline}'s GPU time. Compare places "
                "instead."
            )
