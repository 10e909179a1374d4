"""Memory: levels, peaks, blocks and owners, compared with a plain loop over the events."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.make_trace import PROCESS, THREAD, TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.memory.blocks import BEFORE, LOST
from tracelens_ext.analysis.memory.events import read_memory_events
from tracelens_ext.analysis.memory.usage import memory_notes
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.readers import read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pandas as pd

    from tracelens_ext.readers.cache.store import TraceCache

SHARED = Path(__file__).resolve().parents[3] / "shared"
CUDA = 1
HOST = 0
Event = dict[str, Any]
#: Columns of `memory_peaks` that the file with exact figures has, too.
EXACT = (
    "device",
    "events",
    "allocations",
    "frees",
    "allocated_bytes",
    "freed_bytes",
    "peak_allocated_bytes",
    "peak_at_ms",
    "peak_reserved_bytes",
    "end_total_bytes",
    "alive_at_end",
    "alive_at_end_bytes",
)


def memory_event(
    ts: float,
    size: int,
    address: int,
    total: int | None = None,
    *,
    device: int = 0,
    reserved: int | None = 1 << 30,
    thread: int = THREAD,
) -> Event:
    """Return a `[memory]` event; without `total` or `reserved`, it lacks that argument."""
    args = {
        "Device Type": CUDA if device >= 0 else HOST,
        "Device Id": device,
        "Addr": address,
        "Bytes": size,
    }
    if total is not None:
        args["Total Allocated"] = total
    if reserved is not None:
        args["Total Reserved"] = reserved if device >= 0 else 0
    return {
        "ph": "i",
        "s": "t",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "args": args,
        "pid": PROCESS,
        "tid": thread,
        "ts": ts,
    }


def recorded(
    steps: Iterable[tuple[float, int, int]], before: int = 0, **more: Any
) -> list[Event]:
    """Return events of (time, bytes, address), with the totals that an allocator would report.

    `before` is the total before the first event.
    """
    total = before
    events = []
    for ts, size, address in steps:
        total += size
        events.append(memory_event(ts, size, address, total, **more))
    return events


def analyzed(
    events: Sequence[Event], maker: TraceMaker | None = None, **members: object
) -> TreePerfAnalyzer:
    maker = maker or TraceMaker()
    maker.op("first", 0, 0, thread=99)
    for event in events:
        maker.add(event)
    return TreePerfAnalyzer(maker.document(**members))


def row(table: pd.DataFrame, **equal: object) -> dict[str, Any]:
    """Return the only row with these values."""
    for column, value in equal.items():
        table = table[table[column] == value]
    (record,) = table.to_dict("records")
    return {str(column): value for column, value in record.items()}


# Levels and blocks.


@st.composite
def histories(draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[Event]:
    """Draw the events of allocators on three devices, of which some may be lost.

    Few addresses are used again and again. Some frees are of memory from before the recording.
    """
    older_bytes = {device: draw(st.integers(0, 1000)) for device in (-1, 0, 3)}
    totals = dict(older_bytes)
    size_of_block: dict[tuple[int, int], int] = {}
    events = []
    clock = 0
    for _ in range(draw(st.integers(0, 40))):
        clock += draw(st.sampled_from([0, 0, 1, 5]))
        device = draw(st.sampled_from([-1, 0, 0, 3]))
        address = draw(st.integers(1, 4))
        block = (device, address)
        if block in size_of_block:
            change = -size_of_block.pop(block)
        elif older_bytes[device] > 50 and draw(st.integers(0, 5)) == 0:
            change = -draw(st.integers(1, 50))
            older_bytes[device] += change
        else:
            change = draw(st.integers(1, 100))
            size_of_block[block] = change
        totals[device] += change
        events.append(
            memory_event(clock, change, address << 40, totals[device], device=device)
        )
    if draw(st.booleans()):
        events = [event for event in events if draw(st.integers(0, 5))]
    return events


def exact_rows(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return the figures of each device, computed event by event."""
    devices = sorted({event["args"]["Device Id"] for event in events})
    rows = []
    for device in devices:
        of_device = [event for event in events if event["args"]["Device Id"] == device]
        of_device.sort(key=lambda event: event["ts"])
        rows.append({"device": device} | exact_row(of_device))
    return rows


