"""The chart's page in a real browser: what is drawn, what a click does, on a phone, in the dark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.chart_helpers import an_input, analyzed, two_runs
from tests.support.comparison_helpers import needs_html
from tests.support.make_trace import TraceMaker
from tests.support.report_html_browser import Browser, chromium, column
from tests.support.report_html_helpers import HOSTILE
from tracelens_ext.compare.engine_chart.page import write_page
from tracelens_ext.compare.engine_chart.runs import measure_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.process,
    needs_html,
    pytest.mark.skipif(chromium() is None, reason="needs Chromium"),
]
_CHART = "#chart-elapsed-time"
_NAMES = (
    f"[...document.querySelectorAll('{_CHART} .ytick text')].map((t) => t.textContent)"
)
_BARS = f"""[...document.querySelectorAll('{_CHART} .bars .point path')]
    .filter((bar) => bar.getBBox().width > 0).length"""
_COLORS = "[...document.querySelectorAll('.swatch')].map((s) => s.style.background)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chart") / "result.html"
    write_page(path, two_runs(), title="Two runs")
    return path


def test_a_bar_for_each_run_and_the_numbers_under_it(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    assert browser.value("document.documentElement.dataset.charts") == "drawn"
    assert browser.complaints() == []
    assert browser.requests() == [page.resolve().as_uri()]
    assert browser.value(_NAMES) == ["llama_vllm_run_0", "llama_vllm_run_1"]
    # gemm, norm, copies and the rest; elementwise, gemm and the rest
    assert browser.value(_BARS) == 7
    assert column(browser, "elapsed_sec_by_category", 0)[-2:] == [
        "CPU(non-GPU)",
        "total_elapsed_sec",
    ]
    assert column(browser, "elapsed_sec_by_category", 1)[-1] == "0.00010000"
    assert column(browser, "elapsed_sec_by_category", 2)[-1] == "0.00100000"
    browser.click(f"figure:has({_CHART}) .legend li:last-child button")
    browser.wait_for(f"{_BARS} === 5")


def test_on_a_phone_in_the_dark(browser: Browser, page: Path) -> None:
    browser.open(page, width=390, height=800, dark=True)
    assert browser.value("document.documentElement.dataset.charts") == "drawn"
    assert browser.value("document.documentElement.scrollWidth") <= 390
    assert (
        browser.value("getComputedStyle(document.body).backgroundColor")
        != "rgb(255, 255, 255)"
    )


def test_many_categories_and_runs_with_hostile_names(
    browser: Browser, tmp_path: Path
) -> None:
    maker = TraceMaker()
    names = [*HOSTILE, *(f"kernel {number}" for number in range(9))]
    for place, _ in enumerate(names):
        maker.gpu("kernel", f"k{place:02}", 10 * place, 9)
    mapping = {f"k{place:02}": name for place, name in enumerate(names)}
    gpu_events = analyzed(maker, mapping).gpu_events
    runs = [
        measure_run(gpu_events, an_input(name=f"<b>{at}<br>%{{x}}.json"), at)
        for at in range(8)
    ]
    write_page(tmp_path / "result.html", runs, title=" ".join(HOSTILE))
    browser.open(tmp_path / "result.html")
    assert browser.complaints() == []
    assert browser.value("window.pwned") is None
    colors = browser.value(_COLORS)
    assert len(colors) == len(set(colors)) == len(names) + 1
    assert browser.value(_NAMES) == [
        f"llama_vllm_<b>{at}<br>%{{x}}_{at}" for at in range(8)
    ]
    assert not browser.value("document.querySelectorAll('.card').length")
