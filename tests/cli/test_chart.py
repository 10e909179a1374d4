"""`tracelens-ext chart`: the three examples of its page, and what a user can get wrong."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.chart_helpers import ROOT, benchmark, fake_nsys, report, small_export
from tests.support.comparison_helpers import needs_html, write
from tests.support.docs_helpers import page_text
from tests.support.make_trace import TraceMaker
from tests.support.report_html_helpers import HOSTILE, read_page
from tracelens_ext.cli import run
from tracelens_ext.compare.engine_chart.page import DEFAULT_TITLE
from tracelens_ext.compare.engine_chart.specification import known_models
from tracelens_ext.report.manifest import (
    MANIFEST,
    manifest_files,
    unfinished_note,
    write_manifest,
)

SHARED = ROOT.parent / "shared"
TWO_GPUS = SHARED / "nsys" / "two_gpu_training.sqlite"
PAGE = page_text("chart.md")
pytestmark = needs_html


def blocks(language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE
    )


@pytest.fixture(scope="module")
def made(short_demo_trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the page's reader has."""
    folder = tmp_path_factory.mktemp("chart")
    small_export(folder / "run2.sqlite")
    shutil.copy(short_demo_trace, folder / "demo.json.gz")
    for name in ("run1.nsys-rep", "run2.nsys-rep", "new.nsys-rep"):
        report(folder / name)
    (folder / "engine_def.json").write_text(blocks("json")[0], encoding="utf-8")
    of_vllm = {
        "vllm": {"llama": {"gemm|nvjet": "gemm", "CUDA mem": "memops", ".*": "misc"}}
    }
    (folder / "vllm_engine_model.json").write_text(
        json.dumps(of_vllm), encoding="utf-8"
    )
    fake_nsys(folder)
    return folder


@pytest.fixture(autouse=True)
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with those files in it, and an `nsys` on the PATH."""
    for path in made.iterdir():
        if path.is_file() and not path.name.startswith("result"):
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PATH", f"{made}:/usr/bin:/bin")
    return tmp_path


def chart(*arguments: object) -> int:
    return run(["chart", *map(str, arguments)])


def rows(folder: Path | str = ".") -> list[dict[str, str]]:
    with (Path(folder) / "result.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def seconds(folder: Path | str = ".") -> dict[str, dict[str, float]]:
    """Bar → category → seconds."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows(folder):
        found[row["Model_Engine"]][row["Category"]] += float(row["Elapsed Time (sec)"])
    return {bar: dict(categories) for bar, categories in found.items()}


COMMANDS = [
    line
    for block in blocks("console")
    for line in block.splitlines()
    if "chart" in line
]


@pytest.mark.process
@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_page_draws_a_chart(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *arguments = shlex.split(line.removeprefix("$ "))
    assert program == "tracelens-ext"
    assert run(arguments) == 0, capsys.readouterr().err
    told = capsys.readouterr()
    assert told.err == ""
    folder = next(
        (
            arguments[arguments.index(o) + 1]
            for o in ("--out-dir", "--out_dir")
            if o in arguments
        ),
        ".",
    )
    assert f"Wrote {Path(folder) / 'result.html'}" in told.out
    title = (
        arguments[arguments.index("--title") + 1]
        if "--title" in arguments
        else DEFAULT_TITLE
    )
    page = read_page(Path(folder) / "result.html")
    assert title in page.root.all("h1")[0].content()
    for bar, categories in seconds(folder).items():
        assert bar in told.out
        pivot = page.table("elapsed_sec_by_category")
        (total,) = [
            row for row in pivot.all("tr") if "total_elapsed_sec" in row.content()
        ]
        heads = [head.content() for head in pivot.all("thead")[0].all("th")]
        shown = total.children[heads.index(bar)].content().replace(",", "")
        assert float(shown) == pytest.approx(sum(categories.values()), abs=5e-3)


def test_the_page_shows_the_three_examples() -> None:
    assert len(COMMANDS) >= 6
    assert any("gpt-oss,306" in line for line in COMMANDS)
    assert any("llama,100" in line and "gpt-oss,102" in line for line in COMMANDS)
    assert any("new.nsys-rep,DEF,ABC" in line for line in COMMANDS)


@pytest.mark.process
def test_python_of_the_page_runs() -> None:
    (code,) = blocks("python")
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code], check=True, capture_output=True
    )
    assert set(seconds("results")) == {"gpt-oss_vllm_run2_0", "llama_vllm_demo_1"}


