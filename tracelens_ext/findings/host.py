"""What the host does while the GPU is idle."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.coverage import compilations, instantiations, slow_regions
from tracelens_ext.analysis.idle_time import causes
from tracelens_ext.analysis.idle_time.causes import Cause
from tracelens_ext.analysis.idle_time.cpu_activity import HostIntervals, innermost_segments
from tracelens_ext.analysis.memory.events import has_memory_events
from tracelens_ext.analysis.memory.usage import find_memory, memory_by_operation
from tracelens_ext.findings.attribution import around, frames_around
from tracelens_ext.findings.finding import Claim, Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.text import ms_text
from tracelens_ext.trace import LAUNCH_KINDS, NS_PER_MS, NS_PER_US, EventKind, Int64Array
from tracelens_ext.trace.grouping import sums
from tracelens_ext.trace.intervals import covered, distinct
from tracelens_ext.trace.launches import captures, find_launches

#: PyTorch's own annotation around each `next()` of a data loader's iterator, and the frame of it.
_NEXT = re.compile(
    r"enumerate\(DataLoader\)#|(?:.*[/\\])?(?:torch[/\\]utils[/\\]data[/\\])?dataloader\.py"
    r"\(\d+\): __next__"
)
_SINGLE_PROCESS = re.compile(r"enumerate\(DataLoader\)#_SingleProcess|.*_SingleProcess")


def dataloader(inspection: Inspection) -> Finding | None:
    """The GPU is idle while the host waits for, or makes, the next batch."""
    kinds = EventKind.CPU_OP, EventKind.USER_ANNOTATION, EventKind.PYTHON_FUNCTION
    rows = inspection.host_rows(_NEXT, *kinds)
    claim = inspection.wall.claim_idle_during(rows)
    rows = inspection.rows_in(claim, rows)
    numbers = len(rows), inspection.host_ms(rows), claim.saving_ms
    variant = "single" if len(inspection.host_rows(_SINGLE_PROCESS, *kinds[:2])) else "workers"
    return inspection.finding("dataloader", claim, numbers, variant=variant)


#: Calls of the CUDA and HIP runtimes and drivers that allocate, map or free memory.
_CALLS = re.compile(
    r"(?:cuda|hip|cu)(?:(?:Ext)?(?:Host)?(?:Malloc|Free|MemAlloc|MemFree|Alloc)"
    r"|Mem(?:Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree|HostAlloc)"
    r"|HostRegister|HostUnregister)"
)


def allocator(inspection: Inspection) -> Finding | None:
    """The GPU is idle while the host asks the driver for memory, or gives it back."""
    rows = inspection.host_rows(_CALLS, *LAUNCH_KINDS)
    claim = inspection.wall.claim_idle_during(rows)
    if not inspection.is_worth(claim):
        return None
    rows = inspection.rows_in(claim, rows)
    churn = None
    tree = inspection.work.tree
    if has_memory_events(tree.trace):
        churn = float(memory_by_operation(find_memory(tree))["frees_within_operation"].sum())
    numbers = len(rows), inspection.host_ms(rows), claim.saving_ms, churn
    return inspection.finding("allocator", claim, numbers)


def synchronisation(inspection: Inspection) -> Finding | None:
    """Idle time after a wait of the host, at most what it waited: by so much it would be ahead."""
    wall = inspection.wall
    work = inspection.work
    synchronising = wall.classified.synchronizing_call
    after = wall.claim_idle_after(synchronising)
    claim = after + wall.claim_idle_during(causes.blocking_calls(work))
    asking = synchronising[after.intervals.gap]
    calls = np.unique(asking)
    numbers = len(calls), inspection.host_ms(calls), after.saving_ms
    where = {"operations": around(work, (EventKind.CPU_OP,), asking, after.ns)}
    where["python_frames"] = frames_around(work, asking, after.ns)
    return inspection.finding("synchronisation", claim, numbers, where=where)


#: Operations, and what is no phase: neither what waits for others, nor what has its own detector.
_OPERATION: Final = re.compile(r"(?!(?:c10d|gloo|mpi|autograd|profiler)\b)\w+::\w")
_NO_PHASE: Final = re.compile(
    r"ProfilerStep#|enumerate\(|(?:c10d|gloo|nccl|rccl|mpi)\b|.*(?i:compile|barrier|wait)"
)
#: One this long keeps no queue of launches busy: ns, or percent of what is judged; and at least.
_LONGEST_NS = 20_000_000
_LONG_PERCENT = 2.0
_SHORT_NS = 100_000
#: An operation of more operations than that does not compute itself: views of many tensors, say.
_MOST_PARTS: Final = 16


def cpu_operation(inspection: Inspection) -> Finding | None:
    """Long operations and phases of the CPU whose thread starts and awaits no GPU work in them."""
    trace = inspection.work.trace
    work = inspection.work
    long = min(_LONGEST_NS, max(_SHORT_NS, inspection.judged_ns * _LONG_PERCENT / 100))
    ops = inspection.host_rows(_OPERATION, EventKind.CPU_OP)
    ops = ops[trace.dur[ops] >= long]
    parts = inspection.held_by(ops, trace.rows_of(EventKind.CPU_OP))
    phases = trace.rows_of(EventKind.USER_ANNOTATION)
    phases = phases[~trace.named(trace.name[phases], _NO_PHASE.match)]
    rows = np.append(ops[parts <= _MOST_PARTS], phases[trace.dur[phases] >= long])
    others = [causes.blocking_calls(work), compilations(trace), slow_regions(trace)]
    alone = inspection.held_by(rows, np.concatenate([*others, captures(trace)[0]])) == 0
    rows = rows[alone & ~inspection.starts_work(rows)]
    claim = inspection.claim(lambda wall: wall.claim_idle_during(rows))
    rows = inspection.rows_in(claim, rows)
    if not len(rows):
        return None
    longest = trace.name_of(int(rows[trace.dur[rows].argmax()]))
    if len(rows) > 1:
        longest += f" (of {len(rows):,} such)"
    return inspection.finding("cpu-operation", claim, [len(rows)], told={"longest": longest})


def recompilation(inspection: Inspection) -> Finding | None:
    """The GPU is idle while the host compiles what ran before."""
    trace = inspection.work.trace
    rows = np.append(compilations(trace), slow_regions(trace))
    # The first time is start-up, and not judged, as that of a capture.
    claim = inspection.claim(lambda wall: wall.claim_idle_during(rows))
    return inspection.finding("recompilation", claim, [len(rows)])


def graph_recapture(inspection: Inspection) -> Finding | None:
    """The GPU is idle while the host captures a graph again."""
    trace = inspection.work.trace
    launched = int(find_launches(inspection.work).is_graph.sum())
    (begins, ends) = captures(trace)
    calls = instantiations(trace)
    rows = np.append(begins, calls)
    until = trace.end_of(np.append(ends, calls))
    claim = inspection.claim(lambda wall: wall.claim_idle_during(rows, until))
    return inspection.finding("graph-recapture", claim, [len(begins), launched])


#: Where the host is, as in `texts.toml`.
_PARTS: Final = "launching", "operations", "python", "calls", "phases"
_RECORDER: Final = "; recording may be {:.0f} % of the host's time, see profiler-overhead"
_LONG_NS: Final = 1_000_000
#: So many gaps (and a tenth of the GPU events) at most are a few; of lengths within such a factor.
_FEW = 20
_ALIKE = 10


def host_bound(inspection: Inspection) -> Finding | None:
    """The GPU is idle because the host launches too slowly."""
    wall = inspection.wall
    idle = wall.idle
    length = wall.idle.end - wall.idle.start
    late = np.isin(
        idle.cause, (Cause.HOST.code, Cause.LAUNCH_OVERHEAD.code, Cause.SYNCHRONIZATION.code)
    )
    # Why something starts late that was launched long before is not known, unless the host, too,
    # stood still.
    late |= wall.may_wait(idle) & wall.nothing_launched[idle.gap]
    holes = wall.mean_ms(length[late & (idle.cause == Cause.LAUNCH_OVERHEAD.code)]) * NS_PER_MS
    claim = wall.claim_idle(late)
    if not inspection.is_worth(claim):
        return None
    gaps, number = np.unique(claim.intervals.gap, return_inverse=True)
    lasts = sums(number, claim.intervals.end - claim.intervals.start, len(gaps))
    split = _split(inspection, claim)
    of_gap = np.sort(lasts)[::-1]
    half = float(of_gap[np.searchsorted(np.cumsum(of_gap), of_gap.sum() / 2)])
    recorder = _recorder_percent(inspection)
    lead, share, large = _lead(of_gap, min(_FEW, len(inspection.work) / 10), split)
    said = _RECORDER.format(recorder) if recorder else ""
    told = {"part": share, "large": large, "recorder": said}
    numbers = len(gaps), half / NS_PER_US, holes / NS_PER_MS, *(ms or None for ms in split)
    variant = "holes" if holes > claim.saving_ns / 2 else lead
    return inspection.finding("host-bound", claim, numbers, variant=variant, told=told)


def _split(inspection: Inspection, claim: Claim) -> list[float]:
    """What the host was in during a claim, ms: `_PARTS`."""
    trace = inspection.work.trace
    (start, end, _, gap, _, thread) = claim.intervals
    moments = innermost_segments(
        trace, (EventKind.CPU_OP, *LAUNCH_KINDS), HostIntervals(thread, start, end)
    )
    row = moments.row
    its = moments.during(thread, start, end)
    ns = its.of_segment
    left = end - start - its.of_interval
    if not ns.any():  # no operation and call is recorded
        return [0.0] * len(_PARTS)
    launches = (trace.kind[row] != EventKind.CPU_OP) | inspection.starts_work(row)
    _, number = np.unique(gap, return_inverse=True)
    long = np.bincount(number, left)[number] >= _LONG_NS
    operations = inspection.is_of_pytorch and trace.count_of(EventKind.CPU_OP) > 0
    short = left[~long]
    none = left[:0]
    between, unknown = (short, none) if operations else (none, short)
    parts = ns[launches], ns[~launches], between, unknown, left[long]
    return [*map(inspection.wall.mean_ms, parts)]


def _lead(of_gap: Int64Array, few: float, split: Sequence[float]) -> tuple[str, float, str]:
    """The largest part of a claim: a few long gaps that make most of it, or what it is in.

    What it is called in `texts.toml`, its share, percent, and those gaps in words.
    """
    large = of_gap[of_gap >= max(_LONG_NS, of_gap[0] / _ALIKE)]
    share = 100 * large.sum() / of_gap.sum()
    if 0 < len(large) <= few and share >= 50:
        first, last = (ms_text(ns / NS_PER_MS) for ns in (large[-1], large[0]))
        sizes = last if first == last else f"{first.removesuffix(' ms')} to {last}"
        one = f"1 gap of {sizes} makes"
        return "few", share, one if len(large) == 1 else f"{len(large)} gaps of {sizes} make"
    most = int(np.argmax(split))
    return _PARTS[most], 100 * split[most] / max(sum(split), 1e-9), ""


#: What recording one is taken to cost, ns: a Python frame, an operation with shapes.
_COSTS: Final = {"stacks": (EventKind.PYTHON_FUNCTION, 500), "shapes": (EventKind.CPU_OP, 1_000)}
#: What of the host's time is worth telling, where the GPU is idle for so much, percent.
_WORTH = 10.0
_WAITS = 5.0


def _recorder_percent(inspection: Inspection) -> float:
    """What recording may be of the time of the launching threads; 0 for what is not worth telling.

    Nor does it matter where the GPU is hardly idle.
    """
    trace = inspection.work.trace
    wall = inspection.wall
    linked = inspection.work.tree.linked
    pieces = wall.classified.intervals
    total = 0
    waits = wall.mean_ms((pieces.end - pieces.start)[pieces.cause < Cause.NOT_RECORDED.code])
    threads = np.unique(trace.thread[inspection.work.tree.launch_of_gpu[linked]])
    for what, (kind, cost) in _COSTS.items():
        if what not in inspection.missing:
            rows = trace.rows_of(kind)
            rows = rows[(trace.ts[rows] >= wall.start) & (trace.ts[rows] < wall.end)]
            total += cost * int(np.isin(trace.thread[rows], threads).sum())
    percent = min(100.0 * total / max(len(threads) * wall.total_ns, 1), 100.0)
    told = percent >= _WORTH and 100 * NS_PER_MS * waits >= _WAITS * inspection.judged_ns
    return percent if told else 0.0


def profiler_overhead(inspection: Inspection) -> Finding | None:
    """How much of the host's time recording stacks and shapes may be."""
    if not (percent := _recorder_percent(inspection)):
        return None
    return inspection.finding("profiler-overhead", None, [percent], told={"percent": percent})


