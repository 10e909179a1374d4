"""Budgets: limits on how much slower than its baseline a trace may be, such as `GEMM > +5%`.

The arithmetic is exact, so a change of precisely the limit does not cross it. A percentage refers
to the baseline's time. For findings, it refers to the wall time, which makes traces of different
lengths comparable: `dataloader > 2%` is crossed if the share rises from 10 % to 12.1 %.
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
#: How many similar names an error message suggests, and how similar they must be (0 to 1).
_NEAREST_NAMES = 5
_MIN_SIMILARITY = 0.4
#: Longer texts are shortened when an error message quotes them.
_MAX_QUOTED = 80
#: The name of all findings together.
FINDINGS = "findings"


class BudgetUnit(StrEnum):
    """The units of limits."""

    PERCENT = "%"  #: percent of the baseline's time; for findings, of the wall time
    MS = "ms"
    DEVIATIONS = "mad"  #: median absolute deviations of a history


@dataclass(frozen=True)
class Budget:
    """A limit on the change of a time compared with the baseline."""

    name: str  #: a row of the timeline (`busy_time`), a category (`GEMM`) or a finding
    above: bool  #: True if larger changes cross the limit, False if smaller ones do
    limit: Fraction  #: the change, with its sign
    unit: str  #: a `BudgetUnit`

    def __str__(self) -> str:
        sign = ">" if self.above else "<"
        # Limits are written with few digits, so this division is exact.
        limit = Decimal(self.limit.numerator) / self.limit.denominator
        return f"{self.name} {sign} {limit.normalize():+f} {self.unit}"

    def is_crossed_by(
        self,
        before: Fraction,
        after: Fraction,
        *,
        shares: bool = False,
        mad: Fraction | int = 1,
    ) -> bool:
        """Tell whether a change crosses the limit.

        Args:
            before: the baseline's time, ms; 0 if it has none.
            after: the trace's time, ms.
            shares: True if `before` and `after` are percentages of the wall time instead.
            mad: the median absolute deviation of a history, ms.
        """
        change: Fraction | float = after - before
        if self.unit == BudgetUnit.PERCENT and not shares and change:
            # An increase from 0 is more than any percentage.
            change = 100 * change / before if before else math.inf
        limit = self.limit
        if self.unit == BudgetUnit.DEVIATIONS:
            limit *= mad
        return change > limit if self.above else change < limit


@dataclass(frozen=True)
class BudgetOutcome:
    """The result of checking a budget in one trace."""

    budget: Budget
    what: str  #: the row that was checked, such as `B: GEMM`
    before: Fraction  #: the baseline's time, ms, or its share of the wall time, percent
    after: Fraction  #: the trace's time or share
    crossed: bool  #: True if the budget was crossed
    shares: bool = False  #: True if `before` and `after` are shares

    def __str__(self) -> str:
        before = float(self.before)
        after = float(self.after)
        change = after - before
        if self.shares:
            values = f"{before:,.2f} → {after:,.2f} % of the wall time ({change:+,.2f})"
        else:
            change_text = f"{change:+,.3f} ms"
            if before:
                percent = 100 * change / before
                change_text = f"{change_text}, {percent:+,.2f} %"
            values = f"{before:,.3f} → {after:,.3f} ms ({change_text})"
        return f"{self.what} {values}; the budget is {self.budget}"


def parse_budget(text: str) -> Budget:
    """Parse a budget such as `NAME > +5%` or `NAME < -0.5ms`; blanks and `+` are optional.

    Raises:
        UsageError: the text is not a budget.
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
    """Check budgets for every trace except the baseline, device by device if there are several.

    A category or finding that a trace lacks counts as 0.

    Args:
        budgets: the budgets.
        comparison: the comparison of the traces.
        finding_ids: the ids of all findings that exist.

    Returns:
        An outcome for each budget, trace and device, in the order of the budgets.

    Raises:
        UsageError: a budget has an unknown name, or needs a history that is not given.
        TracelensError: a report does not contain the data that a budget needs.
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
            values_of_device = {"": _savings(budget, name, comparison)}
            is_share = budget.unit == BudgetUnit.PERCENT
        else:
            table = "timeline" if name in names.timeline else "categories"
            values_of_device = _times(comparison, table, name)
        for device_text, values in values_of_device.items():
            for change in _changes(comparison, values):
                crossed = budget.is_crossed_by(
                    change.before, change.after, shares=is_share, mad=change.deviation
                )
                subject = f"{change.prefix}{name}{device_text}"
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
    """The names of everything that can have a budget."""

    def __init__(self, comparison: Comparison, finding_ids: Iterable[str]) -> None:
        self.timeline = comparison.aligned["timeline"].names
        categories = comparison.aligned.get("categories")
        self._has_categories = categories is not None
        self._categories = []
        if categories is not None:
            self._categories = categories.names
        other_categories: list[str] = []
        if categories is not None and "kernel_category" in categories.keys:
            other_categories.extend(CATEGORIES)
            other_categories.extend(_categories_of_rules(comparison))
        self._findings = {FINDINGS} | set(finding_ids)
        for measurement in comparison.measurements:
            self._findings.update(measurement.findings or ())
        # Names in the traces come first, so that their spelling takes precedence over the
        # spelling in rules.
        self._all_names = (
            self.timeline + self._categories + other_categories + sorted(self._findings)
        )

    def is_finding(self, name: str) -> bool:
        """Tell whether a name is that of a finding, and not of a row of the tables."""
        is_row = name in self.timeline or name in self._categories
        return name in self._findings and not is_row

    def find(self, budget: Budget) -> str:
        """Return the name of a budget as the tables spell it.

        Upper and lower case are not distinguished, unless a name with exactly this spelling exists.

        Raises:
            UsageError: the name is unknown.
            TracelensError: the name can only be that of a category, but there are no categories.
        """
        name = budget.name
        folded_name = name.casefold()
        may_be_category = (
            folded_name not in self.timeline and folded_name not in self._findings
        )
        if may_be_category and not self._has_categories:
            raise TracelensError(
                f"the budget {budget} cannot be checked because a report contains no "
                "categories; use a row of the timeline, or compare traces"
            )
        if name in self._all_names:
            return name
        name_of_folded = {
            known_name.casefold(): known_name
            for known_name in reversed(self._all_names)
        }
        if folded_name in name_of_folded:
            return name_of_folded[folded_name]
        nearest_names = difflib.get_close_matches(
            folded_name, name_of_folded, n=_NEAREST_NAMES, cutoff=_MIN_SIMILARITY
        )
        hint = ", ".join(name_of_folded[nearest_name] for nearest_name in nearest_names)
        if not hint:
            rows = dict.fromkeys(self.timeline)
            hint = f"{', '.join(rows)}, or a category"
        raise UsageError(
            f"there is no timeline row, category or finding called {name!r}; the "
            f"closest names: {hint}"
        )


def _categories_of_rules(comparison: Comparison) -> list[str]:
    """Return all categories that the rules of the traces can assign, sorted."""
    categories: set[str] = set()
    for measurement in comparison.measurements:
        categories.update(measurement.categories)
    return sorted(categories)


def _times(comparison: Comparison, table: str, name: str) -> dict[str, list[Fraction]]:
    """Return the times of the rows with a name in each trace, ms.

    The keys name the device, such as ` of device 1`; the key is empty if there is one device. If no
    row has the name, all times are 0.
    """
    aligned = comparison.aligned[table]
    has_name = [row == name for row in aligned.names]
    devices = aligned.keys.get("device", pd.Series(NONE, aligned.keys.index))
    times: dict[str, list[Fraction]] = {}
    for device, ns_of_traces in zip(
        devices[has_name].tolist(), aligned.ns[has_name].tolist(), strict=True
    ):
        device_text = "" if device == NONE else f" of device {device}"
        times[device_text] = [
            Fraction(ns) / Fraction(NS_PER_MS * divisor)
            for ns, divisor in zip(ns_of_traces, comparison.divisors, strict=True)
        ]
    return times or {"": [Fraction(0)] * len(comparison.divisors)}


class _Change(NamedTuple):
    """The values of the baseline and of another trace."""

    prefix: str  #: text before the name of the row that names the trace
    before: Fraction
    after: Fraction
    deviation: Fraction  #: the median absolute deviation of a history; 1 without one


def _changes(comparison: Comparison, values: Sequence[Fraction]) -> Iterator[_Change]:
    """Yield the change of each trace from the baseline, or of the last trace from its history.

    Args:
        comparison: the comparison.
        values: the value of each trace.
    """
    if comparison.history:
        earlier_values = values[:-1]
        usual_value = median(earlier_values)
        deviation = median([abs(value - usual_value) for value in earlier_values])
        yield _Change(
            prefix="", before=usual_value, after=values[-1], deviation=deviation
        )
        return
    for letter, after in zip(comparison.letters[1:], values[1:], strict=True):
        yield _Change(
            prefix=f"{letter}: ", before=values[0], after=after, deviation=Fraction(1)
        )


def _savings(budget: Budget, name: str, comparison: Comparison) -> list[Fraction]:
    """Return the saving of a finding, or of all findings, in each trace.

    The savings are percentages if the budget is, and ms per unit of work otherwise.

    Raises:
        TracelensError: the findings of a trace are not known.
    """
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
