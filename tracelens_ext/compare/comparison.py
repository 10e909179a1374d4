"""Compares the measurements of several traces or reports: where their time went, what changed.

The first measurement is the baseline. It is called A, the others are called B, C and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tracelens_ext.compare.aligned_tables import (
    align_places,
    align_tables,
    comparison_table,
    spelled_as_in_reports,
)
from tracelens_ext.compare.alignment import Aligned, WorkAndSpeed
from tracelens_ext.compare.measurement import (
    KEYS,
    STAND_INS,
    Figures,
    Measurement,
    measure,
)
from tracelens_ext.compare.notes import facts_of, notes_of
from tracelens_ext.compare.verdict import ComparisonVerdict, WorkUnit, verdict
from tracelens_ext.errors import TracelensError, UsageError
from tracelens_ext.isolation import PartFailures
from tracelens_ext.lazy import pd
from tracelens_ext.notebook import cell_html, short_repr
from tracelens_ext.trace import NONE, NS_PER_MS, Float64Array

__all__ = ["KEYS", "Aligned", "Comparison", "Measurement", "compare", "measure"]

#: The letters of the alphabet without S, which is also the unit of time.
_LETTERS = "ABCDEFGHIJKLMNOPQRTUVWXYZ"
#: The amount of work is determined by places if there are at least this many.
_MIN_PLACES = 3
#: Periods are used as the unit of work only if the ratio of their counts deviates from the ratio
#: of the calls by at most this share.
_MAX_PERIOD_DEVIATION = 0.1
#: The tables by which the amount of work can be determined, the most reliable first.
_TABLES_FOR_WORK = ("operations", "kernels", "categories")


class Savings(NamedTuple):
    """The savings of f findings in each trace."""

    ids: list[str]  #: the ids of the findings, (f,)
    #: ms per unit and percent of the analyzed time; NaN if a trace lacks the finding, (f, t, 2)
    values: Float64Array


@dataclass(frozen=True, eq=False)
class Comparison:
    """A comparison of several traces with the first of them, the baseline A."""

    measurements: Sequence[Measurement]  #: one for each trace, A first
    total: bool = False  #: True to compare whole traces even if they have iterations
    #: True to compare the last trace with the median of the others
    history: bool = False
    #: messages about parts that could not be computed
    failures: PartFailures = field(default_factory=PartFailures)

    def __repr__(self) -> str:
        facts = [f"{label}: {value};" for label, value in self.facts]
        return short_repr("Comparison", " ".join(facts))

    def _repr_html_(self) -> str:
        lines = [f"{label}: {value}" for label, value in self.facts]
        lines.extend(self.notes)
        return cell_html("Comparison", lines, self.tables)

    @cached_property
    def letters(self) -> list[str]:
        """The letters of the traces in the names of columns: A to Z without S, then AA, BB, …."""
        letters = []
        for index in range(len(self.measurements)):
            letter = _LETTERS[index % len(_LETTERS)]
            repetitions = index // len(_LETTERS) + 1
            letters.append(letter * repetitions)
        return letters

    @property
    def named(self) -> list[tuple[str, Measurement]]:
        """The letter and the measurement of each trace."""
        return list(zip(self.letters, self.measurements, strict=True))

    @cached_property
    def unit(self) -> WorkUnit:
        """The unit of work: iterations if all traces have them, else periods, else whole traces."""
        iterations = [measurement.iterations for measurement in self.measurements]
        step_names = {measurement.step_name for measurement in self.measurements}
        if all(iterations) and len(step_names) == 1:
            return WorkUnit(kind="iteration", counts=iterations, confidence=1.0)
        periods = [
            measurement.period
            for measurement in self.measurements
            if measurement.period is not None
        ]
        if len(periods) == len(self.measurements):
            counts = [period.count for period in periods]
            if self._periods_agree_with_calls(counts):
                return WorkUnit(
                    kind="period",
                    counts=counts,
                    confidence=min(period.confidence for period in periods),
                )
        return WorkUnit(
            kind="trace", counts=[1] * len(self.measurements), confidence=0.0
        )

    def _periods_agree_with_calls(self, counts: Sequence[float]) -> bool:
        """Tell whether the ratios of the counts of periods agree with the ratios of the calls."""
        first_count = counts[0]
        for count, ratios in zip(counts[1:], self._ratios_by_calls, strict=True):
            if not ratios.work:
                return False
            ratio = count / first_count / ratios.work
            deviation = abs(ratio - 1)
            if deviation > _MAX_PERIOD_DEVIATION:
                return False
        return True

    @property
    def basis(self) -> str:
        """The unit to which the times refer: `iteration`, `period` or `trace`."""
        return "trace" if self.total else self.unit.kind

    @cached_property
    def divisors(self) -> list[float]:
        """The number by which the time of each trace is divided: that of its units, or 1."""
        if self.total:
            return [1.0] * len(self.measurements)
        return list(self.unit.counts)

    @property
    def figures(self) -> list[Figures]:
        """The figures of each trace that are compared."""
        return [measurement.figures(self.basis) for measurement in self.measurements]

    @cached_property
    def _ratios_by_calls(self) -> list[WorkAndSpeed]:
        """Work and speed of each trace except the baseline, by the calls that both traces made."""
        totals = [measurement.total for measurement in self.measurements]
        pairs = align_places(totals)
        if pairs and min(len(pair.ns) for pair in pairs) >= _MIN_PLACES:
            return [pair.work_and_speed(1) for pair in pairs]
        other_traces = range(1, len(totals))
        table = self._table_for_work(totals, has_places=bool(pairs))
        if table is None:
            return [WorkAndSpeed(None, None) for _ in other_traces]
        return [table.work_and_speed(trace) for trace in other_traces]

    def _table_for_work(
        self, totals: Sequence[Figures], *, has_places: bool
    ) -> Aligned | None:
        """Return the table by which the amount of work is determined; None if there is none."""
        kernel_tables = [
            figures.tables["kernels"]
            for figures in totals
            if "kernels" in figures.tables
        ]
        if has_places and len(kernel_tables) == len(totals):
            # The traces have few places, so they have few operations, too.
            return align_tables(kernel_tables, KEYS["kernels"])
        for name in _TABLES_FOR_WORK:
            if name in self.aligned:
                return self.aligned[name]
        return None

    @cached_property
    def verdicts(self) -> list[ComparisonVerdict]:
        """The verdict on each trace except the baseline; empty if the computation fails."""
        with self.failures.isolate("The verdict of the comparison"):
            return self._find_verdicts()
        return []

    def _find_verdicts(self) -> list[ComparisonVerdict]:
        """Return the verdict on each trace except the baseline."""
        kind = self.unit.kind
        counts = self.unit.counts
        ns_per_unit = []
        for measurement, count in zip(self.measurements, counts, strict=True):
            ns = measurement.figures(kind).whole("ns") or 0
            ns_per_unit.append(ns / count)
        candidates = ("places",) + _TABLES_FOR_WORK + ("timeline",)
        table = next(self.tables[name] for name in candidates if name in self.tables)
        verdicts = []
        for index, ratios in enumerate(self._ratios_by_calls, start=1):
            letter = self.letters[index]
            # Counts of units are more exact than ratios of calls, but they mean nothing if the
            # two traces have no work in common.
            if kind != "trace" and ratios.work is not None:
                speed = ns_per_unit[index] / ns_per_unit[0] if ns_per_unit[0] else None
                ratios = WorkAndSpeed(counts[index] / counts[0], speed)
            rows = table
            if "trace" in table:
                rows = table[table["trace"] == letter].dropna(axis=1, how="all")
            verdicts.append(
                verdict(
                    baseline=self.letters[0], letter=letter, ratios=ratios, rows=rows
                )
            )
        return verdicts

    @property
    def unit_facts(self) -> dict[str, object]:
        """The unit of work, as JSON contains it."""
        facts: dict[str, object] = {"kind": self.unit.kind}
        for letter, count in zip(self.letters, self.unit.counts, strict=True):
            facts[f"{letter}_count"] = count
        facts["confidence"] = round(self.unit.confidence, 3)
        return facts

    @property
    def members(self) -> dict[str, object]:
        """The members of the JSON besides the tables; they are lists for more than two traces."""
        verdicts: Any = [
            {
                "text": verdict.text,
                "speed_ratio": verdict.speed_ratio,
                "places": verdict.places.to_dict("records"),
            }
            for verdict in self.verdicts
        ]
        work_ratios: Any = [verdict.work_ratio for verdict in self.verdicts]
        if len(verdicts) == 1:
            verdicts = verdicts[0]
            work_ratios = work_ratios[0]
        return {"unit": self.unit_facts, "work_ratio": work_ratios, "verdict": verdicts}

    @cached_property
    def aligned(self) -> dict[str, Aligned]:
        """The tables with the figures of all traces, before they are divided.

        If a report lacks a table, its stand-in is compared (`STAND_INS`): the table that
        TraceLens's sheets contain. If a report lacks the stand-in, too, the table is left out.
        """
        aligned: dict[str, Aligned] = {"timeline": self._timeline()}
        totals = [measurement.total.tables for measurement in self.measurements]
        if all("phases" in tables for tables in totals):
            with self.failures.isolate("The table phases of the comparison"):
                phases = [tables["phases"] for tables in totals]
                aligned["phases"] = align_tables(phases, ("phase",))
        for name, stand_in in STAND_INS.items():
            with self.failures.isolate(f"The table {name} of the comparison"):
                table = self._aligned_table(name, KEYS[name])
                if table is None:
                    table = self._aligned_table(stand_in, (stand_in,))
                if table is not None:
                    aligned[name] = table
        return aligned

    @property
    def _has_reports(self) -> bool:
        """True if at least one measurement comes from a report."""
        return any(measurement.report for measurement in self.measurements)

    def _aligned_table(self, name: str, keys: tuple[str, ...]) -> Aligned | None:
        """Return a table with the rows of all traces; None if a trace lacks it."""
        parts = []
        for figures in self.figures:
            if name not in figures.tables:
                return None
            part = figures.tables[name]
            if self._has_reports:
                part = spelled_as_in_reports(part, keys)
            parts.append(part)
        return align_tables(parts, keys)

    def _timeline(self) -> Aligned:
        """Return the timelines of all traces.

        If there are reports, only the types of time that all timelines have are compared.
        """
        parts = [figures.tables["timeline"] for figures in self.figures]
        if all(part["device"].nunique() < 2 for part in parts):
            parts = [part.assign(device=NONE) for part in parts]
        if self._has_reports:
            shared_kinds: set[str] = set()
            kinds = [set(part["type"]) for part in parts if len(part)]
            if kinds:
                shared_kinds = set.intersection(*kinds)
            parts = [part[part["type"].isin(shared_kinds)] for part in parts]
        return align_tables(parts, KEYS["timeline"])

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables of the comparison by name, without those that a trace lacks.

        The first columns identify the row: `device` (if a trace has several) and `type`;
        `kernel_category`; `cpu_op`; `kernel_category` and `kernel_name`. They are followed by
        `A_time_ms`, `B_time_ms`, `difference_ms` (B - A), `difference_percent` (of A) and `ratio`
        (B / A), and by `A_count` and `B_count`, the numbers of GPU events (not in the timeline).
        `difference_percent` and `ratio` are empty if A has no time. With more than two traces, the
        columns of each trace are called `B_time_ms`, `B_difference_ms`, and so on.

        The row with the largest difference comes first, whatever its sign. The timeline keeps its
        order. The table `phases` exists if all traces have steps of a serving engine. Its counts
        are steps, and `A_ms_per_step` is the time per step.
        """
        tables: dict[str, pd.DataFrame] = {}
        for name, aligned in self.aligned.items():
            with self.failures.isolate(f"The table {name} of the comparison"):
                divisors = self._divisors_of_table(name)
                tables[name] = comparison_table(
                    table_name=name,
                    aligned=aligned,
                    letters=self.letters,
                    divisors=divisors,
                )
        with self.failures.isolate("The table places of the comparison"):
            places = self._places()
            if places is not None:
                tables["places"] = places
        return tables

    def _places(self) -> pd.DataFrame | None:
        """Return the places of A beside those of each other trace; None if a trace lacks them."""
        parts = []
        baseline = self.letters[0]
        for index, pair in enumerate(align_places(self.figures), start=1):
            letter = self.letters[index]
            divisors = [self.divisors[0], self.divisors[index]]
            table = comparison_table(
                table_name="places",
                aligned=pair,
                letters=[baseline, letter],
                divisors=divisors,
            )
            if len(self.letters) > 2:
                table = _with_letter(table, letter)
            parts.append(table)
        if not parts:
            return None
        return pd.concat(parts, ignore_index=True)

    @cached_property
    def facts(self) -> list[tuple[str, object]]:
        """Facts about the compared traces: label and value."""
        return facts_of(self)

    @cached_property
    def notes(self) -> list[str]:
        """Sentences about how the total time changed, and about how the traces were compared."""
        return notes_of(self)

    @cached_property
    def savings(self) -> Savings | None:
        """The savings of each finding; None if the findings of a trace are not known."""
        findings = [
            measurement.findings
            for measurement in self.measurements
            if measurement.findings is not None
        ]
        if len(findings) < len(self.measurements):
            return None
        ids: dict[str, None] = {}
        for savings_of_trace in findings:
            ids.update(dict.fromkeys(savings_of_trace))
        values = np.full((len(ids), len(findings), 2), np.nan)
        for row, name in enumerate(ids):
            for column, savings_of_trace in enumerate(findings):
                if name not in savings_of_trace:
                    continue
                values[row, column] = savings_of_trace[name]
        values[..., 0] /= self.divisors
        return Savings(list(ids), values)

    def times_ms(self, name: str) -> Float64Array:
        """Return the times of a table as they are shown, ms, (k, t)."""
        # There is a single division, so that equal averages are equal to the last bit.
        divisors = NS_PER_MS * np.array(self._divisors_of_table(name))
        times: Float64Array = self.aligned[name].ns / divisors
        return times

    def _divisors_of_table(self, name: str) -> list[float]:
        """Return the numbers by which a table is divided; phases are those of whole traces."""
        if name == "phases":
            return [1.0] * len(self.measurements)
        return self.divisors


def _with_letter(places: pd.DataFrame, letter: str) -> pd.DataFrame:
    """Return the places of two traces with the letter of the second in the names of columns.

    The table can then be joined with those of other traces.
    """
    names = {}
    for column in places:
        name = str(column)
        if not name.startswith(("path", "backward", "A_", f"{letter}_")):
            names[name] = f"{letter}_{name.removeprefix('B_')}"
    table = places.rename(columns=names)
    table.insert(0, "trace", letter)
    return table


def compare(
    measurements: Sequence[Measurement], *, total: bool = False, history: bool = False
) -> Comparison:
    """Compare traces with the first of them.

    Args:
        measurements: the measurements of at least two traces.
        total: compare whole traces even if all of them have iterations or periods.
        history: compare the last trace with the median of all traces before it.

    Raises:
        UsageError: there are fewer than two traces.
        TracelensError: no trace has a GPU event.
    """
    if len(measurements) < 2:
        raise UsageError("a comparison needs at least two traces")
    if all(measurement.events == 0 for measurement in measurements):
        paths = ", ".join(measurement.path for measurement in measurements)
        raise TracelensError(
            f"{paths}: no trace contains GPU events, so there is nothing to compare"
        )
    return Comparison(measurements=measurements, total=total, history=history)
