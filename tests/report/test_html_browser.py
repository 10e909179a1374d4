"""The HTML page in a real browser: what is drawn, what a click does, and what hostile names do."""

from __future__ import annotations

import importlib.util
import itertools
import math
from pathlib import Path

import pandas as pd
import pytest

from tests.support.report_html_browser import (
    CELLS,
    CONTRASTS,
    Browser,
    chromium,
    column,
    search,
    selector,
    status,
)
from tests.support.report_html_helpers import (
    HOSTILE,
    hostile_report,
    iterations,
    small_report,
    write_page,
)
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.report.html_texts import in_one_line
from tracelens_ext.report.tables.row_command import RowCommand
from tracelens_ext.report.writing import PAGE, write_report

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(chromium() is None, reason="needs Chromium"),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("jinja2", "plotly")),
        reason="needs jinja2 and plotly: pip install 'tracelens-ext[html]'",
    ),
]
TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"

_LABELS = "[...document.querySelectorAll('#chart-{key} .ytick text')].map((t) => t.textContent)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def small(folder: Path) -> Path:
    write_page(folder / "small.html", small_report(), notes=["a note"])
    return folder / "small.html"


@pytest.fixture(scope="module")
def hostile(folder: Path) -> Path:
    everywhere = " ".join(HOSTILE)
    sheets = hostile_report()
    write_page(
        folder / "hostile.html",
        sheets,
        facts=[("Trace", everywhere), (everywhere, everywhere)],
        notes=[everywhere],
        descriptions=dict.fromkeys(sheets, everywhere),
        title=everywhere,
    )
    return folder / "hostile.html"


@pytest.fixture(scope="module")
def large(folder: Path) -> Path:
    rows = 50_000
    frame = pd.DataFrame(
        {
            "kernel_name": [
                f"void kernel_{n % 9973}<int>(float const*, {n})" for n in range(rows)
            ],
            "cpu_op": [f"aten::op_{n % 100}" for n in range(rows)],
            "total_time_ms": [(n * 7919 % rows) / 1000 for n in range(rows)],
            "count": range(rows),
        }
    )
    write_page(folder / "large.html", {"unlinked_kernels": frame})
    return folder / "large.html"


def test_the_charts_are_drawn_and_nothing_is_asked_for(
    browser: Browser, small: Path
) -> None:
    browser.open(small)
    assert browser.value("document.documentElement.dataset.charts") == "drawn"
    bars = browser.value(
        "[...document.querySelectorAll('.chart')].map((chart) => [chart.id,"
        " [...chart.querySelectorAll('.point path')].filter((bar) =>"
        " bar.getBoundingClientRect().width > 0.5).length])"
    )
    assert dict(bars) == {
        "chart-gpu-timeline": 3,
        "chart-gpu-time-by-category": 3,
        "chart-gpu-time-by-operation": 4,
        "chart-gpu-time-by-graph-launch": 3,
        "chart-top-kernels": 22,
    }
    assert browser.value(_LABELS.format(key="gpu-time-by-operation")) == [
        "(unlinked)",
        "aten::mm",
        "aten::mul",
    ]
    assert browser.requests() == [small.resolve().as_uri()]
    assert browser.complaints() == []


def test_a_click_on_a_header_sorts(browser: Browser, small: Path) -> None:
    browser.open(small)
    header = selector(3, "thead th:nth-child(4)")
    in_order = ["40.000", "15.500", "44.250", "0.250"]
    seen = []
    for _ in range(3):
        browser.click(f"{header} button")
        sort = browser.value(f'document.querySelector("{header}").ariaSort')
        seen.append((sort, column(browser, "kernel_categories", 3)))
    assert seen == [
        ("descending", ["44.250", "40.000", "15.500", "0.250"]),
        ("ascending", ["0.250", "15.500", "40.000", "44.250"]),
        (None, in_order),
    ]
    # texts from A, all rows and not only those on the screen, and by the keyboard
    browser.value(f'document.querySelector("{selector(2, "thead th button")}").focus()')
    browser.press("Enter", 13)
    assert column(browser, "kernels_by_category", 0) == [
        f"kernel_{n:02d}" for n in range(1, 11)
    ]
    assert browser.complaints() == []


