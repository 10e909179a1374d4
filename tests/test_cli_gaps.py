"""`tracelens-ext gaps`: why the GPU is idle, in one command."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from comparison_helpers import write
from make_trace import TraceMaker

from tracelens_ext.cli import run

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "kernels-and-gaps.md"


def example() -> TraceMaker:
    maker = TraceMaker()
    maker.frame("train.py(10): load", 30, 100)
    maker.launched("void at::native::reduce_kernel<1>(int)", 10, 20, correlation=1, at=5)
    maker.op("aten::stack", 40, 60)
    maker.launched("gemm", 130, 20, correlation=2, at=120)
    maker.launched("other", 40, 50, correlation=3, at=6, stream=9)
    maker.launched("gemm", 151, 20, correlation=4, at=125)
    return maker


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    write(tmp_path / "trace.json", example())


def gaps(*arguments: object) -> int:
    return run(["gaps", *map(str, arguments)])


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert gaps("trace.json", *arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_the_answer_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys)
    lines = out.splitlines()
    assert lines[:12] == [
        "=== GPU IDLE TIME GAP ANALYSIS ===",
        "",
        "The GPU was idle for 0.051 ms: host 78.4 %, launch overhead 21.6 %.",
        "",
        "Total gaps found: 2",
        "Total idle time: 101.00 μs",
        "Average gap duration: 50.50 μs",
        "Of that, other streams of the device were busy for 50.00 μs, none was for 51.00 μs",
        "",
        "Active streams: 2",
        "  Stream 7: 2 gaps, 101.00 μs idle time",
        "  Stream 9: 0 gaps, 0.00 μs idle time",
    ]
    assert "GAP DURATION HISTOGRAM:" in out
    assert "TOP 2 KERNEL PAIRS BY AVERAGE GAP DURATION:" in out
    assert "reduce_kernel → gemm" in out
    (longest,) = [line for line in lines if line.lstrip().startswith("40.000  ")]
    assert re.split(r"  +", longest.strip()) == [
        "40.000",
        "85.000",
        "host",
        "train.py(10): load",
        "cudaLaunchKernel",
        "gemm",
    ]


def test_streams_are_named_as_far_as_needed(capsys: pytest.CaptureFixture[str]) -> None:
    maker = example()
    maker.kernel("k", 0, 5, device=1, stream=7)
    write(Path("trace.json"), maker)
    assert "  Device 0, stream 7: 2 gaps, 101.00 μs idle time" in printed(capsys)


def test_the_histogram_and_its_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    def bins(*arguments: object) -> list[str]:
        out = printed(capsys, *arguments)
        return [line for line in out.splitlines() if " μs │" in line]

    linear, log = bins(), bins("--log")
    assert len(linear) == len(log) == 15
    assert [line.split()[0] for line in linear][:2] == ["1.0-7.6", "7.6-14.2"]
    assert [line.split()[0] for line in log][:2] == ["1.0-1.4", "1.4-1.8"]
    bounded = printed(capsys, "--hist-min", 2, "--hist-max", 200)
    assert "1 gaps are shorter, 0 longer" in bounded
    assert "no gap is within these bounds" in printed(capsys, "--hist-min", 500)


def test_the_text_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Wrote gaps.txt" in printed(capsys, "--gap-output", "gaps.txt", "--gap-sort", "max")
    text = Path("gaps.txt").read_text(encoding="utf-8")
    assert text.startswith("DETAILED GPU GAP ANALYSIS\n" + "=" * 50 + "\n")
    assert "Total gaps found: 2\nTotal idle time: 101.00 μs\n" in text
    assert text.count(" μs: ") == 20, "bins of the histogram"
    assert (
        "Kernel Pairs Ranked by maximum gap duration:\n" + "-" * 50 + "\n"
        "Rank 1: reduce_kernel → gemm\n"
        "  Count: 1\n"
        "  Average Gap: 100.00 μs\n"
        "  Max Gap: 100.00 μs\n"
        "  Min Gap: 100.00 μs\n"
        "  Std Dev: 0.00 μs\n"
        "  Total Gap Time: 100.00 μs\n"
        "  Main Cause: host\n" + "-" * 30 + "\n"
    ) in text


def test_short_options_and_selections(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "-t", 1, "-s", "count", "-o", "g.txt", "--stream", 7, "--device", 0)
    assert "TOP 1 KERNEL PAIRS BY COUNT:" in out
    assert "Selected: device 0, stream 7" in out
    assert "The stream was idle for 0.101 ms" in out
    assert "other streams of the device were busy for 50.00 μs" in out
    assert not re.search("^device ", out, re.MULTILINE)
    assert Path("g.txt").is_file()


def test_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(printed(capsys, "--json"))
    tables = document["tables"]
    assert document["facts"] == {"Trace": "trace.json"}
    assert list(tables) == ["gap_summary", "gap_streams", "gap_pairs", "gaps_longest"]
    by_cause = {(row["scope"], row["cause"]): row["count"] for row in tables["gap_summary"]}
    assert by_cause[("stream", "host")] == 1
    assert by_cause[("device", "unknown")] == 0
    assert tables["gaps_longest"][0]["python_frame"] == "train.py(10): load"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["absent.json"], 1),
        (["trace.json", "--pstep", "3"], 2),
        (["trace.json", "--bins"], 2),
        ([], 2),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gaps(*arguments) == code
    assert capsys.readouterr().out == ""


def test_ascii_terminals_will_do() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tracelens_ext", "kernels", "trace.json", "-g", "--no-cache"],
        capture_output=True,
        check=False,
        env={"COLUMNS": "100", "PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "ascii", "LC_ALL": "C"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert b"reduce_kernel -> gemm" in done.stdout


def test_help_comes_at_once() -> None:
    program = (
        "import sys; from tracelens_ext.cli import run; code = run(sys.argv[1:]);"
        "slow = {'pandas', 'numpy', 'openpyxl', 'plotly', 'rich'} & set(sys.modules);"
        "sys.exit(code or (f'imported: {slow}' if slow else 0))"
    )
    for command, options in (("gaps", ("--log", "--json")), ("kernels", ("--verbose", "--gaps"))):
        done = subprocess.run(
            [sys.executable, "-c", program, command, "--help"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert all(option in done.stdout for option in options)


def test_the_documentation_does_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = DOCUMENT.read_text(encoding="utf-8")
    (tmp_path / "trace.json").unlink()
    commands = re.findall(r"^\$ tracelens-ext (.*)$", text, re.MULTILINE)
    assert len(commands) > 10
    for command in commands:
        assert run(shlex.split(command, comments=True)) == 0, command
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    for block in re.findall(r"```text\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            assert line.rstrip() in lines or line.strip() == "…", line
    for program in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(program, {})  # noqa: S102  # the documentation's own
