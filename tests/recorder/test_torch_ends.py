"""Programs that end early, crash or are killed while they are recorded."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.support import torch_programs as programs
from tests.support.record_helpers import run_with_hook

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.torch]

TRACE = "rank0.pt.trace.json.gz"
ITERATIONS = ["ProfilerStep#12", "ProfilerStep#13", "ProfilerStep#14"]
#: In the third recorded iteration, after its model was called.
WITHIN_THIRD = (
    programs.MODEL
    + """
def end_process(number):
    if number == 14:
        torch.randn(3, 3)
        ACTION

model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(30):
    loss = loss_of(model)
    end_process(number)
    loss.backward()
    optimizer.step()
"""
)
#: After the recording.
AFTER = (
    programs.MODEL
    + """
def end_process(number):
    if number == 17:
        ACTION

train(30, end_process)
"""
)
SEGMENTATION_FAULT = "import ctypes; ctypes.string_at(0)"
ENDS = {
    "exception": ("raise ValueError('deliberate')", 1),
    "sys.exit": ("sys.exit(5)", 5),
    "os._exit": ("os._exit(3)", 3),
    "SIGTERM": ("os.kill(os.getpid(), 15)", -signal.SIGTERM),
    "SIGKILL": ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
    "segmentation fault": (SEGMENTATION_FAULT, -signal.SIGSEGV),
}
ORDERLY = ("exception", "sys.exit")
DISORDERLY = tuple(name for name in ENDS if name not in ORDERLY)


@pytest.mark.parametrize("end", list(ENDS))
def test_what_was_recorded_before_the_end_is_written(tmp_path: Path, end: str) -> None:
    action, exit_code = ENDS[end]
    recorded = run_with_hook(tmp_path, AFTER.replace("ACTION", action))
    assert recorded.exit_code == exit_code
    assert recorded.files == [TRACE]
    assert recorded.marks() == ITERATIONS
    assert recorded.messages == ""


@pytest.mark.parametrize("end", ORDERLY)
def test_a_recording_that_the_end_cuts_off_has_whole_iterations(
    tmp_path: Path, end: str
) -> None:
    action, exit_code = ENDS[end]
    recorded = run_with_hook(tmp_path, WITHIN_THIRD.replace("ACTION", action))
    assert recorded.exit_code == exit_code
    assert recorded.files == [TRACE]
    assert recorded.marks() == ITERATIONS[:2]
    assert "2 of 3 iterations" in recorded.messages


@pytest.mark.parametrize("end", DISORDERLY)
def test_a_recording_that_is_killed_is_lost_and_that_is_said(
    tmp_path: Path, end: str
) -> None:
    action, exit_code = ENDS[end]
    recorded = run_with_hook(tmp_path, WITHIN_THIRD.replace("ACTION", action))
    assert recorded.exit_code == exit_code
    assert recorded.files == []
    assert "SIGKILL" in recorded.messages


@pytest.mark.parametrize(
    ("count", "marks"), [(15, ITERATIONS), (14, ITERATIONS[:2]), (13, ITERATIONS[:1])]
)
@pytest.mark.parametrize("program", [programs.TRAINING, programs.INFERENCE])
def test_too_few_iterations_are_reported_as_far_as_they_went(
    tmp_path: Path, program: str, count: int, marks: list[str]
) -> None:
    recorded = run_with_hook(tmp_path, program, str(count))
    assert recorded.exit_code == 0
    assert recorded.marks() == marks
    assert ("of 3 iterations" in recorded.messages) == (len(marks) < 3)


def test_iterations_before_the_recording_are_counted_in_the_message(
    tmp_path: Path,
) -> None:
    recorded = run_with_hook(tmp_path, programs.TRAINING, "5")
    assert recorded.files == []
    assert "5 iterations" in recorded.messages
    assert "--skip" in recorded.messages


NO_STEPS = {
    "operations": "for _ in range(50): torch.randn(8, 8) @ torch.randn(8, 8)\n",
    "compiled function": """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@torch.compile(backend="eager")
def run():
    loss = loss_of(model)
    loss.backward()
    optimizer.step()

for _ in range(30):
    run()
""",
}


def test_a_program_without_steps_is_offered_to_be_recorded_by_time(
    tmp_path: Path,
) -> None:
    recorded = run_with_hook(tmp_path, programs.MODEL + NO_STEPS["operations"])
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.files == []
    assert "--after 30s --for 5s" in recorded.messages


def test_a_compiled_function_around_model_and_optimizer_is_recorded_or_offered_time(
    tmp_path: Path,
) -> None:
    recorded = run_with_hook(tmp_path, programs.MODEL + NO_STEPS["compiled function"])
    assert recorded.exit_code == 0, recorded.errors
    if recorded.files:
        assert recorded.marks() == ITERATIONS
    else:
        assert "--after 30s --for 5s" in recorded.messages
