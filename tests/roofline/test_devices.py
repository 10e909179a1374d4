"""The roofline of a trace whose work ran on GPUs of several models: each by its own peaks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import SHARED
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.report.html import page_figures
from tracelens_ext.report.tables.charts import Chart

H100 = {"name": "NVIDIA H100 80GB HBM3", "numSms": 132, "warpSize": 32}
A100 = {"name": "NVIDIA A100-SXM4-80GB", "numSms": 108, "warpSize": 32}
UNKNOWN = {"name": "GPU of tomorrow", "numSms": 7, "warpSize": 32}
BF16 = "c10::BFloat16"
#: FLOPs of a product of two matrices of 4096 x 4096, and what it takes on each GPU at best, ms.
FLOPS = 2 * 4096**3
H100_MS = FLOPS / 989.4e9
A100_MS = FLOPS / 312e9


def products(
    devices: list[dict[str, Any]],
    kernel_us: list[float],
    numbers: list[int] | None = None,
    calls: int = 5,
    kernel: str = "gemm_bf16",
) -> dict[str, Any]:
    """Return a trace in which each device computes the same product several times.

    `numbers` are those of the devices, 0, 1 and so on by default.
    """
    maker = TraceMaker()
    numbers = numbers or list(range(len(devices)))
    correlation = 0
    spacing = max(kernel_us) + 60
    for call in range(calls):
        for number, duration in zip(numbers, kernel_us, strict=True):
            correlation += 1
            at = spacing * call + 10 * number
            arguments = {
                "Input Dims": [[4096, 4096], [4096, 4096]],
                "Input type": [BF16, BF16],
                "Input Strides": [[4096, 1], [4096, 1]],
                "Concrete Inputs": ["", ""],
            }
            maker.op("aten::mm", at, 8, external_id=correlation, args=arguments)
            maker.launched(
                kernel,
                at + 20,
                duration,
                correlation=correlation,
                at=at + 2,
                device=number,
            )
    described = [
        {"id": number, **device}
        for number, device in zip(numbers, devices, strict=True)
    ]
    return maker.document(deviceProperties=described)


def roofline_rows(document: dict[str, Any]) -> Any:
    return TreePerfAnalyzer(document).get_df_roofline()


def without_model(rows: Any) -> Any:
    columns = [name for name in rows.columns if name != "device_model"]
    return rows[columns].astype(str).to_numpy().tolist()


@pytest.mark.real_data
def test_an_h100_and_an_a100_are_each_compared_with_their_own_peaks() -> None:
    document = json.loads((SHARED / "robust" / "two_gpu_models.json").read_text())
    rows = roofline_rows(document).set_index("device_model")
    assert rows["roofline_time_ms"].round(2).to_dict() == {
        "H100 SXM": 0.69,
        "A100 SXM4 80GB": 2.2,
    }


def test_one_operation_is_a_row_for_each_gpu_model() -> None:
    rows = roofline_rows(products([H100, A100], [200, 500]))
    assert rows["device_model"].tolist() == ["A100 SXM4 80GB", "H100 SXM"]
    assert rows["count"].tolist() == [5, 5]
    assert rows["roofline_time_ms"].tolist() == [
        pytest.approx(5 * A100_MS),
        pytest.approx(5 * H100_MS),
    ]
    shares = [100 * A100_MS / 0.5, 100 * H100_MS / 0.2]
    assert rows["% of roofline"].tolist() == [pytest.approx(share) for share in shares]


def test_gpus_of_one_model_share_their_rows_and_have_no_column_for_it() -> None:
    rows = roofline_rows(products([H100, H100], [200, 500]))
    assert rows["count"].tolist() == [10]
    assert "device_model" not in rows.columns


def test_peaks_of_the_user_hold_for_every_gpu() -> None:
    analyzer = TreePerfAnalyzer(products([H100, A100], [200, 500]))
    rows = analyzer.get_df_roofline(device_peaks="H100 SXM")
    assert rows["roofline_time_ms"].tolist() == [pytest.approx(10 * H100_MS)]
    assert "device_model" not in rows.columns


def test_a_gpu_without_known_peaks_takes_nothing_from_the_other() -> None:
    rows = roofline_rows(products([H100, UNKNOWN], [200, 500])).set_index(
        "device_model"
    )
    assert rows.loc["H100 SXM", "roofline_time_ms"] == pytest.approx(5 * H100_MS)
    assert rows["roofline_time_ms"].isna().to_dict() == {
        "GPU of tomorrow": True,
        "H100 SXM": False,
    }


@settings(max_examples=10)
@given(
    times=st.lists(st.integers(300, 900), min_size=2, max_size=2),
    numbers=st.sampled_from([[0, 1], [1, 0], [3, 6], [6, 3]]),
)
def test_the_rows_do_not_depend_on_the_numbers_of_the_devices(
    times: list[int], numbers: list[int]
) -> None:
    devices = [H100, A100]
    kernel_us = [float(time) for time in times]
    both = roofline_rows(products(devices, kernel_us, numbers))
    for device, duration in zip(devices, kernel_us, strict=True):
        alone = roofline_rows(products([device], [duration]))
        model = "H100 SXM" if device is H100 else "A100 SXM4 80GB"
        assert without_model(both[both["device_model"] == model]) == without_model(
            alone
        )


def test_the_family_table_and_the_peaks_say_which_gpu() -> None:
    analyzer = TreePerfAnalyzer(products([H100, A100], [200, 500]))
    family = analyzer.get_df_performance_model("GEMM")
    assert family["device_model"].tolist() == ["A100 SXM4 80GB", "H100 SXM"]
    peaks = analyzer.get_df_roofline_peaks()
    assert peaks.to_numpy().tolist() == [
        ["matrix bf16", 312.0, "A100 SXM4 80GB"],
        ["memory", 2.039, "A100 SXM4 80GB"],
        ["matrix bf16", 989.4, "H100 SXM"],
        ["memory", 3.35, "H100 SXM"],
    ]


def test_the_chart_has_the_roofs_of_each_gpu() -> None:
    analyzer = TreePerfAnalyzer(products([H100, A100], [200, 500]))
    sheets = {
        "roofline": analyzer.get_df_roofline(),
        "roofline_peaks": analyzer.get_df_roofline_peaks(),
    }
    chart = Chart(
        "Roofline", "roofline", "op_name", "time_lost_ms", kind="roofline", on="page"
    )
    (figure,) = page_figures(sheets, [chart])
    traces: Any = figure.spec["data"]
    roofs = [trace["text"][-1] for trace in traces if trace["meta"] is None]
    assert roofs == [
        "A100 SXM4 80GB matrix bf16: 312 TFLOP/s; 2.04 TB/s",
        "H100 SXM matrix bf16: 989.4 TFLOP/s; 3.35 TB/s",
    ]


def findings_of(document: dict[str, Any]) -> dict[str, Any]:
    return {found.id: found for found in TreePerfAnalyzer(document).findings().findings}


def test_slow_products_are_those_that_are_slow_on_their_own_gpu() -> None:
    # 600 us are what an A100 reaches, and far from what an H100 does.
    assert "slow-gemm" not in findings_of(products([A100], [600]))
    both = findings_of(products([A100, H100], [600, 600]))["slow-gemm"]
    h100 = findings_of(products([H100], [600]))["slow-gemm"]
    # Of two devices each counts half.
    assert both.attributed_ms == pytest.approx(h100.attributed_ms / 2, rel=0.01)
    assert [place.count for place in both.where["products"]] == [5]


def test_products_beside_tensor_cores_are_compared_with_those_of_their_own_gpu() -> (
    None
):
    kernel = "ampere_sgemm_128x64_tn"
    both = findings_of(products([A100, H100], [9_000, 9_000], kernel=kernel))[
        "no-tensor-cores"
    ]
    a100 = findings_of(products([A100], [9_000], kernel=kernel))["no-tensor-cores"]
    h100 = findings_of(products([H100], [9_000], kernel=kernel))["no-tensor-cores"]
    expected = (a100.attributed_ms + h100.attributed_ms) / 2
    assert both.attributed_ms == pytest.approx(expected, rel=0.01)


def test_launch_geometry_tells_the_multiprocessors_of_the_gpu_with_few_blocks() -> None:
    maker = TraceMaker()
    for number, blocks in enumerate([1, 132]):
        grid = {"grid": [blocks, 1, 1]}
        maker.gpu("kernel", "mine(int)", 10, 1000, device=number, args=grid)
    document = maker.document(deviceProperties=[{"id": 0, **A100}, {"id": 1, **H100}])
    found = findings_of(document)["launch-geometry"]
    assert "108" in str(found.as_dict())
    assert "132" not in str(found.as_dict())
