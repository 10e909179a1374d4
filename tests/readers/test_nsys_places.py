"""Processes, devices, machines and links in exports of Nsight Systems."""

from __future__ import annotations

import io
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.nsys_export_maker import (
    PID,
    ExportMaker,
    global_tid,
    parents,
    read,
    training,
)
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.readers.nsys.export_schema import DEVICES_PER_MACHINE
from tracelens_ext.roofline.peaks import peaks_of_devices
from tracelens_ext.trace import NONE, Device
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.gpu_events import find_gaps, find_tracks


def test_correlation_ids_are_unique_only_within_a_process() -> None:
    maker = ExportMaker()
    for pid, device in ((10, 0), (20, 1)):
        maker.range(f"rank {pid}", 1_000, 2_000, pid=pid)
        maker.launched(
            f"kernel {pid}",
            3_000 + pid,
            50,
            at=1_100,
            correlation=5,
            pid=pid,
            device=device,
        )
    maker.kernel("of a third", 5_000, 50, correlation=5, pid=30)
    trace = read(maker)
    assert (
        parents(trace)["kernel 10"]
        == parents(trace)["kernel 20"]
        == {"cudaLaunchKernel"}
    )
    tree = CallTree(trace)
    ops = [
        trace.name_of(row) if row != NONE else None
        for row in tree.cpu_op_of_gpu.tolist()
    ]
    assert ops == ["rank 10", "rank 20", None]


def test_correlation_ids_of_any_size_link() -> None:
    maker = ExportMaker()
    for number in (1, 2**40, 2**63 - 1):
        maker.launched(f"k{number}", 3_000, 50, at=1_000, correlation=number)
        maker.launched(f"other{number}", 3_000, 50, at=1_000, correlation=number, pid=7)
    tree = CallTree(read(maker))
    assert tree.linked.all()
    assert len(np.unique(tree.launch_of_gpu)) == 6


_PLACE = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(0, 50))


@given(st.lists(_PLACE, max_size=12), st.lists(_PLACE, max_size=12, unique=True))
def test_links_equal_those_of_a_plain_loop(
    launches: list[tuple[int, int, int]], kernels: list[tuple[int, int, int]]
) -> None:
    maker = ExportMaker()
    maker.call("cudaMalloc_v3020", 0, 1)
    for pid, correlation, at in launches:
        maker.call(
            "cudaLaunchKernel_v7000", 100 + at, 1, correlation=correlation, pid=pid
        )
    for pid, correlation, at in kernels:
        maker.kernel("k", 100 + at, 1, correlation=correlation, pid=pid)
    trace = read(maker)
    expected = []
    for pid, correlation, at in kernels:
        mine = [t for p, c, t in launches if (p, c) == (pid, correlation)]
        before = [t for t in mine if t <= at]
        expected.append(max(before) if before else min(mine, default=None))
    found = CallTree(trace).launch_of_gpu.tolist()
    assert [
        None if row == NONE else int(trace.ts[row]) - 100 for row in found
    ] == expected
    for row, (pid, _, _) in zip(found, kernels, strict=True):
        assert row == NONE or trace.threads[trace.thread[row]][0] == pid


def test_the_latest_earlier_launch_with_an_id_is_linked() -> None:
    maker = ExportMaker()
    maker.call("cudaLaunchKernel_v7000", 100, 10, correlation=4)
    maker.call("cuLaunchKernel", 200, 10, correlation=4, driver=True)
    maker.call("cudaLaunchKernel_v7000", 900, 10, correlation=4)
    maker.call("cuLaunchKernel", 300, 10, correlation=4, driver=True, pid=9)
    maker.kernel("k", 500, 10, correlation=4)
    trace = read(maker)
    assert trace.name_of(int(CallTree(trace).launch_of_gpu[0])) == "cuLaunchKernel"
    assert trace.ts[CallTree(trace).launch_of_gpu[0]] == 100


def test_two_processes_on_one_device_have_streams_of_their_own() -> None:
    maker = ExportMaker()
    for number, pid in enumerate((10, 20)):
        for at in range(3):
            maker.kernel("k", 1_000 * at + 400 * number, 100, pid=pid)
    analyzer = TreePerfAnalyzer(io.BytesIO(maker.content))
    tracks = find_tracks(analyzer.gpu_events, "stream")
    assert tracks.process == [10, 20]
    assert tracks.device.tolist() == [0, 0]
    assert tracks.stream.tolist() == [7, 7]
    assert tracks.of_gpu.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_device_that_two_processes_share_is_idle_when_neither_works() -> None:
    maker = ExportMaker()
    for number, pid in enumerate((10, 20)):
        for at in range(3):
            maker.kernel("k", 1_000 * at + 400 * number, 100, pid=pid)
    analyzer = TreePerfAnalyzer(io.BytesIO(maker.content))
    timeline = analyzer.get_df_gpu_timeline().set_index("type")["time ms"]
    gaps = find_gaps(analyzer.gpu_events, "device")
    assert len(gaps) == 5
    assert int(gaps.duration.sum()) / 1e6 == pytest.approx(timeline["idle_time"])


