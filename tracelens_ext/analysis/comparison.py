"""Several traces side by side: where the time of each went, and what changed most.

First each trace is measured (`measure`), then the measurements are compared (`compare`). The first
trace is the baseline, and is called A; the others are B, C …
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.analysis.comparison_notes import comparison_facts, comparison_notes
from tracelens_ext.analysis.measurement import KEYS, Measurement, measure
from tracelens_ext.errors import TracelensError, UsageError
from tracelens_ext.trace import NONE, NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import pandas as pd

    from tracelens_ext.analysis.measurement import Figures, TableName
    from tracelens_ext.trace import Int64Array

    FloatArray = npt.NDArray[np.float64]

__all__ = ["KEYS", "Aligned", "Comparison", "Measurement", "compare", "measure"]

#: Without the letter that is also a unit of time.
_LETTERS = "ABCDEFGHIJKLMNOPQRTUVWXYZ"


@dataclass(frozen=True)
class Aligned:
    """One table of all traces: k rows, t traces.

    Attributes:
        keys: the columns that name the rows, k of them.
        ns: time of each row in each trace, of all its iterations together, (k, t).
        count: GPU events, likewise.
    """

    keys: pd.DataFrame
    ns: Int64Array
    count: Int64Array


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several traces compared; A is the baseline.

    Attributes:
        measurements: of the traces, A first.
        per_iteration: whether times are of an average iteration, and not of the whole trace.
    """

    measurements: Sequence[Measurement]
    per_iteration: bool

    @cached_property
    def letters(self) -> list[str]:
        """What the traces are called in the names of columns."""
        count = len(_LETTERS)
        return [_LETTERS[at % count] * (at // count + 1) for at in range(len(self.measurements))]

    @cached_property
    def divisors(self) -> list[int]:
        """What the time of each trace is divided by: its iterations, or 1."""
        return [m.iterations if self.per_iteration else 1 for m in self.measurements]

    @cached_property
    def figures(self) -> list[Figures]:
        """The figures that are compared."""
        whole = [m.whole_iterations or m.total for m in self.measurements]
        return whole if self.per_iteration else [m.total for m in self.measurements]

    @cached_property
    def aligned(self) -> dict[TableName, Aligned]:
        """Each table with the times of all traces, before any division.

        Where every trace has one device, those are compared whatever their numbers.
        """
        tables = [dict(figures.tables) for figures in self.figures]
        if all(table["timeline"]["device"].nunique() < 2 for table in tables):
            for table in tables:
                table["timeline"] = table["timeline"].assign(device=NONE)
        return {name: _aligned([table[name] for table in tables], KEYS[name]) for name in KEYS}

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables by name: `timeline`, `categories`, `ops`, `kernels`.

        Columns: what names the row (`device`, where a trace has several, and `type`;
        `kernel_category`; `cpu_op`; `kernel_category` and `kernel_name`), then `A_time_ms`,
        `B_time_ms`, `difference_ms` (B - A), `difference_%` (of A) and `ratio` (B / A), both empty
        where A has no time, and `A_count`, `B_count` (GPU events, but for the timeline). With more
        than two traces the columns of each read `B_time_ms`, `B_difference_ms`, … All are of an
        average iteration when `per_iteration`. The largest difference comes first, whatever its
        sign; the timeline keeps its order.
        """
        return {name: self._table(name) for name in KEYS}

    @cached_property
    def facts(self) -> list[tuple[str, object]]:
        """What was compared, label and value."""
        return comparison_facts(self)

    @cached_property
    def notes(self) -> list[str]:
        """What changed most, and how the comparison was made, a sentence each."""
        return comparison_notes(self)

    def times_ms(self, name: TableName) -> FloatArray:
        """The times of a table as shown, ms, (k, t)."""
        # One division: two equal averages are then equal to the last bit.
        times: FloatArray = self.aligned[name].ns / (NS_PER_MS * np.array(self.divisors))
        return times

    def _table(self, name: TableName) -> pd.DataFrame:
        import pandas as pd

        aligned, times = self.aligned[name], self.times_ms(name)
        columns: dict[str, object] = {
            str(key): aligned.keys[key].to_numpy()
            for key in aligned.keys
            if key != "device" or (aligned.keys[key] != NONE).any()
        }
        columns[f"{self.letters[0]}_time_ms"] = times[:, 0]
        for at, letter in enumerate(self.letters[1:], start=1):
            prefix = "" if len(self.letters) == 2 else f"{letter}_"
            difference = times[:, at] - times[:, 0]
            columns |= {
                f"{letter}_time_ms": times[:, at],
                f"{prefix}difference_ms": difference,
                f"{prefix}difference_%": 100 * _quotient(difference, times[:, 0]),
                f"{prefix}ratio": _quotient(times[:, at], times[:, 0]),
            }
        if name != "timeline":
            for at, letter in enumerate(self.letters):
                divisor = self.divisors[at]
                count = aligned.count[:, at]
                columns[f"{letter}_count"] = count if divisor == 1 else count / divisor
        frame = pd.DataFrame(columns)
        if name == "timeline":
            return frame
        change = np.abs(times[:, 1:] - times[:, :1]).max(axis=1, initial=0.0)
        order = np.lexsort((-times[:, 0], -change))
        return frame.iloc[order].reset_index(drop=True)


def compare(
    measurements: Sequence[Measurement], *, per_iteration: bool | None = None
) -> Comparison:
    """Compare traces with the first of them.

    Args:
        measurements: of two traces or more.
        per_iteration: True for the average whole iteration of each, False for whole traces; None
            for iterations when all traces have some.

    Raises:
        UsageError: fewer than two traces, or iterations asked for where a trace has none.
        TracelensError: no trace holds a GPU event.
    """
    if len(measurements) < 2:
        raise UsageError("a comparison needs two traces at least")
    without = [m.path for m in measurements if not m.iterations]
    if per_iteration and without:
        raise UsageError(f"{without[0]}: has no whole iteration; compare whole traces")
    if not any(m.events for m in measurements):
        paths = ", ".join(m.path for m in measurements)
        raise TracelensError(f"{paths}: no trace holds GPU events; there is nothing to compare")
    return Comparison(measurements, not without if per_iteration is None else per_iteration)


def _aligned(parts: Sequence[pd.DataFrame], keys: tuple[str, ...]) -> Aligned:
    """One row for each distinct key of any trace, in order of first appearance."""
    import pandas as pd

    of_trace = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    rows = pd.concat(parts, ignore_index=True)
    columns = list(keys)
    group = rows.groupby(columns, sort=False, dropna=False).ngroup().to_numpy()
    distinct = rows.drop_duplicates(columns)[columns].reset_index(drop=True)
    ns, count = np.zeros((2, len(distinct), len(parts)), dtype=np.int64)
    np.add.at(ns, (group, of_trace), rows["ns"].to_numpy())
    np.add.at(count, (group, of_trace), rows["count"].to_numpy())
    return Aligned(distinct, ns, count)


def _quotient(part: FloatArray, whole: FloatArray) -> FloatArray:
    """`part / whole`, NaN where that is 0."""
    result = np.full(part.shape, np.nan)
    np.divide(part, whole, out=result, where=whole != 0)
    return result
