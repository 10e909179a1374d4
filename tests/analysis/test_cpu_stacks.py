"""The tree of CPU activity while the GPU waited for the CPU: its stacks, sums and output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.support.idle_programs import Program
from tests.support.make_trace import Document, short_demo
from tests.support.random_traces import JobShape, job_shapes, trace_of
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.idle_time.classification import classify_gaps
from tracelens_ext.analysis.idle_time.cpu_stacks import (
    IDLE_CALL_TREE,
    IdleStacks,
    idle_call_tree,
    idle_stacks,
)
from tracelens_ext.cli import run
from tracelens_ext.report.html import page_figures


def idle_of_cpu_ns(document: Document) -> int:
    """Return the idle time whose cause is the CPU, over all devices."""
    gpu_events = TreePerfAnalyzer(document).gpu_events
    by_device = classify_gaps(gpu_events, "device").idle_by_cause_ms()
    idle_ms = sum(by_cause["host"] for by_cause in by_device.values())
    return round(idle_ms * 1e6)


def stacks_of(document: Document) -> IdleStacks:
    return idle_stacks(TreePerfAnalyzer(document).gpu_events)


def paused() -> Document:
    """Make a trace in which the GPU is busy, but for a pause of 5 ms in Python."""
    program = Program()
    for _ in range(20):
        program.launch(200)
    program.cpu = program.gpu
    begin = program.cpu
    program.pause(5_000, frame="data.py(7): decode")
    program.maker.frame("train.py(3): step", begin - 100, 6_000)
    for _ in range(20):
        program.launch(200)
    return program.maker.document()


def test_the_frames_of_a_pause_are_a_stack() -> None:
    stacks = stacks_of(paused())
    node = stacks.labels.index("data.py(7): decode")
    assert stacks.labels[stacks.parent[node]] == "train.py(3): step"
    assert stacks.self_ns[node] == pytest.approx(5e6, rel=0.01)
    line = f"train.py(3): step;data.py(7): decode {stacks.self_ns[node]}"
    assert line in list(stacks.folded())


@pytest.mark.parametrize("make_document", [paused, short_demo])
def test_the_tree_adds_up_to_the_idle_time_of_the_cpu(
    make_document: Callable[[], Document],
) -> None:
    document = make_document()
    stacks = stacks_of(document)
    assert stacks.total_ns == pytest.approx(idle_of_cpu_ns(document), abs=1)
    is_root = stacks.parent < 0
    assert int(stacks.idle_ns[is_root].sum()) == stacks.total_ns


@settings(max_examples=10, deadline=None)
@given(job_shapes(max_devices=3).filter(lambda shape: shape.launches > 0))
def test_the_trees_of_random_traces_add_up_to_the_idle_time_of_the_cpu(
    shape: JobShape,
) -> None:
    document = trace_of(shape)
    idle_ns = idle_of_cpu_ns(document)
    assert stacks_of(document).total_ns == pytest.approx(idle_ns, abs=1)


def test_a_gpu_that_never_waits_has_no_stacks() -> None:
    program = Program()
    for _ in range(30):
        program.launch(500)
    stacks = stacks_of(program.maker.document())
    assert stacks.total_ns == 0
    assert list(stacks.folded()) == []


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(paused()))
    return str(path)


def test_the_command_tree_prints_the_tree_of_the_cpu(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tree", trace, "--cpu"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("Idle time that waits for the CPU: ")
    assert "data.py(7): decode" in output


def test_the_command_tree_writes_the_tree_of_the_cpu_as_json(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tree", trace, "--cpu", "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)["tables"]["idle_call_tree"]
    assert "data.py(7): decode" in [row["label"] for row in tree]


def test_the_tree_of_the_cpu_cannot_be_restricted_to_an_operation(trace: str) -> None:
    assert run(["tree", trace, "--cpu", "--op", "mm"]) == 2


def test_the_page_draws_the_tree_with_its_total_at_the_root() -> None:
    frame = idle_call_tree(TreePerfAnalyzer(paused()).gpu_events)
    (figure,) = page_figures({"idle_call_tree": frame}, IDLE_CALL_TREE.charts)
    assert figure.title == "What the CPU did while the GPU waited for it"
    assert "in which the GPU waits for the CPU" in figure.summary
    labels = figure.spec["data"][0]["labels"]
    assert labels[0] == "GPU waits for the CPU"
    assert "data.py(7): decode" in labels