def test_iterations_of_a_process_are_on_its_own_devices() -> None:
    maker = ExportMaker()
    for device, pid in enumerate((10, 20)):
        for step in range(3):
            t = 10_000 * step
            maker.range("Step", t, t + 5_000, pid=pid)
            maker.launched(
                "k",
                t + 200,
                1_000,
                at=t + 100,
                correlation=step + 1,
                pid=pid,
                device=device,
            )
    analyzer = TreePerfAnalyzer(io.BytesIO(maker.content))
    frame = analyzer.get_df_iterations("Step")
    pairs = zip(frame["process"], frame["device"], frame["kernels"], strict=True)
    assert Counter(pairs) == {(10, 0, 1): 3, (20, 1, 1): 3}


def test_several_machines_in_a_report() -> None:
    maker = ExportMaker()
    for machine in (1, 2):
        maker.launched(f"on {machine}", 900, 50, at=100, correlation=5, machine=machine)
        maker.insert(
            "TARGET_INFO_GPU", vmId=machine << 48, id=0, name=f"GPU of {machine}"
        )
    trace = read(maker)
    assert trace.device.tolist() == [0, DEVICES_PER_MACHINE]
    assert [(device.ordinal, device.name) for device in trace.devices] == [
        (0, "GPU of 1"),
        (DEVICES_PER_MACHINE, "GPU of 2"),
    ]
    assert {process for process, _ in trace.threads} == {PID, f"{PID} on machine 2"}
    assert CallTree(trace).launch_of_gpu.tolist() == [0, 1]


def test_names_of_processes_threads_and_devices() -> None:
    maker = training()
    maker.insert("PROCESSES", globalPid=1 << 48 | PID << 24, pid=PID, name="python3")
    maker.insert("PROCESSES", globalPid=1 << 48 | 9 << 24, pid=9, name="idle")
    for name, priority in (("pt_main", 10), ("main", 20)):
        maker.insert(
            "ThreadNames",
            nameId=maker.string(name),
            priority=priority,
            globalTid=global_tid(PID),
        )
    told = {"smCount": 132, "threadsPerWarp": 32, "totalMemory": 80}
    maker.insert("TARGET_INFO_GPU", vmId=1 << 48, id=0, name="NVIDIA H100", **told)
    trace = read(maker)
    assert trace.process_names == {PID: "python3"}
    assert trace.thread_names == {(PID, PID): "main"}
    assert trace.devices == (Device(0, "NVIDIA H100", 132, 32, 80),)


@pytest.mark.parametrize(
    "columns",
    [
        "TARGET_INFO_GPU smCount clockRate memoryBandwidth computeMajor computeMinor",
        "TARGET_INFO_CUDA_GPU numMultiprocessors coreClockRate globalMemoryBandwidth"  # noqa: ISC004
        " computeCapabilityMajor computeCapabilityMinor",
    ],
)
def test_devices_of_old_schemas_are_described(columns: str) -> None:
    maker = training()
    unit = 1 if "CUDA" in columns else 1000  # the older one counts in thousands
    told = [1 << 48, 0, "Card X", 72, 1_770_000 * unit, 672_096_000 * unit, 7, 5]
    table, *rest = columns.split()
    maker.connection.execute(
        f"CREATE TABLE {table} (vmId, deviceId, name, {', '.join(rest)})"
    )
    maker.connection.execute(
        f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        told,
    )
    trace = read(maker)
    assert trace.devices == (
        Device(0, "Card X", 72, 0, 0, 1_770_000_000, 672_096_000_000, 75),
    )
    peaks = peaks_of_devices(trace)[0]
    assert peaks is not None
    assert (round(peaks.matrix["fp16"], 1), peaks.memory) == (130.5, 672.096)


def test_gpu_events_without_a_process_belong_to_the_only_one() -> None:
    maker = ExportMaker()
    maker.call("cudaLaunchKernel_v7000", 10, 5, correlation=4)
    maker.gpu("KERNEL", 100, 5, correlation=4, globalPid=None)
    assert CallTree(read(maker)).linked.tolist() == [True]
    maker = ExportMaker()
    maker.call("cudaLaunchKernel_v7000", 10, 5, correlation=4)
    maker.call("cudaLaunchKernel_v7000", 10, 5, correlation=4, pid=9)
    maker.gpu("KERNEL", 100, 5, correlation=4, globalPid=None)
    assert CallTree(read(maker)).linked.tolist() == [False]
