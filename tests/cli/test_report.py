"""`tracelens-ext report`: one trace, several, what is written where, and what is never lost."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.comparison_helpers import GEMM, measured, needs_html, training, write
from tests.support.make_trace import TraceMaker
from tracelens_ext.cli import run
from tracelens_ext.cli.comparison_blocks import comparison_blocks
from tracelens_ext.cli.named_traces import find_traces, without_repetitions
from tracelens_ext.cli.outputs import report_stems
from tracelens_ext.cli.screen import show_blocks
from tracelens_ext.report.manifest import MANIFEST, has_own_mark


def names(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    )


def report(*arguments: object) -> int:
    return run(["report", *map(str, arguments)])


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


# Which traces.


def test_files_folders_and_patterns(tmp_path: Path) -> None:
    for name in ("r/b.json", "r/a.json", "r/sub/c.json", "r/notes.txt", "[x].json"):
        write(tmp_path / name, training(1))
    shutil.copy("r/a.json", "r/d.JSON.GZ")
    Path("r/x_perf_report.json").write_text('{\n "generator": "tracelens-ext",\n')

    def found(*arguments: str) -> list[str]:
        return [str(path) for path in find_traces(arguments).paths]

    assert found("r") == ["r/a.json", "r/b.json", "r/d.JSON.GZ"]
    assert found("r/[ab].json") == ["r/a.json", "r/b.json"]
    assert found("r/**/*.json") == ["r/a.json", "r/b.json", "r/sub/c.json"]
    assert found(f"{tmp_path}/r/?.json") == [
        f"{tmp_path}/r/a.json",
        f"{tmp_path}/r/b.json",
    ]
    assert found("[x].json") == ["[x].json"], "a file of that very name"
    assert found("r/notes.txt", "absent.json") == ["r/notes.txt", "absent.json"]
    assert found("r/x_perf_report.json") == ["r/x_perf_report.json"], "named, so meant"
    assert found("r/a.json", "r") == ["r/a.json", "r/a.json", "r/b.json", "r/d.JSON.GZ"]
    assert without_repetitions(
        [Path("r/b.json"), Path("r/a.json"), Path("r/../r/b.json")]
    ) == [
        Path("r/b.json"),
        Path("r/a.json"),
    ]


def test_arguments_that_name_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    assert report("empty") == 1
    error = capsys.readouterr().err
    assert "empty: contains no .nsys-rep, " in error
    assert " file; give a folder" in error
    assert report("none*.json") == 1
    assert "none*.json: no file matches; check the pattern" in capsys.readouterr().err
    assert report("absent.json") == 1
    assert "absent.json: no such file" in capsys.readouterr().err


# One trace.


@pytest.mark.usefixtures("few_tables")
def test_the_default_is_a_workbook_beside_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "in" / "t.json", training(2))
    assert report("in/t.json") == 0
    assert names(tmp_path) == ["in/t.json", "in/t_perf_report.xlsx"]
    out = capsys.readouterr().out
    assert out.startswith("Trace: in/t.json")
    assert "GPU timeline" in out
    assert out.endswith(f"Wrote {Path('in/t_perf_report.xlsx')}\n")
    assert report("in/t.json", "-q") == 0, "its own report is replaced"
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("few_tables")
def test_a_table_that_is_large_for_a_workbook_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelens_ext.report.excel.MANY_CELLS", 20)
    write(tmp_path / "t.json", training(2))
    assert report("t.json", "-q", "-o", "x.xlsx") == 0
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("kernels_by_category has ") for line in lines)
    assert all("--format csv or parquet" in line for line in lines)
    assert report("t.json", "-q", "--format", "csv") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        (["-o", "deep/er/x.xlsx"], ["deep/er/x.xlsx"]),
        (["-o", "x.json"], ["x.json"]),
        (["-o", "x.md"], ["x.md"]),
        (["-o", "x.txt", "--format", "markdown"], ["x.txt"]),
        (["--format", "json"], ["t_perf_report.json"]),
        (["-o", "new/"], ["new/t_perf_report.xlsx"]),
        (["-o", "new/", "--format", "json"], ["new/t_perf_report.json"]),
        (["-o", "there"], ["there/t_perf_report.xlsx"]),
        pytest.param(["--html", "page.html"], ["page.html"], marks=needs_html),
        pytest.param(
            ["--html", "there"], ["there/t_perf_report.html"], marks=needs_html
        ),
        pytest.param(
            ["--html", "p.html", "-o", "x.xlsx"], ["p.html", "x.xlsx"], marks=needs_html
        ),
    ],
)
@pytest.mark.usefixtures("few_tables")
def test_where_the_outputs_go(
    tmp_path: Path, arguments: list[str], files: list[str]
) -> None:
    (tmp_path / "there").mkdir()
    write(tmp_path / "t.json", training(1))
    assert report("t.json", "-q", *arguments) == 0
    assert names(tmp_path) == sorted(["t.json", *files])
    assert all(has_own_mark(file) for file in files)


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [
        (["--csv-dir", "tables"], "tables"),
        (["--format", "csv"], "t_perf_report_csvs"),
        (["--format", "csv", "-o", "made/here"], "made/here"),
    ],
)
@pytest.mark.usefixtures("few_tables")
def test_folders_of_tables(tmp_path: Path, arguments: list[str], folder: str) -> None:
    write(tmp_path / "t.json", training(1))
    assert report("t.json", "-q", *arguments) == 0
    written = names(tmp_path / folder)
    assert {MANIFEST, "gpu_timeline.csv", "kernels_by_category.csv"} <= set(written)
    assert len(names(tmp_path)) == len(written) + 1, "nothing else but the trace"
    assert report("t.json", "-q", *arguments) == 0, "its own folder is written again"
    with Path(folder, "gpu_timeline.csv").open(encoding="utf-8") as stream:
        assert next(csv.reader(stream)) == ["type", "time ms", "percent"]


@pytest.mark.usefixtures("few_tables")
def test_the_formats_hold_the_tables_of_the_workbook(tmp_path: Path) -> None:
    write(tmp_path / "t.json", training(1))
    assert report("t.json", "-q") == 0
    assert report("t.json", "-q", "--format", "json") == 0
    sheets = openpyxl.load_workbook("t_perf_report.xlsx").sheetnames
    tables = json.loads(Path("t_perf_report.json").read_bytes())["tables"]
    assert [name for name in sheets if name not in ("summary", "charts")] == list(
        tables
    )
    (gemm,) = [
        row for row in tables["kernels_by_category"] if row["kernel_name"] == GEMM
    ]
    assert gemm["total_time_ms"] == 0.04


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "x"], "the default report is an Excel file; name it .xlsx"),
        (["-o", "x.html"], "write it with --html"),
        (["-o", "x.csv"], "give a folder, with --format csv"),
        (["-o", "x.json.gz"], "reports are not compressed"),
        (["-o", "x.json", "--format", "xlsx"], "does not match --format xlsx"),
        (
            ["-o", "x.txt", "--format", "xlsx"],
            "is not the name of an Excel file; end it with .xlsx",
        ),
        pytest.param(
            ["--html", "x.xlsx"], "is not the name of a page", marks=needs_html
        ),
        (["--csv-dir", "d", "--format", "csv", "-o", "d"], "is used for two outputs"),
        (["--compare"], "--compare needs at least two traces"),
        (["--total"], "add --compare"),
        (
            ["--no-kernel-categories", "--rules", "x.toml"],
            "leave out --no-kernel-categories",
        ),
        (["--no-kernel-categories", "--compare"], "leave out --no-kernel-categories"),
    ],
)
def test_bad_usage_is_told_and_exits_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    write(tmp_path / "t.json", training(1))
    assert report("t.json", *arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert names(tmp_path) == ["t.json"]


def test_a_package_that_is_missing_is_told_before_reading(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    known = importlib.util.find_spec
    missing = ("pyarrow", "plotly")
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in missing else known(name, *rest),
    )
    (tmp_path / "t.json").write_text("no trace")
    assert report("t.json", "--format", "parquet") == 2
    assert "pip install 'tracelens-ext[parquet]'" in capsys.readouterr().err
    assert report("t.json", "--html", "x.html") == 2
    assert "pip install 'tracelens-ext[html]'" in capsys.readouterr().err


# What is never lost.


@pytest.mark.parametrize(
    "arguments",
    [
        ["-o", "mine.xlsx"],
        ["-o", "mine.json"],
        ["-o", "mine.md"],
        pytest.param(["--html", "mine.html"], marks=needs_html),
    ],
)
@pytest.mark.usefixtures("few_tables")
def test_a_users_file_stays_without_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    write(tmp_path / "t.json", training(1))
    mine = tmp_path / arguments[1]
    mine.write_text("my notes")
    assert report("t.json", *arguments) == 1
    captured = capsys.readouterr()
    assert "exists and was not written by tracelens-ext" in captured.err
    assert "--force" in captured.err
    assert captured.out == "", "told before the trace is analysed"
    assert mine.read_text() == "my notes"
    assert report("t.json", *arguments, "--force", "-q") == 0
    assert has_own_mark(mine)


@pytest.mark.usefixtures("few_tables")
def test_a_users_table_stays_without_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "t.json", training(1))
    (tmp_path / "d").mkdir()
    Path("d/gpu_timeline.csv").write_text("mine")
    Path("d/other.csv").write_text("mine too")
    assert report("t.json", "--csv-dir", "d") == 1
    assert (
        "d/gpu_timeline.csv: exists and was not written by" in capsys.readouterr().err
    )
    assert names(tmp_path / "d") == ["gpu_timeline.csv", "other.csv"]
    assert report("t.json", "--csv-dir", "d", "--force", "-q") == 0
    assert Path("d/gpu_timeline.csv").read_text() != "mine"
    assert Path("d/other.csv").read_text() == "mine too"


def test_a_missing_folder_is_named_also_with_compare(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert report("absent/", "--compare") == 1
    assert "absent: no such file" in capsys.readouterr().err


@pytest.mark.usefixtures("few_tables")
def test_a_link_that_leads_to_itself_is_replaced() -> None:
    write(Path("t.json"), training(1))
    Path("loop.xlsx").symlink_to("loop.xlsx")
    assert report("t.json", "-o", "loop.xlsx", "-q") == 0
    assert not Path("loop.xlsx").is_symlink()


def test_the_trace_itself_is_never_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write(tmp_path / "t.json", training(1))
    other = write(tmp_path / "u.json", training(2))
    before = trace.read_bytes()
    os.link(trace, tmp_path / "hard.md")
    Path("soft.json").symlink_to(trace)
    for target in ("t.json", "hard.md", "soft.json"):
        assert report("t.json", "-o", target, "--force") == 1
        assert "is the trace itself" in capsys.readouterr().err
    Path("d").mkdir()
    inside = write(tmp_path / "d" / "gpu_timeline.csv", training(1))
    assert report(inside, "--csv-dir", "d", "--force") == 1
    assert "is the trace itself" in capsys.readouterr().err
    assert trace.read_bytes() == before
    assert inside.read_bytes() == before
    assert other.exists()


@pytest.mark.usefixtures("few_tables")
def test_a_report_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    write(tmp_path / "t.json", training(1))
    assert report("t.json", "-q", "-o", "x.xlsx") == 0
    before = Path("x.xlsx").read_bytes()
    Path("t.json").write_text('{"traceEvents": [')
    assert report("t.json", "-q", "-o", "x.xlsx") == 1
    assert Path("x.xlsx").read_bytes() == before


# Several traces.


@pytest.mark.usefixtures("few_tables")
def test_several_traces_each_have_a_report_beside_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a/x.json", "b/x.json", "b/y.json"):
        write(tmp_path / name, training(2))
    assert report("a/x.json", "b") == 0
    assert [name for name in names(tmp_path) if name.endswith("xlsx")] == [
        "a/x_perf_report.xlsx",
        "b/x_perf_report.xlsx",
        "b/y_perf_report.xlsx",
    ]
    out = capsys.readouterr().out
    assert "GPU timeline" not in out, "a line a trace"
    for trace in ("a/x.json", "b/x.json", "b/y.json"):
        assert f"\n{trace} " in out
    assert out.count("Wrote ") == 3


@pytest.mark.usefixtures("few_tables")
def test_a_broken_trace_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.json", training(1))
    write(tmp_path / "z.json", training(1))
    Path("broken.json").write_text('{"traceEvents": [')
    assert (
        report("a.json", "broken.json", "absent.json", "none*", "z.json", "-o", "out")
        == 1
    )
    assert names(tmp_path / "out") == ["a_perf_report.xlsx", "z_perf_report.xlsx"]
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3
    for name in ("none*", "broken.json", "absent.json"):
        assert sum(line.startswith(f"tracelens-ext: {name}: ") for line in errors) == 1


@pytest.mark.usefixtures("few_tables")
def test_a_file_in_the_way_of_one_does_not_stop_the_others(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        write(tmp_path / name, training(1))
    Path("a_perf_report.xlsx").write_text("mine")
    assert report("a.json", "b.json", "-q") == 1
    assert Path("a_perf_report.xlsx").read_text() == "mine"
    assert has_own_mark("b_perf_report.xlsx")


def test_bad_rules_stop_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.json", "b.json"):
        write(tmp_path / name, training(1))
    Path("r.toml").write_text("[[rule]]\n")
    assert report("a.json", "b.json", "--rules", "r.toml") == 1
    assert capsys.readouterr().err.count("r.toml") == 1
    assert names(tmp_path) == ["a.json", "b.json", "r.toml"]


@pytest.mark.slow
@needs_html
@pytest.mark.usefixtures("few_tables")
def test_traces_of_one_name_have_reports_of_different_names(tmp_path: Path) -> None:
    for name in ("a/x.json", "b/x.json", "c/y.json"):
        write(tmp_path / name, training(1))
    shutil.copy("a/x.json", "a/x.json.gz")
    arguments = ["a/x.json", "b/x.json", "c/y.json", "a/x.json.gz"]
    assert (
        report(*arguments, "-q", "-o", "out", "--csv-dir", "csv", "--html", "html") == 0
    )
    stems = [
        "a_x.json.gz_perf_report",
        "a_x.json_perf_report",
        "b_x_perf_report",
        "y_perf_report",
    ]
    assert names(tmp_path / "out") == [f"{stem}.xlsx" for stem in stems]
    assert names(tmp_path / "html") == [f"{stem}.html" for stem in stems]
    assert sorted(path.name for path in (tmp_path / "csv").iterdir()) == stems
    assert report("a/x.json", "a/x.json.gz", "-q") == 0
    assert {"x.json_perf_report.xlsx", "x.json.gz_perf_report.xlsx"} <= set(
        names(tmp_path / "a")
    )


@pytest.mark.usefixtures("few_tables")
def test_a_trace_named_twice_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "d" / "a.json", training(1))
    assert report("d/a.json", "d") == 0
    assert "GPU timeline" in capsys.readouterr().out


@pytest.mark.parametrize(
    "option",
    [
        ["-o", "x.xlsx"],
        ["-o", "x.html"],
        pytest.param(["--html", "x.html"], marks=needs_html),
    ],
)
def test_one_file_for_several_traces_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    for name in ("a.json", "b.json"):
        write(tmp_path / name, training(1))
    assert report("a.json", "b.json", *option) == 2
    assert "there are several traces; give a folder" in capsys.readouterr().err


paths = st.lists(
    st.builds(
        Path,
        st.sampled_from(["a", "b", "c/a", "A", "."]),
        st.sampled_from(
            ["x.json", "x.json.gz", "X.json", "x", "a_x.json", "x_perf_report_2.json"]
        ),
    ),
    min_size=1,
    max_size=12,
    unique=True,
)


@given(paths, st.booleans())
def test_no_two_reports_share_a_name(traces: list[Path], one_folder: bool) -> None:
    stems = report_stems(traces, one_folder=one_folder)
    targets = [
        (None if one_folder else trace.resolve().parent, stem.casefold())
        for trace, stem in zip(traces, stems, strict=True)
    ]
    assert len(set(targets)) == len(traces)
    if len(traces) == 1:
        assert stems[0].startswith(
            traces[0].name.removesuffix(".gz").removesuffix(".json")
        )


# With a comparison.


@pytest.mark.slow
@needs_html
@pytest.mark.usefixtures("few_tables")
def test_compare_writes_one_workbook_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, gemm_us in (("a.json", 40), ("b.json", 50)):
        write(tmp_path / name, training(2, gemm_us=gemm_us))
    assert report("a.json", "b.json", "--compare", "-o", "out", "--html", "pages") == 0
    assert names(tmp_path / "out") == [
        "a_perf_report.xlsx",
        "b_perf_report.xlsx",
        "comparison.xlsx",
    ]
    assert names(tmp_path / "pages") == [
        "a_perf_report.html",
        "b_perf_report.html",
        "comparison.html",
    ]
    book = openpyxl.load_workbook("out/comparison.xlsx")
    tables = [
        "wall_time",
        "verdict",
        "findings",
        "timeline",
        "categories",
        "operations",
        "kernels",
        "places",
    ]
    assert book.sheetnames == ["summary", *tables, "charts"]
    rows = [[cell.value for cell in row] for row in book["categories"].rows]
    assert rows[0][:4] == ["kernel_category", "A_time_ms", "B_time_ms", "difference_ms"]
    assert rows[1][:4] == ["GEMM", 0.04, 0.05, pytest.approx(0.01)]
    out = capsys.readouterr().out
    assert "GPU time by category, per iteration" in out
    assert "Wrote out/comparison.xlsx" in out
    assert report("a.json", "b.json", "--compare", "--total", "-q") == 0
    rows = [
        [c.value for c in row]
        for row in openpyxl.load_workbook("comparison.xlsx")["operations"].rows
    ]
    assert rows[1][:3] == ["aten::mm", 0.08, 0.1]


@pytest.mark.slow
@pytest.mark.usefixtures("few_tables")
def test_a_comparison_of_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.json", "b.json"):
        write(tmp_path / name, training(2))
    Path("x.json").write_text("{")
    assert report("a.json", "x.json", "b.json", "--compare", "-q") == 1
    assert Path("comparison.xlsx").exists()
    Path("comparison.xlsx").unlink()
    capsys.readouterr()
    assert report("x.json", "a.json", "b.json", "--compare", "-q") == 1
    assert (
        "x.json: is the baseline and could not be analyzed, so there is no comparison"
        in capsys.readouterr().err
    )
    assert report("a.json", "x.json", "--compare", "-q") == 1
    assert "only one trace could be analyzed" in capsys.readouterr().err
    assert not Path("comparison.xlsx").exists()
    Path("comparison.xlsx").write_text("mine")
    assert report("a.json", "b.json", "--compare", "-q") == 1
    assert Path("comparison.xlsx").read_text() == "mine"


# On the terminal.


@pytest.mark.parametrize("width", [80, 120])
def test_a_kernel_stands_once_with_its_share_and_its_operations(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
) -> None:
    """A kernel of several operations is one row; by pairs its share would never be seen."""
    monkeypatch.setenv("COLUMNS", str(width))
    maker = TraceMaker()
    for number, op in enumerate(
        ("aten::linear", "aten::mm", "aten::mm", "aten::add"), start=1
    ):
        maker.op(op, 20 * number, 10)
        maker.call("cudaLaunchKernel", 20 * number + 1, correlation=number)
        name = "elementwise" if op == "aten::add" else f"flash_fwd_kernel_{'x' * 40}"
        maker.kernel(name, 20 * number + 5, 10, correlation=number)
    write(tmp_path / "t.json", maker)
    assert report("t.json", "-o", "t.xlsx") == 0
    out = capsys.readouterr().out
    rows = out[out.index("Top 2 kernels") :].splitlines()
    (row,) = [row for row in rows if row.startswith("flash_fwd")]
    assert "75.0" in row
    assert "aten::mm" in row
    table = openpyxl.load_workbook("t.xlsx")["kernels"]
    shown = dict(
        zip(*([cell.value for cell in row] for row in table["A1:J2"]), strict=True)
    )
    assert shown["operations"] == "aten::mm, aten::linear"


def test_names_that_act_on_a_terminal_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    maker = TraceMaker()
    maker.op("aten::[/bold]", 0, 10)
    maker.call("cudaLaunchKernel", 1, correlation=1)
    maker.kernel("evil\x1b[2J[red]kernel[/a]", 20, 10, correlation=1)
    write(tmp_path / "a[b].json", maker)
    write(tmp_path / "b.json", maker)
    assert report("a[b].json", "b.json", "--compare") == 0
    assert report("a[b].json") == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\\x1b[2J[red]kernel[/a]" in out
    assert "aten::[/bold]" in out
    assert "a[b].json" in out
    tables = [line for line in out.splitlines() if not line.startswith("Wrote ")]
    assert max(map(len, tables)) <= 80


def test_numbers_of_three_traces_fit_80_columns() -> None:
    import io

    from rich.console import Console

    from tracelens_ext.compare.comparison import compare
    from tracelens_ext.compare.report import comparison_report

    console = Console(file=io.StringIO(), width=80)
    comparison = compare([measured(training(2))] * 3)
    show_blocks(
        comparison_blocks(comparison, comparison_report(comparison), 3), console
    )
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "too narrow" not in shown
    assert "C (baseline)" not in shown
    assert "ncclDevKernel" in shown


@pytest.mark.usefixtures("few_tables")
def test_a_trace_without_a_gpu_has_a_line_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host_only = TraceMaker()
    host_only.op("aten::mm", 0, 10)
    write(tmp_path / "host.json", host_only)
    write(tmp_path / "gpu.json", training(1))
    assert report("gpu.json", "host.json") == 0
    lines = capsys.readouterr().out.splitlines()
    (host,) = [line for line in lines if line.startswith("host.json")]
    assert host.split() == ["host.json"]


def test_top_0_keeps_the_categories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "t.json", training(2))
    assert report("t.json", "--top", "0", "-o", "x.xlsx") == 0
    out = capsys.readouterr().out
    assert "GPU time by category" in out
    assert (
        "kernels" not in out.partition("GPU time by category")[2].partition("\n\n")[0]
    )
    assert "Top 0" not in out
