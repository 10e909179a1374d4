"""Percentages and texts of numbers, without errors of binary fractions."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Final

#: An integer: a fraction that is divided by a float would become a rounded float.
NS_PER_MS: Final = 10**6


def fixed_point_text(value: Fraction, decimals: int) -> str:
    """Return a number as text, rounded to a number of decimals; halves are rounded to even."""
    # A float would round twice: once to a binary fraction, then to decimals.
    scaled = round(value * 10**decimals)
    return f"{Decimal(f'{scaled}e-{decimals}'):f}"


def percentage(part: Fraction | int, whole: Fraction | int) -> Fraction:
    """Return `part` as a percentage of `whole`, and 0 if the whole is 0."""
    if not whole:
        return Fraction(0)
    return 100 * Fraction(part) / whole
