"""Gaps: the idle times between GPU events of a stream or device, exact to the nanosecond."""

from __future__ import annotations

import dataclasses
import re
import statistics
import sys
from collections import Counter, defaultdict
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.scripts.generated_pages import built_in_tables, expanded
from tests.support.docs_helpers import page_text
from tests.support.gap_helpers import (
    TRACES,
    Kernel,
    gpu_events,
    gpu_events_of,
    plain_gaps,
    recorded,
)
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.idle_time.kernel_pairs import PAIR_SORTS
from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.errors import TraceFormatError, UsageError
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.trace import NONE
from tracelens_ext.trace.gpu_events import Scope, find_gaps


def analyzed(maker: TraceMaker, **options: Any) -> TreePerfAnalyzer:
    return TreePerfAnalyzer(maker.document(), **options)


def test_a_gap_begins_when_the_last_event_has_ended() -> None:
    maker = TraceMaker()
    maker.kernel("long", 0, 100)
    maker.kernel("short, inside", 10, 20)
    maker.kernel("after", 130, 10)
    maker.kernel("touches", 140, 5)
    gaps = analyzed(maker).get_df_gaps()
    columns = ["kernel_before", "kernel_after", "start_us", "gap_us"]
    assert gaps[columns].to_numpy().tolist() == [["long", "after", 100.0, 30.0]]


def test_equal_streams_of_different_devices_are_different_streams() -> None:
    maker = TraceMaker()
    maker.kernel("k", 0, 10, device=0, stream=7)
    maker.kernel("k", 20, 10, device=1, stream=7)
    maker.kernel("k", 40, 10, device=0, stream=9)
    maker.kernel("k", 60, 10, device=0, stream=7)
    maker.kernel("k", 90, 10, device=1, stream=7)
    streams = analyzed(maker).get_df_gap_streams().set_index(["device", "stream"])
    assert streams["events"].to_dict() == {(0, 7): 2, (1, 7): 2, (0, 9): 1}
    assert streams["gap_count"].to_dict() == {(0, 7): 1, (1, 7): 1, (0, 9): 0}
    assert streams["idle_time_us"].to_dict() == {(0, 7): 50, (1, 7): 60, (0, 9): 0}


def test_work_on_other_streams_of_the_device_overlaps_a_gap() -> None:
    maker = TraceMaker()
    maker.kernel("a", 0, 10)
    maker.kernel("other", 5, 15, stream=9)  # overlaps 10 µs of the gap
    maker.kernel("other", 30, 100, stream=9)  # overlaps 20 µs of the gap
    maker.kernel("elsewhere", 0, 1000, device=1)  # another device does not count
    maker.kernel("b", 50, 10)
    analyzer = analyzed(maker)
    gaps = analyzer.get_df_gaps()
    (gap,) = gaps[gaps["stream"] == 7].to_dict("records")
    assert (gap["gap_us"], gap["overlapped_us"]) == (40.0, 30.0)
    streams = analyzer.get_df_gap_streams().set_index(["device", "stream"])
    assert streams.loc[(0, 7), "device_idle_us"] == 10.0
    device_gaps = analyzer.get_df_gaps("device")
    assert device_gaps["gap_us"].tolist() == [10.0]
    assert device_gaps["overlapped_us"].tolist() == [0.0]
    assert device_gaps["stream"].tolist() == [NONE]


def test_tables_of_a_trace_without_gpu_events_are_empty() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    analyzer = analyzed(maker)
    assert analyzer.get_df_gaps().empty
    assert analyzer.get_df_gaps(longest=5).empty
    assert analyzer.get_df_idle_by_kernel_pair().empty
    assert analyzer.get_df_gap_streams().empty
    assert analyzer.get_df_kernel_statistics().empty
    assert analyzer.get_df_gap_summary()["count"].tolist() == [0] * 14


def test_pairs_of_simplified_names_count_their_full_names() -> None:
    maker = TraceMaker()
    start = 0
    for number, gap in enumerate((10, 20, 60)):
        maker.kernel(f"void at::native::reduce_kernel<{number}>(int)", start, 5)
        start += 5 + gap
        maker.kernel("gemm", start, 5)  # the next kernel follows without a gap
        start += 5
    (pair,) = analyzed(maker).get_df_idle_by_kernel_pair().to_dict("records")
    assert pair == {
        "kernel_before": "reduce_kernel",
        "kernel_after": "gemm",
        "count": 3,
        "avg_gap_us": 30.0,
        "max_gap_us": 60.0,
        "min_gap_us": 10.0,
        "std_gap_us": pytest.approx(statistics.stdev([10, 20, 60])),
        "total_gap_us": 90.0,
        "main_cause": "unknown",
        "full_names": 3,
    }


