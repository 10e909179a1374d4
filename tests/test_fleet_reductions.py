"""Reductions over ranks: the same as with all rows at hand, in whatever order parts come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from fleet_helpers import collective
from hypothesis import given, settings
from hypothesis import strategies as st
from make_trace import TraceMaker

from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.collectives.collectives import collective_calls
from tracelens_ext.fleet.rows import trace_tables
from tracelens_ext.fleet.spread import spread
from tracelens_ext.fleet.stragglers import Stragglers, find_stragglers

if TYPE_CHECKING:
    from collections.abc import Sequence

KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"

# The spread over ranks.


def part(rank: int, times: dict[str, float]) -> pd.DataFrame:
    rows = [(rank, rank, 0, key, ms) for key, ms in times.items()]
    return pd.DataFrame(rows, columns=["part", "rank", "device", "key", "ms"])


TIMES = st.floats(0, 1e6, allow_nan=False).map(lambda ms: round(ms, 3))


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), TIMES, min_size=1), min_size=1, max_size=8),
)
@settings(max_examples=25)
def test_it_is_what_all_rows_together_give(ranks: list[dict[str, float]]) -> None:
    parts = [part(rank, times) for rank, times in enumerate(ranks)]
    found = spread(iter(parts), ["key"], "ms").set_index("key")
    for key, rows in pd.concat(parts).groupby("key"):
        row, values = found.loc[key], rows["ms"].to_numpy()
        assert row["ranks"] == len(values)
        assert row["mean_ms"] == pytest.approx(values.mean())
        spread_of = values.std(ddof=1) if len(values) > 1 else np.nan
        assert row["std_ms"] == pytest.approx(spread_of, nan_ok=True, abs=1e-6, rel=1e-6)
        assert (row["min_ms"], row["max_ms"]) == (values.min(), values.max())
        assert row["min_rank"] == rows["rank"].iloc[values.argmin()]
        assert row["max_rank"] == rows["rank"].iloc[values.argmax()]
        ordered = rows.sort_values(["ms", "rank"], ascending=[False, True]).head(5)
        listed = [f"{r} ({ms:.3f})" for r, ms in zip(ordered["rank"], ordered["ms"], strict=True)]
        assert row["top_ranks"] == ", ".join(listed)
    assert len(found) == pd.concat(parts)["key"].nunique()
    assert found["mean_ms"].is_monotonic_decreasing


def test_equal_times_are_not_below_their_mean() -> None:
    for ms in (0.1, 0.7, 1.1, 157.5001, 414.0049):
        found = spread([part(rank, {"a": ms}) for rank in range(7)], ["key"], "ms")
        assert found["max over mean (%)"].min() >= 0
        assert found["max over mean (%)"].max() == pytest.approx(0)


def test_gpus_of_a_rank_count_each_or_together() -> None:
    rows = [(0, 0, 0, "a", 1.0), (0, 0, 1, "a", 3.0), (1, 1, 0, "a", 2.0)]
    frame = pd.DataFrame(rows, columns=["part", "rank", "device", "key", "ms"])
    (each,) = spread([frame], ["key"], "ms").to_dict("records")
    assert (each["ranks"], each["mean_ms"], each["max_rank"]) == (3, 2.0, 0)
    (together,) = spread([frame], ["key"], "ms", per_device=False).to_dict("records")
    assert (together["ranks"], together["mean_ms"], together["max_ms"]) == (2, 3.0, 4.0)


# Stragglers.


def calls(
    rank: int,
    durations: Sequence[float],
    *,
    name: str = "allreduce",
    iteration: str = "1",
    size: int = 4,
    **other: Any,
) -> pd.DataFrame:
    """Calls of one collective on one rank, as `collective_calls` lists them."""
    given: dict[str, Any] = collective(name, size) | other
    frame = pd.DataFrame({"duration_us": np.asarray(durations, dtype=np.float64)})
    frame["part"] = rank
    frame["rank"], frame["device"], frame["collective"] = rank, 0, name
    for column, value in given.items():
        frame[column] = value
    frame["iteration"] = iteration
    frame["sequence"] = np.arange(1, len(frame) + 1)
    return frame


def found_in(parts: Sequence[pd.DataFrame]) -> Stragglers:
    return find_stragglers(iter(parts))


def test_the_shortest_came_last() -> None:
    found = found_in([calls(0, [10, 10]), calls(1, [4, 9]), calls(2, [9, 2])])
    (row,) = found.collectives.to_dict("records")
    assert (row["ranks"], row["calls"], row["calls not judged"]) == (3, 2, 0)
    assert row["wait_time_ms"] == pytest.approx((6 + 5 + 8 + 7) / 1e3)
    assert (row["mean_spread_us"], row["max_spread_us"]) == (7.0, 8.0)
    assert (row["last_rank"], row["times_last"], row["% of calls last"]) == (2, 1, 50.0)
    assert row["wait_for_it_ms"] == pytest.approx(15 / 1e3)
    ranks = found.ranks.set_index("rank")
    assert ranks["times_last"].tolist() == [0, 1, 1]
    assert ranks["waited_ms"].tolist() == pytest.approx([14e-3, 7e-3, 5e-3])
    assert ranks["wait_for_it_ms"].tolist() == pytest.approx([0, 11e-3, 15e-3])
    assert found.ranks_of_collectives["rank"].tolist() == [2, 1]


def test_equal_durations_have_no_last() -> None:
    found = found_in([calls(rank, [5, 5]) for rank in range(4)])
    (row,) = found.collectives.to_dict("records")
    assert (row["calls"], row["times_last"], row["wait_time_ms"]) == (2, 0, 0.0)
    assert pd.isna(row["last_rank"])
    assert not len(found.ranks_of_collectives)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([calls(0, [5])], "only one rank shows it"),
        ([calls(0, [5, 6]), calls(1, [6])], "different numbers of calls"),
        ([calls(rank, [5 + rank], size=2) for rank in range(3)], "more ranks than the group has"),
    ],
)
def test_calls_that_cannot_be_matched(parts: list[pd.DataFrame], why: str) -> None:
    found = found_in(parts)
    assert found.collectives["calls"].fillna(0).sum() == 0, why
    assert found.collectives["calls not judged"].sum() > 0, why


def test_only_the_iteration_that_differs_is_left_out() -> None:
    parts = [
        pd.concat([calls(0, [5, 6], iteration="1"), calls(0, [7], iteration="2")]),
        pd.concat([calls(1, [6], iteration="1"), calls(1, [4], iteration="2")]),
    ]
    judged = found_in(parts).collectives
    assert judged["calls"].sum() == 1
    assert judged["last_rank"].tolist() == [1]


def test_groups_of_one_name_but_other_ranks_are_kept_apart() -> None:
    pairs = {"[0, 1]": (0, 1), "[2, 3]": (2, 3)}
    parts = [
        calls(rank, [10 + rank], size=2, **{"Process Group Ranks": text})
        for text, ranks in pairs.items()
        for rank in ranks
    ]
    found = found_in(parts)
    assert sorted(found.collectives["last_rank"]) == [0, 2]
    assert found.ranks["times_last"].tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("name", ["broadcast", "send", "recv", "reduce", "gather", "scatter"])
def test_what_a_rank_may_leave_early_is_not_judged(name: str) -> None:
    assert not len(found_in([calls(0, [1], name=name), calls(1, [5], name=name)]).collectives)


@pytest.mark.parametrize(
    "name", ["_reduce_scatter_base", "all_to_allv", "AllGather_RING", "barrier"]
)
def test_what_all_wait_in_is(name: str) -> None:
    (row,) = found_in([calls(0, [1], name=name), calls(1, [5], name=name)]).collectives.itertuples()
    assert row.last_rank == 0


def test_collectives_without_metadata() -> None:
    nothing: dict[str, Any] = dict.fromkeys(collective())
    del nothing["Collective name"]
    parts = [calls(rank, [5 + rank], name="ncclKernel_AllReduce", **nothing) for rank in (0, 1)]
    found = found_in(parts)
    assert found.ungrouped
    assert found.collectives["last_rank"].tolist() == [0]
    assert not found_in([calls(0, [5]), calls(1, [6])]).ungrouped


def test_no_collectives_at_all() -> None:
    found = found_in([calls(0, []), calls(1, [])])
    assert not len(found.collectives)
    assert not len(found.ranks)


@given(
    st.lists(st.lists(st.integers(1, 50), min_size=3, max_size=3), min_size=2, max_size=6),
    st.randoms(use_true_random=False),
)
@settings(max_examples=10)
def test_it_is_what_a_plain_loop_finds(durations: list[list[int]], random: Any) -> None:
    parts = [calls(rank, row, size=8) for rank, row in enumerate(durations)]
    random.shuffle(parts)
    found = found_in(parts).ranks.set_index("rank")
    last, caused = [0] * len(durations), [0.0] * len(durations)
    for column in zip(*durations, strict=True):
        slow = column.index(min(column))
        last[slow] += max(column) > min(column)
        caused[slow] += (sum(column) - len(column) * min(column)) / 1e3
    assert found["times_last"].sort_index().tolist() == last
    assert found["wait_for_it_ms"].sort_index().tolist() == pytest.approx(caused)
    assert found["waited_ms"].sum() == pytest.approx(sum(caused))


# The rows they are made of.


def test_calls_are_counted_within_their_iteration() -> None:
    maker = TraceMaker()
    for at, (start, name) in enumerate([(0, "allreduce"), (1000, "allreduce")]):
        maker.annotation(f"ProfilerStep#{at + 5}", start, 900)
        maker.op("record_param_comms", start + 5, 50, args=collective(name))
        for again in range(2):
            begin = start + 100 + 100 * again
            maker.launched(KERNEL, begin, 50 + again, correlation=2 * at + again + 1, at=start + 10)
    maker.kernel(KERNEL, 3000, 7)  # without a launch, so without metadata
    frame = collective_calls(TreePerfAnalyzer(maker.document()).work)
    assert frame["iteration"].tolist() == ["5", "5", "6", "6", ""]
    assert frame["sequence"].tolist() == [1, 2, 1, 2, 1]
    assert frame["duration_us"].tolist() == [50, 51, 50, 51, 7]
    assert frame["collective"].tolist() == ["allreduce"] * 4 + [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    ]
    assert frame["Process Group Ranks"].tolist() == ["[0, 1, 2, 3]"] * 4 + [""]
    assert frame["Group size"].tolist()[:4] == [4] * 4


def test_a_process_that_drives_two_gpus() -> None:
    maker = TraceMaker()
    for device in (0, 1):
        maker.kernel("gemm_kernel", 10, 50 + device, device=device)
        maker.kernel(KERNEL, 100, 5 * (device + 1), device=device)
    analyzer = TreePerfAnalyzer(maker.document(), use_kernel_name_categories=True)
    tables = trace_tables(analyzer, "t", 3)
    assert tables["collective_calls"]["sequence"].tolist() == [1, 1]
    assert tables["timeline"]["device"].unique().tolist() == [0, 1]
    shares = tables["categories"].groupby("device")["% of GPU time"].sum()
    assert shares.tolist() == pytest.approx([100.0, 100.0])
    assert tables["kernels"]["device"].isna().all()
    found = found_in([tables["collective_calls"].assign(part=0)])
    assert found.ranks["times_last"].tolist() == [1, 0]
    assert found.ranks["device"].tolist() == [0, 1]


def test_tables_of_a_trace_without_gpu_events() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 50)
    analyzer = TreePerfAnalyzer(maker.document(), use_kernel_name_categories=True)
    maker.launched("gemm_kernel", 10, 50, correlation=1, at=1)
    maker.op("record_param_comms", 100, 20, args=collective())
    maker.launched(KERNEL, 150, 50, correlation=2, at=105)
    full = TreePerfAnalyzer(maker.document(), use_kernel_name_categories=True)
    filled = trace_tables(full, "t", 0)
    for name, frame in trace_tables(analyzer, "t", 0).items():
        assert not len(frame), name
        assert list(frame)[:3] == ["trace", "rank", "device"]
        assert len(filled[name]), name
        assert frame.dtypes.to_dict() == filled[name].dtypes.to_dict(), name
