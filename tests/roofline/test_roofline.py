"""The roofline of a trace: rows, sums, time lost, utilization, plugins' models, command, sheets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import SHARED
from tests.support.categorize_helpers import FakeEntryPoint, plugin
from tests.support.docs_helpers import page_text
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer, generate_perf_report_pytorch, hookimpl
from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.analysis.operations import arguments as op_arguments
from tracelens_ext.categorize.matcher import BoundRule
from tracelens_ext.cli import run
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import PluginRegistry
from tracelens_ext.hooks.registry import SECONDS_VARIABLE
from tracelens_ext.report.html import page_figures
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.roofline import analysis as rows_found
from tracelens_ext.roofline import models, operation, operation_groups
from tracelens_ext.roofline.analysis import Roofline, find_roofline
from tracelens_ext.roofline.summary import (
    NO_FAMILY,
    advice,
    family_summary,
    modelled,
    shape_text,
)
from tracelens_ext.roofline.utilization import utilization

if TYPE_CHECKING:
    import pandas as pd

    from tracelens_ext.roofline.operation import Operation

H100 = "NVIDIA H100 80GB HBM3"
BF16 = "c10::BFloat16"


def arguments(
    *dims: list[int], kind: str = BF16, concrete: list[str] | None = None
) -> Any:
    return {
        "Input Dims": list(dims),
        "Input type": [kind] * len(dims),
        "Input Strides": [[]] * len(dims),
        "Concrete Inputs": concrete or [""] * len(dims),
    }


MM = arguments([4096, 4096], [4096, 4096])
#: Of `MM`: 2 · 4096³ operations at 989.4 TFLOP/s, µs.
MM_US = 2 * 4096**3 / 989.4e6


def document(*operations: tuple[str, Any, float], device: str = H100) -> dict[str, Any]:
    """A step of operations, each with a kernel of so many µs, the last on the second device."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#3", 0, 1000)
    for number, (name, args, duration) in enumerate(operations):
        at = 10 + 10 * number
        maker.op(name, at, 8, external_id=number + 1, args=args)
        maker.launched(
            f"k_{name}",
            100_000 * number + 100,
            duration,
            correlation=number + 1,
            at=at + 2,
        )
    return maker.document(deviceProperties=[{"id": 0, "name": device}])


def analyzed(*operations: tuple[str, Any, float], **more: str) -> TreePerfAnalyzer:
    return TreePerfAnalyzer(document(*operations, **more))


