"""Iterations that take longer than the others for a reason that no other finding explains."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.coverage.coverage import coverage_of
from tracelens_ext.analysis.iterations import measurement as measured
from tracelens_ext.analysis.iterations.iterations import Iterations, find_iterations
from tracelens_ext.analysis.iterations.named_iterations import named_iterations
from tracelens_ext.findings.attribution import MOST_PLACES, ranked
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Claim, Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.texts import EvidenceText, FindingText, Remedy
from tracelens_ext.findings.wall_time import WallTime
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, BoolArray, Float64Array, Int64Array, IntArray
from tracelens_ext.trace.gpu_events import Gaps, GpuEvents
from tracelens_ext.trace.lookup import values_at

TEXT: Final = FindingText(
    title="{which}: {saving}{mostly}",
    advice=(
        "Compare a slow iteration with its neighbor, on the page or with `tree`: other shapes "
        "(pad the batches), compilation, checkpoints, evaluation or garbage collection are "
        "common causes."
    ),
    reason="what they take beyond the median, less what other findings explain",
    evidence={
        "median_ms": EvidenceText("median iteration", "ms", "iterations"),
        "longest_ms": EvidenceText("longest of the slow ones", "ms", "iterations"),
        "part_ms": EvidenceText("more {part} than usual", "ms", "iterations"),
        "median_launched_ms": EvidenceText(
            "GPU time of the work that a usual iteration launches", "ms", "iterations"
        ),
        "longest_launched_ms": EvidenceText(
            "of the work that a slow one launches", "ms", "iterations"
        ),
        "more_kernels": EvidenceText(
            "more in a slow iteration than usual", "kernels", "iterations"
        ),
    },
    least_share=0.5,
)

_WALL: Final = "wall_time_ms"
#: The GPU time of the work that an iteration launched, no matter when it ran.
_LAUNCHED: Final = "launched_time_ms"
_KERNELS: Final = "kernels"
#: Columns of the iteration table that are not a part of an iteration's time.
_NOT_PARTS: Final = (
    "iteration",
    "process",
    "device",
    "start_ms",
    _WALL,
    "busy_time_ms",
    _LAUNCHED,
    _KERNELS,
    "whole",
    "odd",
)


@detector("slow-iterations", TEXT, remedy=Remedy.REMOVES_EXTRA_LAUNCHES)
def slow_iterations(inspection: Inspection) -> Finding | None:
    """Detect iterations that take longer than the others for an unexplained reason.

    They are slow by wall time, or by the GPU time of the work that they launched. If the CPU runs
    ahead of the GPU, only the latter shows that they are slow.
    """
    gpu_events = inspection.gpu_events
    wall = inspection.wall
    slow = _slow_rows(gpu_events)
    if slow is None:
        return None
    iterations, labels, _ = named_iterations(gpu_events.tree, None)
    names = np.array(labels, dtype=object)
    # An iteration with work that is set aside, such as benchmarks of kernels, is not comparable.
    set_aside = coverage_of(gpu_events).is_set_aside(gpu_events)
    iterations_set_aside = iterations.of_gpu[set_aside]
    is_usual = ~np.isin(np.arange(len(names)), iterations_set_aside)
    names_by_wall = slow.by_wall["iteration"].to_numpy(object)
    is_slow = is_usual & np.isin(names, names_by_wall)
    names_by_gpu = slow.by_gpu["iteration"].to_numpy(object)
    is_slow_on_gpu = is_usual & np.isin(names, names_by_gpu)
    by_wall = _claim_by_wall(wall, iterations, is_slow)
    by_gpu = _claim_by_gpu(wall, iterations, is_slow_on_gpu & ~is_slow)
    excess = by_wall.excess + by_gpu.excess

    numbers_of_slow = np.flatnonzero(excess)
    slow_names = names[numbers_of_slow].tolist()
    rows = slow.whole[slow.whole["iteration"].isin(slow_names)]
    if not len(rows):
        return None
    which = f"{len(numbers_of_slow)} of {len(labels)} iterations slow"
    if len(slow_names) == 1:
        which += f" ({slow_names[0]})"
    part, part_ms = _slowest_part(slow.whole, rows)
    numbers = _numbers(slow.whole, rows)
    mostly = ""
    if part:
        mostly = f", mostly {part}"
        numbers["part_ms"] = part_ms
    places = ranked(numbers_of_slow, labels, excess[numbers_of_slow])
    return inspection.finding(
        "slow-iterations",
        by_wall.claim + by_gpu.claim,
        numbers,
        text=TEXT,
        where={"iterations": places[:MOST_PLACES]},
        values={"which": which, "part": part, "mostly": mostly},
    )


def _numbers(whole: pd.DataFrame, slow: pd.DataFrame) -> dict[str, float | None]:
    """Return the evidence without the slowest part: usual and longest times, and kernels."""
    numbers: dict[str, float | None] = {
        "median_ms": float(whole[_WALL].median()),
        "longest_ms": float(slow[_WALL].max()),
        "part_ms": None,
        "median_launched_ms": float(whole[_LAUNCHED].median()),
        "longest_launched_ms": float(slow[_LAUNCHED].max()),
        "more_kernels": None,
    }
    usual_kernels = whole[_KERNELS].median()
    more_kernels = slow[_KERNELS].max() - usual_kernels
    if more_kernels > measured.ODD_AT_LEAST * usual_kernels:
        numbers["more_kernels"] = float(more_kernels)
    return numbers


class _ClaimedExcess(NamedTuple):
    """The time by which iterations are too long, and the claim of it."""

    excess: Float64Array  #: the excess time of each iteration, ns, (k,)
    claim: Claim


def _claim_by_wall(
    wall: WallTime, iterations: Iterations, is_slow: BoolArray
) -> _ClaimedExcess:
    """Claim the time by which some iterations exceed the usual wall time."""
    times = _times_of_iterations(wall, iterations)
    length = iterations.end - iterations.start
    unexplained = length - times.claimed
    odd_excess = _odd_excess(unexplained, iterations.whole)
    excess = np.where(is_slow, odd_excess, 0.0)
    # An iteration cannot save more than the unclaimed time of its GPU events and gaps.
    free = np.maximum(times.free, 1.0)
    share = np.minimum(excess / free, 1.0)
    share_of_gap = values_at(share, times.of_gap, missing=0)
    share_of_gpu = values_at(share, iterations.started_in, missing=0)
    idle = wall.unclaimed_ns_of_gaps().astype(np.float64)
    idle_limit = (idle * share_of_gap).astype(np.int64)
    idle_claim = wall.claim_idle_up_to(idle_limit)
    is_chosen = wall.free & (share_of_gpu > 0)
    claim = idle_claim + wall.claim_events(is_chosen, share_of_gpu)
    return _ClaimedExcess(excess, claim)


def _claim_by_gpu(
    wall: WallTime, iterations: Iterations, is_slow: BoolArray
) -> _ClaimedExcess:
    """Claim the time by which the work launched by some iterations exceeds the usual."""
    alone = wall.about(wall.free)
    launched_in = iterations.of_gpu
    iteration_of_event = launched_in[alone.events]
    length = _sums(iteration_of_event, alone.event_ns, len(iterations))
    odd_excess = _odd_excess(length, iterations.whole)
    excess = np.where(is_slow, odd_excess, 0.0)
    share_of_length = excess / np.maximum(length, 1.0)
    share = np.minimum(share_of_length, 1.0)
    share_of_gpu = values_at(share, launched_in, missing=0)
    is_chosen = share_of_gpu > 0
    is_chosen &= wall.free
    claim = wall.claim_events(is_chosen, share_of_gpu)
    return _ClaimedExcess(excess, claim)


class _SlowRows(NamedTuple):
    """Rows of the iteration table."""

    whole: pd.DataFrame  #: whole iterations
    by_wall: pd.DataFrame  #: whole iterations with an unusually long wall time
    by_gpu: pd.DataFrame  #: whole iterations that launched unusually long GPU work


def _slow_rows(gpu_events: GpuEvents) -> _SlowRows | None:
    """Return the rows of the iteration table; None if no iteration is unusually long."""
    if len(find_iterations(gpu_events.tree)) < measured.ODD_AMONG:
        return None
    table = measured.iteration_table(gpu_events).frame
    whole = table[table["whole"]]
    slow = {}
    for column in (_WALL, _LAUNCHED):
        is_odd = np.array(
            [column in odd.split(", ") for odd in whole["odd"]], dtype=bool
        )
        is_longer = (whole[column] > whole[column].median()).to_numpy()
        slow[column] = whole[is_odd & is_longer]
    if not len(slow[_WALL]) and not len(slow[_LAUNCHED]):
        return None
    return _SlowRows(whole, slow[_WALL], slow[_LAUNCHED])


class _Times(NamedTuple):
    """Times of k iterations, the mean over the devices that work for each, ns."""

    of_gap: Int64Array  #: the iteration of each gap, `NONE` without one
    claimed: Float64Array  #: time that other findings have claimed, (k,)
    free: Float64Array  #: unclaimed time of GPU events and gaps, (k,)


def _times_of_iterations(wall: WallTime, iterations: Iterations) -> _Times:
    """Return the claimed and the unclaimed time of each iteration."""
    # Work counts where it runs, not where it was launched, because the wall time of an iteration is
    # the time between two moments.
    of_gpu = iterations.started_in
    of_gap = _iteration_of_gap(iterations, wall.classified.gaps)
    count = len(iterations)
    works = np.zeros((len(wall.tracks), count + 1))
    works[wall.tracks.of_gpu, of_gpu] = 1
    working_devices = works[:, :-1].sum(axis=0)
    devices = working_devices.clip(1)
    claimed = np.zeros(count)
    for claim in wall.claims:
        intervals = claim.intervals
        is_busy = intervals.event != NONE
        of_event = of_gpu[intervals.event]
        of_idle_interval = values_at(of_gap, intervals.gap)
        of_interval = np.where(is_busy, of_event, of_idle_interval)
        length = intervals.end - intervals.start
        claimed += _sums(of_interval, length, count)
    alone = wall.about(wall.free)
    busy_ns = alone.event_ns * len(wall.tracks)
    busy = _sums(of_gpu[alone.events], busy_ns, count)
    idle_ns = wall.unclaimed_ns_of_gaps().astype(np.float64)
    idle = _sums(of_gap, idle_ns, count)
    free = (busy + idle) / devices
    return _Times(of_gap, claimed / devices, free)


def _odd_excess(unexplained: Float64Array, whole: BoolArray) -> Float64Array:
    """Return by how much the unexplained time of each iteration exceeds the usual, (k,).

    0 for iterations whose unexplained time is not unusual: other findings then explain why they are
    long.
    """
    usual = float(np.median(unexplained[whole]))
    excess = unexplained - usual
    deviation = np.abs(excess[whole])
    spread = float(np.median(deviation))
    least_by_spread = measured.ODD_BEYOND * spread
    least_by_length = measured.ODD_AT_LEAST * usual
    least = max(least_by_spread, least_by_length)
    return np.where(excess > least, excess, 0.0)


def _iteration_of_gap(iterations: Iterations, gaps: Gaps) -> Int64Array:
    """Return the iteration that contains the larger part of each gap.

    The iterations of the GPU events around the gap are the candidates.
    """
    before = iterations.started_in[gaps.before]
    after = iterations.started_in[gaps.after]
    middle = (gaps.start + gaps.end) // 2
    is_in_first = middle < iterations.start[after]
    is_in_first &= before != NONE
    is_in_first &= after != NONE
    return np.where(is_in_first, before, after)


def _sums(
    iteration: Int64Array, values: IntArray | Float64Array, count: int
) -> Float64Array:
    """Return the sum of the values in each iteration, (count,); `NONE` is left out."""
    return np.bincount(iteration + 1, values, count + 1)[1:].astype(np.float64)


def _slowest_part(whole: pd.DataFrame, slow: pd.DataFrame) -> tuple[str, float]:
    """Return the part of the time that grew most in slow iterations, and by how many ms."""
    parts = [column for column in whole if column not in _NOT_PARTS]
    usual = whole.drop(slow.index)[parts].median()
    more_ms = (slow[parts] - usual).sum()
    if not len(more_ms):
        return "", 0.0
    most_ms = float(more_ms.max())
    if not most_ms > 0:
        return "", 0.0
    column = str(more_ms.idxmax())
    words = column.removesuffix("_ms").replace("_", " ")
    return words, most_ms
