"""Host time by CPU operation."""

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


def test_self_time_is_without_the_operations_directly_below() -> None:
    maker = TraceMaker()
    maker.op("aten::linear", 0, 100)
    maker.annotation("a range between", 5, 80)
    maker.op("aten::addmm", 10, 60)
    maker.call("cudaLaunchKernel", 20, 10)  # is no operation
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


def test_operations_that_overlap_are_taken_from_their_parent_once() -> None:
    maker = TraceMaker()
    maker.op("outer", 0, 10)
    maker.op("a", 1, 6)
    maker.op("b", 2, 8)
    rows = rows_of(maker)
    assert rows["outer"]["self_time_ms"] == 0.001
    assert math.isclose(sum(row["% of CPU op time"] for row in rows.values()), 100)


def test_no_operations() -> None:
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
def test_self_time_is_what_no_operation_below_covers(
    ops: list[tuple[str, int, int, int]],
) -> None:
    maker = TraceMaker()
    maker.kernel("one at least", 0, 5)
    ops = [*ops, ("around", 0, 50, 1), ("around", 0, 50, 2)]
    for name, start, duration, thread in ops:
        maker.op(name, start, duration, thread=thread)
    tree = TreePerfAnalyzer(maker.document()).tree
    own = sum(
        len(
            cells(tree, row).difference(
                *(cells(tree, below) for below in tree.children(row))
            )
        )
        for row in tree.rows.tolist()
    )
    rows = rows_of(maker).values()
    assert sum(row["count"] for row in rows) == len(ops)
    assert math.isclose(
        sum(row["total_time_ms"] for row in rows), sum(o[2] for o in ops) / 1000
    )
    assert math.isclose(sum(row["self_time_ms"] for row in rows), own / 1000)
    assert all(0 <= row["self_time_ms"] <= row["total_time_ms"] for row in rows)
    assert math.isclose(sum(row["% of CPU op time"] for row in rows), 100)


def cells(tree: CallTree, row: int) -> set[int]:
    """The microseconds of an event."""
    return set(range(int(tree.trace.ts[row]) // 1000, int(tree.trace.end[row]) // 1000))
