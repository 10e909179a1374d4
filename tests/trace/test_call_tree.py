"""The call tree: whose child an event is, and which launch started a kernel."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.call_counts import calls_during
from tests.support.make_trace import TraceMaker, cuda_graph_example
from tracelens_ext.errors import MergedRanksError
from tracelens_ext.readers import read_trace
from tracelens_ext.trace import NONE, EventKind, Trace
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.nesting import LATE_END_NS

if TYPE_CHECKING:
    from tracelens_ext.trace import Trace


def tree_of(maker: TraceMaker, *, add_python_func: bool = False) -> CallTree:
    return CallTree(read_trace(maker.document()), add_python_func=add_python_func)


def launches(tree: CallTree) -> list[int]:
    """The row of each GPU event's launch, in file order."""
    return [int(row) for row in tree.launch_of_gpu]


def labels(tree: CallTree) -> list[str]:
    codes, names = tree.cpu_op_label_of_gpu
    return [names[code] for code in codes.tolist()]


# Which launch started what.


def test_by_correlation_id() -> None:
    maker = TraceMaker()
    first, _ = maker.launched("k1", 20, 5, correlation=11, at=3)
    second, _ = maker.launched("k2", 30, 5, correlation=12, at=6)
    copy, _ = maker.launched(
        "Memcpy", 40, 5, correlation=13, at=9, category="gpu_memcpy"
    )
    fill, _ = maker.launched(
        "Memset", 50, 5, correlation=14, at=11, category="gpu_memset"
    )
    driver = maker.call("cuLaunchKernel", 15, correlation=15, category="cuda_driver")
    maker.kernel("triton", 60, 5, correlation=15)
    tree = tree_of(maker)
    assert launches(tree) == [first, second, copy, fill, driver]
    assert tree.linked.all()


@pytest.mark.parametrize("api", ["cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch"])
def test_a_graph_launch_owns_every_event_with_its_id(api: str) -> None:
    maker = TraceMaker()
    op = maker.op("CUDAGraph.replay", 0, 20)
    graph = maker.call(api, 5, 10, correlation=7)
    kernels = [maker.kernel(f"k{i}", 30 + 10 * i, 8, correlation=7) for i in range(4)]
    copy = maker.gpu("gpu_memcpy", "Memcpy DtoD", 90, 5, correlation=7)
    maker.launched("alone", 100, 5, correlation=8, at=16)
    tree = tree_of(maker)
    assert launches(tree)[:5] == [graph] * 5
    assert tree.by_graph.tolist() == [True] * 5 + [False]
    assert labels(tree) == ["graph"] * 5 + ["CUDAGraph.replay"]
    assert tree.children(graph) == [*kernels, copy]
    assert tree.gpu_events(op)[:5] == [*kernels, copy]


def test_events_without_a_launch_are_kept_and_unlinked() -> None:
    maker = TraceMaker()
    maker.kernel("started before the profiler", 0, 5, correlation=5)
    launch, _ = maker.launched("k", 20, 5, correlation=6, at=10)
    tree = tree_of(maker)
    assert launches(tree) == [NONE, launch]
    assert tree.linked.tolist() == [False, True]
    assert labels(tree) == ["(unlinked)", "cudaLaunchKernel"]
    assert tree.parent(0) is None


@pytest.mark.parametrize("correlation", [0, -1, None])
def test_ids_that_link_nothing(correlation: int | None) -> None:
    maker = TraceMaker()
    maker.call("cudaLaunchKernel", 1, correlation=correlation)
    maker.kernel("k", 5, 5, correlation=correlation)
    assert launches(tree_of(maker)) == [NONE]


def test_ids_of_any_size() -> None:
    maker = TraceMaker()
    pairs = [
        maker.launched("k", 100, 5, correlation=c, at=1)
        for c in (1, 2**31, 2**53 + 1, 2**62)
    ]
    pairs.append(maker.launched("k", 100, 5, correlation=2**53, at=1))
    assert launches(tree_of(maker)) == [launch for launch, _ in pairs]


def test_an_operation_with_the_id_is_no_launch() -> None:
    maker = TraceMaker()
    maker.op("aten::add", 0, 9, args={"correlation": 4})
    maker.kernel("k", 5, 5, correlation=4)
    assert launches(tree_of(maker)) == [NONE]


