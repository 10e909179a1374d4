"""Separate begins and ends of events are paired like brackets, or counted as dropped."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.make_trace import rows_read
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.begin_end import BEGIN, END, NO_BEGIN, NO_END, find_pairs
from tracelens_ext.trace import EventKind
from tracelens_ext.trace.call_tree import CallTree

STEPS = st.lists(
    st.tuples(st.sampled_from("BEX"), st.integers(0, 1), st.integers(0, 5))
)


@given(STEPS)
def test_pairs_are_nested_like_a_stack(steps: list[tuple[str, int, int]]) -> None:
    kinds = {"B": EventKind.CPU_OP + BEGIN, "E": END, "X": EventKind.CPU_OP}
    kind = np.array([kinds[phase] for phase, _, _ in steps], dtype=np.uint8)
    thread = np.array([thread for _, thread, _ in steps], dtype=np.int32)
    ts = np.array([ts for _, _, ts in steps], dtype=np.int64)

    open_begins: dict[int, list[int]] = {0: [], 1: []}
    expected = []
    strays = []
    for row in sorted(range(len(steps)), key=lambda row: (ts[row], row)):
        phase, of_thread, _ = steps[row]
        if phase == "B":
            open_begins[of_thread].append(row)
        elif phase == "E" and open_begins[of_thread]:
            expected.append((open_begins[of_thread].pop(), row))
        elif phase == "E":
            strays.append(row)

    pairs = find_pairs(kind, thread, ts)
    found = list(zip(pairs.begin.tolist(), pairs.end.tolist(), strict=True))
    assert sorted(found) == sorted(expected)
    assert np.flatnonzero(pairs.is_stray).tolist() == sorted(strays)
    assert np.flatnonzero(pairs.is_open).tolist() == sorted(
        open_begins[0] + open_begins[1]
    )


def event(phase: str, ts: float | str, **fields: Any) -> dict[str, Any]:
    return {"ph": phase, "pid": 100, "tid": 1, "ts": ts, **fields}


def test_a_begin_and_its_end_become_one_event() -> None:
    op = {"cat": "cpu_op", "name": "aten::mm", "args": {"External id": 1}}
    launch = {
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "args": {"correlation": 1},
    }
    kernel = {"cat": "kernel", "name": "gemm", "args": {"correlation": 1, "stream": 7}}
    events = [
        event("B", 0, **op),
        event("X", 5, dur=5, **launch),
        event("E", 20),
        event("B", 30, **kernel) | {"tid": 7},
        event("E", 130) | {"tid": 7},
    ]
    trace = read_trace({"traceEvents": events})
    assert [(row["name"], row["ts"], row["dur"]) for row in rows_read(trace)] == [
        ("aten::mm", 0, 20_000),
        ("cudaLaunchKernel", 5_000, 5_000),
        ("gemm", 30_000, 100_000),
    ]
    assert trace.stream.tolist() == [7]
    tree = CallTree(trace)
    assert tree.linked.tolist() == [True]
    assert trace.name_of(int(tree.cpu_op_of_gpu[0])) == "aten::mm"
    assert trace.provenance.dropped == {}
    assert trace.provenance.present == 3


def test_a_begin_or_end_without_counterpart_is_counted() -> None:
    op = {"cat": "cpu_op", "name": "aten::mm"}
    events = [
        event("X", 0, dur=1, **op),
        event("E", 2),
        event("B", 3, **op),
        event("B", 4, **op),
    ]
    trace = read_trace({"traceEvents": events})
    assert len(trace) == 1
    assert trace.provenance.dropped == {NO_END: 2, NO_BEGIN: 1}
    assert trace.provenance.present == 4
    assert "2 begin events (ph: B) without an end" in trace.provenance.all_notes[0]


def test_an_end_without_a_time_ends_nothing() -> None:
    op = {"cat": "cpu_op", "name": "aten::mm"}
    events = [
        event("X", 0, dur=1, **op),
        event("B", 3, **op),
        event("E", "later"),
        event("E", 9),
    ]
    trace = read_trace({"traceEvents": events})
    assert rows_read(trace)[1]["dur"] == 6_000
    assert trace.provenance.dropped == {"no usable start time (ts)": 1}