def test_elapsed_given_is_gpu_and_the_rest() -> None:
    assert chart("run2.sqlite,vllm,gpt-oss,102", "-q") == 0
    ((bar, found),) = seconds().items()
    assert bar == "gpt-oss_vllm_run2_0"
    assert sum(found.values()) == pytest.approx(102)
    assert found["CPU(non-GPU)"] > 100
    assert {
        "gemm",
        "moe_gemm",
        "attn",
        "nccl_and_custom_ar",
        "non-gpu-H_D_memops",
    } <= set(found)


@pytest.mark.slow
def test_spellings_and_order_do_not_matter(capsys: pytest.CaptureFixture[str]) -> None:
    one = "run2.sqlite,vllm,llama,1"
    two = "run2.sqlite,vllm,gpt-oss,2"
    printed = []
    for arguments in (
        [one, two, "--out-dir", "x"],
        ["--in_file", one, two, "--out_dir", "x"],
        ["--infile", one, two, "--out_dir=x"],
        ["--out-dir", "x", "--in-file", one, "--title", "t", two],
        [two, "--in_file", one, "--out_dir", "x"],
    ):
        assert chart(*arguments) == 0
        printed.append(capsys.readouterr().out)
    assert len(set(printed)) == 1
    assert list(seconds("x")) == ["llama_vllm_run2_0", "gpt-oss_vllm_run2_1"]


def test_bars_of_one_file_and_model_are_told_apart() -> None:
    one = "run2.sqlite,vllm,llama,1"
    assert chart(one, one, "-q") == 0
    assert set(seconds()) == {"llama_vllm_run2_0", "llama_vllm_run2_1"}


def test_a_trace_alone_gets_the_built_in_categories() -> None:
    assert chart("run2.sqlite", "-q") == 0
    assert set(seconds()) == {"run2_0"}


def test_too_little_elapsed_time_is_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert chart("run2.sqlite,vllm,llama,1e-9") == 0
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    assert "llama_vllm_run2_0: 1e-09 s elapsed is less than the GPU time" in told.err
    assert seconds()["llama_vllm_run2_0"]["CPU(non-GPU)"] == 0
    assert "less than the GPU time" in Path("result.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give a trace"),
        (["run2.sqlite,vllm"], "expected FILE,ENGINE,MODEL,SECONDS"),
        (
            ["run2.sqlite,vllm,llama,-3"],
            "'-3' is not a number of seconds; give the run time",
        ),
        (
            ["run2.sqlite,vlm,llama,3"],
            "there is no engine called 'vlm'; did you mean 'vllm'? known",
        ),
        (
            ["run2.sqlite,vllm,gpt,3"],
            "known models: deepseek, ds, gpt-oss, llama, qwen",
        ),
        (
            ["run2.sqlite,DEF,ABC,3"],
            "known engines: sglang, tensorrt-llm, trtllm, vllm",
        ),
        (
            ["run2.sqlite", "--categorizer", "builtn"],
            "there is no categorizer called 'builtn'",
        ),
    ],
)
def test_bad_usage_exits_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chart(*arguments) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert told.err.count("\n") == 1
    assert not Path("result.csv").exists()


def test_bad_files_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    Path("text.json").write_text("hello")
    Path("host_only.json").write_text(
        '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "o",'
        ' "pid": 1, "tid": 1, "ts": 1, "dur": 1}]}'
    )
    for name, words in (
        ("absent.json", "no such file"),
        ("text.json", "is not a trace in a known format"),
        ("host_only.json", "contains no GPU event"),
    ):
        # The other input is fine, and nothing is written for it alone.
        assert chart("run2.sqlite,vllm,llama,1", f"{name},vllm,llama,1") == 1
        told = capsys.readouterr()
        assert told.err.startswith(f"tracelens-ext: {name}: ")
        assert words in told.err
        assert told.err.count("\n") == 1
        assert not Path("result.csv").exists()


@pytest.mark.process
def test_a_damaged_report_shows_what_nsys_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("bad.nsys-rep").write_bytes(b"damaged")
    assert chart("bad.nsys-rep,vllm,llama,1", "--nsys", "nsys") == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "the report is damaged" in told


