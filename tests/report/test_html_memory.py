"""The charts of memory on the page: lines with few points, bars that add up, hostile names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from tests.analysis.test_memory import analyzed, recorded
from tests.support.make_trace import TraceMaker
from tests.support.report_html_helpers import HOSTILE
from tracelens_ext.builtin_tables import ordered_tables
from tracelens_ext.report.html_memory import memory_figures
from tracelens_ext.report.tables.options import ReportOptions

if TYPE_CHECKING:
    import pandas as pd

    from tracelens_ext import TreePerfAnalyzer


def at_peak(
    steps: list[tuple[float, int, int]], maker: TraceMaker | None = None
) -> dict[str, pd.DataFrame]:
    events = recorded(steps, before=1_000_000)
    return page_tables(analyzed(events, maker))


def page_tables(analyzer: TreePerfAnalyzer) -> dict[str, pd.DataFrame]:
    declared = [table for table in ordered_tables() if table.name.startswith("memory_")]
    tables = {
        table.name: table.build_with(analyzer, ReportOptions()) for table in declared
    }
    return {name: table for name, table in tables.items() if table is not None}


def test_thousands_of_events_are_a_thousand_points_and_the_peak_is_one_of_them() -> (
    None
):
    rng = np.random.default_rng(7)
    steps = []
    for at, size in enumerate(rng.integers(1, 1000, 4000).tolist()):
        steps += [(at * 2.0, size, at), (at * 2.0 + 1, -size, at)]
    tables = at_peak(steps)
    frame = tables["memory_at_peak"]
    (figure,) = memory_figures(tables)
    allocated, reserved, peak = (trace["y"] for trace in figure.spec["data"][:3])
    assert len(allocated) == len(reserved) <= 1000
    assert [max(allocated)] == [frame["bytes"].sum()] == peak


def test_the_bars_add_up_to_the_peak() -> None:
    maker = TraceMaker()
    for number in range(30):
        maker.op(f"op {number}", number * 10, 9)
    tables = at_peak(
        [(number * 10 + 1, 100 + number, number) for number in range(30)], maker
    )
    (figure,) = memory_figures(tables)
    frame = tables["memory_at_peak"]
    data = figure.spec["data"]
    bars = [trace for trace in data if trace["type"] == "bar"]
    names = [trace["text"] for trace in data if trace.get("mode") == "text"]
    assert sum(sum(bar["x"]) for bar in bars) == frame["bytes"].sum()
    assert names[0][-1].startswith("(21 others): ")
    assert {trace["meta"] for trace in data} <= set(range(len(figure.legend)))


def test_names_are_no_markup() -> None:
    maker = TraceMaker()
    maker.op(" ".join(HOSTILE), 0, 10)
    maker.annotation("ProfilerStep#1", 0, 20)
    (figure,) = memory_figures(at_peak([(1, 5_000_000, 1)], maker))
    text = json.dumps(figure.spec)
    assert "<script" not in text
    assert "<img" not in text
    marks = [
        (note["text"], note["x"]) for note in figure.spec["rooms"][0]["annotations"]
    ]
    assert marks == [("ProfilerStep#1", 0.0)]
    assert [line["x0"] for line in figure.spec["layout"]["shapes"]] == [0.0]


def test_a_host_that_allocates_a_few_bytes_beside_a_gpu_is_not_drawn() -> None:
    events = recorded([(0, 5_000_000, 1)]) + recorded([(1, 8, 2)], device=-1)
    tables = page_tables(analyzed(events))
    assert [figure.title for figure in memory_figures(tables)] == ["Memory of device 0"]


def test_nothing_is_drawn_of_an_empty_table() -> None:
    assert memory_figures(at_peak([])) == []
