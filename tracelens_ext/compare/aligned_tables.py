"""Puts the tables of several traces side by side, and adds the columns that compare them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from tracelens_ext.compare.alignment import Aligned, align
from tracelens_ext.compare.measurement import Figures
from tracelens_ext.compare.verdict import prefixes
from tracelens_ext.lazy import pd
from tracelens_ext.report.excel_text import cell_text
from tracelens_ext.trace import NONE, NS_PER_MS, Float64Array, Int64Array

#: Times in ms have this many decimals if they are whole ns.
_NS_DECIMALS = 6
#: Tables whose rows have no calls of operations.
_WITHOUT_CALLS = ("timeline", "phases")
_FIGURES = ("ns", "count", "calls")
_LINE_END = re.compile("\r\n?")


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
    groups = rows.groupby(key_columns, sort=False, dropna=False)
    group = groups.ngroup().to_numpy()
    distinct = rows.drop_duplicates(key_columns)[key_columns]
    distinct = distinct.reset_index(drop=True)
    sums = {}
    for figure in _FIGURES:
        cells = np.zeros((len(distinct), len(parts)), dtype=np.int64)
        np.add.at(cells, (group, trace_of_row), rows[figure].to_numpy())
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
    name: str, aligned: Aligned, letters: Sequence[str], divisors: Sequence[float]
) -> pd.DataFrame:
    """Return a table that compares several traces.

    The row with the largest difference comes first; the rows of a timeline and of phases keep
    their order.

    Args:
        name: the name of the table.
        aligned: the rows of all traces.
        letters: the letters of the traces, the baseline first.
        divisors: the number by which the time of each trace is divided.
    """
    times = aligned.ns / (NS_PER_MS * np.array(divisors))
    columns = _key_columns(name, aligned)
    columns[f"{letters[0]}_time_ms"] = times[:, 0]
    for trace, (letter, prefix) in enumerate(prefixes(letters).items(), start=1):
        columns[f"{letter}_time_ms"] = times[:, trace]
        columns |= _difference_columns(
            name=name,
            aligned=aligned,
            times=times,
            trace=trace,
            prefix=prefix,
            divisors=divisors,
        )
    for trace, (letter, divisor) in enumerate(zip(letters, divisors, strict=True)):
        has_calls = name not in _WITHOUT_CALLS
        if has_calls or name == "phases":
            columns[f"{letter}_count"] = _per_unit(aligned.count[:, trace], divisor)
        if has_calls:
            columns[f"{letter}_calls"] = _per_unit(aligned.calls[:, trace], divisor)
        if name == "phases":
            columns[f"{letter}_ms_per_step"] = _quotient(
                times[:, trace], aligned.count[:, trace]
            )
    if name == "places":
        is_absent = [aligned.count[:, 1] == 0, aligned.count[:, 0] == 0]
        columns["only_in"] = np.select(is_absent, list(letters), "")
    table = pd.DataFrame(columns)
    if name in _WITHOUT_CALLS:
        return table
    largest_change = np.abs(times[:, 1:] - times[:, :1]).max(axis=1, initial=0.0)
    order = np.lexsort((-times[:, 0], -largest_change))
    return table.iloc[order].reset_index(drop=True)


def _difference_columns(
    name: str,
    aligned: Aligned,
    times: Float64Array,
    trace: int,
    prefix: str,
    divisors: Sequence[float],
) -> dict[str, object]:
    """Return the columns that compare one trace with the baseline.

    Args:
        name: the name of the table.
        aligned: the r rows of all n traces.
        times: the times of the traces after division, ms, (r, n).
        trace: the index of the trace; the baseline has the index 0.
        prefix: the prefix of the names of the columns.
        divisors: the number by which the time of each trace is divided.
    """
    before = times[:, 0]
    after = times[:, trace]
    difference = after - before
    columns: dict[str, object] = {
        f"{prefix}difference_ms": difference,
        f"{prefix}difference_percent": 100 * _quotient(difference, before),
        f"{prefix}ratio": _quotient(after, before),
    }
    if name in _WITHOUT_CALLS:
        return columns
    calls = aligned.calls / divisors
    by_calls_ms = _change_by_calls(
        before_ms=before,
        after_ms=after,
        calls_before=calls[:, 0],
        calls_after=calls[:, trace],
    )
    # Rounding errors must not look like differences; adding 0.0 turns -0.0 into 0.0.
    by_speed_ms = np.round(difference - by_calls_ms, _NS_DECIMALS + 3) + 0.0
    columns[f"{prefix}by_calls_ms"] = by_calls_ms
    columns[f"{prefix}by_speed_ms"] = by_speed_ms
    return columns


def _key_columns(name: str, aligned: Aligned) -> dict[str, object]:
    """Return the columns that identify rows, without the device if no trace has several."""
    columns: dict[str, object] = {}
    for key in aligned.keys:
        values = aligned.keys[key]
        if name == "timeline" and key == "device" and (values == NONE).all():
            continue
        columns[str(key)] = values.to_numpy()
    return columns


def _per_unit(number: Int64Array, divisor: float) -> Int64Array | Float64Array:
    """Return counts divided by the number of units; counts of whole traces stay integers."""
    return number if divisor == 1 else number / divisor


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
