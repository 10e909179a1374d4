"""Several traces or reports side by side: where the time of each went, and what changed most.

Measurements are compared, of traces or of reports. The first is the baseline, called A.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tracelens_ext.compare.alignment import Aligned, align
from tracelens_ext.compare.measurement import KEYS, STAND_INS, Figures, Measurement, measure
from tracelens_ext.compare.verdict import (
    ComparisonVerdict,
    WorkUnit,
    facts_of,
    notes_of,
    prefixes,
    verdict,
)
from tracelens_ext.errors import TracelensError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.notebook import cell_html, short_repr
from tracelens_ext.report.excel_text import cell_text
from tracelens_ext.trace import NONE, NS_PER_MS, Float64Array, Int64Array

__all__ = ["KEYS", "Aligned", "Comparison", "Measurement", "compare", "measure"]

#: Without the letter that is also a unit of time.
_LETTERS = "ABCDEFGHIJKLMNOPQRTUVWXYZ"
_LEAST_PLACES = 3  # that tell the amount of work
_PERIODS_AGREE = 0.1  # how far the counts of periods may lie from what calls say
_NS = 6  # decimals of ms
_WITHOUT_CALLS = ("timeline", "phases")
_MOST_TELLING: tuple[str, ...] = ("operations", "kernels", "categories")


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several traces compared; A is the baseline."""

    measurements: Sequence[Measurement]  #: of the traces, A first
    total: bool = False  #: whether whole traces are compared, whatever unit they have
    history: bool = False  #: whether the last trace is compared with the median of the others

    def __repr__(self) -> str:
        return short_repr("Comparison", " ".join(f"{k}: {v};" for k, v in self.facts))

    def _repr_html_(self) -> str:
        lines = [*(f"{label}: {value}" for label, value in self.facts), *self.notes]
        return cell_html("Comparison", lines, self.tables)

    @cached_property
    def letters(self) -> list[str]:
        """What the traces are called in the names of columns."""
        count = len(_LETTERS)
        return [_LETTERS[at % count] * (at // count + 1) for at in range(len(self.measurements))]

    @property
    def named(self) -> list[tuple[str, Measurement]]:
        """Each trace's letter and measurement."""
        return list(zip(self.letters, self.measurements, strict=True))

    @cached_property
    def unit(self) -> WorkUnit:
        """The repeating part that all traces have: iterations, else the period of kernel names."""
        iterations = [m.iterations for m in self.measurements]
        if all(iterations):
            return WorkUnit("iteration", iterations, 1.0)
        periods = [m.period for m in self.measurements if m.period is not None]
        if len(periods) == len(iterations):
            first, *others = counts = [period.count for period in periods]
            calls = zip(others, self._ratios_by_calls, strict=True)
            if all(r and abs(count / first / r - 1) <= _PERIODS_AGREE for count, (r, _) in calls):
                return WorkUnit("period", counts, min(period.confidence for period in periods))
        return WorkUnit("trace", [1] * len(iterations), 0.0)

    @property
    def basis(self) -> str:
        """What the times are of: `iteration`, `period` or `trace`."""
        return "trace" if self.total else self.unit.kind

    @cached_property
    def divisors(self) -> list[float]:
        """What the time of each trace is divided by: its units, or 1."""
        return [1.0] * len(self.measurements) if self.total else list(self.unit.counts)

    @property
    def figures(self) -> list[Figures]:
        """The figures that are compared."""
        return [m.figures(self.basis) for m in self.measurements]

    @cached_property
    def _ratios_by_calls(self) -> list[tuple[float | None, float | None]]:
        """Work and speed of each whole trace but the baseline, by the calls of what both did."""
        totals = [m.total for m in self.measurements]
        pairs = _aligned_places(totals)
        if pairs and min(len(pair.ns) for pair in pairs) >= _LEAST_PLACES:
            return [pair.work_and_speed(1) for pair in pairs]
        if pairs:  # without operations names of kernels tell more
            held = [_aligned([each.tables["kernels"] for each in totals], KEYS["kernels"])]
        else:
            held = [self.aligned[name] for name in _MOST_TELLING if name in self.aligned]
        others = range(1, len(totals))
        return [held[0].work_and_speed(at) if held else (None, None) for at in others]

    @cached_property
    def verdicts(self) -> list[ComparisonVerdict]:
        """What became of the work of each trace but the baseline."""
        found = []
        counts = self.unit.counts
        kind = self.unit.kind
        ns = [m.figures(kind).whole("ns") or 0 for m in self.measurements]
        per_unit = [each / count for each, count in zip(ns, counts, strict=True)]
        held = (name for name in ("places", *_MOST_TELLING, "timeline") if name in self.tables)
        table = self.tables[next(held)]
        for at, ratios in enumerate(self._ratios_by_calls, start=1):
            if kind != "trace" and ratios[0] is not None:  # not of two that share nothing
                speed = per_unit[at] / per_unit[0] if per_unit[0] else None
                ratios = counts[at] / counts[0], speed
            rows = table
            letter = self.letters[at]
            if "trace" in table:
                rows = table[table["trace"] == letter].dropna(axis=1, how="all")
            found.append(verdict((self.letters[0], letter), ratios, rows))
        return found

    @property
    def unit_told(self) -> dict[str, object]:
        """The unit as JSON has it."""
        counts = zip(self.letters, self.unit.counts, strict=True)
        told = {f"{letter}_count": count for letter, count in counts}
        return {"kind": self.unit.kind, **told, "confidence": round(self.unit.confidence, 3)}

    @property
    def members(self) -> dict[str, object]:
        """What JSON has beside the tables; lists for several traces."""
        verdicts = [
            {"text": v.text, "speed_ratio": v.speed_ratio, "places": v.places.to_dict("records")}
            for v in self.verdicts
        ]
        both: list[Any] = [[each.work_ratio for each in self.verdicts], verdicts]
        work, told = (each[0] if len(verdicts) == 1 else each for each in both)
        return {"unit": self.unit_told, "work_ratio": work, "verdict": told}

    @cached_property
    def aligned(self) -> dict[str, Aligned]:
        """Each table with the times of all traces, before any division.

        What some report does not hold is compared as TraceLens's sheets have it (`STAND_INS`), and
        left out if one does not hold that either.
        """
        aligned: dict[str, Aligned] = {"timeline": self._timeline()}
        totals = [m.total.tables for m in self.measurements]
        if all("phases" in tables for tables in totals):
            aligned["phases"] = _aligned([tables["phases"] for tables in totals], ("phase",))
        compared = [figures.tables for figures in self.figures]
        for name, stand_in in STAND_INS.items():
            for held, keys in ((name, KEYS[name]), (stand_in, (stand_in,))):
                if name not in aligned and all(held in tables for tables in compared):
                    parts = [tables[held] for tables in compared]
                    if any(m.report for m in self.measurements):
                        parts = [_as_in_reports(part, keys) for part in parts]
                    aligned[name] = _aligned(parts, keys)
        return aligned

    def _timeline(self) -> Aligned:
        """The timelines; without the split of idle time if a report lacks it."""
        parts = [figures.tables["timeline"] for figures in self.figures]
        if all(part["device"].nunique() < 2 for part in parts):
            parts = [part.assign(device=NONE) for part in parts]
        if any(m.report for m in self.measurements):
            kinds = [set(part["type"]) for part in parts if len(part)]
            shared = set.intersection(*kinds) if kinds else set()
            parts = [part[part["type"].isin(shared)] for part in parts]
        return _aligned(parts, KEYS["timeline"])

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables by name, as far as all hold them.

        `phases` too where all traces have steps of a serving engine; its counts are steps, and
        `A_ms_per_step` is the time by them.

        Columns: what names the row (`device`, where a trace has several, and `type`;
        `kernel_category`; `cpu_op`; `kernel_category` and `kernel_name`), then `A_time_ms`,
        `B_time_ms`, `difference_ms` (B - A), `difference_%` (of A) and `ratio` (B / A), both empty
        where A has no time, and `A_count`, `B_count` (GPU events, but for the timeline). With more
        than two traces the columns of each read `B_time_ms`, `B_difference_ms`, … The largest
        difference comes first, whatever its sign; the timeline keeps its order.
        """
        tables: dict[str, pd.DataFrame] = {
            name: _table(name, aligned, self.letters, self._divisors(name))
            for name, aligned in self.aligned.items()
        }
        parts = []
        for at, pair in enumerate(_aligned_places(self.figures), start=1):
            letter = self.letters[at]
            divisors = [self.divisors[0], self.divisors[at]]
            frame = _table("places", pair, [self.letters[0], letter], divisors)
            if len(self.letters) > 2:
                as_is = ("path", "backward", "A_", f"{letter}_")
                others = [str(column) for column in frame if not str(column).startswith(as_is)]
                names = {other: f"{letter}_{other.removeprefix('B_')}" for other in others}
                frame = frame.rename(columns=names)
                frame.insert(0, "trace", letter)
            parts.append(frame)
        return tables | ({"places": pd.concat(parts, ignore_index=True)} if parts else {})

    facts = cached_property(facts_of)  #: what was compared, label and value
    notes = cached_property(notes_of)  #: what changed most, and how it was compared, sentences

    @cached_property
    def savings(self) -> tuple[list[str], Float64Array] | None:
        """Findings, and what each saves: ms by unit and percent, NaN for none, (f, t, 2).

        None where the findings of some trace are unknown.
        """
        known = [m.findings for m in self.measurements if m.findings is not None]
        if len(known) < len(self.measurements):
            return None
        ids = list(dict.fromkeys(name for each in known for name in each))
        cells = [[each.get(name, (np.nan, np.nan)) for each in known] for name in ids]
        found = np.array(cells, dtype=np.float64).reshape(len(ids), len(known), 2)
        found[..., 0] /= self.divisors
        return ids, found

    def times_ms(self, name: str) -> Float64Array:
        """The times of a table as shown, ms, (k, t)."""
        # One division: two equal averages are then equal to the last bit.
        times: Float64Array = self.aligned[name].ns / (NS_PER_MS * np.array(self._divisors(name)))
        return times

    def _divisors(self, name: str) -> list[float]:
        """What the times of a table are divided by; phases are compared step by step."""
        return [1.0] * len(self.measurements) if name == "phases" else self.divisors


def _table(
    name: str, aligned: Aligned, letters: Sequence[str], divisors: Sequence[float]
) -> pd.DataFrame:
    times = aligned.ns / (NS_PER_MS * np.array(divisors))
    calls = aligned.calls / divisors
    columns: dict[str, object] = {str(k): aligned.keys[k].to_numpy() for k in aligned.keys}
    if name == "timeline" and (aligned.keys["device"] == NONE).all():
        del columns["device"]
    columns[f"{letters[0]}_time_ms"] = times[:, 0]
    for at, (letter, prefix) in enumerate(prefixes(letters).items(), start=1):
        difference = times[:, at] - times[:, 0]
        columns |= {f"{letter}_time_ms": times[:, at], f"{prefix}difference_ms": difference}
        columns[f"{prefix}difference_%"] = 100 * _quotient(difference, times[:, 0])
        columns[f"{prefix}ratio"] = _quotient(times[:, at], times[:, 0])
        if name not in _WITHOUT_CALLS:
            columns |= _shares_of_change(times[:, [0, at]].T, calls[:, [0, at]].T, prefix)
    for at, (letter, divisor) in enumerate(zip(letters, divisors, strict=True)):
        for what, number in (("count", aligned.count), ("calls", aligned.calls)):
            if name not in _WITHOUT_CALLS or (name, what) == ("phases", "count"):
                own = number[:, at]
                columns[f"{letter}_{what}"] = own if divisor == 1 else own / divisor
        if name == "phases":
            columns[f"{letter}_ms_per_step"] = _quotient(times[:, at], aligned.count[:, at])
    if name == "places":
        lacking = [aligned.count[:, 1] == 0, aligned.count[:, 0] == 0]
        columns["only_in"] = np.select(lacking, list(letters), "")
    frame = pd.DataFrame(columns)
    if name in _WITHOUT_CALLS:
        return frame
    change = np.abs(times[:, 1:] - times[:, :1]).max(axis=1, initial=0.0)
    order = np.lexsort((-times[:, 0], -change))
    return frame.iloc[order].reset_index(drop=True)


def _shares_of_change(
    times_ms: Float64Array, calls: Float64Array, prefix: str
) -> dict[str, Float64Array]:
    """What of each difference is the number of calls (whole ns), and what their speed."""
    both = (calls[0] > 0) & (calls[1] > 0)
    difference = times_ms[1] - times_ms[0]
    per_call = np.divide(times_ms[0], calls[0], out=np.zeros(len(both)), where=both)
    amount = np.round((calls[1] - calls[0]) * per_call, _NS)
    amount = np.where(both, amount, difference)
    speed = np.round(difference - amount, _NS + 3) + 0.0  # what rounding leaves is no difference
    return {f"{prefix}by_calls_ms": amount, f"{prefix}by_speed_ms": speed}


def compare(
    measurements: Sequence[Measurement], *, total: bool = False, history: bool = False
) -> Comparison:
    """Compare traces with the first of them.

    Args:
        measurements: of two traces or more.
        total: whether whole traces are compared, even where all have iterations or periods.
        history: whether the last is compared with the median of all before it.

    Raises:
        UsageError: fewer than two traces.
        TracelensError: no trace holds a GPU event.
    """
    if len(measurements) < 2:
        raise UsageError("a comparison needs two traces at least")
    if all(m.events == 0 for m in measurements):
        paths = ", ".join(m.path for m in measurements)
        raise TracelensError(f"{paths}: no trace holds GPU events; there is nothing to compare")
    return Comparison(measurements, total, history)


def _aligned_places(figures: Sequence[Figures]) -> list[Aligned]:
    """The places of the first with those of each other; none where a report does not tell them."""
    known = [each.places for each in figures if each.places is not None]
    return [align(known[0], each) for each in known[1:]] if len(known) == len(figures) else []


def _aligned(parts: Sequence[pd.DataFrame], keys: tuple[str, ...]) -> Aligned:
    """One row for each distinct key of any trace, in order of first appearance."""
    of_trace = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    rows = pd.concat(parts, ignore_index=True)
    columns = list(keys)
    group = rows.groupby(columns, sort=False, dropna=False).ngroup().to_numpy()
    distinct = rows.drop_duplicates(columns)[columns].reset_index(drop=True)
    found = np.zeros((3, len(distinct), len(parts)), dtype=np.int64)
    for cells, what in zip(found, ("ns", "count", "calls"), strict=True):
        np.add.at(cells, (group, of_trace), rows[what].to_numpy())
    return Aligned(distinct, *found)


def _as_in_reports(part: pd.DataFrame, keys: tuple[str, ...]) -> pd.DataFrame:
    """A table as reports have it: GPU events for calls, names as out of a workbook.

    That spells names least well: what a cell cannot hold is replaced or cut, and openpyxl takes
    `x005F_` for an escape.
    """
    spelt = [[re.sub("\r\n?", "\n", cell_text(name)[0]) for name in part[key]] for key in keys]
    names = ([cell.replace("x005F_", "") for cell in cells] for cells in spelt)
    return part.assign(calls=part["count"], **dict(zip(keys, names, strict=True)))


def _quotient(part: Float64Array, whole: Float64Array | Int64Array) -> Float64Array:
    """`part / whole`, NaN where that is 0."""
    result: Float64Array = part / np.where(whole == 0, np.nan, whole)
    return result
