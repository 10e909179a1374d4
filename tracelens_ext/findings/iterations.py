"""What iterations cost: those that are slow, what is computed again, and memory."""

from __future__ import annotations

import numpy as np

from tracelens_ext.analysis.iterations import measurement as measured
from tracelens_ext.analysis.iterations.selection import (
    Iterations,
    find_iterations,
    named_iterations,
)
from tracelens_ext.analysis.memory.events import HOST, has_memory_events
from tracelens_ext.analysis.memory.usage import find_memory, memory_at_peak, memory_peaks
from tracelens_ext.analysis.operations.recomputation import recomputed
from tracelens_ext.findings.attribution import MOST_PLACES, ranked
from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, BoolArray, Float64Array, Int64Array, IntArray
from tracelens_ext.trace.gpu_events import Gaps

_WALL = "wall_time_ms"
_NOT_PARTS = (
    "iteration",
    "process",
    "device",
    "start_ms",
    _WALL,
    "busy_time_ms",
    "kernels",
    "whole",
    "odd",
)


def slow_iterations(inspection: Inspection) -> Finding | None:
    """Iterations that take longer than the others, for no reason found elsewhere."""
    work = inspection.work
    wall = inspection.wall
    steps = find_iterations(work.tree)
    lengths = (steps.end - steps.start)[steps.whole].astype(np.float64)
    if not (len(lengths) and measured.odd_among(lengths)[0].any()):
        return None
    frame = measured.iteration_table(work).frame
    whole = frame[frame["whole"]]
    is_odd = np.array([_WALL in odd.split(", ") for odd in whole["odd"]], dtype=bool)
    slow = whole[is_odd & (whole[_WALL] > whole[_WALL].median()).to_numpy()]
    if not len(slow):
        return None
    iterations, labels, _ = named_iterations(work.tree, None)
    of_gpu = iterations.started_in  # as what an iteration took is the time between two moments
    of_gap = _iteration_of_gap(iterations, wall.classified.gaps)
    size = len(iterations)
    devices = np.zeros((len(wall.tracks), size + 1))
    devices[wall.tracks.of_gpu, of_gpu] = 1
    count = devices[:, :-1].sum(axis=0).clip(1)  # that work for each iteration: times are means
    claimed = np.zeros(size)
    for start, end, _, gap, event, _ in (claim.intervals for claim in wall.claims):
        of = np.where(event != NONE, of_gpu[event], np.append(of_gap, NONE)[gap])
        claimed += _sums(of, end - start, size)
    unexplained = (iterations.end - iterations.start) - claimed / count
    named = np.isin(np.array(labels, dtype=object), slow["iteration"].to_numpy(dtype=object))
    excess = np.where(named, _odd_excess(unexplained, iterations.whole), 0.0)
    numbers = np.flatnonzero(excess)
    # An iteration cannot save more than what nobody has claimed of its GPU events and gaps.
    runs = wall.about(wall.free)
    idle = wall.left_of_gaps().astype(np.float64)
    busy = _sums(of_gpu[runs.events], runs.event_ns * len(wall.tracks), size)
    there = (busy + _sums(of_gap, idle, size)) / count
    share = np.append(np.minimum(excess / np.maximum(there, 1.0), 1.0), 0.0)
    claim = wall.claim_idle_up_to((idle * share[of_gap]).astype(np.int64))
    claim = claim + wall.claim_events(wall.free & (share[of_gpu] > 0), share[of_gpu])
    part, more = _part(whole, slow)
    told = {"which": f"{len(numbers)} of {len(labels)} iterations are slow", "part": part}
    told["mostly"] = f"; most of it is {part}" if part else ""
    figures = float(whole[_WALL].median()), float(slow[_WALL].max()), more if part else None
    where = {"iterations": ranked(numbers, labels, excess[numbers])[:MOST_PLACES]}
    return inspection.finding("slow-iterations", claim, figures, where=where, told=told)


