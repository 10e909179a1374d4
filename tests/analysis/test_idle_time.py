"""Gaps are the idle time between successive GPU events of a stream, exact to the nanosecond."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
import time
from collections import Counter, defaultdict
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
from tracelens_ext.trace.gpu_events import find_gaps
from tracelens_ext.trace.grouping import dense_ranks, group_durations, number_groups
from tracelens_ext.trace.sorted_groups import last_before, running_maximum


def analyzed(maker: TraceMaker, **options: Any) -> TreePerfAnalyzer:
    return TreePerfAnalyzer(maker.document(), **options)


def test_a_gap_begins_when_the_last_event_has_ended() -> None:
    maker = TraceMaker()
    maker.kernel("long", 0, 100)
    maker.kernel("short, inside", 10, 20)
    maker.kernel("after", 130, 10)
    maker.kernel("touches", 140, 5)
    table = analyzed(maker).get_df_gaps()
    assert table[
        ["kernel_before", "kernel_after", "start_us", "gap_us"]
    ].to_numpy().tolist() == [["long", "after", 100.0, 30.0]]


def test_a_stream_is_process_device_and_stream() -> None:
    maker = TraceMaker()
    for device, stream, start in (
        (0, 7, 0),
        (1, 7, 20),
        (0, 9, 40),
        (0, 7, 60),
        (1, 7, 90),
    ):
        maker.kernel("k", start, 10, device=device, stream=stream)
    streams = analyzed(maker).get_df_gap_streams()
    found = {
        (row["device"], row["stream"]): (
            row["events"],
            row["gap_count"],
            row["idle_time_us"],
        )
        for row in streams.to_dict("records")
    }
    assert found == {(0, 7): (2, 1, 50.0), (1, 7): (2, 1, 60.0), (0, 9): (1, 0, 0.0)}


def test_work_on_another_stream_is_told_from_true_idle_time() -> None:
    maker = TraceMaker()
    maker.kernel("a", 0, 10)
    maker.kernel("other", 5, 15, stream=9)  # 10 µs of the gap
    maker.kernel("other", 30, 100, stream=9)  # and 20 of it
    maker.kernel("elsewhere", 0, 1000, device=1)  # does not count
    maker.kernel("b", 50, 10)
    table = analyzed(maker).get_df_gaps()
    (gap,) = table[table["stream"] == 7].to_dict("records")
    assert (gap["gap_us"], gap["overlapped_us"]) == (40.0, 30.0)
    streams = analyzed(maker).get_df_gap_streams().set_index(["device", "stream"])
    assert streams.loc[(0, 7), "device_idle_us"] == 10.0
    whole = analyzed(maker).get_df_gaps("device")
    assert whole["gap_us"].tolist() == [10.0]
    assert whole["overlapped_us"].tolist() == [0.0]
    assert whole["stream"].tolist() == [NONE]


def test_no_gpu_work_gives_empty_tables() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 10)
    analyzer = analyzed(maker)
    assert len(analyzer.get_df_gaps()) == len(analyzer.get_df_gaps(longest=5)) == 0
    assert (
        len(analyzer.get_df_idle_by_kernel_pair())
        == len(analyzer.get_df_gap_streams())
        == 0
    )
    assert analyzer.get_df_gap_summary()["count"].tolist() == [0] * 14
    assert len(analyzer.get_df_kernel_statistics()) == 0


def test_pairs_are_of_simplified_names_and_say_how_many_they_hold() -> None:
    maker = TraceMaker()
    at = 0
    for number, gap in enumerate((10, 20, 60)):
        maker.kernel(f"void at::native::reduce_kernel<{number}>(int)", at, 5)
        at += 5 + gap
        maker.kernel("gemm", at, 5)
        at += 5
    table = analyzed(maker).get_df_idle_by_kernel_pair()
    pair = table[table["kernel_before"] == "reduce_kernel"].to_dict("records")
    assert len(pair) == len(table) == 1, "where events touch there is no gap"
    assert pair[0] == {
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
def test_pairs_are_sorted_by_what_was_asked(sort: Any) -> None:
    maker = TraceMaker()
    at = 0
    random = np.random.default_rng(1)
    for _ in range(200):
        maker.kernel(f"k{random.integers(4)}", at, 3)
        at += int(3 + random.integers(1, 50))
    table = analyzed(maker).get_df_idle_by_kernel_pair(sort)
    values = table[PAIR_SORTS[sort][0]].tolist()
    assert values == sorted(values, reverse=True)
    assert len(set(values)) > 3


def test_a_selection_keeps_the_gaps_that_its_events_end() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#4", 0, 100)
    maker.annotation("ProfilerStep#5", 100, 100)
    for number, (at, start) in enumerate(
        ((10, 20), (40, 60), (110, 120), (150, 170)), start=1
    ):
        maker.launched("k", start, 10, correlation=number, at=at)
    analyzer = analyzed(maker, use_kernel_name_categories=True)
    assert analyzer.get_df_gaps(selection=EventFilter(step=5))["gap_us"].tolist() == [
        50.0,
        40.0,
    ]
    assert analyzer.get_df_gaps(selection=EventFilter(step=4))["gap_us"].tolist() == [
        30.0
    ]
    for wrong, words in (
        (EventFilter(step=6), "it has ProfilerStep#4 to #5"),
        (EventFilter(stream=8), "no GPU event ran on stream 8; the trace has 7"),
        (EventFilter(device=2), "no GPU event ran on device 2; the trace has 0"),
        (EventFilter(category="GEM"), "no GPU event belongs to the category 'GEM'"),
    ):
        with pytest.raises(UsageError, match=words):
            analyzer.get_df_gaps(selection=wrong)
    with pytest.raises(UsageError, match="categories are turned off"):
        analyzed(maker).get_df_gaps(selection=EventFilter(category="GEMM"))
    with pytest.raises(UsageError, match="no ProfilerStep#N at all"):
        stepless = TraceMaker()
        stepless.kernel("k", 0, 1)
        analyzed(stepless).get_df_gaps(selection=EventFilter(step=1))
    with pytest.raises(
        UsageError, match="there is no scope 'steam'; choose from stream, device"
    ):
        analyzer.get_df_gaps("steam")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="0 or more; it is -1"):
        analyzer.get_df_gaps(longest=-1)
    assert len(analyzer.get_df_gaps(longest=0)) == 0
    with pytest.raises(UsageError, match="there is no sort"):
        analyzer.get_df_idle_by_kernel_pair("length")  # type: ignore[arg-type]


def test_the_report_has_the_sheets_when_asked_for() -> None:
    maker = TraceMaker()
    maker.launched("a", 10, 10, correlation=1, at=0)
    maker.launched("b", 50, 10, correlation=2, at=45)
    names = [
        "gap_summary",
        "gap_shapes",
        "idle_cpu_activity",
        "gap_streams",
        "idle_by_kernel_pair",
        "gaps_longest",
    ]
    without = build_perf_report(analyzed(maker)).sheets
    assert set(names) & set(without) <= {
        "gap_summary",
        "idle_cpu_activity",
        "gap_shapes",
    }, "what evidence cites"
    assert "gaps" not in without, "evidence names the command"
    sheets = build_perf_report(analyzed(maker), gaps=True).sheets
    assert [name for name in sheets if "gap" in name or "idle" in name] == names
    assert sheets["gaps_longest"]["cause"].tolist() == ["host"]
    assert sheets["gap_summary"]["idle_time_ms"].sum() == pytest.approx(0.06), (
        "both scopes"
    )


def test_every_column_is_documented() -> None:
    maker = TraceMaker()
    maker.launched("a", 10, 10, correlation=1, at=0)
    maker.launched("b", 50, 10, correlation=2, at=45)
    analyzer = analyzed(maker, use_kernel_name_categories=True)
    tables = dict(build_perf_report(analyzer, gaps=True).sheets)
    tables["kernel_statistics"] = analyzer.get_df_kernel_statistics()
    text = expanded(page_text("tables.md"), built_in_tables())
    parts = re.split(r"^#+ `(\w+)`\n", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    for name in [
        name for name in tables if "gap" in name or name == "kernel_statistics"
    ]:
        undocumented = [c for c in tables[name] if f"`{c}`" not in sections[name]]
        assert not undocumented, name


# Properties.

events = st.lists(
    st.tuples(
        # A start and a duration of 0 would mean that no time was collected.
        st.integers(0, 1),
        st.integers(1, 2),
        st.integers(1, 60),
        st.integers(0, 15),
    ),
    max_size=25,
)


@given(events)
def test_gaps_agree_with_a_plain_loop(drawn: list[tuple[int, int, int, int]]) -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 0)
    for number, (device, stream, start, duration) in enumerate(drawn):
        maker.kernel(f"k{number}", start, duration, device=device, stream=stream)
    analyzer = analyzed(maker)
    plain = gpu_events(maker.events)
    for scope, parts in (("stream", 3), ("device", 2)):
        found: Any = find_gaps(analyzer.work, scope)  # type: ignore[arg-type]
        expected = sorted(
            (track[1:], gap.start, gap.end)
            for track, gaps in plain_gaps(plain, parts).items()
            for gap in gaps
        )
        base = analyzer.trace.base_ns
        tracks = list(
            zip(found.tracks.device.tolist(), found.tracks.stream.tolist(), strict=True)
        )
        got = sorted(
            (tracks[track][: parts - 1], (start + base) / 1000, (end + base) / 1000)
            for track, start, end in zip(
                found.track.tolist(),
                found.start.tolist(),
                found.end.tolist(),
                strict=True,
            )
        )
        assert got == expected
        assert (found.duration > 0).all()
    streams = find_gaps(analyzer.work, "stream")
    for at in range(len(streams)):  # µs by µs
        mine = streams.tracks.device[streams.track[at]]
        busy = {
            time
            for device, _, start, duration in drawn
            if device == mine
            for time in range(start, start + duration)
        }
        first, last = (
            (int(edge[at]) + analyzer.trace.base_ns) // 1000
            for edge in (streams.start, streams.end)
        )
        assert streams.overlapped[at] == 1000 * len(busy & set(range(first, last)))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-(10**15), 10**15)), max_size=30)
)
def test_statistics_of_groups(drawn: list[tuple[int, int]]) -> None:
    groups: dict[int, list[int]] = defaultdict(list)
    for group, value in drawn:
        groups[group].append(value)
    code, duration = (
        np.array([each[k] for each in drawn], dtype=np.int64) for k in (0, 1)
    )
    found = group_durations([code], duration)
    assert len(found) == len(groups)
    assert found.keys[0][found.group_index].tolist() == code.tolist()
    assert found.total.tolist() == sorted(map(sum, groups.values()), reverse=True)
    for number, group in enumerate(found.keys[0].tolist()):
        values = groups[group]
        assert found.count[number] == len(values)
        assert found.total[number] == sum(values)
        assert (found.shortest[number], found.longest[number]) == (
            min(values),
            max(values),
        )
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        assert math.isclose(
            found.deviation(duration)[number], deviation, rel_tol=1e-9, abs_tol=1e-3
        )
        assert drawn[found.first[number]] == (group, values[0])


FAR = st.sampled_from([-(2**63), -(2**62), 0, 2**62, 2**63 - 2, 2**63 - 1])


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9) | FAR), max_size=20),
    st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 11) | FAR), max_size=10),
)
def test_the_last_before_and_the_running_maximum(
    items: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    items = sorted(items)
    group, time = (
        np.array([item[k] for item in items], dtype=np.int64) for k in (0, 1)
    )
    asked_group, asked_time = (
        np.array([a[k] for a in asked], dtype=np.int64) for k in (0, 1)
    )
    expected = [
        max((i for i, (g, t) in enumerate(items) if g == of and t < at), default=NONE)
        for of, at in asked
    ]
    assert last_before(group, time, asked_group, asked_time).tolist() == expected
    values = np.array(
        [t if abs(t) > 99 else (7 * t) % 5 for _, t in items], dtype=np.int64
    )
    highest, place = running_maximum(group, values)
    for i, (g, _) in enumerate(items):
        so_far = [(int(values[k]), k) for k in range(i + 1) if items[k][0] == g]
        assert (int(highest[i]), int(place[i])) == max(so_far)


@given(
    st.lists(
        st.tuples(*[st.integers(-5, 5) | FAR | st.integers(0, 10**7)] * 2), max_size=30
    ),
    st.sampled_from([np.int64, np.int32, np.uint8]),
)
def test_codes_of_combinations(
    drawn: list[tuple[int, int]], dtype: type[np.integer[Any]]
) -> None:
    bounds = np.iinfo(dtype)
    keys = [
        np.array([np.clip(d[k], bounds.min, bounds.max) for d in drawn], dtype)
        for k in (0, 1)
    ]
    combinations = list(zip(*(key.tolist() for key in keys), strict=True))
    first, code = number_groups(keys)
    distinct = sorted(set(combinations))
    assert code.tolist() == [distinct.index(each) for each in combinations]
    assert first.tolist() == [combinations.index(each) for each in distinct]
    rank, count = dense_ranks(keys[0])
    alone = sorted(set(keys[0].tolist()))
    assert rank.tolist() == [alone.index(value) for value in keys[0].tolist()]
    assert count == len(alone)


@given(
    st.lists(
        st.tuples(st.integers(0, 90), st.integers(1, 9), st.integers(7, 9)), min_size=1
    )
)
def test_idle_time_is_the_same_in_the_timeline_in_gaps_and_in_iterations(
    kernels: list[tuple[int, int, int]],
) -> None:
    """An iteration that lasts as long as the GPU works is idle as long as the device is."""
    maker = TraceMaker()
    first = min(start for start, _, _ in kernels)
    last = max(start + duration for start, duration, _ in kernels)
    maker.annotation("ProfilerStep#1", first, last - first)
    for start, duration, stream in kernels:
        maker.kernel("k", start, duration, stream=stream)
    analyzer = analyzed(maker)
    timeline = analyzer.get_df_gpu_timeline(4).set_index("type")["time ms"]
    causes = analyzer.get_df_gap_summary(["device"])["idle_time_ms"]
    (iteration,) = analyzer.get_df_iterations()["idle_time_ms"]
    holes = analyzer.get_df_gaps("device")["gap_us"]
    assert (
        round(timeline["idle_time"] * 1e6)
        == round(iteration * 1e6)
        == holes.sum() * 1e3
    )
    assert causes.sum() == pytest.approx(iteration)
    assert round(timeline["micro_idle_time"] * 1e6) == holes[holes <= 4].sum() * 1e3
    assert timeline["busy_time"] + iteration == pytest.approx(timeline["total_time"])


# Real traces.


@pytest.mark.real_data
@pytest.mark.parametrize("name", TRACES)
def test_gaps_of_real_traces_to_the_nanosecond(name: str) -> None:
    analyzer = recorded(name)
    plain = gpu_events_of(TRACES[name])
    gaps = plain_gaps(plain)
    streams = analyzer.get_df_gap_streams()
    expected = {
        track[1:]: (len(of_track), sum(gap.nanoseconds for gap in of_track))
        for track, of_track in gaps.items()
    }
    got = {
        (row["device"], row["stream"]): (
            row["gap_count"],
            round(row["idle_time_us"] * 1000),
        )
        for row in streams.to_dict("records")
    }
    assert got == expected
    table = analyzer.get_df_gaps()
    lengths = Counter(gap.nanoseconds for of_track in gaps.values() for gap in of_track)
    assert Counter((table["gap_us"] * 1000).round().astype(int).tolist()) == lengths
    by_pair: dict[tuple[str, str], list[int]] = defaultdict(list)
    for of_track in gaps.values():
        for gap in of_track:
            pair = (simple_name(gap.before), simple_name(gap.after.name))
            by_pair[pair].append(gap.nanoseconds)
    pairs = analyzer.get_df_idle_by_kernel_pair()
    assert len(pairs) == len(by_pair)
    for row in pairs.to_dict("records"):
        values = by_pair[(row["kernel_before"], row["kernel_after"])]
        assert row["count"] == len(values)
        assert round(row["total_gap_us"] * 1000) == sum(values)
        assert round(row["max_gap_us"] * 1000) == max(values)
        assert round(row["min_gap_us"] * 1000) == min(values)
        deviation = statistics.stdev(values) if len(values) > 1 else 0
        assert row["std_gap_us"] * 1000 == pytest.approx(deviation, rel=1e-9, abs=1e-6)
    if len(plain):
        timeline = analyzer.get_df_gpu_timeline()
        idle = timeline.loc[timeline["type"] == "idle_time", "time ms"].sum()
        whole = analyzer.get_df_gap_summary()
        assert whole.loc[
            whole["scope"] == "device", "idle_time_ms"
        ].sum() == pytest.approx(idle)
        devices = plain_gaps(plain, parts=2).values()
        of_device = sum(gap.nanoseconds for of_track in devices for gap in of_track)
        assert round(idle * 1e6) == of_device


def test_two_hundred_thousand_events_take_no_time() -> None:
    """A loop over the events would take seconds; the limit is generous for a busy machine."""
    random = np.random.default_rng(3)
    maker = TraceMaker()
    maker.kernel("k", 0, 1)
    analyzer = analyzed(maker)
    work = analyzer.work
    size = 200_000
    trace = work.trace
    start = np.sort(random.integers(0, 10**9, size))
    fields: dict[str, Any] = {
        "ts": start,
        "dur": random.integers(1, 5000, size),
        "name": np.zeros(size, dtype=np.int32),
        "kind": np.full(size, trace.kind[0]),
        "thread": np.zeros(size, dtype=np.int32),
        "correlation": np.full(size, NONE),
        "external_id": np.full(size, NONE),
        "category": np.zeros(size, dtype=np.int32),
        "args": {},
    }
    large = TreePerfAnalyzer(dataclasses.replace(trace, **fields))
    begun = time.process_time()
    large.get_df_gap_summary()
    pairs = large.get_df_idle_by_kernel_pair()
    large.get_df_kernel_statistics()
    assert time.process_time() - begun < 5
    assert isinstance(pairs, pd.DataFrame)
    assert len(pairs) == 1


def test_idle_times_that_do_not_add_up_in_64_bits_are_refused() -> None:
    maker = TraceMaker()
    for stream in range(20):
        for years in (0, 9):
            maker.kernel("k", years * 365 * 86_400 * 10**6, 5, stream=stream)
    analyzer = TreePerfAnalyzer(maker.document())
    with pytest.raises(
        TraceFormatError, match="its GPU is idle for more than a century"
    ):
        analyzer.get_df_gap_streams()
