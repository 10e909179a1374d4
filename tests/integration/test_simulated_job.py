"""The simulated job: same bytes on every run, causally right, and with all it promises."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.simulated_job import build_demo_trace, write_demo_trace
from tests.support.simulated_job.machine import Machine, read_data
from tests.support.simulated_job.tensors import Argument, Tensor, input_arguments, value
from tracelens_ext.errors import OutputError, UsageError

pytestmark = pytest.mark.slow  # the simulator is no part of the product

Event = dict[str, Any]

UNCATEGORIZED = "Uncategorized"
VENDORS = ("nvidia", "amd")
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
HOST = ("cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver")
CALLS = ("cuda_runtime", "cuda_driver")
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
CATEGORIES = {
    "GEMM",
    "Flash Attention Forward",
    "Flash Attention Backward",
    "Convolution",
    "Communication",
    "Memory Ops",
    "Normalization",
    "Softmax",
    "Elementwise",
    "Reduction",
    "Embedding & Gather/Scatter",
    "Sort & TopK",
    "MoE Routing",
    "Quantization",
    "Optimizer",
    "RNG & Dropout",
    "Positional Encoding",
    "Pooling & Resampling",
    "Loss",
    "Recurrent & State Space",
    "FFT",
    "Sampling & Decoding",
    "Fused Elementwise (compiler-generated)",
    "Other",
    UNCATEGORIZED,
}


class Demo:
    """One demo trace with what the tests look things up by; times in integer nanoseconds."""

    def __init__(self, vendor: Any, seed: int = 0, steps: int = 3, **more: Any) -> None:
        self.vendor = vendor
        self.document = build_demo_trace(vendor, seed, steps, **more)
        self.events: list[Event] = list(self.document["traceEvents"])
        self.by_cat: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            if event["ph"] != "M":
                self.by_cat[event.get("cat", "")].append(event)
        self.gpu = sorted(self.of(*GPU), key=start)
        self.calls = self.of(*CALLS)
        self.call_of = {call["args"]["correlation"]: call for call in self.calls}

    def of(self, *categories: str) -> list[Event]:
        spans = [event for category in categories for event in self.by_cat[category]]
        return [event for event in spans if event["ph"] == "X"]

    def unlinked(self) -> list[Event]:
        return [
            work for work in self.gpu if work["args"]["correlation"] not in self.call_of
        ]

    def category(self, work: Event) -> str:
        if work["cat"] != "kernel":
            return "Memory Ops"
        return expected_categories(self.vendor)[work["name"]]


@cache
def expected_categories(vendor: str) -> dict[str, str]:
    """The category that the data files say each kernel name has."""
    roles = Machine(vendor).kernels.values()
    return {
        kernel["name"]: kernel["category"] for kernels in roles for kernel in kernels
    }


@cache
def demo(vendor: str) -> Demo:
    return Demo(vendor)


def start(event: Event) -> int:
    microseconds: float = event["ts"]
    return round(microseconds * 1000)


def end(event: Event) -> int:
    microseconds: float = event["dur"]
    return start(event) + round(microseconds * 1000)


def union(spans: list[Event]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for event in sorted(spans, key=start):
        if merged and start(event) <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end(event)))
        else:
            merged.append((start(event), end(event)))
    return merged


def length(intervals: list[tuple[int, int]]) -> int:
    return sum(stop - begin for begin, stop in intervals)


def gaps(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(before[1], after[0]) for before, after in pairwise(intervals)]


# What must hold in any trace of a causal machine ------------------------------------------------


def check_nesting(trace: Demo) -> None:
    """On each host thread a span lies inside the one that is open when it starts."""
    threads: dict[int, list[Event]] = defaultdict(list)
    for event in trace.of(*HOST):
        threads[event["tid"]].append(event)
    assert len(threads) == 2
    for spans in threads.values():
        spans.sort(key=lambda event: (start(event), -end(event)))
        assert len({start(event) for event in spans}) == len(spans), (
            "no two start together"
        )
        enclosing: list[Event] = []
        for event in spans:
            while enclosing and end(enclosing[-1]) <= start(event):
                enclosing.pop()
            assert not enclosing or end(event) <= end(enclosing[-1]), event["name"]
            if event["cat"] == "python_function":
                frames = [e for e in enclosing if e["cat"] == "python_function"]
                parent = frames[-1]["args"]["Python id"] if frames else None
                assert event["args"]["Python parent id"] == parent
            if event["cat"] in CALLS:
                ops = [e for e in enclosing if e["cat"] == "cpu_op"]
                expected = ops[-1]["args"]["External id"] if ops else None
                assert event["args"].get("External id") == expected
            enclosing.append(event)


def check_causality(trace: Demo) -> None:
    """GPU work follows its launch; one stream never does two things at once."""
    streams: dict[tuple[int, int], list[Event]] = defaultdict(list)
    first_call = min(trace.call_of)
    for work in trace.gpu:
        assert work["dur"] > 0
        assert work["pid"] == work["args"]["device"]
        assert work["tid"] == work["args"]["stream"]
        streams[work["pid"], work["tid"]].append(work)
        call = trace.call_of.get(work["args"]["correlation"])
        if call is None:
            assert work["args"]["correlation"] < first_call
            assert "External id" not in work["args"]
        else:
            assert start(work) > start(call)
            assert work["args"].get("External id") == call["args"].get("External id")
    assert len(streams) == 3
    for queue in streams.values():
        assert all(end(before) < start(after) for before, after in pairwise(queue))
        numbers = [work["args"]["correlation"] for work in queue]
        assert numbers == sorted(numbers), (
            "a stream runs its work in the order of the launches"
        )


def check_waits(trace: Demo) -> None:
    """Collectives follow the work they reduce, and waited-for collectives come before the rest."""
    linked = [
        work for work in trace.gpu if work["args"]["correlation"] in trace.call_of
    ]
    linked.sort(key=lambda work: (work["args"]["correlation"], start(work)))
    waits = sorted(
        start(op)
        for op in trace.of("cpu_op")
        if op["args"].get("Collective name") == "wait"
    )
    compute_stream = Counter(work["tid"] for work in linked).most_common(1)[0][0]
    computed = reduced = 0
    finished: list[tuple[int, int]] = []
    for work in linked:
        launched = start(trace.call_of[work["args"]["correlation"]])
        if trace.category(work) == "Communication":
            assert start(work) >= computed
            reduced = max(reduced, end(work))
            finished.append((launched, reduced))
        elif work["tid"] == compute_stream:
            passed = bisect_right(waits, launched) - 1
            if passed >= 0:
                awaited = [moment for when, moment in finished if when < waits[passed]]
                assert start(work) >= max(awaited, default=0)
            computed = max(computed, end(work))


def check_ids(trace: Demo) -> None:
    named = trace.of("cpu_op", "user_annotation")
    for events, key in (
        (named, "External id"),
        (trace.of("python_function"), "Python id"),
        (trace.calls, "correlation"),
        (
            [event for event in trace.events if "Ev Idx" in event.get("args", {})],
            "Ev Idx",
        ),
    ):
        numbers = [event["args"][key] for event in events]
        assert len(set(numbers)) == len(numbers), key
    assert all(event["ts"] > 1e12 for event in trace.events)


def check_arrows(trace: Demo) -> None:
    """Each launch has an arrow to each piece of its work; forward points to backward."""
    ends: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for flow in trace.events:
        if flow["ph"] in "sf":
            ends[flow["cat"], flow["ph"]][flow["id"]] += 1
    work = Counter(item["args"]["correlation"] for item in trace.gpu)
    started = {number for number in trace.call_of if number in work}
    assert ends["ac2g", "s"] == Counter(dict.fromkeys(started, 1))
    arrivals = Counter(work)
    arrivals.update(number for number in trace.call_of if number not in work)
    assert ends["ac2g", "f"] == arrivals
    assert ends["fwdbwd", "s"] == ends["fwdbwd", "f"]
    assert set(ends["fwdbwd", "s"].values()) == {1}


def check_memory(trace: Demo) -> None:
    """The totals of the allocator's events are the running sum of their sizes."""
    notes = trace.by_cat["cpu_instant_event"]
    total = notes[0]["args"]["Total Allocated"] - notes[0]["args"]["Bytes"]
    held: set[int] = set()
    for args in (note["args"] for note in notes):
        total += args["Bytes"]
        assert args["Total Allocated"] == total
        assert 0 <= total <= args["Total Reserved"] < 80 * 2**30
        if args["Bytes"] > 0:
            assert args["Addr"] not in held
            held.add(args["Addr"])
        else:
            held.discard(args["Addr"])


