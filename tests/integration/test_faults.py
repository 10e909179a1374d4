"""Ctrl-C, `kill` and a full disk while reading or writing: whole files or untouched ones."""

from __future__ import annotations

import errno
import gzip
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.make_trace import cuda_graph_example
from tracelens_ext.cli import run
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.cache.store import TraceCache
from tracelens_ext.report.atomic_files import written_beside

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.usefixtures("signals_heard"),
]

DRIVER = Path(__file__).parents[1] / "support" / "fault_driver.py"
#: Writer → how it is asked for, and the files that were there before.
WRITERS: dict[str, tuple[list[str], list[str]]] = {
    "xlsx": (["report", "trace.json.gz", "-o", "out/r.xlsx"], ["out/r.xlsx"]),
    "json": (["report", "trace.json.gz", "-o", "out/r.json"], ["out/r.json"]),
    "markdown": (["report", "trace.json.gz", "-o", "out/r.md"], ["out/r.md"]),
    "csv": (["report", "trace.json.gz", "--csv-dir", "out"], ["out/gpu_timeline.csv"]),
    "kernels": (["kernels", "trace.json.gz", "-o", "out/k.txt"], ["out/k.txt"]),
    "gaps": (["gaps", "trace.json.gz", "-o", "out/g.txt"], ["out/g.txt"]),
    "compare": (
        ["compare", "trace.json.gz", "other.json.gz", "-o", "out/c.xlsx"],
        ["out/c.xlsx"],
    ),
    "html": (["report", "trace.json.gz", "--html", "out/r.html"], ["out/r.html"]),
    "chart": (
        ["chart", "trace.json.gz", "--categorizer", "builtin", "--out-dir", "out"],
        ["out/result.html", "out/result.csv"],
    ),
}
if importlib.util.find_spec("pyarrow") is not None:
    WRITERS["parquet"] = (
        ["report", "trace.json.gz", "--format", "parquet", "-o", "out"],
        ["out/gpu_timeline.parquet"],
    )
TROUBLE: dict[str, dict[str, Any]] = {
    "Ctrl-C when it begins to write": {"at": "open", "signal": int(signal.SIGINT)},
    "Ctrl-C before the last step": {"at": "rename", "signal": int(signal.SIGINT)},
    "kill before the last step": {"at": "rename", "signal": int(signal.SIGTERM)},
    "kill -9 before the last step": {"at": "rename", "signal": int(signal.SIGKILL)},
    "disk full at the first file": {"at": "open", "errno": errno.ENOSPC},
    "disk full while it writes": {"limit": 300},
}
ENDS: dict[str, tuple[int, str]] = {
    "Ctrl-C when it begins to write": (130, "tracelens-ext: interrupted\n"),
    "Ctrl-C before the last step": (130, "tracelens-ext: interrupted\n"),
    "Ctrl-C while it reads": (130, "tracelens-ext: interrupted\n"),
    "kill before the last step": (143, "tracelens-ext: terminated\n"),
    "kill -9 before the last step": (-9, ""),
}


@dataclass
class Ended:
    """What became of a case: exit code, what it printed, and the files before and after."""

    code: int
    left: bool
    out: str
    err: str
    before: dict[str, bytes]
    folder: Path
    after: dict[str, bytes] = field(default_factory=dict)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(cuda_graph_example()).encode()))
    return path


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(".json.gz")
    }


