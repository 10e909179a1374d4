"""Programs of all kinds, recorded with a stand-in for PyTorch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import nsys_export_maker, rocprof_maker
from tests.support.record_helpers import (
    INFERENCE,
    STAND_IN,
    TRAINING,
    Hooked,
    Recorded,
    record,
    run_with_hook,
    written_program,
)
from tracelens_ext.recorder.record_options import RecordOptions

pytestmark = pytest.mark.process

ITERATIONS = ["ProfilerStep#12", "ProfilerStep#13", "ProfilerStep#14"]
TRACE = "rank0.pt.trace.json.gz"


def test_training_is_recorded_and_reported_on(tmp_path: Path) -> None:
    recorded = record(tmp_path)
    assert recorded.exit_code == 0
    assert recorded.output == "done\n"
    assert recorded.marks() == ITERATIONS
    assert recorded.traces == [TRACE]
    assert "report.xlsx" in recorded.files
    assert "Wrote" in recorded.messages
    assert "kineto" not in recorded.messages
    assert "warns" not in recorded.messages


def test_the_report_says_what_the_recording_cost(tmp_path: Path) -> None:
    recorded = record(tmp_path)
    sentences = ("Recording made", "recorded iterations took", "iterations were faster")
    assert any(sentence in recorded.messages for sentence in sentences)


def test_no_temporary_files_are_left(tmp_path: Path) -> None:
    recorded = record(tmp_path)
    assert set(recorded.files) <= {TRACE, "report.xlsx", "report.html"}


def test_inference_is_recorded_by_calls_of_the_outermost_module(tmp_path: Path) -> None:
    recorded = run_hooked(tmp_path, INFERENCE)
    assert recorded.marks() == ITERATIONS


def run_hooked(
    folder: Path, program: str, options: RecordOptions | None = None
) -> Hooked:
    """Run a program of 20 iterations with the hook and the stand-in for PyTorch."""
    return run_with_hook(
        folder,
        program,
        "20",
        python=sys.executable,
        options=options,
        environment={"PYTHONPATH": str(STAND_IN)},
    )


def test_the_folder_has_the_time_in_its_name_by_default(tmp_path: Path) -> None:
    script = written_program(tmp_path, TRAINING)
    command = [sys.executable, "-m", "tracelens_ext", "record", "--"]
    subprocess.run(
        [*command, sys.executable, str(script), "20"],
        check=True,
        capture_output=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(STAND_IN)},
    )
    folders = [path.name for path in tmp_path.iterdir() if path.is_dir()]
    assert len(folders) == 1
    assert folders[0].startswith("tracelens-2")


def test_an_earlier_recording_is_only_replaced_with_force(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    earlier = output / TRACE
    earlier.write_text("earlier")
    refused = record(tmp_path)
    assert refused.exit_code == 2
    assert refused.output == ""
    assert earlier.read_text() == "earlier"
    replaced = record(tmp_path, "--force")
    assert replaced.exit_code == 0
    assert replaced.marks() == ITERATIONS


# How programs end


@pytest.mark.parametrize(
    ("program", "exit_code"),
    [
        ("import sys; sys.exit(7)", 7),
        ("import os; os._exit(9)", 9),
        ("import os; os.kill(os.getpid(), 15)", 128 + 15),
        ("import os; os.kill(os.getpid(), 9)", 128 + 9),
        ("raise ValueError('deliberate')", 1),
    ],
)
def test_exit_codes_are_those_of_the_program(
    tmp_path: Path, program: str, exit_code: int
) -> None:
    recorded = record(tmp_path, program=program)
    assert recorded.exit_code == exit_code
    assert "did not import PyTorch" in recorded.messages
    assert recorded.files == []


def test_a_program_that_does_not_exist_ends_with_127(tmp_path: Path) -> None:
    recorded = record(tmp_path, command=["no-such-program-anywhere"])
    assert recorded.exit_code == 127
    assert "no-such-program-anywhere: command not found" in recorded.messages
    assert recorded.files == []


def test_a_file_that_cannot_be_run_ends_with_126(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text("text")
    recorded = record(tmp_path, command=[str(file)])
    assert recorded.exit_code == 126


def test_the_exit_code_does_not_depend_on_the_report(tmp_path: Path) -> None:
    program = TRAINING + "sys.exit(5)\n"
    recorded = record(tmp_path, program=program)
    assert recorded.exit_code == 5
    assert "report.xlsx" in recorded.files


def test_a_profiler_that_fails_does_not_stop_the_program(tmp_path: Path) -> None:
    recorded = record(tmp_path, STAND_IN_PROFILER_FAILS="1")
    assert recorded.exit_code == 0
    assert recorded.output == "done\n"
    assert "no profiler today" in recorded.messages
    assert recorded.files == []


SLEEPING = """
import sys, time
import torch

