"""Steps on other threads, in forked and in spawned processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import torch_programs as programs
from tests.support.record_helpers import run_with_hook

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.torch]

TRACE = "rank0.pt.trace.json.gz"
ITERATIONS = ["ProfilerStep#12", "ProfilerStep#13", "ProfilerStep#14"]


@pytest.mark.parametrize("kind", ["train", "infer"])
def test_steps_on_a_second_thread_are_recorded(tmp_path: Path, kind: str) -> None:
    program = (
        programs.MODEL
        + f"""
thread = threading.Thread(target={kind}, args=(30,))
thread.start()
thread.join()
"""
    )
    recorded = run_with_hook(tmp_path, program)
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.files == [TRACE]
    assert recorded.marks() == ITERATIONS
    assert recorded.trace().per_iteration("aten::addmm") == [2, 2, 2]
    assert recorded.errors == ""


@pytest.mark.parametrize("kind", ["train", "infer"])
def test_a_thread_that_ends_early_stops_its_recording(
    tmp_path: Path, kind: str
) -> None:
    program = (
        programs.MODEL
        + f"""
thread = threading.Thread(target={kind}, args=(14,))
thread.start()
thread.join()
for _ in range(100):
    torch.randn(32, 32) @ torch.randn(32, 32)
print("done")
"""
    )
    recorded = run_with_hook(tmp_path, program)
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.output == "done\n"
    assert recorded.files == [TRACE]
    assert recorded.marks() == ITERATIONS[:2]


def test_a_daemon_thread_that_records_does_not_crash_the_end(tmp_path: Path) -> None:
    program = (
        programs.MODEL
        + """
reached = threading.Event()

def wait_for_ever(number):
    if number == 13:
        reached.set()
        time.sleep(3600)

threading.Thread(target=train, args=(20, wait_for_ever), daemon=True).start()
reached.wait()
"""
    )
    recorded = run_with_hook(tmp_path, program)
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.files in ([], [TRACE])
    assert recorded.files or recorded.messages


def test_a_pool_of_threads_that_infers_is_recorded(tmp_path: Path) -> None:
    program = (
        programs.MODEL
        + """
from concurrent.futures import ThreadPoolExecutor

model = make_model().eval()
end = time.monotonic() + 60

def requests(_number):
    with torch.no_grad():
        while time.monotonic() < end and not os.path.exists(sys.argv[1]):
            model(torch.randn(4, 64))

with ThreadPoolExecutor(2) as pool:
    print(len(list(pool.map(requests, range(2)))))
"""
    )
    trace_path = str(tmp_path / "out" / TRACE)
    recorded = run_with_hook(tmp_path, program, trace_path)
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.output == "2\n"
    assert recorded.marks() == ITERATIONS


FORKED = (
    programs.MODEL
    + """
if __name__ == "__main__":
    train(int(sys.argv[1]))
    child = os.fork()
    if child == 0:
        train(20)
        sys.exit(0)
    os.waitpid(child, 0)
"""
)


def test_a_forked_child_counts_afresh(tmp_path: Path) -> None:
    recorded = run_with_hook(tmp_path, FORKED, "5")
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.files == [TRACE]
    assert recorded.marks() == ITERATIONS


def test_a_child_forked_during_the_recording_counts_afresh(tmp_path: Path) -> None:
    recorded = run_with_hook(tmp_path, FORKED, "14")
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.traces == [TRACE, "rank1.pt.trace.json.gz"]
    marks = sorted([recorded.marks(0), recorded.marks(1)])
    assert marks == [ITERATIONS[:2], ITERATIONS]


def test_a_child_forked_after_the_recording_ends_with_its_exit_code(
    tmp_path: Path,
) -> None:
    program = (
        programs.MODEL
        + """
train(20)
child = os.fork()
if child == 0:
    print("child", end="")
    sys.exit(7)
_, status = os.waitpid(child, 0)
print("", os.WEXITSTATUS(status))
"""
    )
    recorded = run_with_hook(tmp_path, program)
    assert recorded.output == "child 7\n", recorded.errors
    assert recorded.files == [TRACE]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing_are_recorded(tmp_path: Path, method: str) -> None:
    program = (
        programs.MODEL
        + f"""
import multiprocessing

if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    children = [context.Process(target=train, args=(count,)) for count in (20, 14)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    print([child.exitcode for child in children])
"""
    )
    recorded = run_with_hook(tmp_path, program)
    assert recorded.output == "[0, 0]\n", recorded.errors
    assert recorded.traces == [TRACE, "rank1.pt.trace.json.gz"]
    marks = sorted([recorded.marks(0), recorded.marks(1)])
    assert marks == [ITERATIONS[:2], ITERATIONS]


def test_processes_of_torch_multiprocessing_are_recorded(tmp_path: Path) -> None:
    program = (
        programs.MODEL
        + """
import torch.multiprocessing

def run(rank):
    train(20)

if __name__ == "__main__":
    torch.multiprocessing.spawn(run, nprocs=2)
"""
    )
    recorded = run_with_hook(tmp_path, program)
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.traces == [TRACE, "rank1.pt.trace.json.gz"]
    assert recorded.marks(0) == recorded.marks(1) == ITERATIONS


def test_programs_of_a_script_are_recorded(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text('#!/bin/sh\n"$1" program.py 20\n"$1" program.py 20\n')
    script.chmod(0o755)
    from tests.support.record_helpers import TORCH_PYTHON

    command = ["./run.sh", TORCH_PYTHON]
    recorded = run_with_hook(tmp_path, programs.TRAINING, command=command)
    assert recorded.exit_code == 0, recorded.errors
    assert recorded.traces == [TRACE, "rank1.pt.trace.json.gz"]
    assert recorded.marks(0) == recorded.marks(1) == ITERATIONS
