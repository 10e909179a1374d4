"""Kineto's events of all kinds are read, and no event is lost without being counted."""

from __future__ import annotations

import copy
import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.make_trace import (
    LAYOUTS,
    Document,
    Event,
    TraceMaker,
    cuda_graph_example,
    rows_read,
)
from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers import read_trace
from tracelens_ext.trace import NONE, Conventions, Device, EventKind, Trace

SPAN: Event = {
    "ph": "X",
    "cat": "cpu_op",
    "name": "a",
    "pid": 1,
    "tid": 2,
    "ts": 10,
    "dur": 5,
}
INSTANT: Event = {"ph": "i", "name": "Record Window End", "ts": 1, "s": "g"}


def read(*events: object, **members: Any) -> Trace:
    """Return the trace of an ordinary event followed by these events."""
    return read_trace({"traceEvents": [SPAN, *events], **members})


def read_text(text: str | bytes) -> Trace:
    return read_trace(io.BytesIO(text.encode() if isinstance(text, str) else text))


# Kinds.


@pytest.mark.parametrize(
    ("phase", "category", "kind"),
    [
        ("X", "cpu_op", EventKind.CPU_OP),
        ("X", "Operator", EventKind.CPU_OP),
        ("X", "user_annotation", EventKind.USER_ANNOTATION),
        ("X", "python_function", EventKind.PYTHON_FUNCTION),
        ("X", "cuda_runtime", EventKind.RUNTIME),
        ("X", "Runtime", EventKind.RUNTIME),
        ("X", "cuda_driver", EventKind.DRIVER),
        ("X", "kernel", EventKind.KERNEL),
        ("X", "Kernel", EventKind.KERNEL),
        ("X", "gpu_memcpy", EventKind.MEMCPY),
        ("X", "Memcpy", EventKind.MEMCPY),
        ("X", "gpu_memset", EventKind.MEMSET),
        ("X", "Memset", EventKind.MEMSET),
        ("X", "gpu_user_annotation", EventKind.GPU_ANNOTATION),
        ("X", "overhead", EventKind.OTHER),
        ("X", "Trace", EventKind.OTHER),
        ("X", "of tomorrow", EventKind.OTHER),
        ("X", "", EventKind.OTHER),
        ("s", "ac2g", EventKind.FLOW_START),
        ("f", "ac2g", EventKind.FLOW_END),
        ("s", "fwdbwd", EventKind.FLOW_START),
        ("f", "fwdbwd", EventKind.FLOW_END),
        ("s", "async_gpu", EventKind.FLOW_START),
        ("f", "async_gpu", EventKind.FLOW_END),
        ("s", "async_cpu_to_gpu", EventKind.FLOW_START),
        ("f", "async_cpu_to_gpu", EventKind.FLOW_END),
        ("t", "ac2g", EventKind.FLOW_END),
        ("i", "cpu_instant_event", EventKind.INSTANT),
        ("I", "", EventKind.INSTANT),
        ("C", "counter", EventKind.OTHER),
        ("X", "xpu_runtime", EventKind.RUNTIME),
        ("X", "xpu_driver", EventKind.DRIVER),
        ("X", "xpu_sync", EventKind.OTHER),
        ("X", "mtia_runtime", EventKind.RUNTIME),
        ("X", "mtia_ccp_events", EventKind.KERNEL),
        ("X", "hpu_op", EventKind.RUNTIME),
        ("X", "collective_comm", EventKind.RUNTIME),
    ],
)
def test_events_have_the_kind_of_their_category(
    phase: str, category: str, kind: EventKind
) -> None:
    trace = read(
        {"ph": phase, "cat": category, "name": "b", "ts": 3, "dur": 1, "id": 4}
    )
    assert rows_read(trace)[1]["kind"] == kind
    assert rows_read(trace)[1]["category"] == category
    assert trace.provenance.present == 2
    assert trace.provenance.dropped == {}