def test_a_search_narrows(browser: Browser, small: Path) -> None:
    browser.open(small)
    assert status(browser, 2) == "10 of 25 rows"
    assert search(browser, 2, "KERNEL_2 gemm") == "3 of 3 found in 25 rows"
    assert column(browser, "kernels_by_category", 0) == [
        "kernel_25",
        "kernel_23",
        "kernel_21",
    ]
    browser.click(selector(2, "thead th:nth-child(3) button"))
    browser.click(selector(2, "thead th:nth-child(3) button"))
    assert column(browser, "kernels_by_category", 2) == ["21", "23", "25"]
    assert search(browser, 2, "nothing like it") == "0 of 0 found in 25 rows"
    assert column(browser, "kernels_by_category", 0) == []
    assert column(browser, "kernel_categories", 0) != []  # other tables stay
    assert browser.complaints() == []


def test_all_rows_can_be_shown(browser: Browser, small: Path) -> None:
    browser.open(small)
    more = selector(2, ".more")
    assert (
        browser.value(f'document.querySelector("{more}").textContent') == "Show all 25"
    )
    browser.click(more)
    assert column(browser, "kernels_by_category", 2) == [
        str(n) for n in range(25, 0, -1)
    ]
    assert status(browser, 2) == "25 of 25 rows"
    browser.click(more)
    assert len(column(browser, "kernels_by_category", 2)) == 10
    hidden = browser.value(f'document.querySelector("{selector(0, ".more")}").hidden')
    assert hidden  # eight rows are all there are


def test_rows_drawn_by_the_script_are_those_that_stood_there(
    browser: Browser, folder: Path
) -> None:
    values = [
        0.0625,
        1234567.8915,
        -5.5,
        1e-7,
        0.04,
        1e20,
        2.5,
        -0.0,
        math.inf,
        math.nan,
    ]
    names = ["time ms", "percent", "change (%)", "GB/s", "difference_ms", "ratio", "x"]
    small = {name: [v for v in values if abs(v) < 1] for name in ("time us", "percent")}
    sheets = small_report() | {
        "numbers": pd.DataFrame(dict.fromkeys(names, values)),
        "small numbers": pd.DataFrame(small),
        "whole": pd.DataFrame(
            {"count": [0, -1, 999, 1000, 2**60], "device": [1, 2, 3, 4, 2**62]}
        ),
    }
    page = folder / "standing.html"
    write_page(page, sheets)
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.call("Page.navigate", url=page.resolve().as_uri())
        browser.wait_for(
            "location.protocol === 'file:' && document.readyState === 'complete'"
        )
        standing = browser.value(CELLS)
        note = browser.value("document.querySelector('.no-chart').textContent")
        shown = browser.value(
            "[...document.querySelectorAll('.scripted')].some((e) => !e.hidden)"
        )
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert "the tables below contain the numbers" in note
    assert not shown  # no control that would do nothing
    browser.open(page)
    assert browser.value(CELLS) == standing
    assert len(standing) > 30


def test_hostile_names_run_nothing(browser: Browser, hostile: Path) -> None:
    browser.open(hostile)
    for number, words in ((1, "<img onerror"), (2, "</script>")):
        browser.click(selector(number, ".more"))
        assert "found in 17 rows" in search(browser, number, words)
    for number in (1, 2, 3):
        browser.click(selector(number, "thead th button"))
    assert browser.value("window.pwned") is None
    assert browser.dialogs() == []
    assert browser.complaints() == []
    assert browser.requests() == [hostile.resolve().as_uri()]
    # In the charts: no markup but what the page itself made.
    assert (
        browser.value(
            "document.querySelectorAll('.chart a, .chart img, .chart script').length"
        )
        == 0
    )
    names = browser.value(_LABELS.format(key="top-kernels"))
    first = in_one_line(HOSTILE[0])
    assert names[0] == first
    assert "<!--<script>" in names
    assert "%{y} %{customdata} $x^2$ %{x:.3f}" in names
    assert [name for name in names if name.startswith("<b>bold</b> <a href")]


