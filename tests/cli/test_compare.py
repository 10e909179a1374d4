"""`tracelens-ext compare`: what it prints, writes, and exits with."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import openpyxl
import pytest

from tests.conftest import make_few_tables
from tests.support.comparison_helpers import needs_html, training, write
from tests.support.docs_helpers import page_text
from tracelens_ext.cli import run
from tracelens_ext.report.manifest import MANIFEST, has_own_mark


@pytest.fixture(autouse=True)
def _traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    write(tmp_path / "a.json", training(3))
    write(tmp_path / "b.json", training(4, gemm_us=50))


def compare(*arguments: object) -> int:
    return run(["compare", *map(str, arguments)])


def test_it_prints_the_largest_changes_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare("a.json", "b.json") == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith(
        "B takes as long as A: 0.200 ms of wall time per iteration. "
        "B did 1.33 times A's work, and took"
    )
    assert (
        "A (baseline): a.json; devices: GPU 0; iterations: 3 (ProfilerStep#5 to #7)"
        in lines
    )
    (gemm,) = [line.split() for line in lines if line.startswith("GEMM")]
    assert gemm == ["GEMM", "40.000", "50.000", "+10.000", "+25.0%", "10.000"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]


@pytest.mark.usefixtures("few_tables")
def test_total_compares_whole_traces(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("a.json", "b.json", "--total") == 0
    out = capsys.readouterr().out
    assert "GPU time by category, of the whole trace" in out
    (gemm,) = [line.split() for line in out.splitlines() if line.startswith("GEMM")]
    assert gemm[1:3] == ["0.120", "0.200"]


@needs_html
@pytest.mark.usefixtures("few_tables")
def test_a_workbook_and_a_page(tmp_path: Path) -> None:
    arguments = ["a.json", "b.json", "-q", "-o", "new/x.xlsx", "--html", "new/x.html"]
    assert compare(*arguments) == 0
    assert has_own_mark("new/x.xlsx")
    assert has_own_mark("new/x.html")
    summary = openpyxl.load_workbook("new/x.xlsx")["summary"]
    texts = [cell.value for row in summary.rows for cell in row if cell.value]
    assert texts[0] == "GPU performance comparison"
    assert "3 (ProfilerStep#5 to #7)" in texts
    assert compare(*arguments) == 0, "its own files are replaced"
    assert len(list((tmp_path / "new").iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (["-o", "x.json"], "x.json"),
        (["-o", "x.md"], "x.md"),
        (["--format", "xlsx"], "comparison.xlsx"),
        (["--format", "csv"], f"comparison_csvs/{MANIFEST}"),
        (["--format", "csv", "-o", "d"], "d/categories.csv"),
        (["-o", "made/"], "made/comparison.xlsx"),
    ],
)
@pytest.mark.usefixtures("few_tables")
def test_where_the_outputs_go(arguments: list[str], path: str) -> None:
    assert compare("a.json", "b.json", "-q", *arguments) == 0
    assert Path(path).is_file()


@pytest.mark.usefixtures("few_tables")
def test_json_goes_to_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        compare("a.json", "b.json", "--format", "json", "--fail-if", "GEMM > 1%") == 3
    )
    captured = capsys.readouterr()
    tables = json.loads(captured.out)["tables"]
    assert tables["categories"][0]["kernel_category"] == "GEMM"
    assert "budget exceeded" in captured.err
    assert compare("a.json", "b.json", "--format", "markdown") == 0
    assert capsys.readouterr().out.startswith("<!-- written by tracelens-ext -->\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]


@pytest.mark.usefixtures("few_tables")
def test_a_budget_that_holds_and_one_that_is_crossed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert compare("a.json", "b.json", "--fail-if", "GEMM > +25%") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.splitlines()[-1] == (
        "Within budget: B: GEMM 0.040 → 0.050 ms (+0.010 ms, +25.00 %); the budget is "
        "GEMM > +25 %"
    )
    budgets = ["--fail-if", "Convolution > 1ms", "--fail-if", "busy_time > 5 %"]
    assert compare("a.json", "b.json", "-q", "-o", "x.xlsx", *budgets) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "tracelens-ext: budget exceeded: B: busy_time 0.070 → 0.080 ms (+0.010 ms, "
        "+14.29 %); the budget is busy_time > +5 %\n"
    )
    assert Path("x.xlsx").exists(), "the tables to look at are written all the same"


@pytest.mark.usefixtures("few_tables")
def test_a_category_of_the_users_own_rules_is_known(tmp_path: Path) -> None:
    rules = tmp_path / "r.toml"
    rules.write_text(
        '[[rule]]\ncategory = "My Op"\npattern = "my_company::"\nexamples = ["my_company::f"]\n'
    )
    arguments = ["a.json", "b.json", "-q", "--fail-if", "My Op > 1%"]
    assert compare(*arguments, "--rules", rules) == 0
    assert compare(*arguments) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.json", "b.json", "--fail-if", "GEM > 1%"], "the closest names: GEMM"),
        (
            ["a.json", "absent.json", "--fail-if", "GEMM"],
            "is not a budget",
        ),  # told first
        (["a.json"], "needs at least two traces; the first is the baseline"),
        (["a.json", "b.json", "-o", "x"], "name it .xlsx"),
        (["a.json", "b.json", "--html", "x"], "is not the name of a page"),
    ],
)
@pytest.mark.usefixtures("few_tables")
def test_bad_usage_exits_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert compare(*arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1


def test_bad_traces_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("absent.json", "none*.json"):
        assert compare("a.json", wrong) == 1
        assert capsys.readouterr().err.startswith(f"tracelens-ext: {wrong}: ")


@pytest.mark.usefixtures("few_tables")
def test_nothing_of_the_users_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    before = Path("b.json").read_bytes()
    assert compare("a.json", "b.json", "-o", "b.json", "--force") == 1
    assert "is the trace itself" in capsys.readouterr().err
    assert Path("b.json").read_bytes() == before
    Path("x.xlsx").write_text("mine")
    assert compare("a.json", "b.json", "-o", "x.xlsx") == 1
    assert Path("x.xlsx").read_text() == "mine"
    assert compare("a.json", "b.json", "-q", "-o", "x.xlsx", "--force") == 0


@pytest.mark.usefixtures("few_tables")
def test_a_trace_is_like_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("a.json", "a.json", "--fail-if", "total_time > 0%") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "B takes as long as A: 0.200 ms of wall time per iteration." in printed
    assert (
        "B did the same work as A at the same speed; there are no differences."
        in printed
    )


@pytest.mark.process
def test_help_comes_at_once_and_says_all() -> None:
    program = (
        "import sys; from tracelens_ext.cli import run; code = run(sys.argv[1:]);"
        "slow = {'pandas', 'numpy', 'xlsxwriter', 'plotly', 'rich'} & set(sys.modules);"
        "sys.exit(code or (f'imported: {slow}' if slow else 0))"
    )
    for command in ("compare", "report"):
        done = subprocess.run(
            [sys.executable, "-c", program, command, "--help"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        for option in (
            "--output",
            "--format",
            "--html",
            "--force",
            "--total",
            "--quiet",
        ):
            assert option in done.stdout


@pytest.mark.slow
@needs_html
def test_the_documentation_does_what_it_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = page_text("compare.md")
    commands = re.findall(r"^\$ tracelens-ext (.*)$", text, re.MULTILINE)
    assert len(commands) >= 8
    for command in commands:
        with monkeypatch.context() as patched:
            if command.startswith("report "):
                make_few_tables(patched)
            assert run(shlex.split(command)) == 0, command
    printed = capsys.readouterr().out
    (output,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert output in printed
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, object] = {}
    exec(program, names)  # noqa: S102  # the documentation's own
    assert "comparison" in names


def test_json_has_the_verdict_beside_the_tables(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert compare("a.json", "b.json", "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["unit"] == {
        "kind": "iteration",
        "A_count": 3,
        "B_count": 4,
        "confidence": 1.0,
    }
    assert document["work_ratio"] == pytest.approx(4 / 3)
    assert document["verdict"]["speed_ratio"] == pytest.approx(8 / 7)
    assert document["verdict"]["places"][0]["A_operation"] == "aten::mm"
    assert compare("a.json", "b.json", "a.json", "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["work_ratio"] == pytest.approx([4 / 3, 1.0])
    assert [each["speed_ratio"] for each in document["verdict"]] == pytest.approx(
        [8 / 7, 1.0]
    )
    kernel = document["tables"]["kernels"][0]
    assert kernel["B_by_speed_ms"] == pytest.approx(0.010)
    assert kernel["C_by_calls_ms"] == 0.0
    assert {row["trace"] for row in document["tables"]["places"]} == {"B", "C"}


@pytest.mark.usefixtures("few_tables")
def test_both_commands_compose_one_comparison(tmp_path: Path) -> None:
    write(tmp_path / "c.json", training(4, gemm_us=50))
    assert (
        run(
            [
                "report",
                "a.json",
                "c.json",
                "--compare",
                "--format",
                "json",
                "-o",
                "r/",
                "-q",
            ]
        )
        == 0
    )
    assert compare("a.json", "c.json", "-o", "c_own.json", "-q") == 0
    one, other = (
        json.loads((tmp_path / name).read_text())
        for name in ("r/comparison.json", "c_own.json")
    )
    assert one == other


@pytest.mark.slow
@pytest.mark.usefixtures("few_tables")
def test_a_trace_against_its_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last four have a median of 39 µs and deviations of 3, 1, 3 and 1, so of 2; 50 is 5.5."""
    before = tmp_path / "before"
    for at, gemm_us in enumerate((90, 36, 40, 42, 38)):
        trace = write(before / f"{at}.json", training(2, gemm_us=gemm_us))
        os.utime(trace, ns=(10**18 + at, 10**18 + at))
    for budget, exit_code in (
        ("GEMM > 3 mad", 3),
        ("GEMM > 5.5 mad", 0),
        ("GEMM > 20%", 3),
    ):
        arguments = ("--baseline", before, "b.json", "--last", 4, "--fail-if", budget)
        assert compare(*arguments) == exit_code, budget
        assert "from the median of 4 earlier ones" in capsys.readouterr().out
    assert compare("--baseline", before, "b.json", "--last", 2) == 2
    for at in (0, 1, 2):
        (before / f"{at}.json").unlink()
    assert compare("--baseline", before, "b.json") == 1
    assert compare("a.json", "b.json", "--fail-if", "GEMM > 3 mad") == 2


@pytest.mark.usefixtures("few_tables")
def test_budgets_on_whole_traces_warn_of_unlike_amounts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(Path("long.json"), training(3, annotated=False))
    write(Path("short.json"), training(2, annotated=False))
    assert compare("long.json", "short.json", "--fail-if", "total_time > 5%") == 0
    told = capsys.readouterr().err
    assert (
        "B did 0.67 of A's work: budgets on time compare different amounts of work"
        in told
    )


def test_how_well_each_device_is_used_needs_shapes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert compare("a.json", "b.json", "--normalize", "roofline") == 2
    assert "--device-peaks" in capsys.readouterr().err
