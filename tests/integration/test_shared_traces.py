"""Real traces against plain loops over `json.loads`, other tools' tables, and known facts.

The traces lie beside the checkout, in `../shared/traces`; without them these tests are left out.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.errors import TracelensError
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.trace import GPU_KINDS, HOST_KINDS, LAUNCH_KINDS, NONE, EventKind
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.intervals import union_length

if TYPE_CHECKING:
    from tracelens_ext.trace import Trace

SHARED = Path(__file__).resolve().parents[3] / "shared"
#: Its accelerator has kinds of events of its own, which the plain loops here do not know.
OTHER_ACCELERATOR = "edge/no_cuda_accelerator"
TRACES = {
    str(path.relative_to(SHARED / "traces")).removesuffix(".json.gz"): path
    for path in sorted((SHARED / "traces").rglob("*.json.gz"))
}
TRACES.pop(OTHER_ACCELERATOR, None)

pytestmark = pytest.mark.real_data
GPU_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
Event = dict[str, Any]


@cache
def analyzed(name: str) -> TreePerfAnalyzer:
    return TreePerfAnalyzer(TRACES[name], use_kernel_name_categories=True)


@dataclass(frozen=True)
class Real:
    """A real trace: what this project makes of it, and its events by the standard library.

    `events` are those that are no metadata, in order; their times are exact.
    """

    analyzer: TreePerfAnalyzer
    events: list[Event]

    @property
    def gpu_events(self) -> list[Event]:
        return [
            event
            for event in self.events
            if event["ph"] == "X" and event.get("cat", "").lower() in GPU_CATEGORIES
        ]


def loaded(name: str) -> list[Event]:
    with gzip.open(TRACES[name]) as file:
        document = json.loads(file.read(), parse_float=Decimal)
    events = document if isinstance(document, list) else document["traceEvents"]
    return [event for event in events if event.get("ph") not in ("M", None)]


@pytest.fixture(scope="module", params=TRACES)
def real(request: pytest.FixtureRequest) -> Real:
    """One trace after the other, each through all tests, so that one is in memory at a time."""
    return Real(analyzed(request.param), loaded(request.param))


def nanoseconds(microseconds: Decimal | int) -> int:
    exact = Decimal(microseconds) * 1000
    assert exact == int(exact)
    return int(exact)


# Reading.


def test_every_event_is_read(real: Real) -> None:
    trace = real.analyzer.trace
    made = trace.provenance
    assert made.dropped == {}
    assert made.present == len(trace) + made.metadata_events
    assert len(trace) == len(real.events)


def test_times_are_exact_to_the_nanosecond(real: Real) -> None:
    trace = real.analyzer.trace
    assert (trace.ts + trace.base_ns).tolist() == [
        nanoseconds(e["ts"]) for e in real.events
    ]
    assert trace.dur.tolist() == [nanoseconds(e.get("dur", 0)) for e in real.events]


def test_names_threads_and_ids_are_those_of_the_file(real: Real) -> None:
    trace = real.analyzer.trace
    assert [trace.names[code] for code in trace.name.tolist()] == [
        e["name"] for e in real.events
    ]
    assert [trace.threads[code] for code in trace.thread.tolist()] == [
        (e["pid"], e["tid"]) for e in real.events
    ]
    wanted = np.isin(trace.kind, [*GPU_KINDS, *LAUNCH_KINDS])
    assert trace.correlation[wanted].tolist() == [
        event.get("args", {}).get("correlation", NONE)
        for event, is_wanted in zip(real.events, wanted.tolist(), strict=True)
        if is_wanted
    ]


@pytest.mark.parametrize(
    "arg", ["Input Dims", "Concrete Inputs", "Sequence number", "stream"]
)
def test_arguments_are_those_of_the_file(real: Real, arg: str) -> None:
    trace = real.analyzer.trace
    column = trace.arg(arg)
    values: list[Any] = column.values.tolist()
    if column.texts is not None:
        texts = {code: json.loads(column.texts[code]) for code in set(values)}
        values = [texts[code] for code in values]
    # Events of synchronization, which are of no kind, tell their stream too.
    of_streams = (*GPU_KINDS, EventKind.OTHER)
    kinds = (
        of_streams if arg == "stream" else (EventKind.CPU_OP, EventKind.USER_ANNOTATION)
    )
    assert dict(zip(column.rows.tolist(), values, strict=True)) == {
        row: event["args"][arg]
        for row, (event, kind) in enumerate(
            zip(real.events, trace.kind.tolist(), strict=True)
        )
        if kind in kinds and arg in event.get("args", {})
    }


def test_gaps_on_the_gpu_when_times_have_nineteen_digits() -> None:
    """Each of the 6,095 is right; by way of floats nearly all would be wrong."""

    def gaps_of(times: list[tuple[Any, Any]]) -> list[int]:
        """From the end of all before to each start, ns."""
        gaps = []
        reach = min(times)[0]
        for start, duration in sorted(times):
            gaps.append(round((start - reach) * 1000))
            reach = max(reach, start + duration)
        return gaps

    name = "edge/ns_resolution"
    trace = analyzed(name).trace
    events = loaded(name)
    rows = trace.gpu_rows
    gpu = [events[row] for row in rows.tolist()]
    ours = [
        (Decimal(start) / 1000, Decimal(duration) / 1000)
        for start, duration in zip(
            trace.ts[rows].tolist(), trace.dur[rows].tolist(), strict=True
        )
    ]
    exact = gaps_of([(Decimal(e["ts"]), Decimal(e["dur"])) for e in gpu])
    assert len(exact) == 6095
    assert gaps_of(ours) == exact
    floats = gaps_of([(float(e["ts"]), float(e["dur"])) for e in gpu])
    assert sum(a != b for a, b in zip(exact, floats, strict=True)) > 6000


# The tree.


def test_parents_are_those_of_a_loop_with_a_stack(real: Real) -> None:
    trace = real.analyzer.trace
    for with_frames in (False, True):
        tree = CallTree(trace, add_python_func=with_frames)
        rows = tree.rows.tolist()
        parents = tree.parent_position.tolist()
        found = {
            row: rows[above] if above >= 0 else NONE
            for row, above in zip(rows, parents, strict=True)
        }
        kinds = [k for k in HOST_KINDS if with_frames or k != EventKind.PYTHON_FUNCTION]
        assert found == parents_by_a_stack(trace, kinds)


def parents_by_a_stack(trace: Trace, kinds: list[EventKind]) -> dict[int, int]:
    """Row → row of the parent, the events of a thread taken in turn."""
    start = trace.ts.tolist()
    end = trace.end.tolist()
    call = np.isin(trace.kind, LAUNCH_KINDS).tolist()
    number = [
        10**18 if is_call and value == NONE else value
        for is_call, value in zip(call, trace.external_id.tolist(), strict=True)
    ]

    def encloses(outer: int, inner: int) -> bool:
        equal = (start[outer], end[outer]) == (start[inner], end[inner])
        return end[outer] >= end[inner] and not (equal and call[outer] and call[inner])

    threads: defaultdict[int, list[int]] = defaultdict(list)
    for row in trace.rows_of(*kinds).tolist():
        threads[int(trace.thread[row])].append(row)
    parents: dict[int, int] = {}
    for rows in threads.values():
        around: list[int] = []
        for row in sorted(rows, key=lambda r: (start[r], -end[r], number[r], r)):
            while around and not encloses(around[-1], row):
                around.pop()
            parents[row] = around[-1] if around else NONE
            around.append(row)
    return parents


def test_launches_are_those_of_a_dict(real: Real) -> None:
    tree = real.analyzer.tree
    calls: dict[int, int] = {}
    for row in tree.trace.rows_of(*LAUNCH_KINDS).tolist():
        correlation = real.events[row].get("args", {}).get("correlation", 0)
        if correlation > 0:
            assert correlation not in calls
            calls[correlation] = row
    assert tree.launch_of_gpu.tolist() == [
        calls.get(event.get("args", {}).get("correlation", 0), NONE)
        for event in real.gpu_events
    ]


# No GPU event is lost on the way to any table.


def test_every_gpu_event_is_in_every_table(real: Real) -> None:
    analyzer = real.analyzer
    events = real.gpu_events
    time_ns = sum(nanoseconds(event["dur"]) for event in events)
    gpu_events = analyzer.gpu_events
    linked = analyzer.tree.linked
    assert len(gpu_events) == len(events)
    assert (
        int(gpu_events.duration[linked].sum()) + int(gpu_events.duration[~linked].sum())
        == time_ns
    )
    for frame in (
        analyzer.get_df_kernel_summary(),
        analyzer.get_df_kernel_category_summary(),
    ):
        assert frame["count"].sum() == len(events)
        assert round(frame["total_time_ms"].sum() * 1e6) == time_ns
        assert math.isclose(
            frame["% of GPU time"].sum(), 100 if events else 0, abs_tol=1e-9
        )
    one_by_one = analyzer.get_df_kernels(launcher_detail=True)
    assert len(one_by_one) == len(events)
    assert round(one_by_one["duration_us"].sum() * 1000) == time_ns


def test_kernels_by_name_are_those_of_a_loop(real: Real) -> None:
    expected: Counter[tuple[str, str]] = Counter()
    for event in real.gpu_events:
        kind = event["cat"].lower().removeprefix("gpu_")
        expected[event["name"], kind] += nanoseconds(event["dur"])
    frame = real.analyzer.get_df_kernel_summary()
    found: Counter[tuple[str, str]] = Counter()
    for kernel, kind, ms in zip(
        frame["kernel_name"], frame["kind"], frame["total_time_ms"], strict=True
    ):
        found[kernel, kind] += round(ms * 1e6)
    assert found == expected


@pytest.mark.parametrize("include_unlinked", [True, False])
def test_the_timeline_adds_up(real: Real, include_unlinked: bool) -> None:
    trace = real.analyzer.trace
    analyzer = TreePerfAnalyzer(trace, include_unlinked_kernels=include_unlinked)
    frame = analyzer.get_df_gpu_timeline(micro_idle_thresh_us=5)
    for _, block in frame.groupby(
        "device" if "device" in frame else frame.index // len(frame)
    ):
        times = zip(block["type"], block["time ms"], strict=True)
        ns = {kind: round(ms * 1e6) for kind, ms in times}
        shown = ["computation_time", "exposed_comm_time", "exposed_memcpy_time"]
        assert sum(ns[kind] for kind in shown) == ns["busy_time"]
        assert ns["busy_time"] + ns["idle_time"] == ns["total_time"]
        assert ns["micro_idle_time"] + ns["macro_idle_time"] == ns["idle_time"]
        assert ns["exposed_comm_time"] <= ns["total_comm_time"]
        assert ns["exposed_memcpy_time"] <= ns["total_memcpy_time"]
        assert min(ns.values()) >= 0
        if "analyzed_time" not in ns:
            assert len(block) == 10
            continue
        assert len(block) == 10 + 8
        set_aside = ns["not_recorded_time"] + ns["warm_up_time"]
        assert set_aside > 0
        assert set_aside + ns["analyzed_time"] >= ns["total_time"]
        busy = ns["analyzed_busy_time"]
        assert sum(ns[f"analyzed_{kind}"] for kind in shown) == busy
        assert busy <= ns["busy_time"]
        assert busy + ns["analyzed_idle_time"] == ns["analyzed_time"]
    assert frame.empty == (not analyzer.gpu_events.counted.any())


def test_operations_take_no_negative_time(real: Real) -> None:
    frame = real.analyzer.get_df_cpu_ops()
    assert (frame["self_time_ms"] >= 0).all()
    assert frame["count"].sum() == len(real.analyzer.trace.rows_of(EventKind.CPU_OP))


def test_the_report_has_its_sheets(real: Real) -> None:
    report = build_perf_report(real.analyzer, short_kernel_study=True)
    if not real.gpu_events:
        of_cpu = ["cpu_timeline", "cpu_iterations", "cpu_ops"]
        assert list(report.sheets) == ["recording", *of_cpu]
        assert not any(report.sheets[sheet].empty for sheet in of_cpu)
        return
    for sheet in ("gpu_timeline", "gpu_time_by_category", "kernels_by_category"):
        assert not report.sheets[sheet].empty


# Known facts.


def test_a_profiler_that_started_late() -> None:
    analyzer = analyzed("nvidia/Qwen_Qwen1.5-0.5B-Chat__1016005")
    kinds = Counter(analyzer.trace.kind.tolist())
    assert analyzer.trace.provenance.present == 18_221
    assert kinds[EventKind.KERNEL] == 1465
    assert (analyzer.coverage.events, analyzer.coverage.unlinked_events) == (1707, 509)


def test_graph_launches_own_their_kernels() -> None:
    decode = analyzed("graphs/vllm_decode_hip_graph")
    owners = decode.tree.launch_of_gpu[decode.tree.by_graph]
    assert len(set(owners.tolist())) == 1
    assert len(owners) > 300
    training = analyzed("graphs/training_cuda_graph")
    assert len(set(training.tree.launch_of_gpu[training.tree.by_graph].tolist())) == 12
    kinds = Counter(training.trace.kind.tolist())
    assert (kinds[EventKind.KERNEL], kinds[EventKind.MEMCPY]) == (9876, 4856)
    frame = decode.get_df_kernel_summary()
    assert frame.loc[frame["cpu_op"] == "graph", "count"].sum() == len(owners)


def test_sizes_of_the_others() -> None:
    counts = {
        "nvidia/gaunernst_bert-small-uncased__1016001": 60,
        "nvidia/nccl": 2700,
        "nvidia/training_large": 19_370,
        "edge/one_triton_kernel": 1,
    }
    for name, kernels in counts.items():
        assert analyzed(name).gpu_events.is_kernel.sum() == kernels
    assert analyzed("nvidia/training_large").trace.provenance.present == 216_092
    assert len(analyzed("edge/cpu_only").gpu_events) == 0
    assert len(analyzed("edge/cat_spelled_Kernel").gpu_events) > 0


# Other tools' tables.


@pytest.mark.parametrize(
    "name", ["nvidia/nccl", "nvidia/training_large", "graphs/training_cuda_graph"]
)
def test_busy_and_idle_time_are_those_of_another_tool(name: str) -> None:
    """It leaves out what the last step launched, and rounds times to µs: starts up, ends down."""
    reference = SHARED / "traces" / "hta_idle" / f"{Path(name).name}_temporal.csv"
    with reference.open(encoding="utf-8") as file:
        expected = {
            key: float(value) for key, value in next(csv.DictReader(file)).items()
        }
    analyzer = analyzed(name)
    trace = analyzer.trace
    gpu_events = analyzer.gpu_events
    tree = analyzer.tree
    steps = [
        row
        for row in trace.rows_of(EventKind.USER_ANNOTATION).tolist()
        if trace.name_of(row).startswith("ProfilerStep#")
    ]
    chosen = tree.linked.copy()
    chosen[chosen] = trace.ts[tree.launch_of_gpu[chosen]] < max(trace.ts[steps])
    start = -(-(gpu_events.start + trace.base_ns) // 1000)
    end = (gpu_events.end + trace.base_ns) // 1000
    computing = chosen & gpu_events.is_kernel & ~gpu_events.is_communication
    busy = union_length(start[chosen], end[chosen])
    total = int(end[chosen].max() - start[chosen].min())
    computation = union_length(start[computing], end[computing])
    assert {
        "idle_time(us)": total - busy,
        "compute_time(us)": computation,
        "non_compute_time(us)": busy - computation,
        "kernel_time(us)": total,
    }.items() <= expected.items()


@pytest.mark.process
def test_sheets_agree_with_the_references() -> None:
    script = SHARED / "check" / "parity.py"
    done = subprocess.run(
        [
            sys.executable,
            str(script),
            str(SHARED / "traces"),
            "--sheets",
            "gpu_timeline,kernel_summary",
            "--min",
            "0.9",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("  ")]
    assert len(lines) == 14
    for line in lines:
        share, sheet, *notes = line.split(maxsplit=2)
        if sheet == "gpu_timeline":
            assert share == "100.00%", line
        for note in notes:  # one column is another milestone's
            assert note.startswith("differ: Parent op category x"), line
            assert "," not in note, line


# Damage.


def test_a_real_trace_cut_off_is_an_error_of_ours() -> None:
    data = TRACES["edge/one_triton_kernel"].read_bytes()
    text = gzip.decompress(data)
    for whole in (data, text):
        for length in range(0, len(whole) - 1, 101):
            with pytest.raises(TracelensError):
                TreePerfAnalyzer(io.BytesIO(whole[:length]))