def test_hostile_names_beside_the_pointer(browser: Browser, hostile: Path) -> None:
    browser.open(hostile)
    chart = "document.getElementById('chart-top-kernels')"
    for bar in range(10):
        at = browser.value(
            f"""(() => {{
                {chart}.scrollIntoView({{block: "start"}});
                const bar = [...{chart}.querySelectorAll('.point path')]
                    .filter((path) => path.getBoundingClientRect().width > 3)[{bar}];
                const box = bar.getBoundingClientRect();
                return {{x: box.x + box.width / 2, y: box.y + box.height / 2}};
            }})()"""
        )
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        browser.wait_for(
            f"{chart}.querySelectorAll('.hoverlayer .hovertext').length > 0"
        )
        text = browser.value(
            f"{chart}.querySelector('.hoverlayer .hovertext').textContent"
        )
        name = in_one_line(HOSTILE[bar])
        assert text.startswith(name[:50]), (bar, text)
        assert "GPU" not in text
        assert browser.value(f"{chart}.querySelectorAll('.hoverlayer a').length") == 0
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
        browser.wait_for(
            f"{chart}.querySelectorAll('.hoverlayer .hovertext').length === 0"
        )
    assert browser.value("window.pwned") is None


def test_the_policy_stops_what_escaping_missed(browser: Browser, small: Path) -> None:
    browser.open(small)
    browser.value(
        """(() => {
            const script = document.createElement("script");
            script.textContent = "window.pwned = 1";
            document.body.append(script);
            const image = document.createElement("img");
            image.setAttribute("onerror", "window.pwned = 2");
            image.src = "https://example.invalid/x.png";
            document.body.append(image);
            return fetch("https://example.invalid/y").catch(() => new Promise(
                (done) => setTimeout(done, 200)));
        })()"""
    )
    assert browser.value("window.pwned") is None
    answered = {
        event["params"]["response"]["url"].partition(":")[0]
        for event in browser.events
        if event["method"] == "Network.responseReceived"
    }
    assert answered <= {"file", "data"}
    reasons = [
        event["params"].get("blockedReason")
        for event in browser.events
        if event["method"] == "Network.loadingFailed"
    ]
    assert set(reasons) <= {"csp"}


def test_fifty_thousand_rows_stay_usable(browser: Browser, large: Path) -> None:
    browser.open(large)
    assert browser.value("document.querySelectorAll('tbody tr').length") == 10
    browser.click(selector(0, "thead th:nth-child(3) button"))
    assert column(browser, "unlinked_kernels", 2)[:2] == ["49.999", "49.998"]
    assert search(browser, 0, "kernel_42< op_4") == "1 of 1 found in 50,000 rows"
    assert search(browser, 0, "aten::op_7") == "10 of 5,500 found in 50,000 rows"
    browser.click(selector(0, ".more"))
    assert status(browser, 0) == "5,500 of 5,500 found in 50,000 rows"
    assert browser.value("document.querySelectorAll('tbody tr').length") == 200
    browser.value("document.querySelector('.scroll').scrollTop = 1e6")
    browser.wait_for("document.querySelectorAll('tbody tr').length === 400")
    assert browser.complaints() == []


def test_a_legend_hides_a_piece(browser: Browser, small: Path) -> None:
    browser.open(small)
    figure = "figure:has(#chart-gpu-time-by-operation)"
    assert (
        browser.value(
            f"document.querySelector('{figure} .legend').textContent.trim()[0]"
        )
        == "G"
    )
    colors = (
        f"new Set([...document.querySelectorAll('{figure} .point path')]"
        ".map((bar) => bar.style.fill)).size"
    )
    assert browser.value(colors) == 3
    browser.click(f"{figure} .legend button")
    browser.wait_for(f"{colors} === 2")
    pressed = f"document.querySelector('{figure} .legend button').getAttribute('aria-pressed')"
    assert browser.value(pressed) == "false"
    browser.click(f"{figure} .legend button")
    browser.wait_for(f"{colors} === 3")
    assert browser.complaints() == []