# One id twice.


def test_of_several_launches_the_last_to_start_before_the_kernel() -> None:
    """As when the profiler was restarted, and counts from one again."""
    maker = TraceMaker()
    early = maker.call("cudaLaunchKernel", 10, correlation=3)
    late = maker.call("cudaLaunchKernel", 100, correlation=3)
    for start in (5, 20, 99, 100, 150):
        maker.kernel("k", start, 1, correlation=3)
    other, _ = maker.launched("other", 60, 1, correlation=4, at=50)
    tree = tree_of(maker)
    assert launches(tree) == [early, early, early, late, late, other]


ids = st.integers(-1, 4)
moments = st.integers(0, 12)


@given(
    st.lists(st.tuples(moments, ids), max_size=10),
    st.lists(st.tuples(moments, ids), max_size=10),
    st.randoms(use_true_random=False),
)
@settings(max_examples=300)
def test_links_are_those_of_the_rules(
    calls: list[tuple[int, int]], kernels: list[tuple[int, int]], order: Any
) -> None:
    maker = TraceMaker()
    adding = [("call", at, number) for at, number in calls]
    adding += [("kernel", at, number) for at, number in [*kernels, (0, 99)]]
    order.shuffle(adding)
    for what, at, number in adding:
        if what == "call":
            maker.call("cudaLaunchKernel", at, correlation=number)
        else:
            maker.kernel("k", at, 1, correlation=number)
    trace = read_trace(maker.document())
    assert launches(CallTree(trace)) == [
        naive_launch(trace, int(row)) for row in trace.gpu_rows
    ]


def naive_launch(trace: Trace, gpu: int) -> int:
    """The last call with the id that starts no later; else the first one of all."""
    wanted = int(trace.correlation[gpu])
    found = [
        (int(trace.ts[row]), int(row))
        for row in trace.rows_of(EventKind.RUNTIME, EventKind.DRIVER)
        if wanted > 0 and trace.correlation[row] == wanted
    ]
    before = [call for call in found if call[0] <= trace.ts[gpu]]
    if before:
        return max(before)[1]
    return min(found)[1] if found else NONE


def trace_with_two_calls_per_id(kernels: int) -> Trace:
    """A runtime call and the driver call inside it have the id of each kernel."""
    event = (
        '{"ph": "X", "cat": "%s", "name": "n", "pid": 1, "tid": 1, "ts": %d, "dur": %d,'
        ' "args": {"correlation": %d}}'
    )
    events = []
    for number in range(kernels):
        start = 10 * number
        events.append(event % ("cuda_runtime", start, 5, number + 1))
        events.append(event % ("cuda_driver", start + 1, 3, number + 1))
        events.append(event % ("kernel", start + 4, 5, number + 1))
    return read_trace(io.BytesIO(("[" + ",".join(events) + "]").encode()))


def test_the_call_inside_is_the_launch_where_two_have_the_id() -> None:
    trace = trace_with_two_calls_per_id(3)
    assert (CallTree(trace).launch_of_gpu == trace.gpu_rows - 1).all()


def test_many_ids_that_two_calls_have_take_no_further_steps() -> None:
    few = trace_with_two_calls_per_id(10)
    many = trace_with_two_calls_per_id(5_000)
    assert calls_during(lambda: CallTree(many)) < 2 * calls_during(
        lambda: CallTree(few)
    )


# Several processes.


def ranks(*, reused: bool) -> TraceMaker:
    maker = TraceMaker()
    for rank in range(2):
        for i in range(3):
            correlation = 1 + i + (0 if reused else 10 * rank)
            maker.call(
                "cudaLaunchKernel", 10 * i, correlation=correlation, process=500 + rank
            )
            maker.kernel("k", 5 + 10 * i, 2, correlation=correlation, device=rank)
    return maker


def test_ranks_that_reuse_each_others_ids_are_refused() -> None:
    with pytest.raises(MergedRanksError, match=r"merged into one file: 0, 1") as caught:
        tree_of(ranks(reused=True))
    assert caught.value.ranks == (0, 1)


def test_ranks_that_cannot_be_told_apart_are_refused() -> None:
    events = ranks(reused=True).document()["traceEvents"]
    mixed = [*events[::2], *events[1::2]]
    with pytest.raises(
        MergedRanksError, match=r"several ranks \(processes 500, 501\).*3 corr"
    ) as caught:
        CallTree(read_trace(mixed))
    assert caught.value.ranks == ()


