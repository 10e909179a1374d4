"""Memory: peaks, what was alive at them, who allocated it, against a plain loop over the events."""

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
from tracelens_ext.analysis.memory.events import read_memory_events
from tracelens_ext.analysis.memory.usage import BEFORE, LOST, memory_notes
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
#: The columns of `memory_peaks` that the exact figures have too.
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
    args = {
        "Device Type": CUDA if device >= 0 else HOST,
        "Device Id": device,
        "Addr": address,
    }
    args |= {"Bytes": size}
    args |= {} if total is None else {"Total Allocated": total}
    args |= (
        {} if reserved is None else {"Total Reserved": reserved if device >= 0 else 0}
    )
    event = {
        "ph": "i",
        "s": "t",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "args": args,
    }
    return event | {"pid": PROCESS, "tid": thread, "ts": ts}


def recorded(
    steps: Iterable[tuple[float, int, int]], before: int = 0, **more: Any
) -> list[Event]:
    """Events of (time, bytes, address), with the totals that an allocator would tell."""
    events = []
    for ts, size, address in steps:
        before += size
        events.append(memory_event(ts, size, address, before, **more))
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
    """The only row with these values."""
    for column, value in equal.items():
        table = table[table[column] == value]
    (found,) = table.to_dict("records")
    return {str(column): value for column, value in found.items()}


# Levels and blocks.


@st.composite
def histories(draw: Callable[[st.SearchStrategy[Any]], Any]) -> list[Event]:
    """What allocators of some devices did, on few addresses, and of it what was not lost."""
    older = {device: draw(st.integers(0, 1000)) for device in (-1, 0, 3)}
    totals = dict(older)
    alive: dict[tuple[int, int], int] = {}
    events = []
    clock = 0
    for _ in range(draw(st.integers(0, 40))):
        clock += draw(st.sampled_from([0, 0, 1, 5]))
        key = draw(st.sampled_from([-1, 0, 0, 3])), draw(st.integers(1, 4))
        size = alive.pop(key, 0)
        if size:
            change = -size
        elif older[key[0]] > 50 and draw(st.integers(0, 5)) == 0:
            change = -draw(st.integers(1, 50))
            older[key[0]] += change
        else:
            change = alive[key] = draw(st.integers(1, 100))
        totals[key[0]] += change
        told = totals[key[0]]
        events.append(memory_event(clock, change, key[1] << 40, told, device=key[0]))
    if draw(st.booleans()):
        events = [event for event in events if draw(st.integers(0, 5))]
    return events