def _run_all(cases: Sequence[dict[str, Any]], place: Path, trace: Path) -> list[Ended]:
    """Run cases by the driver, each in a folder with the trace and the older reports."""
    for number, case in enumerate(cases):
        folder = place / str(number)
        (folder / "out").mkdir(parents=True)
        for name in ("trace.json.gz", "other.json.gz"):
            (folder / name).hardlink_to(trace)
        for name in case.get("older", ()):
            (folder / name).write_bytes(b"an older report")
        case |= {"folder": str(folder), "streams": f"{place}/{number}."}
    before = [_files(Path(case["folder"])) for case in cases]
    environment = os.environ | {"TRACELENS_EXT_CACHE_DIR": str(place / "cache")}
    done = subprocess.run(
        [sys.executable, str(DRIVER)],
        input=json.dumps(list(cases)),
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    ended = []
    for number, (result, older) in enumerate(
        zip(json.loads(done.stdout), before, strict=True)
    ):
        folder = place / str(number)
        out, err = (
            Path(f"{place}/{number}.{name}").read_text() for name in ("out", "err")
        )
        ended.append(
            Ended(
                result["code"], result["left"], out, err, older, folder, _files(folder)
            )
        )
    return ended


@pytest.fixture(scope="module")
def endings(
    trace: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], Ended]:
    keys = list(itertools.product(WRITERS, TROUBLE))
    cases = [
        {
            "arguments": [*WRITERS[writer][0], "--force"],
            "older": WRITERS[writer][1],
            **TROUBLE[trouble],
        }
        for writer, trouble in keys
    ]
    ended = _run_all(cases, tmp_path_factory.mktemp("faults"), trace)
    return dict(zip(keys, ended, strict=True))


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("writer", WRITERS)
def test_the_older_report_survives(
    writer: str, trouble: str, endings: dict[tuple[str, str], Ended]
) -> None:
    ended = endings[writer, trouble]
    code, line = ENDS.get(trouble, (1, ""))
    assert ended.code == code, ended.err
    assert not ended.left, "a process is left behind"
    if line or code < 0:
        assert ended.err == line
    else:
        assert ended.err.count("\n") == 1, ended.err
        assert "cannot be written: " in ended.err
        assert "Traceback" not in ended.err
    left = {name for name in ended.after if ".tmp" in name}
    if code > 0:
        assert not left
    kept = {name: data for name, data in ended.after.items() if name not in left}
    assert kept == ended.before


@pytest.mark.parametrize("writer", WRITERS)
def test_after_a_kill_the_next_run_writes_and_clears_up(
    writer: str, endings: dict[tuple[str, str], Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = endings[writer, "kill -9 before the last step"]
    monkeypatch.chdir(ended.folder)
    left = [path for path in ended.folder.rglob("*.tmp") if not path.match("*.tmp/*")]
    assert left, "it was killed with its file written and not yet renamed"
    for path in left:
        os.utime(path, (1, 1))  # as if that was long ago
    assert run([*WRITERS[writer][0], "--force"]) == 0
    after = _files(ended.folder)
    for name in WRITERS[writer][1]:
        assert after[name] != b"an older report"
    assert not any(".tmp" in name for name in after)


def test_what_another_run_is_writing_now_is_left_alone(tmp_path: Path) -> None:
    with written_beside(tmp_path / "r.txt") as first:
        first.write_text("first")
        with written_beside(tmp_path / "r.txt") as second:
            second.write_text("second")
        assert first.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["r.txt"]
    assert (tmp_path / "r.txt").read_text() == "first"


def test_interrupted_while_reading(trace: Path, tmp_path: Path) -> None:
    cases = [
        {
            "arguments": [*WRITERS[writer][0], "--force"],
            "older": WRITERS[writer][1],
            "at": "open",
            "reading": True,
            "signal": number,
        }
        for writer in ("xlsx", "csv", "compare", "kernels")
        for number in (int(signal.SIGINT), int(signal.SIGTERM), int(signal.SIGHUP))
    ]
    codes = []
    for ended in _run_all(cases, tmp_path, trace):
        codes.append(ended.code)
        assert ended.err in (
            "tracelens-ext: interrupted\n",
            "tracelens-ext: terminated\n",
        )
        assert ended.out == ""
        assert not ended.left
        assert ended.after == ended.before
    assert codes == [130, 143, 129] * 4


def test_an_interrupt_in_the_same_process(
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tracelens_ext.perf_report.build_perf_report", interrupt)
    assert run(["report", str(trace), "-o", str(tmp_path / "r.xlsx")]) == 130
    assert capfd.readouterr() == ("", "tracelens-ext: interrupted\n")


def test_an_interrupt_while_the_cache_is_written(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    cache = TraceCache(tmp_path / "cache", worth_keeping=0)
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            read_trace(trace, cache=cache)
    assert list((tmp_path / "cache").iterdir()) == []
    read_trace(trace, cache=cache)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".columns"]


def test_too_little_memory_is_one_line(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("tracelens_ext.perf_report.build_perf_report", fail)
    assert run(["report", str(trace), "-o", "r.xlsx"]) == 1
    assert "not enough memory" in capfd.readouterr().err
