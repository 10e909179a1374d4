"""What a user sees when something is wrong: one line, what to do, the right exit code."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.make_trace import short_demo
from tracelens_ext.cli import run

if TYPE_CHECKING:
    from collections.abc import Callable

DEMO = json.dumps(short_demo()).encode()
PACKED = gzip.compress(DEMO, mtime=0)


def _merged_ranks(pids: tuple[int, int] = (10, 20)) -> bytes:
    events: list[dict[str, object]] = []
    for device, pid in enumerate(pids):
        launch: dict[str, object] = {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
        }
        launch["pid"] = pid
        events.append(
            {**launch, "tid": 1, "ts": pid, "dur": 1, "args": {"correlation": 7}}
        )
        kernel: dict[str, object] = {
            "ph": "X",
            "cat": "kernel",
            "name": "k",
            "pid": device,
            "tid": 7,
        }
        events.append({**kernel, "ts": pid + 2, "dur": 5, "args": {"correlation": 7}})
    return json.dumps({"traceEvents": events}).encode()


def _jax() -> bytes:
    meta = {
        "ph": "M",
        "pid": 1,
        "name": "process_name",
        "args": {"name": "/device:TPU:0"},
    }
    event = {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "name": "fusion.1"}
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": [meta, event]}).encode()


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty.json": (b"", "is empty"),
    "text.json": (b"hello world", "is not a trace in a known format"),
    "no_events.json": (b'{"a": 1}', "without traceEvents"),
    "zero_events.json": (b'{"traceEvents": []}', "no events"),
    "cut.json": (DEMO[: len(DEMO) // 2], "ends prematurely"),
    "cut.json.gz": (PACKED[:-2000], "gzip stream ends prematurely"),
    "damaged.json.gz": (
        PACKED[:9000] + bytes(255 - byte for byte in PACKED[9000:9100]) + PACKED[9100:],
        "gzip stream is damaged",
    ),
    "malformed.json": (
        DEMO.replace(b'"cat":', b'"cat" @', 50),
        "is not valid JSON at byte",
    ),
    "two.json": (DEMO + DEMO, "more data after the end"),
    "ranks_in_containers.json": (_merged_ranks((1, 1)), "several ranks"),
    "jax.json": (_jax(), "JAX/XLA trace"),
    "nsys.sqlite": (
        b"SQLite format 3\x00" + b"\0" * 100,
        "is a damaged SQLite database",
    ),
    "page.html": (b"<!doctype html><html></html>", "HTML"),
    "zip.json": (b"PK\x03\x04rest", "zip archive"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_traces(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content, expected = BROKEN[name]
    trace = tmp_path / name
    trace.write_bytes(content)
    assert run(["report", str(trace), "-o", str(tmp_path / "report.xlsx")]) == 1
    printed, error = capfd.readouterr()
    assert printed == ""
    assert error.count("\n") == 1, error
    assert error.startswith("tracelens-ext: ")
    assert name in error
    assert expected in error
    assert "; " in error, "a message says what to do"
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


def test_several_ranks_in_one_file_are_not_written_to_one_workbook(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "ranks.json"
    trace.write_bytes(_merged_ranks())
    workbook = tmp_path / "report.xlsx"
    assert run(["report", str(trace), "-o", str(workbook)]) == 2
    printed, error = capfd.readouterr()
    assert printed == ""
    assert error == (
        f"tracelens-ext: {workbook}: is a single file, but there are several traces;"
        " give a folder\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["ranks.json"]


def test_no_such_file_and_folder(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(["report", str(tmp_path / "nowhere.json"), "-o", str(tmp_path / "r.xlsx")])
        == 1
    )
    error = capfd.readouterr().err
    assert "no such file" in error
    assert error.count("\n") == 1


@pytest.mark.usefixtures("few_tables")
def test_a_good_report_survives_a_bad_run(tmp_path: Path) -> None:
    report = tmp_path / "report.xlsx"
    good = tmp_path / "good.json"
    good.write_bytes(DEMO)
    assert run(["report", str(good), "-o", str(report), "--quiet"]) == 0
    before = report.read_bytes()
    bad = tmp_path / "bad.json"
    bad.write_bytes(BROKEN["cut.json"][0])
    assert run(["report", str(bad), "-o", str(report)]) == 1
    assert report.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bad.json",
        "good.json",
        "report.xlsx",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["report"],
        ["report", "{trace}", "--no-such-option"],
        ["no-such-command"],
        ["report", "{trace}", "-o", "report.txt"],
        ["report", "{trace}", "--no-kernel-categories", "--categorizer", "jax"],
        ["report", "{trace}", "--categorizer", "no-such-categorizer"],
        ["report", "{trace}", "--top", "many"],
    ],
)
def test_usage_errors(
    arguments: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    trace = tmp_path / "trace.json"
    trace.write_bytes(DEMO)
    assert run([argument.format(trace=trace) for argument in arguments]) == 2
    printed, error = capfd.readouterr()
    assert printed == ""
    assert error.startswith("tracelens-ext: ")
    assert error.count("\n") == 1


def _gpu_only() -> bytes:
    document = json.loads(DEMO)
    wanted = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime")
    events = [e for e in document["traceEvents"] if e.get("cat") in wanted]
    return json.dumps({**document, "traceEvents": events}).encode()


def _cpu_only() -> bytes:
    document = json.loads(DEMO)
    events = [
        e
        for e in document["traceEvents"]
        if e.get("cat") in ("cpu_op", "user_annotation")
    ]
    return json.dumps({**document, "traceEvents": events}).encode()


@pytest.mark.parametrize(
    ("make", "sheets", "absent"),
    [
        (_gpu_only, {"gpu_timeline", "kernels_by_category"}, "Input Dims"),
        (_cpu_only, {"cpu_ops"}, "Kernel name"),
    ],
)
def test_half_a_trace_is_still_reported(
    make: Callable[[], bytes], sheets: set[str], absent: str, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    trace.write_bytes(make())
    assert (
        run(["report", str(trace), "--csv-dir", str(tmp_path / "csv"), "--quiet"]) == 0
    )
    written = {
        path.stem: path.read_text(encoding="utf-8")
        for path in tmp_path.glob("csv/*.csv")
    }
    assert sheets <= set(written)
    for name in sheets:
        assert absent not in written[name].splitlines()[0]


def test_a_crash_is_one_line_and_asks_for_a_report(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("on\npurpose")

    monkeypatch.setattr("tracelens_ext.perf_report.build_perf_report", crash)
    monkeypatch.delenv("TRACELENS_EXT_DEBUG")
    trace = tmp_path / "trace.json"
    trace.write_bytes(DEMO)
    assert run(["report", str(trace), "-o", str(tmp_path / "r.xlsx")]) == 1
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert (
        "The result could not be computed: ZeroDivisionError: on purpose; please report"
        in error
    )


@pytest.mark.parametrize(
    "argument", ["", "loop.json", "x" * 300 + ".json", "line\nfeed.json"]
)
def test_names_that_are_no_files(
    argument: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop.json").symlink_to("loop.json")
    assert run(["report", argument]) == (1 if argument else 2)
    printed, error = capfd.readouterr()
    assert printed == ""
    assert error.count("\n") == 1
    assert "internal error" not in error


@pytest.mark.process
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_under_standard_output(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_bytes(DEMO)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tracelens_ext", "report", str(trace)],
            cwd=tmp_path,
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "tracelens-ext: cannot write to standard output: No space left on device"
    ]


@pytest.mark.process
def test_nothing_is_drawn_on_a_stderr_that_is_no_terminal(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_bytes(DEMO)
    done = subprocess.run(
        [sys.executable, "-m", "tracelens_ext", "report", str(trace), "-o", "r.xlsx"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert "\x1b" not in done.stdout


@pytest.mark.process
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="others heed no such limit"
)
def test_too_small_a_limit_of_memory_is_a_line(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text("{}")
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (100 << 20,) * 2)"
        "; from tracelens_ext.cli import main; main(['kernels', sys.argv[1]])"
    )
    command = [sys.executable, "-c", script, str(trace)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        f"tracelens-ext: {trace}: cannot be analyzed with so little memory (ulimit -v);"
        " allow at least 256 MB\n"
    )


def test_too_little_memory_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    trace = tmp_path / "trace.json"
    trace.write_text("{}")
    for place, purpose in (
        ("tracelens_ext.readers.kineto.reader.read", "to read it"),
        ("tracelens_ext.cli.load.analyze", "for this"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(place, no_memory)
            assert run(["kernels", str(trace), "--no-cache"]) == 1
        said = capfd.readouterr().err
        assert said == (
            f"tracelens-ext: {trace}: there is not enough memory {purpose}; free some"
            " memory, or analyze fewer traces at once\n"
        )