def counted(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The exact figures of each device, by a loop."""
    rows = []
    for device in sorted({event["args"]["Device Id"] for event in events}):
        ours = sorted(
            (event for event in events if event["args"]["Device Id"] == device),
            key=lambda event: event["ts"],
        )
        sizes = [event["args"]["Bytes"] for event in ours]
        totals = [event["args"]["Total Allocated"] for event in ours]
        at = totals.index(max(totals))
        alive: dict[int, int] = {}
        at_peak: dict[int, int] = {}
        older_freed = 0
        older_at_peak = totals[0] - sizes[0]
        for place, event in enumerate(ours):
            address = event["args"]["Addr"]
            size = event["args"]["Bytes"]
            if size > 0:
                alive[address] = size
            elif alive.pop(address, None) is None:
                older_freed += 1
                older_at_peak += size if place <= at else 0
            if place == at:
                at_peak = dict(alive)
        gained, freed = (
            [size for size in sizes if sign * size > 0] for sign in (1, -1)
        )
        steps = zip(totals, sizes[1:], totals[1:], strict=False)
        rows.append(
            {
                "device": device,
                "events": len(ours),
                "allocations": len(gained),
                "frees": len(freed),
                "allocated_bytes": sum(gained),
                "freed_bytes": -sum(freed),
                "peak_allocated_bytes": totals[at],
                "peak_at_ms": ours[at]["ts"] / 1000,
                "peak_reserved_bytes": max(
                    event["args"]["Total Reserved"] for event in ours
                ),
                "end_total_bytes": totals[-1],
                "alive_at_end": len(alive),
                "alive_at_end_bytes": sum(alive.values()),
                "older_frees": older_freed,
                "breaks": sum(total + size != then for total, size, then in steps),
                "alive at peak": sum(at_peak.values()),
                "older at peak": older_at_peak,
            }
        )
    return rows


@given(histories())
@settings(max_examples=40)
def test_every_figure_is_that_of_a_plain_loop(events: list[Event]) -> None:
    analyzer = analyzed(events)
    peaks = analyzer.get_df_memory_peaks()
    alive = analyzer.get_df_memory_at_peak()
    expected = counted(events)
    assert len(peaks) == len(expected)
    for found, exact in zip(peaks.to_dict("records"), expected, strict=True):
        assert {column: found[column] for column in exact if column in found} == {
            column: exact[column] for column in exact if column in found
        }
        ours = alive[alive["device"] == exact["device"]]
        assert ours["bytes"].sum() == exact["peak_allocated_bytes"]
        unseen = ours["operation"].isin([BEFORE, LOST])
        assert ours["bytes"][~unseen].sum() == exact["alive at peak"]
        assert (
            ours["bytes"][ours["operation"] == BEFORE].sum() == exact["older at peak"]
        )
        assert exact["breaks"] or not (ours["operation"] == LOST).any()


@given(histories())
@settings(max_examples=40)
def test_without_totals_there_are_changes_and_no_levels(events: list[Event]) -> None:
    for event in events:
        del event["args"]["Total Allocated"], event["args"]["Total Reserved"]
    analyzer = analyzed(events)
    peaks = analyzer.get_df_memory_peaks()
    alive = analyzer.get_df_memory_at_peak()
    unknown = ["peak_allocated_bytes", "end_total_bytes", "peak_reserved_bytes"]
    assert peaks[unknown].isna().all(axis=None)
    assert not alive["operation"].isin([BEFORE, LOST]).any()
    sizes = [event["args"]["Bytes"] for event in events]
    assert peaks["allocated_bytes"].sum() - peaks["freed_bytes"].sum() == sum(sizes)
    told = " ".join(memory_notes(analyzer.memory()))
    assert told.count("has no totals for") == len(peaks)


def test_a_total_that_is_missing_is_made_up_from_those_around_it() -> None:
    totals = [None, 130, None, None, 100]
    sizes = [10, 20, 5, -5, -30]
    events = [
        memory_event(at, size, at, total)
        for at, (size, total) in enumerate(zip(sizes, totals, strict=True))
    ]
    found = read_memory_events(analyzed(events).trace)
    assert found.level.tolist() == [110, 130, 135, 130, 100]
    assert found.breaks.tolist() == [0]


def test_lost_events_are_told_and_what_they_would_explain_has_a_row() -> None:
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


def test_events_without_size_or_address_do_not_count_and_are_told() -> None:
    events = recorded([(0, 100, 1), (1, -100, 1)])
    bad = [memory_event(2, 5, 2, 5) for _ in range(4)]
    del bad[0]["args"]["Bytes"], bad[1]["args"]["Addr"]
    bad[2]["args"]["Bytes"] = 1 << 60
    bad[3]["args"]["Bytes"] = "many"
    analyzer = analyzed([*events, *bad])
    assert row(analyzer.get_df_memory_peaks())["events"] == 2
    assert any(
        "4 memory events without a valid size" in n
        for n in memory_notes(analyzer.memory())
    )


def test_a_trace_of_unusable_events_has_empty_tables() -> None:
    event = memory_event(0, 1, 1, 1)
    del event["args"]["Bytes"]
    report = build_perf_report(analyzed([event]))
    for name in ("memory_peaks", "memory_at_peak", "memory_by_operation"):
        assert not len(report.sheets[name])


def test_unused_memory_and_growth() -> None:
    maker = TraceMaker()
    for step in (1, 2, 3):
        maker.annotation(f"ProfilerStep#{step}", 100 * step, 90)
    steps = [(100 * n + 10 * i, 100, 10 * n + i) for n in (1, 2, 3) for i in range(2)]
    found = row(analyzed(recorded(steps, reserved=1000), maker).get_df_memory_peaks())
    assert found["unused_at_peak_bytes"] == 1000 - 600
    assert found["most_unused_bytes"] == 1000 - 100
    assert found["change_per_iteration_bytes"] == 200
    assert found["peak_iteration"] == "ProfilerStep#3"


# Who allocated it.


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
    found = {
        size: (phase, operation, outer, module, frame)
        for size, phase, operation, outer, module, frame in zip(
            alive["bytes"].tolist(),
            *(alive[c] for c in ("phase", "operation", "outer_operation", "module")),
            alive["python_frame"],
            strict=True,
        )
        if operation not in (BEFORE, LOST)
    }
    inside = "Net/Linear", "train.py(10): step"
    assert found == {
        1: ("forward", "aten::empty", "aten::linear", *inside),
        2: ("forward", "aten::linear", "aten::linear", *inside),
        4: ("backward", "aten::mm", node, *inside),
        8: ("optimizer", "aten::add_", "aten::add_", "", inside[1]),
        16: ("", "(no operation)", "(no operation)", "", inside[1]),
    }


def test_churn_lifetimes_and_what_stays() -> None:
    maker = TraceMaker()
    for step in (1, 2, 3):
        maker.annotation(f"ProfilerStep#{step}", 100 * step, 90)
        maker.op("aten::mm", 100 * step + 10, 20)
        maker.op("leak", 100 * step + 40, 20)
    steps = [
        step
        for n in (1, 2, 3)
        for step in [
            (100 * n + 12, 64, 7),  # freed within
            (100 * n + 22, -64, 7),
            (100 * n + 14, 32, 8),  # freed later
            (100 * n + 50, -32, 8),
            (100 * n + 45, 16, 100 + n),
        ]
    ]
    steps.sort()
    steps.append((450, 1, 9))  # after the last iteration
    table = analyzed(recorded(steps), maker).get_df_memory_by_operation()
    mm = row(table, operation="aten::mm")
    leak = row(table, operation="leak")
    assert [mm[c] for c in ("allocations", "allocated_bytes", "largest_bytes")] == [
        6,
        288,
        64,
    ]
    assert (mm["frees"], mm["frees_within_operation"], mm["mean_lifetime_us"]) == (
        6,
        3,
        23.0,
    )
    assert (mm["kept"], leak["frees"]) == (0, 0)
    assert np.isnan(leak["mean_lifetime_us"])
    # That of the last iteration has not outlived another one.
    assert [leak[c] for c in ("kept", "kept_bytes", "kept_from_iterations")] == [
        2,
        32,
        2,
    ]


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


# Where it is kept and shown.


def test_traces_without_memory_events_have_no_such_sheets() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 5)
    maker.add(
        {"ph": "i", "name": "mark", "ts": 1, "pid": 1, "tid": 1, "args": {"Addr": 5}}
    )
    report = build_perf_report(TreePerfAnalyzer(maker.document()))
    assert not [name for name in report.sheets if name.startswith("memory")]


def test_the_cache_gives_memory_events_back(cache: TraceCache, tmp_path: Path) -> None:
    import json

    maker = TraceMaker()
    maker.op("aten::mm", 0, 50)
    for event in recorded([(1, 100, 1 << 46), (2, -100, 1 << 46)], before=1 << 34):
        maker.add(event)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(maker.document()))
    read, kept = (read_memory_events(read_trace(path, cache=cache)) for _ in range(2))
    for name in ("time", "size", "address", "total", "reserved", "devices"):
        assert np.array_equal(getattr(read, name), getattr(kept, name)), name


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
        for found, figures in zip(peaks.to_dict("records"), expected, strict=True):
            assert {c: str(found[c]) for c in EXACT} == {
                c: figures[c] for c in EXACT
            }, trace
            assert str(found["older_frees"]) == figures["freed_unseen"]
            assert not found["breaks"]
            ours = alive[alive["device"] == found["device"]]
            assert ours["bytes"].sum() == found["peak_allocated_bytes"]
            assert LOST not in set(ours["operation"])
            before = int(figures["first_total_bytes"]) - _first_size(
                analyzer, found["device"]
            )
            unseen = ours["bytes"][ours["operation"] == BEFORE].sum()
            assert unseen == before or int(figures["freed_unseen"])


def _first_size(analyzer: TreePerfAnalyzer, device: int) -> int:
    events = read_memory_events(analyzer.trace)
    return int(events.size[events.first[events.devices.tolist().index(device)]])


# The finding.


@pytest.mark.parametrize(
    ("sizes", "reserved", "told"),
    [
        ((60, 30), 100, "60 % allocated in the forward pass"),
        ((20, 70), 100, "70 % allocated in the backward pass"),
        ((60, 30), 300, "200 MB reserved and unused at the peak"),
        ((1, 2), 100, ""),
    ],
)
def test_the_finding_names_the_largest_part_that_can_change(
    sizes: tuple[int, int], reserved: int, told: str
) -> None:
    maker = TraceMaker()
    maker.launched("kernel", 0, 1000, correlation=1, at=0)
    maker.op("aten::mm", 0, 10)
    maker.op("autograd::engine::evaluate_function: MmBackward0", 20, 10)
    million = 1_000_000
    steps = [(1, sizes[0] * million, 1), (21, sizes[1] * million, 2)]
    before = (100 - sum(sizes)) * million
    analyzer = analyzed(recorded(steps, before, reserved=reserved * million), maker)
    found = [f for f in analyzer.findings().findings if f.id == "memory-peak"]
    assert bool(found) == bool(told)
    for finding in found:
        assert told in finding.title
        assert finding.informs_only


def test_a_peak_of_a_small_share_of_the_device_is_not_worth_the_word() -> None:
    for size, told in ((200_000_000, True), (2_000_000_000, False)):
        maker = TraceMaker()
        maker.launched("kernel", 0, 1000, correlation=1, at=0)
        maker.op("aten::mm", 0, 10)
        document = recorded([(1, 100_000_000, 1)], 0, reserved=100_000_000)
        device = [{"id": 0, "name": "card", "totalGlobalMem": size}]
        found = analyzed(document, maker, deviceProperties=device).findings().findings
        assert any(each.id == "memory-peak" for each in found) == told