@pytest.mark.parametrize("sort", PAIR_SORTS)
def test_pairs_are_sorted_by_the_column_of_the_sort_order(sort: Any) -> None:
    maker = TraceMaker()
    start = 0
    random = np.random.default_rng(1)
    for _ in range(200):
        maker.kernel(f"k{random.integers(4)}", start, 3)
        start += int(3 + random.integers(1, 50))
    table = analyzed(maker).get_df_idle_by_kernel_pair(sort)
    values = table[PAIR_SORTS[sort].column].tolist()
    assert values == sorted(values, reverse=True)
    assert len(set(values)) > 3


@pytest.fixture
def two_steps() -> TraceMaker:
    """A trace of the steps 4 and 5, with two kernels in each."""
    maker = TraceMaker()
    maker.annotation("ProfilerStep#4", 0, 100)
    maker.annotation("ProfilerStep#5", 100, 100)
    maker.launched("k", 20, 10, correlation=1, at=10)
    maker.launched("k", 60, 10, correlation=2, at=40)
    maker.launched("k", 120, 10, correlation=3, at=110)
    maker.launched("k", 170, 10, correlation=4, at=150)
    return maker


@pytest.mark.parametrize(("step", "gaps"), [(4, [30.0]), (5, [50.0, 40.0])])
def test_a_selection_has_the_gaps_that_its_events_end(
    two_steps: TraceMaker, step: int, gaps: list[float]
) -> None:
    selected = analyzed(two_steps).get_df_gaps(selection=EventFilter(step=step))
    assert selected["gap_us"].tolist() == gaps


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (EventFilter(step=6), "it has ProfilerStep#4 to #5"),
        (EventFilter(stream=8), "no GPU event ran on stream 8; the trace has 7"),
        (EventFilter(device=2), "no GPU event ran on device 2; the trace has 0"),
        (EventFilter(category="GEM"), "no GPU event belongs to the category 'GEM'"),
    ],
)
def test_a_selection_of_nothing_is_refused(
    two_steps: TraceMaker, selection: EventFilter, message: str
) -> None:
    analyzer = analyzed(two_steps, use_kernel_name_categories=True)
    with pytest.raises(UsageError, match=message):
        analyzer.get_df_gaps(selection=selection)


def test_a_selection_by_category_needs_categories(two_steps: TraceMaker) -> None:
    with pytest.raises(UsageError, match="categories are turned off"):
        analyzed(two_steps).get_df_gaps(selection=EventFilter(category="GEMM"))


def test_a_selection_by_step_needs_steps() -> None:
    maker = TraceMaker()
    maker.kernel("k", 0, 1)
    with pytest.raises(UsageError, match="no ProfilerStep#N at all"):
        analyzed(maker).get_df_gaps(selection=EventFilter(step=1))


def test_unknown_scopes_sort_orders_and_negative_numbers_are_refused(
    two_steps: TraceMaker,
) -> None:
    analyzer = analyzed(two_steps)
    message = "there is no scope 'steam'; choose from stream, device"
    with pytest.raises(UsageError, match=message):
        analyzer.get_df_gaps("steam")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there is no sort"):
        analyzer.get_df_idle_by_kernel_pair("length")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="0 or more; it is -1"):
        analyzer.get_df_gaps(longest=-1)
    assert analyzer.get_df_gaps(longest=0).empty


GAP_SHEETS = [
    "gap_summary",
    "gap_shapes",
    "idle_cpu_activity",
    "gap_streams",
    "idle_by_kernel_pair",
    "gaps_longest",
]


@pytest.fixture
def one_gap() -> TraceMaker:
    """A trace with a gap of 30 µs, for which the CPU is the cause."""
    maker = TraceMaker()
    maker.launched("a", 10, 10, correlation=1, at=0)
    maker.launched("b", 50, 10, correlation=2, at=45)
    return maker


def test_the_report_has_all_sheets_of_gaps_on_request(one_gap: TraceMaker) -> None:
    sheets = build_perf_report(analyzed(one_gap), gaps=True).sheets
    assert [name for name in sheets if "gap" in name or "idle" in name] == GAP_SHEETS
    assert sheets["gaps_longest"]["cause"].tolist() == ["host"]
    # The gap of 30 µs counts in both scopes.
    assert sheets["gap_summary"]["idle_time_ms"].sum() == pytest.approx(0.06)


def test_by_default_the_report_has_only_the_sheets_that_findings_cite(
    one_gap: TraceMaker,
) -> None:
    sheets = build_perf_report(analyzed(one_gap)).sheets
    cited = {"gap_summary", "idle_cpu_activity", "gap_shapes"}
    assert set(GAP_SHEETS) & set(sheets) <= cited
    assert "gaps" not in sheets