def exact_row(events: Sequence[Event]) -> dict[str, Any]:
    """Return the figures of one device, whose events are sorted by time."""
    sizes = [event["args"]["Bytes"] for event in events]
    totals = [event["args"]["Total Allocated"] for event in events]
    peak = totals.index(max(totals))
    alive: dict[int, int] = {}
    alive_at_peak: dict[int, int] = {}
    older_frees = 0
    older_bytes_at_peak = totals[0] - sizes[0]
    for index, event in enumerate(events):
        address = event["args"]["Addr"]
        size = event["args"]["Bytes"]
        if size > 0:
            alive[address] = size
        elif address in alive:
            del alive[address]
        else:
            older_frees += 1
            if index <= peak:
                older_bytes_at_peak += size
        if index == peak:
            alive_at_peak = dict(alive)
    allocations = [size for size in sizes if size > 0]
    frees = [size for size in sizes if size < 0]
    breaks = 0
    for index in range(1, len(totals)):
        if totals[index - 1] + sizes[index] != totals[index]:
            breaks += 1
    return {
        "events": len(events),
        "allocations": len(allocations),
        "frees": len(frees),
        "allocated_bytes": sum(allocations),
        "freed_bytes": -sum(frees),
        "peak_allocated_bytes": totals[peak],
        "peak_at_ms": events[peak]["ts"] / 1000,
        "peak_reserved_bytes": max(event["args"]["Total Reserved"] for event in events),
        "end_total_bytes": totals[-1],
        "alive_at_end": len(alive),
        "alive_at_end_bytes": sum(alive.values()),
        "older_frees": older_frees,
        "breaks": breaks,
        "alive at peak": sum(alive_at_peak.values()),
        "older at peak": older_bytes_at_peak,
    }


@given(histories())
@settings(max_examples=40)
def test_every_figure_is_that_of_a_plain_loop(events: list[Event]) -> None:
    analyzer = analyzed(events)
    peaks = analyzer.get_df_memory_peaks()
    held_at_peak = analyzer.get_df_memory_at_peak()
    expected_rows = exact_rows(events)
    assert len(peaks) == len(expected_rows)
    for peak, expected in zip(peaks.to_dict("records"), expected_rows, strict=True):
        for column in expected.keys() & peak.keys():
            assert peak[column] == expected[column], column
        of_device = held_at_peak[held_at_peak["device"] == expected["device"]]
        size = of_device["bytes"]
        operation = of_device["operation"]
        is_unrecorded = operation.isin([BEFORE, LOST])
        assert size.sum() == expected["peak_allocated_bytes"]
        assert size[~is_unrecorded].sum() == expected["alive at peak"]
        assert size[operation == BEFORE].sum() == expected["older at peak"]
        assert expected["breaks"] or LOST not in set(operation)


@given(histories())
@settings(max_examples=40)
def test_without_totals_there_are_changes_and_no_levels(events: list[Event]) -> None:
    for event in events:
        del event["args"]["Total Allocated"]
        del event["args"]["Total Reserved"]
    analyzer = analyzed(events)
    peaks = analyzer.get_df_memory_peaks()
    held_at_peak = analyzer.get_df_memory_at_peak()
    unknown = ["peak_allocated_bytes", "end_total_bytes", "peak_reserved_bytes"]
    assert peaks[unknown].isna().all(axis=None)
    assert not held_at_peak["operation"].isin([BEFORE, LOST]).any()
    sizes = [event["args"]["Bytes"] for event in events]
    assert peaks["allocated_bytes"].sum() - peaks["freed_bytes"].sum() == sum(sizes)
    notes = " ".join(memory_notes(analyzer.memory()))
    assert notes.count("has no totals for") == len(peaks)


def test_a_missing_total_is_computed_from_the_totals_around_it() -> None:
    totals = [None, 130, None, None, 100]
    sizes = [10, 20, 5, -5, -30]
    events = [
        memory_event(index, sizes[index], index, totals[index]) for index in range(5)
    ]
    memory = read_memory_events(analyzed(events).trace)
    assert memory.level.tolist() == [110, 130, 135, 130, 100]
    assert memory.breaks.tolist() == [0]