def check_gradients(trace: Demo) -> None:
    """Backward operations share the number of an earlier forward operation."""
    forward: dict[int, Event] = {}
    backward: dict[int, list[Event]] = defaultdict(list)
    for op in trace.of("cpu_op"):
        number = op["args"].get("Sequence number")
        if number is None:
            continue
        if op["args"]["Fwd thread id"] == 0:
            forward[number] = op
        else:
            backward[number].append(op)
    assert len(forward) >= 90
    assert set(forward) == set(backward)
    for number, ops in backward.items():
        outer, inner = ops
        assert outer["name"] == f"autograd::engine::evaluate_function: {inner['name']}"
        assert outer["tid"] == inner["tid"] != forward[number]["tid"]
        assert end(forward[number]) < start(outer)


CHECKS = (
    check_nesting,
    check_causality,
    check_waits,
    check_ids,
    check_arrows,
    check_memory,
    check_gradients,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("vendor", VENDORS)
def test_holds(vendor: str, check: Any) -> None:
    check(demo(vendor))


@settings(max_examples=5, deadline=None)
@given(
    seed=st.integers(0, 2**63),
    vendor=st.sampled_from(VENDORS),
    steps=st.sampled_from([1, 3]),
)
def test_every_seed_gives_a_causal_trace(seed: int, vendor: str, steps: int) -> None:
    trace = Demo(vendor, seed, steps)
    for check in CHECKS:
        check(trace)
    if steps == 3:
        assert 0.70 <= busy_share(trace) <= 0.85


def test_the_seed_varies_durations_and_nothing_else() -> None:
    one = demo("nvidia")
    other = Demo("nvidia", seed=1)
    assert [event["name"] for event in one.of("cpu_op")] == [
        event["name"] for event in other.of("cpu_op")
    ]
    assert Counter(work["name"] for work in one.gpu) == Counter(
        work["name"] for work in other.gpu
    )
    assert [work["dur"] for work in one.gpu] != [work["dur"] for work in other.gpu]


# Problems ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_job_with_problems_is_causal(vendor: Any) -> None:
    problems = dict.fromkeys(read_data("problems"), 3.0)
    del problems["slow-iterations"]  # takes more steps
    trace = Demo(vendor, steps=1, problems=problems)
    for check in CHECKS:
        check(trace)


def test_problems_that_the_job_does_not_have_are_refused() -> None:
    for problem in ({"hunger": 30.0}, {"allocator": float("nan")}, {"allocator": -1.0}):
        with pytest.raises(UsageError):
            build_demo_trace(problems=problem)
    with pytest.raises(UsageError, match="at least 6"):
        build_demo_trace(problems={"slow-iterations": 30.0}, steps=2)


# What the demo promises -------------------------------------------------------------------------


def busy_share(trace: Demo) -> float:
    busy = union(trace.gpu)
    return length(busy) / (busy[-1][1] - busy[0][0])


@pytest.mark.parametrize("vendor", VENDORS)
def test_size_steps_and_load(vendor: str) -> None:
    trace = demo(vendor)
    assert len(trace.events) >= 5000
    steps = [
        e["name"]
        for e in trace.of("user_annotation")
        if e["name"].startswith("Profiler")
    ]
    assert steps == ["ProfilerStep#5", "ProfilerStep#6", "ProfilerStep#7"]
    assert 0.70 <= busy_share(trace) <= 0.85
    unlinked = trace.unlinked()
    assert 5 <= len(unlinked) <= 60
    first_linked = min(start(work) for work in trace.gpu if work not in unlinked)
    assert start(unlinked[-1]) < first_linked


@pytest.mark.parametrize("vendor", VENDORS)
def test_every_category_and_the_right_ones_dominate(vendor: str) -> None:
    trace = demo(vendor)
    times: Counter[str] = Counter()
    for work in trace.gpu:
        times[trace.category(work)] += end(work) - start(work)
    assert set(times) == CATEGORIES
    total = sum(times.values())
    attention = times["Flash Attention Forward"] + times["Flash Attention Backward"]
    assert times.most_common(1)[0][0] == "GEMM"
    assert times["GEMM"] + attention > total / 2
    assert attention > total / 6
    assert 0 < times[UNCATEGORIZED] < total / 100


@pytest.mark.parametrize("vendor", VENDORS)
def test_graph_launches_own_mixed_kernels(vendor: str) -> None:
    trace = demo(vendor)
    name = {"nvidia": "cudaGraphLaunch", "amd": "hipGraphLaunch"}[vendor]
    graphs = [call for call in trace.calls if call["name"] == name]
    assert len(graphs) >= 3
    for call in graphs:
        number = call["args"]["correlation"]
        owned = [work for work in trace.gpu if work["args"]["correlation"] == number]
        assert len(owned) >= 20
        assert len({trace.category(work) for work in owned}) >= 6
        assert "External id" not in call["args"]


@pytest.mark.parametrize("vendor", VENDORS)
def test_communication_is_partly_hidden_and_partly_exposed(vendor: str) -> None:
    trace = demo(vendor)
    comm = [work for work in trace.gpu if trace.category(work) == "Communication"]
    compute = [work for work in trace.gpu if trace.category(work) != "Communication"]
    assert {work["tid"] for work in comm}.isdisjoint(
        work["tid"] for work in compute if work["cat"] == "kernel"
    )
    exposed = length(union(trace.gpu)) - length(union(compute))
    assert 0.2 < exposed / length(union(comm)) < 0.8
    linked = [work for work in comm if work["args"]["correlation"] in trace.call_of]
    ops = {op["args"]["External id"]: op for op in trace.of("cpu_op")}
    names: Counter[str] = Counter()
    for work in linked:
        op = ops[work["args"]["External id"]]
        assert op["name"] == "record_param_comms"
        for key in ("Collective name", "In msg nelems", "Group size", "dtype"):
            assert work["args"][key] == op["args"][key]
        names[work["args"]["Collective name"]] += 1
    assert set(names) == {"allreduce", "all_to_allv", "broadcast", "_allgather_base"}


@pytest.mark.parametrize("vendor", VENDORS)
def test_copies_and_fills(vendor: str) -> None:
    trace = demo(vendor)
    directions = {work["name"].split()[1] for work in trace.of("gpu_memcpy")}
    assert {"HtoD", "DtoH"} <= directions
    assert len(trace.of("gpu_memset")) >= 10
    assert all(
        work["args"]["bytes"] > 0 for work in trace.of("gpu_memcpy", "gpu_memset")
    )


def within(moments: list[tuple[int, int]], spans: list[Event]) -> list[int]:
    """The lengths of the gaps that lie, for the most part, inside one of the spans."""
    starts = [start(span) for span in spans]
    found = []
    for begin, stop in moments:
        index = bisect_right(starts, (begin + stop) // 2) - 1
        if index >= 0 and (begin + stop) // 2 < end(spans[index]):
            found.append(stop - begin)
    return found


@pytest.mark.parametrize("vendor", VENDORS)
def test_idle_time_has_several_causes(vendor: str) -> None:
    trace = demo(vendor)
    idle = gaps(union(trace.gpu))
    annotations = trace.of("user_annotation")
    frames = trace.of("python_function")

    loader = within(idle, [a for a in annotations if "DataLoader" in a["name"]])
    assert len([gap for gap in loader if gap > 1_000_000]) >= 2, "waiting for data"
    python = within(idle, [f for f in frames if f["name"].startswith("reward.py(28)")])
    assert len([gap for gap in python if gap > 1_000_000]) == 3, "the host computes"
    tiny = within(idle, [a for a in annotations if a["name"] == "weight_average"])
    assert len([gap for gap in tiny if gap > 1_000]) >= 90, "launch-bound"

    # A blocking call ends shortly after the device ran dry and before it is fed again.
    blocking = {"nvidia": "cudaStreamSynchronize", "amd": "hipMemcpyWithStream"}[vendor]
    blocks = [call for call in trace.calls if call["name"] == blocking]
    ends = sorted(end(call) for call in blocks)
    waits = [gap for gap in idle if any(gap[0] < moment < gap[1] for moment in ends)]
    assert len(waits) >= 20, "synchronization"
    device = {"nvidia": "cudaDeviceSynchronize", "amd": "hipDeviceSynchronize"}[vendor]
    assert sum(call["name"] == device for call in trace.calls) == 3

    # The compute stream stands still while the exchange it waits for runs.
    stream = Counter(work["tid"] for work in trace.gpu).most_common(1)[0][0]
    still = gaps(union([work for work in trace.gpu if work["tid"] == stream]))
    comm = [work for work in trace.gpu if trace.category(work) == "Communication"]
    assert len([gap for gap in within(still, comm) if gap > 100_000]) >= 10, (
        "another stream"
    )


@pytest.mark.parametrize("vendor", VENDORS)
def test_modules_frames_and_annotations(vendor: str) -> None:
    trace = demo(vendor)
    frames = trace.of("python_function")
    modules = {
        f["name"]: f["args"]["Python module id"]
        for f in frames
        if "Module:" in f["name"]
    }
    for index in range(6):
        assert modules[f"nn.Module: TransformerBlock_{index}"] == index
    assert all(name.endswith(f"_{number}") for name, number in modules.items())
    calls = Counter(f["name"] for f in frames if "Module:" in f["name"])
    assert set(calls.values()) == {3}, "every module is called once a step"
    assert any(re.fullmatch(r"train\.py\(\d+\): train_step", f["name"]) for f in frames)

    # An annotation on the device spans exactly what was launched under it on that stream.
    annotations = {a["args"]["External id"]: a for a in trace.of("user_annotation")}
    on_gpu = trace.of("gpu_user_annotation")
    assert {"Optimizer.step#AdamW.step", "nccl:all_reduce"} <= {
        a["name"] for a in on_gpu
    }
    for extent in on_gpu:
        source = annotations[extent["args"]["External id"]]
        assert source["name"] == extent["name"]
        edges = [w for w in trace.gpu if w["tid"] == extent["tid"]]
        assert start(extent) in {start(w) for w in edges}
        assert end(extent) in {end(w) for w in edges}


@pytest.mark.parametrize("vendor", VENDORS)
def test_times_and_shapes_give_possible_rates(vendor: str) -> None:
    """TFLOP/s computed back from shapes stays below the hardware's peak and above nothing."""
    trace = demo(vendor)
    peak = {"nvidia": 989.0, "amd": 1307.0}[vendor]
    time: Counter[int] = Counter()
    for work in trace.of("kernel"):
        if "External id" in work["args"]:
            time[work["args"]["External id"]] += end(work) - start(work)
    rates = []
    for op in trace.of("cpu_op"):
        if op["name"] == "aten::mm":
            (m, k), (inner, n) = op["args"]["Input Dims"][:2]
            assert k == inner
            rates.append(2 * m * n * k / time[op["args"]["External id"]] / 1000)
    assert len(rates) > 100
    assert max(rates) < peak
    assert sorted(rates)[len(rates) // 2] > peak / 4


def test_operations_say_their_arguments() -> None:
    """All but bookkeeping have shapes, types, strides and values, an entry an argument."""
    silent = (
        "autograd::engine::",
        "record_param_comms",
        "Torch-Compiled",
        "AOTDispatcher",
    )
    for op in demo("nvidia").of("cpu_op"):
        args = op["args"]
        if op["name"].startswith(silent) or op["name"] == "CloneBackward0":
            continue
        columns = [args[key] for key in ("Input Dims", "Input type", "Input Strides")]
        assert {len(column) for column in columns} == {len(args["Concrete Inputs"])}
        for dims, dtype, strides in zip(*columns, strict=True):
            if dtype == "TensorList":
                assert [len(one) for one in dims] == [len(one) for one in strides]
            else:
                assert len(dims) == len(strides), op["name"]


def test_a_step_in_ten_is_odd() -> None:
    trace = Demo("nvidia", steps=5)
    steps = [
        e for e in trace.of("user_annotation") if e["name"].startswith("ProfilerStep")
    ]
    lengths = {step["name"]: end(step) - start(step) for step in steps}
    odd = lengths.pop("ProfilerStep#9")
    assert odd > 1.2 * max(lengths.values())
    (checkpoint,) = [
        e for e in trace.of("user_annotation") if e["name"] == "checkpoint"
    ]
    assert odd - max(lengths.values()) < 1.3 * (end(checkpoint) - start(checkpoint))


@pytest.mark.parametrize("vendor", VENDORS)
def test_ranks_meet_in_their_collectives(vendor: Any) -> None:
    """The same collectives on every rank, ending together; nobody waits for any but the last."""
    traces = [Demo(vendor, 0, 1, rank=rank, ranks=3) for rank in range(3)]
    for check in CHECKS:
        check(traces[0])
    calls = [[w for w in t.gpu if t.category(w) == "Communication"] for t in traces]
    assert len({len(works) for works in calls}) == 1
    for works in zip(*calls, strict=True):
        assert (
            len({json.dumps(work["args"].get("In msg nelems")) for work in works}) == 1
        )
        assert len({work["args"].get("Process Group Ranks") for work in works}) == 1
        assert len({end(work) for work in works}) == 1
        assert works[1]["dur"] == min(work["dur"] for work in works)
    for rank, trace in enumerate(traces):
        assert trace.document["distributedInfo"]["rank"] == rank
        assert trace.document["distributedInfo"]["world_size"] == 3
        assert {work["pid"] for work in trace.gpu} == {
            rank + (2 if vendor == "amd" else 0)
        }


def test_every_sheet_has_rows() -> None:
    from tracelens_ext import TreePerfAnalyzer

    trace = demo("amd")
    analyzer = TreePerfAnalyzer(trace.document, use_kernel_name_categories=True)
    for table in (
        analyzer.get_df_kernel_summary(),
        analyzer.get_df_gap_summary(),
        analyzer.get_df_collectives(),
        analyzer.get_df_graph_launches(),
        analyzer.get_df_nn_modules(),
        analyzer.get_df_unlinked_kernels(),
        analyzer.get_df_iterations(),
        analyzer.get_df_kernel_launchers_unique_args(),
    ):
        assert len(table)


# The text and the file --------------------------------------------------------------------------


@pytest.mark.process
def test_same_bytes_on_every_run(tmp_path: Path) -> None:
    here = write_demo_trace(tmp_path / "a.json.gz")
    there = tmp_path / "b.json.gz"
    command = (
        "import sys\n"
        "from tests.support.simulated_job import write_demo_trace\n"
        "write_demo_trace(sys.argv[1])"
    )
    subprocess.run(
        [sys.executable, "-c", command, str(there)],
        check=True,
        env={
            **os.environ,
            "PYTHONHASHSEED": "77",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
    )
    assert here.read_bytes() == there.read_bytes()


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_text_is_the_document_in_kinetos_layout(
    vendor: str, tmp_path: Path
) -> None:
    path = write_demo_trace(tmp_path / "trace.json", vendor)  # type: ignore[arg-type]
    text = path.read_text(encoding="utf-8")
    assert json.loads(text) == demo(vendor).document
    assert text.startswith(
        '\n{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    {\n'
    )
    assert text.index('"traceEvents"') < text.index('"traceName"')
    spans = re.findall(
        r'^  \{\n    "ph": "X", "cat": "\w+", "name": "(?:[^"\\]|\\.)*", "pid": \d+, "tid": \d+,\n'
        r'    "ts": \d{13}\.\d{3}, "dur": \d+\.\d{3},\n    "args": \{\n      .*\n    \}\n  \},?$',
        text,
        re.MULTILINE,
    )
    expected = [
        e for e in demo(vendor).events if e["ph"] == "X" and e["cat"] != "Trace"
    ]
    assert len(spans) == len(expected)


def test_packed_and_plain_hold_the_same_text(tmp_path: Path) -> None:
    plain = write_demo_trace(tmp_path / "t.json", steps=1)
    packed = write_demo_trace(tmp_path / "t.json.gz", steps=1)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.json", "t.json.gz"]


@pytest.mark.real_data
@pytest.mark.parametrize("vendor", VENDORS)
def test_structure_is_that_of_real_traces(vendor: str) -> None:
    """Each kind of event has the keys, in the order, of one in a recorded trace."""
    names = {
        "nvidia": ("nvidia/nccl", "nvidia/Qwen_Qwen1.5-0.5B-Chat__1016005"),
        "amd": (
            "amd/Qwen_Qwen1.5-0.5B-Chat__1016005",
            "graphs/vllm_decode_hip_graph",
            "nvidia/nccl",
        ),
    }[vendor]
    paths = [SHARED / f"{name}.json.gz" for name in names]
    shapes: set[tuple[str, ...]] = set()
    arguments: dict[str, set[str]] = defaultdict(set)
    top: set[str] = set()
    for path in paths:
        recorded = json.loads(gzip.decompress(path.read_bytes()))
        top |= set(recorded)
        for event in recorded["traceEvents"]:
            shapes.add(shape(event))
            arguments[str(event.get("cat"))] |= set(event.get("args", ()))
    trace = demo(vendor)
    assert {shape(event) for event in trace.events} <= shapes
    assert set(trace.document) - top <= {"tracelens_ext_demo"}
    # Nothing that the profiler does not write; HIP memsets are in none of the recorded traces.
    for event in trace.events:
        known = arguments[str(event.get("cat"))]
        if event.get("cat") == "gpu_memset":
            known = arguments["gpu_memcpy"]
        assert set(event.get("args", ())) <= known, event


def shape(event: Event) -> tuple[str, ...]:
    """The keys of an event; spans of the host and of the device look alike."""
    kind = "Trace" if event.get("cat") == "Trace" else event["ph"]
    return (kind, *(key for key in event if key != "bp"))


def test_what_the_tool_says_of_the_demo_is_what_was_put_in() -> None:
    from tracelens_ext import TreePerfAnalyzer

    for vendor in VENDORS:
        trace = demo(vendor)
        analyzer = TreePerfAnalyzer(trace.document, use_kernel_name_categories=True)
        rows = analyzer.get_df_kernels()
        told = dict(zip(rows["kernel_name"], rows["kernel_category"], strict=True))
        assert told == {work["name"]: trace.category(work) for work in trace.gpu}


# Arguments --------------------------------------------------------------------------------------


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose one of: nvidia, amd"):
        build_demo_trace("intel")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least 1"):
        build_demo_trace(steps=0)
    with pytest.raises(UsageError, match="no rank 2 among 2"):
        build_demo_trace(rank=2, ranks=2)
    with pytest.raises(UsageError, match=r"ends in \.json or \.json\.gz"):
        write_demo_trace(tmp_path / "trace.txt", steps=1)
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(OutputError, match="cannot be written"):
        write_demo_trace(tmp_path / "folder.json", steps=1)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.json"]


def test_tensors_are_described_as_the_profiler_does() -> None:
    tensor = Tensor((2, 3, 4))
    assert tensor.strides == (12, 4, 1)
    assert tensor.exchanged(-1, -2).strides == (12, 1, 4)
    assert tensor.flat().shape == (6, 4)
    assert tensor.nbytes == 48
    assert input_arguments([]) == {}
    assert input_arguments([tensor, [tensor], [1, -1], 0.5, True, None]) == {
        "Concrete Inputs": ["", "", "[1, -1]", "0.5", "True", ""],
        "Input type": [
            "c10::BFloat16",
            "TensorList",
            "ScalarList",
            "Scalar",
            "Scalar",
            "",
        ],
        "Input Strides": [[12, 4, 1], [[12, 4, 1]], [], [], [], []],
        "Input Dims": [[2, 3, 4], [[2, 3, 4]], [], [], [], []],
    }


def test_the_data_files_say_tensors_and_sizes_in_words() -> None:
    x = Tensor((1, 8, 6), "f32")
    names: dict[str, Argument] = {"L": 8, "W": 6, "x": x}
    assert value("f32[1,L,W]", names) == x
    assert value("i64[]", names) == Tensor((), "i64")
    assert value("3*W/2", names) == 9
    assert value(["x.T", "L", None, 0.5], names) == [x.exchanged(-1, -2), 8, None, 0.5]
    assert value("x.flat.shape", names) == [8, 6]
    assert value("x.swap", names) == Tensor((1, 6, 8), "f32", (48, 1, 6))