def test_every_column_is_documented(one_gap: TraceMaker) -> None:
    analyzer = analyzed(one_gap, use_kernel_name_categories=True)
    sheets = build_perf_report(analyzer, gaps=True).sheets
    tables = {name: table for name, table in sheets.items() if "gap" in name}
    tables["kernel_statistics"] = analyzer.get_df_kernel_statistics()
    text = expanded(page_text("tables.md"), built_in_tables())
    parts = re.split(r"^#+ `(\w+)`\n", text, flags=re.MULTILINE)
    section_of_table = dict(zip(parts[1::2], parts[2::2], strict=True))
    for name, table in tables.items():
        section = section_of_table[name]
        undocumented = [column for column in table if f"`{column}`" not in section]
        assert not undocumented, name


# Generated traces.


KERNELS = st.lists(
    st.builds(
        Kernel,
        st.integers(0, 1),
        st.integers(1, 2),
        st.integers(1, 60),  # the reader drops events that start and end at 0
        st.integers(0, 15),
    ),
    max_size=25,
)


def trace_of(kernels: list[Kernel]) -> TraceMaker:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 0)
    for number, kernel in enumerate(kernels):
        maker.kernel(
            f"k{number}",
            kernel.start,
            kernel.duration,
            device=kernel.device,
            stream=kernel.stream,
        )
    return maker


@given(KERNELS)
@pytest.mark.parametrize(("scope", "key_parts"), [("stream", 3), ("device", 2)])
def test_gaps_agree_with_a_plain_loop(
    scope: Scope, key_parts: int, kernels: list[Kernel]
) -> None:
    maker = trace_of(kernels)
    analyzer = analyzed(maker)
    gaps = find_gaps(analyzer.gpu_events, scope)
    names = list(zip(gaps.tracks.device, gaps.tracks.stream, strict=True))
    base_ns = analyzer.trace.base_ns
    actual = []
    for track, start, end in zip(gaps.track, gaps.start, gaps.end, strict=True):
        name = names[track][: key_parts - 1]
        actual.append((name, (start + base_ns) / 1000, (end + base_ns) / 1000))
    expected = []
    for track, plain in plain_gaps(gpu_events(maker.events), key_parts).items():
        expected += [(track[1:], gap.start, gap.end) for gap in plain]
    assert sorted(actual) == sorted(expected)
    assert (gaps.duration > 0).all()


@given(KERNELS)
def test_overlapped_time_agrees_with_sets_of_microseconds(
    kernels: list[Kernel],
) -> None:
    analyzer = analyzed(trace_of(kernels))
    gaps = find_gaps(analyzer.gpu_events, "stream")
    busy: defaultdict[int, set[int]] = defaultdict(set)
    for kernel in kernels:
        busy[kernel.device].update(range(kernel.start, kernel.start + kernel.duration))
    base_ns = analyzer.trace.base_ns
    for index in range(len(gaps)):
        device = int(gaps.tracks.device[gaps.track[index]])
        first = (int(gaps.start[index]) + base_ns) // 1000
        last = (int(gaps.end[index]) + base_ns) // 1000
        overlapped = busy[device] & set(range(first, last))
        assert gaps.overlapped[index] == 1000 * len(overlapped)


@given(
    st.lists(
        st.tuples(st.integers(0, 90), st.integers(1, 9), st.integers(7, 9)), min_size=1
    )
)
def test_idle_time_is_the_same_in_the_timeline_in_gaps_and_in_iterations(
    kernels: list[tuple[int, int, int]],
) -> None:
    """The iteration lasts from the first start to the last end of the GPU events."""
    maker = TraceMaker()
    first = min(start for start, _, _ in kernels)
    last = max(start + duration for start, duration, _ in kernels)
    maker.annotation("ProfilerStep#1", first, last - first)
    for start, duration, stream in kernels:
        maker.kernel("k", start, duration, stream=stream)
    analyzer = analyzed(maker)
    timeline = analyzer.get_df_gpu_timeline(4).set_index("type")["time ms"]
    causes = analyzer.get_df_gap_summary(["device"])["idle_time_ms"]
    (idle_ms,) = analyzer.get_df_iterations()["idle_time_ms"]
    gaps = analyzer.get_df_gaps("device")["gap_us"]
    assert round(idle_ms * 1e6) == gaps.sum() * 1e3
    assert round(timeline["idle_time"] * 1e6) == gaps.sum() * 1e3
    assert causes.sum() == pytest.approx(idle_ms)
    assert round(timeline["micro_idle_time"] * 1e6) == gaps[gaps <= 4].sum() * 1e3
    assert timeline["busy_time"] + idle_ms == pytest.approx(timeline["total_time"])


# Recorded traces.


def nanoseconds(microseconds: pd.Series[float]) -> list[int]:
    values: list[int] = (microseconds * 1000).round().astype(int).tolist()
    return values