def test_lost_events_are_reported_and_their_memory_has_a_row() -> None:
    events = recorded([(0, 100, 1), (1, 50, 2), (2, -50, 2), (3, 400, 3)], before=1000)
    del events[1:3]
    events[1]["args"]["Total Allocated"] += 7  # of an allocation that was lost
    analyzer = analyzed(events)
    assert row(analyzer.get_df_memory_peaks())["breaks"] == 1
    alive = analyzer.get_df_memory_at_peak()
    assert row(alive, operation=LOST)["bytes"] == 7
    assert row(alive, operation=BEFORE)["bytes"] == 1000
    (note,) = memory_notes(analyzer.memory())
    assert "totals of device 0 are inconsistent at 1 memory event" in note


def test_events_without_size_or_address_are_ignored_and_reported() -> None:
    events = recorded([(0, 100, 1), (1, -100, 1)])
    bad = [memory_event(2, 5, 2, 5) for _ in range(4)]
    del bad[0]["args"]["Bytes"]
    del bad[1]["args"]["Addr"]
    bad[2]["args"]["Bytes"] = 1 << 60
    bad[3]["args"]["Bytes"] = "many"
    analyzer = analyzed([*events, *bad])
    assert row(analyzer.get_df_memory_peaks())["events"] == 2
    notes = " ".join(memory_notes(analyzer.memory()))
    assert "4 memory events without a valid size" in notes


def test_a_trace_of_unusable_events_has_empty_tables() -> None:
    event = memory_event(0, 1, 1, 1)
    del event["args"]["Bytes"]
    report = build_perf_report(analyzed([event]))
    for name in ("memory_peaks", "memory_at_peak", "memory_by_operation"):
        assert not len(report.sheets[name])


def test_peaks_show_unused_memory_and_growth_per_iteration() -> None:
    maker = TraceMaker()
    for step in (1, 2, 3):
        maker.annotation(f"ProfilerStep#{step}", 100 * step, 90)
    allocations = []
    for step in (1, 2, 3):
        allocations.append((100 * step, 100, 10 * step))
        allocations.append((100 * step + 10, 100, 10 * step + 1))
    events = recorded(allocations, reserved=1000)
    peak = row(analyzed(events, maker).get_df_memory_peaks())
    assert peak["unused_at_peak_bytes"] == 1000 - 600
    assert peak["most_unused_bytes"] == 1000 - 100
    assert peak["change_per_iteration_bytes"] == 200
    assert peak["peak_iteration"] == "ProfilerStep#3"


def test_an_average_change_is_rounded_to_the_nearest_byte() -> None:
    maker = TraceMaker()
    for step in (1, 2, 3, 4):
        maker.annotation(f"ProfilerStep#{step}", 100 * step, 90)
    frees = [(100 * step, -1, step) for step in (1, 2)]
    events = recorded([*frees, (300, 1, 3), (400, -1, 3)], before=10)
    peak = row(analyzed(events, maker).get_df_memory_peaks())
    # One byte less after three more iterations.
    assert peak["change_per_iteration_bytes"] == 0


# Owners.


