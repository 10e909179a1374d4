"""`tracelens-ext gaps`: why the GPU is idle, in one command."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.comparison_helpers import write
from tests.support.docs_helpers import page_text
from tests.support.make_trace import TraceMaker
from tracelens_ext.cli import run

TIMES = "\N{MULTIPLICATION SIGN}"


def example() -> TraceMaker:
    maker = TraceMaker()
    maker.frame("train.py(10): load", 30, 100)
    maker.launched(
        "void at::native::reduce_kernel<1>(int)", 10, 20, correlation=1, at=5
    )
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
    assert lines[:13] == [
        "=== GPU IDLE TIME GAP ANALYSIS ===",
        "",
        "Recording: 161.0 µs of wall time, all of it analyzed.",
        "",
        (
            "The GPU was idle for 51.000 μs of 161.000 μs (31.7 %):"
            " host 60.8 %, launch overhead 39.2 %."
        ),
        "",
        "Total gaps found: 2",
        "Total idle time: 51.000 μs (no stream busy)",
        "Average gap duration: 50.500 μs (each stream separately)",
        "",
        "Active streams: 2",
        (
            "  Stream 7: 2 gaps, 101.000 μs idle time, 50.000 μs of it overlapped by "
            "other streams"
        ),
        (
            "  Stream 9: 0 gaps, 0.000 μs idle time, 0.000 μs of it overlapped by other "
            "streams"
        ),
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
    assert "  Device 0, stream 7: 2 gaps, 101.000 μs idle time" in printed(capsys)


def test_the_histogram_and_its_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    def bins(*arguments: object) -> list[str]:
        out = printed(capsys, *arguments)
        return [line for line in out.splitlines() if " μs │" in line]

    linear = bins()
    log = bins("--log")
    assert len(linear) == len(log) == 15
    assert [line.split()[0] for line in linear][:2] == ["1.0-7.6", "7.6-14.2"]
    assert [line.split()[0] for line in log][:2] == ["1.0-1.4", "1.4-1.8"]
    bounded = printed(capsys, "--hist-min", 2, "--hist-max", 200)
    assert "Not shown: 1 shorter gap, 0 longer gaps" in bounded
    assert "no gap is within these bounds" in printed(capsys, "--hist-min", 500)


def test_the_text_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Wrote gaps.txt" in printed(
        capsys, "--gap-output", "gaps.txt", "--gap-sort", "max"
    )
    text = Path("gaps.txt").read_text(encoding="utf-8")
    assert text.startswith("DETAILED GPU GAP ANALYSIS\n" + "=" * 50 + "\n")
    assert "Total gaps found: 2\nTotal idle time: 51.000 μs (no stream busy)\n" in text
    assert text.count(" μs: ") == 20, "bins of the histogram"
    assert (
        "Idle Time by What the Host Was In:\n" + "-" * 50 + "\n"
        "Rank 1: (no operation)\n"
        "  Python Frame: train.py(10): load\n"
        "  Idle Time: 50.00 μs (98.0% of idle time)\n"
        "  Gaps: 2\n"
        "  Average Gap: 25.00 μs\n"
        "  Max Gap: 40.00 μs\n"
        "  Main Cause: host\n" + "-" * 30 + "\n"
    ) in text
    assert (
        "Kernel Pairs Ranked by maximum gap duration:\n" + "-" * 50 + "\n"
        "Rank 1: reduce_kernel → gemm\n"
        "  Count: 1\n"
        "  Average Gap: 100.00 μs\n"
        "  Max Gap: 100.00 μs\n"
        "  Min Gap: 100.00 μs\n"
        "  Std Dev: 0.00 μs\n"
        "  Total Gap Time: 100.00 μs\n"
        "  Main Cause: host\n"
        "  Full Names (1 gap): void at::native::reduce_kernel<1>(int) → gemm\n"
        + "-" * 30
        + "\n"
    ) in text
    assert (
        "Idle Time by Cause:\n" + "-" * 50 + "\n"
        "Device, host: 1 gap, 31.00 μs (60.8% of idle time), average 31.00 μs, max 31.00 μs,"
        " beside another stream 0.00 μs\n"
    ) in text
    assert (
        "Longest Gaps:\n"
        + "-" * 50
        + "\nRank 1: 40.00 μs from 85.000 μs\n  Device: 0\n"
        in text
    )
    assert "  python_frame: train.py(10): load\n" in text


def test_short_options_and_selections(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(
        capsys, "-t", 1, "-s", "count", "-o", "g.txt", "--stream", 7, "--device", 0
    )
    assert "TOP 1 KERNEL PAIRS BY COUNT:" in out
    assert "Selected: device 0, stream 7" in out
    assert "Stream 7 of device 0 was idle for 101.000 μs of 161.000 μs (62.7 %)" in out
    assert "Total idle time: 101.000 μs\n" in out
    assert "50.000 μs of it overlapped by other streams" in out
    assert "\nWHY\ncause  " in out, "of one stream there is one scope"
    assert Path("g.txt").is_file()


def test_where_in_the_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = printed(capsys)
    first, second = out.split("CPU ACTIVITY DURING IDLE TIME:\n")[1].splitlines()[2:4]
    assert re.split(r"  +", first.strip()) == [
        "50.000",
        "98.0%",
        "(no operation)",
        "train.py(10): load",
        "host",
        "2",
        "25.000",
        "40.000",
    ]
    assert "launch overhead" in second
    assert "more; --gap-output has them all" not in out
    monkeypatch.setenv("COLUMNS", "80")
    narrow = printed(capsys, "-t", 1)
    assert "train.py(10): load" in narrow
    assert "\n1 more; --gap-output has them all.\n" in narrow
    assert "WHAT THE HOST" not in printed(capsys, "-t", 0)
    maker = example()
    maker.kernel("unlinked", 300, 5)
    write(Path("trace.json"), maker)
    assert (
        "(unlinked): the launch of the next GPU event is not in the trace."
        in printed(capsys)
    )
    write(Path("trace.json"), two_kernels("a", "b"))
    assert "WHAT THE HOST" not in printed(capsys), "nothing is known of it"


def two_kernels(*names: str, gap: float = 10.0) -> TraceMaker:
    maker = TraceMaker()
    for number, name in enumerate(names):
        maker.kernel(name, number * (10 + gap), 10)
    return maker


def test_a_narrow_terminal_has_a_line_for_each_kernel_of_a_pair(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    first = "nvjet_tst_256x256_64x4_2x1_v_TNT"
    second = "ncclDevKernel_AllGather_RING_LL"
    write(Path("trace.json"), two_kernels(first, second, first))
    lines = printed(capsys).splitlines()
    assert max(map(len, lines)) <= 80
    at = lines.index("TOP 2 KERNEL PAIRS BY AVERAGE GAP DURATION:")
    heads = ["Rank", "Kernel Transition", "Count", "Avg Gap (μs)", "Max Gap (μs)"]
    assert re.split(r"  +", lines[at + 1].strip()) == heads
    pairs = [re.split(r"  +", line.strip()) for line in lines[at + 3 : at + 7]]
    assert pairs == [
        ["1", second, "1", "10.000", "10.000"],
        [f"→ {first}"],
        ["2", first, "1", "10.000", "10.000"],
        [f"→ {second}"],
    ]
    assert lines[at + 7] == (
        "Min Gap and Std Dev are shown at 120 columns or more, and in "
        "--gap-output FILE."
    )
    monkeypatch.setenv("COLUMNS", "120")
    wide = printed(capsys)
    assert "Min Gap (μs)" in wide
    assert "120 columns" not in wide


@pytest.mark.parametrize("width", [80, 160])
def test_signs_behind_names_are_explained(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    long = "name_" * 60
    names = [*(f"{long}{number}_{long}" for number in range(4)), "gemm"]
    names += [f"void at::native::reduce_kernel<{number // 2}>()" for number in range(5)]
    write(Path("trace.json"), two_kernels(*names))
    lines = printed(capsys).splitlines()
    assert max(map(len, lines[4:])) <= width
    shared = "N pairs of kernels share these names; list all with --gap-output FILE."
    assert f"{TIMES}N: {shared}" in lines
    assert (
        "#N: these look alike at this width; --gap-output FILE lists the full names."
    ) in lines
    table = "\n".join(lines)
    assert f"reduce_kernel {TIMES}4" in table
    assert " #3" in table
    write(Path("trace.json"), two_kernels("a", "b"))
    plain = printed(capsys)
    assert "#N" not in plain
    assert f"{TIMES}N" not in plain


def test_times_of_a_few_nanoseconds_have_digits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(Path("trace.json"), two_kernels(*"abcd", gap=0.001))
    out = printed(capsys, "-o", "g.txt")
    assert "The GPU was idle for 3 ns of 40.003 μs (<0.1 %): unknown 100.0 %." in out
    assert "Total idle time: 3 ns\nAverage gap duration: 1 ns\n" in out
    assert "  Stream 7: 3 gaps, 3 ns idle time" in out
    assert "1.0-1.0 ns │" in out
    text = Path("g.txt").read_text(encoding="utf-8")
    assert "1.0-1.0 ns: 3\n" in text
    assert "  Average Gap: 1.00 ns\n" in text
    assert "-3000.000 μs │" in printed(capsys, "--hist-max", 3000)


def test_one_bar_that_hides_all_else_makes_the_bins_logarithmic(
    capsys: pytest.CaptureFixture[str],
) -> None:
    maker = TraceMaker()
    for number in range(50):
        maker.kernel("k", number * 11, 10)
    maker.kernel("k", 100_000, 10)
    write(Path("trace.json"), maker)
    why = "Logarithmic bins: an equal-width bin would contain 49 of the 50 gaps."
    assert re.search(
        rf"^{re.escape(why)}\n +1\.0-2\.2 μs │", printed(capsys), re.MULTILINE
    )
    assert why not in printed(capsys, "--log"), "it was asked for"
    document = json.loads(printed(capsys, "--json"))
    assert why in document["notes"]


def test_the_text_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "-o", "g.txt")
    text = Path("g.txt").read_text(encoding="utf-8")
    assert printed(capsys, "-o", "-") == text
    assert not Path("-").exists()
    for wrong, words in (
        (["-o", "-", "--json"], "--json already writes to standard output"),
        (["--all"], "--all only affects the JSON"),
    ):
        assert gaps("trace.json", *wrong) == 2
        assert words in capsys.readouterr().err


def test_a_selection_is_in_the_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    maker = example()
    maker.annotation("ProfilerStep#5", 100, 100)
    write(Path("trace.json"), maker)
    out = printed(capsys, "--step", 5)
    assert (
        "In ProfilerStep#5 the GPU was idle for 41.000 μs of 81.000 μs (50.6 %): host"
        in out
    )
    assert "Selected: ProfilerStep#5 (by launch)\n" in out


def test_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(printed(capsys, "--json"))
    tables = document["tables"]
    assert document["facts"] == {"Trace": "trace.json"}
    names = [
        "gap_summary",
        "gap_shapes",
        "idle_cpu_activity",
        "gap_streams",
        "idle_by_kernel_pair",
        "gaps_longest",
    ]
    assert list(tables) == [*names, "gap_full_names", "gap_histogram"]
    assert document["notes"][0].startswith("The GPU was idle for 51.000 μs")
    assert [row["count"] for row in tables["gap_histogram"]] == [1, *[0] * 18, 1]
    assert tables["gap_full_names"][0]["full_name_before"].startswith(
        "void at::native::reduce"
    )
    everything = json.loads(printed(capsys, "--json", "--all", "--hist-min", 500))[
        "tables"
    ]
    assert [row["gap_us"] for row in everything["gaps"]] == [100, 1]
    assert everything["gap_histogram"] == [{"from_us": None, "to_us": None, "count": 2}]
    assert [row["python_frame"] for row in tables["idle_cpu_activity"]] == [
        "train.py(10): load",
        "",
    ]
    by_cause = {
        (row["scope"], row["cause"]): row["count"] for row in tables["gap_summary"]
    }
    assert by_cause[("stream", "host")] == 1
    assert by_cause[("device", "unknown")] == 0
    assert tables["gaps_longest"][0]["python_frame"] == "train.py(10): load"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["absent.json"], 1),
        (["trace.json", "--step", "3"], 2),
        (["trace.json", "--bins"], 2),
        ([], 2),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gaps(*arguments) == code
    assert capsys.readouterr().out == ""


@pytest.mark.process
def test_ascii_terminals_will_do() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tracelens_ext",
            "kernels",
            "trace.json",
            "-g",
            "--no-cache",
        ],
        capture_output=True,
        check=False,
        env={
            "COLUMNS": "120",
            "PATH": "/usr/bin:/bin",
            "PYTHONIOENCODING": "ascii",
            "LC_ALL": "C",
        },
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert b"reduce_kernel -> gemm" in done.stdout


@pytest.mark.process
def test_help_comes_at_once() -> None:
    program = (
        "import sys; from tracelens_ext.cli import run; code = run(sys.argv[1:]);"
        "slow = {'pandas', 'numpy', 'xlsxwriter', 'plotly', 'rich'} & set(sys.modules);"
        "sys.exit(code or (f'imported: {slow}' if slow else 0))"
    )
    for command, options in (
        ("gaps", ("--log", "--json")),
        ("kernels", ("--verbose", "--gaps")),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, command, "--help"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert all(option in done.stdout for option in options)


@pytest.mark.slow
def test_the_documentation_does_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    explore = page_text("explore.md").partition("\n## The call tree\n")[0]
    text = page_text("idle-time.md") + explore.replace("$ tracelens-ext demo ", "")
    (tmp_path / "trace.json").unlink()
    commands = re.findall(r"^\$ tracelens-ext (.*)$", text, re.MULTILINE)
    assert len(commands) > 10
    for command in commands:
        assert run(shlex.split(command, comments=True)) == 0, command
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    for block in re.findall(r"```text\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            assert line.rstrip() in lines or line.strip() == "…", line


def test_a_step_by_launch_tells_of_work_without_a_launch_and_by_time_counts_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    maker = example()
    maker.annotation("ProfilerStep#5", 100, 100)
    maker.kernel("lost", 180, 5, correlation=99)
    maker.kernel("lost", 250, 5, correlation=98)
    write(Path("trace.json"), maker)
    told = (
        "Selected: ProfilerStep#5 (by launch). Left out because their launch is not in "
        "the trace: 2 GPU events (8.3 % of GPU time), of which 1 started during "
        "ProfilerStep#5. Use --step-by time to include it by time.\n"
    )
    shown = printed(capsys, "--step", 5, "--gap-output", "g.txt")
    assert " ".join(told.split()) in " ".join(shown.split())
    assert told in Path("g.txt").read_text(encoding="utf-8")
    by_time = printed(capsys, "--step", 5, "--step-by", "time")
    assert "Selected: ProfilerStep#5 (by time)\n" in by_time
    assert "Total gaps found: 3\n" in by_time
    assert gaps("trace.json", "--step-by", "time") == 2
    assert "--step-by needs --step N" in capsys.readouterr().err


def test_dropped_events_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    maker = example()
    maker.kernel("backwards", 300, -5)
    write(Path("trace.json"), maker)
    assert gaps("trace.json") == 0
    told = "trace.json: 1 of 11 events dropped: 1 no usable duration (dur)\n"
    assert capsys.readouterr().err == f"tracelens-ext: {told}"
