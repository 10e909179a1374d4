"""NVTX ranges projected onto the GPU, compared with a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.make_trace import TraceMaker
from tests.support.statistics_helpers import TWO_GPUS
from tracelens_ext import CallTree, read_trace
from tracelens_ext.analysis.nsys_statistics.nvtx_ranges import project_ranges
from tracelens_ext.trace import NONE, EventKind, Trace
from tracelens_ext.trace.linking import link

#: Row of the range, device, start, end, and number of GPU events.
Projection = tuple[int, int, int, int, int]


def projected(trace: Trace, rows: list[int]) -> list[Projection]:
    """Return the projections of ranges, sorted."""
    table = project_ranges(trace, link(trace), np.array(rows, dtype=np.int64))
    columns = ["row", "device", "start", "end", "count"]
    return sorted(table[columns].astype(object).itertuples(index=False, name=None))


def projected_one_by_one(trace: Trace, rows: list[int]) -> list[Projection]:
    """Return the projections of ranges, computed event by event."""
    launch_of_gpu = CallTree(trace).launch_of_gpu.tolist()
    projections = []
    for row in rows:
        spans_of_device: dict[int, list[tuple[int, int]]] = {}
        for index, launch in enumerate(launch_of_gpu):
            if launch == NONE or trace.thread[launch] != trace.thread[row]:
                continue
            if trace.ts[row] <= trace.ts[launch] < trace.end[row]:
                gpu_row = trace.gpu_rows[index]
                span = (int(trace.ts[gpu_row]), int(trace.end[gpu_row]))
                device = int(trace.device[index])
                spans_of_device.setdefault(device, []).append(span)
        for device, spans in spans_of_device.items():
            start = min(start for start, _ in spans)
            end = max(end for _, end in spans)
            projections.append((row, device, start, end, len(spans)))
    return sorted(projections)


def test_a_projection_lasts_from_the_first_to_the_last_event_launched_inside() -> None:
    maker = TraceMaker()
    outer = maker.annotation("outer", 0, 100)
    inner = maker.annotation("inner", 10, 20)
    maker.annotation("launches nothing", 40, 10)
    maker.launched("late", 500, 10, correlation=1, at=15)
    maker.launched("later", 300, 50, correlation=2, at=60)
    maker.launched("outside", 600, 50, correlation=3, at=100)
    maker.call("cudaLaunchKernel", 20, correlation=4, thread=2)
    maker.kernel("of another thread", 50, 10, correlation=4)
    maker.kernel("unlinked", 20, 10)
    trace = read_trace(maker.document())
    rows = trace.rows_of(EventKind.USER_ANNOTATION).tolist()
    assert projected(trace, rows) == [
        (outer, 0, 300_000, 510_000, 2),
        (inner, 0, 500_000, 510_000, 1),
    ]


def test_a_range_has_a_projection_on_each_device() -> None:
    maker = TraceMaker()
    step = maker.annotation("step", 0, 100)
    for device in (0, 1):
        maker.call("cudaLaunchKernel", 10 + device, correlation=device + 1)
        maker.kernel("k", 200 * (device + 1), 50, correlation=device + 1, device=device)
    trace = read_trace(maker.document())
    assert projected(trace, [step]) == [
        (step, 0, 200_000, 250_000, 1),
        (step, 1, 400_000, 450_000, 1),
    ]


def test_there_are_no_projections_without_ranges_or_gpu_events() -> None:
    maker = TraceMaker()
    maker.annotation("step", 0, 100)
    trace = read_trace(maker.document())
    assert projected(trace, [0]) == []
    assert projected(trace, []) == []


THREAD = st.integers(0, 1)
START = st.integers(0, 60)
LENGTH = st.integers(0, 40)
DEVICE = st.integers(0, 1)


@given(
    st.lists(st.tuples(THREAD, START, LENGTH), max_size=8),
    st.lists(st.tuples(THREAD, START, LENGTH, DEVICE), max_size=12),
)
def test_projections_are_those_of_a_plain_loop(
    ranges: list[tuple[int, int, int]], launches: list[tuple[int, int, int, int]]
) -> None:
    maker = TraceMaker()
    rows = []
    for thread, start, length in ranges:
        rows.append(maker.annotation("r", start, length, thread=thread))
    for correlation, (thread, start, length, device) in enumerate(launches, start=1):
        maker.call("cudaLaunchKernel", start, correlation=correlation, thread=thread)
        maker.kernel(
            "k", start + length, length, correlation=correlation, device=device
        )
    if not maker.events:
        return
    trace = read_trace(maker.document())
    assert projected(trace, rows) == projected_one_by_one(trace, rows)


@pytest.mark.real_data
def test_projections_of_real_ranges_are_those_of_a_join_in_sql() -> None:
    trace = read_trace(TWO_GPUS, cache=False)
    rows = trace.rows_of(EventKind.USER_ANNOTATION)
    rows = rows[trace.name[rows] == trace.names.index("ncclGroupEnd")]
    projections = projected(trace, rows.tolist())
    # Both figures are those of a join of the database's tables.
    assert len(projections) == 64
    assert sum(end - start for _, _, start, end, _ in projections) == 25_179_513
    first_rows = rows[:4].tolist()
    assert projections[:4] == projected_one_by_one(trace, first_rows)[:4]