def test_long_names_are_elided_and_can_be_seen_whole(
    browser: Browser, folder: Path
) -> None:
    name = "void " + "very::long::name<" * 30
    write_page(
        folder / "long.html", {"t": pd.DataFrame({"kernel_name": [name, "short"]})}
    )
    browser.open(folder / "long.html")
    clip = "document.querySelector('tbody .clip')"
    assert browser.value(f"[{clip}.textContent, {clip}.title]") == [name, name]
    heights = [browser.value(f"{clip}.offsetHeight")]
    for clicked in ("tbody .clip", "tbody .clip", "input.whole"):
        browser.click(clicked)
        heights.append(browser.value(f"{clip}.offsetHeight"))
    one_line = heights[0]
    assert heights[1] > 3 * one_line
    assert heights[2] == one_line
    assert heights[3] > 3 * one_line


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_can_be_read_in_either_scheme(
    browser: Browser, small: Path, *, dark: bool
) -> None:
    browser.open(small, dark=dark)
    background, ratios = browser.value(CONTRASTS)
    assert background < 0.05 if dark else background > 0.9
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}


def test_a_phone_needs_no_scrolling_sideways(browser: Browser, small: Path) -> None:
    browser.open(small, width=390, height=844)
    assert browser.value("document.documentElement.scrollWidth") <= 390
    widths = (
        "[...document.querySelectorAll('.chart .main-svg')].map((s) => s.clientWidth)"
    )
    assert max(browser.value(widths)) <= 390
    # names stand above their bars
    names = "[...document.querySelectorAll('#chart-gpu-time-by-operation .annotation-text')]"
    assert browser.value(f"{names}.map((t) => t.textContent)") == [
        "(unlinked)",
        "aten::mm",
        "aten::mul",
    ]
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=1280,
        height=900,
        deviceScaleFactor=1,
        mobile=False,
    )
    browser.wait_for(f"Math.max(...{widths}) > 900")
    browser.wait_for(f"{names}.length === 0")
    assert browser.complaints() == []


def test_the_page_can_be_printed(browser: Browser, small: Path, tmp_path: Path) -> None:
    browser.open(small, dark=True)
    browser.pdf(tmp_path / "report.pdf")
    printed = (tmp_path / "report.pdf").read_bytes()
    assert printed.startswith(b"%PDF")
    assert len(printed) > 20_000
    # as before
    browser.wait_for("document.querySelector('.main-svg').clientWidth > 1100")
    assert browser.complaints() == []


def test_a_browser_that_cannot_unpack_plotly_says_so(
    browser: Browser, small: Path
) -> None:
    added = browser.call(
        "Page.addScriptToEvaluateOnNewDocument",
        source="delete window.DecompressionStream",
    )
    try:
        browser.open(small)
    finally:
        browser.call("Page.removeScriptToEvaluateOnNewDocument", **added)
    assert browser.value("document.documentElement.dataset.charts") == "failed"
    note = browser.value("document.querySelector('.no-chart').textContent")
    assert "The tables below contain the numbers" in note
    browser.click(selector(3, "thead th:nth-child(4) button"))
    assert column(browser, "kernel_categories", 3)[0] == "44.250"
    assert browser.complaints() == []


