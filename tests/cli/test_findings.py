"""`tracelens-ext findings`, and where findings are shown first."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openpyxl
import pytest

from tests.support.comparison_helpers import needs_html, write
from tests.support.make_trace import TraceMaker
from tests.support.simulated_job import write_demo_trace
from tests.support.simulated_job.machine import read_data
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.cli import run
from tracelens_ext.findings.inspection import NO_SHAPES
from tracelens_ext.findings.summary import NOTHING
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.report.tables.options import ReportOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

HOSTILE = "bad</script>\x1b[31m|\udc80" + "x" * 500


def slow_host(op: str = "aten::mm", work: int = 1000) -> TraceMaker:
    """Kernels of 1 ms, each launched 1 ms after the one before has ended."""
    maker = TraceMaker()
    for at in range(5):
        start = 2000 * at + 1000
        maker.op(op, start - 950, 960)
        maker.launched("gemm", start, work, correlation=at + 1, at=start - 5)
    return maker


def busy() -> TraceMaker:
    maker = TraceMaker()
    maker.launched("gemm", 100, 900, correlation=1, at=10)
    maker.launched("gemm", 1000, 900, correlation=2, at=20)
    return maker


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    write(Path("slow.json"), slow_host())
    write(Path("busy.json"), busy())


def findings(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    capsys.readouterr()
    assert run(["findings", *arguments]) == code
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [80, 160])
def test_all_about_a_finding_fits_the_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = findings(capsys, "slow.json", "--verbose")
    assert max(map(len, shown.splitlines())) <= min(width, 120)
    joined = " ".join(shown.split())
    assert "Findings explain 4.0 ms (44.4 %) of 9.0 ms of analyzed time." in joined
    title = (
        " 1. GPU waits for the CPU, 100 % of it in 4 pauses of 1.0 ms, every 2.0 ms"
        " in aten::mm: 4.0 ms (44.4 %)"
    )
    assert title in joined
    assert "operations aten::mm 3.8 ms (×4)" in joined
    for label in ("saves", "advice", "confidence", "evidence", "more"):
        assert re.search(rf"(?m)^    {label} +\S", shown), label


@pytest.mark.parametrize("op", ["aten::mm", "a::" + "long_name_" * 30])
def test_a_finding_has_at_most_eight_lines_at_80_columns(
    op: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(Path("one.json"), slow_host(op))
    shown = findings(capsys, "one.json")
    (block,) = re.findall(r"(?s)\n( 1\. .*?)\n\n", shown)
    lines = block.splitlines()
    assert len(lines) <= 8
    assert max(map(len, lines)) <= 80
    assert re.findall(r"(?m)^    (\w+)  ", block) == [
        "saves",
        "why",
        "do",
        "where",
    ]
    assert "evidence" not in block


def test_a_trace_with_nothing_to_fix_says_what_its_time_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = " ".join(findings(capsys, "busy.json").split())
    assert "The GPU is busy for 100.0 % of the analyzed time (1.8 ms)." in shown
    assert "Largest kernels: gemm 100 %." in shown
    capsys.readouterr()
    report("busy.json")
    assert "The GPU is busy for 100.0 %" in capsys.readouterr().out


def test_a_clean_trace_has_nothing_to_save(capsys: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(findings(capsys, "busy.json").split())
    assert NOTHING not in shown
    assert (
        "No shapes were recorded, so 100.0 % of the analyzed time cannot be compared"
        in shown
    )
    assert NO_SHAPES.format(how="torch.profiler.profile(record_shapes=True)") in shown
    assert json.loads(findings(capsys, "busy.json", "--json"))["all_clear"] is False


def test_json_is_what_python_gives(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(findings(capsys, "slow.json", "--json"))
    analyzer = TreePerfAnalyzer("slow.json", use_kernel_name_categories=True)
    expected = json.loads(json.dumps(analyzer.findings().as_dict()))
    for finding in expected["findings"]:
        finding["shown"] = True
    assert document == expected
    assert document["findings"][0]["id"] == "host-bound"


def test_several_traces_are_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(findings(capsys, "slow.json", "busy.json", "--json"))
    assert [each["trace"] for each in document] == ["slow.json", "busy.json"]
    assert [len(each["findings"]) for each in document] == [1, 0]
    shown = findings(capsys, "slow.json", "busy.json")
    assert shown.index("Trace: slow.json") < shown.index("Trace: busy.json")


def test_a_trace_that_cannot_be_read_does_not_stop_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("broken.json").write_text("{", encoding="utf-8")
    capsys.readouterr()
    assert run(["findings", "broken.json", "slow.json", "--json"]) == 1
    shown = capsys.readouterr()
    assert [each["trace"] for each in json.loads(shown.out)] == ["slow.json"]
    assert shown.err.count("\n") == 1
    assert "broken.json: " in shown.err
    assert run(["findings", "none.json"]) == 1
    assert run(["findings", "slow.json", "--device-peaks", "none.toml"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_names_do_nothing_to_a_terminal_or_a_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(Path("hostile.json"), slow_host(HOSTILE))
    shown = findings(capsys, "hostile.json")
    assert "\x1b" not in shown
    assert "x" * 100 not in shown
    document = json.loads(findings(capsys, "hostile.json", "--json"))
    (place,) = document["findings"][0]["where"]["operations"]
    assert place["name"].startswith("bad</script>\x1b[31m|\ufffd")


# First on every surface.


def report(*arguments: str) -> None:
    assert run(["report", *arguments]) == 0


def test_the_terminal_of_a_report_begins_with_findings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report("slow.json")
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("What would save the most time")
    assert lines[at + 1 : at + 6] == [
        "1. GPU waits for the CPU, 100 % of it in 4 pauses of 1.0 ms, every 2.0 ms in",
        "   aten::mm: 4.0 ms (44.4 %)",
        "   saves 2.0 to 4.0 ms (22.2 to 44.4 %); medium confidence",
        "Where, why and what to do: tracelens-ext findings slow.json",
        "",
    ]
    assert at < lines.index("GPU timeline")
    report("busy.json")
    out = capsys.readouterr().out
    assert "No shapes were recorded" in out
    assert out.splitlines()[1].startswith("Recording: ")


def cells(sheet: Any) -> list[list[Any]]:
    return [[cell.value for cell in row] for row in sheet.rows]


def test_the_workbook_begins_with_findings_and_links_to_the_evidence() -> None:
    report("slow.json", "-o", "plain.xlsx", "-q")
    report("busy.json", "-o", "busy.xlsx", "-q")
    book = openpyxl.load_workbook("plain.xlsx")
    assert book.sheetnames[:2] == ["summary", "recording"]
    rows = cells(book["summary"])
    assert [rows[at][0] for at in (2, 3, 4)] == ["Trace", "Recording", "Verdict"]
    assert rows[4][1].startswith("Findings explain")
    top = [row[0] for row in rows].index("What would save the most time")
    header = rows[top + 1]
    assert {"advice", "confidence", "largest_place", "% of analyzed time"} <= set(
        header
    )
    at = header.index("see")
    assert rows[top + 2][at] == "gap_summary", (
        "which is there because evidence cites it"
    )
    link = book["summary"].cell(top + 3, at + 1).hyperlink
    assert link is not None
    assert link.location == "'gap_summary'!A1"
    advice = book["summary"].cell(top + 3, header.index("advice") + 1)
    assert advice.alignment.wrap_text
    firsts = [row[0] for row in cells(openpyxl.load_workbook("busy.xlsx")["summary"])]
    at = next(
        i
        for i, text in enumerate(firsts)
        if str(text).startswith("No shapes were recorded")
    )
    assert at < firsts.index("GPU timeline")


@needs_html
def test_the_page_begins_with_findings_and_links_to_the_evidence() -> None:
    write(Path("hostile.json"), slow_host("<b>&"))
    report("hostile.json", "-o", "x.xlsx", "--html", "x.html", "-q")
    report("busy.json", "-o", "y.xlsx", "--html", "y.html", "-q")
    page = Path("x.html").read_text(encoding="utf-8")
    (section,) = re.findall(r'<section class="findings".*?</section>', page, re.DOTALL)
    assert page.index(section) < page.index('id="headline"')
    assert "the largest part: <bdi>&lt;b&gt;&amp; (" in section
    targets = dict(re.findall(r'<a href="#([^"]+)">([^<]+)</a>', section))
    assert list(targets.values()) == ["numbers in gap_summary", "details"]
    for key in targets:
        assert f'id="{key}"' in page
    page = Path("y.html").read_text(encoding="utf-8")
    (section,) = re.findall(r'<section class="findings".*?</section>', page, re.DOTALL)
    assert "No shapes were recorded" in section
    assert page.index("Recording: ") < page.index(section)
    assert "<li>" not in section


def tables_of(paths: Sequence[str]) -> list[str]:
    return [Path(path).read_text(encoding="utf-8-sig") for path in paths]


def test_every_format_has_the_sheet() -> None:
    report("slow.json", "-o", "r.md", "--csv-dir", "csv", "-q")
    report("slow.json", "-o", "r.json", "-q")
    markdown, csv, document = tables_of(["r.md", "csv/findings.csv", "r.json"])
    first, second = re.findall(r"(?m)^## (.*)$", markdown)[:2]
    assert (first, second) == ("What would save the most time", "recording")
    assert markdown.index("Recording: ") < markdown.index(first)
    assert csv.startswith("finding,title,saving,saving_ms")
    (row,) = json.loads(document)["tables"]["findings"]
    assert row["attributed_ms"] == pytest.approx(4.0)
    assert row["where"].startswith("operations: aten::mm 3.8 ms (×4)")


def test_several_reports_name_the_largest_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    report("slow.json", "busy.json", "-o", "reports/")
    assert "host-bound 44 %" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_every_sheet_that_evidence_cites_is_in_the_report(vendor: Any) -> None:
    problems = {
        each: 15.0 for each in read_data("problems") if each != "slow-iterations"
    }
    trace = write_demo_trace("all.json.gz", vendor, steps=1, problems=problems)
    analyzer = TreePerfAnalyzer(trace, use_kernel_name_categories=True)
    made = build_perf_report(analyzer)
    cited = {each for see in made.sheets["findings"]["see"] for each in see.split(", ")}
    commands = {each for each in cited if each.startswith("tracelens-ext ")}
    assert len(cited) > 8
    assert cited - commands <= set(made.sheets)
    assert "coll_analysis" in cited
    without = ReportOptions(collective_analysis=False)
    assert "coll_analysis" not in build_perf_report(analyzer, without).sheets