def test_each_operation_is_modelled_once_even_if_all_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: Counter[str] = Counter()

    def count_calls(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            calls[name] += 1
            return function(*arguments, **named)

        monkeypatch.setattr(owner, name, counted)

    for owner, name in (
        (operation_groups, "parsed"),
        (op_arguments, "parsed"),
        (rows_found, "RooflineRow"),
        (operation, "Tensor"),
        (BoundRule, "finds"),
        (BoundRule, "allows"),
    ):
        count_calls(owner, name)
    count = 300
    products = [
        ("aten::mm", arguments([rows, 8], [8, rows]), 1.0)
        for rows in range(1, count + 1)
    ]
    trace = document(*products)
    kernels = [each for each in trace["traceEvents"] if each.get("cat") == "kernel"]
    for number, kernel in enumerate(kernels):
        kernel["name"] = f"k{number}"
    analyzer = TreePerfAnalyzer(trace, use_kernel_name_categories=True)
    found = analyzer.roofline()
    assert [len(row.operation.tensors) for row in found.rows] == [2] * count
    assert calls["RooflineRow"] == count
    assert calls["Tensor"] == 2 * count
    assert calls["parsed"] <= count + 3
    assert calls["finds"] <= 4 * count
    assert calls["allows"] <= count + 30
    calls.clear()
    analyzer.get_df_kernel_launchers_unique_args()
    analyzer.table("short_kernels_summary")
    assert calls["parsed"] <= count + 3


def test_shorter_operations_beyond_the_bound_are_one_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    each = [("aten::mm", arguments([n, 8], [8, n]), 10.0 + n) for n in range(1, 8)]
    whole = analyzed(*each).get_df_roofline()
    monkeypatch.setattr(operation_groups, "MOST_OPERATIONS", 3)
    analyzer = analyzed(*each)
    cut = analyzer.get_df_roofline()
    assert (
        cut.head(3).astype(str).equals(whole.head(3).astype(str).replace("None", "nan"))
    )
    others = cut.iloc[3]
    assert (len(cut), others["op_name"], others["Input Dims"]) == (
        4,
        "(other operations)",
        "",
    )
    assert others["why_no_model"] == "only the 3 longest operations of a trace have one"
    for column in ("count", "gpu_time_ms"):
        assert cut[column].sum() == pytest.approx(whole[column].sum())
    assert "the largest without one: (other operations)" in str(
        modelled(analyzer.roofline())
    )
    assert len(analyzed(*each[:3]).get_df_roofline()) == 3


def test_rows_are_operations_with_their_best_case() -> None:
    analyzer = analyzed(
        ("aten::mm", MM, 1000), ("aten::mm", MM, 500), ("my::op", MM, 100)
    )
    frame = analyzer.get_df_roofline()
    assert frame["op_name"].tolist() == ["aten::mm", "my::op"]
    row = frame.iloc[0]
    assert (row["count"], row["gpu_time_ms"], row["family"]) == (2, 1.5, "GEMM")
    assert (row["flops"], row["bytes"]) == (2 * 4096**3, 3 * 2 * 4096**2)
    assert row["roofline_time_ms"] == pytest.approx(2 * MM_US / 1e3)
    assert row["time_lost_ms"] == pytest.approx(1.5 - 2 * MM_US / 1e3)
    assert row["% of roofline"] == pytest.approx(200 * MM_US / 1500)
    assert (row["bound"], row["engine"], row["data_type"]) == (
        "compute",
        "matrix",
        "bf16",
    )
    assert row["tflops_per_s"] == pytest.approx(2 * 2 * 4096**3 / 1.5e9)
    assert row["model"] == "gemm.mm"
    unknown = frame.iloc[1]
    assert unknown["why_no_model"] == "no performance model for my::op"
    assert unknown[["flops", "roofline_time_ms", "family"]].isna().all()


def test_without_peaks_there_are_figures_and_no_percentages() -> None:
    analyzer = analyzed(("aten::mm", MM, 1000), device="Nobody's GPU")
    frame = analyzer.get_df_roofline()
    assert frame["tflops_per_s"].notna().all()
    assert frame[["% of roofline", "time_lost_ms", "bound"]].isna().all(axis=None)
    (note,) = advice(analyzer.gpu_events, analyzer.roofline())
    assert "--device-peaks" in note
    assert analyzer.get_df_roofline("H100 SXM")["% of roofline"].notna().all()


def test_copies_from_the_host_are_judged_by_the_link() -> None:
    maker = TraceMaker()
    size = [1024, 1024]
    given = arguments(size, size)
    maker.op("aten::copy_", 10, 8, external_id=1, args=given)
    maker.launched("Memcpy HtoD (Pageable -> Device)", 100, 500, correlation=1, at=12)
    trace = maker.document(deviceProperties=[{"id": 0, "name": H100}])
    analyzer = TreePerfAnalyzer(trace)
    row = analyzer.get_df_roofline().iloc[0]
    assert (row["engine"], row["bound"], row["bytes"]) == ("link", "link", 2 * 1024**2)
    assert row["roofline_time_ms"] == pytest.approx(2 * 1024**2 / 63e6)
    assert modelled(analyzer.roofline()).percent == 0.0  # a copy is no computation


def test_single_precision_is_judged_by_tf32_where_the_kernel_uses_it() -> None:
    given = arguments([64, 64], [64, 64], kind="float")
    maker = TraceMaker()
    for number, kernel in enumerate(
        ("ampere_sgemm_64x64_nn", "cutlass_80_tensorop_s1688gemm")
    ):
        maker.op("aten::mm" if number else "aten::bmm", 10 + 10 * number, 8, args=given)
        maker.launched(
            kernel, 100 + 50 * number, 20, correlation=number + 1, at=12 + 10 * number
        )
    frame = TreePerfAnalyzer(maker.document()).get_df_roofline("A100 SXM4 80GB")
    assert dict(zip(frame["op_name"], frame["data_type"], strict=True)) == {
        "aten::mm": "tf32",
        "aten::bmm": "fp32",
    }
    why = frame.set_index("op_name")["why_slow"]
    assert "single precision without TF32" in why["aten::bmm"]


def test_ratios_of_families_are_of_sums() -> None:
    analyzer = analyzed(
        ("aten::mm", MM, 1000),
        ("aten::mm", arguments([64, 64], [64, 64]), 10),
        ("my::op", MM, 100),
    )
    families = family_summary(analyzer.roofline()).set_index("family")
    rows = analyzer.get_df_roofline().query("family == 'GEMM'")
    gemm = families.loc["GEMM"]
    assert gemm["gpu_time_ms"] == pytest.approx(1.01)
    assert gemm["% of roofline"] == pytest.approx(
        100 * rows["roofline_time_ms"].sum() / 1.01
    )
    assert gemm["time_lost_ms"] == pytest.approx(rows["time_lost_ms"].sum())
    assert families["gpu_time_percent"].sum() == pytest.approx(100)
    assert families["time_lost_ms"].isna().to_dict()[NO_FAMILY]
    said = str(modelled(analyzer.roofline()))
    assert said == (
        "91.0 % of GPU time has a performance model; the largest without one: my::op (9.0 %), "
        "because no performance model for my::op"
    )


def test_utilization_of_an_iteration() -> None:
    analyzer = analyzed(("aten::mm", MM, 500), ("aten::add", arguments([8], [8]), 100))
    steps = utilization(analyzer.gpu_events, analyzer.roofline())
    assert steps["iteration"].tolist() == ["ProfilerStep#3"]
    assert steps["mfu_percent"].tolist() == [pytest.approx(100 * MM_US / 1000)]
    whole = utilization(analyzer.gpu_events, analyzer.roofline(), "no such annotation")
    assert whole["iteration"].tolist() == ["the whole trace"]


def test_rates_are_unknown_where_most_gpu_time_has_no_model() -> None:
    """The coverage stands beside each rate."""
    analyzer = analyzed(("aten::mm", MM, 400), ("my::op", MM, 600))
    steps = utilization(analyzer.gpu_events, analyzer.roofline())
    assert steps[["mfu_percent", "tflops_per_s"]].isna().all(axis=None)
    assert steps["modeled_percent"].tolist() == [pytest.approx(40)]
    families = family_summary(analyzer.roofline()).set_index("family")
    assert families.loc["GEMM", "modeled_percent"] == 100
    assert families["% of roofline"]["GEMM"] > 0
    assert families.loc[NO_FAMILY, "modeled_percent"] == 0


def test_utilization_is_not_known_where_nothing_is_modelled() -> None:
    analyzer = analyzed(("unheard::of", MM, 10.0))
    frame = utilization(analyzer.gpu_events, analyzer.roofline())
    assert frame[["tflop", "tflops_per_s", "mfu_percent"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("size", "device", "why"),
    [
        ([1000, 1000], H100, "the data was in the cache"),
        (
            [100_000, 1000],
            H100,
            "does not fit into the cache, so the performance model counts too much",
        ),
        ([1000, 1000], "GeForce GTX 1650", "an unknown cache held the data"),
    ],
)
def test_a_note_explains_rows_over_the_roofline(
    size: list[int], device: str, why: str
) -> None:
    analyzer = analyzed(("aten::add", arguments(size, size), 0.5), device=device)
    (note,) = advice(analyzer.gpu_events, analyzer.roofline())
    assert note.startswith("More than 100 % of the roofline, because ")
    assert why in note
    assert "(aten::add)" in note


def test_a_selection_without_operations_is_a_usage_error() -> None:
    analyzer = analyzed(("aten::mm", MM, 500))
    assert len(analyzer.get_df_roofline(selection=EventFilter(step=3))) == 1
    with pytest.raises(UsageError, match="ProfilerStep#4"):
        analyzer.get_df_roofline(selection=EventFilter(step=4))


def test_shapes_as_a_person_reads_them() -> None:
    bias = arguments([16], [4, 8], [8, 16])
    analyzer = analyzed(
        ("aten::addmm", bias, 9),
        ("aten::mm", arguments([4, 8], [8, 16], [4, 16]), 8),
        ("aten::add", arguments([4, 8], [8]), 7),
        (
            "aten::cat",
            {"Input Dims": [[[4, 8], [4, 8]], []], "Input type": ["TensorList", ""]},
            6,
        ),
    )
    assert [shape_text(row) for row in analyzer.roofline().rows] == [
        "bf16 [4,8] × [8,16]",
        "bf16 [4,8] × [8,16]",
        "bf16 [4,8], [8]",
        "2 × [4,8]",
    ]


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        (
            "aten::bmm",
            arguments([96, 3137, 64], [96, 64, 3137]),
            "N=3137 not a multiple of 8",
        ),
        (
            "aten::bmm",
            arguments([3000, 8, 64], [3000, 64, 8]),
            "3,000 small products of 8x8x64",
        ),
        (
            "aten::_softmax",
            arguments([8, 12, 64, 64], []),
            "attention scores of unfused attention",
        ),
        ("aten::add", arguments([4], [4]), "too small to fill the GPU"),
    ],
)
def test_why_time_is_lost(name: str, given: Any, why: str) -> None:
    duration = 3 if "small to" in why else 5000
    assert (
        why in analyzed((name, given, duration)).get_df_roofline()["why_slow"].iloc[0]
    )