@pytest.mark.real_data
@pytest.mark.parametrize("name", TRACES)
def test_gaps_of_recorded_traces_agree_with_a_loop(name: str) -> None:
    gaps_of_track = plain_gaps(gpu_events_of(TRACES[name]))
    expected = {}
    lengths: Counter[int] = Counter()
    for track, gaps in gaps_of_track.items():
        lengths_of_track = [gap.nanoseconds for gap in gaps]
        expected[track[1:]] = (len(gaps), sum(lengths_of_track))
        lengths.update(lengths_of_track)
    analyzer = recorded(name)
    streams = analyzer.get_df_gap_streams()
    tracks = zip(streams["device"], streams["stream"], strict=True)
    idle_ns = nanoseconds(streams["idle_time_us"])
    sizes = zip(streams["gap_count"], idle_ns, strict=True)
    assert dict(zip(tracks, sizes, strict=True)) == expected
    assert Counter(nanoseconds(analyzer.get_df_gaps()["gap_us"])) == lengths


@pytest.mark.real_data
@pytest.mark.parametrize("name", TRACES)
def test_kernel_pairs_of_recorded_traces_agree_with_a_loop(name: str) -> None:
    lengths_of_pair: dict[tuple[str, str], list[int]] = defaultdict(list)
    for gaps in plain_gaps(gpu_events_of(TRACES[name])).values():
        for gap in gaps:
            pair = (simple_name(gap.before), simple_name(gap.after.name))
            lengths_of_pair[pair].append(gap.nanoseconds)
    pairs = recorded(name).get_df_idle_by_kernel_pair()
    assert len(pairs) == len(lengths_of_pair)
    for row in pairs.to_dict("records"):
        values = lengths_of_pair[(row["kernel_before"], row["kernel_after"])]
        assert row["count"] == len(values)
        assert round(row["total_gap_us"] * 1000) == sum(values)
        assert round(row["max_gap_us"] * 1000) == max(values)
        assert round(row["min_gap_us"] * 1000) == min(values)
        deviation = statistics.stdev(values) if len(values) > 1 else 0
        assert row["std_gap_us"] * 1000 == pytest.approx(deviation, rel=1e-9, abs=1e-6)


@pytest.mark.real_data
@pytest.mark.parametrize("name", TRACES)
def test_idle_time_of_recorded_devices_agrees_with_a_loop(name: str) -> None:
    idle_ns = 0
    for gaps in plain_gaps(gpu_events_of(TRACES[name]), parts=2).values():
        idle_ns += sum(gap.nanoseconds for gap in gaps)
    analyzer = recorded(name)
    timeline = analyzer.get_df_gpu_timeline()
    idle_ms = timeline.loc[timeline["type"] == "idle_time", "time ms"].sum()
    assert round(idle_ms * 1e6) == idle_ns
    summary = analyzer.get_df_gap_summary()
    of_devices = summary[summary["scope"] == "device"]
    assert of_devices["idle_time_ms"].sum() == pytest.approx(idle_ms)


# Large traces.


def with_kernels(count: int) -> TreePerfAnalyzer:
    """Return a trace with many kernels of the same name, on one stream."""
    maker = TraceMaker()
    maker.kernel("k", 0, 1)
    trace = analyzed(maker).trace
    random = np.random.default_rng(3)
    fields: dict[str, Any] = {
        "ts": np.sort(random.integers(0, 5_000 * count, count)),
        "dur": random.integers(1, 5000, count),
        "name": np.zeros(count, dtype=np.int32),
        "kind": np.full(count, trace.kind[0]),
        "thread": np.zeros(count, dtype=np.int32),
        "correlation": np.full(count, NONE),
        "external_id": np.full(count, NONE),
        "category": np.zeros(count, dtype=np.int32),
        "args": {},
    }
    return TreePerfAnalyzer(dataclasses.replace(trace, **fields))


def python_calls(count: int) -> int:
    """Return the number of Python functions that the tables of a trace call."""
    analyzer = with_kernels(count)
    calls = 0

    def count_call(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    earlier_profiler = sys.getprofile()
    sys.setprofile(count_call)
    try:
        analyzer.get_df_gap_summary()
        analyzer.get_df_idle_by_kernel_pair()
        analyzer.get_df_kernel_statistics()
    finally:
        sys.setprofile(earlier_profiler)
    return calls


def test_tables_of_gaps_do_not_loop_over_the_events_in_python() -> None:
    python_calls(10)  # imports and caches
    assert python_calls(20_000) < python_calls(2_000) + 1_000


def test_idle_times_whose_sum_exceeds_64_bits_are_refused() -> None:
    maker = TraceMaker()
    for stream in range(20):
        for years in (0, 9):
            maker.kernel("k", years * 365 * 86_400 * 10**6, 5, stream=stream)
    analyzer = TreePerfAnalyzer(maker.document())
    with pytest.raises(
        TraceFormatError, match="its GPU is idle for more than a century"
    ):
        analyzer.get_df_gap_streams()
