"""Recording from Python and in notebooks, with the stand-in for PyTorch and with the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.record_helpers import (
    STAND_IN,
    TORCH_PYTHON,
    RecordingFolder,
    written_program,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

ITERATIONS = ["ProfilerStep#12", "ProfilerStep#13", "ProfilerStep#14"]
TRACE = "rank0.pt.trace.json.gz"

#: Defines `work`, with the stand-in.
STAND_IN_MODEL = """
import torch
import tracelens_ext

model = torch.nn.Module()
optimizer = torch.optim.SGD()

def work():
    model()
    optimizer.step()
"""
#: Defines `work`, with the real PyTorch.
MODEL = """
import torch
import tracelens_ext

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())

def work():
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
KINDS = [
    pytest.param((STAND_IN_MODEL, sys.executable), id="stand-in"),
    pytest.param((MODEL, TORCH_PYTHON), id="PyTorch", marks=pytest.mark.torch),
]
kinds = pytest.mark.parametrize("kind", KINDS)


def run(folder: Path, kind: tuple[str, str], program: str) -> str:
    """Run a program in a process of its own, and return what it printed."""
    model, python = kind
    variables = dict(os.environ)
    if model is STAND_IN_MODEL:
        variables["PYTHONPATH"] = str(STAND_IN)
    script = written_program(folder, model + program)
    done = subprocess.run(
        [python, str(script)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=variables,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def recorded(folder: Path) -> RecordingFolder:
    """Return the folder of the recording that `run` made."""
    return RecordingFolder(folder / "out")


@kinds
def test_a_loop_is_recorded_by_its_steps(tmp_path: Path, kind: tuple[str, str]) -> None:
    output = run(
        tmp_path,
        kind,
        """
with tracelens_ext.record("out") as recording:
    for _ in range(20):
        work()
        recording.step()
print(recording.trace_path)
""",
    )
    assert recorded(tmp_path).marks() == ITERATIONS
    assert "report.xlsx" in recorded(tmp_path).files
    assert f"Wrote out/{TRACE}" in output
    assert "Wrote out/report.xlsx" in output
    assert output.endswith(f"out/{TRACE}\n")


@kinds
def test_a_block_without_steps_is_recorded_whole(
    tmp_path: Path, kind: tuple[str, str]
) -> None:
    program = """
with tracelens_ext.record("out", skip=0, warmup=0):
    work()
"""
    run(tmp_path, kind, program)
    assert recorded(tmp_path).trace().of_category("cpu_op")
    assert recorded(tmp_path).marks() == []


@kinds
def test_a_loop_that_ends_early_is_recorded_as_far_as_it_went(
    tmp_path: Path, kind: tuple[str, str]
) -> None:
    program = """
with tracelens_ext.record("out", quiet=True) as recording:
    for _ in range(14):
        work()
        recording.step()
"""
    assert run(tmp_path, kind, program) == ""
    assert recorded(tmp_path).marks() == ITERATIONS[:2]


@kinds
def test_too_few_steps_are_counted_in_the_message(
    tmp_path: Path, kind: tuple[str, str]
) -> None:
    program = """
with tracelens_ext.record("out") as recording:
    work()
    recording.step()
"""
    output = run(tmp_path, kind, program)
    assert "nothing was recorded: the block ended after 1 call of step()" in output
    assert recorded(tmp_path).files == []


@kinds
def test_an_error_in_the_block_is_raised_and_the_recording_is_kept(
    tmp_path: Path, kind: tuple[str, str]
) -> None:
    program = """
try:
    with tracelens_ext.record("out", skip=0, warmup=0, quiet=True):
        work()
        raise ValueError("deliberate")
except ValueError as error:
    print(error)
"""
    assert run(tmp_path, kind, program) == "deliberate\n"
    assert TRACE in recorded(tmp_path).files


@kinds
def test_another_active_profiler_is_an_error(
    tmp_path: Path, kind: tuple[str, str]
) -> None:
    program = """
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
    try:
        with tracelens_ext.record("out", skip=0, warmup=0):
            work()
    except tracelens_ext.TracelensError as error:
        print(error)
"""
    assert "another profiler is at work" in run(tmp_path, kind, program)


@kinds
def test_the_handler_writes_traces_and_reports(
    tmp_path: Path, kind: tuple[str, str]
) -> None:
    program = """
handler = tracelens_ext.trace_handler("out")
for _ in range(2):
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with profiler:
        work()
    handler(profiler)
"""
    output = run(tmp_path, kind, program)
    files = recorded(tmp_path).files
    assert {TRACE, "report.xlsx"} <= set(files)
    assert {"rank0-2.pt.trace.json.gz", "report-rank0-2.xlsx"} <= set(files)
    assert "Wrote out/report.xlsx" in output
    assert "please report this" not in output


@kinds
def test_a_trace_that_cannot_be_written_is_not_called_a_failed_report(
    tmp_path: Path, kind: tuple[str, str]
) -> None:
    program = """
class FailingProfiler:
    def __init__(self, error):
        self.error = error

    def export_chrome_trace(self, path):
        raise self.error

handler = tracelens_ext.trace_handler("out")
handler(FailingProfiler(OSError(28, "No space left on device")))
handler(FailingProfiler(RuntimeError("no trace")))
"""
    full, failed = run(tmp_path, kind, program).splitlines()
    assert "out: the trace cannot be written (No space left on device)" in full
    assert "PyTorch could not write the trace (RuntimeError: no trace)" in failed


@kinds
def test_a_folder_that_cannot_be_written_is_an_error_before_the_loop(
    tmp_path: Path, kind: tuple[str, str]
) -> None:
    program = """
from pathlib import Path

Path("out").touch()
try:
    with tracelens_ext.record("out"):
        print("in the block")
except tracelens_ext.TracelensError as error:
    print(error)
"""
    assert "out: cannot be written (" in run(tmp_path, kind, program)


@pytest.mark.torch
def test_the_handler_is_called_by_the_profiler(tmp_path: Path) -> None:
    program = """
from torch.profiler import ProfilerActivity, profile, schedule

with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
    record_shapes=True,
    with_stack=True,
    on_trace_ready=tracelens_ext.trace_handler("out"),
) as profiler:
    for _ in range(8):
        work()
        profiler.step()
"""
    output = run(tmp_path, (MODEL, TORCH_PYTHON), program)
    assert recorded(tmp_path).traces == [TRACE]
    assert len(recorded(tmp_path).marks()) == 3
    assert "Wrote out/report.xlsx" in output


#: A stand-in for IPython's shell, and for the modules of IPython that the magic imports.
SHELL = """
import sys
import types

shown = []
display = types.ModuleType("IPython.display")
display.display = shown.append
errors = types.ModuleType("IPython.core.error")
errors.UsageError = type("UsageError", (Exception,), {})
sys.modules["IPython"] = types.ModuleType("IPython")
sys.modules["IPython.core"] = types.ModuleType("IPython.core")
sys.modules["IPython.core.error"] = errors
sys.modules["IPython.display"] = display

class Shell:
    def register_magic_function(self, function, kind, name):
        self.magic = function
        print(kind, name)

    def run_cell(self, cell):
        exec(cell, globals())

shell = Shell()
tracelens_ext.load_ipython_extension(shell)
"""


@kinds
def test_a_cell_of_a_notebook_is_recorded_and_its_page_shown(
    tmp_path: Path, kind: tuple[str, str]
) -> None:
    program = (
        SHELL
        + """
shell.magic("-o out --no-stacks", "work()")
print(type(shown[0]).__name__, len(shown), "<" in shown[0]._repr_html_())
"""
    )
    output = run(tmp_path, kind, program)
    assert output == "cell tracelens\nReport 1 True\n"
    assert recorded(tmp_path).trace().of_category("cpu_op")


@kinds
def test_a_wrong_option_of_the_magic_is_a_usage_error(
    tmp_path: Path, kind: tuple[str, str]
) -> None:
    program = (
        SHELL
        + """
try:
    shell.magic("--nope", "work()")
except errors.UsageError as error:
    print(error)
"""
    )
    assert "%%tracelens: unrecognized arguments: --nope" in run(tmp_path, kind, program)