#: A launch that does not block takes a few microseconds; so many, and of the judged time, are told.
_BLOCKED_NS = 50_000
_FEWEST = 4
_LEAST = 0.05
_BUSY: Final = 0.9  # of a launch that blocks, at least


def full_launch_queue(inspection: Inspection) -> Finding | None:
    """Launches take long as the queue is full: the GPU limits, not the host."""
    work = inspection.work
    trace = inspection.work.trace
    device_index = inspection.wall.tracks.of_gpu
    launches = find_launches(work)
    events = np.flatnonzero(np.isin(work.tree.launch_of_gpu, launches.rows[launches.is_kernel]))
    events = events[np.argsort(work.start[events], kind="stable")]
    _, first = np.unique(work.name[events], return_index=True)
    events = np.delete(events, first)  # the first of a kernel loads its code
    calls = work.tree.launch_of_gpu[events]
    waits = (trace.dur[calls] >= _BLOCKED_NS) & (work.start[events] > trace.end_of(calls))
    events = events[waits]
    calls = calls[waits]
    device_of_call = device_index[events]
    calls_under_busy_device = [calls[:0]]
    for device in np.unique(device_of_call).tolist():
        on_device = device_index == device
        blocked = calls[device_of_call == device]
        busy_ns = covered(
            work.start[on_device], work.end[on_device], trace.ts[blocked], trace.end_of(blocked)
        )
        calls_under_busy_device.append(blocked[busy_ns >= _BUSY * trace.dur[blocked]])
    # One call may launch on several devices.
    calls = distinct(np.concatenate(calls_under_busy_device))
    time = int(trace.dur[calls].sum())
    if len(calls) < _FEWEST or time < _LEAST * inspection.judged_ns:
        return None
    said = f"{time / len(calls) / NS_PER_US:,.0f} µs on average, {ms_text(time / NS_PER_MS)} in all"
    told = {"calls": len(calls), "told": said}
    return inspection.finding("full-launch-queue", None, [len(calls)], told=told)