def _odd_excess(unexplained: Float64Array, whole: BoolArray) -> Float64Array:
    """What no finding explains of each iteration beyond the usual, 0 where that is not odd, (k,).

    Other findings may explain all that makes an iteration odd.
    """
    usual = float(np.median(unexplained[whole]))
    excess = unexplained - usual
    spread = float(np.median(np.abs(excess[whole])))
    least = max(measured.ODD_BEYOND * spread, measured.ODD_AT_LEAST * usual)
    return np.where(excess > least, excess, 0.0)


def _iteration_of_gap(iterations: Iterations, gaps: Gaps) -> Int64Array:
    """The iteration in which the larger part of each gap lies, as far as events tell, (k,)."""
    before = iterations.started_in[gaps.before]
    after = iterations.started_in[gaps.after]
    middle = (gaps.start + gaps.end) // 2
    sooner = (before != NONE) & (after != NONE) & (middle < iterations.start[after])
    return np.where(sooner, before, after)


def _sums(of: Int64Array, values: IntArray | Float64Array, size: int) -> Float64Array:
    return np.bincount(of + 1, values, size + 1)[1:].astype(np.float64)


def _part(whole: pd.DataFrame, slow: pd.DataFrame) -> tuple[str, float]:
    """The measured part that made them slow, in words, and by how much, ms."""
    parts = [c for c in whole if c not in _NOT_PARTS]
    more = (slow[parts] - whole.drop(slow.index)[parts].median()).sum()
    if not len(more) or not more.max() > 0:
        return "", 0.0
    return str(more.idxmax()).removesuffix("_ms").replace("_", " "), float(more.max())


def recompute(inspection: Inspection) -> Finding | None:
    """What activation checkpointing costs: time for memory, so it only informs."""
    again = inspection.wall.about(recomputed(inspection.work))
    return inspection.finding("recompute", again, [again.saving_ms])


_MEGABYTE = 1e6
#: A part of the peak below this, percent, is not worth a change.
_LEAST_PERCENT = 5.0
#: Nor is what was reserved at the peak below this share of the device's memory, percent, where
#: that is known.
_LEAST_OF_DEVICE = 30.0
_MOST_OWNERS = 3  # operations that are named
#: The phases and what is reserved without being in use, as in `texts.toml`.
_PARTS = "forward", "backward", "optimizer", "unused"


def memory_peak(inspection: Inspection) -> Finding | None:
    """What the most memory was allocated for, and what to change to need less."""
    if not has_memory_events(inspection.work.trace):
        return None
    memory = find_memory(inspection.work.tree)
    peaks = memory_peaks(memory).dropna(subset="peak_allocated_bytes")
    peaks = peaks[peaks["device"] != HOST].fillna({"unused_at_peak_bytes": 0})
    if not len(peaks):
        return None
    row = peaks.nlargest(1, "peak_allocated_bytes").iloc[0]
    peak = int(row["peak_allocated_bytes"])
    unused = int(row["unused_at_peak_bytes"])
    device = int(row["device"])
    held = peak + unused
    described = inspection.work.trace.described(device)
    if described and 100.0 * held < _LEAST_OF_DEVICE * described.memory_bytes:
        return None
    alive = memory_at_peak(memory)
    alive = alive[alive["device"] == device]
    parts = alive.groupby("phase")["bytes"].sum().to_dict() | {"unused": unused}
    owners = alive[alive["outer_operation"] != ""].groupby("outer_operation", sort=False)["bytes"]
    sizes = {part: int(parts.get(part, 0)) for part in _PARTS}
    largest = max(sizes, key=lambda part: sizes[part])
    share = 100.0 * sizes[largest] / max(peak, 1)
    if share < _LEAST_PERCENT:
        return None
    numbers = [size / _MEGABYTE for size in (peak, *sizes.values())]
    told = {"peak": numbers[0], "device": device, "size": max(numbers[1:]), "part": share}
    owned = [
        Evidence(f"of it by {name}", size / _MEGABYTE, "MB", "memory_at_peak")
        for name, size in owners.sum().nlargest(_MOST_OWNERS).items()
    ]
    return inspection.finding(
        "memory-peak", None, numbers, variant=largest, evidence=owned, told=told
    )