NUMBERS = st.lists(st.integers(0, 3000), max_size=4)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["aten::mm", "aten::add", "aten::sum", "aten::_softmax", "x::y"]
            ),
            st.tuples(NUMBERS, NUMBERS),
            st.floats(0, 2000).map(lambda us: round(us, 3)),
        ),
        max_size=8,
    )
)
def test_nothing_is_lost_and_nothing_negative(
    operations: list[tuple[str, Any, float]],
) -> None:
    analyzer = analyzed(
        *((name, arguments(*dims), us) for name, dims, us in operations)
    )
    frame = analyzer.get_df_roofline()
    args = analyzer.get_df_kernel_launchers_unique_args()
    assert len(frame) == len(args)
    total = args["total_direct_kernel_time_sum"].sum() / 1e3 if len(args) else 0.0
    assert frame["gpu_time_ms"].sum() == pytest.approx(total)
    for column in ("flops", "bytes", "time_lost_ms", "roofline_time_ms"):
        assert (frame[column].dropna() >= 0).all()
    assert (frame["flops"].isna() == frame["bytes"].isna()).all()
    assert (frame["flops"].isna() == frame["why_no_model"].notna()).all()


# Models of plugins.


def found(analyzer: TreePerfAnalyzer, **offered: Any) -> tuple[Roofline, list[str]]:
    """The roofline with the models of a plugin, and the problems."""

    @hookimpl
    def tracelens_performance_models() -> dict[str, Any]:
        return {name.replace("__", "::"): model for name, model in offered.items()}

    theirs = plugin(tracelens_performance_models=tracelens_performance_models)
    found = [FakeEntryPoint("own", models, own=True), FakeEntryPoint("theirs", theirs)]
    registry = PluginRegistry(found)
    return find_roofline(
        analyzer.gpu_events, analyzer.launchers, registry=registry
    ), registry.problems


