"""Captures of CUDA graphs: the captured graph that a launch replays, and its operations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from tests.support.capture_helpers import Op, Recording
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.cuda_graphs import capture_files
from tracelens_ext.analysis.cuda_graphs.graph_launches import tokens_of_step
from tracelens_ext.analysis.cuda_graphs.sequence_alignment import AlignmentBudget
from tracelens_ext.analysis.cuda_graphs.tables import GRAPH_CAPTURES, GRAPH_OPERATIONS
from tracelens_ext.cli import run as run_command
from tracelens_ext.errors import (
    MergedRanksError,
    TraceFormatError,
    TraceNotFoundError,
    TraceTooLargeError,
    UsageError,
)
from tracelens_ext.perf_report import build_perf_report

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARED = (
    Path(__file__).resolve().parents[3] / "shared" / "inference" / "vllm_decode_full"
)

LAYER = [Op("aten::mm", ["gemm"], 8), Op("vllm::attention", ["attend", "reduce"], 8)]


def _captured(path: Path, *graphs: Sequence[Op], **options: Any) -> Path:
    recording = Recording()
    recording.capture(*graphs, **options)
    return recording.write(path)


def _operations(analyzer: TreePerfAnalyzer) -> dict[str, tuple[int, int, float]]:
    rows = analyzer.get_df_graph_operations().itertuples(index=False)
    return {name: (calls, kernels, time) for name, calls, kernels, time in rows}


def _counts(analyzer: TreePerfAnalyzer) -> list[tuple[int, int, int, int]]:
    columns = ["replays", "matched", "inserted", "missing"]
    return [
        tuple(row)
        for row in analyzer.get_df_graph_captures()[columns].to_numpy().tolist()
    ]


# The events of a graph launch get the operations of the capture.


def test_each_replay_has_the_operations_of_the_capture(tmp_path: Path) -> None:
    capture = _captured(tmp_path / "capture.json", LAYER)
    run = Recording()
    run.launch("gemm", "attend", "reduce", duration=10)
    run.launch("gemm", "attend", "reduce", duration=30)
    analyzer = TreePerfAnalyzer(run.document(), capture=capture)
    assert _operations(analyzer) == {
        "vllm::attention": (2, 4, 80.0),
        "aten::mm": (2, 2, 40.0),
    }
    assert _counts(analyzer) == [(2, 6, 0, 0)]
    launchers = analyzer.get_df_kernel_launchers()
    assert launchers["name"].tolist() == ["aten::mm", "vllm::attention"] * 2
    assert set(launchers["Input Dims"]) == {"((8, 8),)"}
    assert launchers["total_direct_kernel_time"].tolist() == [10.0, 20.0, 30.0, 60.0]
    summary = analyzer.get_df_kernel_launchers_summary().set_index("name")
    assert summary["Count"].to_dict() == {"vllm::attention": 2, "aten::mm": 2}
    assert analyzer.get_df_roofline()["op_name"].tolist() == [
        "vllm::attention",
        "aten::mm",
    ]


def test_the_launch_of_a_kernel_stays_the_graph_launch(tmp_path: Path) -> None:
    capture = _captured(tmp_path / "capture.json", LAYER)
    run = Recording()
    run.launch("gemm", "attend", "reduce")
    kernels = TreePerfAnalyzer(run.document(), capture=capture).get_df_kernels(
        launcher_detail=True
    )
    assert set(kernels["launch"]) == {"hipGraphLaunch"}
    assert kernels["cpu_op"].tolist() == [
        "aten::mm",
        "vllm::attention",
        "vllm::attention",
    ]


def test_the_call_tree_has_the_captured_operations_below_the_graph_launch(
    tmp_path: Path,
) -> None:
    capture = _captured(tmp_path / "capture.json", LAYER)
    run = Recording()
    run.launch("gemm", "attend", "reduce", annotation="step")
    tree = TreePerfAnalyzer(run.document(), capture=capture).get_df_call_tree()
    assert list(zip(tree["depth"], tree["name"], strict=True)) == [
        (0, "step"),
        (1, "hipGraphLaunch"),
        (2, "vllm::attention"),
        (3, "hipLaunchKernel"),
        (4, "attend"),
        (4, "reduce"),
        (2, "aten::mm"),
        (3, "hipLaunchKernel"),
        (4, "gemm"),
    ]


def test_ancestors_of_a_kernel_and_gpu_events_of_its_operation_agree(
    tmp_path: Path,
) -> None:
    capture = _captured(tmp_path / "capture.json", LAYER)
    run = Recording()
    run.launch("gemm", "attend", "reduce")
    tree = TreePerfAnalyzer(run.document(), capture=capture).tree
    kernel = int(tree.trace.gpu_rows[1])
    names = [tree.trace.name_of(row) for row in tree.ancestors(kernel)]
    assert names == ["hipLaunchKernel", "vllm::attention", "hipGraphLaunch"]
    operation = list(tree.ancestors(kernel))[1]
    assert tree.gpu_events(operation) == tree.trace.gpu_rows[1:].tolist()
    assert tree.gpu_events(int(tree.launch_of_gpu[0])) == tree.trace.gpu_rows.tolist()


@pytest.mark.parametrize("python", [True, False])
def test_captured_modules_are_within_the_modules_around_the_launch(
    tmp_path: Path, python: bool
) -> None:
    capture = _captured(tmp_path / "capture.json", LAYER, module="Model")
    run = Recording()
    run.launch("gemm", "attend", "reduce")
    run.maker.frame("nn.Module: Wrapper_0", 0, run.now)
    analyzer = TreePerfAnalyzer(run.document(), capture=capture, add_python_func=python)
    modules = analyzer.get_df_nn_modules().set_index("path")
    assert modules["kernels"].to_dict() == {"Wrapper": 3, "Wrapper/Model": 3}
    assert modules["gpu_time_self_ms"].to_dict() == {
        "Wrapper": 0.0,
        "Wrapper/Model": 0.03,
    }
    if python:
        detail = analyzer.get_df_kernels(nn_module_detail=True)
        assert set(detail["nn_module"]) == {"Wrapper_0/Model_0"}


def test_captures_do_not_change_tables_of_host_time_and_gpu_time(
    tmp_path: Path,
) -> None:
    capture = _captured(tmp_path / "capture.json", LAYER)
    run = Recording()
    run.maker.op("aten::prepare", 0, 3)
    run.now = 4
    for _ in range(3):
        run.launch("gemm", "attend", "reduce", annotation="ProfilerStep#1")
        run.maker.op("aten::next", run.now, 3)
        run.now += 4
    plain = TreePerfAnalyzer(run.document())
    merged = TreePerfAnalyzer(run.document(), capture=capture)
    tables = (
        "cpu_ops",
        "idle_cpu_activity",
        "gap_summary",
        "iterations",
        "gpu_timeline",
        "graph_launches",
    )
    for table in tables:
        method = f"get_df_{table}"
        pd.testing.assert_frame_equal(
            getattr(plain, method)(), getattr(merged, method)()
        )
    assert repr(plain) == repr(merged)


# The choice of the captured graph.


def test_kernels_that_were_not_captured_stay_under_the_graph_launch(
    tmp_path: Path,
) -> None:
    capture = _captured(tmp_path / "capture.json", LAYER * 2)
    run = Recording()
    run.launch("gemm", "attend", "extra", "reduce", "gemm", "reduce")
    analyzer = TreePerfAnalyzer(run.document(), capture=capture)
    assert _counts(analyzer) == [(1, 5, 1, 1)]
    assert _operations(analyzer) == {
        "vllm::attention": (2, 3, 30.0),
        "aten::mm": (2, 2, 20.0),
    }
    kernels = analyzer.get_df_kernels().set_index("kernel_name")
    assert kernels.loc["extra", "cpu_op"] == "graph"


def test_equal_sequences_match_even_without_an_alignment_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AlignmentBudget, "take", lambda *_: False)
    capture = _captured(tmp_path / "capture.json", LAYER)
    run = Recording()
    run.launch("gemm", "attend", "reduce")
    run.launch("gemm", "reduce")
    analyzer = TreePerfAnalyzer(run.document(), capture=capture)
    assert sorted(_counts(analyzer)) == [(1, 0, 2, 0), (1, 3, 0, 0)]


def test_a_capture_with_other_kernels_is_not_used(tmp_path: Path) -> None:
    capture = _captured(
        tmp_path / "capture.json", [Op("aten::sort", ["sort", "gemm"])] * 3
    )
    run = Recording()
    run.launch("gemm", "attend", "reduce", "copy")
    analyzer = TreePerfAnalyzer(run.document(), capture=capture)
    assert _operations(analyzer) == {}
    assert _counts(analyzer) == [(1, 0, 4, 0)]
    assert set(analyzer.get_df_kernels()["cpu_op"]) == {"graph"}


def _by_size(folder: Path, *sizes: int, mode: str = "FULL") -> Path:
    for size in sizes:
        layer = [Op("aten::mm", ["gemm"], size)]
        _captured(folder / f"{size}.json", layer, annotation=f"capture_{size}_{mode}")
    return folder


def _shapes(analyzer: TreePerfAnalyzer) -> list[str]:
    return [str(text) for text in analyzer.get_df_kernel_launchers()["Input Dims"]]


def test_a_step_is_padded_to_the_next_batch_size_that_was_captured(
    tmp_path: Path,
) -> None:
    run = Recording()
    for tokens in (3, 8, 9):
        run.launch(
            "gemm", annotation=f"execute_context_0(0)_generation_{tokens}({tokens})"
        )
    analyzer = TreePerfAnalyzer(run.document(), capture=_by_size(tmp_path, 4, 8, 16))
    assert _shapes(analyzer) == ["((4, 8),)", "((8, 8),)", "((16, 8),)"]
    table = analyzer.get_df_graph_captures().set_index("batch_size")
    assert table["tokens_per_replay"].to_dict() == {4: 3.0, 8: 8.0, 16: 9.0}
    assert table["padding_percent"].to_dict() == {4: 25.0, 8: 0.0, 16: 43.75}


def test_a_step_larger_than_all_captures_replays_none_of_them(tmp_path: Path) -> None:
    run = Recording()
    run.launch("gemm", annotation="step[DECODE bs=17]")
    analyzer = TreePerfAnalyzer(run.document(), capture=_by_size(tmp_path, 4, 16))
    assert _operations(analyzer) == {}


def test_no_capture_is_chosen_if_several_fit_a_launch_of_unknown_size(
    tmp_path: Path,
) -> None:
    run = Recording()
    run.launch("gemm")
    assert (
        _operations(TreePerfAnalyzer(run.document(), capture=_by_size(tmp_path, 4, 8)))
        == {}
    )


def test_equal_captures_of_several_ranks_count_as_one(tmp_path: Path) -> None:
    for rank in range(2):
        _captured(tmp_path / f"rank{rank}.json", LAYER, annotation="capture_8_FULL")
    run = Recording()
    run.launch("gemm", "attend", "reduce")
    assert len(_operations(TreePerfAnalyzer(run.document(), capture=tmp_path))) == 2


def test_kernel_names_choose_the_capture_if_no_size_is_known(tmp_path: Path) -> None:
    _captured(tmp_path / "a.json", [Op("aten::mm", ["gemm_small"], 4)])
    _captured(tmp_path / "b.json", [Op("aten::mm", ["gemm_large"], 64)])
    run = Recording()
    run.launch("gemm_large")
    assert _shapes(TreePerfAnalyzer(run.document(), capture=tmp_path)) == ["((64, 8),)"]


def test_pieces_are_replayed_in_the_order_of_their_capture(tmp_path: Path) -> None:
    pieces = [LAYER] * 3
    capture = _captured(
        tmp_path / "c.json", *pieces, annotation="capture_8_PIECEWISE", module="Layer"
    )
    run = Recording()
    for _ in range(2):
        run.steps(
            [["gemm", "attend", "reduce"]] * 3, annotation="execute_8_context_1(8)_gen"
        )
    analyzer = TreePerfAnalyzer(run.document(), capture=capture)
    modules = analyzer.get_df_nn_modules(instances=True).set_index("path")
    assert modules["calls"].to_dict() == {"Layer_0": 2, "Layer_1": 2, "Layer_2": 2}
    assert analyzer.get_df_graph_captures()["graph"].tolist() == [0, 1, 2]


def test_steps_with_one_launch_replay_full_graphs_and_others_the_pieces(
    tmp_path: Path,
) -> None:
    _captured(tmp_path / "a.json", LAYER, LAYER, annotation="capture_8_PIECEWISE")
    _captured(tmp_path / "b.json", LAYER, annotation="capture_8_FULL")
    run = Recording()
    kernels = ["gemm", "attend", "reduce"]
    run.launch(*kernels, annotation="step[DECODE bs=8]")
    run.steps([kernels, kernels], annotation="step[EXTEND bs=1 toks=8]")
    table = TreePerfAnalyzer(run.document(), capture=tmp_path).get_df_graph_captures()
    assert sorted(zip(table["mode"], table["graph"], strict=True)) == [
        ("FULL", 0),
        ("PIECEWISE", 0),
        ("PIECEWISE", 1),
    ]


@pytest.mark.parametrize("named", [True, False])
def test_shapes_give_the_batch_sizes_of_captures_without_annotation(
    tmp_path: Path, named: bool
) -> None:
    capture = Recording()
    for rows in (32, 8, 2):
        capture.capture(*[[Op("aten::mm", ["gemm"], rows)]] * 3, named=named)
    path = capture.write(tmp_path / "capture.json")
    run = Recording()
    run.steps([["gemm"]] * 3, annotation="step[DECODE bs=5]")
    analyzer = TreePerfAnalyzer(run.document(), capture=path)
    assert set(_shapes(analyzer)) == {"((8, 8),)"}
    assert set(analyzer.get_df_graph_captures()["batch_size"]) == {8}
    assert _counts(analyzer) == [(1, 1, 0, 0)] * 3


def test_each_mode_has_its_own_batch_sizes(tmp_path: Path) -> None:
    whole = [Op("aten::mm", ["gemm"], 32), *LAYER]
    piece = [Op("aten::mm", ["gemm"], 24)]
    _captured(tmp_path / "a.json", piece, piece, annotation="capture_24_PIECEWISE")
    _captured(tmp_path / "b.json", whole, annotation="capture_32_FULL")
    run = Recording()
    run.launch("gemm", "gemm", "attend", "reduce", annotation="step[DECODE bs=20]")
    run.steps([["gemm"], ["gemm"]], annotation="step[EXTEND bs=1 toks=20]")
    table = TreePerfAnalyzer(run.document(), capture=tmp_path).get_df_graph_captures()
    assert sorted(zip(table["mode"], table["batch_size"], strict=True)) == [
        ("FULL", 32),
        ("PIECEWISE", 24),
        ("PIECEWISE", 24),
    ]


def test_execution_details_give_the_batch_size_of_a_capture(tmp_path: Path) -> None:
    for size in (4, 8):
        _captured(tmp_path / f"{size}.json", [Op("aten::mm", ["gemm"], size)])
    (tmp_path / "16.json").write_text(
        "[]"
    )  # no trace, but not read: its size is not needed
    details = [
        {"file": f"{n}.json", "batch_size": n, "mode": "FULL"} for n in (4, 8, 16)
    ]
    (tmp_path / "execution_details.json").write_text(json.dumps(details))
    run = Recording()
    run.launch("gemm", annotation="step[DECODE bs=5]")
    assert _shapes(TreePerfAnalyzer(run.document(), capture=tmp_path)) == ["((8, 8),)"]


def test_files_of_too_small_batch_sizes_are_not_read(tmp_path: Path) -> None:
    details = [{"file": "4.json", "batch_size": 4, "mode": "FULL"}]
    (tmp_path / "4.json").write_text("[]")  # no trace, but not read
    (tmp_path / "execution_details.json").write_text(json.dumps(details))
    run = Recording()
    run.launch("gemm", annotation="step[DECODE bs=5]")
    assert _counts(TreePerfAnalyzer(run.document(), capture=tmp_path)) == [(1, 0, 1, 0)]


@pytest.mark.parametrize(
    ("annotation", "tokens"),
    [
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk5sqsq32sqsk5)",
            32,
        ),
        ("execute_context_1(100)_generation_3(3)", 103),
        ("execute_diffusion_2_1024x768", 2),
        ("step[DECODE bs=7]", 7),
        ("step[EXTEND bs=2 toks=300]", 300),
        ("step[MIXED bs=4]", 4),
        ("decode[bs=5/8 tok=5 p=0 d=5]", 8),
        ("decode[bs=5 tok=10]", 5),
        ("prefill[bs=1 tok=77 ctx=[0]]", 77),
        ("ProfilerStep#4", None),
    ],
)
def test_annotations_of_engines_contain_the_number_of_tokens(
    annotation: str, tokens: int | None
) -> None:
    assert tokens_of_step(annotation) == tokens


# Which launches are captured.


def test_captures_in_the_trace_itself_are_used() -> None:
    run = Recording()
    run.capture(LAYER)
    run.launch("gemm", "attend", "reduce")
    assert _operations(TreePerfAnalyzer(run.document())) == {
        "vllm::attention": (1, 2, 20.0),
        "aten::mm": (1, 1, 10.0),
    }


def test_atom_names_the_batch_size_of_its_captures() -> None:
    run = Recording()
    for rows in (16, 8):
        run.capture(
            [Op("aten::mm", ["gemm"], rows)], annotation=f"capture_graph_bs_{rows}"
        )
    run.launch("gemm", annotation="decode[bs=3 tok=3]")
    table = TreePerfAnalyzer(run.document()).get_df_graph_captures()
    assert table[["batch_size", "mode", "matched"]].to_numpy().tolist() == [[8, "", 1]]


def test_a_trace_given_as_its_own_capture_is_searched_once(
    tmp_path: Path,
) -> None:
    run = Recording()
    run.capture(LAYER, [Op("aten::mm", ["gemm"])])
    run.steps([["gemm", "attend", "reduce"], ["gemm"]])
    path = run.write(tmp_path / "run.json")
    for source in (path, tmp_path):
        replays = TreePerfAnalyzer(path, capture=source).graph_replays
        assert replays is not None
        assert [len(capture.graphs) for capture in replays.captures] == [2]


def test_launches_that_started_gpu_work_are_not_captured(tmp_path: Path) -> None:
    recording = Recording()
    recording.maker.launched("gemm", 4, 5, correlation=900, at=1, api="hipLaunchKernel")
    # a capture without calls that begin and end it
    recording.maker.annotation("capture_8_FULL", 0, 50)
    recording.maker.op("aten::mm", 20, 10)
    call = {"kernel": "gemm"}
    recording.maker.call("hipLaunchKernel", 22, 3, correlation=901, args=call)
    capture = recording.write(tmp_path / "capture.json")
    run = Recording()
    run.launch("gemm")
    analyzer = TreePerfAnalyzer(run.document(), capture=capture)
    assert _counts(analyzer) == [(1, 1, 0, 0)]


def test_launches_on_other_threads_of_the_process_are_captured(tmp_path: Path) -> None:
    recording = Recording()
    recording.capture(LAYER)
    recording.maker.op("aten::mm_backward", 14, 3, thread=2)
    call = {"kernel": "gemm_dx"}
    recording.maker.call("hipLaunchKernel", 15, 1, correlation=99, args=call, thread=2)
    run = Recording()
    run.launch("gemm", "gemm_dx", "attend", "reduce")
    analyzer = TreePerfAnalyzer(
        run.document(), capture=recording.write(tmp_path / "c.json")
    )
    assert _operations(analyzer)["aten::mm_backward"] == (1, 1, 10.0)


def test_copies_and_fills_match_by_their_kind(tmp_path: Path) -> None:
    ops = [
        Op("aten::copy_", ["copy"]),
        Op("aten::zero_", ["fill"]),
        Op("aten::mm", ["gemm"]),
    ]
    capture = _captured(tmp_path / "capture.json", ops)
    run = Recording()
    run.launch("copy", "fill", "gemm")
    run.launch("__amd_rocclr_copyBuffer", "__amd_rocclr_fillBufferAligned", "gemm")
    analyzer = TreePerfAnalyzer(run.document(), capture=capture)
    assert {name: row[0] for name, row in _operations(analyzer).items()} == {
        "aten::copy_": 2,
        "aten::zero_": 2,
        "aten::mm": 2,
    }


def test_launches_without_a_kernel_name_match_as_a_whole_or_not_at_all(
    tmp_path: Path,
) -> None:
    ops = [Op("aten::copy_", ["copy"]), *LAYER]
    capture = Recording(api="cuda")
    capture.capture(ops, named=False)
    path = capture.write(tmp_path / "capture.json")

    def matched(*kernels: str | tuple[str, int]) -> int:
        run = Recording(api="cuda")
        run.launch(*kernels)
        table = TreePerfAnalyzer(run.document(), capture=path).get_df_graph_captures()
        return int(table["matched"].sum())

    assert matched("copy", "gemm", "attend", "reduce") == 4
    assert matched("gemm", "copy", "attend", "reduce") == 0
    assert matched("copy", "gemm", "attend") == 0
    assert matched("copy", "gemm", ("attend", 8), "reduce") == 0


def test_a_run_before_the_capture_gives_the_names_of_its_kernels(
    tmp_path: Path,
) -> None:
    """NVIDIA's profiler does not record them, and a replay may have a few other kernels."""
    # The op "top" runs two kernels, so a captured launch of it may be either.
    ambiguous = [Op("top", ["topk"]), Op("norm", ["rms"]), Op("top", ["sort"])]
    ops = [*LAYER, *ambiguous, Op("head", ["gemm_2"])]
    capture = Recording(api="cuda")
    capture.warm_up(ops)
    capture.capture(ops, named=False)
    path = capture.write(tmp_path / "capture.json")

    def operations(*kernels: str | tuple[str, int]) -> dict[str, int]:
        run = Recording(api="cuda")
        run.launch(*kernels)
        table = _operations(TreePerfAnalyzer(run.document(), capture=path))
        return {name: kernel_count for name, (_, kernel_count, _) in table.items()}

    layer = {"aten::mm": 1, "vllm::attention": 2}
    run = ["gemm", "attend", "new", "reduce", "topk", "rms", "sort"]
    assert operations(*run) == layer | {"top": 2, "norm": 1}
    assert operations(
        "gemm", "attend", "reduce", "new", "topk", "rms", "sort", "gemm_2"
    ) == (
        # either "new" or "topk" may be the first kernel of "top"
        layer | {"top": 1, "norm": 1, "head": 1}
    )
    assert operations("gemm", "attend", "reduce", ("gemm_2", 8)) == layer | {"head": 1}