@pytest.mark.process
@pytest.mark.parametrize("option", ["--nsys_cmd", "--nsys-cmd", "--nsys"])
def test_which_nsys(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert chart("run1.nsys-rep,vllm,llama,1", "-q") == 0
    without = Path("result.csv").read_text(encoding="utf-8")
    assert chart("run1.nsys-rep,vllm,llama,1", option, "./nsys", "-q") == 0
    assert Path("result.csv").read_text(encoding="utf-8") != without
    assert chart("run1.nsys-rep,vllm,llama,1", option, "./absent", "-q") == 1
    assert "./absent" in capsys.readouterr().err


def test_nothing_of_the_users_is_written_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = "run2.sqlite,vllm,llama,1"
    for name in ("result.html", "result.csv"):
        Path(name).write_text("mine")
        assert chart(given, "-q") == 1
        assert "was not written by tracelens-ext" in capsys.readouterr().err
        assert Path(name).read_text() == "mine"
        assert chart(given, "-q", "--force") == 0
        assert chart(given, "-q") == 0
        Path(name).unlink()
        Path(MANIFEST).unlink()


@pytest.mark.usefixtures("few_tables")
def test_tables_of_a_report_in_the_same_folder_stay() -> None:
    assert run(["report", "demo.json.gz", "--csv-dir", "x", "-q"]) == 0
    before = {path.name for path in Path("x").glob("*.csv")}
    assert chart("run2.sqlite,vllm,llama,1", "-q", "--out-dir", "x") == 0
    assert {path.name for path in Path("x").glob("*.csv")} == before | {"result.csv"}
    assert {"result.csv", *before} <= set(manifest_files("x"))


@pytest.mark.slow
@pytest.mark.usefixtures("few_tables")
def test_an_unfinished_folder_is_told_and_mended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As a run leaves it that is killed between two renames."""
    for command in (
        ["chart", "run2.sqlite,vllm,llama,1", "-q", "--out-dir", "x"],
        ["report", "demo.json.gz", "--csv-dir", "x", "-q"],
        ["nsys", "stats", "demo.json.gz", "--iterations", "1", "--csv", "x", "-q"],
        ["compare", "demo.json.gz", "demo.json.gz", "--format", "csv", "-o", "x", "-q"],
    ):
        assert run(command) == 0
        assert "two reports" not in capsys.readouterr().err
        write_manifest(Path("x"), manifest_files("x"), unfinished=True)
        assert run(command) == 0
        told = capsys.readouterr().err
        assert "x: a run was killed while it was moving its files here" in told
        assert unfinished_note("x") == []


def test_an_input_called_as_an_output_is_safe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("result.html").symlink_to("demo.json.gz")
    assert chart("result.html,vllm,llama,1", "--force") == 1
    assert "is the trace itself" in capsys.readouterr().err


def test_hostile_names_stay_texts(capsys: pytest.CaptureFixture[str]) -> None:
    maker = TraceMaker()
    for place, name in enumerate(HOSTILE):
        maker.gpu("kernel", name, 10 * place, 9)
    name = "<img src=x onerror=window.pwned=9>\x1b[31m.json"
    write(Path(name), maker)
    arguments = [f"{name},<b>e\udcff</b>,<script>m,0", "--categorizer", "builtin"]
    assert chart(*arguments, "--title", "<script>alert(1)</script>") == 0
    assert "\x1b" not in capsys.readouterr().out
    page = read_page(Path("result.html"))
    assert page.root.all("h1")[0].content() == "<script>alert(1)</script>"
    assert len(page.root.all("script")) == 3
    assert not page.root.all("img")
    for figure in page.data["figures"]:
        shown = figure["rooms"][-1]["yaxis"]["ticktext"]
        shown += [
            t
            for trace in figure["data"]
            for t in trace.get("customdata", trace["text"])
        ]
        for text in shown:
            assert set(re.findall(r"<[^>]*>", text)) <= {"<b>", "</b>", "<br>"}


def test_what_is_printed_fits_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert chart("run2.sqlite,vllm,llama,1", "demo.json.gz,vllm,gpt-oss,0") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("1: llama_vllm_run2_0; elapsed 1.00 s (given), GPU ")
    (total,) = [line.split() for line in lines if line.startswith("total_elapsed_sec")]
    assert total[1:3] == ["1.000", "100.0%"]


def test_of_many_runs_the_times_are_shown_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    maker = TraceMaker()
    for device in (0, 1):
        maker.gpu("kernel", "nvjet_x", 10 * device, 15, device=device)
    write(Path("two.json"), maker)
    assert chart(*(f"two.json,vllm,llama,{number}" for number in range(1, 6))) == 0
    out = capsys.readouterr().out
    (head,) = [line for line in out.splitlines() if line.startswith("category")]
    assert " ".join(head.split()).startswith(
        "category 1 (sec) 2 (sec) 3 (sec) 4 (sec) 5 (sec)"
    )
    assert "not shown (terminal too narrow): " in out
    assert out.count("the trace has 2 GPUs") == 1
    assert "1, 2, 3, 4, 5: the trace has 2 GPUs" in out


@pytest.mark.process
def test_help_lists_engines_and_models_at_once() -> None:
    program = (
        "import sys; from tracelens_ext.cli import run; code = run(['chart', '--help']);"
        "slow = {'pandas', 'numpy', 'xlsxwriter', 'plotly', 'jinja2'} & set(sys.modules);"
        "sys.exit(code or (f'imported: {slow}' if slow else 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for option in (
        "--in-file",
        "--in_file",
        "--infile",
        "--out_dir",
        "--nsys_cmd",
        "--title",
    ):
        assert option in done.stdout
    for engine, models in known_models().items():
        assert re.search(
            rf"^ +{engine} +{', '.join(models)}$", done.stdout, re.MULTILINE
        )
    assert {"vllm", "sglang", "trtllm"} <= set(known_models())


def test_maps_of_the_user_are_known() -> None:
    assert known_models(["engine_def.json"])["DEF"] == ["ABC"]
    assert chart("run2.sqlite,DEF,ABC,1", "--maps", "engine_def.json", "-q") == 0
    assert {"gemm", "misc", "CPU(non-GPU)"} <= set(seconds()["ABC_DEF_run2_0"])


@pytest.mark.real_data
def test_a_real_export_event_by_event() -> None:
    """The sums by kernel are those of the plain loop over events sorted by start."""
    connection = sqlite3.connect(f"file:{TWO_GPUS}?mode=ro", uri=True)
    query = """SELECT k.start, k.end, s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k
                 JOIN StringIds s ON s.id = k.demangledName
               UNION ALL SELECT m.start, m.end, '[CUDA memcpy ' || o.label || ']'
                 FROM CUPTI_ACTIVITY_KIND_MEMCPY m
                 JOIN ENUM_CUDA_MEMCPY_OPER o ON o.id = m.copyKind
               UNION ALL SELECT start, end, '[CUDA memset]' FROM CUPTI_ACTIVITY_KIND_MEMSET"""
    expected: dict[str, int] = defaultdict(int)
    reach = 0
    for start, end, name in sorted(
        connection.execute(query), key=lambda event: event[0]
    ):
        expected[name] += max(0, end - max(start, reach))
        reach = max(reach, end)
    connection.close()
    assert chart(f"{TWO_GPUS},vllm,llama,0", "-q") == 0
    found = {row["Name"]: float(row["Elapsed Time (sec)"]) for row in rows()}
    rest = found.pop("CPU(non-GPU)")
    assert found == pytest.approx(
        {name: ns / 1e9 for name, ns in expected.items()}, abs=1e-12
    )
    assert 0 < rest < 0.1
    assert chart(f"{TWO_GPUS},vllm,llama,0", "-q", "--per-device") == 0
    assert list(seconds()) == [
        "llama_vllm_two_gpu_training_0_gpu0",
        "llama_vllm_two_gpu_training_0_gpu1",
    ]


@pytest.mark.process
def test_the_benchmark_measures_both_commands(tmp_path: Path) -> None:
    table = benchmark().table(tmp_path, 1, kernels=2000)
    assert re.search(r"^\| nsys stats \| \d+\.\d \|$", table, re.MULTILINE)
    assert re.search(r"^\| chart \| \d+\.\d \|$", table, re.MULTILINE)
    assert re.search(
        r"^\| both \(target: under 15 s\) \| \d+\.\d \|$", table, re.MULTILINE
    )