def test_ranks_whose_ids_differ_are_linked_each_to_its_own() -> None:
    tree = tree_of(ranks(reused=False))
    assert launches(tree) == [0, 2, 4, 6, 8, 10]


def test_an_id_that_no_kernel_carries_may_be_reused() -> None:
    maker = ranks(reused=False)
    maker.call("cudaDeviceSynchronize", 90, correlation=1000, process=500)
    maker.call("cudaDeviceSynchronize", 90, correlation=1000, process=501)
    assert tree_of(maker).linked.all()
    # an id twice in one
    again = maker.call("cudaLaunchKernel", 100, correlation=1, process=500)
    kernel = maker.kernel("k", 105, 2, correlation=1)
    assert tree_of(maker).parent(kernel) == again


def test_one_process_that_drives_several_devices() -> None:
    maker = TraceMaker()
    for device in range(4):
        maker.call(
            "cudaLaunchKernel", 10 * device, correlation=device + 1, thread=device
        )
        maker.kernel("k", 50, 5, correlation=device + 1, device=device)
    tree = tree_of(maker)
    assert launches(tree) == [0, 2, 4, 6]
    assert tree.trace.device.tolist() == [0, 1, 2, 3]


# Who encloses whom.


def test_kinds_that_nest() -> None:
    maker = TraceMaker()
    step = maker.annotation("ProfilerStep#1", 0, 100)
    frame = maker.frame("train.py(3): main", 1, 98)
    op = maker.op("aten::linear", 5, 50, external_id=1)
    inner = maker.op("aten::addmm", 10, 30, external_id=2)
    runtime = maker.call("cudaLaunchKernel", 20, 10, correlation=1)
    driver = maker.call("cuLaunchKernel", 22, 5, category="cuda_driver")
    maker.gpu("gpu_user_annotation", "ProfilerStep#1", 10, 90)
    kernel = maker.kernel("gemm", 40, 20, correlation=1)
    tree = tree_of(maker)
    assert list(tree.ancestors(kernel)) == [runtime, inner, op, step]
    assert tree.parent(driver) == runtime
    assert tree.parent(frame) is None
    assert frame not in tree.rows
    with_frames = tree_of(maker, add_python_func=True)
    assert list(with_frames.ancestors(kernel)) == [runtime, inner, op, frame, step]
    assert sorted(with_frames.rows.tolist()) == [
        step,
        frame,
        op,
        inner,
        runtime,
        driver,
    ]


def test_of_equal_events_the_lower_external_id_is_the_parent() -> None:
    maker = TraceMaker()
    inner = maker.op("inner", 0, 10, external_id=6)
    outer = maker.op("outer", 0, 10, external_id=5)
    frame = maker.frame("without an id", 0, 10)
    call = maker.call("cudaFree", 0, 10)
    tree = tree_of(maker, add_python_func=True)
    assert list(tree.ancestors(call)) == [inner, outer, frame]


def test_without_ids_the_first_in_the_file_is_the_parent() -> None:
    maker = TraceMaker()
    first = maker.op("a", 0, 10)
    second = maker.op("b", 0, 10)
    tree = tree_of(maker)
    assert (tree.parent(second), tree.parent(first)) == (first, None)


def test_equal_calls_are_siblings() -> None:
    maker = TraceMaker()
    op = maker.op("aten::mm", 0, 10, external_id=1)
    calls = [
        maker.call("cudaLaunchKernel", 2, 0, correlation=i, external_id=1)
        for i in (1, 2)
    ]
    assert [tree_of(maker).parent(call) for call in calls] == [op, op]


def test_processes_and_threads_are_apart() -> None:
    maker = TraceMaker()
    outer = maker.op("outer", 0, 100)
    maker.op("other thread", 10, 5, thread=2)
    maker.op("other process", 10, 5, process=7)
    inner = maker.op("inner", 10, 5)
    tree = tree_of(maker)
    assert tree.children(outer) == [inner]
    assert len(tree.roots()) == 3


# Which operation a kernel is filed under.