_BARS = (
    "[...document.querySelectorAll('#chart-iterations .overplot > .xy .bars .point path')]"
    ".map((path) => path.getBoundingClientRect())"
    ".map((box) => [box.x, box.y, box.width, box.height])"
)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_iterations_stand_side_by_side(
    browser: Browser, folder: Path, *, dark: bool
) -> None:
    frame = iterations(12)
    frame.loc[7, ["idle_time_ms", "wall_time_ms"]] = [25.0, 40.0]
    frame.loc[7, "odd"] = "wall_time_ms, idle_time_ms"
    write_page(
        folder / "iterations.html",
        small_report() | {"iterations": frame},
        notes=["a note"],
    )
    browser.open(folder / "iterations.html", dark=dark)
    bars = browser.value(_BARS)
    assert len(bars) == 4 * 12
    lowest = bars[:12]
    assert lowest == sorted(lowest), "in order of time"
    tops = [y for _, y, _, _ in bars[36:]]
    assert min(range(12), key=lambda bar: tops[bar]) == 7
    assert max(tops[:7]) - min(tops[:7]) < 1
    marks = "document.querySelectorAll('#chart-iterations .scatterlayer .point').length"
    assert browser.value(marks) == 1
    mark = "document.querySelector('#chart-iterations .scatterlayer .point')"
    at = browser.value(
        f"(() => {{ {mark}.scrollIntoView({{block: 'center'}});"
        f" const box = {mark}.getBoundingClientRect();"
        " return {x: box.x + box.width / 2, y: box.y + box.height / 2}; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
    hover = "document.querySelector('#chart-iterations .hoverlayer .hovertext')"
    browser.wait_for(f"{hover} !== null")
    assert browser.value(f"{hover}.textContent").startswith("ProfilerStep#10 is odd")
    lines = "document.querySelectorAll('#chart-iterations .scatterlayer .js-line')"
    colors = browser.value(f"[...{lines}].map((line) => getComputedStyle(line).stroke)")
    assert colors[:12] == ["rgb(28, 32, 39)" if dark else "rgb(255, 255, 255)"] * 12
    assert colors[12:] == ["rgb(232, 234, 238)" if dark else "rgb(27, 31, 39)"] * 12
    # Without a piece the bars are lower, and what was true of whole bars is gone.
    browser.click("figure:has(#chart-iterations) .legend li:nth-child(4) button")
    browser.wait_for(f"{marks} === 0")
    assert len(browser.value(_BARS)) == 3 * 12
    assert browser.value(f"{lines}.length") == 24, "wall time is as long as before"
    browser.click("figure:has(#chart-iterations) .legend li:last-child button")
    browser.wait_for(f"{lines}.length === 0")
    background, ratios = browser.value(CONTRASTS)
    assert background < 0.05 if dark else background > 0.9
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}
    assert browser.complaints() == []


