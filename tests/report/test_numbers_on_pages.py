"""How numbers are written on pages."""

from __future__ import annotations

import pytest

from tracelens_ext.report.html_texts import amount_text, number_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1.5, "1.5"),
        (26_795, "26,795"),
        (1234.56, "1,235"),
        (0.012345, "0.01235"),
        (-2.25, "-2.25"),
    ],
)
def test_a_number_has_four_digits_and_no_exponent(value: float, text: str) -> None:
    assert number_text(value) == text


def test_a_time_is_written_in_the_unit_that_suits_it() -> None:
    assert amount_text(293_400, "µs", 0.0) == "293.4\u00a0ms"
    assert amount_text(12_345, "calls", 0.0) == "12,345 calls"