def test_blocks_belong_to_operation_phase_module_and_frame() -> None:
    maker = TraceMaker()
    maker.frame("train.py(10): step", 0, 1000)
    maker.frame("nn.Module: Net_0", 5, 400)
    maker.frame("/site-packages/torch/nn/modules/linear.py(1): forward", 6, 300)
    maker.frame("nn.Module: Linear_3", 7, 200)
    maker.op("aten::linear", 10, 100, args={"Sequence number": 5, "Fwd thread id": 0})
    maker.op("aten::empty", 20, 10)
    node = "autograd::engine::evaluate_function: AddmmBackward0"
    maker.op(node, 500, 100, args={"Sequence number": 5, "Fwd thread id": 1}, thread=2)
    maker.op("aten::mm", 510, 50, thread=2)
    maker.annotation("Optimizer.step#AdamW.step", 700, 100)
    maker.op("aten::add_", 710, 50)
    steps = [(25, 1, 1), (105, 2, 2), (720, 8, 4), (900, 16, 5)]
    backward = [memory_event(520, 4, 3, 7, thread=2)]
    alive = analyzed([*recorded(steps), *backward], maker).get_df_memory_at_peak()
    recorded_blocks = alive[~alive["operation"].isin([BEFORE, LOST])]
    columns = ["phase", "operation", "outer_operation", "module", "python_frame"]
    owners_of_size = {}
    for block in recorded_blocks.to_dict("records"):
        owners_of_size[block["bytes"]] = tuple(block[column] for column in columns)
    module = "Net/Linear"
    frame = "train.py(10): step"
    assert owners_of_size == {
        1: ("forward", "aten::empty", "aten::linear", module, frame),
        2: ("forward", "aten::linear", "aten::linear", module, frame),
        4: ("backward", "aten::mm", node, module, frame),
        8: ("optimizer", "aten::add_", "aten::add_", "", frame),
        16: ("", "(no operation)", "(no operation)", "", frame),
    }


def test_operations_show_churn_lifetimes_and_memory_that_stays() -> None:
    maker = TraceMaker()
    for step in (1, 2, 3):
        maker.annotation(f"ProfilerStep#{step}", 100 * step, 90)
        maker.op("aten::mm", 100 * step + 10, 20)
        maker.op("leak", 100 * step + 40, 20)
    steps = []
    for step in (1, 2, 3):
        start = 100 * step
        steps += [
            (start + 12, 64, 7),  # of aten::mm, freed within it
            (start + 14, 32, 8),  # of aten::mm, freed later
            (start + 22, -64, 7),
            (start + 45, 16, 100 + step),  # of leak, never freed
            (start + 50, -32, 8),
        ]
    steps.append((450, 1, 9))  # after the last iteration
    table = analyzed(recorded(steps), maker).get_df_memory_by_operation()
    mm = row(table, operation="aten::mm")
    assert mm["allocations"] == 6
    assert mm["allocated_bytes"] == 288
    assert mm["largest_bytes"] == 64
    assert mm["frees"] == 6
    assert mm["frees_within_operation"] == 3
    assert mm["mean_lifetime_us"] == 23.0
    assert mm["kept"] == 0
    leak = row(table, operation="leak")
    assert leak["frees"] == 0
    assert np.isnan(leak["mean_lifetime_us"])
    # The block of the last iteration has not survived another iteration.
    assert leak["kept"] == 2
    assert leak["kept_bytes"] == 32
    assert leak["kept_from_iterations"] == 2


def test_the_largest_blocks_of_each_device() -> None:
    events = recorded([(0, 5, 1), (1, 9, 2), (2, 7, 3), (4, -9, 2)])
    events += recorded([(3, 1, 1)], device=-1)
    blocks = analyzed(events).get_df_memory_blocks(2)
    assert blocks["device"].tolist() == [-1, 0, 0]
    assert blocks["bytes"].tolist() == [1, 9, 7]
    _, freed, never_freed = blocks["lifetime_us"].tolist()
    assert freed == 3.0
    assert np.isnan(never_freed)


def test_a_deep_stack_takes_no_longer_than_a_flat_one() -> None:
    depth = 2000
    maker = TraceMaker()
    for level in range(depth):
        maker.op("aten::f", level, 4 * depth - 2 * level)
    events = recorded([(level + 0.5, 1, level) for level in range(depth)])
    table = analyzed(events, maker).get_df_memory_by_operation()
    assert row(table)["allocations"] == depth


# Reports and the cache.


def test_traces_without_memory_events_have_no_sheets_about_memory() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 5)
    maker.add(
        {"ph": "i", "name": "mark", "ts": 1, "pid": 1, "tid": 1, "args": {"Addr": 5}}
    )
    report = build_perf_report(TreePerfAnalyzer(maker.document()))
    assert not [name for name in report.sheets if name.startswith("memory")]


