"""`tracelens-ext kernels`: what it prints and writes, with the options of its old script."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.support.comparison_helpers import write
from tests.support.make_trace import TraceMaker
from tracelens_ext.cli import run

ADD = "void at::native::vectorized_elementwise_kernel<4, Add<float>>(int, float*)"
MUL = "void at::native::vectorized_elementwise_kernel<4, Mul<float>>(int, float*)"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_cublas"


def example() -> TraceMaker:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#1", 0, 100)
    maker.annotation("ProfilerStep#2", 100, 100)
    maker.launched(ADD, 10, 2, correlation=1, at=5)
    maker.launched(ADD, 20, 4, correlation=2, at=15)
    maker.launched(MUL, 30, 9, correlation=3, at=25)
    maker.launched(GEMM, 110, 100, correlation=4, at=105)
    return maker


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    write(tmp_path / "trace.json", example())


def kernels(*arguments: object) -> int:
    return run(["kernels", *map(str, arguments)])


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert kernels("trace.json", *arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


#: The commands of the specification, with this program in place of the script.
SPECIFIED = """
    trace.json
    trace.json --top 20 --sort duration-percentage
    trace.json --sort duration
    trace.json --gaps
    trace.json --gaps --hist-min 1 --hist-max 100
    trace.json --gaps --gap-sort count
    trace.json --output kernels.txt --gap-output gaps.txt --gaps
    trace.json --step 1 -t 5 -o k.txt -s percentage -v -g --gap-top 3 --gap-sort stdev
    trace.json --verbose --sort count --gap-sort avggap --gaps
