"""What the host was in while the GPU was idle, against a plain loop over gaps and events."""

from __future__ import annotations

import re
from collections import defaultdict
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.gap_helpers import TRACES, gpu_events, load, plain_gaps, recorded
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.idle_time.causes import CAUSES
from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.errors import UsageError

OPERATIONS = {"cpu_op", "user_annotation"}
FRAMES = {"python_function"}
CALLS = {"cuda_runtime", "cuda_driver"}


def idle(frame: Any) -> dict[tuple[str, str], tuple[int, int]]:
    """(operation, frame) → gaps and ns of a table."""
    return {
        (row["host_op"], row["python_frame"]): (
            row["count"],
            round(row["idle_time_ms"] * 1e6),
        )
        for row in frame.to_dict("records")
    }


def plain(events: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[int, int]]:
    """The same by loops: of each gap of a device, the shortest event that covers half."""
    launches = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in CALLS and "correlation" in event.get("args", {})
    }
    hosts: dict[tuple[Any, Any], list[tuple[str, Decimal, Decimal, str]]] = defaultdict(
        list
    )
    for event in events:
        if event.get("cat") in OPERATIONS | FRAMES and "dur" in event:
            begun = Decimal(event["ts"])
            end = begun + Decimal(event["dur"])
            if not event["name"].startswith("ProfilerStep#"):
                of_thread = hosts[(event["pid"], event["tid"])]
                of_thread.append((event["cat"], begun, end, event["name"]))
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for gaps in plain_gaps(gpu_events(events), parts=2).values():
        for gap in gaps:
            launch = launches.get(gap.after.correlation)
            if launch is None:
                key = ("(unlinked)", "")
            else:
                at = Decimal(launch["ts"])
                until = at if gap.start < at < gap.end else gap.end
                of_thread = hosts[(launch["pid"], launch["tid"])]
                key = (
                    innermost(of_thread, OPERATIONS, gap.start, until),
                    innermost(of_thread, FRAMES, gap.start, until),
                )
            found[key][0] += 1
            found[key][1] += gap.nanoseconds
    return {key: (count, total) for key, (count, total) in found.items()}


def innermost(
    events: list[tuple[str, Decimal, Decimal, str]],
    kinds: set[str],
    start: Decimal,
    end: Decimal,
) -> str:
    covering = [
        (last - first, -first, name)
        for kind, first, last, name in events
        if kind in kinds and 2 * (min(last, end) - max(first, start)) >= end - start
    ]
    name = min(covering)[2] if covering else ""
    return re.sub(" at 0x[0-9a-f]+", "", name)


