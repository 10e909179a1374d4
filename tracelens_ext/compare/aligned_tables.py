"""Puts the tables of several traces side by side, and adds the columns that compare them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelens_ext.compare.alignment import Aligned, align
from tracelens_ext.compare.measurement import Figures
from tracelens_ext.compare.verdict import prefixes
from tracelens_ext.lazy import pd
from tracelens_ext.report.excel_text import cell_text
from tracelens_ext.trace import NONE, NS_PER_MS, Float64Array, Int64Array

#: Times in ms have this many decimals if they are whole ns.
_NS_DECIMALS = 6
#: Times in ms have this many decimals if they are whole ps.
_PS_DECIMALS = 9
_FIGURES = ("ns", "count", "calls")
_LINE_END = re.compile("\r\n?")


@dataclass(frozen=True)
class _TableLayout:
    """The columns that a table of the comparison has besides its times, and its order."""

    has_counts: bool = True
    #: The rows have calls of operations, so a difference is due to calls, speed or both.
    has_calls: bool = True
    #: The counts are steps of a serving engine, so the table has the time per step.
    counts_steps: bool = False
    #: A column names the only trace that has the row; for tables of two traces.
    has_only_in: bool = False
    #: The row with the largest difference comes first. Other tables keep their order.
    is_sorted_by_change: bool = True


_USUAL_LAYOUT: Final = _TableLayout()
#: Table → its layout, if it is not the usual one.
_LAYOUT_OF_TABLE: Final = {
    "timeline": _TableLayout(
        has_counts=False, has_calls=False, is_sorted_by_change=False
    ),
    "phases": _TableLayout(
        has_calls=False, counts_steps=True, is_sorted_by_change=False
    ),
    "places": _TableLayout(has_only_in=True),
}


def align_places(figures: Sequence[Figures]) -> list[Aligned]:
    """Align the places of the first trace with those of each other trace.

    The list is empty if the places of a trace are not known.
    """
    places = []
    for figures_of_trace in figures:
        if figures_of_trace.places is None:
            return []
        places.append(figures_of_trace.places)
    baseline = places[0]
    return [align(baseline, places_of_trace) for places_of_trace in places[1:]]


def align_tables(parts: Sequence[pd.DataFrame], keys: tuple[str, ...]) -> Aligned:
    """Return a row for each distinct key of any trace, in the order of first appearance.

    Args:
        parts: a table for each trace, with the columns `ns`, `count` and `calls`.
        keys: the columns that identify a row.
    """
    key_columns = list(keys)
    # The trace of each row of the joined table: [0, 0, 1, 1, 1] for tables of 2 and 3 rows.
    row_counts = [len(part) for part in parts]
    trace_of_row = np.repeat(np.arange(len(parts)), row_counts)
    rows = pd.concat(parts, ignore_index=True)
    rows_by_key = rows.groupby(key_columns, sort=False, dropna=False)
    aligned_row = rows_by_key.ngroup().to_numpy()
    distinct = rows.drop_duplicates(key_columns)[key_columns]
    distinct = distinct.reset_index(drop=True)
    sums = {}
    for figure in _FIGURES:
        cells = np.zeros((len(distinct), len(parts)), dtype=np.int64)
        np.add.at(cells, (aligned_row, trace_of_row), rows[figure].to_numpy())
        sums[figure] = cells
    return Aligned(
        keys=distinct, ns=sums["ns"], count=sums["count"], calls=sums["calls"]
    )


def spelled_as_in_reports(part: pd.DataFrame, keys: tuple[str, ...]) -> pd.DataFrame:
    """Return the table of a trace as it would be in a report, so that it fits those of reports.

    Reports contain no calls, so the number of GPU events takes their place. Names are spelled as in
    a workbook, which replaces or cuts what a cell cannot hold; openpyxl also removes `x005F_`,
    which it takes for an escape.
    """
    names = {key: [_spelled_in_workbook(name) for name in part[key]] for key in keys}
    return part.assign(calls=part["count"], **names)


def _spelled_in_workbook(name: str) -> str:
    """Return a name as it is after writing it to a workbook and reading it back."""
    text = cell_text(name)[0]
    return _LINE_END.sub("\n", text).replace("x005F_", "")


def comparison_table(
    table_name: str,
    aligned: Aligned,
    letters: Sequence[str],
    divisors: Sequence[float],
) -> pd.DataFrame:
    """Return a table that compares several traces.

    The row with the largest difference comes first; the rows of a timeline and of phases keep
    their order.

    Args:
        table_name: the name of the table.
        aligned: the rows of all traces.
        letters: the letters of the traces, the baseline first.
        divisors: the number by which the time of each trace is divided.
    """
    layout = _LAYOUT_OF_TABLE.get(table_name, _USUAL_LAYOUT)
    times = aligned.ns / (NS_PER_MS * np.array(divisors))
    columns = _key_columns(table_name, aligned)
    columns[f"{letters[0]}_time_ms"] = times[:, 0]
    for trace, (letter, prefix) in enumerate(prefixes(letters).items(), start=1):
        columns[f"{letter}_time_ms"] = times[:, trace]
        columns |= _difference_columns(prefix, times[:, 0], times[:, trace])
        if layout.has_calls:
            calls = aligned.calls / divisors
            columns |= _reason_columns(
                prefix=prefix,
                before_ms=times[:, 0],
                after_ms=times[:, trace],
                calls_before=calls[:, 0],
                calls_after=calls[:, trace],
            )
    for trace, (letter, divisor) in enumerate(zip(letters, divisors, strict=True)):
        count = aligned.count[:, trace]
        if layout.has_counts:
            columns[f"{letter}_count"] = _per_unit(count, divisor)
        if layout.has_calls:
            columns[f"{letter}_calls"] = _per_unit(aligned.calls[:, trace], divisor)
        if layout.counts_steps:
            columns[f"{letter}_ms_per_step"] = _quotient(times[:, trace], count)
    if layout.has_only_in:
        columns["only_in"] = _only_in(aligned, letters)
    table = pd.DataFrame(columns)
    if layout.is_sorted_by_change:
        return _sorted_by_change(table, times)
    return table


def _key_columns(table_name: str, aligned: Aligned) -> dict[str, object]:
    """Return the columns that identify rows, without the device if no trace has several."""
    columns: dict[str, object] = {}
    for key in aligned.keys:
        values = aligned.keys[key]
        if table_name == "timeline" and key == "device" and (values == NONE).all():
            continue
        columns[str(key)] = values.to_numpy()
    return columns


def _difference_columns(
    prefix: str, before_ms: Float64Array, after_ms: Float64Array
) -> dict[str, object]:
    """Return the columns with the difference of two traces, absolute and relative."""
    difference_ms = after_ms - before_ms
    return {
        f"{prefix}difference_ms": difference_ms,
        f"{prefix}difference_percent": 100 * _quotient(difference_ms, before_ms),
        f"{prefix}ratio": _quotient(after_ms, before_ms),
    }


def _reason_columns(
    prefix: str,
    before_ms: Float64Array,
    after_ms: Float64Array,
    calls_before: Float64Array,
    calls_after: Float64Array,
) -> dict[str, object]:
    """Return the columns that divide differences into those by calls and those by speed."""
    by_calls_ms = _change_by_calls(
        before_ms=before_ms,
        after_ms=after_ms,
        calls_before=calls_before,
        calls_after=calls_after,
    )
    # Rounding errors must not look like differences; adding 0.0 turns -0.0 into 0.0.
    by_speed_ms = np.round(after_ms - before_ms - by_calls_ms, _PS_DECIMALS) + 0.0
    return {f"{prefix}by_calls_ms": by_calls_ms, f"{prefix}by_speed_ms": by_speed_ms}


def _only_in(aligned: Aligned, letters: Sequence[str]) -> npt.NDArray[np.str_]:
    """Return the letter of the only trace of two that has each row; empty if both have it."""
    is_not_in_first = aligned.count[:, 0] == 0
    is_not_in_second = aligned.count[:, 1] == 0
    return np.select([is_not_in_second, is_not_in_first], list(letters), "")


def _sorted_by_change(table: pd.DataFrame, times: Float64Array) -> pd.DataFrame:
    """Return the rows by their largest difference from the baseline; equal ones by time.

    Args:
        table: the k rows.
        times: the time of each row in each of t traces, the baseline first, ms, (k, t).
    """
    largest_change = np.abs(times[:, 1:] - times[:, :1]).max(axis=1, initial=0.0)
    order = np.lexsort((-times[:, 0], -largest_change))
    return table.iloc[order].reset_index(drop=True)


def _per_unit(counts: Int64Array, divisor: float) -> Int64Array | Float64Array:
    """Return counts divided by the number of units; counts of whole traces stay integers."""
    if divisor == 1:
        return counts
    return counts / divisor


def _change_by_calls(
    before_ms: Float64Array,
    after_ms: Float64Array,
    calls_before: Float64Array,
    calls_after: Float64Array,
) -> Float64Array:
    """Return the part of each difference that is due to more or fewer calls, ms, in whole ns.

    If one of the two traces has no calls, this is the whole difference.
    """
    has_both = (calls_before > 0) & (calls_after > 0)
    no_time = np.zeros(len(before_ms))
    ms_per_call = np.divide(before_ms, calls_before, out=no_time, where=has_both)
    by_calls_ms = np.round((calls_after - calls_before) * ms_per_call, _NS_DECIMALS)
    return np.where(has_both, by_calls_ms, after_ms - before_ms)


def _quotient(part: Float64Array, whole: Float64Array | Int64Array) -> Float64Array:
    """Return `part / whole`, NaN where `whole` is 0."""
    result: Float64Array = part / np.where(whole == 0, np.nan, whole)
    return result