def test_cpu_op_labels() -> None:
    maker = TraceMaker()
    maker.op("aten::linear", 0, 50)
    maker.annotation("a user's range", 5, 40)
    maker.launched("in an op", 60, 5, correlation=1, at=10)
    maker.annotation("only a range", 100, 50)
    maker.launched("in a range", 160, 5, correlation=2, at=110, api="hipLaunchKernel")
    maker.op("aten::outer", 200, 50)
    maker.op("aten::inner", 205, 20)
    maker.launched("in two ops", 260, 5, correlation=3, at=210)
    maker.kernel("in none", 300, 5, correlation=4)
    maker.op("around a graph", 400, 50)
    maker.launched("of a graph", 460, 5, correlation=5, at=410, api="cudaGraphLaunch")
    tree = tree_of(maker)
    names = [tree.trace.name_of(int(row)) for row in tree.trace.gpu_rows]
    assert dict(zip(names, labels(tree), strict=True)) == {
        "in an op": "aten::linear",
        "in a range": "hipLaunchKernel",
        "in two ops": "aten::inner",
        "in none": "(unlinked)",
        "of a graph": "graph",
    }
    ops = [
        tree.trace.name_of(int(row)) if row != NONE else ""
        for row in tree.cpu_op_of_gpu
    ]
    assert ops == ["aten::linear", "", "aten::inner", "", "around a graph"]


def test_a_trace_of_gpu_events_alone() -> None:
    maker = TraceMaker()
    maker.kernel("k", 0, 5, correlation=1)
    tree = tree_of(maker)
    assert labels(tree) == ["(unlinked)"]
    assert tree.cpu_op_of_gpu.tolist() == [NONE]
    assert tree.roots() == []
    assert tree.module_of_gpu() == [""]


def test_a_trace_without_gpu_events() -> None:
    maker = TraceMaker()
    op = maker.op("aten::add", 0, 5)
    tree = tree_of(maker)
    assert launches(tree) == []
    assert labels(tree) == tree.module_of_gpu() == []
    assert tree.gpu_events(op) == []


# Walking.


def walkable() -> tuple[CallTree, dict[str, int]]:
    maker = TraceMaker()
    rows = {
        "step": maker.annotation("step", 0, 200),
        "op": maker.op("op", 10, 80),
        "inner": maker.op("inner", 20, 40),
        "call": maker.call("cudaLaunchKernel", 30, 5, correlation=1),
        "second": maker.call("cudaLaunchKernel", 65, 5, correlation=2),
        "graph": maker.call("cudaGraphLaunch", 100, 5, correlation=3),
        "late": maker.kernel("late", 300, 5, correlation=1),
        "soon": maker.kernel("soon", 70, 5.5, correlation=2),
        "node": maker.kernel("node", 150, 5, correlation=3),
        "lost": maker.kernel("lost", 1, 5, correlation=9),
        "elsewhere": maker.op("elsewhere", 0, 10, thread=9),
    }
    return tree_of(maker), rows


def test_walking() -> None:
    tree, at = walkable()
    assert tree.roots() == [at["step"], at["elsewhere"]]
    assert tree.children(at["step"]) == [at["op"], at["graph"]]
    assert tree.children(at["op"]) == [at["inner"], at["second"]]
    assert tree.children(at["second"]) == [at["soon"]]
    assert tree.children(at["soon"]) == []
    assert tree.parent(at["soon"]) == at["second"]
    assert tree.parent(at["step"]) is None
    assert list(tree.ancestors(at["late"])) == [
        at["call"],
        at["inner"],
        at["op"],
        at["step"],
    ]
    assert list(tree.ancestors(at["lost"])) == []
    assert tree.subtree(at["op"]) == [at["op"], at["inner"], at["call"], at["second"]]
    assert tree.subtree(at["late"]) == [at["late"]]
    assert tree.gpu_events(at["op"]) == [at["soon"], at["late"]]  # by start
    assert tree.gpu_events(at["step"]) == [at["soon"], at["node"], at["late"]]
    assert tree.gpu_events(at["inner"]) == [at["late"]]
    assert tree.gpu_events(at["elsewhere"]) == tree.gpu_events(at["late"]) == []


