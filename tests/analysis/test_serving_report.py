"""Phases in reports and on the command line: sheets, columns, charts, JSON, errors."""

from __future__ import annotations

import gzip
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.docs.test_tables import OF_ENGINES
from tests.support.capture_helpers import Op, Recording
from tests.support.comparison_helpers import needs_html
from tests.support.docs_helpers import commands_of, page_text
from tests.support.make_trace import TraceMaker
from tests.support.serving_helpers import Engine, tensors, vllm
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.cli import run
from tracelens_ext.compare.engine_chart.runs import measure, measure_run
from tracelens_ext.compare.engine_chart.specification import parse_inputs
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.report.html import page_figures
from tracelens_ext.report.tables.registry import offered_tables


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    engine = Engine()
    attention = tensors([2, 64, 64], [2, 8, 64], [2, 8, 64])
    engine.step(vllm([(7, 7), (5, 9)], []), attention=attention)
    for keys in (10, 11):
        engine.step(vllm([], [(1, keys), (1, keys)]), attention=attention)
    engine.maker.annotation("schedule", engine.host - 10, 5)
    engine.step("execute_diffusion_1_512x512")
    engine.outside(9)
    experts = [[4, 64], [8, 32, 64], [8, 64, 16], [4, 2], [4, 2]]
    engine.maker.op(
        "vllm::inplace_fused_experts", engine.host, 9, args=tensors(*experts)
    )
    engine.outside(9)
    devices = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    document = engine.maker.document(deviceProperties=devices)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    return path


def phases(*arguments: object) -> int:
    return run(["phases", *map(str, arguments)])


def as_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert phases(*arguments, "--json") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_all_columns_of_the_sheets_are_described(trace: Path) -> None:
    analyzer = TreePerfAnalyzer(trace, use_kernel_name_categories=True)
    report = build_perf_report(analyzer)
    described = {offered.item.name: offered.item for offered in offered_tables()}
    assert set(OF_ENGINES) <= set(report.sheets)
    for name in OF_ENGINES:
        columns = described[name].columns
        for column in report.sheets[name].columns:
            is_described = any(
                description.matches(str(column)) for description in columns
            )
            assert is_described, (name, column)


def test_a_report_has_the_layers_as_a_note_and_the_phases_as_a_chart(
    trace: Path,
) -> None:
    report = build_perf_report(TreePerfAnalyzer(trace, use_kernel_name_categories=True))
    assert any("4 layers of 8 GPU events" in note for note in report.notes)
    (phase_chart,) = [
        figure
        for figure in page_figures(report.sheets, report.charts)
        if figure.title.startswith("GPU time by phase")
    ]
    assert "decode" in json.dumps(phase_chart.spec)


def test_reports_of_traces_without_steps_lack_the_sheets_of_engines() -> None:
    maker = TraceMaker()
    maker.op("aten::embedding", 0, 10)
    maker.op("flash_attn::fwd", 10, 10)
    maker.launched("a", 20, 10, correlation=1, at=5)
    report = build_perf_report(TreePerfAnalyzer(maker.document()))
    assert not set(OF_ENGINES) & set(report.sheets)


