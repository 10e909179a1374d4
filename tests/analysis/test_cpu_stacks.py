"""What the CPU did while the GPU waited for it sums to the idle time that `gaps` gives to it."""

from __future__ import annotations

import json
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
    """What `gaps` gives to the CPU, over all devices."""
    work = TreePerfAnalyzer(document).gpu_events
    by_cause = classify_gaps(work, "device").idle_by_cause_ms().values()
    return round(sum(causes["host"] for causes in by_cause) * 1e6)


def stacks_of(document: Document) -> IdleStacks:
    return idle_stacks(TreePerfAnalyzer(document).gpu_events)


def paused() -> Document:
    """Busy, then a pause of 5 ms in Python, then busy."""
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


def test_frames_of_a_pause_lie_below_each_other() -> None:
    stacks = stacks_of(paused())
    place = stacks.labels.index("data.py(7): decode")
    assert stacks.labels[stacks.parent[place]] == "train.py(3): step"
    assert stacks.self_ns[place] == pytest.approx(5e6, rel=0.01)
    line = f"train.py(3): step;data.py(7): decode {stacks.self_ns[place]}"
    assert line in list(stacks.folded())


def test_the_sum_is_the_idle_time_of_the_cpu() -> None:
    for document in (paused(), short_demo()):
        stacks = stacks_of(document)
        assert stacks.total_ns == pytest.approx(idle_of_cpu_ns(document), abs=1)
        roots = stacks.idle_ns[stacks.parent < 0]
        assert int(roots.sum()) == stacks.total_ns


@settings(max_examples=10, deadline=None)
@given(job_shapes(max_devices=3).filter(lambda shape: shape.launches > 0))
def test_the_sum_is_the_idle_time_of_the_cpu_in_random_traces(shape: JobShape) -> None:
    document = trace_of(shape)
    assert stacks_of(document).total_ns == pytest.approx(
        idle_of_cpu_ns(document), abs=1
    )


def test_a_gpu_that_never_waits_has_no_stacks() -> None:
    program = Program()
    for _ in range(30):
        program.launch(500)
    stacks = stacks_of(program.maker.document())
    assert stacks.total_ns == 0
    assert list(stacks.folded()) == []


def test_the_command_prints_and_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(paused()))
    assert run(["tree", str(path), "--cpu"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Idle time that waits for the CPU: ")
    assert "data.py(7): decode" in printed
    assert run(["tree", str(path), "--cpu", "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)["tables"]["idle_call_tree"]
    assert "data.py(7): decode" in [row["label"] for row in tree]
    assert run(["tree", str(path), "--cpu", "--op", "mm"]) == 2


def test_the_page_draws_it_beside_the_gpus_tree() -> None:
    frame = idle_call_tree(TreePerfAnalyzer(paused()).gpu_events)
    (figure,) = page_figures({"idle_call_tree": frame}, IDLE_CALL_TREE.charts)
    assert figure.title == "What the CPU did while the GPU waited for it"
    assert "in which the GPU waits for the CPU" in figure.summary
    labels = figure.spec["data"][0]["labels"]
    assert labels[0] == "GPU waits for the CPU"
    assert "data.py(7): decode" in labels