def test_thousands_of_iterations_stay_readable(browser: Browser, folder: Path) -> None:
    frame = iterations(5000)
    frame.loc[0, "idle_time_ms"] = 90_000.0
    frame.loc[0, "odd"] = "idle_time_ms"
    write_page(folder / "many.html", {"iterations": frame})
    for width in (1280, 390):
        browser.open(folder / "many.html", width=width)
        bars = browser.value(_BARS)
        assert 150 < len(bars) / 4 <= 240
        assert min(width for _, _, width, _ in bars) > 0.5
        low = [height for _, _, _, height in bars[: len(bars) // 4]]
        assert min(low) > 10, "the long one does not press the others flat"
        ticks = "[...document.querySelectorAll('#chart-iterations .xtick text')]"
        edges = browser.value(
            f"{ticks}.map((t) => t.getBoundingClientRect()).map((b) => [b.left, b.right])"
        )
        assert len(edges) > 3
        assert all(a[1] < b[0] for a, b in itertools.pairwise(edges))
        text = browser.value(
            "document.querySelector('#chart-iterations .infolayer').textContent"
        )
        assert "↑ 4.31 s" in text.replace("\u00a0", " ")
        assert browser.value("document.documentElement.scrollWidth") <= width
        assert browser.complaints() == []


@pytest.mark.real_data
@pytest.mark.parametrize(
    "name", ["nvidia/Qwen_Qwen1.5-0.5B-Chat__1016005", "graphs/vllm_decode_hip_graph"]
)
def test_a_real_trace(browser: Browser, name: str, tmp_path: Path) -> None:
    trace = TRACES / f"{name}.json.gz"
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.perf_report import build_perf_report

    report = build_perf_report(TreePerfAnalyzer(trace, use_kernel_name_categories=True))
    write_page(
        tmp_path / "report.html", report.sheets, facts=report.facts, notes=report.notes
    )
    browser.open(tmp_path / "report.html")
    assert browser.value("document.documentElement.dataset.charts") == "drawn"
    drawn = browser.value(
        "[...document.querySelectorAll('.chart')].map((c) => c.querySelectorAll('.point').length)"
    )
    assert min(drawn) >= 1
    assert browser.complaints() == []
    assert browser.requests() == [(tmp_path / "report.html").resolve().as_uri()]


@pytest.mark.parametrize("width", [1280, 420])
def test_memory_is_drawn_in_its_colors_with_what_was_alive_beside_or_below(
    browser: Browser, folder: Path, short_demo_trace: Path, width: int
) -> None:
    report = build_perf_report(TreePerfAnalyzer(short_demo_trace), for_page=True)
    page = folder / "memory.html"
    write_report(report, {page: PAGE})
    browser.open(page, width=width, dark=width < 600)
    lines = "[...document.querySelectorAll('#chart-memory-0 .scatterlayer .js-line')]"
    drawn = browser.value(f"{lines}.map((line) => getComputedStyle(line).stroke)")
    assert drawn == ["rgb(63, 127, 212)", "rgb(229, 138, 43)"]
    box = "document.querySelector('#chart-memory-0 {}').getBoundingClientRect()"
    bars, levels = (box.format(name) for name in (".x2y2", ".xy"))
    edges = browser.value(f"[{bars}.left, {levels}.right, {bars}.top, {levels}.bottom]")
    assert edges[0] >= edges[1] or edges[2] >= edges[3]
    browser.click("figure:has(#chart-memory-0) .legend li:nth-child(2) button")
    assert len(browser.value(f"{lines}.map(String)")) == 1
    assert browser.complaints() == []


def test_the_call_tree_is_searched_and_a_finding_in_time_opens_its_card(
    browser: Browser, folder: Path, short_demo_trace: Path
) -> None:
    report = build_perf_report(TreePerfAnalyzer(short_demo_trace), for_page=True)
    page = folder / "views.html"
    write_report(report, {page: PAGE})
    browser.open(page)
    slices = "[...document.querySelectorAll('#call-tree path.surface')]"
    assert browser.value(f"{slices}.length") == 0, "drawn when it is looked at"
    browser.click("#call-tree-search")
    browser.wait_for(f"{slices}.length > 5")
    pale = f"{slices}.filter((path) => path.style.fillOpacity < 0.5).length"
    assert browser.value(pale) == 0
    browser.type("aten::mm")
    browser.wait_for(f"{pale} > 3 && {pale} < {slices}.length")
    card = "document.querySelector('.findings details')"
    assert not browser.value(f"{card}.open")
    title = "#time-axis .annotation[data-index='1'] .annotation-text"
    assert browser.value(f'document.querySelector("{title}").textContent').startswith(
        str(report.sheets["findings"]["title"].iloc[0])[:30]
    )
    browser.click(title)
    browser.wait_for(f"{card}.open")
    assert browser.complaints() == []


def test_a_row_copies_its_command_whatever_the_order(
    browser: Browser, folder: Path
) -> None:
    table = pd.DataFrame(
        {
            "name": ["aten::mm", "cudaLaunchKernel", "aten::add"],
            "Input Dims": ["((2, 2), (2, 2))", "", "((2,), (2,), ())"],
            "total_direct_kernel_time_ms": [1.0, 2.0, 3.0],
        }
    )
    command = RowCommand(
        "tracelens-ext reproduce 'a b.json' --row {row}", "reproduce", "Input Dims"
    )
    path = folder / "commands.html"
    write_page(path, {"ops": table}, row_commands={"ops": command})
    browser.open(path)
    browser.click(selector(0, "thead th:nth-child(3) button"))  # the longest first
    titles = browser.value("[...document.querySelectorAll('.copy')].map(b => b.title)")
    assert titles == [
        "tracelens-ext reproduce 'a b.json' --row 3",
        "tracelens-ext reproduce 'a b.json' --row 1",
    ]
    browser.click(".copy")
    browser.wait_for("document.querySelector('.copy').textContent === 'copied'")
    assert browser.complaints() == []