model = torch.nn.Module()
optimizer = torch.optim.SGD()
try:
    for number in range(2000):
        model()
        optimizer.step()
        time.sleep(0.01)
        if number == 20:
            open("started", "w").close()
except KeyboardInterrupt:
    print("cleaned up", flush=True)
    sys.exit(3)
"""


@pytest.mark.parametrize("is_typed", [True, False])
def test_ctrl_c_reaches_the_program_once_and_the_report_is_written(
    tmp_path: Path, is_typed: bool
) -> None:
    script = written_program(tmp_path, SLEEPING)
    run = [sys.executable, "-m", "tracelens_ext", "record", "-o", "out", "--"]
    process = subprocess.Popen(
        [*run, sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(STAND_IN)},
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    if is_typed:
        os.killpg(process.pid, signal.SIGINT)
    else:
        os.kill(process.pid, signal.SIGINT)
    output, messages = process.communicate(timeout=120)
    assert output == "cleaned up\n"
    assert process.returncode == 3
    assert "Wrote out" in messages
    assert (tmp_path / "out" / "report.xlsx").exists()


# What the program can notice of the recording

#: Prints everything that a recording could change.
NOTICING = """
import sys
print(sys.path)
print(sorted(sys.modules))
print(sys.argv, sys.flags.no_site, sys.meta_path)
print("on the error stream", file=sys.stderr)
sys.stdout.flush()
print(sys.stdin.read())
"""


def noticed(
    folder: Path, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `NOTICING` with these environment variables."""
    script = written_program(folder, NOTICING)
    return subprocess.run(
        [sys.executable, str(script), "argument"],
        input="typed",
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env=variables,
    )


def test_a_program_without_pytorch_notices_nothing(tmp_path: Path) -> None:
    from tracelens_ext.recorder.hook_folder import HookFolder

    variables = os.environ | {"PYTHONPATH": str(tmp_path)}
    without_hook = noticed(tmp_path, variables)
    hook = HookFolder.create(tmp_path / "out", RecordOptions())
    with_hook = noticed(tmp_path, hook.environment(variables))
    paths, modules, state, typed = with_hook.stdout.splitlines()
    expected_paths, expected_modules, _, expected_typed = (
        without_hook.stdout.splitlines()
    )
    assert paths == expected_paths
    assert typed == expected_typed
    assert "_TorchFinder" in state
    assert set(eval(modules)) == set(eval(expected_modules)) - {"sitecustomize"}  # noqa: S307
    assert with_hook.stderr == without_hook.stderr