def test_events_that_are_not_in_the_tree_have_no_relatives() -> None:
    maker = TraceMaker()
    maker.op("op", 0, 10)
    frame = maker.frame("frame", 1, 5)
    flow = maker.add({"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "ts": 2})
    tree = tree_of(maker)
    for row in (frame, flow):
        assert tree.parent(row) is None
        assert tree.children(row) == tree.gpu_events(row) == []
        assert tree.subtree(row) == [row]


def test_printing() -> None:
    tree, at = walkable()
    assert tree.format_subtree(at["op"]).splitlines() == [
        "op  [cpu_op, 80.000 µs]",
        "  inner  [cpu_op, 40.000 µs]",
        "    cudaLaunchKernel  [runtime, 5.000 µs]",
        "      late  [kernel, 5.000 µs]",
        "  cudaLaunchKernel  [runtime, 5.000 µs]",
        "    soon  [kernel, 5.500 µs]",
    ]
    assert tree.format_subtree(at["op"], max_depth=0) == "op  [cpu_op, 80.000 µs]"
    assert len(tree.format_subtree(at["op"], max_depth=1).splitlines()) == 3


def test_printing_to_a_file_or_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    tree, at = walkable()
    file = io.StringIO()
    tree.print_subtree(at["op"], file=file)
    assert file.getvalue() == tree.format_subtree(at["op"]) + "\n"
    assert capsys.readouterr().out == ""
    tree.print_subtree(at["op"])
    assert capsys.readouterr().out == file.getvalue()


def test_three_thousand_nested_operations() -> None:
    maker = TraceMaker()
    count = 3000
    for i in range(count):
        maker.op(f"op{i % 7}", i, 2 * (count - i))
    _, kernel = maker.launched("k", 3 * count, 5, correlation=1, at=count)
    tree = tree_of(maker)
    assert len(list(tree.ancestors(kernel))) == count + 1
    assert tree.gpu_events(0) == [kernel]
    assert tree.depth.tolist() == list(range(count + 1))
    assert len(tree.format_subtree(0).splitlines()) == count + 2


# Modules.


def test_modules_around_a_kernel() -> None:
    maker = TraceMaker()
    maker.frame("train.py(1): main", 0, 500)
    maker.frame("nn.Module: Transformer_0", 1, 400)
    maker.frame("torch/nn/modules/module.py(1): _call_impl", 2, 300)
    maker.frame("nn.Module: Block_1", 3, 200)
    maker.op("aten::linear", 4, 100)
    maker.launched("in the block", 600, 5, correlation=1, at=10)
    maker.op("aten::add", 250, 20)
    maker.launched("in the transformer", 610, 5, correlation=2, at=260)
    maker.launched("in no module", 620, 5, correlation=3, at=450)
    maker.kernel("unlinked", 630, 5, correlation=4)
    tree = tree_of(maker, add_python_func=True)
    assert tree.module_of_gpu() == ["Transformer_0/Block_1", "Transformer_0", "", ""]
    assert tree_of(maker).module_of_gpu() == ["", "", "", ""]


# Forward and backward.


def test_forward_of_backward() -> None:
    maker = TraceMaker()
    forward: dict[str, Any] = {"Sequence number": 7, "Fwd thread id": 0}
    backward: dict[str, Any] = {"Sequence number": 7, "Fwd thread id": 1}
    maker.op("aten::linear", 0, 50, args=forward)
    made_node = maker.op("aten::addmm", 10, 30, args=forward)
    other = maker.op("aten::relu", 60, 5, args={"Sequence number": 8})
    engine = maker.op(
        "autograd::engine::evaluate_function: Addmm", 200, 50, args=backward, thread=2
    )
    node = maker.op("AddmmBackward0", 205, 40, args=backward, thread=2)
    maker.op("aten::mm", 210, 10, thread=2)
    relu = maker.op(
        "ReluBackward0", 150, 5, args={"Sequence number": 8, "Fwd thread id": 1}
    )
    maker.op(
        "NobodysBackward0", 160, 5, args={"Sequence number": 99, "Fwd thread id": 1}
    )
    maker.op("no number", 170, 5, args={"Sequence number": -1, "Fwd thread id": 1})
    assert tree_of(maker).forward_of_backward == {
        engine: made_node,
        node: made_node,
        relu: other,
    }


def test_an_operation_of_the_backward_pass_made_no_forward_node() -> None:
    """What runs under a node carries a number too; it starts too late to have made the node."""
    maker = TraceMaker()
    forward = maker.op(
        "aten::mul", 0, 10, args={"Sequence number": 3, "Fwd thread id": 0}
    )
    node = maker.op(
        "MulBackward0",
        100,
        50,
        args={"Sequence number": 3, "Fwd thread id": 1},
        thread=2,
    )
    maker.op(
        "aten::mul", 110, 10, args={"Sequence number": 3, "Fwd thread id": 0}, thread=2
    )
    assert tree_of(maker).forward_of_backward == {node: forward}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9), st.integers(-1, 2), st.sampled_from([None, 0, 1, 2])
        ),
        max_size=10,
    )
)
@settings(max_examples=200)
def test_forward_of_backward_is_that_of_a_loop(
    ops: list[tuple[int, int, int | None]],
) -> None:
    """The last forward operation with the number that starts no later, wherever it is filed."""
    maker = TraceMaker()
    maker.op("one at least", 0, 1)
    for start, number, forward_thread in ops:
        args = {"Sequence number": number}
        if forward_thread is not None:
            args["Fwd thread id"] = forward_thread
        maker.op("op", start, 1, args=args)
    expected = {}
    for row, (start, number, forward_thread) in enumerate(ops, start=1):
        before = [
            (ts, other)
            for other, (ts, its_number, its_thread) in enumerate(ops, start=1)
            if its_number == number and ts <= start and not its_thread
        ]
        if forward_thread and number >= 0 and before:
            expected[row] = max(before)[1]
    assert tree_of(maker).forward_of_backward == expected


