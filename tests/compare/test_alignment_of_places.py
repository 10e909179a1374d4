"""Comparing by place: which places correspond, changes by calls and by speed, and the period."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.compare.alignment import align
from tracelens_ext.compare.comparison import compare, measure
from tracelens_ext.compare.periods import find_period
from tracelens_ext.compare.program_places import PlaceWork, ProgramPlace

if TYPE_CHECKING:
    import pandas as pd

SHARED = Path(__file__).resolve().parents[3] / "shared"


def place(chain: str, *, path: str = "", shapes: str = "") -> ProgramPlace:
    return ProgramPlace(path, False, tuple(chain.split(">")), shapes)


def launched(kernel: str, ns: int, calls: int = 1, first: int = 0) -> PlaceWork:
    return PlaceWork(calls, first, {kernel: (ns, calls)})


def table(
    a: dict[ProgramPlace, PlaceWork], b: dict[ProgramPlace, PlaceWork]
) -> pd.DataFrame:
    """Align two traces; return the keys and figures of both in one table."""
    aligned = align(a, b)
    columns = {}
    for trace, letter in enumerate("AB"):
        columns[f"{letter}_ns"] = aligned.ns[:, trace]
        columns[f"{letter}_count"] = aligned.count[:, trace]
        columns[f"{letter}_calls"] = aligned.calls[:, trace]
    return aligned.keys.assign(**columns)


def rows(
    a: dict[ProgramPlace, PlaceWork], b: dict[ProgramPlace, PlaceWork]
) -> list[tuple[str, str, int, int]]:
    columns = ["A_operation", "B_operation", "A_ns", "B_ns"]
    return sorted(table(a, b)[columns].itertuples(index=False, name=None))


def test_places_with_different_inner_operations_are_paired_at_their_ancestor() -> None:
    a = {place("sdpa"): PlaceWork(5), place("sdpa>_flash"): launched("flash", 50, 5)}
    b = {
        place("sdpa"): PlaceWork(4),
        place("sdpa>_efficient"): launched("fmha", 40, 4),
        place("sdpa>pad"): launched("pad", 8, 8),
    }
    assert rows(a, b) == [("sdpa", "sdpa", 50, 48)]
    (row,) = table(a, b).to_dict("records")
    assert (row["A_calls"], row["B_calls"]) == (5, 4), "those of the ancestor"
    assert row["B_kernels"] == "fmha × 4; pad × 8"


def test_places_are_paired_by_shapes_first() -> None:
    """One size of B goes another way: that size is compared with the same size of A."""
    small, large = ({"shapes": shapes} for shapes in ("[[2]]", "[[9]]"))
    a = {place("sdpa", **small): PlaceWork(1), place("sdpa", **large): PlaceWork(1)}
    a |= {
        place("sdpa>flash", **small): launched("f", 3),
        place("sdpa>flash", **large): launched("f", 9),
    }
    b = {place("sdpa", **small): PlaceWork(1), place("sdpa", **large): PlaceWork(1)}
    b |= {
        place("sdpa>flash", **small): launched("f", 3),
        place("sdpa>math", **large): launched("m", 30),
    }
    assert rows(a, b) == [("flash", "flash", 3, 3), ("sdpa", "sdpa", 9, 30)]


def test_remaining_places_are_paired_by_what_ran_before_them() -> None:
    a = {
        place("add"): launched("a", 1, first=10),
        place("x"): launched("x", 2, first=20),
    }
    a |= {
        place("mm"): launched("m", 3, first=30),
        place("y"): launched("y", 4, first=40),
    }
    b = {place("add"): launched("a", 1, first=1), place("p"): launched("p", 5, first=2)}
    b |= {place("mm"): launched("m", 3, first=3), place("q"): launched("q", 6, first=4)}
    assert rows(a, b) == [
        ("add", "add", 1, 1),
        ("mm", "mm", 3, 3),
        ("x", "p", 2, 5),
        ("y", "q", 4, 6),
    ]
    in_module = {
        ProgramPlace("M", False, p.chain): w for p, w in a.items() if p.chain[0] in "xy"
    }
    fused = {ProgramPlace("M", False, ("fused",)): launched("f", 3)}
    assert rows(in_module, fused) == [("x + y", "fused", 6, 3)]


def test_numbers_of_instances_are_ignored() -> None:
    a = {place("fusion.3"): launched("k", 1)}
    b = {place("fusion.12"): launched("k", 2)}
    assert rows(a, b) == [("fusion.3", "fusion.12", 1, 2)]
    apart = {place("aten::conv3d"): launched("k", 2)}
    assert ("aten::conv2d", "aten::conv3d", 1, 2) in rows(
        {place("aten::conv2d"): launched("k", 1)}, apart
    )


chains = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple)
leaves = st.dictionaries(
    st.builds(
        ProgramPlace,
        st.sampled_from(["", "M", "M/N"]),
        st.booleans(),
        chains,
        st.sampled_from("12"),
    ),
    st.tuples(st.sampled_from(["k", "l"]), st.integers(1, 9), st.integers(1, 4)),
    max_size=12,
)


@given(leaves, leaves)
def test_each_event_is_in_exactly_one_row(
    first: dict[ProgramPlace, tuple[str, int, int]],
    second: dict[ProgramPlace, tuple[str, int, int]],
) -> None:
    """The times of a path are those of its own work, whichever places are paired."""
    places_a = with_enclosing_places(first)
    places_b = with_enclosing_places(second)
    aligned = table(places_a, places_b)
    keys = ["path", "backward", "A_operation", "B_operation"]
    assert not aligned.duplicated(keys).any()
    for letter, leaves_of_trace in zip("AB", (first, second), strict=True):
        ns_of_path: Counter[str] = Counter()
        event_count = 0
        for leaf, (_, ns, events) in leaves_of_trace.items():
            ns_of_path[leaf.path] += ns
            event_count += events
        for path, ns in ns_of_path.items():
            assert aligned.loc[aligned["path"] == path, f"{letter}_ns"].sum() == ns
        assert aligned[f"{letter}_count"].sum() == event_count
    same = table(places_a, places_a)
    assert (same["A_ns"] == same["B_ns"]).all()


def with_enclosing_places(
    work_of_leaf: dict[ProgramPlace, tuple[str, int, int]],
) -> dict[ProgramPlace, PlaceWork]:
    """The places with GPU work (kernel, ns, events), and all places that enclose them."""
    places = {}
    for leaf in work_of_leaf:
        for depth in range(1, len(leaf.chain) + 1):
            places[replace(leaf, chain=leaf.chain[:depth])] = PlaceWork(3)
    for leaf, (kernel, ns, events) in work_of_leaf.items():
        places[leaf] = PlaceWork(3, ns, {kernel: (ns, events)})
    return places


def test_work_is_the_median_ratio_of_calls_and_speed_is_per_call() -> None:
    a = {place("x"): launched("x", 100, 10), place("y"): launched("y", 10, 10)}
    b = {place("x"): launched("x", 88, 8), place("y"): launched("y", 20, 20)}
    work, speed = align(a, b).work_and_speed(1)
    assert (work, speed) == (0.8, 108 / 100)
    assert align(a, {}).work_and_speed(1) == (None, None)


def steps(
    count: int, *, layers: int = 3, before: int = 0, extra: int = 0
) -> TraceMaker:
    """Steps of an embedding, some layers of four kernels, and a head; sometimes one kernel more."""
    maker = TraceMaker()
    at = 0
    names = [f"start{i}" for i in range(before)]
    for step in range(count):
        names += ["embed", "embed2", "embed3"]
        names += ["norm", "gemm", "attention", "add"] * layers + ["check"] * (
            step == extra - 1
        )
        names += ["head", "loss", "optimizer", "optimizer2"]
    for number, name in enumerate(names, start=1):
        maker.call("cudaLaunchKernel", at, correlation=number)
        maker.kernel(name, at + 5, 8, correlation=number)
        maker.kernel(
            "ncclDevKernel_AllReduce", at + 5, 90, correlation=number + 10**6, stream=9
        )
        at += 10
    return maker


@pytest.mark.parametrize("count", [2, 3, 6])
@pytest.mark.parametrize("maker", [{}, {"layers": 12}, {"before": 5}, {"extra": 2}])
def test_the_period_is_a_step_and_not_a_layer_or_two_steps(
    count: int, maker: dict[str, int]
) -> None:
    analyzer = TreePerfAnalyzer(
        steps(count, **maker).document(), use_kernel_name_categories=True
    )
    period = find_period(analyzer.gpu_events)
    assert period is not None
    assert period.count == pytest.approx(count, abs=0.3)
    assert period.confidence > 0.8


def test_traces_without_iterations_are_compared_by_period() -> None:
    both = [
        measure(
            TreePerfAnalyzer(
                steps(n).document(), use_kernel_name_categories=True
            ).gpu_events
        )
        for n in (6, 4)
    ]
    comparison = compare(both)
    assert (comparison.unit.kind, list(comparison.unit.counts)) == ("period", [6, 4])
    assert not comparison.tables["kernels"]["difference_ms"].round(9).any()
    assert (
        comparison.verdicts[0].text
        == "B did 0.67 of A's work at the same speed; there are no differences."
    )
    whole = compare(both, total=True).tables["kernels"]
    assert whole["by_calls_ms"].tolist() == pytest.approx(
        whole["difference_ms"].tolist()
    )


@pytest.mark.real_data
@pytest.mark.parametrize(
    "other", ["six", "renamed", "four", "slower_layer_norm", "amd"]
)
def test_sums_by_place_kernel_and_category_are_the_totals(other: str) -> None:
    """To the nanosecond; and the known truth of each file."""
    truth = json.loads((SHARED / "compare/truth.json").read_text())
    measured = [
        measure(
            TreePerfAnalyzer(
                SHARED / f"compare/{name}.json.gz", use_kernel_name_categories=True
            ).gpu_events
        )
        for name in ("six", other)
    ]
    comparison = compare(measured, total=True)
    for name in ("places", "kernels", "categories", "operations"):
        table = comparison.tables[name]
        for letter, file in (("A", "six"), ("B", other)):
            assert (
                round(table[f"{letter}_time_ms"].sum() * 1e6) == truth[file]["gpu_ns"]
            )
        parts = table["by_calls_ms"] + table["by_speed_ms"] - table["difference_ms"]
        assert parts.abs().max() < 1e-6
    first = comparison.tables["places"].iloc[0]
    if other in ("six", "renamed"):
        assert not first["difference_ms"]
        assert not comparison.tables["places"]["only_in"].any()
    if other == "slower_layer_norm":
        assert first["A_operation"] == truth[other]["op"]
        assert not comparison.tables["places"]["by_calls_ms"].any()
    if other == "four":
        assert comparison.verdicts[0].work_ratio == pytest.approx(4 / 6)
        assert comparison.verdicts[0].speed_ratio == pytest.approx(1, abs=0.01)


@pytest.mark.real_data
def test_the_times_of_a_path_are_those_of_its_modules() -> None:
    name = "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    paths = [SHARED / "traces" / maker / name for maker in ("nvidia", "amd")]
    analyzers = [
        TreePerfAnalyzer(path, use_kernel_name_categories=True) for path in paths
    ]
    places = compare(
        [measure(each.gpu_events) for each in analyzers], total=True
    ).tables["places"]
    for letter, analyzer in zip("AB", analyzers, strict=True):
        own = analyzer.get_df_nn_modules().set_index("path")["gpu_time_self_ms"]
        found = places.groupby("path")[f"{letter}_time_ms"].sum()
        assert found[own.index[own > 0]].tolist() == pytest.approx(
            own[own > 0].tolist()
        )
        alone = places.loc[places["only_in"] == letter, f"{letter}_time_ms"].sum()
        assert alone < 0.05 * found.sum()


@pytest.mark.skipif(
    not importlib.util.find_spec("plotly"), reason="plotly is not installed"
)
def test_the_tree_has_the_times_of_both_traces() -> None:
    from tracelens_ext.compare.report import comparison_report

    both = [
        measure(
            TreePerfAnalyzer(
                steps(n).document(), use_kernel_name_categories=True
            ).gpu_events
        )
        for n in (6, 4)
    ]
    comparison = compare(both, total=True)
    tree = comparison_report(comparison).page_sheets["call_tree"]
    per_unit = comparison_report(compare(both)).page_sheets["call_tree"]
    for each in (tree, per_unit):
        below = each[each["parent"] >= 0].groupby("parent")["gpu_time_ns"].sum()
        assert below.equals(
            each.set_index("node")["gpu_time_ns"][below.index].rename_axis("parent")
        )
    top = tree[tree["parent"] < 0]
    for letter in "AB":
        column = f"{letter}_time_ms"
        assert top[column].sum() == pytest.approx(
            comparison.tables["places"][column].sum()
        )
    assert set(top["colour"]) == {"#709ece"}, (
        "B takes a third less, two thirds of full blue"
    )