def test_memory_events_survive_the_cache(cache: TraceCache, tmp_path: Path) -> None:
    import json

    maker = TraceMaker()
    maker.op("aten::mm", 0, 50)
    for event in recorded([(1, 100, 1 << 46), (2, -100, 1 << 46)], before=1 << 34):
        maker.add(event)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(maker.document()))
    from_file = read_memory_events(read_trace(path, cache=cache))
    from_cache = read_memory_events(read_trace(path, cache=cache))
    for name in ("time", "size", "address", "total", "reserved", "devices"):
        expected = getattr(from_file, name)
        assert np.array_equal(getattr(from_cache, name), expected), name


# Real traces.


def exact_figures() -> list[dict[str, str]]:
    path = SHARED / "memory" / "memory.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.real_data
def test_real_traces_have_the_exact_figures_and_their_peaks_are_explained() -> None:
    exact = exact_figures()
    for trace in dict.fromkeys(figures["trace"] for figures in exact):
        analyzer = TreePerfAnalyzer(SHARED / "traces" / trace)
        peaks = analyzer.get_df_memory_peaks()
        alive = analyzer.get_df_memory_at_peak()
        expected = [figures for figures in exact if figures["trace"] == trace]
        for peak, figures in zip(peaks.to_dict("records"), expected, strict=True):
            for column in EXACT:
                assert str(peak[column]) == figures[column], (trace, column)
            assert str(peak["older_frees"]) == figures["freed_unseen"]
            assert not peak["breaks"]
            of_device = alive[alive["device"] == peak["device"]]
            assert of_device["bytes"].sum() == peak["peak_allocated_bytes"]
            assert LOST not in set(of_device["operation"])
            first_size = _first_size(analyzer, peak["device"])
            level_before = int(figures["first_total_bytes"]) - first_size
            older = of_device["bytes"][of_device["operation"] == BEFORE].sum()
            assert older == level_before or int(figures["freed_unseen"])


def _first_size(analyzer: TreePerfAnalyzer, device: int) -> int:
    events = read_memory_events(analyzer.trace)
    device_index = events.devices.tolist().index(device)
    return int(events.size[events.first[device_index]])


# The finding.


@pytest.mark.parametrize(
    ("sizes", "reserved", "expected"),
    [
        ((60, 30), 100, "60 % allocated in the forward pass"),
        ((20, 70), 100, "70 % allocated in the backward pass"),
        ((60, 30), 300, "200 MB reserved and unused at the peak"),
        ((1, 2), 100, ""),
    ],
)
def test_the_finding_names_the_largest_part_that_can_change(
    sizes: tuple[int, int], reserved: int, expected: str
) -> None:
    maker = TraceMaker()
    maker.launched("kernel", 0, 1000, correlation=1, at=0)
    maker.op("aten::mm", 0, 10)
    maker.op("autograd::engine::evaluate_function: MmBackward0", 20, 10)
    million = 1_000_000
    steps = [(1, sizes[0] * million, 1), (21, sizes[1] * million, 2)]
    before = (100 - sum(sizes)) * million
    analyzer = analyzed(recorded(steps, before, reserved=reserved * million), maker)
    findings = [f for f in analyzer.findings().findings if f.id == "memory-peak"]
    assert bool(findings) == bool(expected)
    for finding in findings:
        assert expected in finding.title
        assert finding.informs_only


@pytest.mark.parametrize(
    ("memory_bytes", "is_reported"), [(200_000_000, True), (2_000_000_000, False)]
)
def test_a_peak_that_uses_little_of_the_device_is_not_reported(
    memory_bytes: int, is_reported: bool
) -> None:
    maker = TraceMaker()
    maker.launched("kernel", 0, 1000, correlation=1, at=0)
    maker.op("aten::mm", 0, 10)
    events = recorded([(1, 100_000_000, 1)], 0, reserved=100_000_000)
    device = {"id": 0, "name": "card", "totalGlobalMem": memory_bytes}
    analyzer = analyzed(events, maker, deviceProperties=[device])
    identifiers = {finding.id for finding in analyzer.findings().findings}
    assert ("memory-peak" in identifiers) == is_reported