def test_a_side_stream_may_run_earlier_or_later_than_it_was_captured(
    tmp_path: Path,
) -> None:
    ops = [Op("main", ["a"]), Op("side", ["x"]), Op("main", ["b"]), Op("side", ["y"])]
    capture = _captured(tmp_path / "capture.json", ops)
    run = Recording()
    run.launch(("x", 8), ("y", 8), "a", "b")
    run.launch("a", "b", ("x", 8), ("y", 8))
    analyzer = TreePerfAnalyzer(run.document(), capture=capture)
    assert _counts(analyzer) == [(2, 8, 0, 0)]
    assert {name: row[:2] for name, row in _operations(analyzer).items()} == {
        "main": (4, 4),
        "side": (4, 4),
    }


def test_the_report_describes_its_sheets_and_counts_the_matched_events(
    tmp_path: Path,
) -> None:
    capture = _captured(tmp_path / "capture.json", LAYER, annotation="capture_8_FULL")
    run = Recording()
    run.launch("gemm", "attend", "reduce", "extra", annotation="step[DECODE bs=6]")
    report = build_perf_report(TreePerfAnalyzer(run.document(), capture=capture))
    described = {table.name: table for table in (GRAPH_OPERATIONS, GRAPH_CAPTURES)}
    for name in ("graph_operations", "graph_captures"):
        columns = [column.name for column in described[name].columns]
        assert columns == list(report.sheets[name].columns)
    assert any(
        note
        == (
            "3 of 4 GPU events of graph launches are assigned to the operation of "
            "their capture. Not assigned: 1 GPU event (25.0 % of GPU time)."
        )
        for note in report.notes
    )