def test_flows_instants_and_others_need_no_duration() -> None:
    trace = read(
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 7, "ts": 3},
        {"ph": "i", "name": "instant", "ts": 4},
        {"ph": "X", "cat": "of tomorrow", "name": "o", "ts": 5},
    )
    assert trace.dur.tolist() == [5000, 0, 0, 0]
    assert trace.arg("flow id").at(np.array([0, 1, 2])).tolist() == [NONE, 7, NONE]


# Times.


def test_times_are_nanoseconds_since_the_first_event() -> None:
    trace = read_text(
        '[{"ph": "X", "cat": "cpu_op", "ts": 1712195495519689.047, "dur": 1.001},'
        ' {"ph": "X", "cat": "cpu_op", "ts": 1712195495519688.5, "dur": 0},'
        ' {"ph": "X", "cat": "cpu_op", "ts": 1712195495519690, "dur": 12}]'
    )
    assert trace.base_ns == 1712195495519688500
    assert trace.ts.tolist() == [547, 0, 1500]
    assert trace.dur.tolist() == [1001, 0, 12_000]
    assert trace.end.tolist() == [1548, 0, 13_500]
    assert trace.span_ns == 13_500


def test_times_before_zero() -> None:
    trace = read(SPAN | {"ts": -1.5})
    assert (trace.base_ns, trace.ts.tolist()) == (-1500, [11_500, 0])


def test_an_impossible_time_drops_only_its_event() -> None:
    trace = read(
        SPAN | {"ts": 9.2e15},
        SPAN | {"ts": -9.2e15},
        SPAN | {"ts": 10**30},
        SPAN | {"dur": 9.2e15},
        SPAN | {"ts": 12},
    )
    assert trace.ts.tolist() == [0, 2000]
    assert trace.provenance.dropped == {
        "no usable start time (ts)": 3,
        "no usable duration (dur)": 1,
    }


YEAR_US = 365 * 86_400 * 10**6


def test_a_time_years_from_the_others_drops_only_its_event() -> None:
    launch = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "l",
        "pid": 1,
        "tid": 1,
        "dur": 1,
    }
    times = (11 * YEAR_US, 20, 21)
    trace = read(
        *(launch | {"ts": ts, "args": {"correlation": i}} for i, ts in enumerate(times))
    )
    assert trace.span_ns < 10**6
    assert trace.correlation.tolist() == [NONE, 1, 2]
    assert trace.provenance.dropped == {
        "a start time (ts) years away from the others": 1
    }
    assert trace.provenance.present == 4
    assert len(read(SPAN | {"ts": 9 * YEAR_US})) == 2


def test_durations_that_do_not_add_up_in_64_bits_are_refused() -> None:
    long = SPAN | {"dur": 9_007_199_254_740}
    assert read(long, long).dur.sum() > 0
    with pytest.raises(TraceFormatError, match="add up to more than a century"):
        read(*(long | {"ts": i} for i in range(1025)))


# Arguments.


def test_arguments_of_launches_and_kernels_are_read() -> None:
    trace = read(
        SPAN
        | {
            "cat": "cuda_runtime",
            "args": {"cbid": 211, "correlation": 9, "External id": 5},
        },
        SPAN
        | {
            "cat": "kernel",
            "pid": 0,
            "tid": 7,
            "args": {
                "correlation": 9,
                "External id": 5,
                "device": 3,
                "stream": 20,
                "block": [1],
            },
        },
        SPAN | {"cat": "gpu_memcpy", "pid": 1, "tid": 8, "args": {"bytes": 2**40}},
    )
    assert trace.correlation.tolist() == [NONE, 9, 9, NONE]
    assert trace.external_id.tolist() == [NONE, 5, 5, NONE]
    assert trace.gpu_rows.tolist() == [2, 3]
    assert trace.device.tolist() == [3, 1]
    assert trace.stream.tolist() == [20, 8]
    assert trace.arg("bytes").at(trace.gpu_rows).tolist() == [NONE, 2**40]
    assert trace.arg("block").rows.tolist() == []


