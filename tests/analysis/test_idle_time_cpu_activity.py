"""CPU activity while the GPU was idle, compared with a plain loop over gaps and events."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.gap_helpers import TRACES, gpu_events, load, plain_gaps, recorded
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.idle_time.causes import CAUSES
from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

OPERATIONS = {"cpu_op", "user_annotation"}
FRAMES = {"python_function"}
CALLS = {"cuda_runtime", "cuda_driver"}


#: An operation and a Python frame.
Activity = tuple[str, str]
#: The number of gaps and their idle time, ns.
GapsAndTime = tuple[int, int]


def idle_by_activity(frame: pd.DataFrame) -> dict[Activity, GapsAndTime]:
    """Return the gaps and the idle time of each activity in a table."""
    idle = {}
    for row in frame.to_dict("records"):
        activity = (row["host_op"], row["python_frame"])
        idle[activity] = (row["count"], round(row["idle_time_ms"] * 1e6))
    return idle


class CpuEvent(NamedTuple):
    """An operation, annotation or Python frame; times in µs."""

    category: str
    name: str
    start: Decimal
    end: Decimal

    @property
    def duration(self) -> Decimal:
        return self.end - self.start

    def covers_half(self, start: Decimal, end: Decimal) -> bool:
        overlap = min(self.end, end) - max(self.start, start)
        return 2 * overlap >= end - start


def plain_idle_by_activity(
    events: list[dict[str, Any]],
) -> dict[Activity, GapsAndTime]:
    """Find the activity of each gap of a device by loops: the shortest event that covers half."""
    launches = {}
    cpu_events: dict[tuple[Any, Any], list[CpuEvent]] = defaultdict(list)
    for event in events:
        category = event.get("cat")
        if category in CALLS and "correlation" in event.get("args", {}):
            launches[event["args"]["correlation"]] = event
        is_activity = category in OPERATIONS | FRAMES and "dur" in event
        if is_activity and not event["name"].startswith("ProfilerStep#"):
            start = Decimal(event["ts"])
            end = start + Decimal(event["dur"])
            thread = (event["pid"], event["tid"])
            cpu_events[thread].append(
                CpuEvent(str(category), event["name"], start, end)
            )
    gap_count: Counter[Activity] = Counter()
    idle_ns: Counter[Activity] = Counter()
    for gaps in plain_gaps(gpu_events(events), parts=2).values():
        for gap in gaps:
            launch = launches.get(gap.after.correlation)
            activity = ("(unlinked)", "")
            if launch is not None:
                launch_time = Decimal(launch["ts"])
                end = gap.end
                if gap.start < launch_time < gap.end:
                    end = launch_time
                of_thread = cpu_events[(launch["pid"], launch["tid"])]
                activity = (
                    innermost(of_thread, OPERATIONS, gap.start, end),
                    innermost(of_thread, FRAMES, gap.start, end),
                )
            gap_count[activity] += 1
            idle_ns[activity] += gap.nanoseconds
    return {
        activity: (count, idle_ns[activity]) for activity, count in gap_count.items()
    }


def innermost(
    events: list[CpuEvent], categories: set[str], start: Decimal, end: Decimal
) -> str:
    """Return the name of the shortest event that covers half of a time, without addresses."""
    covering = [
        event
        for event in events
        if event.category in categories and event.covers_half(start, end)
    ]
    if not covering:
        return ""
    shortest = min(covering, key=lambda event: (event.duration, -event.start))
    return re.sub(" at 0x[0-9a-f]+", "", shortest.name)


def example() -> TraceMaker:
    """Make a trace with 20 idle µs in `load`, 30 in `aten::item` and 5 outside of all events."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#1", 0, 1000)
    maker.launched("a", 10, 10, correlation=1, at=1)
    maker.frame("data.py(3): load", 21, 18)
    maker.annotation("## load ##", 21, 18)
    maker.launched("b", 40, 10, correlation=2, at=39)
    for number, start in enumerate((50, 80)):
        frame = f"<built-in method item of Tensor object at 0x7f{number}>"
        maker.frame(frame, start, 19)
        maker.op("aten::item", start, 19)
    maker.launched("c", 70, 10, correlation=3, at=69)
    maker.launched("d", 90, 10, correlation=4, at=89)
    maker.launched("e", 105, 10, correlation=5, at=104)
    maker.kernel("f", 120, 10)
    return maker