def test_the_program_has_standard_input_and_output_to_itself(tmp_path: Path) -> None:
    script = written_program(tmp_path, "import sys\nprint(sys.stdin.read())\n")
    run = [sys.executable, "-m", "tracelens_ext", "record", "-o", "out", "--"]
    done = subprocess.run(
        [*run, sys.executable, str(script)],
        input="typed",
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.stdout == "typed\n"


def test_an_existing_sitecustomize_runs(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("print('customized', __file__)\n")
    recorded = run_with_hook(
        tmp_path,
        TRAINING,
        "20",
        python=sys.executable,
        environment={"PYTHONPATH": os.pathsep.join([str(site), str(STAND_IN)])},
    )
    assert recorded.output == f"customized {site / 'sitecustomize.py'}\ndone\n"
    assert recorded.marks() == ITERATIONS


def test_an_error_in_an_existing_sitecustomize_is_reported_as_usual(
    tmp_path: Path,
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("raise ValueError('customized')\n")
    recorded = run_with_hook(
        tmp_path,
        TRAINING,
        "20",
        python=sys.executable,
        environment={"PYTHONPATH": os.pathsep.join([str(site), str(STAND_IN)])},
    )
    assert recorded.output == "done\n"
    assert "ValueError: customized" in recorded.errors
    assert recorded.marks() == ITERATIONS


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_an_isolated_python_is_named_in_the_message(
    tmp_path: Path, option: str
) -> None:
    script = str(tmp_path / "program.py")
    command = [sys.executable, option, script]
    recorded = record(tmp_path, program="print('done')", command=command)
    assert recorded.exit_code == 0
    assert f"{option} ignores" in recorded.messages
    assert recorded.files == []


def test_a_program_that_is_not_python_is_offered_the_installed_profiler(
    tmp_path: Path,
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    profiler = programs / "rocprofv3"
    profiler.write_text("#!/bin/sh\n")
    profiler.chmod(0o755)
    recorded = record(tmp_path, command=["/bin/echo", "hello"], PATH=str(programs))
    assert recorded.exit_code == 0
    assert recorded.output == "hello\n"
    assert "--with rocprofv3" in recorded.messages


# Ranks and jobs


def two_ranks(*, world_size: bool) -> str:
    """Return a shell script that runs two ranks at the same time."""
    size = "STAND_IN_WORLD_SIZE=2" if world_size else ""
    return f"""#!/bin/sh
RANK=0 {size} "$@" & RANK=1 {size} "$@"
wait
"""


def test_ranks_of_a_job_are_reported_on_together(tmp_path: Path) -> None:
    launcher = tmp_path / "launch.sh"
    launcher.write_text(two_ranks(world_size=True))
    launcher.chmod(0o755)
    script = str(tmp_path / "program.py")
    recorded = record(tmp_path, command=[str(launcher), sys.executable, script, "20"])
    assert recorded.traces == [TRACE, "rank1.pt.trace.json.gz"]
    assert recorded.marks(0) == recorded.marks(1) == ITERATIONS
    assert "report.xlsx" in recorded.files
    assert "rank1.pt.trace.json.gz: " in recorded.messages  # what the recording cost


def test_programs_one_after_another_have_a_report_each(tmp_path: Path) -> None:
    launcher = tmp_path / "launch.sh"
    launcher.write_text('#!/bin/sh\n"$@"\n"$@"\n')
    launcher.chmod(0o755)
    script = str(tmp_path / "program.py")
    recorded = record(tmp_path, command=[str(launcher), sys.executable, script, "20"])
    assert recorded.traces == [TRACE, "rank1.pt.trace.json.gz"]
    assert "report.xlsx" not in recorded.files
    assert len([name for name in recorded.files if name.endswith(".xlsx")]) == 2


@pytest.mark.parametrize("variable", ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"])
def test_the_rank_is_that_of_the_launcher(tmp_path: Path, variable: str) -> None:
    recorded = run_with_hook(
        tmp_path,
        TRAINING,
        "20",
        python=sys.executable,
        environment={"PYTHONPATH": str(STAND_IN), variable: "5"},
    )
    assert recorded.files == ["rank5.pt.trace.json.gz"]


# Other profilers

PROFILER = """#!{python}
import shutil
import subprocess
import sys

words = sys.argv[1:]
with open("arguments", "w") as file:
    file.write("\\n".join(words))
folder = words[words.index("-d") + 1] + "/" if "-d" in words else ""
place = folder + words[words.index("-o") + 1]
shutil.copy("{recording}", place + "{suffix}")
command = words[words.index("--") + 1 :] if "--" in words else words[-2:]
sys.exit(subprocess.run(command).returncode)
"""


def stand_in_profiler(folder: Path, name: str, recording: Path, suffix: str) -> str:
    """Write a program that copies a recording; return a PATH with it."""
    programs = folder / "bin"
    programs.mkdir()
    program = programs / name
    text = PROFILER.format(python=sys.executable, recording=recording, suffix=suffix)
    program.write_text(text)
    program.chmod(0o755)
    return os.pathsep.join([str(programs), os.environ["PATH"]])


def record_with(folder: Path, name: str, path: str, *options: str) -> Recorded:
    """Record a program that is not Python with a stand-in for a profiler."""
    program = folder / "program.sh"
    program.write_text("#!/bin/sh\necho $1\nexit 4\n")
    program.chmod(0o755)
    command = [str(program), "done"]
    return record(folder, "--with", name, *options, command=command, PATH=path)


def arguments_of_profiler(folder: Path) -> list[str]:
    """Return the arguments with which the stand-in for a profiler was run."""
    return (folder / "arguments").read_text().splitlines()


def test_a_program_is_run_under_nsys(tmp_path: Path) -> None:
    recording = nsys_export_maker.training().write(tmp_path / "recording.sqlite")
    path = stand_in_profiler(tmp_path, "nsys", recording, ".sqlite")
    recorded = record_with(tmp_path, "nsys", path)
    arguments = arguments_of_profiler(tmp_path)
    assert arguments[0] == "profile"
    assert arguments[arguments.index("-t") + 1] == "cuda,nvtx,osrt"
    assert recorded.exit_code == 4
    assert recorded.output == "done\n"
    assert {"profile.sqlite", "report.xlsx"} <= set(recorded.files)


def test_a_program_is_run_under_rocprofv3(tmp_path: Path) -> None:
    recording = rocprof_maker.training().write_json(tmp_path / "recording.json")
    path = stand_in_profiler(tmp_path, "rocprofv3", recording, "_results.json")
    recorded = record_with(tmp_path, "rocprofv3", path)
    traces = {"--kernel-trace", "--hip-trace", "--marker-trace", "--memory-copy-trace"}
    assert traces <= set(arguments_of_profiler(tmp_path))
    assert recorded.exit_code == 4
    assert recorded.output == "done\n"
    assert "report.xlsx" in recorded.files
    assert any(name.endswith("_results.json") for name in recorded.files)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nsys", ["--delay=2", "--duration=1"]),
        ("rocprofv3", ["--collection-period", "2000:500:1"]),
    ],
)
def test_another_profiler_records_a_period_of_time(
    tmp_path: Path, name: str, expected: list[str]
) -> None:
    nothing = tmp_path / "nothing"
    nothing.write_text("")
    path = stand_in_profiler(tmp_path, name, nothing, ".nothing")
    recorded = record_with(tmp_path, name, path, "--after", "2s", "--for", "500ms")
    assert set(expected) <= set(arguments_of_profiler(tmp_path))
    assert recorded.exit_code == 4
    assert f"{name} left no recording" in recorded.messages


def test_another_profiler_must_be_installed(tmp_path: Path) -> None:
    recorded = record(tmp_path, "--with", "nsys", PATH="")
    assert recorded.exit_code == 2
    assert "nsys is not on the PATH" in recorded.messages
    assert recorded.output == ""


def test_another_profiler_refuses_options_about_iterations(tmp_path: Path) -> None:
    recorded = record(tmp_path, "--with", "nsys", "--skip", "5")
    assert recorded.exit_code == 2
    assert "--skip: nsys records the whole program" in recorded.messages