def example() -> TraceMaker:
    """Twenty idle µs in `load`, thirty in `aten::item`, five in nothing."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#1", 0, 1000)
    maker.launched("a", 10, 10, correlation=1, at=1)
    maker.frame("data.py(3): load", 21, 18)
    maker.annotation("## load ##", 21, 18)
    maker.launched("b", 40, 10, correlation=2, at=39)
    for number, at in enumerate((50, 80)):
        maker.frame(f"<built-in method item of Tensor object at 0x7f{number}>", at, 19)
        maker.op("aten::item", at, 19)
    maker.launched("c", 70, 10, correlation=3, at=69)
    maker.launched("d", 90, 10, correlation=4, at=89)
    maker.launched("e", 105, 10, correlation=5, at=104)
    maker.kernel("f", 120, 10)
    return maker


def test_idle_time_is_grouped_by_what_the_host_was_in() -> None:
    table = TreePerfAnalyzer(example().document()).get_df_idle_cpu_activity()
    assert table.to_dict("records")[0] == {
        "host_op": "aten::item",
        "python_frame": "<built-in method item of Tensor object>",
        "main_cause": "host",
        "count": 2,
        "idle_time_ms": 0.03,
        "% of idle time": 50.0,
        "avg_gap_us": 15.0,
        "max_gap_us": 20.0,
    }
    assert idle(table) == {
        ("aten::item", "<built-in method item of Tensor object>"): (2, 30_000),
        ("## load ##", "data.py(3): load"): (1, 20_000),
        ("", ""): (1, 5_000),
        ("(unlinked)", ""): (1, 5_000),
    }
    assert idle(table) == plain(example().events)


def test_a_selection_and_streams() -> None:
    maker = example()
    maker.annotation("ProfilerStep#2", 1000, 100)
    maker.op("aten::stack", 131, 970)
    maker.launched("late", 1110, 5, correlation=9, at=1050, stream=9)
    maker.launched("later", 1130, 5, correlation=10, at=1060, stream=9)
    analyzer = TreePerfAnalyzer(maker.document())
    step = analyzer.get_df_idle_cpu_activity(selection=EventFilter(step=2))
    assert idle(step) == {("aten::stack", ""): (1, 980_000), ("", ""): (1, 15_000)}
    stream = analyzer.get_df_idle_cpu_activity(
        "stream", selection=EventFilter(stream=9)
    )
    assert idle(stream) == {("", ""): (1, 15_000)}
    longest = analyzer.get_df_gaps("device", longest=1, selection=EventFilter(step=2))
    assert longest["host_op"].tolist() == ["aten::stack"]
    with pytest.raises(UsageError, match="there is no scope 'thread'"):
        analyzer.get_df_idle_cpu_activity("thread")  # type: ignore[arg-type]


def test_no_gaps_give_an_empty_table() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    table = TreePerfAnalyzer(maker.document()).get_df_idle_cpu_activity()
    assert table.empty
    assert "host_op" in table


spans = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), max_size=12)


@given(spans, st.lists(st.integers(1, 30), min_size=2, max_size=6))
def test_nested_events_agree_with_a_plain_loop(
    drawn: list[tuple[int, int]], waits: list[int]
) -> None:
    maker = TraceMaker()
    open_until: list[tuple[int, int]] = []
    for start, duration in sorted(set(drawn), key=lambda span: (span[0], -span[1])):
        while open_until and open_until[-1][1] <= start:
            open_until.pop()
        if open_until and (
            start + duration > open_until[-1][1] or start == open_until[-1][0]
        ):
            # crossing, or as long as another: which is inside is not for this test
            continue
        open_until.append((start, start + duration))
        maker.op(f"op {start} {duration}", start, duration)
    at = 0
    for number, wait in enumerate(waits, start=1):
        at += wait
        maker.launched(f"k{number}", at, 3, correlation=number, at=max(at - 4, 0))
        at += 3
    table = TreePerfAnalyzer(maker.document()).get_df_idle_cpu_activity()
    assert idle(table) == plain(maker.events)


@pytest.mark.real_data
@pytest.mark.parametrize(
    "name",
    [
        "edge/amd_mi250",
        "nvidia/gaunernst_bert-small-uncased__1016001",
        "amd/gpu_only_trace",
    ],
)
def test_real_traces(name: str) -> None:
    analyzer = recorded(name)
    table = analyzer.get_df_idle_cpu_activity()
    assert idle(table) == plain(load(TRACES[name]))


@pytest.mark.real_data
@pytest.mark.parametrize("name", TRACES)
def test_all_idle_time_is_in_one_row_each(name: str) -> None:
    analyzer = recorded(name)
    table = analyzer.get_df_idle_cpu_activity()
    summary = analyzer.get_df_gap_summary()
    of_device = summary[summary["scope"] == "device"]
    assert table["count"].sum() == len(analyzer.get_df_gaps("device"))
    assert table["idle_time_ms"].sum() == pytest.approx(of_device["idle_time_ms"].sum())
    assert table["% of idle time"].sum() == pytest.approx(100 if len(table) else 0)
    assert table["idle_time_ms"].is_monotonic_decreasing
    assert not table.duplicated(["host_op", "python_frame"]).any()
    assert set(table["main_cause"]) <= set(CAUSES) - {"edge"}
