"""Finished reports compared as traces are: with the same numbers, and never beyond their limits."""

from __future__ import annotations

import re
import shutil
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openpyxl
import pandas as pd
import pytest

from tests.support.comparison_helpers import training, write
from tracelens_ext import TreePerfAnalyzer, generate_perf_report_pytorch
from tracelens_ext.cli import run
from tracelens_ext.compare import report_files, untrusted_reports
from tracelens_ext.compare.comparison import Comparison, compare, measure
from tracelens_ext.compare.finished_reports import (
    is_report,
    measure_report,
    with_reference,
)
from tracelens_ext.errors import TraceError
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.report.manifest import MANIFEST
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.writing import OutputFormat, write_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.make_trace import TraceMaker

SHARED = Path(__file__).resolve().parents[3] / "shared"
TABLES = ["timeline", "categories", "operations", "kernels"]


def reports_of(
    analyzer: TreePerfAnalyzer, folder: Path, **options: object
) -> list[Path]:
    """The report of a trace in every format that can be read back."""
    report = build_perf_report(analyzer, ReportOptions(**options))  # type: ignore[arg-type]
    places = {
        folder / "report.xlsx": OutputFormat.xlsx,
        folder / "csv": OutputFormat.csv,
        folder / "parquet": OutputFormat.parquet,
        folder / "report.json": OutputFormat.json,
    }
    return write_report(report, places)


def analyzed(maker: TraceMaker, **options: Any) -> TreePerfAnalyzer:
    return TreePerfAnalyzer(
        maker.document(), use_kernel_name_categories=True, **options
    )


def assert_unchanged(comparison: Comparison) -> None:
    for name, aligned in comparison.aligned.items():
        assert (aligned.ns == aligned.ns[:, :1]).all(), name
        if name != "timeline":
            assert (aligned.count == aligned.count[:, :1]).all(), name
            assert aligned.ns.any(), name


def run_compare(*arguments: object) -> int:
    return run(["compare", *map(str, arguments)])


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    write(tmp_path / "a.json", training(3))
    write(tmp_path / "b.json", training(4, gemm_us=50))
    return tmp_path


@pytest.fixture(scope="module")
def made_workbook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    trace = write(folder / "a.json", training(3))
    assert run(["report", str(trace), "-o", str(folder / "a.xlsx"), "-q"]) == 0
    return folder / "a.xlsx"


@pytest.fixture
def workbook(in_folder: Path, made_workbook: Path) -> Path:
    """The report of `a.json`."""
    return Path(shutil.copy(made_workbook, in_folder))


def test_a_trace_and_its_own_reports_are_the_same(tmp_path: Path) -> None:
    maker = training(3)
    long_name = "void k<" + "int, " * 8000 + "char>"
    for at, name in enumerate(
        [long_name, "", "=cmd()", 'a,"b"\r\nc', "<r>x_x0041_x0042_", "\x01é"]
    ):
        maker.kernel(name, 5000 + 20 * at, 10.123)
    maker.gpu("gpu_memcpy", "Memcpy HtoD", 6000, 7)
    analyzer = analyzed(maker)
    measured = with_reference(measure(analyzer.gpu_events), analyzer)
    reports = [measure_report(path) for path in reports_of(analyzer, tmp_path)]
    comparison = compare([measured, *reports])
    assert list(comparison.tables) == TABLES
    assert_unchanged(comparison)
    assert [m.events for m in reports] == [measured.events] * 4
    assert {m.report for m in reports} == {"tracelens-ext"}


@pytest.mark.usefixtures("few_tables")
def test_several_devices_and_the_split_of_idle_time(tmp_path: Path) -> None:
    maker = training(2)
    maker.kernel("k", 5000, 3, device=1)
    analyzer = analyzed(maker)
    measured = measure(analyzer.gpu_events, micro_idle_thresh_us=60)
    split, plain = (
        measure_report(
            reports_of(analyzer, tmp_path / str(us), micro_idle_thresh_us=us)[0]
        )
        for us in (60, None)
    )
    assert_unchanged(compare([measured, split]))
    assert len(compare([measured, split]).tables["timeline"]) == 20
    # One side alone has no split: no zeros are made up.
    assert_unchanged(compare([measured, plain]))
    assert len(compare([measured, plain]).tables["timeline"]) == 16


