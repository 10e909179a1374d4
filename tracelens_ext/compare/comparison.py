"""Several traces or reports side by side: where the time of each went, and what changed most.

Measurements are compared, of traces or of reports. The first is the baseline, called A.
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

#: Without the letter that is also a unit of time.
_LETTERS = "ABCDEFGHIJKLMNOPQRTUVWXYZ"
#: Places that tell the amount of work.
_MIN_PLACES = 3
#: How far the counts of periods may lie from what calls say.
_PERIODS_AGREE = 0.1
#: The tables that tell most of the amount of work, the best first.
_MOST_TELLING = ("operations", "kernels", "categories")


class Savings(NamedTuple):
    """What findings save in each trace."""

    ids: list[str]  #: of f findings
    #: ms by unit, and percent of the wall time; NaN where a trace lacks a finding, (f, t, 2)
    values: Float64Array


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several traces compared; A is the baseline."""

    measurements: Sequence[Measurement]  #: of the traces, A first
    total: bool = False  #: whole traces are compared, whatever unit they have
    history: bool = False  #: the last trace is compared with the median of the others
    #: the parts that could not be computed so far
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
        """What the traces are called in the names of columns: A to Z, then AA."""
        letters = []
        for index in range(len(self.measurements)):
            letter = _LETTERS[index % len(_LETTERS)]
            repetitions = index // len(_LETTERS) + 1
            letters.append(letter * repetitions)
        return letters

    @property
    def named(self) -> list[tuple[str, Measurement]]:
        """Each trace's letter and measurement."""
        return list(zip(self.letters, self.measurements, strict=True))

    @cached_property
    def unit(self) -> WorkUnit:
        """The repeating part that all traces have: iterations, else the period of kernel names."""
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
        """Tell whether the counts of periods differ as the calls of the traces do."""
        first_count = counts[0]
        for count, ratios in zip(counts[1:], self._ratios_by_calls, strict=True):
            if not ratios.work:
                return False
            ratio = count / first_count / ratios.work
            deviation = abs(ratio - 1)
            if deviation > _PERIODS_AGREE:
                return False
        return True

    @property
    def basis(self) -> str:
        """What the times are of: `iteration`, `period` or `trace`."""
        return "trace" if self.total else self.unit.kind

    @cached_property
    def divisors(self) -> list[float]:
        """What the time of each trace is divided by: its units, or 1."""
        if self.total:
            return [1.0] * len(self.measurements)
        return list(self.unit.counts)

    @property
    def figures(self) -> list[Figures]:
        """The figures that are compared."""
        return [measurement.figures(self.basis) for measurement in self.measurements]

    @cached_property
    def _ratios_by_calls(self) -> list[WorkAndSpeed]:
        """Work and speed of each whole trace but the baseline, by the calls of what both did."""
        totals = [measurement.total for measurement in self.measurements]
        pairs = align_places(totals)
        if pairs and min(len(pair.ns) for pair in pairs) >= _MIN_PLACES:
            return [pair.work_and_speed(1) for pair in pairs]
        others = range(1, len(totals))
        table = self._most_telling_table(totals, has_places=bool(pairs))
        if table is None:
            return [WorkAndSpeed(None, None) for _ in others]
        return [table.work_and_speed(trace) for trace in others]

    def _most_telling_table(
        self, totals: Sequence[Figures], *, has_places: bool
    ) -> Aligned | None:
        """Return the table that tells most of the amount of work; None if there is none."""
        kernels = [figures.tables.get("kernels") for figures in totals]
        known_kernels = [table for table in kernels if table is not None]
        if has_places and len(known_kernels) == len(totals):
            # Where few operations are known, the names of kernels tell more.
            return align_tables(known_kernels, KEYS["kernels"])
        for name in _MOST_TELLING:
            if name in self.aligned:
                return self.aligned[name]
        return None

    @cached_property
    def verdicts(self) -> list[ComparisonVerdict]:
        """What became of the work of each trace but the baseline; empty if that fails."""
        with self.failures.isolate("The verdict of the comparison"):
            return self._find_verdicts()
        return []

    def _find_verdicts(self) -> list[ComparisonVerdict]:
        """Return a verdict for each trace but the baseline."""
        kind = self.unit.kind
        counts = self.unit.counts
        ns_per_unit = []
        for measurement, count in zip(self.measurements, counts, strict=True):
            ns = measurement.figures(kind).whole("ns") or 0
            ns_per_unit.append(ns / count)
        candidates = ("places",) + _MOST_TELLING + ("timeline",)
        table = next(self.tables[name] for name in candidates if name in self.tables)
        verdicts = []
        for index, ratios in enumerate(self._ratios_by_calls, start=1):
            letter = self.letters[index]
            # else the two share nothing
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
    def unit_told(self) -> dict[str, object]:
        """The unit as JSON has it."""
        facts: dict[str, object] = {"kind": self.unit.kind}
        for letter, count in zip(self.letters, self.unit.counts, strict=True):
            facts[f"{letter}_count"] = count
        facts["confidence"] = round(self.unit.confidence, 3)
        return facts

    @property
    def members(self) -> dict[str, object]:
        """What JSON has beside the tables; lists for several traces."""
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
        return {"unit": self.unit_told, "work_ratio": work_ratios, "verdict": verdicts}

    @cached_property
    def aligned(self) -> dict[str, Aligned]:
        """Each table with the times of all traces, before any division.

        What some report lacks is compared as TraceLens's sheets have it (`STAND_INS`), and left out
        if one lacks that too.
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
        """True if any of the traces is a report."""
        return any(measurement.report for measurement in self.measurements)

    def _aligned_table(self, name: str, keys: tuple[str, ...]) -> Aligned | None:
        """Return a table of all traces; None if some lacks it."""
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
        """Return the timelines; without the split of idle time if a report lacks it."""
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
        """The tables by name, as far as all traces have them.

        `phases` too where all traces have steps of a serving engine; its counts are steps, and
        `A_ms_per_step` is the time by them.

        Columns: what names the row (`device`, where a trace has several, and `type`;
        `kernel_category`; `cpu_op`; `kernel_category` and `kernel_name`), then `A_time_ms`,
        `B_time_ms`, `difference_ms` (B - A), `difference_percent` (of A) and `ratio` (B / A), both
        empty where A has no time, and `A_count`, `B_count` (GPU events, but for the timeline).
        With more than two traces the columns of each read `B_time_ms`, `B_difference_ms`, … The
        largest difference comes first, whatever its sign; the timeline keeps its order.
        """
        tables: dict[str, pd.DataFrame] = {}
        for name, aligned in self.aligned.items():
            with self.failures.isolate(f"The table {name} of the comparison"):
                divisors = self._divisors_of_table(name)
                tables[name] = comparison_table(
                    name=name, aligned=aligned, letters=self.letters, divisors=divisors
                )
        with self.failures.isolate("The table places of the comparison"):
            places = self._places()
            if places is not None:
                tables["places"] = places
        return tables

    def _places(self) -> pd.DataFrame | None:
        """Return the places of A with those of each other trace; None if a report lacks them."""
        parts = []
        baseline = self.letters[0]
        for index, pair in enumerate(align_places(self.figures), start=1):
            letter = self.letters[index]
            divisors = [self.divisors[0], self.divisors[index]]
            table = comparison_table(
                name="places",
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
        """What was compared, label and value."""
        return facts_of(self)

    @cached_property
    def notes(self) -> list[str]:
        """What changed most, and how it was compared, a sentence each."""
        return notes_of(self)

    @cached_property
    def savings(self) -> Savings | None:
        """What each finding saves; None where the findings of some trace are unknown."""
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
        """Return the times of a table as shown, ms, (k, t)."""
        # One division: two equal averages are then equal to the last bit.
        divisors = NS_PER_MS * np.array(self._divisors_of_table(name))
        times: Float64Array = self.aligned[name].ns / divisors
        return times

    def _divisors_of_table(self, name: str) -> list[float]:
        """Return what the times of a table are divided by; phases are compared step by step."""
        if name == "phases":
            return [1.0] * len(self.measurements)
        return self.divisors


def _with_letter(places: pd.DataFrame, letter: str) -> pd.DataFrame:
    """Return the table of two traces as a part of that of several: its columns name the trace."""
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
        measurements: of two traces or more.
        total: compare whole traces, even where all have iterations or periods.
        history: compare the last trace with the median of all before it.

    Raises:
        UsageError: fewer than two traces.
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
