"""Column names tell units; units tell formats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens_ext.report.tables.units import (
    Quantity,
    Shown,
    fits_a_spreadsheet,
    unit_of,
)


@pytest.mark.parametrize(
    ("column", "quantity", "symbol"),
    [
        ("total_time_ms", Quantity.TIME, "ms"),
        ("time ms", Quantity.TIME, "ms"),
        ("avg_time_us", Quantity.TIME, "µs"),
        ("Kernel duration (µs)_sum", Quantity.TIME, "µs"),
        ("Kernel duration (\u03bcs)_sum", Quantity.TIME, "µs"),
        ("total_direct_kernel_time_mean", Quantity.TIME, "µs"),
        ("duration_ns", Quantity.TIME, "ns"),
        ("Kernel duration (µs)_count", Quantity.COUNT, ""),
        ("operation_count", Quantity.COUNT, ""),
        ("Count", Quantity.COUNT, ""),
        ("launches", Quantity.COUNT, ""),
        ("kernels a launch", Quantity.COUNT, ""),
        ("percent", Quantity.PERCENT, "%"),
        ("% of cpu_op time", Quantity.PERCENT, "%"),
        ("Percent of kernels time (%)", Quantity.PERCENT, "%"),
        ("Cumulative Percentage (%)", Quantity.PERCENT, "%"),
        ("Short Kernel duration (µs) percent of total time", Quantity.PERCENT, "%"),
        ("message size (bytes)", Quantity.BYTES, "B"),
        ("In msg size (MB)", Quantity.RATE, "MB"),
        ("bus bw (GB/s)", Quantity.RATE, "GB/s"),
        ("TFLOPS/s", Quantity.RATE, "TFLOPS/s"),
        ("ratio", Quantity.RATIO, "x"),
        ("Kernel stream", Quantity.IDENTIFIER, ""),
        ("device", Quantity.IDENTIFIER, ""),
        ("ex_UID", Quantity.IDENTIFIER, ""),
        ("kernel_name", Quantity.UNKNOWN, ""),
        ("bin_start", Quantity.UNKNOWN, ""),
    ],
)
def test_unit_of_a_column(column: str, quantity: Quantity, symbol: str) -> None:
    unit = unit_of(column)
    assert (unit.quantity, unit.symbol) == (quantity, symbol)


@pytest.mark.parametrize(
    ("column", "fractions", "largest", "expected"),
    [
        ("total_time_ms", True, 12.5, '#,##0.000" ms"'),
        # three digits of the largest
        ("total_time_ms", True, 0.00237, '#,##0.00000" ms"'),
        ("avg_time_us", False, 150, '#,##0.000" µs"'),
        ("percent", True, 100, '#,##0.00"%"'),
        ("count", False, 10, "#,##0"),
        ("count", True, 10, "#,##0.00"),
        ("device", False, 3, "0"),
        ("block size", False, 3, "#,##0"),
        ("block size", True, 3, "#,##0.000"),
        ("difference (%)", True, 3, '+#,##0.00"%";-#,##0.00"%";#,##0.00"%"'),
    ],
)
def test_excel_format(
    column: str, fractions: bool, largest: float, expected: str
) -> None:
    assert Shown(unit_of(column), fractions, largest).excel_format == expected


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("total_time_ms", 1234.5678, "1,234.568"),
        ("percent", 48.888, "48.9%"),
        ("percent", 0.001, "<0.1%"),
        ("percent", 0.0, "0.0%"),
        ("difference (%)", 5.0, "+5.0%"),
        ("difference (ms)", -5.0, "-5.000"),
        ("stream", 7, "7"),
        ("correlation", 10**18 + 1, "1000000000000000001"),
        ("total_time_ms", float("nan"), ""),
        ("total_time_ms", float("inf"), "inf"),
    ],
)
def test_text_for_the_terminal(column: str, value: float, expected: str) -> None:
    assert Shown(unit_of(column)).text(value) == expected


@given(st.integers())
def test_whole_numbers_are_exact(value: int) -> None:
    count = Shown(unit_of("count"), fractions=False)
    shown = count.text(value) if abs(value) < 10**300 else f"{value:,}"
    assert int(shown.replace(",", "")) == value


@given(st.text(max_size=30), st.floats(), st.booleans(), st.floats(min_value=0))
def test_any_column_name_has_a_format(
    column: str, value: float, fractions: bool, largest: float
) -> None:
    shown = Shown(unit_of(column), fractions, largest)
    assert shown.excel_format
    assert isinstance(shown.text(value), str)


def test_fifteen_digits_fit() -> None:
    assert fits_a_spreadsheet(999_999_999_999_999)
    assert not fits_a_spreadsheet(1_000_000_000_000_000)
    assert not fits_a_spreadsheet(-1_000_000_000_000_000)
