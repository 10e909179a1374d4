"""Iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding, Place
from tracelens_ext.iterations.iterations import Iterations, find_iterations
from tracelens_ext.iterations.measured import (
    ODD_AT_LEAST,
    ODD_BEYOND,
    iteration_table,
    named_iterations,
    odd_among,
)
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS

if TYPE_CHECKING:
    from tracelens_ext.findings.inspection import Inspection
    from tracelens_ext.trace import BoolArray, Float64Array, Int64Array, IntArray
    from tracelens_ext.work.lanes import Gaps


_WALL = "wall_time_ms"
_NOT_PARTS = ("iteration", "process", "device", "start_ms", _WALL, "busy_time_ms")
_NOT_PARTS += ("kernels", "whole", "odd")


def slow_iterations(inspection: Inspection) -> Finding | None:
    """Iterations that take longer than the others, for no reason found elsewhere."""
    work, wall = inspection.work, inspection.wall
    steps = find_iterations(work.tree)
    lengths = (steps.end - steps.start)[steps.whole].astype(np.float64)
    if not (len(lengths) and odd_among(lengths)[0].any()):
        return None
    frame = iteration_table(work).frame
    whole = frame[frame["whole"]]
    is_odd = np.array([_WALL in odd.split(", ") for odd in whole["odd"]], dtype=bool)
    slow = whole[is_odd & (whole[_WALL] > whole[_WALL].median()).to_numpy()]
    if not len(slow):
        return None
    iterations, labels, _ = named_iterations(work.tree, None)
    of_gpu = iterations.started_in  # as what an iteration took is the time between two moments
    of_gap = _iteration_of_gap(iterations, wall.classified.gaps)
    size = len(iterations)
    devices = np.zeros((len(wall.lanes), size + 1))
    devices[wall.lanes.of_gpu, of_gpu] = 1
    count = devices[:, :-1].sum(axis=0).clip(1)  # that work for each iteration: times are means
    claimed = np.zeros(size)
    for start, end, _, gap, event, _ in (claim.intervals for claim in wall.claims):
        of = np.where(event != NONE, of_gpu[event], np.append(of_gap, NONE)[gap])
        claimed += _sums(of, end - start, size)
    unexplained = (iterations.end - iterations.start) - claimed / count
    named = np.isin(np.array(labels, dtype=object), slow["iteration"].to_numpy(dtype=object))
    excess = np.where(named, _odd_excess(unexplained, iterations.whole), 0.0)
    numbers = np.flatnonzero(excess).tolist()
    # An iteration cannot save more than what nobody has claimed of its GPU events and gaps.
    runs = wall.about(wall.free)
    alone = np.zeros(len(work))
    alone[runs.events] = runs.event_ns * len(wall.lanes)
    idle = wall.left_of_gaps().astype(np.float64)
    there = (_sums(of_gpu, alone, size) + _sums(of_gap, idle, size)) / count
    share = np.append(np.minimum(excess / np.maximum(there, 1.0), 1.0), 0.0)
    claim = wall.claim_idle_up_to((idle * share[of_gap]).astype(np.int64))
    claim = claim + wall.claim_events(wall.free & (share[of_gpu] > 0), share[of_gpu])
    part, more = _part(whole, slow)
    return inspection.finding(
        "slow-iterations",
        claim,
        title=f"{len(numbers)} of {len(labels)} iterations are slow, which costs {{saving}}"
        + (f"; most of it is {part}" if part else ""),
        evidence=[
            Evidence("median iteration", float(whole[_WALL].median()), "ms", "iterations"),
            Evidence("longest of the slow ones", float(slow[_WALL].max()), "ms", "iterations"),
            *([Evidence(f"more {part} than usual", more, "ms", "iterations")] if part else []),
        ],
        where={
            "iterations": [
                Place(labels[i], excess[i] / NS_PER_MS, 1)
                for i in sorted(numbers, key=lambda i: -excess[i])[:5]
            ]
        },
    )


def _odd_excess(unexplained: Float64Array, whole: BoolArray) -> Float64Array:
    """What no finding explains of each iteration beyond the usual, 0 where that is not odd, (k,).

    Other findings may explain all that makes an iteration odd.
    """
    usual = float(np.median(unexplained[whole]))
    excess = unexplained - usual
    spread = float(np.median(np.abs(excess[whole])))
    return np.where(excess > max(ODD_BEYOND * spread, ODD_AT_LEAST * usual), excess, 0.0)


def _iteration_of_gap(iterations: Iterations, gaps: Gaps) -> Int64Array:
    """The iteration in which the larger part of each gap lies, as far as events tell, (k,)."""
    before, after = (iterations.started_in[events] for events in (gaps.before, gaps.after))
    middle = (gaps.start + gaps.end) // 2
    sooner = (before != NONE) & (after != NONE) & (middle < iterations.start[after])
    return np.where(sooner, before, after)


def _sums(of: Int64Array, values: IntArray | Float64Array, size: int) -> Float64Array:
    known = of != NONE
    return np.bincount(of[known], values[known], size).astype(np.float64)


def _part(whole: pd.DataFrame, slow: pd.DataFrame) -> tuple[str, float]:
    """The measured part that made them slow, in words, and by how much, ms."""
    parts = [c for c in whole if c not in _NOT_PARTS]
    usual = whole.drop(slow.index)[parts].median()
    more = (slow[parts] - usual).sum()
    if not len(more) or not more.max() > 0:
        return "", 0.0
    name = str(more.idxmax())
    return name.removesuffix("_ms").replace("_", " "), float(more.max())
