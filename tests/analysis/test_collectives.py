"""Collectives: metadata from the kernel, the op or the annotation; sizes and bandwidths."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from tests.support.comparison_helpers import training
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.perf_report import build_perf_report

if TYPE_CHECKING:
    from collections.abc import Mapping

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
ALL_REDUCE = (
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
)


def _metadata(
    name: str = "allreduce",
    other: Mapping[str, object] | None = None,
    dtype: str | None = "Float",
) -> dict[str, object]:
    """Return the recorded arguments of a collective; None in `other` removes an argument."""
    metadata: dict[str, object] = {
        "Collective name": name,
        "In msg nelems": 1_000_000,
        "Out msg nelems": 1_000_000,
        "Group size": 4,
        "dtype": dtype,
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
    }
    metadata |= dict(other or {})
    return {key: value for key, value in metadata.items() if value is not None}


def _table(maker: TraceMaker) -> pd.DataFrame:
    return TreePerfAnalyzer(maker.document()).get_df_collectives()


def _only_row(metadata: dict[str, object], *, us: float = 1000) -> dict[Any, Any]:
    """Return the row of a trace with one collective, which the op around its launch describes."""
    maker = TraceMaker()
    maker.op("record_param_comms", 0, 50, args=metadata)
    maker.launched(ALL_REDUCE, 100, us, correlation=1, at=10)
    (row,) = _table(maker).to_dict("records")
    return row


@pytest.mark.parametrize(
    ("name", "sent", "received", "factor"),
    [
        ("allreduce", 100, 100, 2 * 3 / 4),
        ("allreduce_coalesced", 100, 100, 2 * 3 / 4),
        ("all_reduce", 100, 100, 2 * 3 / 4),
        ("_allgather_base", 25, 100, 3 / 4),
        ("all_gather_into_tensor_coalesced", 25, 100, 3 / 4),
        ("_reduce_scatter_base", 100, 25, 3 / 4),
        ("reduce_scatter_tensor_coalesced", 100, 25, 3 / 4),
        ("all_to_allv", 100, 90, 3 / 4),
        ("gather", 25, 100, 3 / 4),
        ("broadcast", 100, 100, 1),
        ("reduce", 100, 100, 1),
        ("send", 100, 100, 1),
    ],
)
def test_bandwidths_follow_nccl_tests(
    name: str, sent: int, received: int, factor: float
) -> None:
    elements = {"In msg nelems": sent * 10**6, "Out msg nelems": received * 10**6}
    row = _only_row(_metadata(name, elements), us=10_000)
    assert row["In msg bytes"] == sent * 4_000_000
    assert row["Out msg bytes"] == received * 4_000_000
    # The whole array is the larger side: 400 MB in 10 ms.
    assert row["algorithm_bandwidth_gb_s"] == pytest.approx(40)
    assert row["bus_bandwidth_gb_s"] == pytest.approx(40 * factor)
    assert row["best_bus_bandwidth_gb_s"] == pytest.approx(40 * factor)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("Float", 4), ("BFloat16", 2), ("Long", 8), ("Byte", 1), ("Float8_e4m3fn", 1)],
)
def test_sizes_in_bytes_depend_on_the_element_type(dtype: str, size: int) -> None:
    assert _only_row(_metadata(dtype=dtype))["In msg bytes"] == 1_000_000 * size


@pytest.mark.parametrize(
    "metadata",
    [
        _metadata(dtype="Quaternion"),
        _metadata(dtype=None),
        _metadata("barrier"),
        _metadata(other={"In msg nelems": None, "Out msg nelems": None}),
        _metadata(other={"In msg nelems": "many", "Out msg nelems": -1}),
        _metadata(other={"Group size": 0}),
    ],
)
def test_the_bandwidth_is_unknown_without_size_type_or_ranks(
    metadata: dict[str, object],
) -> None:
    row = _only_row(metadata)
    assert pd.isna(row["bus_bandwidth_gb_s"])
    assert row["count"] == 1
    assert row["total_time_ms"] == 1


def test_numbers_in_quotes_are_read_as_numbers() -> None:
    assert _only_row(_metadata(other={"Group size": "4"}))["Group size"] == 4


def test_a_collective_without_duration_has_no_bandwidth() -> None:
    assert pd.isna(_only_row(_metadata(), us=0)["algorithm_bandwidth_gb_s"])


def test_equal_collectives_are_one_row() -> None:
    maker = TraceMaker()
    for number, duration in enumerate((100, 300, 200)):
        op_start = 100 * number
        maker.op("record_param_comms", op_start, 50, args=_metadata())
        maker.launched(
            ALL_REDUCE,
            1000 + 500 * number,
            duration,
            correlation=number + 1,
            at=op_start + 5,
        )
    maker.op("record_param_comms", 500, 50, args=_metadata(other={"Group size": 2}))
    maker.launched(ALL_REDUCE, 9000, 200, correlation=9, at=505)
    table = _table(maker)
    assert table["Group size"].tolist() == [4, 2]
    first = table.iloc[0]
    assert first["count"] == 3
    assert first["total_time_ms"] == pytest.approx(0.6)
    times = ["avg_time_us", "std_time_us", "min_time_us", "max_time_us"]
    assert first[times].tolist() == [200, 100, 100, 300]
    assert table["% of communication time"].tolist() == [75, 25]
    assert first["algorithm_bandwidth_gb_s"] == pytest.approx(4e6 / 200e-6 / 1e9)
    assert first["best_bus_bandwidth_gb_s"] == pytest.approx(4e6 / 100e-6 / 1e9 * 1.5)


def test_metadata_of_the_kernel_takes_precedence_over_the_op_around_its_launch() -> (
    None
):
    maker = TraceMaker()
    maker.op("record_param_comms", 0, 50, args=_metadata("coalesced"))
    maker.call("cudaLaunchKernel", 10, correlation=1)
    maker.gpu(
        "kernel", ALL_REDUCE, 100, 10, correlation=1, args=_metadata("_allgather_base")
    )
    assert _table(maker)["Collective name"].tolist() == ["_allgather_base"]


def test_the_nearest_op_with_metadata_describes_the_collective() -> None:
    maker = TraceMaker()
    maker.op("record_param_comms", 0, 90, external_id=1, args=_metadata("allreduce"))
    maker.op("record_param_comms", 10, 70, external_id=2, args=_metadata("broadcast"))
    maker.op("c10d::broadcast_", 20, 50, external_id=3)
    maker.launched(ALL_REDUCE, 100, 10, correlation=1, at=30)
    assert _table(maker)["Collective name"].tolist() == ["broadcast"]


def test_without_metadata_the_annotation_names_the_collective() -> None:
    maker = TraceMaker()
    maker.op("record_param_comms", 0, 90)
    maker.annotation("nccl:all_reduce", 10, 70)
    maker.launched(ALL_REDUCE, 100, 10, correlation=1, at=30)
    maker.kernel(ALL_REDUCE, 200, 5)
    table = _table(maker)
    assert table["Collective name"].tolist() == ["all_reduce", ""]
    assert table["Group size"].isna().all()
    assert table["dtype"].tolist() == ["", ""]


def test_without_communication_the_table_is_empty_and_the_report_lacks_it() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 50)
    maker.launched("gemm", 100, 10, correlation=1, at=10)
    analyzer = TreePerfAnalyzer(maker.document())
    table = analyzer.get_df_collectives()
    assert table.empty
    assert {"Collective name", "bus_bandwidth_gb_s"} <= set(table.columns)
    assert "coll_analysis" not in build_perf_report(analyzer).sheets


def test_the_sheet_of_collectives_can_be_switched_off() -> None:
    analyzer = TreePerfAnalyzer(training(2).document())
    assert "coll_analysis" in build_perf_report(analyzer).sheets
    report = build_perf_report(analyzer, collective_analysis=False)
    assert "coll_analysis" not in report.sheets


def test_the_demo_has_plausible_bandwidths(analyzed_demo: TreePerfAnalyzer) -> None:
    table = analyzed_demo.get_df_collectives()
    assert table["count"].sum() == analyzed_demo.gpu_events.is_communication.sum()
    assert table["% of communication time"].sum() == pytest.approx(100)
    with_metadata = table[table["Group size"].notna()]
    bandwidth = with_metadata["bus_bandwidth_gb_s"]
    assert bandwidth.between(0.1, 900).all()
    assert (bandwidth <= with_metadata["best_bus_bandwidth_gb_s"]).all()


@pytest.mark.real_data
def test_collectives_of_a_recorded_training_step() -> None:
    path = SHARED / "nvidia" / "nccl.json.gz"
    table = TreePerfAnalyzer(path).get_df_collectives()
    by_size = table.set_index("In msg nelems")
    assert by_size.loc[7875584, "In msg bytes"] == 31_502_336
    assert set(table["Collective name"]) == {"allreduce", "broadcast"}
    assert set(table["Group size"]) == {2}
    assert table["count"].sum() == 21
