"""The reductions over ranks are those of all rows together, whatever the order of the parts is."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fleet_helpers import collective
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.collective_tables import collective_calls
from tracelens_ext.distributed.rank_numbers import RankSource, TraceRanks
from tracelens_ext.distributed.reductions import spread
from tracelens_ext.distributed.trace_tables import KEYED_TABLES, trace_tables

KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"

# The spread over ranks.


def part(rank: int, times: dict[str, float]) -> pd.DataFrame:
    rows = [(rank, rank, 0, key, ms) for key, ms in times.items()]
    return pd.DataFrame(rows, columns=["part", "rank", "device", "key", "ms"])


TIMES = st.floats(0, 1e6, allow_nan=False).map(lambda ms: round(ms, 3))


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abc"), TIMES, min_size=1),
        min_size=1,
        max_size=8,
    ),
)
@settings(max_examples=25)
def test_the_spread_is_that_of_all_rows_together(ranks: list[dict[str, float]]) -> None:
    parts = [part(rank, times) for rank, times in enumerate(ranks)]
    found = spread(iter(parts), ["key"], "ms").set_index("key")
    for key, rows in pd.concat(parts).groupby("key"):
        row = found.loc[key]
        values = rows["ms"].to_numpy()
        assert row["ranks"] == len(values)
        assert row["mean_ms"] == pytest.approx(values.mean())
        spread_of = values.std(ddof=1) if len(values) > 1 else np.nan
        assert row["std_ms"] == pytest.approx(
            spread_of, nan_ok=True, abs=1e-6, rel=1e-6
        )
        assert (row["min_ms"], row["max_ms"]) == (values.min(), values.max())
        assert row["min_rank"] == rows["rank"].iloc[values.argmin()]
        assert row["max_rank"] == rows["rank"].iloc[values.argmax()]
        ordered = rows.sort_values(["ms", "rank"], ascending=[False, True]).head(5)
        listed = [
            f"{rank} ({ms:.3f})"
            for rank, ms in zip(ordered["rank"], ordered["ms"], strict=True)
        ]
        assert row["top_ranks"] == ", ".join(listed)
    assert len(found) == pd.concat(parts)["key"].nunique()
    assert found["mean_ms"].is_monotonic_decreasing


def test_equal_times_are_not_below_their_mean() -> None:
    for ms in (0.1, 0.7, 1.1, 157.5001, 414.0049):
        found = spread([part(rank, {"a": ms}) for rank in range(7)], ["key"], "ms")
        assert found["max_over_mean_percent"].min() >= 0
        assert found["max_over_mean_percent"].max() == pytest.approx(0)


def test_gpus_of_a_rank_are_compared_one_by_one_or_added_up() -> None:
    rows = [(0, 0, 0, "a", 1.0), (0, 0, 1, "a", 3.0), (1, 1, 0, "a", 2.0)]
    frame = pd.DataFrame(rows, columns=["part", "rank", "device", "key", "ms"])
    (each_gpu,) = spread([frame], ["key"], "ms").to_dict("records")
    assert each_gpu["ranks"] == 3
    assert each_gpu["mean_ms"] == 2.0
    assert each_gpu["max_rank"] == 0
    (together,) = spread([frame], ["key"], "ms", per_device=False).to_dict("records")
    assert together["ranks"] == 2
    assert together["mean_ms"] == 3.0
    assert together["max_ms"] == 4.0


def test_calls_are_counted_within_their_iteration() -> None:
    maker = TraceMaker()
    for at, (start, name) in enumerate([(0, "allreduce"), (1000, "allreduce")]):
        maker.annotation(f"ProfilerStep#{at + 5}", start, 900)
        maker.op("record_param_comms", start + 5, 50, args=collective(name))
        for again in range(2):
            begin = start + 100 + 100 * again
            maker.launched(
                KERNEL, begin, 50 + again, correlation=2 * at + again + 1, at=start + 10
            )
    maker.kernel(KERNEL, 3000, 7)  # without a launch, so without metadata
    frame = collective_calls(TreePerfAnalyzer(maker.document()).gpu_events)
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
    two_ranks = TraceRanks(0, RankSource.ORDER, {0: 0, 1: 1})
    tables = trace_tables(analyzer, "t", two_ranks)
    assert tables["collective_kernels"]["sequence"].tolist() == [1, 1]
    assert tables["timeline"]["device"].unique().tolist() == [0, 1]
    shares = tables["categories"].groupby("device")["% of GPU time"].sum()
    assert shares.tolist() == pytest.approx([100.0, 100.0])
    assert tables["kernels"]["device"].isna().all()
    assert tables["rank_calls"]["rank"].tolist() == [0, 1], "each is a rank"
    assert tables["rank_calls"]["device"].tolist() == [0, 1]


def test_tables_of_a_trace_without_gpu_events() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 50)
    analyzer = TreePerfAnalyzer(maker.document(), use_kernel_name_categories=True)
    maker.launched("gemm_kernel", 10, 50, correlation=1, at=1)
    maker.op("record_param_comms", 100, 20, args=collective())
    maker.launched(KERNEL, 150, 50, correlation=2, at=105)
    full = TreePerfAnalyzer(maker.document(), use_kernel_name_categories=True)
    rank = TraceRanks(0, RankSource.METADATA, {})
    filled = trace_tables(full, "t", rank)
    for name, frame in trace_tables(analyzer, "t", rank).items():
        if name not in KEYED_TABLES:
            # those of ranks without work are left out when they are put together
            continue
        assert not len(frame), name
        assert list(frame)[:3] == ["trace", "rank", "device"]
        assert len(filled[name]), name
        assert frame.dtypes.to_dict() == filled[name].dtypes.to_dict(), name
