"""Call stacks of operations, which old profilers wrote, become frames like recorded ones."""

from __future__ import annotations

from typing import Any

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.trace import EventKind, Trace

MODEL = "model.py(12): forward;train.py(42): <module>"
LOADER = "dataloader.py(518): __next__;train.py(42): <module>"


def read(*operations: tuple[str, float, float, str], frame: bool = False) -> Trace:
    """Read operations given by start, length and stack, and a recorded frame if requested."""
    maker = TraceMaker()
    for name, start, length, stack in operations:
        args: dict[str, Any] = {}
        if stack:
            args["Call stack"] = stack
        maker.op(name, start, length, args=args)
    if frame:
        maker.frame("train.py(42): <module>", 0, 1_000)
    maker.launched("gemm", 50, 10, correlation=1, at=5)
    return TreePerfAnalyzer(maker.document()).trace


def frames(trace: Trace) -> list[tuple[str, int, int]]:
    rows = trace.rows_of(EventKind.PYTHON_FUNCTION).tolist()
    return [
        (trace.name_of(row), int(trace.ts[row]), int(trace.dur[row])) for row in rows
    ]


def test_frames_last_from_the_first_to_the_last_operation_that_has_them() -> None:
    trace = read(
        ("aten::mm", 0, 20, MODEL),
        ("aten::add", 30, 20, MODEL),
        ("aten::stack", 500, 40, LOADER),
    )
    assert frames(trace) == [
        ("train.py(42): <module>", 0, 540_000),
        ("model.py(12): forward", 0, 50_000),
        ("dataloader.py(518): __next__", 500_000, 40_000),
    ]


def test_a_frame_that_occurs_again_is_a_new_frame() -> None:
    trace = read(
        ("aten::mm", 0, 20, MODEL),
        ("aten::stack", 30, 10, LOADER),
        ("aten::mm", 60, 20, MODEL),
    )
    names = [name for name, _, _ in frames(trace)]
    assert names.count("model.py(12): forward") == 2
    assert names.count("train.py(42): <module>") == 1


def test_recorded_frames_are_preferred() -> None:
    trace = read(("aten::mm", 0, 20, MODEL), frame=True)
    assert [name for name, _, _ in frames(trace)] == ["train.py(42): <module>"]


def test_empty_stacks_give_no_frames() -> None:
    assert frames(read(("aten::mm", 0, 20, ""), ("aten::mm", 30, 20, ";"))) == []