def test_the_example_of_the_documentation() -> None:
    page = page_text("write-a-plugin.md")
    (code,) = re.findall(
        r"```python\n([^`]*def tracelens_performance_models[^`]*)```", page
    )
    made: dict[str, Any] = {}
    exec(code, made)  # noqa: S102  # of this project
    offered = made["tracelens_performance_models"]()
    analyzer = analyzed(("my_company::swiglu", arguments([128, 64]), 50))
    roofline, problems = found(
        analyzer, my_company__swiglu=offered["my_company::swiglu"]
    )
    (row,) = roofline.rows
    assert row.cost is not None
    assert (row.cost.flops, row.cost.bytes) == (6 * 128 * 64, 2 * 128 * 64 + 128 * 64)
    assert row.model == "theirs.swiglu"
    assert problems == []


def test_a_model_that_fails_costs_only_its_row() -> None:
    def broken(op: Operation) -> Any:
        return 1 / len(op.tensors) - 1 / 0

    analyzer = analyzed(("aten::add", MM, 50), ("aten::mm", MM, 40), ("x::y", MM, 30))
    roofline, problems = found(analyzer, aten__add=broken, x__y=lambda _: "no cost")
    reasons = [row.why_no_model for row in roofline.rows]
    assert reasons[0] == "its model failed (ZeroDivisionError: division by zero)"
    assert reasons[1] is None
    assert "AttributeError" in str(reasons[2])
    assert problems == []


