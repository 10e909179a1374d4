"""What is said of a comparison: how much work a trace did, how fast; facts; notes; budgets.

A budget is how much a trace may be slower than its baseline, such as `GEMM > +5%`. Its arithmetic
is exact: a change of precisely the limit does not cross it. A percentage is of the baseline's time;
of findings it is of the wall time, which can be compared between traces of different lengths:
`dataloader > 2%` is crossed by 12.1 % where 10 % were before.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from tracelens_ext.categorize import CATEGORIES
from tracelens_ext.compare.measurement import TRACELENS
from tracelens_ext.errors import TracelensError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS

if TYPE_CHECKING:
    from tracelens_ext.compare.comparison import Comparison

#: The largest rows that a verdict names.
_NAMED = 3
#: What is no change: of the amount of work, and of speed in percent.
_SAME_WORK = 0.005
_SAME_SPEED = 0.5


@dataclass(frozen=True)
class WorkUnit:
    """What times are divided by."""

    kind: Literal["iteration", "period", "trace"]
    counts: Sequence[float]  #: how many each trace holds
    #: 1 for annotated iterations; of periods the share of the GPU time that comes back; else 0
    confidence: float


@dataclass(frozen=True)
class ComparisonVerdict:
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
) -> ComparisonVerdict:
    """Say what happened."""
    (a, b) = letters
    (work, speed) = ratios
    told = ""
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
    return ComparisonVerdict(f"{told}.", work, speed, largest)


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
    named = comparison.named
    basis = comparison.basis
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
        text = (
            "Times and counts are of an average iteration: GPU events launched in whole iterations"
        )
        text += ", divided by the number of iterations. Idle and total time count a gap after each"
        notes.append(f"{text} iteration; the one after the last is taken to be average.")
        single = [letter for letter, measured in named if measured.iterations == 1]
        if 0 < len(single) < len(named):  # the gap between iterations is unknown
            text = f"{_do(single, 'has', 'have')} a single whole iteration, and so no gap between"
            notes.append(f"{text} iterations: idle and total time are short of one.")
        notes += _outside_notes(comparison)
    elif reports:
        text = f"Whole traces are compared, as {_do(reports, 'is a report', 'are reports')}"
        notes.append(f"{text}, without the times of iterations.")
    elif basis == "period":
        text = "Times and counts are of an average period of kernel names, as not every trace has"
        text += " iterations: all GPU events, divided by how often the kernels come back."
        notes.append(text)
    elif without and len(without) < len(named):
        text = f"Whole traces are compared, as {_do(without, 'has', 'have')} no whole iteration (a"
        notes.append(f"{text} ProfilerStep annotation that launched GPU work and ended in time).")
    if empty := [letter for letter, measured in named if measured.events == 0]:
        notes.append(f"{_do(empty, 'holds', 'hold')} no GPU events.")
    return [*notes, *_report_notes(comparison), *_different_kernels_notes(comparison)]


def _do(letters: Sequence[str], one: str, several: str) -> str:
    return f"{' and '.join(letters)} {one if len(letters) == 1 else several}"


#: What a table shows where some report holds no more than TraceLens's sheets do.
_AS_REFERENCE: Mapping[str, str] = {
    "categories": "Categories are those of operations, by their names, without communication",
    "operations": "Operations are those that launched GPU work, with its busy time, without"
    " communication",
    "kernels": "Kernels are told apart by name alone, and copies and fills do not count",
}


def _report_notes(comparison: Comparison) -> Iterator[str]:
    """What reports do not hold, and what that means for the comparison."""
    held = list(zip(comparison.letters, comparison.figures, strict=True))
    for name, said in _AS_REFERENCE.items():
        if lacking := [letter for letter, figures in held if name not in figures.tables]:
            holds = f"{_do(lacking, 'does', 'do')} not hold"
            there = f"{said}, as in TraceLens's sheets: {holds} more."
            absent = f"There is no table of {name}, which {holds}."
            yield there if name in comparison.aligned else absent
    makers = {measured.report for measured in comparison.measurements}
    if TRACELENS in makers and len(makers) > 1:
        told = "TraceLens's timeline leaves out GPU events without a launch; with"
        told += " --exclude-unlinked-kernels (which `compare` takes beside such a report) so does"
        told += " ours. It files some operations, such as those of flash attention, under `other`."
        yield told
    yield from (f"{letter}: {note}." for letter, each in comparison.named for note in each.notes)


def time_basis(comparison: Comparison) -> str:
    """What the times are of: `per iteration`, `per period` or `of the whole trace`."""
    basis = comparison.basis
    return "of the whole trace" if basis == "trace" else f"per {basis}"


def _total_times(comparison: Comparison) -> list[float]:
    """The total time of each trace, ms; of its longest device where it has several."""
    kinds = comparison.aligned["timeline"].keys["type"].to_numpy()
    totals = comparison.times_ms("timeline")[kinds == "total_time"]
    return [float(total) for total in totals.max(axis=0, initial=0.0)]


def _outside_notes(comparison: Comparison) -> Iterator[str]:
    """How much GPU time of each trace is in none of its whole iterations."""
    for letter, each in comparison.named:
        part, whole = (f.whole("ns") or 0 for f in (each.figures("iteration"), each.total))
        if whole and (outside := 100 * (1 - part / whole)) >= _MUCH_OUTSIDE:
            told = f"{letter}: {outside:.1f} % of the GPU time was not launched in whole iterations"
            told += ", or has no launch in the trace, and does not count;"
            yield f"{told} --total compares all of it."


def _different_kernels_notes(comparison: Comparison) -> Iterator[str]:
    """Where two traces run other kernels: on another device, with another library or version."""
    if "kernels" in comparison.aligned:
        (a, *others), (own, *theirs) = comparison.letters, comparison.times_ms("kernels").T
        for letter, of in zip(others, theirs, strict=True):
            share = 100 * own[of > 0].sum() / (own.sum() or 1)
            if share < _SHARED_KERNELS and own.sum() and of.sum():
                has = f"those that {a} has too make {share:.1f} % of {a}'s GPU time"
                yield f"{letter} runs other kernels: {has}. Compare places."


_BUDGET = re.compile(
    r"\s*(?P<name>\S.*?)\s*(?P<sign>[<>])\s*(?P<limit>[+-]?\s*(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"\s*(?P<unit>%|ms|mad)\s*",
    re.DOTALL | re.IGNORECASE,
)
_NEAREST = 5
#: Stands for all findings together.
FINDINGS = "findings"


@dataclass(frozen=True)
class Budget:
    """A limit on a change against the baseline."""

    name: str  #: a row of the timeline (`busy_time`) or a category (`GEMM`)
    above: bool  #: whether it is crossed above the limit; else below
    #: the change, signed; percent of the baseline's time (of findings, of the wall time), ms, or
    #: median absolute deviations of a history
    limit: Fraction
    unit: str  #: `%`, `ms` or `mad`

    def __str__(self) -> str:
        limit = Decimal(self.limit.numerator) / self.limit.denominator  # it has few decimals
        return f"{self.name} {'>' if self.above else '<'} {limit.normalize():+f} {self.unit}"

    def crossed_by(
        self, before: Fraction, after: Fraction, *, shares: bool = False, mad: Fraction | int = 1
    ) -> bool:
        """Whether a change crosses the limit; times and `mad` (of a history) are ms, 0 for none."""
        change: Fraction | float = after - before
        if self.unit == "%" and not shares and change:
            # From nothing to something is more than any percentage.
            change = 100 * change / before if before else math.inf
        limit = self.limit * (mad if self.unit == "mad" else 1)
        return change > limit if self.above else change < limit


@dataclass(frozen=True)
class BudgetOutcome:
    """What became of a budget in one trace."""

    budget: Budget  #: the budget
    what: str  #: the row that was looked at, such as `B: GEMM`
    before: Fraction  #: the baseline's time, ms; or its share of the wall time, percent
    after: Fraction  #: the trace's, likewise
    crossed: bool  #: whether the budget was crossed
    shares: bool = False  #: whether these are shares

    def __str__(self) -> str:
        before = float(self.before)
        after = float(self.after)
        change = after - before
        budget = f"the budget is {self.budget}"
        if self.shares:
            both = f"{before:,.2f} → {after:,.2f} % of the wall time ({change:+,.2f})"
            return f"{self.what} {both}; {budget}"
        percent = f", {100 * change / before:+,.2f} %" if before else ""
        return f"{self.what} {before:,.3f} → {after:,.3f} ms ({change:+,.3f} ms{percent}); {budget}"


def parse_budget(text: str) -> Budget:
    """Read a budget: `NAME > +5%`, `NAME < -0.5ms`; blanks do not matter, nor does a `+`."""
    found = _BUDGET.fullmatch(text)
    if found is None:
        shown = text if len(text) < 80 else f"{text[:77]}…"
        how = "write a name, > or <, and a change in %, ms or mad"
        such = "such as 'GEMM > +5%' or 'total_time > 1.5ms'"
        raise UsageError(f"{shown!r} is no budget; {how}, {such}")
    name = " ".join(found["name"].split())
    limit = Fraction("".join(found["limit"].split()))
    return Budget(name, found["sign"] == ">", limit, found["unit"].lower())


def check_budgets(
    budgets: Sequence[Budget], comparison: Comparison, finding_ids: Iterable[str] = ()
) -> list[BudgetOutcome]:
    """Hold every trace but the baseline against the budgets, a row of several devices by device.

    A category or finding that a trace lacks counts 0. `finding_ids`: those that can be. Gives an
    outcome for each budget, trace and device, budgets in the order given.
    """
    if any(budget.unit == "mad" for budget in budgets) and not comparison.history:
        raise UsageError("a budget in mad needs a history; give --baseline FOLDER")
    timeline = comparison.aligned["timeline"].names
    held = comparison.aligned.get("categories")
    categories = held.names if held else []
    # What the trace has comes first: its spelling wins over that of a rule.
    known = [*timeline, *categories]
    if held and "kernel_category" in held.keys:
        allowed = {name for m in comparison.measurements for name in m.categories}
        known += [*CATEGORIES, *sorted(allowed)]
    there = [name for m in comparison.measurements for name in m.findings or ()]
    findings = {FINDINGS, *finding_ids, *there}
    known += sorted(findings)
    outcomes = []
    for budget in budgets:
        if held is None and budget.name.casefold() not in {*timeline, *findings}:
            why = "a report holds no categories; name a row of the timeline, or compare traces"
            raise TracelensError(f"the budget {budget} cannot be checked: {why}")
        name = _known_name(budget.name, known, [*dict.fromkeys(timeline)])
        shares = False
        if name in findings and name not in (*timeline, *categories):
            values = {"": _savings(budget, name, comparison)}
            shares = budget.unit == "%"
        else:
            values = _times(comparison, "timeline" if name in timeline else "categories", name)
        for where, each in values.items():
            for letter, before, after, mad in _pairs(comparison, each):
                crossed = budget.crossed_by(before, after, shares=shares, mad=mad)
                what = f"{letter}{name}{where}"
                outcomes.append(BudgetOutcome(budget, what, before, after, crossed, shares))
    return outcomes


def _times(comparison: Comparison, table: str, name: str) -> dict[str, list[Fraction]]:
    """The times of what has a name, ms, by the device where there are several; 0 of nothing."""
    aligned = comparison.aligned[table]
    per_ms = [Fraction(NS_PER_MS * divisor) for divisor in comparison.divisors]
    devices = aligned.keys.get("device", pd.Series(NONE, aligned.keys.index))
    rows = np.array(aligned.names, dtype=object) == name
    wheres = ["" if each == NONE else f" of device {each}" for each in devices[rows]]
    found = aligned.ns[rows].tolist() or [[0] * len(per_ms)]
    values = ([Fraction(ns) / per for ns, per in zip(each, per_ms, strict=True)] for each in found)
    return dict(zip(wheres or [""], values, strict=True))


def _pairs(
    comparison: Comparison, values: Sequence[Fraction]
) -> Iterator[tuple[str, Fraction, Fraction, Fraction]]:
    """What is compared: a prefix, the baseline's value, the other's, and the deviation."""
    if comparison.history:
        middle = median(values[:-1])
        yield "", middle, values[-1], median([abs(each - middle) for each in values[:-1]])
    else:
        for letter, after in zip(comparison.letters[1:], values[1:], strict=True):
            yield f"{letter}: ", values[0], after, Fraction(1)


def _savings(budget: Budget, name: str, comparison: Comparison) -> list[Fraction]:
    """What a finding, or all of them, save in each trace: ms by unit, or percent."""
    shares = budget.unit == "%"
    sums = []
    for divisor, (letter, measured) in zip(comparison.divisors, comparison.named, strict=True):
        if measured.findings is None:
            why = f"{letter} ({measured.path}) is a report without findings"
            told = f"the budget {budget} cannot be checked: {why}"
            raise TracelensError(f"{told}; write it again, or name the trace")
        savings = [s for each, s in measured.findings.items() if name in (FINDINGS, each)]
        whole = sum((Fraction(saving[shares]) for saving in savings), Fraction(0))
        sums.append(whole if shares else whole / Fraction(divisor))
    return sums


def _known_name(name: str, known: Sequence[str], timeline: Sequence[str]) -> str:
    """The name as the tables spell it; upper and lower case are the same where that is clear."""
    if name in known:
        return name
    of_folded = {candidate.casefold(): candidate for candidate in reversed(known)}
    if name.casefold() in of_folded:
        return of_folded[name.casefold()]
    near = difflib.get_close_matches(name.casefold(), of_folded, n=_NEAREST, cutoff=0.4)
    hint = ", ".join(of_folded[found] for found in near) or f"{', '.join(timeline)}, or a category"
    raise UsageError(
        f"no timeline row, category or finding is called {name!r}; the nearest: {hint}"
    )
