"""Several traces reported on in several processes: all is as it is in one, to the byte."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.comparison_helpers import needs_html, training, write
from tracelens_ext.cli import parallel, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.name != "posix", reason="no worker processes on this system"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ranks of a job; two of them are broken."""
    monkeypatch.setattr(parallel, "WORTHWHILE_BYTES", 0)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    for number in range(4):
        # enough events for advice, also in the processes that no fixture reaches
        write(ranks / f"rank{number}.json", training(20, gemm_us=40 + number))
    (ranks / "rank4.json").write_text("nothing")
    whole = (ranks / "rank1.json").read_bytes()
    (ranks / "rank5.json").write_bytes(whole[: len(whole) * 2 // 3])
    return ranks


@pytest.fixture
def was_done_by_worker(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each trace, whether a worker process reported on it."""
    done_by_worker: list[bool] = []
    original_result = parallel._result

    def note_and_return_result(
        trace: Path, task: Any, reading: Any, future: Future[Any] | None
    ) -> object:
        has_answer = False
        if future is not None and future.exception() is None:
            has_answer = future.result() is not None
        done_by_worker.append(has_answer)
        return original_result(trace, task, reading, future)

    monkeypatch.setattr(parallel, "_result", note_and_return_result)
    return done_by_worker


def outcome(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str, dict[str, object]]:
    """Exit code, what is printed, and every file that is written; those are removed."""
    shutil.rmtree("out", ignore_errors=True)
    code = run(["report", "ranks", *arguments])
    out, err = capsys.readouterr()
    written: dict[str, object] = {}
    for path in sorted(Path("out").rglob("*")):
        if path.suffix == ".xlsx":
            # all but the time at which it was written
            with zipfile.ZipFile(path) as package:
                names = [
                    name for name in package.namelist() if name != "docProps/core.xml"
                ]
                written[str(path)] = {name: package.read(name) for name in names}
        elif path.is_file():
            written[str(path)] = path.read_bytes()
    return code, out, err, written


@pytest.mark.parametrize(
    "options",
    [
        [
            "-o",
            "out/x",
            "--csv-dir",
            "out/c",
            "--short-kernel-study",
            "--gaps",
            "--top",
            "3",
            "--rules",
            "rules.toml",
        ],
        pytest.param(
            [
                "-o",
                "out",
                "--format",
                "json",
                "--allow-truncated",
                "--iterations",
                "--annotation",
                "Profiler.*",
                "--html",
                "out",
                "-q",
                "--no-kernel-categories",
                "--micro-idle-thresh-us",
                "2.5",
            ],
            marks=needs_html,
        ),
    ],
    ids=" ".join,
)
def test_the_same_to_the_byte(
    options: list[str],
    capsys: pytest.CaptureFixture[str],
    was_done_by_worker: list[bool],
) -> None:
    Path("rules.toml").write_text(
        '[[rule]]\ncategory = "Mine"\npattern = "gemm"\nexamples = ["my_gemm"]\n'
    )
    alone = outcome([*options, "--jobs", "1"], capsys)
    assert not was_done_by_worker
    together = outcome([*options, "--jobs", "2"], capsys)
    assert was_done_by_worker == [True] * 6
    assert together == alone
    assert alone[0] == 1
    assert "rank4.json: " in alone[2]
    assert len(alone[3]) >= 4
    assert ("Mine" in str(alone[3])) == ("--rules" in options)
    assert not children()


def test_rules_that_are_no_good_are_the_same_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("rules.toml").write_text("[[rule]]\npattern = '('\n")
    options = ["-o", "out", "--rules", "rules.toml"]
    assert outcome([*options, "--jobs", "2"], capsys) == outcome(
        [*options, "--jobs", "1"], capsys
    )
    assert not children()


def test_a_worker_that_is_killed_is_an_error_of_its_trace_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["-o", "out", "--format", "json"]
    _, alone_out, alone_err, alone_files = outcome([*options, "--jobs", "1"], capsys)

    class Killing(ProcessPoolExecutor):
        def submit(self, *given: Any) -> Any:  # type: ignore[override]
            future = super().submit(*given)
            if given[2] == 2:
                next(iter(self._processes.values())).kill()
            return future

    monkeypatch.setattr(parallel, "ProcessPoolExecutor", Killing)
    code, out, err, files = outcome([*options, "--jobs", "2"], capsys)
    assert code == 1
    said = (
        "tracelens-ext: ranks/rank2.json: its worker process died (killed, or out of "
        "memory); try again with more free memory or fewer --jobs"
    )
    assert err.splitlines() == [said, *alone_err.splitlines()]
    assert set(alone_files) - set(files) == {"out/rank2_perf_report.json"}
    assert all(alone_files[name] == files[name] for name in files)
    assert "Wrote out/rank3_perf_report.json" in out
    assert "rank2" in alone_out
    assert "rank2" not in out
    assert not children()


def test_where_no_process_can_be_started_all_is_done_here(
    capsys: pytest.CaptureFixture[str],
    was_done_by_worker: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ["-o", "out", "--format", "json"]
    alone = outcome([*options, "--jobs", "1"], capsys)

    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(ProcessPoolExecutor, "submit", refused)
    assert outcome([*options, "--jobs", "2"], capsys) == alone
    assert was_done_by_worker == [False] * 6


def test_comparing(
    capsys: pytest.CaptureFixture[str], was_done_by_worker: list[bool]
) -> None:
    options = ["-o", "out", "--compare"]
    alone = outcome([*options, "--jobs", "1"], capsys)
    assert outcome([*options, "--jobs", "2"], capsys) == alone
    assert was_done_by_worker == [True] * 6


def test_small_traces_are_done_here(
    capsys: pytest.CaptureFixture[str],
    was_done_by_worker: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parallel, "WORTHWHILE_BYTES", 10**6)
    outcome(["-o", "out", "--jobs", "2"], capsys)
    assert not was_done_by_worker


def test_a_worker_imports_nothing_from_the_working_folder_and_runs_no_script_again(
    tmp_path: Path,
) -> None:
    """A script needs no `if __name__ == "__main__":`, and a folder of downloads is no danger."""
    for name in ("multiprocessing", "pandas", "random"):
        Path(f"{name}.py").write_text("open('imported', 'w').close()")
    script = tmp_path / "scripts" / "script.py"
    script.parent.mkdir()
    script.write_text(
        "from tracelens_ext.cli import parallel, run\n"
        "print('once')\n"
        "parallel.WORTHWHILE_BYTES = 0\n"
        "run(['report', 'ranks', '-o', 'out', '--jobs', '2', '-q'])\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "once\n"
    assert done.stderr.count("\n") == 2  # of the broken ranks
    assert len(list((tmp_path / "out").iterdir())) == 4
    assert not (tmp_path / "imported").exists()


#: Two workers in the middle of writing a file.
TASK = """
import time
from pathlib import Path
from tracelens_ext.report.atomic_files import written_beside
def write(number, reading, progress):
    with written_beside(f"half/{number}"):
        Path(f"started{number}").touch()
        time.sleep(60)
"""
PROGRAM = """
from functools import partial
from pathlib import Path
from tracelens_ext.cli import parallel
from tracelens_ext.cli import Stopping
from tracelens_ext.settings import ReadingOptions
from waiting import write

parallel.WORTHWHILE_BYTES = 0
stopping = Stopping()
stopping.listen()
tasks = [partial(write, number) for number in range(4)]
traces, reading = [Path("ranks/rank0.json")] * 4, ReadingOptions(jobs=2)
try:
    with parallel.each_trace(traces, tasks, reading) as each:
        for result in each:
            result()
except KeyboardInterrupt:
    print(stopping.message)
"""


@pytest.mark.usefixtures("signals_heard")
@pytest.mark.parametrize(
    ("name", "printed"),
    [("SIGINT", "interrupted\n"), ("SIGTERM", "terminated\n"), ("SIGKILL", "")],
)
def test_workers_end_with_their_parent(name: str, printed: str, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(TASK)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as parent:
        assert eventually(lambda: len(list(tmp_path.glob("started*"))) == 2)
        started = children_of(parent.pid)
        assert len(started) >= 2
        parent.send_signal(signal.Signals[name])
        assert parent.communicate(timeout=60)[0] == printed
    assert eventually(lambda: not any(map(is_running, started)))
    assert not list((tmp_path / "half").iterdir())
    assert len(list(tmp_path.glob("started*"))) == 2


@pytest.mark.usefixtures("signals_heard")
def test_an_interrupt_leaves_no_process_and_no_half_written_file(
    tmp_path: Path,
) -> None:
    many = tmp_path / "many"
    many.mkdir()
    for number in range(500):  # more than can be done before the signal comes
        os.link(tmp_path / "ranks" / "rank0.json", many / f"rank{number}.json")
    program = (
        "from tracelens_ext.cli import main, parallel;"
        "parallel.WORTHWHILE_BYTES = 0;"
        "main(['report', 'many', '-o', 'half', '--jobs', '2'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()  # the first is written
        started = children_of(parent.pid)
        assert len(started) >= 2
        parent.send_signal(signal.SIGINT)
        _, err = parent.communicate(timeout=60)
    assert parent.returncode == 130
    assert err == "tracelens-ext: interrupted\n"
    assert eventually(lambda: not any(map(is_running, started)))
    left = [path.name for path in (tmp_path / "half").iterdir()]
    assert 0 < len(left) < 500
    assert all(name.endswith("_perf_report.xlsx") for name in left)
    assert all(zipfile.is_zipfile(tmp_path / "half" / name) for name in left)


def eventually(holds: Callable[[], bool]) -> bool:
    """Return True if a condition comes true within a minute."""
    for _ in range(1200):
        if holds():
            return True
        time.sleep(0.05)
    return False


def children() -> list[int]:
    """The workers of this process."""
    return [
        child
        for child in children_of(os.getpid())
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def children_of(pid: int) -> list[int]:
    """The processes that another has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def is_running(pid: int) -> bool:
    """Return True if a process exists and has not ended."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except OSError:
        return False
