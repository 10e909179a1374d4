"""Budgets: how they are read, and exactly when they are crossed."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.comparison_helpers import measured, training
from tracelens_ext.compare.budgets import Budget, check_budgets, parse_budget
from tracelens_ext.compare.comparison import Comparison, compare
from tracelens_ext.errors import UsageError

names = st.from_regex(
    r"[A-Za-z_&/()<>-][A-Za-z0-9_&/() <>+-]{0,20}[A-Za-z_&/()]", fullmatch=True
).map(lambda name: " ".join(name.split()))
limits = st.decimals(-10_000, 10_000, places=4, allow_nan=False).map(Fraction)


@given(names, st.booleans(), limits, st.sampled_from(["%", "ms"]))
def test_the_text_of_a_budget_can_be_parsed_again(
    name: str, above: bool, limit: Fraction, unit: str
) -> None:
    budget = Budget(name, above, limit, "%" if unit == "%" else "ms")
    assert parse_budget(str(budget)) == budget


@given(st.text(max_size=40) | st.text("GEM >+-.0159%ms<", max_size=20))
@example("GEMM > +5%")
def test_any_text_is_a_budget_or_refused_with_advice(text: str) -> None:
    try:
        budget = parse_budget(text)
    except UsageError as error:
        assert "GEMM > +5%" in str(error)
        assert error.exit_code == 2
    else:
        assert parse_budget(str(budget)) == budget


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("GEMM > +5%", Budget("GEMM", True, Fraction(5), "%")),
        ("GEMM>5%", Budget("GEMM", True, Fraction(5), "%")),
        (
            "  idle_time  <  - 0.5 ms ",
            Budget("idle_time", False, Fraction(-1, 2), "ms"),
        ),
        ("MoE  Routing > .25ms", Budget("MoE Routing", True, Fraction(1, 4), "ms")),
        ("a > b > +1.%", Budget("a > b", True, Fraction(1), "%")),
    ],
)
def test_blanks_and_a_plus_do_not_matter(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GEMM",
        "GEMM > 5",
        "> 5%",
        "GEMM = 5%",
        "GEMM > 5s",
        "GEMM > five%",
        "GEMM > 1e3%",
        "GEMM > \u0665%",
        "GEMM >> 5 %%",
        "GEMM > +-5%",
        "GEMM > 5% now",
        "GEMM > .%",
    ],
)
def test_invalid_budgets_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a budget; write a name"):
        parse_budget(text)


def test_a_long_text_is_refused_quickly_and_shortened() -> None:
    with pytest.raises(UsageError) as error:
        parse_budget("a " * 10_000)
    assert len(str(error.value)) < 300


ms = st.fractions(0, 1000, max_denominator=1000)


@given(ms, ms, limits, st.booleans())
def test_percentages_are_of_the_baseline(
    before: Fraction, after: Fraction, limit: Fraction, above: bool
) -> None:
    budget = Budget("GEMM", above, limit, "%")
    crossed = budget.is_crossed_by(before, after)
    if before:
        change = (after / before - 1) * 100
        assert crossed == (change > limit if above else change < limit)
    elif after:
        assert crossed == above, "more than any percentage of nothing"
    else:
        assert crossed == budget.is_crossed_by(Fraction(7), Fraction(7)), "no change"


@given(ms, ms, st.booleans())
def test_a_change_of_exactly_the_limit_does_not_cross_it(
    before: Fraction, after: Fraction, above: bool
) -> None:
    assert not Budget("x", above, after - before, "ms").is_crossed_by(before, after)
    if before:
        percent = 100 * (after - before) / before
        assert not Budget("x", above, percent, "%").is_crossed_by(before, after)


def slower() -> Comparison:
    """GEMM goes from 40 to 42 µs an iteration: by exactly 5 % or 0.002 ms."""
    return compare([measured(training(3)), measured(training(7, gemm_us=42))])


@pytest.mark.parametrize(
    ("text", "crossed"),
    [
        ("GEMM > +5%", False),
        ("GEMM > +4.999%", True),
        ("gemm > 0.002ms", False),
        ("gemm > 0.0019ms", True),
        ("GEMM < +5.001%", True),
        ("GEMM < +5%", False),
        ("busy_time > 0 ms", True),
        ("Communication > 0%", False),
        ("Convolution > 0%", False),  # a category that neither has
        ("Convolution < -1%", False),
        ("total_time > 0.1%", False),
    ],
)
def test_averages_are_compared_exactly(text: str, crossed: bool) -> None:
    (verdict,) = check_budgets([parse_budget(text)], slower())
    assert verdict.crossed is crossed


def test_an_outcome_names_the_row_and_the_change() -> None:
    first, second = check_budgets(
        [parse_budget("gemm > 1%"), parse_budget("Convolution > 1%")], slower()
    )
    assert str(first) == (
        "B: GEMM 0.040 → 0.042 ms (+0.002 ms, +5.00 %); the budget is gemm > +1 %"
    )
    assert str(second).startswith("B: Convolution 0.000 → 0.000 ms (+0.000 ms);")


def test_a_category_that_one_side_lacks_counts_nothing() -> None:
    with_it = measured(training(2))
    without = measured(training(2, all_reduce_us=0))
    appears = compare([without, with_it])
    disappears = compare([with_it, without])
    budgets = [
        parse_budget("Communication > +1000%"),
        parse_budget("Communication < -99.9%"),
    ]
    assert [v.crossed for v in check_budgets(budgets, appears)] == [True, False]
    assert [v.crossed for v in check_budgets(budgets, disappears)] == [False, True]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Gem", "GEMM"),
        ("busytime", "busy_time"),
        ("flash attention", "Flash Attention Forward"),
        ("κ", "computation_time"),  # like nothing: the rows of the timeline are told
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(
        UsageError,
        match=f"there is no timeline row, category or finding called '{name}'",
    ) as error:
        check_budgets([parse_budget(f"{name} > 1%")], slower())
    assert nearest in str(error.value)
    assert error.value.exit_code == 2


def test_every_trace_and_device_is_checked() -> None:
    several = compare([measured(training(2, gemm_us=us)) for us in (40, 45, 38)])
    verdicts = check_budgets([parse_budget("GEMM > 0%")], several)
    assert [(v.what, v.crossed) for v in verdicts] == [
        ("B: GEMM", True),
        ("C: GEMM", False),
    ]
    two = training(2)
    two.call("cudaLaunchKernel", 1040, correlation=500)
    two.kernel("k", 1060, 60, correlation=500, device=1)
    on_devices = compare([measured(training(2)), measured(two)])
    verdicts = check_budgets([parse_budget("busy_time > 0%")], on_devices)
    assert [(v.what, v.crossed) for v in verdicts] == [
        ("B: busy_time of device 0", False),
        ("B: busy_time of device 1", True),
    ]
