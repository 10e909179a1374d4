"""Several traces reported on in several processes: all is as it is in one, to the byte."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from comparison_helpers import needs_html, training, write
from test_workers import children

from tracelens_ext.cli import parallel, run
from tracelens_ext.demo import write_demo_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(os.name != "posix", reason="no worker processes on this system")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ranks of a job; two of them are broken."""
    monkeypatch.setattr(parallel, "WORTHWHILE_BYTES", 0)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    for number in range(4):
        write(ranks / f"rank{number}.json", training(3, gemm_us=40 + number))
    (ranks / "rank4.json").write_text("nothing")
    whole = (ranks / "rank1.json").read_bytes()
    (ranks / "rank5.json").write_bytes(whole[: len(whole) * 2 // 3])
    return ranks


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """For each trace, whether another process reported on it."""
    answers: list[bool] = []
    take = parallel._Reports.take

    def noted(self: parallel._Reports, index: int) -> parallel.Outcome | None:
        found = take(self, index)
        answers.append(found is not None)
        return found

    monkeypatch.setattr(parallel._Reports, "take", noted)
    yield answers


def outcome(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, ...]:
    """Exit code, what is printed, and every file that is written; those are removed."""
    shutil.rmtree("out", ignore_errors=True)
    code = run(["report", "ranks", *arguments])
    out, err = capsys.readouterr()
    written: dict[str, object] = {}
    for path in sorted(Path("out").rglob("*")):
        if path.suffix == ".xlsx":
            with zipfile.ZipFile(path) as package:  # all but the time at which it was written
                names = [name for name in package.namelist() if name != "docProps/core.xml"]
                written[str(path)] = {name: package.read(name) for name in names}
        elif path.is_file():
            written[str(path)] = path.read_bytes()
    return code, out, err, written


@pytest.mark.process
@pytest.mark.parametrize(
    "options",
    [
        ["-o", "out/x", "--csv-dir", "out/c", "--short-kernel-study", "--gaps", "--top", "3"],
        [
            "-o",
            "out",
            "--format",
            "json",
            "--salvage",
            "--iterations",
            "--annotation",
            "Profiler.*",
        ],
        pytest.param(
            ["--html", "out", "-q", "--no-kernel-categories", "--micro-idle-thresh-us", "2.5"],
            marks=needs_html,
        ),
    ],
    ids=" ".join,
)
def test_the_same_to_the_byte(
    options: list[str], capsys: pytest.CaptureFixture[str], asked: list[bool]
) -> None:
    alone = outcome([*options, "--jobs", "1"], capsys)
    assert not any(asked)
    asked.clear()
    together = outcome([*options, "--jobs", "2"], capsys)
    assert asked == [True] * 6
    assert together == alone
    assert alone[0] == 1
    assert "rank4.json: " in str(alone[2])
    assert len(alone[3]) >= 4  # type: ignore[arg-type]
    assert not children()


@pytest.mark.process
def test_rules_that_are_no_good_are_the_same_error(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rules.toml").write_text("[[rule]]\npattern = '('\n")
    options = ["-o", "out", "--rules", "rules.toml"]
    assert outcome([*options, "--jobs", "2"], capsys) == outcome([*options, "--jobs", "1"], capsys)
    assert not children()


@pytest.mark.process
def test_own_rules_count(capsys: pytest.CaptureFixture[str], asked: list[bool]) -> None:
    Path("rules.toml").write_text(
        '[[rule]]\ncategory = "Mine"\npattern = "gemm"\nexamples = ["my_gemm"]\n'
    )
    options = ["-o", "out", "--format", "json", "--rules", "rules.toml"]
    alone = outcome([*options, "--jobs", "1"], capsys)
    asked.clear()
    assert outcome([*options, "--jobs", "2"], capsys) == alone
    assert asked == [True] * 6
    assert b"Mine" in str(alone[3]).encode()


@pytest.mark.process
@pytest.mark.parametrize("when", ["at the start", "in the middle", "never starts"])
def test_processes_that_die(
    when: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["-o", "out", "--format", "json"]
    alone = outcome([*options, "--jobs", "1"], capsys)
    report, count = parallel._Process.report, 0

    def and_die(self: parallel._Process, index: int) -> bool:
        nonlocal count
        count += 1
        given = report(self, index)
        if when == "at the start" or count == 4:
            self._process.kill()
        return given

    monkeypatch.setattr(parallel._Process, "report", and_die)
    if when == "never starts":
        monkeypatch.setattr(sys, "executable", "/there/is/none")
    assert outcome([*options, "--jobs", "2"], capsys) == alone
    assert not children()


def test_comparing_and_small_traces_are_done_here(
    capsys: pytest.CaptureFixture[str], asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome(["-o", "out", "--compare", "--jobs", "2"], capsys)
    monkeypatch.setattr(parallel, "WORTHWHILE_BYTES", 10**6)
    outcome(["-o", "out", "--jobs", "2"], capsys)
    assert not any(asked)


@pytest.mark.process
def test_a_process_whose_parent_is_gone_stops_what_it_does() -> None:
    program = (
        "import time;"
        "from tracelens_ext.cli import parallel_worker;"
        "parallel_worker._outcome = lambda *_: print('at it', flush=True) or time.sleep(60);"
        "parallel_worker.main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("{}\n0\n")
        process.stdin.flush()
        assert process.stdout.readline() == "at it\n"
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.mark.process
@pytest.mark.usefixtures("signals_heard")
def test_an_interrupt_leaves_no_process_and_no_half_written_file(tmp_path: Path) -> None:
    ranks = tmp_path / "many"
    ranks.mkdir()
    write_demo_trace(ranks / "rank0.json", steps=1)
    for number in range(1, 30):
        os.link(ranks / "rank0.json", ranks / f"rank{number}.json")
    program = (
        "from tracelens_ext.cli import main, parallel;"
        "parallel.WORTHWHILE_BYTES = 0;"
        f"main(['report', {str(ranks)!r}, '-o', 'half', '--jobs', '2'])"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        parent.stdout.readline()  # the first is written
        started = children_of(parent.pid)
        assert len(started) == 2
        parent.send_signal(signal.SIGINT)
        _, err = parent.communicate(timeout=30)
    assert parent.returncode == 130
    assert err == "tracelens-ext: interrupted\n"
    for _ in range(100):
        if not any(Path(f"/proc/{pid}").exists() for pid in started):
            break
        time.sleep(0.05)
    else:
        pytest.fail("a process outlives its parent")
    left = [path.name for path in (tmp_path / "half").iterdir()]
    assert left
    assert all(name.endswith("_perf_report.xlsx") for name in left)
    assert all(zipfile.is_zipfile(tmp_path / "half" / name) for name in left)


def children_of(pid: int) -> list[int]:
    """The processes that another has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]