"""


@pytest.mark.parametrize("command", SPECIFIED.strip().splitlines())
def test_the_old_options_work(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, *shlex.split(command)[1:])
    assert out.startswith("=== GPU KERNEL ANALYSIS ===\n\n")
    assert ("=== GPU IDLE TIME GAP ANALYSIS ===" in out) == ("-g" in command)
    for option, file in re.findall(r"(--output|--gap-output|-o) (\S+)", command):
        assert f"Wrote {file}" in out, option
        assert Path(file).is_file()


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys).splitlines()
    assert lines[2:4] == ["Recording: 200.0 µs of wall time, all of it analyzed.", ""]
    del lines[2:4]
    assert lines[2:5] == [
        "Total unique kernel types found: 2 (3 full names)",
        "Total kernel launches: 4",
        "Results sorted by: count",
    ]
    assert lines[6] == "TOP 2 GPU KERNELS BY COUNT:"
    headers = re.split(r"  +", lines[7].strip())
    assert headers[:4] == ["Rank", "Kernel Name", "Count", "Avg Duration (μs)"]
    assert headers[4:] == [
        "Total Duration (μs)",
        "Std Dev (μs)",
        "% of Total",
        "% Duration",
    ]
    first = re.split(r"  +", lines[9].strip())
    name = "vectorized_elementwise_kernel \N{MULTIPLICATION SIGN}2"
    assert first == ["1", name, "3", "5.000", "15.000", "3.606", "75.0%", "13.0%"]
    assert re.split(r"  +", lines[10].strip())[-3:] == ["0.000", "25.0%", "87.0%"]
    assert "cudaLaunchKernel" not in "\n".join(lines)


@pytest.mark.parametrize(
    ("sort", "words", "first"),
    [
        ("count", "count", "vectorized"),
        ("percentage", "percentage of total launches", "vectorized"),
        ("duration", "average duration", "sm90_"),
        ("duration-percentage", "percentage of total duration", "sm90_"),
    ],
)
def test_sorting(
    sort: str, words: str, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed(capsys, "-s", sort, "-t", 1)
    assert f"Results sorted by: {words}\n\nTOP 1 GPU KERNELS BY {words.upper()}:" in out
    assert [
        line.split()[1][: len(first)]
        for line in out.splitlines()
        if line[:5] == "   1 "
    ] == [first]


def test_full_names(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "-v")
    assert f"Rank 1: vectorized_elementwise_kernel\n  {ADD}\n  {MUL}\n" in out
    short = printed(capsys)
    assert ADD not in short
    times = "\N{MULTIPLICATION SIGN}"
    assert (
        f"\n{times}N: N kernels share that name; list some with --verbose, all with --output FILE."
        in short
    )
    assert "#N" not in short
    first_step = printed(capsys, "-v", "--step", 2)
    assert GEMM in first_step
    assert ADD not in first_step


def test_many_full_names_are_all_in_the_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    maker = TraceMaker()
    names = [f"void at::native::reduce_kernel<{number}>(int)" for number in range(50)]
    for number, name in enumerate(names):
        maker.kernel(name, 10 * number, 5)
    write(Path("trace.json"), maker)
    out = printed(capsys, "-v", "-o", "k.txt")
    shown = [name for name in names if f"  {name}\n" in out]
    assert shown == names[:20]
    assert "  … and 30 more; list them all with --output FILE\n" in out
    text = Path("k.txt").read_text(encoding="utf-8")
    assert all(f": {name}\n" in text for name in names)


def test_what_has_no_name_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    maker = TraceMaker()
    maker.kernel("", 0, 5)
    maker.kernel("  ", 10, 5)
    maker.kernel("gemm", 20, 5)
    write(Path("trace.json"), maker)
    out = printed(capsys, "-v", "-g", "-o", "k.txt", "--gap-output", "g.txt")
    for sign in ("(no name) #1", "(no name) #2", "Rank 1: (no name)\n  (no name)\n"):
        assert sign in out
    assert "(no name) → gemm" in out
    assert out.splitlines()[-4].split()[-2:] == ["(no", "name)"], "the longest gap"
    assert (
        "#N: these look alike at this width; --output FILE lists the full names." in out
    )
    assert "Rank 1: (no name)\n" in Path("k.txt").read_text(encoding="utf-8")
    assert "Rank 1: (no name) → (no name)\n" in Path("g.txt").read_text(
        encoding="utf-8"
    )


def test_the_text_file(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "-o", "kernels.txt", "-t", 1, "-s", "duration-percentage")
    text = Path("kernels.txt").read_text(encoding="utf-8")
    rule = "=" * 50
    assert text == (
        f"DETAILED GPU KERNEL ANALYSIS\n{rule}\n"
        f"Results sorted by: percentage of total duration\n{rule}\n\n"
        f"Rank 1: {GEMM}\n"
        "  Count: 1 (25.0% of total launches)\n"
        "  Total Duration: 100.00 μs (87.0% of total duration)\n"
        "  Average Duration: 100.00 μs\n"
        "  Standard Deviation: 0.00 μs\n"
        f"  Example Full Name: {GEMM}\n"
        f"{'-' * 50}\n"
        "Rank 2: vectorized_elementwise_kernel\n"
        "  Count: 3 (75.0% of total launches)\n"
        "  Total Duration: 15.00 μs (13.0% of total duration)\n"
        "  Average Duration: 5.00 μs\n"
        "  Standard Deviation: 3.61 μs\n"
        "  Full Names: 2 (the example: 2 launches)\n"
        f"  Example Full Name: {ADD}\n"
        f"  Full Name 2 (1 launch): {MUL}\n"
        f"{'-' * 50}\n"
    )


def test_selections(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "--step", 2)
    assert "Selected: ProfilerStep#2" in out
    assert "Total kernel launches: 1" in out
    assert "Total kernel launches: 1" in printed(capsys, "--category", "gemm")
    assert "Total kernel launches: 4" in printed(capsys, "--stream", 7, "--device", 0)


def test_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    tables = json.loads(printed(capsys, "--json", "--gaps", "-t", 1))["tables"]
    gaps = [
        "gap_summary",
        "gap_shapes",
        "idle_cpu_activity",
        "gap_streams",
        "idle_by_kernel_pair",
        "gaps_longest",
    ]
    more = ["gap_full_names", "gap_histogram"]
    assert list(tables) == ["kernel_statistics", "kernel_full_names", *gaps, *more]
    names = [
        (row["rank"], row["full_name"], row["count"])
        for row in tables["kernel_full_names"]
    ]
    assert names == [(1, ADD, 2), (1, MUL, 1), (2, GEMM, 1)]
    assert [row["count"] for row in tables["kernel_statistics"]] == [3, 1], "all rows"
    assert tables["kernel_statistics"][0]["kernel_category"] == "Elementwise"


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    maker = TraceMaker()
    maker.kernel("a", 0, 5)
    maker.kernel("b", 20, 0)
    write(Path("trace.json"), maker)

    def refuse(text: str) -> None:
        raise AssertionError(text)

    document = json.loads(printed(capsys, "--json", "-g"), parse_constant=refuse)
    assert document["tables"]["gaps_longest"][0]["launch_delay_us"] is None
    assert document["tables"]["kernel_statistics"][0]["std_time_us"] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--sort", "name"],
            "'count', 'total', 'duration', 'percentage', 'duration-percentage'",
        ),
        (["--gap-sort", "name"], "avggap"),
        (
            ["--step", "7"],
            "there is no ProfilerStep#7 in the trace; it has ProfilerStep#1 to #2",
        ),
        (["--stream", "8"], "no GPU event ran on stream 8; the trace has 7"),
        (
            ["--category", "Convolution"],
            "no GPU event belongs to the category 'Convolution'",
        ),
        (
            ["-g", "--hist-min", "5", "--hist-max", "5"],
            "--hist-max 5 is not greater than --hist-min 5",
        ),
        (["-g", "--hist-max", "nan"], "--hist-max"),
        (["-o", "x.txt", "--gap-output", "./x.txt"], "is used for two outputs"),
        (["--top", "-1"], "--top"),
        (["--hist-min", "3"], "--hist-min needs --gaps"),
        (["--hist-max", "3"], "--hist-max needs --gaps"),
        (["--log"], "--log needs --gaps"),
        (["--gap-top", "0", "--gap-sort", "avg"], "--gap-top, --gap-sort need --gaps"),
    ],
)
def test_bad_usage_exits_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kernels("trace.json", *arguments) == 2
    captured = capsys.readouterr()
    assert words in " ".join(captured.err.replace("│", " ").split())
    assert captured.out == ""


def test_nothing_of_the_users_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    before = Path("trace.json").read_bytes()
    assert kernels("trace.json", "-o", "trace.json", "--force") == 1
    assert "is the trace itself" in capsys.readouterr().err
    assert Path("trace.json").read_bytes() == before
    Path("mine.txt").write_text("mine", encoding="utf-8")
    assert kernels("trace.json", "-o", "mine.txt") == 1
    assert "was not written by tracelens-ext" in capsys.readouterr().err
    assert Path("mine.txt").read_text(encoding="utf-8") == "mine"
    assert kernels("trace.json", "-o", "mine.txt", "--force") == 0
    assert kernels("trace.json", "-o", "mine.txt") == 0, "its own files are replaced"
    assert kernels("absent.json") == 1
    assert kernels("trace.json", "-o", "no/such/../\0") in (1, 2)


def test_names_are_cut_to_the_terminal_and_stay_apart(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    maker = TraceMaker()
    for number in range(12):
        maker.kernel(
            f"nvjet_tst_256x256_64x4_{number}x1_2cta_v_bz_TNT" * 2, 100 * number, 10
        )
    maker.kernel("evil\x1b[31m\n", 5000, 1)
    write(Path("trace.json"), maker)
    lines = printed(capsys, "-t", 20).splitlines()
    assert max(map(len, lines)) <= 80
    rows = [re.match(r" +\d+  (.+?)  +\d", line) for line in lines]
    names = [row.group(1) for row in rows if row]
    assert len(set(names)) == len(names) == 13
    assert "\x1b" not in "".join(lines)


def test_a_trace_without_gpu_work(capsys: pytest.CaptureFixture[str]) -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    write(Path("trace.json"), maker)
    out = printed(capsys, "-g", "-v", "-o", "k.txt", "--gap-output", "g.txt")
    assert "Total kernel launches: 0" in out
    why = (
        "The trace contains no GPU work. "
        "If the program uses a GPU, record it with ProfilerActivity.CUDA."
    )
    assert why in out
    assert why in printed(capsys)
    assert json.loads(printed(capsys, "--json"))["notes"][0].startswith(why)
    assert printed(capsys, "-o", "-").startswith("DETAILED GPU KERNEL ANALYSIS\n")
    assert "Total gaps found: 0" in Path("g.txt").read_text(encoding="utf-8")