def test_json_has_all_tables_of_engines(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = as_json(capsys, trace)["tables"]
    assert list(tables) == ["phases", "phase_steps", "layers", "layer_kernels"]
    counts = [
        "phase",
        "steps",
        "context_requests",
        "generation_requests",
        "context_tokens",
        "generation_tokens",
        "tokens",
    ]
    phases = pd.DataFrame(tables["phases"], dtype=object)
    assert phases[counts].to_numpy().tolist() == [
        ["prefill", 1, 2, 0, 12, 0, 12],
        ["decode", 2, 0, 4, 0, 4, 4],
        ["diffusion", 1, None, None, None, None, None],
        ["other", 0, None, None, None, None, None],
    ]
    assert len(tables["phase_steps"]) == 4


def test_shares_of_the_roofline_need_half_of_the_time_modeled(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = as_json(capsys, trace)["tables"]
    for row in tables["phases"][:2]:
        assert row["roofline_time_ms"] > 0
        covered_percent = 100 * row["modeled_ms"] / row["gpu_busy_ms"]
        assert row["modeled_percent"] == pytest.approx(covered_percent)
        if covered_percent < 50:
            assert row["% of roofline"] is None
        else:
            assert row["% of roofline"] == pytest.approx(
                100 * row["roofline_time_ms"] / row["modeled_ms"]
            )


def test_the_terminal_shows_the_first_rows_and_the_notes(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert phases(trace, "--top", 1, "--notes") == 0
    out = capsys.readouterr().out
    for text in ("GPU utilization", "By category", "3 more rows not shown"):
        assert text in out
    assert "decode: 4 layers of 8 GPU events" in out
    assert "flash_attn_fwd" in out


def test_the_user_can_name_phases(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = as_json(capsys, trace, "--phase", "denoise=^execute_diffusion")["tables"]
    assert [row["phase"] for row in tables["phases"]] == [
        "prefill",
        "decode",
        "denoise",
        "other",
    ]
    assert phases(trace, "--phase", "denoise") == 2
    assert "expected NAME=REGEX" in capsys.readouterr().err


def test_a_comparison_has_the_phases_that_all_traces_have(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Engine()
    engine.step(vllm([], [(1, 10), (1, 10)]), scale=2)
    (trace.parent / "other.json").write_text(json.dumps(engine.document()))
    assert run(["compare", str(trace), "other.json", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["tables"]["phases"]
    decode = next(row for row in rows if row["phase"] == "decode")
    assert (decode["A_count"], decode["B_count"]) == (2, 1)
    assert decode["B_ms_per_step"] == 2 * decode["A_ms_per_step"]
    assert decode["difference_ms"] == 0


def test_a_comparison_with_a_trace_without_steps_has_no_phases(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Engine()
    engine.step(vllm([], [(1, 10), (1, 10)]))
    engine.maker.events = [
        event for event in engine.maker.events if event["cat"] != "user_annotation"
    ]
    (trace.parent / "other.json").write_text(json.dumps(engine.document()))
    assert run(["compare", str(trace), "other.json", "--format", "json"]) == 0
    assert "phases" not in json.loads(capsys.readouterr().out)["tables"]


def test_a_chart_by_phase_divides_the_whole_run(trace: Path) -> None:
    analyzer = TreePerfAnalyzer(trace, use_kernel_name_categories=True)
    (chart_input,) = parse_inputs(["run.json,vllm,llama,1"])
    runs = measure(analyzer.gpu_events, chart_input, 0, "phase")
    whole = measure_run(analyzer.gpu_events, chart_input, 0)
    assert [run.label.rpartition("_")[2] for run in runs] == [
        "prefill",
        "decode",
        "diffusion",
        "other",
    ]
    assert sum(run.gpu_ns for run in runs) == whole.gpu_ns
    # The elapsed time of each phase is rounded down.
    elapsed_of_phases = sum(run.elapsed_ns for run in runs)
    assert whole.elapsed_ns - len(runs) <= elapsed_of_phases <= whole.elapsed_ns


def test_a_chart_is_either_by_phase_or_per_device(trace: Path) -> None:
    assert run(["chart", f"{trace},vllm,llama,1", "--by-phase", "--per-device"]) == 2


@needs_html
def test_the_chart_by_phase_is_drawn(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["chart", str(trace), "--categorizer", "builtin", "--by-phase"]
    assert run(arguments) == 0
    assert "decode" in capsys.readouterr().out


@needs_html
def test_a_chart_by_phase_of_a_trace_without_steps_is_an_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    maker = TraceMaker()
    maker.launched("a", 20, 10, correlation=1, at=5)
    (tmp_path / "plain.json").write_text(json.dumps(maker.document()))
    arguments = ["chart", "plain.json", "--categorizer", "builtin", "--by-phase"]
    assert run(arguments) == 2
    assert "no annotation of a serving engine" in capsys.readouterr().err


_COMMANDS = commands_of(page_text("serving.md"))


@pytest.mark.parametrize("command", _COMMANDS)
def test_the_examples_in_the_documentation_run(
    trace: Path,
    short_demo_trace: Path,
    command: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copy(short_demo_trace, trace.parent / "demo_trace.json.gz")
    (trace.parent / "trace.json.gz").write_bytes(gzip.compress(trace.read_bytes()))
    (trace.parent / "capture_traces").mkdir()
    capture = Recording()
    decode = Recording()
    capture.capture([Op("aten::mm", ["gemm"], 8)], annotation="capture_8_FULL")
    capture.write(trace.parent / "capture_traces" / "rank0.json")
    decode.launch("gemm", annotation="step[DECODE bs=8]")
    decode.write(trace.parent / "decode.json")
    assert run(shlex.split(command)) == 0
    expected_text = "ProfilerStep#" if "demo" in command else "decode"
    assert expected_text in capsys.readouterr().out


def test_the_error_for_a_trace_without_steps_suggests_naming_phases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maker = TraceMaker()
    maker.launched("a", 20, 10, correlation=1, at=5)
    (tmp_path / "a.json").write_text(json.dumps(maker.document()))
    assert phases(tmp_path / "a.json") == 2
    captured = capsys.readouterr()
    assert "name them with --phase NAME=REGEX" in captured.err
    assert not captured.out