def test_a_report_with_only_tracelens_sheets_is_compared_by_stand_ins(
    tmp_path: Path,
) -> None:
    maker = training(3)
    maker.gpu("gpu_memcpy", "Memcpy HtoD", 6000, 7)
    generate_perf_report_pytorch(
        write(tmp_path / "a.json", maker), tmp_path / "all.xlsx"
    )
    folder = tmp_path / "theirs"
    folder.mkdir()
    book = openpyxl.load_workbook(tmp_path / "all.xlsx", read_only=True)
    for name in (
        "gpu_timeline",
        "kernel_summary",
        "ops_summary",
        "ops_summary_by_category",
    ):
        rows = pd.DataFrame(book[name].values)
        rows.to_csv(folder / f"{name}.csv", index=False, header=False)
    analyzer = analyzed(maker)
    measured = with_reference(measure(analyzer.gpu_events), analyzer)
    comparison = compare([measured, measure_report(folder)])
    assert_unchanged(comparison)
    assert "op category" in comparison.tables["categories"]
    assert "launcher" in comparison.tables["operations"]
    assert "Memcpy HtoD" not in set(comparison.tables["kernels"]["kernel_name"])
    assert sum("B does not contain more" in note for note in comparison.notes) == 3


@pytest.mark.usefixtures("few_tables")
def test_json_reports_in_a_folder_are_compared_and_damaged_ones_are_refused(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = in_folder / "made"
    for name in "ab":
        assert (
            run(
                [
                    "report",
                    f"{name}.json",
                    "--format",
                    "json",
                    "-o",
                    f"made/{name}.json",
                ]
            )
            == 0
        )
    capsys.readouterr()
    assert run_compare(made) == 0
    assert "Wall time, of the whole trace" in capsys.readouterr().out
    (made / "b.json").write_bytes((made / "b.json").read_bytes()[:-900])
    assert run_compare(made / "a.json", made / "b.json") == 1
    assert "the JSON is damaged" in capsys.readouterr().err


@pytest.mark.usefixtures("few_tables")
def test_units_in_headers_do_not_matter(tmp_path: Path) -> None:
    folder = reports_of(analyzed(training(2)), tmp_path)[1]
    before = measure_report(folder).total.tables["kernels"]
    path = folder / "kernels_by_category.csv"
    text = path.read_text().replace(",count,", ",Count (GPU events),", 1)
    path.write_text(text.replace("total_time_ms", "total time (ms)", 1))
    pd.testing.assert_frame_equal(
        measure_report(folder).total.tables["kernels"], before
    )


@pytest.mark.usefixtures("in_folder", "few_tables")
def test_a_note_mentions_tables_that_a_report_does_not_contain(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["report", "a.json", "--csv-dir", "t", "-q"]) == 0
    for path in Path("t").glob("*.csv"):
        if path.name != "gpu_timeline.csv":
            path.unlink()
    assert run_compare("t", "b.json") == 0
    out = capsys.readouterr().out
    assert "There is no table of kernels, because A does not contain it." in out
    assert "GPU time by kernel" not in out
    assert re.search(r"the largest changes:\s+\w+_time [+-]", out)
    assert (
        run_compare("t", "b.json", "--fail-if", "total_time > 1%", "-o", "x.xlsx") == 3
    )
    assert run_compare("t", "b.json", "--fail-if", "GEMM > 1%") == 1
    assert (
        "cannot be checked because a report contains no categories"
        in capsys.readouterr().err
    )


def test_a_sheet_that_lacks_rows_is_left_out(tmp_path: Path) -> None:
    maker = training(3)
    maker.kernel("rest", 5000, 90)
    folder = reports_of(analyzed(maker), tmp_path)[1]
    path = folder / "kernels_by_category.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]))
    measured = measure_report(folder)
    assert "kernels" not in measured.total.tables
    assert "categories" in measured.total.tables, "of kernel_categories, which is whole"
    assert measured.notes[0].startswith("the sheet kernels_by_category covers")


@pytest.mark.real_data
@pytest.mark.parametrize(
    "name",
    ["amd/Qwen_Qwen1.5-0.5B-Chat__1016005", "amd/gpu_only_trace"],
)
def test_tracelens_tables_of_a_real_trace(name: str) -> None:
    trace = SHARED / "traces" / f"{name}.json.gz"
    analyzer = TreePerfAnalyzer(
        trace, use_kernel_name_categories=True, include_unlinked_kernels=False
    )
    theirs = measure_report(trace.with_name(f"{trace.name[:-8]}_perf_report_csvs"))
    assert theirs.report == "TraceLens"
    comparison = compare(
        [with_reference(measure(analyzer.gpu_events), analyzer), theirs]
    )
    assert "kernels" in comparison.tables
    for name, table in comparison.tables.items():
        # Their times are differences of doubles that count µs since 1970.
        allowed = 0.001 * table["A_count"].clip(1) if name != "timeline" else 0.002
        same = table["difference_ms"].abs() <= allowed
        if name == "categories":  # flash attention is `other` there
            same |= table["op category"].isin(["SDPA_fwd", "other"])
        assert same.all(), name


@pytest.mark.real_data
def test_a_trace_compared_with_a_report_of_tracelens_leaves_out_the_same_events() -> (
    None
):
    trace = SHARED / "traces/nvidia/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    theirs = trace.with_name(f"{trace.name[:-8]}_perf_report_csvs")
    budget = ["--fail-if", "total_time > +1%", "--quiet"]
    assert run(["compare", str(theirs), str(trace), *budget]) == 0


@pytest.mark.real_data
def test_a_workbook_of_tracelens(tmp_path: Path) -> None:
    folder = SHARED / "traces/amd/Qwen_Qwen1.5-0.5B-Chat__1016005_perf_report_csvs"
    with pd.ExcelWriter(tmp_path / "theirs.xlsx", engine="openpyxl") as writer:
        for path in folder.glob("*.csv"):
            pd.read_csv(path).to_excel(writer, sheet_name=path.stem[:31], index=False)
    workbook = measure_report(tmp_path / "theirs.xlsx")
    assert workbook.report == "TraceLens"
    comparison = compare([workbook, measure_report(folder)])
    assert list(comparison.tables) == TABLES
    assert_unchanged(comparison)
    assert not any("files some operations" in note for note in comparison.notes)


@pytest.mark.real_data
@pytest.mark.parametrize("kind", ["amd", "nvidia", "graphs"])
def test_real_traces_and_their_own_reports(kind: str, tmp_path: Path) -> None:
    trace = min(
        (SHARED / "traces" / kind).rglob("*.json.gz"),
        key=lambda path: path.stat().st_size,
    )
    analyzer = TreePerfAnalyzer(trace, use_kernel_name_categories=True)
    reports = [measure_report(path) for path in reports_of(analyzer, tmp_path)]
    assert_unchanged(compare([measure(analyzer.gpu_events), *reports]))


@pytest.mark.usefixtures("few_tables")
@pytest.mark.usefixtures("workbook")
def test_the_verdict_on_reports_names_what_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_compare("a.xlsx", "b.json") == 0
    assert re.search(r"the largest changes:\s+aten::\w+ [+-]", capsys.readouterr().out)


def test_the_command_takes_reports_where_it_takes_traces(
    workbook: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", "b.json", "--csv-dir", "b_tables", "-q"]) == 0
    assert (
        run_compare(workbook.name, "b.json", "b_tables", "--fail-if", "GEMM > +5%") == 3
    )
    captured = capsys.readouterr()
    assert captured.err.count("budget exceeded") == 2
    assert "A (baseline): a.xlsx; devices: not in the report" in captured.out
    assert "because A and C are reports without times of iterations." in captured.out
    assert run_compare("a.json", workbook.name, "--fail-if", "GEMM > 0%", "-q") == 0


@pytest.mark.usefixtures("few_tables")
def test_an_input_is_never_overwritten(
    workbook: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", "a.json", "--csv-dir", "t", "-q"]) == 0
    before = sorted(Path("t").iterdir())
    assert run_compare("t", "b.json", "--format", "csv", "-o", "t", "--force") == 1
    assert run_compare(workbook.name, "b.json", "-o", workbook.name, "--force") == 1
    assert capsys.readouterr().err.count("is the trace itself") == 2
    assert sorted(Path("t").iterdir()) == before


@pytest.mark.slow
@pytest.mark.usefixtures("in_folder", "few_tables")
def test_folders_and_patterns_can_name_reports(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["report", "a.json", "b.json", "-o", "runs/", "--compare", "-q"]) == 0
    for argument in ("runs", "runs/*.xlsx", "runs/*"):
        assert run_compare(argument, "--format", "json") == 0
        out = capsys.readouterr().out
        assert '"A (baseline)": "runs/a_perf_report.xlsx"' in out
        assert '"B": "runs/b_perf_report.xlsx"' in out
    shutil.copy("runs/a_perf_report.xlsx", "a_perf_report.xlsx")
    assert run_compare(".", "--format", "json") == 0
    assert '"A (baseline)": "a.json"' in capsys.readouterr().out


@pytest.mark.usefixtures("few_tables")
def test_reports_record_their_version(workbook: Path, tmp_path: Path) -> None:
    book: Any = openpyxl.load_workbook(workbook)
    properties = {item.name: item.value for item in book.custom_doc_props.props}
    assert properties == {"tables_version": 1}
    folder = reports_of(analyzed(training(2)), tmp_path / "new")[1]
    manifest = folder / MANIFEST
    assert '"tables_version": 1' in manifest.read_text()
    manifest.write_text(
        manifest.read_text().replace('"tables_version": 1', '"tables_version": 2')
    )
    with pytest.raises(
        TraceError, match="was written by a newer tracelens-ext; update tracelens-ext"
    ):
        measure_report(folder)


# Hostile reports: one line that names the file, at once.


def replaced(workbook: Path, part: str, change: Callable[[bytes], bytes]) -> Path:
    """A workbook with one part changed."""
    changed = workbook.with_name("changed.xlsx")
    with zipfile.ZipFile(workbook) as old, zipfile.ZipFile(changed, "w", 8) as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, change(data) if name == part else data)
    return changed


SHEET = "xl/worksheets/sheet4.xml"  # gpu_timeline
_BOMB = b'<!DOCTYPE l [<!ENTITY a "ha">' + b"".join(
    b'<!ENTITY a%d "%s">' % (n, b"&a%d;" % (n - 1) * 10 if n else b"ha")
    for n in range(20)
)


_RANGES = b"A1:A9 " * 90_000


def _before_root(data: bytes) -> bytes:
    return data.replace(b"?>", b"?>" + _BOMB + b"]>", 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_before_root, "declares XML entities"),
        (
            lambda d: (
                _before_root(d).decode().replace("UTF-8", "UTF-16").encode("utf-16")
            ),
            "entities",
        ),
        (
            lambda d: d.replace(b"<row", b"<a>" * 1000 + b"<row", 1),
            "nests XML more than 100 levels deep",
        ),
        (lambda d: d[: len(d) // 2], "is damaged"),
        (lambda d: d.replace(b'<row r="3"', b'<row r="99999999999"'), "1,048,576 rows"),
        (lambda d: d.replace(b'r="B3"', b'r="ZZZZZZZZ3"'), "is damaged"),
        (lambda d: d + b"<a/>" * 1_500_000, "has more than"),
        (lambda d: d + b" " * 6_000_000, "has more than 1 MB in one element"),
        (
            lambda d: d.replace(
                b"<sheetData>", b'<sheetData a="%b">' % (b"a" * 2_000_000)
            ),
            "has more than 1 MB in one element",
        ),
        (
            lambda d: d.replace(
                b"</sheetData>", b"</sheetData>" + b'<x a="%b"/>' % _RANGES * 5
            ),
            "has more than 2 MB of attributes",
        ),
    ],
    ids=[
        "entities",
        "utf-16",
        "deep",
        "cut",
        "far row",
        "far column",
        "zip bomb",
        "blanks",
        "attribute",
        "attributes",
    ],
)
def test_a_hostile_workbook(
    workbook: Path,
    change: Callable[[bytes], bytes],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report_files, "_MAX_BYTES", 5_000_000)
    path = replaced(workbook, SHEET, change)
    start = time.monotonic()
    with pytest.raises(TraceError, match=message) as caught:
        measure_report(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert time.monotonic() - start < 20


def test_a_workbook_of_too_many_cells(
    workbook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_MAX_CELL_ELEMENTS", "_MAX_OTHER_ELEMENTS"):
        with monkeypatch.context() as patched, pytest.raises(TraceError, match="cells"):
            patched.setattr(untrusted_reports, limit, 20)
            measure_report(workbook)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("soon", "row 2 of the sheet gpu_timeline has 'soon'"),
        ("-1", "has '-1' in the column 'time ms'"),
        ("1e300", "impossible numbers"),
        ("nan", "has 'nan'"),
        ("", "has ''"),
    ],
)
def test_invalid_numbers_in_a_table_are_refused(
    tmp_path: Path, value: str, message: str
) -> None:
    (tmp_path / "gpu_timeline.csv").write_text(f"type,time ms\ntotal_time,{value}\n")
    with pytest.raises(TraceError, match=message):
        measure_report(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is empty or cut off"),
        (b"type,time ms\ntotal_time,12.3", "is empty or cut off"),
        (b"type,time ms\ntotal_time,1,2,3\n", "the table is damaged"),
        (b'type,time ms\n"total_time,1\n', "the table is damaged"),
        (b"type,time ms\n\xff,1\n", "the table is damaged"),
        (b"type,time\ntotal_time,1\n", "has no column 'time ms'"),
        (b"kind,time ms\ntotal_time,1\n", "has no row total_time"),
        (b"\x00\x00\n", "the sheet gpu_timeline"),
    ],
)
def test_unusual_tables(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "gpu_timeline.csv").write_bytes(text)
    with pytest.raises(TraceError, match=message):
        measure_report(tmp_path)


def test_a_huge_field_is_read_as_a_name(tmp_path: Path) -> None:
    (tmp_path / "gpu_timeline.csv").write_text("type,time ms\ntotal_time,1\n")
    name = "k" * 1_000_000
    (tmp_path / "kernel_summary.csv").write_text(
        f"Kernel name,Kernel duration (µs)_sum,Kernel duration (µs)_count\n{name},5,1\n"
    )
    table = measure_report(tmp_path).total.tables["kernel_name"]
    assert table["ns"].tolist() == [5000]


def test_two_kinds_of_tables_in_one_folder_are_not_mixed(tmp_path: Path) -> None:
    folder = reports_of(analyzed(training(2)), tmp_path)[1]
    shutil.copy(tmp_path / "parquet" / "ops_summary.parquet", folder)
    with pytest.raises(TraceError, match="contains both CSV and Parquet tables"):
        measure_report(folder)


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 cut off"])
def test_a_workbook_by_its_name_alone(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.xlsx"
    path.write_bytes(content)
    assert is_report(path)
    assert run_compare(path, path) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.usefixtures("few_tables")
def test_damaged_parquet(tmp_path: Path) -> None:
    folder = reports_of(analyzed(training(2)), tmp_path)[2]
    path = folder / "gpu_timeline.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TraceError, match=r"gpu_timeline.parquet: the table is damaged"):
        measure_report(folder)