def test_a_kernel_keeps_its_grid_and_shared_memory() -> None:
    trace = read(
        SPAN | {"cat": "kernel", "args": {"grid": [512, 2, 1], "shared memory": 400}}
    )
    assert json.loads((trace.arg("grid").texts or [])[0]) == [512, 2, 1]
    assert trace.arg("shared memory").at(trace.gpu_rows).tolist() == [400]


def test_arguments_that_several_kinds_have_are_in_the_order_of_the_file() -> None:
    kinds = [
        "gpu_memcpy",
        "kernel",
        "gpu_memset",
        "kernel",
        "cpu_op",
        "kernel",
        "gpu_memcpy",
    ]
    trace = read(
        *[
            SPAN | {"cat": kind, "args": {"stream": i, "Collective name": f"c{i}"}}
            for i, kind in enumerate(kinds, start=1)
        ]
    )
    assert trace.stream.tolist() == [1, 2, 3, 4, 6, 7]
    assert trace.arg("stream").rows.tolist() == [1, 2, 3, 4, 6, 7]
    assert [rows_read(trace)[row]["Collective name"] for row in (2, 4, 5, 6)] == [
        "c2",
        "c4",
        "c5",
        "c6",
    ]
    assert trace.arg("Collective name").rows.tolist() == [2, 4, 5, 6]


@pytest.mark.parametrize(
    ("process", "thread", "device", "stream"),
    [
        (0, 7, 0, 7),
        ("GPU 1", "stream 13", 1, 13),
        ("1", "13", 1, 13),
        ("gpu", "", NONE, NONE),
        (10**30, "9" * 40, NONE, NONE),
    ],
)
def test_device_and_stream_where_no_argument_names_them(
    process: int | str, thread: int | str, device: int, stream: int
) -> None:
    trace = read(SPAN | {"cat": "kernel", "pid": process, "tid": thread})
    assert (trace.device.tolist(), trace.stream.tolist()) == ([device], [stream])


def test_arguments_of_operations_are_read() -> None:
    given_args = {
        "External id": 3,
        "Sequence number": 12,
        "Fwd thread id": 1,
        "Input Dims": [[4, 3], [], [[1], [2]]],
        "Input type": ["float", "", "TensorList"],
        "Input Strides": [[3, 1], [], []],
        "Concrete Inputs": ["", '"é"', "[1, 2]"],
        "Ev Idx": 7,
    }
    trace = read(SPAN | {"args": given_args})
    row = rows_read(trace)[1]
    assert {name: row[name] for name in given_args if name != "Ev Idx"} == {
        name: value for name, value in given_args.items() if name != "Ev Idx"
    }
    assert "Ev Idx" not in row
    assert all(
        name not in rows_read(trace)[0] for name in given_args if name != "External id"
    )


def test_arguments_of_collectives_and_frames_are_read() -> None:
    collective = {
        "Collective name": "allreduce",
        "In msg nelems": 1024,
        "Out msg nelems": 1024,
        "dtype": "BFloat16",
        "Group size": 8,
        "Process Group Name": "0",
        "Process Group Ranks": [0, 1, 2],
        "In split size": "[]",
    }
    frame = {"Python id": 4, "Python parent id": 3, "Python module id": 2}
    trace = read(
        SPAN | {"cat": "kernel", "args": collective},
        SPAN | {"args": collective},
        SPAN | {"cat": "python_function", "args": frame},
    )
    rows = rows_read(trace)
    for row in rows[1:3]:
        assert {name: row[name] for name in collective} == collective
    assert {name: rows[3][name] for name in frame} == frame


def test_equal_texts_are_kept_once() -> None:
    trace = read(*[SPAN | {"args": {"Input Dims": [[1, 2]]}} for _ in range(50)])
    column = trace.arg("Input Dims")
    assert column.texts is not None
    assert len(set(column.values.tolist())) == 1
    assert len(trace.names) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_null_counts_as_a_missing_argument(layout: str) -> None:
    event = SPAN | {"args": {"Input Dims": None, "External id": None}}
    trace = read_text(LAYOUTS[layout]({"traceEvents": [event] * 3}))
    assert trace.external_id.tolist() == [NONE] * 3
    assert "Input Dims" not in trace.args


