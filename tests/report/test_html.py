"""The HTML page as a file: complete, escaped, self-contained; no browser needed."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.util
import math
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.report_helpers import write_html
from tests.support.report_html_helpers import (
    HOSTILE,
    charts_of,
    hostile_report,
    read_page,
    small_report,
    write_page,
)
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.errors import OutputError, UsageError
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.report import html_tables
from tracelens_ext.report.excel_text import cleaned
from tracelens_ext.report.html import require_html_extra
from tracelens_ext.report.html_figures import LABEL
from tracelens_ext.report.html_findings import check_source_url
from tracelens_ext.report.html_texts import elided, json_for_script
from tracelens_ext.report.report import Answer, Report
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.writing import PAGE, write_report
from tracelens_ext.text import with_units_attached

needs_extra = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("jinja2", "plotly")),
    reason="needs jinja2 and plotly: pip install 'tracelens-ext[html]'",
)
TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


@needs_extra
def test_every_number_and_text_is_in_the_page(tmp_path: Path) -> None:
    sheets = small_report()
    notes = write_page(tmp_path / "report.html", sheets)
    page = read_page(tmp_path / "report.html")
    assert notes == []
    assert [table["total"] for table in page.data["tables"]] == [
        len(f) for f in sheets.values()
    ]
    for place, frame in enumerate(sheets.values()):
        assert page.frame(place) == list(frame.itertuples(index=False, name=None))


@needs_extra
def test_the_first_rows_stand_in_the_page_without_any_script(tmp_path: Path) -> None:
    write_page(tmp_path / "report.html", small_report())
    page = read_page(tmp_path / "report.html")
    section = page.table("kernels_by_category")
    rows = section.all("tbody")[0].all("tr")
    shown = [[cell.content() for cell in row.children] for row in rows]
    assert len(shown) == html_tables.FIRST_ROWS
    assert shown[0] == ["kernel_25", "GEMM", "25", "37.500", "7.7%"]
    assert section.all("p")[0].content() == "10 of 25 rows"


@needs_extra
def test_tables_can_be_read_aloud(tmp_path: Path) -> None:
    sheets = small_report()
    descriptions = {"kernel_categories": "GPU time by operation & category"}
    write_page(tmp_path / "report.html", sheets, descriptions=descriptions)
    page = read_page(tmp_path / "report.html")
    for name, frame in sheets.items():
        table = page.table(name).all("table")[0]
        assert len(table.all("caption")) == 1
        headers = table.all("thead")[0].all("th")
        assert [header.content() for header in headers] == list(frame.columns)
        assert {header.attributes["scope"] for header in headers} == {"col"}
        assert {row.children[0].tag for row in table.all("tbody")[0].all("tr")} == {
            "th"
        }
    caption = page.table("kernel_categories").all("caption")[0]
    assert caption.content() == "GPU time by operation & category"


@needs_extra
def test_headline_notes_facts_and_coverage(tmp_path: Path) -> None:
    facts = [
        ("Trace", "/data/run 1/trace.json.gz"),
        ("GPU events", 12_345),
        ("GPU time unlinked (%)", 30.104),
        ("Rank", None),
        ("Sheets left out", "phases, " * 20),
    ]
    write_page(
        tmp_path / "report.html",
        small_report(),
        facts=facts,
        notes=["Look < here."],
        title="A & B",
    )
    root = read_page(tmp_path / "report.html").root
    assert root.all("title")[0].content() == "A & B: trace.json.gz"
    assert root.all("h1")[0].content() == "A & B"
    cards = [
        [part.content().replace("\u00a0", " ") for part in card.children]
        for card in root.all("dl")[0].children
    ]
    assert cards == [
        ["GPU busy", "40.0%", "80.00 ms of 200.0 ms"],
        ["Exposed communication", "10.0%", "20.00 ms of 30.00 ms communication"],
        ["GPU idle", "60.0%", "120.0 ms without GPU work"],
        ["Top category", "GEMM", "84.2% of GPU time, 84.25 ms"],
        # (unlinked) is none
        ["Top operation", "aten::mm", "40.2% of GPU time, 40.25 ms"],
    ]
    section = root.with_id("notes").parent
    assert section is not None
    assert [item.content() for item in section.all("li")] == ["Look < here."]
    about = [
        tuple(part.content() for part in line.children)
        for block in root.with_id("about").all("dl")
        for line in block.children
    ]
    assert about == [
        ("GPU time unlinked (%)", "30.1%"),
        ("Trace", "/data/run 1/trace.json.gz"),
        ("GPU events", "12,345"),
        ("Rank", ""),
        ("Sheets left out", "phases, " * 20),
    ]
    (wide,) = [
        each for each in root.everything() if each.attributes.get("class") == "long"
    ]
    assert wide.children[0].content() == "Sheets left out"


@needs_extra
def test_nothing_in_the_page_leads_outside(tmp_path: Path) -> None:
    write_page(tmp_path / "report.html", hostile_report())
    page = read_page(tmp_path / "report.html")
    for element in page.root.everything():
        assert "src" not in element.attributes
        assert element.tag not in ("iframe", "object", "embed", "base", "form", "img")
    style = page.root.all("style")[0].content()
    assert "url(" not in style
    assert "@import" not in style
    script = page.root.all("script")[2].content()
    assert not re.search(
        r"https?:|fetch\(|XMLHttpRequest|import\(|innerHTML|eval\(", script
    )


@needs_extra
def test_the_policy_allows_the_two_scripts_and_nothing_else(tmp_path: Path) -> None:
    write_page(tmp_path / "report.html", small_report())
    page = read_page(tmp_path / "report.html")
    policies = [
        meta.attributes["content"] or ""
        for meta in page.root.all("meta")
        if meta.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert len(policies) == 1
    rules = dict(rule.strip().split(" ", 1) for rule in policies[0].split(";"))
    scripts = [page.root.all("script")[2].content(), page.plotly]
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    hashes = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
    assert rules["default-src"] == "'none'"
    assert rules["script-src"].split() == hashes
    assert set(rules) <= {
        "default-src",
        "script-src",
        "style-src",
        "img-src",
        "base-uri",
        "form-action",
    }


@needs_extra
def test_hostile_names_stay_texts(tmp_path: Path) -> None:
    everywhere = " ".join(HOSTILE)
    sheets = hostile_report()
    write_page(
        tmp_path / "report.html",
        sheets,
        facts=[("Trace", everywhere), (everywhere, everywhere)],
        notes=[everywhere],
        descriptions=dict.fromkeys(sheets, everywhere),
        title=everywhere,
    )
    page = read_page(tmp_path / "report.html")  # every tag is closed by its own
    scripts = page.root.all("script")
    assert [script.attributes.get("id") for script in scripts] == [
        "report-data",
        "packed-plotly",
        None,
    ]
    assert not set("<>&\u2028\u2029") & set(scripts[0].content())
    for element in page.root.everything():
        assert element.tag not in ("img", "svg", "b", "i", "br")
        assert not [name for name in element.attributes if name.startswith("on")]
    # 7 * 191: no template ran
    assert "1337" not in page.source.replace(scripts[1].content(), "")
    assert page.root.all("h1")[0].content() == cleaned(everywhere)
    section = page.root.with_id("notes").parent
    assert section is not None
    assert section.all("li")[0].content() == cleaned(everywhere)
    rows = page.frame(list(sheets).index("kernels_by_category"))
    assert [row[0] for row in rows] == [cleaned(name) for name in HOSTILE]
    headers = page.table("kernels_by_category").all("thead")[0].all("th")
    assert headers[-1].content() == "<script>window.pwned = 8</script>"


@needs_extra
def test_charts_can_be_chosen(tmp_path: Path) -> None:
    chart = Chart("Kernels", "kernels_by_category", "kernel_category", "count")
    write_html(tmp_path / "report.html", small_report(), charts=[chart, chart])
    page = read_page(tmp_path / "report.html")
    keys = [figure["key"] for figure in page.data["figures"]]
    assert len(set(keys)) == 2
    for key in keys:
        assert page.root.with_id(key).parent.all("h3")[0].content() == "Kernels"  # type: ignore[union-attr]
    assert page.data["figures"][0]["data"][0]["x"] == [169.0, 156.0]


@needs_extra
def test_an_empty_report_is_a_page(tmp_path: Path) -> None:
    write_page(tmp_path / "report.html", {})
    assert read_page(tmp_path / "report.html").data["tables"] == []
    write_page(
        tmp_path / "report.html",
        {"nothing": pd.DataFrame(), "no rows": pd.DataFrame({"a": []})},
    )
    page = read_page(tmp_path / "report.html")
    assert [table["total"] for table in page.data["tables"]] == [0, 0]
    assert page.data["figures"] == []


@needs_extra
def test_plotly_is_embedded_once_and_compressed(tmp_path: Path) -> None:
    from plotly.offline import get_plotlyjs

    write_page(tmp_path / "report.html", {})
    page = read_page(tmp_path / "report.html")
    assert page.plotly == get_plotlyjs()
    assert (tmp_path / "report.html").stat().st_size < 0.5 * len(page.plotly)


@needs_extra
def test_the_same_report_is_the_same_file(tmp_path: Path) -> None:
    write_page(tmp_path / "one.html", small_report(), notes=["n"])
    write_page(tmp_path / "two.html", small_report(), notes=["n"])
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


@needs_extra
def test_a_cell_of_a_notebook_has_the_page_in_a_frame_of_its_own(
    tmp_path: Path,
) -> None:
    many = pd.DataFrame({"text": [f"<i>'kernel' & {n}" for n in range(500)]})
    report = Report(
        "A & 'B'", {"many": many, **small_report()}, charts=charts_of(small_report())
    )
    cell = report._repr_html_()
    assert len(cell) < 4_000_000
    start, rest = cell.split(" srcdoc='")
    # without the notebook's origin
    assert start.startswith("<iframe sandbox='allow-scripts' ")
    source, end = rest.split("'", maxsplit=1)
    assert end == "></iframe>"
    assert "<" not in source
    (tmp_path / "cell.html").write_text(html.unescape(source), "utf-8")
    page = read_page(tmp_path / "cell.html")
    assert [figure["key"] for figure in page.data["figures"]] == [
        "chart-gpu-timeline",
        "chart-gpu-time-by-category",
        "chart-top-kernels",
        "chart-gpu-time-by-operation",
        "chart-gpu-time-by-graph-launch",
    ]
    tables = page.data["tables"]
    assert (tables[0]["rows"], tables[0]["total"]) == (10, 500)
    assert max(table["rows"] for table in tables) == 10


@needs_extra
def test_what_is_cut_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_tables, "MOST_CHARACTERS", 1500)
    sheets = {
        "many": pd.DataFrame({"n": range(50_001)}),
        "wordy": pd.DataFrame(
            {"text": [f"{n:0100d}" for n in range(20)], "n": range(20)}
        ),
        "enough": pd.DataFrame({"text": ["x" * 100] * 20}),
    }
    notes = write_page(tmp_path / "report.html", sheets, notes=["given"])
    page = read_page(tmp_path / "report.html")
    assert [table["rows"] for table in page.data["tables"]] == [50_000, 10, 20]
    assert [table["total"] for table in page.data["tables"]] == [50_001, 20, 20]
    assert notes[0] == "given"
    assert [note.split(" rows")[0] for note in notes[1:]] == [
        "many: this page contains only the first 50,000 of 50,001",
        "wordy: this page contains only the first 10 of 20",
    ]
    shown = [item.content() for item in page.root.with_id("notes").parent.all("li")]  # type: ignore[union-attr]
    assert shown == notes


@needs_extra
def test_a_text_longer_than_any_cell_is_cut_with_a_mark(tmp_path: Path) -> None:
    sheets = {"t": pd.DataFrame({"name": ["k" * 40_000, "short", "k" * 40_000]})}
    notes = write_page(tmp_path / "report.html", sheets)
    page = read_page(tmp_path / "report.html")
    assert "[cut here" in page.frame(0)[0][0]
    assert len(notes) == 1
    assert "2 in the column “name”" in notes[0]


@needs_extra
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.text(max_size=30)),
            st.floats(),
            st.integers(-(2**63), 2**63 - 1),
            st.one_of(
                st.none(),
                st.booleans(),
                st.integers(),
                st.lists(st.integers(), max_size=2),
            ),
        ),
        max_size=15,
    )
)
def test_any_table_survives(rows: list[tuple[Any, ...]]) -> None:
    frame = pd.DataFrame(rows, columns=["text", "time ms", "device", "anything"])
    frame["anything"] = frame["anything"].astype(object)
    contents = html_tables.page_tables({"t": frame}, {})
    texts = list(contents.pool)
    assert contents.notes == []
    columns = contents.tables["t"].columns
    assert contents.tables["t"].embedded == len(rows)
    for number, (text, time, device, _) in enumerate(rows):
        found = columns[0].values[number]
        if columns[0].kind == "text":  # a column of None alone has no type
            assert isinstance(found, int)
            assert (texts[found] if found >= 0 else "") == cleaned(text or "")
        found = columns[1].values[number]
        if math.isnan(time):
            assert found is None
        else:
            assert (float(found) if isinstance(found, str) else found) == time
            assert isinstance(found, str) == math.isinf(time)
        found = columns[2].values[number]
        assert found is not None
        assert int(found) == device
        assert isinstance(found, str) == (abs(device) > 2**53)
    json_for_script([table.for_script() for table in contents.tables.values()])


@needs_extra
def test_columns_of_unusual_types(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "Int64": pd.array([1, None, 3], dtype="Int64"),
            "float32": np.array([0.1, np.nan, 3], dtype=np.float32),
            "category": pd.Categorical(["a", None, "a"]),
            "bool": [True, False, True],
            "when": pd.to_datetime(pd.Series(["2024-01-01", None, "2024-01-03"])),
            "list": [["GEMM"], [], ["a", "b"]],
        }
    )
    # names repeat
    frame.columns = pd.Index(["a", "a", "b", "c", "d", ("x", "y")], dtype=object)
    write_page(tmp_path / "report.html", {"t": frame})
    assert read_page(tmp_path / "report.html").frame(0) == [
        (1, 0.1, "a", "True", "2024-01-01 00:00:00", "['GEMM']"),
        (None, None, "", "False", "", "[]"),
        (3, 3.0, "a", "True", "2024-01-03 00:00:00", "['a', 'b']"),
    ]


def test_without_the_extra_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(
        UsageError, match=r"jinja2 and plotly.*pip install 'tracelens-ext\[html\]'"
    ):
        require_html_extra()
    with pytest.raises(UsageError, match="pip install"):
        write_page(tmp_path / "report.html", small_report())
    assert list(tmp_path.iterdir()) == []


@needs_extra
def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")
    with pytest.raises(ValueError, match="absent"):
        write_html(target, small_report(), charts=[Chart("Time", "absent", "a", "b")])
    with pytest.raises(OutputError, match="folder"):
        write_page(tmp_path, small_report())
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert target.read_text() == "old"


@needs_extra
@pytest.mark.slow
def test_a_number_and_its_unit_stay_on_one_line() -> None:
    assert (
        with_units_attached("3 gaps: 2.0 ms (6.5 %)")
        == "3 gaps: 2.0\u00a0ms (6.5\u00a0%)"
    )
    assert with_units_attached("2 models, 5 bins") == "2 models, 5 bins"


def test_findings_unfold_and_stand_on_the_axis(
    demo_trace: Path, tmp_path: Path
) -> None:
    analyzer = TreePerfAnalyzer(demo_trace)
    report = build_perf_report(analyzer, for_page=True)
    url = "https://git.example/{path}#L{line}"
    write_report(replace(report, source_url=url), {tmp_path / "r.html": PAGE})
    page = read_page(tmp_path / "r.html", sources="https://git.example/")
    found = {finding.id: finding for finding in analyzer.findings().findings}
    (axis,) = (each for each in page.data["figures"] if each["key"] == "time-axis")
    marks = {
        each["customdata"][0].removeprefix("finding-"): each
        for each in axis["data"]
        if each["type"] == "bar"
    }
    assert list(marks) == [
        name for name, finding in found.items() if finding.claim is not None
    ]
    for name, mark in marks.items():
        card = page.root.with_id(f"finding-{name}")
        title = found[name].title
        assert mark["name"] == elided(title, LABEL)
        assert card.all("h3")[0].content() == with_units_attached(title)
        drawn = sum(mark["x"])
        # stretches that nearly touch are joined
        assert drawn >= found[name].attributed_ms * 0.999
        about, details = card.all("details")
        assert about.all("summary")[0].content() == "About this finding"
        shown = details.content()
        assert all(each.what[:40] in shown for each in found[name].evidence)
        frames = [
            p.name
            for p in found[name].where.get("python_frames", ())
            if "): " in p.name
        ]
        links = [a.attributes["href"] for a in details.all("a")]
        assert len(links) == len(frames)
        assert all(
            re.fullmatch(r"https://git\.example/[\w./]+#L\d+", str(link))
            for link in links
        )


@needs_extra
def test_hostile_frames_lead_nowhere_else(tmp_path: Path) -> None:
    frames = [f"{name}(7): f" for name in HOSTILE] + [
        "../../x(7): f",
        "javascript:alert(1)",
    ]
    findings = pd.DataFrame(
        [dict.fromkeys(("finding", "title", "confidence", "advice"), HOSTILE[6])]
    ).assign(largest_place="", snippet="", see="findings")
    details = pd.DataFrame(
        {
            "finding": HOSTILE[6],
            "kind": "python_frames",
            "name": pd.Series(frames, dtype=object),
        }
    )
    details = details.assign(amount=1.0, unit="ms", count=1.0, see="")
    report = Report(
        "t",
        {"findings": findings, "finding_details": details},
        answers=[Answer("a", "findings", ["title"], "see")],
        source_url="https://git.example/{path}#L{line}",
    )
    write_report(report, {tmp_path / "r.html": PAGE})
    page = read_page(tmp_path / "r.html", sources="https://git.example/")
    (unfolded,) = page.root.all("details")
    assert len(unfolded.all("li")) == len(frames)
    links = [str(a.attributes["href"]) for a in unfolded.all("a")]
    assert len(links) == len(frames) - 1
    for link in links:
        assert re.fullmatch(r"https://git\.example/[\w./%~-]*#L7", link)
    assert not page.root.all("img")


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)//{path}",
        "https://{path}/x",
        "file:///{path}",
        "https://a.example/",
        "//a.example/{path}",
        "https://[{path}",
        "http:{path}",
    ],
)
def test_addresses_of_sources_are_checked(url: str) -> None:
    with pytest.raises(UsageError, match="--source-url"):
        check_source_url(url)


@pytest.mark.real_data
@needs_extra
@pytest.mark.parametrize(
    "name", ["nvidia/training_large", "graphs/training_cuda_graph"]
)
def test_a_real_trace(name: str, tmp_path: Path) -> None:
    trace = TRACES / f"{name}.json.gz"
    report = build_perf_report(TreePerfAnalyzer(trace, use_kernel_name_categories=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notes = write_page(
            tmp_path / "report.html",
            report.sheets,
            facts=report.facts,
            notes=report.notes,
        )
    page = read_page(tmp_path / "report.html")
    assert notes == report.notes
    for place, (sheet, frame) in enumerate(report.sheets.items()):
        assert page.data["tables"][place]["rows"] == len(frame), sheet
        for column, name_of_column in zip(
            page.data["tables"][place]["columns"], frame.columns, strict=True
        ):
            if column["kind"] == "number":
                expected = frame[name_of_column].to_numpy(dtype=float, na_value=np.nan)
                found = np.array(
                    [np.nan if v is None else v for v in column["values"]], float
                )
                np.testing.assert_array_equal(found, expected)
    assert {
        "chart-gpu-timeline",
        "chart-gpu-time-by-category",
        "chart-top-kernels",
    } <= {figure["key"] for figure in page.data["figures"]}