def test_the_report_asks_for_captures_if_there_are_none() -> None:
    run = Recording()
    run.launch("gemm")
    report = build_perf_report(TreePerfAnalyzer(run.document()))
    (note,) = [note for note in report.notes if "--capture" in note]
    assert note.startswith(
        "The operations of 1 GPU event (100.0 % of GPU time) inside graph launches"
    )


@pytest.mark.parametrize(
    "command", ["report", "findings", "tree", "roofline", "kernels"]
)
def test_commands_take_captures(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = _captured(tmp_path / "capture.json", LAYER)
    run = Recording()
    run.launch("gemm", "attend", "reduce")
    trace = run.write(tmp_path / "run.json")
    options = ["--csv-dir", str(tmp_path / "out")] if command == "report" else []
    options += ["--sources"] if command == "kernels" else []
    assert run_command([command, str(trace), "--capture", str(capture), *options]) == 0
    text_of_command = {"kernels": "attend", "findings": "Largest kernels: gemm 33 %"}
    expected_text = text_of_command.get(command, "vllm::attention")
    assert expected_text in capsys.readouterr().out


def test_phases_shows_the_operations_inside_of_graphs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = _captured(tmp_path / "capture.json", LAYER)
    run = Recording()
    for _ in range(2):
        run.launch("gemm", "attend", "reduce", annotation="step[DECODE bs=8]")
    trace = run.write(tmp_path / "run.json")
    assert run_command(["phases", str(trace), "--capture", str(capture), "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert tables["phases"][0]["steps"] == 2
    assert tables["graph_operations"] == [
        {
            "operation": "vllm::attention",
            "calls": 2,
            "kernels": 4,
            "total_time_us": 40.0,
        },
        {"operation": "aten::mm", "calls": 2, "kernels": 2, "total_time_us": 20.0},
    ]
    assert run_command(["phases", str(trace), "--capture", str(capture)]) == 0
    assert "Operations in graph launches" in capsys.readouterr().out


def test_phases_shows_the_operations_inside_of_graphs_even_without_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Recording()
    run.capture(LAYER)
    run.launch("gemm", "attend", "reduce")
    assert run_command(["phases", str(run.write(tmp_path / "run.json")), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["phase"] for row in document["tables"]["phases"]] == ["other"]
    assert len(document["tables"]["graph_operations"]) == 2
    assert "Neither annotations nor shapes identify steps" in document["notes"][0]


def test_a_command_reports_a_file_without_captures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Recording()
    run.launch("gemm")
    trace = str(run.write(tmp_path / "run.json"))
    assert run_command(["tree", trace, "--capture", trace]) == 1
    assert capsys.readouterr().err.count("contains no CUDA graph capture") == 1


def test_equal_kernels_on_two_streams_belong_to_the_longer_stream_first(
    tmp_path: Path,
) -> None:
    ops = [Op("main", ["a"]), Op("side", ["a"]), Op("main", ["b"]), Op("side", ["b"])]
    capture = _captured(tmp_path / "capture.json", [*ops, Op("main", ["c"])])
    run = Recording()
    run.launch("a", "b", "c", ("a", 3), ("b", 3))
    kernels = TreePerfAnalyzer(run.document(), capture=capture).get_df_kernels()
    assert kernels["cpu_op"].tolist() == ["main", "main", "main", "side", "side"]


# Files without captures, and other errors.


def _document_with_graph_launch() -> dict[str, Any]:
    run = Recording()
    run.launch("gemm")
    return run.document()


def test_a_capture_file_without_captures_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "eager.json"
    path.write_text(json.dumps(_document_with_graph_launch()))
    with pytest.raises(
        TraceFormatError, match="eager\\.json: contains no CUDA graph capture; g"
    ):
        TreePerfAnalyzer(_document_with_graph_launch(), capture=path)


def test_captures_are_found_in_subfolders(tmp_path: Path) -> None:
    for rank in ("rank_0", "rank_1"):
        (tmp_path / rank / "capture_traces").mkdir(parents=True)
        _captured(tmp_path / rank / "capture_traces" / "capture.json", LAYER)
    (tmp_path / "config.json").write_text('{"model": "x"}')  # not a trace: skipped
    run = Recording()
    run.launch("gemm", "attend", "reduce")
    analyzer = TreePerfAnalyzer(run.document(), capture=tmp_path)
    assert _counts(analyzer) == [(1, 3, 0, 0)]


def test_a_folder_with_only_other_json_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model": "x"}')
    run = Recording()
    run.launch("gemm")
    with pytest.raises(
        TraceFormatError, match=r"config\.json: is JSON without traceEvents"
    ):
        _ = TreePerfAnalyzer(run.document(), capture=tmp_path).graph_replays


@pytest.mark.parametrize("tokens", [8, 16])
def test_execution_details_may_list_several_sizes_for_a_file(
    tmp_path: Path, tokens: int
) -> None:
    capture = Recording()
    for rows in (16, 8):
        capture.capture(
            [Op("aten::mm", ["gemm"], rows)], annotation=f"capture_{rows}_FULL"
        )
    capture.write(tmp_path / "capture.json")
    details = [
        {"file": "capture.json", "batch_size": rows, "mode": "FULL"} for rows in (16, 8)
    ]
    (tmp_path / "execution_details.json").write_text(json.dumps(details))
    run = Recording()
    run.launch("gemm", annotation=f"execute_context_0(0)_generation_{tokens}({tokens})")
    table = TreePerfAnalyzer(run.document(), capture=tmp_path).get_df_graph_captures()
    assert table["batch_size"].tolist() == [tokens]


def test_a_folder_without_traces_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        TraceNotFoundError, match=r"contains no \.json or \.json\.gz file; give"
    ):
        TreePerfAnalyzer(_document_with_graph_launch(), capture=tmp_path)


def test_a_missing_capture_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceNotFoundError, match=r"nowhere\.json: "):
        TreePerfAnalyzer(
            _document_with_graph_launch(), capture=tmp_path / "nowhere.json"
        )


def test_too_large_execution_details_are_an_error_about_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _by_size(tmp_path, 4)
    content = json.dumps([{"file": "4.json", "batch_size": 4, "mode": "FULL"}])
    (tmp_path / "execution_details.json").write_text(content)
    monkeypatch.setattr(capture_files, "_MAX_DETAILS_BYTES", len(content))
    TreePerfAnalyzer(_document_with_graph_launch(), capture=path)

    monkeypatch.setattr(capture_files, "_MAX_DETAILS_BYTES", len(content) - 1)
    with pytest.raises(TraceTooLargeError, match=r"is larger than \d+ bytes"):
        TreePerfAnalyzer(_document_with_graph_launch(), capture=path)


@pytest.mark.parametrize("text", ["{}", "[1]", '[{"file": 3}]', "[[" * 10_000, "\xff"])
def test_malformed_execution_details_are_an_error(tmp_path: Path, text: str) -> None:
    path = _by_size(tmp_path, 4)
    (tmp_path / "execution_details.json").write_text(text)
    with pytest.raises(
        TraceFormatError, match=r"execution_details\.json: is not a list of file"
    ):
        TreePerfAnalyzer(_document_with_graph_launch(), capture=path)


def test_a_capture_of_several_ranks_in_one_file_is_refused(tmp_path: Path) -> None:
    maker = TraceMaker()
    for process in (100, 101):
        maker.call("hipLaunchKernel", 1, correlation=5, process=process)
    maker.kernel("gemm", 5, 5, correlation=5)
    (tmp_path / "capture.json").write_text(json.dumps(maker.document()))
    with pytest.raises(MergedRanksError, match=r"capture\.json"):
        TreePerfAnalyzer(
            _document_with_graph_launch(), capture=tmp_path / "capture.json"
        )


def test_a_trace_without_graph_launches_needs_no_capture(tmp_path: Path) -> None:
    maker = TraceMaker()
    maker.launched("gemm", 5, 5, correlation=1, at=1)
    analyzer = TreePerfAnalyzer(maker.document(), capture=tmp_path / "not read")
    assert analyzer.graph_replays is None
    with pytest.raises(UsageError, match="capture=FILE_OR_FOLDER"):
        analyzer.get_df_graph_captures()
    assert analyzer.get_df_graph_operations().empty


# A recorded decode step of vLLM on an MI300, and the capture of its graph.


@pytest.mark.real_data
@pytest.mark.parametrize("capture", ["capture_traces", "capture_traces/*.gz"])
def test_a_recorded_step_has_the_operations_of_its_capture(capture: str) -> None:
    (source,) = SHARED.glob(capture)
    analyzer = TreePerfAnalyzer(SHARED / "graph_execution.json.gz", capture=source)
    assert _counts(analyzer) == [(1, 421, 0, 0)]
    expected = pd.read_csv(SHARED / "reference_graph_operations.csv")
    table = analyzer.get_df_graph_operations()
    assert table["operation"].tolist() == expected["operation"].tolist()
    assert table["calls"].tolist() == expected["calls"].tolist()
    assert table["kernels"].tolist() == expected["kernels"].tolist()
    total_ns = (table["total_time_us"] * 1000).round().astype(int)
    assert total_ns.tolist() == expected["total_ns"].tolist()
    summary = analyzer.get_df_kernel_launchers_summary().set_index("name")
    reference = pd.read_csv(SHARED / "perf_csvs" / "ops_summary.csv")
    inside = reference[reference["name"].isin(expected["operation"])]
    counts = inside.groupby("name")["Count"].sum()
    assert summary["Count"][counts.index].to_dict() == counts.to_dict()
    modules = analyzer.get_df_nn_modules().set_index("path")
    assert modules.loc["GptOssForCausalLM/GraphModule", "kernels"] == 421