def test_an_argument_that_no_event_has_is_empty() -> None:
    column = read().arg("nothing of the kind")
    assert column.at(np.array([0])).tolist() == [NONE]
    assert column.dense(1).tolist() == [NONE]


# Processes, threads, devices, the rest of the document.


def test_integer_and_text_labels_stay_apart() -> None:
    trace = read(
        *[SPAN | {"pid": pid, "tid": tid} for pid, tid in [(1, "2"), ("1", 2), (1, 2)]]
    )
    assert [row["thread"] for row in rows_read(trace)] == [
        (1, 2),
        (1, "2"),
        ("1", 2),
        (1, 2),
    ]
    assert trace.process_of_thread.tolist() == [0, 0, 1]


@pytest.mark.parametrize("name", ["python", "é \u2028", ""])
def test_process_names(name: str) -> None:
    maker = TraceMaker()
    maker.process_name(7, name)
    maker.process_name("Spans", name)
    trace = read(*maker.events)
    assert trace.process_names == {7: name, "Spans": name}
    assert (len(trace), trace.provenance.metadata_events) == (1, 2)


def test_names_of_threads_and_labels_of_processes() -> None:
    trace = read(
        {
            "ph": "M",
            "name": "thread_name",
            "pid": 7,
            "tid": 8,
            "args": {"name": "main é"},
        },
        {
            "ph": "M",
            "name": "thread_name",
            "pid": 7,
            "tid": "stream 1",
            "args": {"name": "s"},
        },
        {"ph": "M", "name": "process_labels", "pid": 7, "args": {"labels": "CPU"}},
        {"ph": "M", "name": "process_sort_index", "pid": 7, "args": {"sort_index": 1}},
    )
    assert trace.thread_names == {(7, 8): "main é", (7, "stream 1"): "s"}
    assert trace.process_labels == {7: "CPU"}
    assert trace.process_names == {}
    assert trace.provenance.metadata_events == 4


@pytest.mark.parametrize("name", ['"\\ud800"', '"\xff"', "5", "null", '["a"]', "{}"])
def test_names_of_processes_are_texts_whatever_the_file_has(name: str) -> None:
    """In latin-1, one of the names is not UTF-8. Both decoders read the name: there are two."""
    metadata = (
        f'{{"ph": "M", "name": "process_name", "pid": 1, "args": {{"name": {name}}}}}'
    )
    text = "[" + ", ".join([metadata, json.dumps(SPAN), metadata]) + "]"
    trace = read_text(text.encode("latin-1"))
    assert (len(trace), trace.provenance.metadata_events) == (1, 2)
    assert all(isinstance(label, str) for label in trace.process_names.values())


def test_devices_and_other_members() -> None:
    properties = [
        {
            "id": 0,
            "name": "NVIDIA H100",
            "totalGlobalMem": 80,
            "numSms": 132,
            "warpSize": 32,
        },
        {"id": 1, "numSms": "many", "warpSize": -1, "totalGlobalMem": 1e9},
        {"name": "without a number"},
        "no object",
        {"id": "0"},
    ]
    trace = read(
        deviceProperties=properties, schemaVersion=1, distributedInfo={"rank": 3}
    )
    assert trace.devices == (Device(0, "NVIDIA H100", 132, 32, 80), Device(1, ""))
    assert trace.metadata["schemaVersion"] == 1
    assert trace.metadata["distributedInfo"] == {"rank": 3}
    assert "traceEvents" not in trace.metadata
    assert read(deviceProperties={"id": 0}).devices == ()


def test_the_conventions_of_an_exported_trace_are_restored() -> None:
    said = {
        "gpu_by_process": True,
        "annotations_are_operations": "yes",
        "framework": "JAX",
    }
    trace = read(
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1},
        tracelens_ext={"conventions": said},
    )
    assert trace.conventions == Conventions(gpu_by_process=True, framework="JAX")


def test_provenance() -> None:
    text = json.dumps(cuda_graph_example())
    made = read_text(text).provenance
    assert (made.path, made.bytes_read, made.present) == ("<file>", len(text), 5)
    assert "Kineto" in made.format