def test_a_model_that_never_ends_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import threading

    monkeypatch.setenv(SECONDS_VARIABLE, "0.1")
    analyzer = analyzed(("x::y", MM, 50), ("aten::mm", MM, 40))
    never = threading.Event()
    roofline, problems = found(analyzer, x__y=lambda _: never.wait(5))
    never.set()
    assert [row.why_no_model for row in roofline.rows] == [
        "the plugin theirs failed",
        None,
    ]
    assert len(problems) == 1


# The command, the report, the page.


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.json"
    contents = document(
        ("aten::mm", MM, 1000),
        ("aten::add", arguments([4096, 4096], [4096]), 100),
        ("my::op", MM, 100),
    )
    path.write_text(json.dumps(contents), encoding="utf-8")
    return path


def command(*given: object) -> int:
    return run(["roofline", *map(str, given)])


def test_the_command_is_readable_at_80_columns(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert command(trace, "--top", 2) == 0
    out = capsys.readouterr().out
    path, *lines = out.splitlines()  # a path is not folded
    assert path == f"Trace: {trace}"
    assert max(map(len, lines)) <= 80
    assert "H100 SXM: matrix" in out
    assert (
        "91.7 % of GPU time has a performance model; the largest without one: my::op"
        in out
    )
    assert "bf16 [4096,4096] × [4096,4096]" in out
    assert "ProfilerStep#3" in out
    assert "1 more not shown (use --top)" in out


def test_the_command_as_json(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(trace, "--json", "--sort", "time") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["facts"]["GPU time modeled (%)"] == pytest.approx(100 * 1.1 / 1.2)
    rows = printed["tables"]["roofline"]
    assert [row["op_name"] for row in rows] == ["aten::mm", "aten::add", "my::op"]
    assert isinstance(rows[0]["flops"], int)
    assert (rows[2]["flops"], rows[2]["bytes"], rows[2]["bound"]) == (None, None, None)
    assert command(trace, "--json", "--family", "gemm") == 0
    assert len(json.loads(capsys.readouterr().out)["tables"]["roofline"]) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--family", "x"], "this trace has BinaryElementwise, GEMM"),
        (["--device-peaks", "x"], "x: cannot be read"),
        (["--step", "9"], "there is no ProfilerStep#9"),
    ],
)
def test_usage_errors_of_the_command(
    trace: Path, capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    assert command(trace, *given) == 2
    assert said in capsys.readouterr().err


def test_a_trace_without_gpu_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 1, 5, args=MM)
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps(maker.document()), encoding="utf-8")
    assert command(path) == 0
    assert "0.0 % of GPU time has a performance model" in capsys.readouterr().out