def test_idle_time_is_grouped_by_operation_and_frame() -> None:
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
    assert idle_by_activity(table) == {
        ("aten::item", "<built-in method item of Tensor object>"): (2, 30_000),
        ("## load ##", "data.py(3): load"): (1, 20_000),
        ("", ""): (1, 5_000),
        ("(unlinked)", ""): (1, 5_000),
    }
    assert idle_by_activity(table) == plain_idle_by_activity(example().events)


@pytest.fixture
def second_step() -> TreePerfAnalyzer:
    """The example with a second step, whose kernels run on a stream of their own."""
    maker = example()
    maker.annotation("ProfilerStep#2", 1000, 100)
    maker.op("aten::stack", 131, 970)
    maker.launched("late", 1110, 5, correlation=9, at=1050, stream=9)
    maker.launched("later", 1130, 5, correlation=10, at=1060, stream=9)
    return TreePerfAnalyzer(maker.document())


def test_a_selection_restricts_the_gaps(second_step: TreePerfAnalyzer) -> None:
    selection = EventFilter(step=2)
    table = second_step.get_df_idle_cpu_activity(selection=selection)
    assert idle_by_activity(table) == {
        ("aten::stack", ""): (1, 980_000),
        ("", ""): (1, 15_000),
    }
    longest = second_step.get_df_gaps("device", longest=1, selection=selection)
    assert longest["host_op"].tolist() == ["aten::stack"]


def test_the_gaps_of_a_stream_can_be_selected(second_step: TreePerfAnalyzer) -> None:
    table = second_step.get_df_idle_cpu_activity(
        "stream", selection=EventFilter(stream=9)
    )
    assert idle_by_activity(table) == {("", ""): (1, 15_000)}


def test_an_unknown_scope_is_refused(second_step: TreePerfAnalyzer) -> None:
    with pytest.raises(UsageError, match="there is no scope 'thread'"):
        second_step.get_df_idle_cpu_activity("thread")  # type: ignore[arg-type]


def test_the_table_of_a_trace_without_gaps_is_empty() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    table = TreePerfAnalyzer(maker.document()).get_df_idle_cpu_activity()
    assert table.empty
    assert "host_op" in table


#: The start and the duration of each operation, µs.
OPERATION_SPANS = st.lists(
    st.tuples(st.integers(0, 90), st.integers(1, 40)), max_size=12
)


def add_nested_operations(maker: TraceMaker, spans: list[tuple[int, int]]) -> None:
    """Add those of the operations that are within others, or apart from them.

    Operations that only overlap, or start together, are left out: the plain loop does not know
    which of them is the inner one.
    """
    enclosing: list[tuple[int, int]] = []
    for start, duration in sorted(set(spans), key=lambda span: (span[0], -span[1])):
        end = start + duration
        while enclosing and enclosing[-1][1] <= start:
            enclosing.pop()
        if enclosing:
            outer_start, outer_end = enclosing[-1]
            if end > outer_end or start == outer_start:
                continue
        enclosing.append((start, end))
        maker.op(f"op {start} {duration}", start, duration)


@given(OPERATION_SPANS, st.lists(st.integers(1, 30), min_size=2, max_size=6))
def test_activity_during_nested_operations_agrees_with_a_plain_loop(
    spans: list[tuple[int, int]], gap_lengths: list[int]
) -> None:
    maker = TraceMaker()
    add_nested_operations(maker, spans)
    start = 0
    for number, gap_length in enumerate(gap_lengths, start=1):
        start += gap_length
        launch = max(start - 4, 0)
        maker.launched(f"k{number}", start, 3, correlation=number, at=launch)
        start += 3
    table = TreePerfAnalyzer(maker.document()).get_df_idle_cpu_activity()
    assert idle_by_activity(table) == plain_idle_by_activity(maker.events)


@pytest.mark.real_data
@pytest.mark.parametrize(
    "name",
    [
        "edge/amd_mi250",
        "nvidia/gaunernst_bert-small-uncased__1016001",
        "amd/gpu_only_trace",
    ],
)
def test_activity_in_recorded_traces_agrees_with_a_plain_loop(name: str) -> None:
    analyzer = recorded(name)
    table = analyzer.get_df_idle_cpu_activity()
    assert idle_by_activity(table) == plain_idle_by_activity(load(TRACES[name]))


@pytest.mark.real_data
@pytest.mark.parametrize("name", TRACES)
def test_rows_of_recorded_traces_add_up_to_all_idle_time(name: str) -> None:
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
