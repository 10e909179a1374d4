"""Budgets: how much a trace may be slower than its baseline, such as `GEMM > +5%`.

All arithmetic is exact: a change of precisely the limit does not cross it. A percentage is of the
baseline's time; of findings it is of the wall time, which can be compared between traces of
different lengths: `dataloader > 2%` is crossed by 12.1 % where 10 % were before.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from statistics import median

import numpy as np

from tracelens_ext.categorize import CATEGORIES
from tracelens_ext.compare.comparison import Comparison
from tracelens_ext.errors import TracelensError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS

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
class Outcome:
    """What became of a budget in one trace."""

    budget: Budget  #: the budget
    what: str  #: the row that was looked at, such as `B: GEMM`
    before: Fraction  #: the baseline's time, ms; or its share of the wall time, percent
    after: Fraction  #: the trace's, likewise
    crossed: bool  #: whether the budget was crossed
    shares: bool = False  #: whether these are shares

    def __str__(self) -> str:
        before, after = float(self.before), float(self.after)
        change, budget = after - before, f"the budget is {self.budget}"
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
    name, limit = " ".join(found["name"].split()), Fraction("".join(found["limit"].split()))
    return Budget(name, found["sign"] == ">", limit, found["unit"].lower())


def check_budgets(
    budgets: Sequence[Budget], comparison: Comparison, finding_ids: Iterable[str] = ()
) -> list[Outcome]:
    """Hold every trace but the baseline against the budgets, a row of several devices by device.

    A category or finding that a trace lacks counts 0. `finding_ids`: those that can be. Gives an
    outcome for each budget, trace and device, budgets in the order given.
    """
    if any(budget.unit == "mad" for budget in budgets) and not comparison.history:
        raise UsageError("a budget in mad needs a history; give --baseline FOLDER")
    timeline, held = comparison.aligned["timeline"].names, comparison.aligned.get("categories")
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
        name, shares = _known_name(budget.name, known, [*dict.fromkeys(timeline)]), False
        if name in findings and name not in (*timeline, *categories):
            values, shares = {"": _savings(budget, name, comparison)}, budget.unit == "%"
        else:
            values = _times(comparison, "timeline" if name in timeline else "categories", name)
        for where, each in values.items():
            for letter, before, after, mad in _pairs(comparison, each):
                crossed = budget.crossed_by(before, after, shares=shares, mad=mad)
                what = f"{letter}{name}{where}"
                outcomes.append(Outcome(budget, what, before, after, crossed, shares))
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