def test_sheets_of_the_report(trace: Path, tmp_path: Path) -> None:
    arch = tmp_path / "arch.json"
    peaks = {
        "name": "X",
        "mem_bw_gbps": 100,
        "max_achievable_tflops": {"matrix_bf16": 10},
    }
    arch.write_text(json.dumps(peaks), encoding="utf-8")
    tables = generate_perf_report_pytorch(
        trace, tmp_path / "r.xlsx", gpu_arch_json_path=arch
    )
    assert {"roofline", "GEMM", "BinaryElementwise"} <= set(tables)
    assert "SDPA_fwd" not in tables
    gemm = tables["GEMM"].iloc[0]
    assert gemm[["param: M", "param: N", "param: K"]].tolist() == [4096] * 3
    assert gemm["% of roofline"] == pytest.approx(100 * MM_US * 98.94 / 1000)
    assert openpyxl.load_workbook(tmp_path / "r.xlsx")["GEMM"].max_row == 2


def test_without_shapes_a_note_replaces_the_sheet(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document(("aten::mm", {}, 50))), encoding="utf-8")
    assert "roofline" not in generate_perf_report_pytorch(path, tmp_path / "r.xlsx")
    analyzer = TreePerfAnalyzer(path)
    assert "record_shapes=True" in advice(analyzer.gpu_events, analyzer.roofline())[0]


def test_an_unknown_family_is_a_usage_error() -> None:
    analyzer = analyzed(("aten::mm", MM, 50))
    assert len(analyzer.get_df_performance_model("SDPA_fwd")) == 0
    with pytest.raises(UsageError, match="there is no family 'GEM'"):
        analyzer.get_df_performance_model("GEM")


def test_the_chart_has_a_point_for_each_operation_and_the_roofs() -> None:
    analyzer = analyzed(("aten::mm", MM, 1000), ("aten::fill_", arguments([64]), 9))
    sheets: dict[str, pd.DataFrame] = {"roofline": analyzer.get_df_roofline()}
    sheets["roofline_peaks"] = analyzer.get_df_roofline_peaks()
    chart = Chart(
        "Roofline", "roofline", "op_name", "time_lost_ms", kind="roofline", on="page"
    )
    (figure,) = page_figures(sheets, [chart])
    traces: Any = figure.spec["data"]
    points = [trace for trace in traces if trace["meta"] is not None]
    assert [len(piece["x"]) for piece in points] == [1]  # a fill computes nothing
    assert points[0]["x"] == [pytest.approx(4096 / 3)]
    assert "[4096, 4096]" in points[0]["customdata"][0].replace("(", "[").replace(
        ")", "]"
    )
    roofs = [trace for trace in traces if trace["meta"] is None]
    assert [roof["text"][-1] for roof in roofs] == [
        "matrix bf16: 989.4 TFLOP/s; 3.35 TB/s"
    ]
    assert roofs[0]["y"][-1] == 989.4


@pytest.mark.real_data
@pytest.mark.process
def test_an_independent_computation_agrees_on_recorded_traces() -> None:
    """FLOPs, bytes, counts and times, worked out a second time by a script that shares no code."""
    traces = [
        *sorted((SHARED / "traces" / "amd").glob("*_*_*.json.gz")),
        *sorted((SHARED / "traces" / "nvidia").glob("[gt]*[dn].json.gz")),
    ]
    tool = Path(sys.executable).with_name("tracelens-ext")
    script = SHARED / "check" / "roofline.py"
    asked: list[str | Path] = [sys.executable, script, *traces, "--tool", tool]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
