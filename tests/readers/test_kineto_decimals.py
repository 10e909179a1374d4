"""Texts of numbers become exact integers without passing through a float."""

from __future__ import annotations

from decimal import ROUND_FLOOR, Context, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tracelens_ext.readers.kineto.schema import (
    MISSING,
    MISSING_NS,
    parse_integers,
    parse_nanoseconds,
)

#: Exact arithmetic on any number that a token can hold.
WIDE = Context(prec=5000)
INT64_MAX = 2**63 - 1


def raws(tokens: list[str]) -> list[Raw]:
    return [Raw(token.encode()) for token in tokens]


def nanoseconds(tokens: list[str]) -> list[int]:
    values: list[int] = parse_nanoseconds(raws(tokens)).tolist()
    return values


def integers(tokens: list[str]) -> list[int]:
    values: list[int] = parse_integers(raws(tokens)).tolist()
    return values


def exact_nanoseconds(token: str) -> int:
    """Return the nanoseconds by decimal arithmetic; half a nanosecond is rounded up."""
    doubled = WIDE.multiply(Decimal(token), Decimal(2000))
    return int(WIDE.add(doubled, Decimal(1)).to_integral_value(ROUND_FLOOR)) // 2


def decimal_texts(most_digits: int = 15, decimals: int = 3) -> st.SearchStrategy[str]:
    """Return the text of a number, such as `-12`, `0.5` or `1712195495519.047`."""
    return st.builds(
        lambda sign, whole, fraction: (
            f"{sign}{whole}{'.' if fraction else ''}{fraction}"
        ),
        st.sampled_from(["", "-"]),
        st.integers(0, 10**most_digits).map(str),
        st.text("0123456789", max_size=decimals),
    )


@given(st.lists(decimal_texts(), max_size=20))
def test_times_are_exact_to_the_nanosecond(tokens: list[str]) -> None:
    assert nanoseconds(tokens) == [int(Decimal(t) * 1000) for t in tokens]


@given(st.lists(decimal_texts(most_digits=8, decimals=9), max_size=20))
def test_what_is_finer_than_a_nanosecond_is_rounded(tokens: list[str]) -> None:
    assert nanoseconds(tokens) == [exact_nanoseconds(t) for t in tokens]


@given(st.lists(decimal_texts(decimals=30), min_size=1, max_size=10))
def test_no_number_of_digits_is_too_many(tokens: list[str]) -> None:
    assert nanoseconds(tokens) == [exact_nanoseconds(t) for t in tokens]


UNUSUAL = ["1e3", '"7"', "null", "true", "[1]", "0.12345678901", "99999999999999999999"]


@given(
    decimal_texts(decimals=6)
    | st.sampled_from(["0.0005", "-0.0005", "1.0015", "4000000000.25"]),
    st.sampled_from(UNUSUAL),
)
def test_a_time_does_not_depend_on_its_neighbours(token: str, neighbour: str) -> None:
    assert nanoseconds([token, neighbour])[0] == nanoseconds([token])[0]


@given(
    st.integers(-INT64_MAX + 1, INT64_MAX - 1).filter(lambda n: n != MISSING),
    st.sampled_from([*UNUSUAL, "1.5"]),
)
def test_an_integer_does_not_depend_on_its_neighbours(
    value: int, neighbour: str
) -> None:
    assert integers([str(value), neighbour])[0] == value
    assert integers([str(value)])[0] == value


def test_nineteen_digits_keep_every_nanosecond() -> None:
    tokens = ["1712195495519689.047", "1712195495519689.048", "-1712195495519689.049"]
    assert nanoseconds(tokens) == [
        1712195495519689047,
        1712195495519689048,
        -1712195495519689049,
    ]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], []),
        (["0"], [0]),
        (["-0.001"], [-1]),
        (["-0.5", "0.5"], [-500, 500]),
        (["00012"], [12_000]),  # no JSON, but decimal all the same, not octal
        (["12", "12.5", "12.25", "12.125"], [12_000, 12_500, 12_250, 12_125]),
        (["1.123", "null", "2.456"], [1_123, MISSING_NS, 2_456]),
        (["null"], [MISSING_NS]),
        (["1.123456789"], [1_123]),
        (["0.0005", "0.0004999"], [1, 0]),
        (["9223372036854775.806"], [INT64_MAX - 1]),
    ],
)
def test_times(tokens: list[str], expected: list[int]) -> None:
    assert nanoseconds(tokens) == expected


@pytest.mark.parametrize(
    "token",
    ["9223372036854775.807", "9300000000000000", "-9300000000000000.5", "9" * 20],
)
def test_times_beyond_64_bits_of_nanoseconds_are_missing(token: str) -> None:
    assert nanoseconds(["1.5", token]) == [1_500, MISSING_NS]
    assert nanoseconds([token]) == [MISSING_NS]


@pytest.mark.parametrize(
    "token", ["1.5", "[1]", str(INT64_MAX), str(-(2**63)), "9" * 40]
)
def test_what_is_no_integer_of_64_bits_is_missing(token: str) -> None:
    assert integers(["1", token]) == [1, MISSING]


@given(st.lists(st.integers(1 - INT64_MAX, INT64_MAX - 1), max_size=20))
def test_integers_are_exact(values: list[int]) -> None:
    assert integers([str(v) for v in values]) == values


def test_values_that_are_not_integers_are_missing() -> None:
    assert integers([]) == []
    assert integers(["null", "7"]) == [MISSING, 7]


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("1e3", 1_000_000),
        ("1E-3", 1),
        ("2.5e-1", 250),
        ('"12.5"', 12_500),
        ("-0", 0),
        ("1e-999999999", 0),
        ("0." + "3" * 5000, 333),
        ("1712195495519689.0474", 1712195495519689047),
    ],
)
def test_unusual_times_are_read(token: str, expected: int) -> None:
    assert nanoseconds([token]) == [expected]


@pytest.mark.parametrize(
    ("token", "expected"),
    [("1e3", 1000), ('"12"', 12), ("5.0", 5), ("-0", 0), ("7", 7)],
)
def test_unusual_integers_are_read(token: str, expected: int) -> None:
    assert integers([token]) == [expected]


HOPELESS = [
    "null",
    "true",
    "[1]",
    "{}",
    '""',
    '"x"',
    '"\u0661"',
    "NaN",
    "-Infinity",
    '"sNaN"',
]
HOPELESS += [
    "1e400",
    "1e999999999",
    "-1e999999999",
    "1e99999999999999999999",
    "9" * 5000,
]


@pytest.mark.parametrize("token", HOPELESS)
def test_what_is_no_number_or_does_not_fit_counts_as_missing(token: str) -> None:
    assert nanoseconds(["1.5", token, "2"]) == [1_500, MISSING_NS, 2_000]
    assert integers(["1", token, "2"]) == [1, MISSING, 2]


@pytest.mark.parametrize("token", ["1.5", '"0.1"', "1e-3"])
def test_a_fraction_is_no_integer(token: str) -> None:
    assert integers([token]) == [MISSING]
