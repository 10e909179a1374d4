"""Tables of several traces: their rows put side by side, and the columns that compare them."""

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

#: Decimals of ms that are whole ns.
_NS_DECIMALS = 6
#: Tables whose times are not those of GPU events that are launched by calls.
_WITHOUT_CALLS = ("timeline", "phases")
_FIGURES = ("ns", "count", "calls")
_LINE_END = re.compile("\r\n?")


def align_places(figures: Sequence[Figures]) -> list[Aligned]:
    """Return the places of the first with those of each other; none where one lacks them."""
    places = []
    for of_trace in figures:
        if of_trace.places is None:
            return []
        places.append(of_trace.places)
    first = places[0]
    return [align(first, others) for others in places[1:]]


def align_tables(parts: Sequence[pd.DataFrame], keys: tuple[str, ...]) -> Aligned:
    """Return one row for each distinct key of any trace, in the order of first appearance.

    Args:
        parts: the tables of the traces, with the columns `ns`, `count` and `calls`.
        keys: the columns that name a row.
    """
    key_columns = list(keys)
    rows_of_trace = [len(part) for part in parts]
    trace_of_row = np.repeat(np.arange(len(parts)), rows_of_trace)
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
    """Return a table as reports have it: GPU events for calls, names as out of a workbook.

    A workbook spells names least well: what a cell cannot hold is replaced or cut, and openpyxl
    takes `x005F_` for an escape.
    """
    names = {key: [_spelled_in_workbook(name) for name in part[key]] for key in keys}
    return part.assign(calls=part["count"], **names)


def _spelled_in_workbook(name: str) -> str:
    """Return a name as it is read back from a workbook."""
    text = cell_text(name)[0]
    return _LINE_END.sub("\n", text).replace("x005F_", "")


def comparison_table(
    name: str, aligned: Aligned, letters: Sequence[str], divisors: Sequence[float]
) -> pd.DataFrame:
    """Return a table of several traces, the largest difference first; a timeline in its order.

    Args:
        name: of the table.
        aligned: its rows.
        letters: what the traces are called, the baseline first.
        divisors: what the time of each trace is divided by.
    """
    times = aligned.ns / (NS_PER_MS * np.array(divisors))
    columns = _key_columns(name, aligned)
    columns[f"{letters[0]}_time_ms"] = times[:, 0]
    for trace, (letter, prefix) in enumerate(prefixes(letters).items(), start=1):
        difference = times[:, trace] - times[:, 0]
        columns[f"{letter}_time_ms"] = times[:, trace]
        columns[f"{prefix}difference_ms"] = difference
        columns[f"{prefix}difference_percent"] = 100 * _quotient(
            difference, times[:, 0]
        )
        columns[f"{prefix}ratio"] = _quotient(times[:, trace], times[:, 0])
        if name not in _WITHOUT_CALLS:
            calls = aligned.calls / divisors
            amount_ms = _change_by_calls(
                before_ms=times[:, 0],
                after_ms=times[:, trace],
                calls_before=calls[:, 0],
                calls_after=calls[:, trace],
            )
            # What rounding leaves is no difference.
            speed_ms = np.round(difference - amount_ms, _NS_DECIMALS + 3) + 0.0
            columns[f"{prefix}by_calls_ms"] = amount_ms
            columns[f"{prefix}by_speed_ms"] = speed_ms
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


def _key_columns(name: str, aligned: Aligned) -> dict[str, object]:
    """Return the columns that name rows; without the device where no trace has several."""
    columns: dict[str, object] = {}
    for key in aligned.keys:
        values = aligned.keys[key]
        if name == "timeline" and key == "device" and (values == NONE).all():
            continue
        columns[str(key)] = values.to_numpy()
    return columns


def _per_unit(number: Int64Array, divisor: float) -> Int64Array | Float64Array:
    """Return counts by unit; whole numbers stay whole."""
    return number if divisor == 1 else number / divisor


def _change_by_calls(
    before_ms: Float64Array,
    after_ms: Float64Array,
    calls_before: Float64Array,
    calls_after: Float64Array,
) -> Float64Array:
    """Return what of each difference is the number of calls, ms, in whole ns.

    All of it where one of the two has no calls.
    """
    has_both = (calls_before > 0) & (calls_after > 0)
    no_time = np.zeros(len(before_ms))
    ms_per_call = np.divide(before_ms, calls_before, out=no_time, where=has_both)
    amount_ms = np.round((calls_after - calls_before) * ms_per_call, _NS_DECIMALS)
    return np.where(has_both, amount_ms, after_ms - before_ms)


def _quotient(part: Float64Array, whole: Float64Array | Int64Array) -> Float64Array:
    """Return `part / whole`, NaN where that is 0."""
    result: Float64Array = part / np.where(whole == 0, np.nan, whole)
    return result
