"""`tracelens-ext nsys stats`: what it prints, writes, and exits with; and its page of the docs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import openpyxl
import pytest

from tests.support.docs_helpers import page_text
from tests.support.make_trace import TraceMaker
from tests.support.statistics_helpers import CLASSES, GPA, KERNELS, MEMORY, write_tables
from tracelens_ext.cli import run
from tracelens_ext.report.manifest import MANIFEST, has_own_mark

ROOT = Path(__file__).resolve().parents[2]
PAGE = page_text("nsight-systems.md").partition("\n## GPU time by class of kernel\n")[2]
TABLES = ["--kernels", "run_cuda_gpu_kern_sum.csv", "--class-map", "classes.json"]
ALL = [
    *TABLES,
    "--nvtx",
    "run_nvtx_gpu_proj_trace.csv",
    "--iteration-range",
    "step",
    "--mem",
    "run_cuda_gpu_mem_time_sum.csv",
    "--iterations",
    "2",
    "--gpus",
    "1",
]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path)
    Path("classes.json").write_text(json.dumps(CLASSES))
    Path("list.json").write_text("[1]")
    Path("empty.csv").touch()
    header = KERNELS.splitlines()[0]
    Path("header.csv").write_text(header)
    Path("nan.csv").write_text(f"{header}\n50.0,nan,11,1.0,1.0,1,1,0.0,k\n")
    maker = TraceMaker()
    for step in range(2):
        at = 1000 * step
        maker.annotation("step", at, 500)
        maker.launched("xmma_gemm", at + 100, 40, correlation=step + 1, at=at + 10)
    Path("trace.json").write_text(json.dumps(maker.document()))


def stats(*arguments: object) -> int:
    return run(["nsys", "stats", *map(str, arguments)])


def test_options_say_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert stats(*ALL, "--title", "Run") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("===== Run =====\nKernel time per iteration: 4.500 (ms)\n")
    assert out.endswith("bubble total time: 10.00 (%)\n")


def test_a_configuration_of_several_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {"num_of_iters": 2, "num_of_gpus": 1, "nvtx_tag_of_iter": "step"}
    folder = Path("elsewhere")
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(
            {
                "inputs": [
                    {
                        "format": "csv",
                        "title": "From CSV",
                        "nsys_csv_file_path": {
                            "kernel_sum": "../run_cuda_gpu_kern_sum.csv"
                        },
                        "analysis_args": arguments,
                    },
                    {
                        "format": "sqlite",
                        "title": "From a trace",
                        "nsys_report": {"path": "../trace.json", "with_nvtx": True},
                        "analysis_args": arguments,
                    },
                ],
                "kernel_to_class_map": CLASSES,
            }
        )
    )
    assert stats("--config", folder / "config.json") == 0
    out, err = capsys.readouterr()
    assert err == ""
    first, second = out.split("\n\n\n")
    assert first.startswith("===== From CSV =====\n")
    assert "Mem Ops" not in first
    assert second.startswith("===== From a trace =====\n")
    assert "NVTX average range time: 0.040 (ms)" in second


def test_an_input_that_fails_does_not_cost_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    empty = TraceMaker()
    empty.annotation("step", 0, 10)
    Path("empty.json").write_text(json.dumps(empty.document()))
    inputs = [
        {
            "format": "sqlite",
            "nsys_report": {"path": path},
            "analysis_args": {"num_of_iters": 2},
        }
        for path in ("absent.json", "trace.json", "empty.json")
    ]
    Path("config.json").write_text(json.dumps({"inputs": inputs}))
    assert stats("--config", "config.json", "--json") == 1
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert [row["title"] for row in document["tables"]["inputs"]] == ["trace"]
    absent, kernels = err.splitlines()
    assert (
        "absent: config.json: inputs[0].nsys_report.path: neither absent.json nor "
        in absent
    )
    assert kernels.startswith(
        "tracelens-ext: empty: empty.json: contains no GPU kernels; record"
    )
    lines = [
        f"Left out: {line.removeprefix('tracelens-ext: ')}"
        for line in (absent, kernels)
    ]
    assert document["notes"] == lines


def test_iterations_and_gpus_of_a_trace_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert stats("trace.json", "--iteration-range", "step", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["tables"]["inputs"]
    assert (row["iteration_count"], row["gpu_count"], row["range_count"]) == (2, 1, 2)


def test_a_gpu_trace_table_is_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert stats("run_cuda_gpu_trace.csv", "--iterations", "1", "--json") == 0
    out, err = capsys.readouterr()
    note = (
        "run_cuda_gpu_trace: The table has no launches, so all GPU events are unlinked."
    )
    assert err == f"tracelens-ext: {note}\n"
    assert json.loads(out)["notes"] == [note]
    tables = json.loads(out)["tables"]
    assert tables["inputs"][0]["gpu_count"] == 1
    assert [row["operation"] for row in tables["memory_operations"]] == [
        "[CUDA memcpy H2D]",
        "[CUDA memset]",
    ]


def test_tables_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--mem-size", "run_cuda_gpu_mem_size_sum.csv"]
    assert stats(*ALL, *sizes, "--json", "--csv", "out", "--xlsx", "out/s.xlsx") == 0
    document = json.loads(capsys.readouterr().out)
    names = ["inputs", "kernel_classes", "nccl", "memory_operations", "kernels"]
    assert list(document["tables"]) == names
    assert document["tables"]["memory_operations"][0]["total_bytes"] == 402_653_000
    assert has_own_mark("out/s.xlsx")
    assert openpyxl.load_workbook("out/s.xlsx").sheetnames == ["summary", *names]
    written = {path.name for path in Path("out").iterdir()}
    assert written == {MANIFEST, "s.xlsx", *(f"{name}.csv" for name in names)}
    assert (
        Path("out/nccl.csv")
        .read_text()
        .splitlines()[1]
        .endswith(",AllGather,1.5000005,2,3.000001,5")
    )
    assert stats(*ALL, "--csv", "out", "--xlsx", "out/s.xlsx", "-q") == 0, (
        "its own are replaced"
    )
    assert capsys.readouterr().out == ""
    Path("theirs.xlsx").write_text("mine")
    assert stats(*ALL, "--xlsx", "theirs.xlsx") == 1
    assert Path("theirs.xlsx").read_text() == "mine"
    assert stats(*ALL, "--csv", "new", "--force") == 0
    assert "Wrote new\n" in capsys.readouterr().out


def test_half_characters_do_no_harm(capsys: pytest.CaptureFixture[str]) -> None:
    Path("odd.json").write_text(r'{"xmma_gemm": "g\ud800"}')
    arguments = [
        "--class-map",
        "odd.json",
        "--iterations",
        "1",
        "--title",
        "t\udcff",
        "--json",
    ]
    assert stats("trace.json", *arguments) == 0
    (others, gemm) = json.loads(capsys.readouterr().out)["tables"]["kernel_classes"]
    assert (gemm["title"], gemm["class"], gemm["total_count"]) == (
        "t\ufffd",
        "g\ufffd",
        2,
    )
    assert others["total_count"] == 0


def test_doubts_are_told_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert stats(*ALL[:-3], "3") == 0
    out, err = capsys.readouterr()
    assert (
        "warning: run_cuda_gpu_kern_sum: 2 NVTX ranges 'step', not 3 (3 iterations"
        " times 1 GPU); the estimate assumes one range per iteration and GPU" in err
    )
    assert "warning" not in out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "give a trace, --kernels with a table, or --config"),
        (TABLES, 2, "give --iterations, or --nvtx with --iteration-range"),
        (["trace.json"], 2, "give --iterations, or --iteration-range"),
        (
            ["trace.json", *TABLES, "--iterations", "1"],
            2,
            "--kernels takes a table, but a trace is given too",
        ),
        (
            ["--config", "c.json", "--gpus", "1"],
            2,
            "--gpus cannot be combined with --config",
        ),
        (
            ["--config", "c.json", "--mem-size", "m"],
            2,
            "--mem-size cannot be combined with --config",
        ),
        (["--config", "absent.json"], 1, "absent.json: cannot be read"),
        (
            [*TABLES, "--nvtx", "n.csv", "--iterations", "1"],
            2,
            "--nvtx and --iteration-range only work together",
        ),
        (
            [*TABLES, "--mem-size", "m.csv", "--iterations", "1"],
            2,
            "--mem-size needs --mem",
        ),
        (
            [*ALL, "--iteration-range", "steps"],
            2,
            "there is no NVTX range called 'steps'; the closest",
        ),
        (
            [*ALL, "--mem", "run_cuda_gpu_kern_sum.csv"],
            1,
            "contains the report cuda_gpu_kern_sum instead of",
        ),
        ([*ALL, "--kernels", "absent.csv"], 1, "absent.csv: no such file"),
        (
            [*ALL, "--kernels", "empty.csv"],
            1,
            "empty.csv: does not contain the report cuda_gpu_kern_sum",
        ),
        (
            [*ALL, "--kernels", "header.csv"],
            1,
            "header.csv: has a header, but no kernels",
        ),
        (
            [*ALL, "--kernels", "nan.csv"],
            1,
            "nan.csv: line 2 has 'nan' in the column 'totaltime'",
        ),
        ([*ALL, "--kernels", "."], 1, ".: is a folder"),
        (["--config", "."], 1, ".: cannot be read"),
        (
            ["--config", "list.json"],
            1,
            "list.json: the file: expected an object, got [1]",
        ),
        ([*ALL, "--class-map", "trace.json"], 1, "trace.json: is not a class map"),
        ([*ALL, "--csv", "x.csv"], 2, "is a single file, but there are several tables"),
        ([*ALL, "--xlsx", "x.csv"], 2, "is not the name of an Excel file"),
        ([*ALL, "--iterations", "0"], 2, "--iterations"),
        (
            ["trace.json", "--iteration-range", "step", "--gpus", "3"],
            2,
            "cannot be divided evenly among 3 GPUs",
        ),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stats(*arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_class_maps_that_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("classes.json").write_text('{"gemm": "a", "xmma_gemm": "b"}')
    assert stats(*ALL) == 1
    err = capsys.readouterr().err
    assert "classes.json: " in err
    assert "'gemm'" in err
    assert "'xmma_gemm'" in err


@pytest.mark.real_data
def test_the_real_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert stats("--config", GPA / "config.json") == 0
    out = capsys.readouterr().out
    assert (
        "Kernel time per iteration: 7947.172 (ms)\nKernel instances per iteration: 7877\n"
        in out
    )
    assert (
        "NCCL time per iteration: 3275.659 (ms)\nNCCL instances per iteration: 244\n"
        in out
    )


# The page of the documentation.


def blocks(language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE
    )


def _reader_folder() -> None:
    """What the page's reader has: the tables, a trace, and the files that the page shows."""
    Path("run.sqlite").write_bytes(Path("trace.json").read_bytes())
    Path("config.json").write_text(blocks("json")[0], encoding="utf-8")
    Path("kernels.csv").write_text(KERNELS)
    Path("memory.csv").write_text(MEMORY)


@pytest.mark.parametrize(
    "command",
    [
        line.removeprefix("$ ")
        for block in blocks("console")
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("$ tracelens-ext")
    ],
)
def test_commands_of_the_page_run(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _reader_folder()
    assert run(shlex.split(command, comments=True)[1:]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    shown = blocks("text")[0]
    if "--config" in command:
        assert out == shown


@pytest.mark.process
@pytest.mark.parametrize("code", blocks("python"))
def test_python_of_the_page_runs(code: str) -> None:
    _reader_folder()
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code], check=True, capture_output=True
    )