# Unusable events are dropped, with the reason.


def test_dropped_events_have_reasons() -> None:
    trace = read(
        {"ph": "M", "name": "process_labels", "pid": 1},
        {"cat": "cpu_op", "name": "no phase", "ts": 1, "dur": 1},
        {"ph": "X", "cat": "cpu_op", "name": "no ts", "dur": 1},
        {"ph": "X", "cat": "cpu_op", "name": "ts is null", "ts": None, "dur": 1},
        {"ph": "X", "cat": "cpu_op", "name": "ts is text", "ts": "soon", "dur": 1},
        {"ph": "X", "cat": "cpu_op", "name": "no dur", "ts": 1},
        {"ph": "X", "cat": "kernel", "name": "dur is negative", "ts": 1, "dur": -1},
        "no object",
        None,
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "numbers in quotes",
            "ts": "20",
            "dur": "1.5",
        },
    )
    assert trace.provenance.dropped == {
        "not a JSON object": 2,
        "no phase (ph)": 1,
        "no usable start time (ts)": 3,
        "no usable duration (dur)": 2,
    }
    assert trace.provenance.metadata_events == 1
    assert trace.provenance.present == 11
    assert [row["name"] for row in rows_read(trace)] == ["a", "numbers in quotes"]
    assert trace.dur.tolist() == [5000, 1500]


def test_unread_events_are_reported() -> None:
    op = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 1,
        "tid": 1,
        "ts": 1,
        "dur": 1,
    }
    process = {
        "ph": "M",
        "name": "process_name",
        "pid": 2,
        "args": {"name": "Ascend Hardware"},
    }
    matmul = {"ph": "X", "name": "MatMulV2", "pid": 2, "tid": 15, "ts": 2, "dur": 3}
    gpu_op = {
        "ph": "X",
        "cat": "gpu_op",
        "name": "gemm",
        "pid": 4,
        "tid": 1,
        "ts": 200,
        "dur": 10,
    }
    counter = {"ph": "C", "cat": "hardware_counters", "name": "sm", "pid": 0, "ts": 30}
    overhead = {
        "ph": "X",
        "cat": "overhead",
        "name": "Flush",
        "pid": 1,
        "ts": 3,
        "dur": 1,
    }
    sync = {
        "ph": "X",
        "cat": "xpu_sync",
        "name": "Queue Sync",
        "pid": 0,
        "ts": 3,
        "dur": 1,
    }
    trace = read(op, process, matmul, gpu_op, gpu_op, counter, overhead, sync)
    assert trace.provenance.unread == {
        "gpu_op": 2,
        "without a category of Ascend Hardware": 1,
        "counter events (hardware_counters)": 1,
    }
    (note,) = trace.provenance.all_notes
    assert note.startswith("4 of 9 events not read: 2 gpu_op, ")
    assert trace.provenance.dropped == {}
    exported = read(op, gpu_op, counter, tracelens_ext={"threads": []})
    assert exported.provenance.unread == {}


def test_arguments_stay_with_their_events_when_others_are_dropped() -> None:
    trace = read(
        {
            "ph": "X",
            "cat": "kernel",
            "name": "dropped",
            "ts": 1,
            "args": {"correlation": 1},
        },
        SPAN | {"cat": "kernel", "args": {"correlation": 2, "stream": 5}},
        {"ph": "M", "name": "process_labels"},
        {"ph": "X", "cat": "cpu_op", "dur": 1, "args": {"Input Dims": [1]}},
        SPAN | {"args": {"Input Dims": [2]}},
        SPAN | {"cat": "kernel", "args": {"correlation": 3, "stream": 6}},
    )
    assert trace.correlation.tolist() == [NONE, 2, NONE, 3]
    assert trace.stream.tolist() == [5, 6]
    assert rows_read(trace)[2]["Input Dims"] == [2]
    assert trace.arg("Input Dims").rows.tolist() == [2]


