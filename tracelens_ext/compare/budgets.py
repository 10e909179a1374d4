"""Budgets: how much a trace may be slower than its baseline, such as `GEMM > +5%`.

The arithmetic is exact: a change of precisely the limit does not cross it. A percentage is of the
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
from enum import StrEnum
from fractions import Fraction
from statistics import median
from typing import NamedTuple

from tracelens_ext.categorize import CATEGORIES
from tracelens_ext.compare.comparison import Comparison
from tracelens_ext.compatibility.earlier_names import new_finding_id
from tracelens_ext.errors import TracelensError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS

_BUDGET = re.compile(
    r"\s*(?P<name>\S.*?)\s*(?P<sign>[<>])\s*(?P<limit>[+-]?\s*(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"\s*(?P<unit>%|ms|mad)\s*",
    re.DOTALL | re.IGNORECASE,
)
_NEAREST_NAMES = 5
_MIN_SIMILARITY = 0.4
_MAX_QUOTED = 80
#: Stands for all findings together.
FINDINGS = "findings"


class BudgetUnit(StrEnum):
    """What a limit is in."""

    PERCENT = "%"  #: of the baseline's time; of findings, of the wall time
    MS = "ms"
    DEVIATIONS = "mad"  #: median absolute deviations of a history


@dataclass(frozen=True)
class Budget:
    """A limit on a change against the baseline."""

    name: str  #: a row of the timeline (`busy_time`), a category (`GEMM`) or a finding
    above: bool  #: it is crossed above the limit; else below
    limit: Fraction  #: the change, signed
    unit: str  #: a `BudgetUnit`

    def __str__(self) -> str:
        sign = ">" if self.above else "<"
        # it has few decimals
        limit = Decimal(self.limit.numerator) / self.limit.denominator
        return f"{self.name} {sign} {limit.normalize():+f} {self.unit}"

    def crossed_by(
        self,
        before: Fraction,
        after: Fraction,
        *,
        shares: bool = False,
        mad: Fraction | int = 1,
    ) -> bool:
        """Tell whether a change crosses the limit.

        Args:
            before: the baseline's time, ms; 0 for none.
            after: the trace's time, ms.
            shares: both are percentages of the wall time instead.
            mad: the median absolute deviation of a history, ms.
        """
        change: Fraction | float = after - before
        if self.unit == BudgetUnit.PERCENT and not shares and change:
            # From nothing to something is more than any percentage.
            change = 100 * change / before if before else math.inf
        limit = self.limit
        if self.unit == BudgetUnit.DEVIATIONS:
            limit *= mad
        return change > limit if self.above else change < limit


@dataclass(frozen=True)
class BudgetOutcome:
    """What became of a budget in one trace."""

    budget: Budget  #: the budget
    what: str  #: the row that was looked at, such as `B: GEMM`
    before: Fraction  #: the baseline's time, ms; or its share of the wall time, percent
    after: Fraction  #: the trace's, likewise
    crossed: bool  #: the budget was crossed
    shares: bool = False  #: these are shares

    def __str__(self) -> str:
        before = float(self.before)
        after = float(self.after)
        change = after - before
        budget = f"the budget is {self.budget}"
        if self.shares:
            both = f"{before:,.2f} → {after:,.2f} % of the wall time ({change:+,.2f})"
            return f"{self.what} {both}; {budget}"
        change_text = f"{change:+,.3f} ms"
        if before:
            percent = 100 * change / before
            change_text = f"{change_text}, {percent:+,.2f} %"
        both = f"{before:,.3f} → {after:,.3f} ms ({change_text})"
        return f"{self.what} {both}; {budget}"


def parse_budget(text: str) -> Budget:
    """Read a budget: `NAME > +5%`, `NAME < -0.5ms`; blanks do not matter, nor does a `+`.

    Raises:
        UsageError: it is not a budget.
    """
    match = _BUDGET.fullmatch(text)
    if match is None:
        quoted = text
        if len(text) >= _MAX_QUOTED:
            quoted = f"{text[: _MAX_QUOTED - 3]}…"
        raise UsageError(
            f"{quoted!r} is not a budget; write a name, > or <, and a change in %, ms "
            "or mad, such as 'GEMM > +5%' or 'total_time > 1.5ms'"
        )
    name = new_finding_id(" ".join(match["name"].split()))
    limit = Fraction("".join(match["limit"].split()))
    return Budget(
        name=name, above=match["sign"] == ">", limit=limit, unit=match["unit"].lower()
    )


def check_budgets(
    budgets: Sequence[Budget], comparison: Comparison, finding_ids: Iterable[str] = ()
) -> list[BudgetOutcome]:
    """Check every trace but the baseline, a row of several devices by device.

    A category or finding that a trace lacks counts 0.

    Args:
        budgets: the limits.
        comparison: of the traces.
        finding_ids: the findings that are possible.

    Returns:
        An outcome for each budget, trace and device, budgets in the order given.

    Raises:
        UsageError: nothing has a budget's name, or there is no history for it.
        TracelensError: a report lacks what is needed.
    """
    if not comparison.history and any(
        budget.unit == BudgetUnit.DEVIATIONS for budget in budgets
    ):
        raise UsageError("a budget in mad needs a history; add --baseline FOLDER")
    names = _BudgetNames(comparison, finding_ids)
    outcomes: list[BudgetOutcome] = []
    for budget in budgets:
        name = names.find(budget)
        is_share = False
        if names.is_finding(name):
            values_of_place = {"": _savings(budget, name, comparison)}
            is_share = budget.unit == BudgetUnit.PERCENT
        else:
            table = "timeline" if name in names.timeline else "categories"
            values_of_place = _times(comparison, table, name)
        for place, values in values_of_place.items():
            for change in _changes(comparison, values):
                crossed = budget.crossed_by(
                    change.before, change.after, shares=is_share, mad=change.deviation
                )
                subject = f"{change.prefix}{name}{place}"
                outcomes.append(
                    BudgetOutcome(
                        budget=budget,
                        what=subject,
                        before=change.before,
                        after=change.after,
                        crossed=crossed,
                        shares=is_share,
                    )
                )
    return outcomes


class _BudgetNames:
    """The names that a budget can have."""

    def __init__(self, comparison: Comparison, finding_ids: Iterable[str]) -> None:
        self.timeline = comparison.aligned["timeline"].names
        categories = comparison.aligned.get("categories")
        self._has_categories = categories is not None
        self._categories = []
        if categories is not None:
            self._categories = categories.names
        possible: list[str] = []
        if categories is not None and "kernel_category" in categories.keys:
            possible.extend(CATEGORIES)
            possible.extend(_categories_of_rules(comparison))
        self._findings = {FINDINGS} | set(finding_ids)
        for measurement in comparison.measurements:
            self._findings.update(measurement.findings or ())
        # What the trace has comes first: its spelling wins over that of a rule.
        self._known = [
            *self.timeline,
            *self._categories,
            *possible,
            *sorted(self._findings),
        ]

    def is_finding(self, name: str) -> bool:
        """Tell whether a name is that of a finding."""
        is_row = name in self.timeline or name in self._categories
        return name in self._findings and not is_row

    def find(self, budget: Budget) -> str:
        """Return a budget's name as the tables spell it.

        Upper and lower case are the same where that is clear.
        """
        name = budget.name
        folded = name.casefold()
        may_be_category = folded not in self.timeline and folded not in self._findings
        if may_be_category and not self._has_categories:
            raise TracelensError(
                f"the budget {budget} cannot be checked because a report contains no "
                "categories; use a row of the timeline, or compare traces"
            )
        if name in self._known:
            return name
        name_of_folded = {
            known_name.casefold(): known_name for known_name in reversed(self._known)
        }
        if folded in name_of_folded:
            return name_of_folded[folded]
        nearest = difflib.get_close_matches(
            folded, name_of_folded, n=_NEAREST_NAMES, cutoff=_MIN_SIMILARITY
        )
        hint = ", ".join(name_of_folded[folded_name] for folded_name in nearest)
        if not hint:
            rows = dict.fromkeys(self.timeline)
            hint = f"{', '.join(rows)}, or a category"
        raise UsageError(
            f"there is no timeline row, category or finding called {name!r}; the "
            f"closest names: {hint}"
        )


def _categories_of_rules(comparison: Comparison) -> list[str]:
    """Return every category that the rules of some trace could have given."""
    categories: set[str] = set()
    for measurement in comparison.measurements:
        categories.update(measurement.categories)
    return sorted(categories)


def _times(comparison: Comparison, table: str, name: str) -> dict[str, list[Fraction]]:
    """Return the times of the rows with a name, ms, by the device where there are several.

    It is 0 where nothing has the name.
    """
    aligned = comparison.aligned[table]
    has_name = [row == name for row in aligned.names]
    devices = aligned.keys.get("device", pd.Series(NONE, aligned.keys.index))
    times: dict[str, list[Fraction]] = {}
    for device, ns_of_traces in zip(
        devices[has_name].tolist(), aligned.ns[has_name].tolist(), strict=True
    ):
        place = "" if device == NONE else f" of device {device}"
        times[place] = [
            Fraction(ns) / Fraction(NS_PER_MS * divisor)
            for ns, divisor in zip(ns_of_traces, comparison.divisors, strict=True)
        ]
    return times or {"": [Fraction(0)] * len(comparison.divisors)}


class _Change(NamedTuple):
    """Two values that are compared."""

    prefix: str  #: of the row's name
    before: Fraction
    after: Fraction
    deviation: Fraction  #: the median absolute deviation of a history


def _changes(comparison: Comparison, values: Sequence[Fraction]) -> Iterator[_Change]:
    """Yield what is compared of the values of all traces."""
    if comparison.history:
        *earlier, last = values
        middle = median(earlier)
        deviation = median([abs(value - middle) for value in earlier])
        yield _Change(prefix="", before=middle, after=last, deviation=deviation)
        return
    for letter, after in zip(comparison.letters[1:], values[1:], strict=True):
        yield _Change(
            prefix=f"{letter}: ", before=values[0], after=after, deviation=Fraction(1)
        )


def _savings(budget: Budget, name: str, comparison: Comparison) -> list[Fraction]:
    """Return what a finding, or all of them, save in each trace: ms by unit, or percent."""
    is_share = budget.unit == BudgetUnit.PERCENT
    totals = []
    for divisor, (letter, measurement) in zip(
        comparison.divisors, comparison.named, strict=True
    ):
        if measurement.findings is None:
            raise TracelensError(
                f"the budget {budget} cannot be checked because {letter} "
                f"({measurement.path}) is a report without findings; write the report "
                "again, or give the trace"
            )
        total = Fraction(0)
        for finding, (saving_ms, saving_percent) in measurement.findings.items():
            if name in (FINDINGS, finding):
                total += Fraction(saving_percent if is_share else saving_ms)
        totals.append(total if is_share else total / Fraction(divisor))
    return totals
