"""CPU time by operation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer

if TYPE_CHECKING:
    from tracelens_ext.trace.call_tree import CallTree


def rows_of(maker: TraceMaker) -> dict[str, dict[str, float]]:
    """Return the row of each operation by name."""
    frame = TreePerfAnalyzer(maker.document()).get_df_cpu_ops()
    assert list(frame.columns) == [
        "cpu_op",
        "count",
        "total_time_ms",
        "self_time_ms",
        "avg_time_us",
        "% of CPU op time",
    ]
    assert frame["self_time_ms"].tolist() == sorted(frame["self_time_ms"], reverse=True)
    return {
        str(row.pop("cpu_op")): {str(key): float(value) for key, value in row.items()}
        for row in frame.to_dict("records")
    }


def test_self_time_excludes_the_operations_directly_below() -> None:
    maker = TraceMaker()
    maker.op("aten::linear", 0, 100)
    maker.annotation("a range between", 5, 80)
    maker.op("aten::addmm", 10, 60)
    maker.call("cudaLaunchKernel", 20, 10)  # not an operation
    maker.op("aten::copy_", 40, 10)
    maker.op("aten::copy_", 200, 30)
    maker.op("aten::copy_", 300, 10, thread=2)
    maker.frame("a frame around", 0, 500)
    assert rows_of(maker) == {
        "aten::addmm": {
            "count": 1,
            "total_time_ms": 0.06,
            "self_time_ms": 0.05,
            "avg_time_us": 60,
            "% of CPU op time": 5000 / 140,
        },
        "aten::copy_": {
            "count": 3,
            "total_time_ms": 0.05,
            "self_time_ms": 0.05,
            "avg_time_us": 50 / 3,
            "% of CPU op time": 5000 / 140,
        },
        "aten::linear": {
            "count": 1,
            "total_time_ms": 0.1,
            "self_time_ms": 0.04,
            "avg_time_us": 100,
            "% of CPU op time": 4000 / 140,
        },
    }


def test_an_operation_within_itself_counts_each_time() -> None:
    maker = TraceMaker()
    maker.op("aten::to", 0, 10)
    maker.op("aten::to", 2, 6)
    row = rows_of(maker)["aten::to"]
    assert (row["count"], row["total_time_ms"], row["self_time_ms"]) == (2, 0.016, 0.01)


def test_operations_that_overlap_are_subtracted_from_their_parent_once() -> None:
    maker = TraceMaker()
    maker.op("outer", 0, 10)
    maker.op("a", 1, 6)
    maker.op("b", 2, 8)
    rows = rows_of(maker)
    assert rows["outer"]["self_time_ms"] == 0.001
    assert math.isclose(sum(row["% of CPU op time"] for row in rows.values()), 100)


def test_a_trace_without_operations_has_no_rows() -> None:
    maker = TraceMaker()
    maker.kernel("k", 0, 5)
    assert rows_of(maker) == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(0, 20),
            st.integers(0, 20),
            st.integers(1, 2),
        ),
        max_size=15,
    )
)
def test_self_time_is_the_time_that_no_operation_below_covers(
    ops: list[tuple[str, int, int, int]],
) -> None:
    maker = TraceMaker()
    maker.kernel("k", 0, 5)
    ops = [*ops, ("around", 0, 50, 1), ("around", 0, 50, 2)]
    for name, start, duration, thread in ops:
        maker.op(name, start, duration, thread=thread)
    tree = TreePerfAnalyzer(maker.document()).tree
    self_us = 0
    for row_in_trace in tree.rows.tolist():
        remaining = microseconds_of(tree, row_in_trace)
        for child in tree.children(row_in_trace):
            remaining -= microseconds_of(tree, child)
        self_us += len(remaining)
    total_us = sum(duration for _, _, duration, _ in ops)
    rows = rows_of(maker).values()
    assert sum(row["count"] for row in rows) == len(ops)
    assert math.isclose(sum(row["total_time_ms"] for row in rows), total_us / 1000)
    assert math.isclose(sum(row["self_time_ms"] for row in rows), self_us / 1000)
    assert all(0 <= row["self_time_ms"] <= row["total_time_ms"] for row in rows)
    assert math.isclose(sum(row["% of CPU op time"] for row in rows), 100)


def microseconds_of(tree: CallTree, row: int) -> set[int]:
    """Return the microseconds during which an event runs."""
    start_us = int(tree.trace.ts[row]) // 1000
    end_us = int(tree.trace.end[row]) // 1000
    return set(range(start_us, end_us))