@pytest.mark.parametrize("depth", [600, 5000])
def test_arguments_nested_too_deeply_drop_only_their_event(depth: int) -> None:
    dims: list[Any] = []
    for _ in range(depth):
        dims = [dims]
    trace = read(SPAN | {"args": {"Input Dims": dims}}, SPAN)
    assert len(trace) + sum(trace.provenance.dropped.values()) == 3
    assert len(trace) >= 2


@pytest.mark.parametrize("depth", [400, 600])
def test_arguments_nested_deeply_in_a_file(depth: int) -> None:
    deep = (
        json.dumps(SPAN)[:-1]
        + ', "args": {"Input Dims": '
        + "[" * depth
        + "]" * depth
        + "}}"
    )
    trace = read_text("[" + ", ".join([deep, json.dumps(SPAN), deep]) + "]")
    assert len(trace) + sum(trace.provenance.dropped.values()) == 3
    assert len(trace) >= 2


def test_numbers_of_numpy_are_read_from_a_parsed_document() -> None:
    args = {"correlation": np.int64(4), "stream": np.int32(7), "device": np.uint8(1)}
    pid = np.int64(9)
    trace = read(
        SPAN
        | {"cat": "kernel", "ts": np.float64(3.5), "dur": np.int64(2), "pid": pid}
        | {"args": args},
        SPAN | {"args": {"Input Dims": [np.array([1, 2]), (3, 4)]}},
    )
    assert trace.ts.tolist() == [6500, 0, 6500]
    assert trace.dur.tolist()[1] == 2000
    assert trace.correlation.tolist()[1] == 4
    assert (trace.device.tolist(), trace.stream.tolist()) == ([1], [7])
    assert rows_read(trace)[1]["thread"] == (9, 2)
    assert rows_read(trace)[2]["Input Dims"] == [[1, 2], [3, 4]]


def test_a_parsed_document_is_not_changed() -> None:
    document = cuda_graph_example()
    before = copy.deepcopy(document)
    read_trace(document)
    assert document == before


# Any document: every event is accounted for, and files and dictionaries give equal traces.

ODD_NUMBERS = [
    None,
    True,
    "",
    "x",
    "12",
    "-3.5",
    " 7 ",
    "1e3",
    "\ud800",
    "\u0661",
    [],
    [1],
    {},
    {"a": 1},
    0,
    -1,
    5,
    2.5,
    -0.0,
    1e-9,
    1e3,
    1e15,
    9.1e15,
    1e16,
    1e300,
    float("nan"),
    float("inf"),
    -float("inf"),
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    10**30,
    -(10**30),
]
ODD_TEXTS: list[Any] = [
    None,
    True,
    5,
    1.5,
    "",
    "a",
    "é",
    '}, {"ph"',
    "\ud800",
    ["a"],
    {},
]
ARGUMENTS = [
    "correlation",
    "External id",
    "device",
    "stream",
    "bytes",
    "Sequence number",
]
ARGUMENTS += [
    "labels",
    "Input Dims",
    "Input type",
    "Collective name",
    "dtype",
    "name",
    "unknown",
]
Strategy = st.SearchStrategy[Any]

odd_numbers: Strategy = st.sampled_from(ODD_NUMBERS)
odd_texts: Strategy = st.sampled_from(ODD_TEXTS)
phases: Strategy = st.sampled_from(["X", "X", "X", "M", "s", "f", "i", "C", ""])
categories: Strategy = st.sampled_from(
    ["cpu_op", "kernel", "gpu_memcpy", "cuda_runtime", "ac2g"]
)
labels: Strategy = st.sampled_from([0, 1, "1", 2**70, -1, "", "gpu", "stream 7"])
times: Strategy = st.integers(0, 10**6) | odd_numbers
arguments: Strategy = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(ARGUMENTS, odd_numbers)
)
#: Unusual only where the typed decoder does not look, so the slice is decoded as usual.
somewhat_odd_events: Strategy = st.fixed_dictionaries(
    {},
    optional={
        "ph": phases,
        "cat": categories,
        "name": st.sampled_from(
            ["a", "é", "process_name", "thread_name", "process_labels"]
        ),
        "pid": labels,
        "tid": labels,
        "ts": times,
        "dur": times,
        "id": odd_numbers,
        "args": arguments,
    },
)
odd_events: Strategy = st.fixed_dictionaries(
    {},
    optional={
        "ph": phases | st.sampled_from([None, 5]),
        "cat": categories | odd_texts,
        "name": odd_texts | st.just("process_name"),
        "pid": labels | st.sampled_from([1.5, None, True]),
        "tid": labels | st.sampled_from([1.5, None, True]),
        "ts": times,
        "dur": times,
        "id": odd_numbers,
        "args": arguments | st.none() | st.integers(),
    },
)
odd_documents: Strategy = st.lists(somewhat_odd_events, max_size=6) | st.lists(
    odd_events | st.sampled_from([None, 5, "x", []]), max_size=6
)


