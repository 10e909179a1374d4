"""Events that were written twice count once, and impossible ends are cut; all else stays."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.make_trace import TraceMaker, short_demo
from tracelens_ext.readers import read_trace
from tracelens_ext.trace import Trace
from tracelens_ext.trace.corrections import WRITTEN_TWICE, possible_ends


def kernels(*spans: tuple[int, int], **args: int) -> TraceMaker:
    """One launch and one kernel (start and end, µs) each, all on one stream."""
    maker = TraceMaker()
    for number, (start, end) in enumerate(spans, 1):
        maker.call("cudaLaunchKernel", number, 0.5, correlation=number)
        maker.kernel(f"kernel {number}", start, end - start, correlation=number, **args)
    return maker


def kernel_times(trace: Trace) -> list[tuple[int, int]]:
    """Start and end of each GPU event, µs since the beginning of the recording."""
    rows = trace.gpu_rows
    start = (trace.ts[rows] + trace.base_ns) // 1000
    return list(
        zip(start.tolist(), (start + trace.dur[rows] // 1000).tolist(), strict=True)
    )


# Impossible ends.


def test_an_event_that_contains_the_next_one_ends_where_that_starts() -> None:
    trace = read_trace(kernels((100, 500), (200, 300), (310, 320)).document())
    assert kernel_times(trace) == [(100, 200), (200, 300), (310, 320)]
    (note,) = trace.provenance.notes
    assert note.startswith("1 event with an impossible end corrected:")
    assert trace.provenance.all_notes == (note,)


def test_a_cut_may_show_that_the_end_before_it_is_impossible_too() -> None:
    trace = read_trace(kernels((100, 500), (200, 600), (300, 310)).document())
    assert kernel_times(trace) == [(100, 200), (200, 300), (300, 310)]
    assert trace.provenance.notes[0].startswith(
        "2 events with impossible ends corrected:"
    )


@pytest.mark.parametrize(
    "spans",
    [
        [(100, 200), (200, 300)],
        [(100, 204), (200, 300)],  # programmatic dependent launch, or clocks
        [(100, 200), (100, 200)],
        [(100, 200), (100, 300)],
    ],
)
def test_other_overlaps_stay(spans: list[tuple[int, int]]) -> None:
    trace = read_trace(kernels(*spans).document())
    assert kernel_times(trace) == spans
    assert trace.provenance.notes == ()


def test_events_of_one_graph_launch_may_run_side_by_side() -> None:
    maker = TraceMaker()
    maker.call("cudaGraphLaunch", 0, 5, correlation=7)
    maker.kernel("long", 10, 90, correlation=7)
    maker.kernel("short", 20, 10, correlation=7)
    maker.call("cudaLaunchKernel", 6, 1, correlation=8)
    maker.kernel("next", 50, 10, correlation=8)
    trace = read_trace(maker.document())
    # The graph has ended before the next launch begins.
    assert kernel_times(trace) == [(10, 50), (20, 30), (50, 60)]


def test_streams_and_devices_are_apart() -> None:
    maker = TraceMaker()
    for number, (device, stream) in enumerate([(0, 7), (0, 8), (1, 7)], 1):
        maker.call("cudaLaunchKernel", number, 0.5, correlation=number)
        start = 100 * number
        duration = 1000 - 200 * number
        maker.kernel(
            "a", start, duration, correlation=number, device=device, stream=stream
        )
    trace = read_trace(maker.document())
    assert trace.provenance.notes == ()


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1), st.integers(0, 12), st.integers(0, 9), st.integers(-1, 4)
        ),
        max_size=12,
    )
)
def test_possible_ends_are_those_of_a_loop(
    rows: list[tuple[int, int, int, int]],
) -> None:
    ordered = sorted(
        (stream, start, start + length, launch)
        for stream, start, length, launch in rows
    )
    stream, start, end, launch = np.array(ordered, dtype=np.int64).reshape(-1, 4).T
    expected = end.tolist()
    for this in reversed(range(len(ordered))):
        following = this + 1
        while following < len(ordered) and launch[following] == launch[this]:
            if stream[following] != stream[this]:
                break
            following += 1
        if following == len(ordered) or stream[following] != stream[this]:
            continue
        are_known = min(launch[this], launch[following]) > 0
        contains = start[this] < start[following] < expected[this]
        if are_known and contains and expected[following] <= expected[this]:
            expected[this] = int(start[following])
    found = possible_ends(stream, start, end, launch)
    assert found.tolist() == expected
    again = possible_ends(stream, start, found, launch)
    assert again.tolist() == found.tolist()


def test_a_long_chain_of_stale_durations_takes_no_time() -> None:
    count = 200_000
    start = np.arange(count, dtype=np.int64)
    end = np.full(count, 2 * count, dtype=np.int64)
    found = possible_ends(np.zeros(count, dtype=np.int64), start, end, start + 1)
    assert found[:-1].tolist() == start[1:].tolist()
    assert found[-1] == 2 * count


# Events that were written twice.


def test_events_that_are_in_the_file_twice_count_once() -> None:
    document = short_demo()
    once = read_trace(document)
    twice = read_trace({**document, "traceEvents": document["traceEvents"] * 2})
    assert len(twice.gpu_rows) == len(once.gpu_rows)
    assert twice.dur[twice.gpu_rows].tolist() == once.dur[once.gpu_rows].tolist()
    count = twice.provenance.dropped[WRITTEN_TWICE]
    assert f"{count:,} {WRITTEN_TWICE}" in twice.provenance.all_notes[-1]
    kept = len(twice) + twice.provenance.metadata_events
    assert twice.provenance.present == kept + count
    for name, column in once.args.items():
        if name in ("grid", "stream"):
            assert twice.arg(name).values.tolist() == column.values.tolist()


def changed(event: dict[str, Any], **fields: Any) -> dict[str, Any]:
    copied = copy.deepcopy(event)
    for name, value in fields.items():
        holder = copied if name in copied else copied["args"]
        holder[name] = value
    return copied


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "another"},
        {"ts": 11},
        {"dur": 6},
        {"stream": 8},
        {"device": 1},
        {"correlation": 2},
        {"graph node id": 5},
    ],
)
def test_events_that_differ_in_a_field_are_two(fields: dict[str, Any]) -> None:
    maker = TraceMaker()
    maker.call("cudaGraphLaunch", 0, 5, correlation=1)
    maker.kernel("a kernel", 10, 5, correlation=1)
    event = changed(maker.events[-1], **{"graph node id": 4})
    trace = read_trace(
        {"traceEvents": [maker.events[0], event, changed(event, **fields)]}
    )
    assert len(trace.gpu_rows) == 2
    assert trace.provenance.dropped == {}


def test_an_event_that_is_there_three_times_counts_once() -> None:
    maker = kernels((100, 200))
    maker.events += [maker.events[-1], maker.events[-1]]
    trace = read_trace(maker.document())
    assert kernel_times(trace) == [(100, 200)]
    assert trace.provenance.dropped == {WRITTEN_TWICE: 2}