# What must hold of any trace.

things = st.lists(
    st.tuples(
        st.sampled_from(["op", "annotation", "frame", "call", "kernel", "copy"]),
        st.integers(0, 30),
        st.integers(0, 30),
        st.integers(0, 6),
        st.integers(1, 2),
    ),
    max_size=25,
)


def random_trace(given_things: list[tuple[str, int, int, int, int]]) -> TraceMaker:
    maker = TraceMaker()
    maker.op("one at least", 0, 1)
    for i, (what, start, duration, number, thread) in enumerate(given_things):
        name = f"{what} {i}"
        match what:
            case "op":
                maker.op(
                    name, start, duration, external_id=number or None, thread=thread
                )
            case "annotation":
                maker.annotation(name, start, duration, thread=thread)
            case "frame":
                maker.frame(name, start, duration, thread=thread)
            case "call":
                api = "cudaGraphLaunch" if number > 4 else "cudaLaunchKernel"
                maker.call(api, start, duration, correlation=number, thread=thread)
            case "kernel":
                maker.kernel(name, start, duration, correlation=number, stream=thread)
            case _:
                maker.gpu("gpu_memcpy", name, start, duration, correlation=number)
    return maker


@given(things, st.booleans())
@settings(max_examples=150)
def test_what_must_hold_of_any_trace(
    given_things: list[tuple[str, int, int, int, int]], with_frames: bool
) -> None:
    tree = tree_of(random_trace(given_things), add_python_func=with_frames)
    trace = tree.trace
    host = [
        row
        for row in range(len(trace))
        if trace.kind[row] in (0, 1, 3, 4) or (with_frames and trace.kind[row] == 2)
    ]
    assert sorted(tree.rows.tolist()) == host  # none lost, none twice
    for row in host:
        above = tree.parent(row)
        if above is not None:
            assert trace.ts[above] <= trace.ts[row]
            assert trace.end[row] <= trace.end[above] + LATE_END_NS
            assert row in tree.children(above)
    everything = [row for root in tree.roots() for row in tree.subtree(root)]
    assert sorted(everything) == host
    started = [row for root in tree.roots() for row in tree.gpu_events(root)]
    assert sorted(started) == trace.gpu_rows[tree.linked].tolist()
    by_launch = sum(
        int(trace.dur[gpu])
        for row in host
        for gpu in tree.children(row)
        if trace.kind[gpu] in (EventKind.KERNEL, EventKind.MEMCPY)
    )
    unlinked = int(trace.dur[trace.gpu_rows[~tree.linked]].sum())
    assert by_launch + unlinked == int(trace.dur[trace.gpu_rows].sum())


def test_the_example() -> None:
    tree = CallTree(read_trace(cuda_graph_example()))
    assert labels(tree) == ["graph"] * 3
    assert np.unique(tree.launch_of_gpu).tolist() == [1]
