"""Ranges projected onto the GPU, against a plain loop."""

from __future__ import annotations

from typing import Any

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

Projection = tuple[int, int, int, int, int]


def projected(trace: Trace, rows: list[int]) -> list[Projection]:
    found = project_ranges(trace, link(trace), np.array(rows, dtype=np.int64))
    columns = (
        found[name].tolist() for name in ("row", "device", "start", "end", "count")
    )
    return sorted(zip(*columns, strict=True))


def one_by_one(trace: Trace, rows: list[int]) -> list[Projection]:
    tree = CallTree(trace)
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row in rows:
        for place, launch in enumerate(tree.launch_of_gpu.tolist()):
            if launch == NONE or trace.thread[launch] != trace.thread[row]:
                continue
            if trace.ts[row] <= trace.ts[launch] < trace.end[row]:
                gpu = trace.gpu_rows[place]
                spans = found.setdefault((row, int(trace.device[place])), [])
                spans.append((int(trace.ts[gpu]), int(trace.end[gpu])))
    return sorted(
        (row, device, min(a for a, _ in spans), max(b for _, b in spans), len(spans))
        for (row, device), spans in found.items()
    )


def test_from_the_first_to_the_last_event_launched_inside() -> None:
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


def test_without_ranges_or_without_gpu_events() -> None:
    maker = TraceMaker()
    maker.annotation("step", 0, 100)
    trace = read_trace(maker.document())
    assert projected(trace, [0]) == []
    assert projected(trace, []) == []


EVENT = st.tuples(
    st.integers(0, 1), st.integers(0, 60), st.integers(0, 40), st.integers(0, 1)
)


@given(st.lists(EVENT, max_size=8), st.lists(EVENT, max_size=12))
def test_as_a_plain_loop_does(ranges: list[Any], launches: list[Any]) -> None:
    maker = TraceMaker()
    rows = [maker.annotation("r", at, length, thread=t) for t, at, length, _ in ranges]
    for number, (thread, at, length, device) in enumerate(launches, start=1):
        maker.call("cudaLaunchKernel", at, correlation=number, thread=thread)
        maker.kernel("k", at + length, length, correlation=number, device=device)
    if not maker.events:
        return
    trace = read_trace(maker.document())
    assert projected(trace, rows) == one_by_one(trace, rows)


@pytest.mark.real_data
def test_real_ranges_of_two_processes() -> None:
    trace = read_trace(TWO_GPUS, cache=False)
    rows = trace.rows_of(EventKind.USER_ANNOTATION)
    rows = rows[trace.name[rows] == trace.names.index("ncclGroupEnd")]
    found = projected(trace, rows.tolist())
    # As a join of the database's tables has it.
    assert len(found) == 64
    assert sum(end - start for _, _, start, end, _ in found) == 25_179_513
    assert found[:4] == one_by_one(trace, rows[:4].tolist())[:4]