def assert_accounted_for(trace: Trace, events: list[Any]) -> None:
    made = trace.provenance
    assert made.present == len(events)
    assert made.present == len(trace) + made.metadata_events + sum(
        made.dropped.values()
    )
    assert all(count > 0 for count in made.dropped.values())
    if len(trace):
        assert int(trace.ts.min()) == 0
    assert (trace.end >= trace.ts).all()
    assert (trace.dur >= 0).all()
    for column in trace.args.values():
        assert (np.diff(column.rows) > 0).all()
        assert len(column.rows) == len(column.values)
        assert set(column.rows.tolist()) <= set(range(len(trace)))


@given(odd_documents)
@example([SPAN | {"ts": -9e14}, SPAN | {"ts": 9e15}])
@settings(max_examples=250)
def test_every_event_is_accounted_for(events: list[Any]) -> None:
    events = [SPAN, *events]
    document: Document = {"traceEvents": events}
    trace = read_trace(document)
    assert_accounted_for(trace, events)


@given(odd_documents, st.sampled_from(sorted(LAYOUTS)))
@settings(max_examples=250)
def test_a_file_and_the_parsed_document_give_equal_traces(
    events: list[Any], layout: str
) -> None:
    document: Document = {"traceEvents": [SPAN, *events, SPAN]}
    from_dict = read_trace(document)
    from_file = read_text(LAYOUTS[layout](document))
    assert_accounted_for(from_file, document["traceEvents"])
    assert comparable(from_file) == comparable(from_dict)


def comparable(trace: Trace) -> tuple[object, ...]:
    made = trace.provenance
    # NaN is no equal of itself, and no JSON: as text it is one
    rows = json.dumps(rows_read(trace), sort_keys=True)
    labels = trace.process_names, trace.process_labels, trace.thread_names
    return rows, dict(made.dropped), made.metadata_events, labels


def test_many_slices_are_one_trace() -> None:
    """Codes, rows and arguments of later slices continue those of earlier slices."""
    maker = TraceMaker()
    for i in range(12_000):
        maker.op(
            f"op {i % 10}", 10 * i, 5, external_id=i + 1, args={"Input Dims": [[i % 7]]}
        )
        if i % 3 == 0:
            maker.kernel(
                f"kernel {i % 4}", 10 * i + 1, 2, correlation=i + 1, stream=i % 3
            )
        if i % 1000 == 0:
            maker.add({"ph": "M", "name": "process_labels"})
            maker.add(SPAN | {"dur": None})
    document = maker.document()
    text = json.dumps(document)
    assert len(text) > 3 << 19
    assert comparable(read_text(text)) == comparable(read_trace(document))


def test_lone_surrogates_in_names_are_replaced() -> None:
    trace = read(
        SPAN | {"name": "a\ud800", "cat": "\ud800", "pid": "\udfff", "tid": "é"}
    )
    row = rows_read(trace)[1]
    assert (row["name"], row["category"], row["thread"]) == (
        "a\ufffd",
        "\ufffd",
        ("\ufffd", "é"),
    )


@pytest.mark.parametrize("events", [(), {}, "text", 5, None])
def test_events_that_are_not_a_list_are_refused(events: Any) -> None:
    with pytest.raises(TraceFormatError):
        read_trace({"traceEvents": events})
