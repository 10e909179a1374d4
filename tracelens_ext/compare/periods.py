"""Finds how often the work of a trace repeats by the sequence of its kernel names.

This is needed for traces without annotated iterations. The sequence of kernels is cut into
stretches that begin with the same kernels; if the stretches are similar, each of them is one
occurrence of the period.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracelens_ext.trace import Float64Array, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import dense_ranks, number_groups

#: Shorter sequences have no period.
_MIN_KERNELS = 8
#: A period must occur about twice. The recording may cut off the beginning or the end.
_MIN_COUNT = 1.8
#: The most cells of the matrix of kernels by stretch and name, which limits the memory.
_MAX_CELLS = 1 << 22
#: How many candidates are tried. Those with the fewest occurrences, the longest periods, come
#: first.
_MAX_TRIED = 48
#: A stretch may begin with a run of 1, 2, 4, … 64 kernels. Runs of these lengths are doubled.
_DOUBLED_LENGTHS = (1, 2, 4, 8, 16, 32)
#: A stretch is similar to the typical one if it shares this part of its time and kernels with it.
_MIN_SIMILARITY = 0.9
#: The share of the GPU time that similar stretches must have.
_MIN_COVERED_SHARE = 0.8
#: A shorter period may have this much less confidence than a multiple of it that it replaces.
_MAX_LOST_CONFIDENCE = 0.01
#: The ratio of two counts may deviate this much from a whole number.
_MAX_RATIO_DEVIATION = 0.02
#: The distance between two occurrences may deviate from the mean by this part of the mean.
_MAX_UNEVENNESS = 0.5
#: Avoids divisions by zero.
_SMALLEST_SIZE = 1e-9


@dataclass(frozen=True)
class Period:
    """A period of the kernel sequence."""

    #: the number of occurrences; not a whole number if the recording cuts off an occurrence
    count: float
    confidence: float  #: the share of the GPU time in similar stretches, 0 to 1


@dataclass(frozen=True, eq=False)
class _KernelSequence:
    """The n kernels of one stream in the order of their starts, with m distinct names."""

    name: Int64Array  #: the code of each kernel's name, (n,)
    #: the mean duration of the kernels of each name, ns, (m,)
    mean_duration: Float64Array

    @property
    def name_count(self) -> int:
        """The number of distinct names."""
        return len(self.mean_duration)


def find_period(gpu_events: GpuEvents) -> Period | None:
    """Find the shortest period that explains the kernel sequence as well as its multiples.

    Candidates are tried from the longest period to the shortest. A shorter one replaces a longer
    one if it fits into it a whole number of times and explains as much of the time. The result is
    None if there are too few kernels or no period.
    """
    kernels = _sequence(gpu_events)
    if kernels is None:
        return None
    best: Period | None = None
    for starts in _candidates(kernels):
        period = _period(kernels, starts)
        if _is_better(period, best):
            best = period
    return best


def _is_better(period: Period, best: Period | None) -> bool:
    """Tell whether a period is clear enough, and divides the best one so far, if there is one."""
    if period.count < _MIN_COUNT or period.confidence < _MIN_COVERED_SHARE:
        return False
    if best is None:
        return True
    ratio = period.count / best.count
    multiple = round(ratio)
    is_multiple = multiple >= 1 and abs(ratio - multiple) < _MAX_RATIO_DEVIATION
    return is_multiple and period.confidence >= best.confidence - _MAX_LOST_CONFIDENCE


def _sequence(gpu_events: GpuEvents) -> _KernelSequence | None:
    """Return the kernels of the stream with the most kernels; None if there are too few.

    Kernels of collectives are left out, because their durations depend on other ranks. If there are
    hardly any other kernels, all GPU events are used.
    """
    trace = gpu_events.trace
    chosen = np.flatnonzero(gpu_events.is_kernel & ~gpu_events.is_communication)
    if len(chosen) < _MIN_KERNELS:
        chosen = np.arange(len(gpu_events))
    if len(chosen) < _MIN_KERNELS:
        return None
    _, stream = number_groups([trace.device[chosen], trace.stream[chosen]])
    busiest_stream = np.bincount(stream).argmax()
    chosen = chosen[stream == busiest_stream]
    chosen = chosen[np.argsort(gpu_events.start[chosen], kind="stable")]
    name, name_count = dense_ranks(gpu_events.name[chosen])
    duration = np.maximum(gpu_events.duration[chosen], 1).astype(np.float64)
    time_of_name = np.bincount(name, duration, name_count)
    mean_duration = time_of_name / np.bincount(name, minlength=name_count)
    return _KernelSequence(name, mean_duration)


class _Candidate(NamedTuple):
    """Occurrences of a run of kernels that may begin the stretches of a period."""

    unevenness: float  #: how unevenly the starts are distributed; lower is better
    starts: Int64Array  #: positions in the kernel sequence, ascending


def _candidates(kernels: _KernelSequence) -> list[Int64Array]:
    """Return the starts of the stretches of each candidate, those with the fewest starts first.

    Of all runs of kernels that occur equally often, the most evenly distributed one is taken.
    """
    best_of_count: dict[int, _Candidate] = {}
    for code in _codes_of_runs(kernels.name):
        # Positions with the same code are consecutive in `order`, and end at `ends`.
        order = np.argsort(code, kind="stable")
        counts = np.bincount(code)
        ends = np.cumsum(counts)
        repeats = (counts >= 2) & (counts <= len(kernels.name) // 2)
        for repeated_code in np.flatnonzero(repeats).tolist():
            count = int(counts[repeated_code])
            end = ends[repeated_code]
            candidate = _candidate(kernels, starts=order[end - count : end])
            if candidate is None:
                continue
            best = best_of_count.get(count)
            if best is None or candidate.unevenness < best.unevenness:
                best_of_count[count] = candidate
    fewest_occurrences = sorted(best_of_count)[:_MAX_TRIED]
    return [best_of_count[count].starts for count in fewest_occurrences]


def _codes_of_runs(name: Int64Array) -> Iterator[Int64Array]:
    """Yield a code for the run of kernels that begins at each position, for growing lengths.

    Positions have the same code if the same names follow, first 1 name, then 2, 4, 8 … names. A run
    of 2n names is identified by the codes of its two halves, which are n positions apart.
    """
    code = name
    yield code
    for length in _DOUBLED_LENGTHS:
        if len(code) <= length:
            return
        first_half = code[:-length]
        second_half = code[length:]
        # Codes are smaller than the number of kernels, so this numbers each pair uniquely.
        code, _ = dense_ranks(first_half * len(name) + second_half)
        yield code


def _candidate(kernels: _KernelSequence, starts: Int64Array) -> _Candidate | None:
    """Return a candidate with the given starts; None if they are too uneven, or too many."""
    length = len(kernels.name)
    count = len(starts)
    if count * kernels.name_count > _MAX_CELLS:
        return None
    first = int(starts[0])
    mean_distance = (length - first) / count
    # If the part before the first start is shorter than a stretch, the recording began within a
    # stretch, and the end of the recording is the end of the last stretch. Otherwise, the last
    # stretch is assumed to have the mean length.
    end = length if first < mean_distance else starts[-1] + mean_distance
    distances = np.diff(np.append(starts, end))
    unevenness = float(np.abs(distances - mean_distance).max()) / mean_distance
    if unevenness > _MAX_UNEVENNESS:
        return None
    # Even distances and an early first start are better.
    return _Candidate(unevenness + first / length, starts)


def _period(kernels: _KernelSequence, starts: Int64Array) -> Period:
    """Return the period whose stretches begin at the given starts.

    The part before the first start counts as a stretch, too.
    """
    name_count = kernels.name_count
    stretch_count = len(starts) + 1
    stretch = np.searchsorted(starts, np.arange(len(kernels.name)), side="right")
    cells = stretch * name_count + kernels.name
    # The number of kernels of each stretch and name, (s, m).
    counts = np.bincount(cells, minlength=stretch_count * name_count)
    counts = counts.reshape(stretch_count, name_count)
    # The number of kernels of each name in a typical stretch, (m,). Stretch 0 is left out because
    # it precedes the first start and may be cut off.
    typical = np.percentile(counts[1:], 50, axis=0, method="lower")
    similarity = _similarity(kernels, counts, typical)
    duration = kernels.mean_duration[kernels.name]
    time_of_stretch = np.bincount(stretch, duration, stretch_count)
    similar_time = time_of_stretch[similarity >= _MIN_SIMILARITY].sum()
    count_of_name = np.bincount(kernels.name, minlength=name_count)
    count = _typical_count(count_of_name, typical, kernels.mean_duration)
    return Period(count, float(similar_time / time_of_stretch.sum()))


def _similarity(
    kernels: _KernelSequence, counts: Int64Array, typical: Float64Array
) -> Float64Array:
    """Return how similar each stretch is to the typical one, 0 to 1, (s,).

    The similarity is the size of what both have in common, divided by the size of the larger of the
    two. Size is measured by time and by number of kernels, and the lower similarity counts. The
    first and the last stretch may be cut off, so they are divided by their own size.
    """
    common = np.minimum(counts, typical)
    stretch_count = len(counts)
    may_be_cut_off = np.isin(np.arange(stretch_count), (0, stretch_count - 1))
    similarity = np.ones(stretch_count)
    for weight in (kernels.mean_duration, np.ones(kernels.name_count)):
        own_size = counts @ weight
        typical_size = typical @ weight
        size = np.maximum(own_size, np.where(may_be_cut_off, 0.0, typical_size))
        share = (common @ weight) / np.maximum(size, _SMALLEST_SIZE)
        similarity = np.minimum(similarity, np.where(size > 0, share, 1.0))
    return similarity


def _typical_count(
    count_of_name: Int64Array, typical: Float64Array, mean_duration: Float64Array
) -> float:
    """Return how many typical stretches the sequence contains.

    For each name, the number of its kernels divided by that in a typical stretch is the number of
    stretches. If the same whole number results for names with 80 % of the time, this is the result.
    Otherwise, it is the total time divided by the time of a typical stretch.
    """
    typical_time = typical * mean_duration
    total_time = typical_time.sum()
    is_typical = typical_time > 0
    if not is_typical.any():
        return 0.0
    ratio = count_of_name[is_typical] / typical[is_typical]
    whole_ratio = np.rint(ratio)
    is_whole = ratio == whole_ratio
    agreeing_time = np.where(is_whole, typical_time[is_typical], 0.0)
    time_of_ratio = np.bincount(whole_ratio.astype(np.int64), agreeing_time)
    dominant_ratio = int(time_of_ratio.argmax())
    if time_of_ratio[dominant_ratio] >= _MIN_COVERED_SHARE * total_time:
        return dominant_ratio
    time_of_name = count_of_name * mean_duration
    return float(time_of_name.sum() / total_time)
