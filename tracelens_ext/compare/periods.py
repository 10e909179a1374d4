"""Periods of kernel names: how often the work of a trace comes back, where no step is marked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracelens_ext.trace import Float64Array, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import dense_ranks, number_groups

_MIN_KERNELS = 8
#: A period must come back about twice.
_MIN_COUNT = 1.8
#: Cells of the matrix of kernels by stretch and name, which limits its memory.
_MAX_CELLS = 1 << 22
#: Candidates that are tried, those with the fewest occurrences (the longest periods) first.
_MAX_TRIED = 48
#: Rows of kernels that may start a stretch are doubled from these lengths: to 2, 4, 8 … 64.
_DOUBLED_LENGTHS = (1, 2, 4, 8, 16, 32)
#: Share of a stretch's time and kernels that it has in common with the typical one.
_ALIKE_SHARE = 0.9
#: Share of the GPU time in such stretches.
_MIN_COVERED_SHARE = 0.8
#: The confidence that may be lost when a shorter period replaces a multiple of it.
_SAME_COVER = 0.01
#: How far from a whole number the ratio of two counts may be.
_WHOLE_RATIO = 0.02
#: How far, of the mean, distances between occurrences may lie from it.
_MAX_UNEVENNESS = 0.5
_SMALLEST_SIZE = 1e-9


@dataclass(frozen=True)
class Period:
    """A period that comes back."""

    #: how often it occurs; not a whole number if the recording cuts an occurrence off
    count: float
    confidence: float  #: share of the GPU time in stretches that are alike, 0 to 1


@dataclass(frozen=True, eq=False)
class _KernelSequence:
    """The kernels of the busiest stream, n of them in order, of m names."""

    name: Int64Array  #: code of each kernel's name, (n,)
    mean_duration: Float64Array  #: of each name, ns, (m,)

    @property
    def name_count(self) -> int:
        """How many names there are."""
        return len(self.mean_duration)


def find_period(gpu_events: GpuEvents) -> Period | None:
    """Find the longest period that occurs twice, or the shortest that divides it as well.

    The candidates come with the longest period first. A shorter one replaces it if it fits into it
    a whole number of times and explains as much of the time. None if there are too few kernels, or
    nothing comes back.
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
    """Return True if a period is clear enough, and divides the best one so far, if any."""
    if period.count < _MIN_COUNT or period.confidence < _MIN_COVERED_SHARE:
        return False
    if best is None:
        return True
    ratio = period.count / best.count
    is_multiple = abs(ratio - round(ratio)) < _WHOLE_RATIO
    return is_multiple and period.confidence >= best.confidence - _SAME_COVER


def _sequence(gpu_events: GpuEvents) -> _KernelSequence | None:
    """Return the kernels of the stream with most of them; None if there are too few."""
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
    """Occurrences of kernels in a row that may start the stretches of a period."""

    badness: float  #: how unevenly they are distributed; the lower the better
    starts: Int64Array


def _candidates(kernels: _KernelSequence) -> list[Int64Array]:
    """Return where stretches could start, of each number of occurrences the best; fewest first."""
    best_of_count: dict[int, _Candidate] = {}
    for code in _codes_in_a_row(kernels.name):
        order = np.argsort(code, kind="stable")
        counts = np.bincount(code)
        ends = np.cumsum(counts)
        comes_back = (counts >= 2) & (counts <= len(kernels.name) // 2)
        for group in np.flatnonzero(comes_back).tolist():
            count = int(counts[group])
            candidate = _candidate(kernels, order[ends[group] - count : ends[group]])
            if candidate is None:
                continue
            best = best_of_count.get(count)
            if best is None or candidate.badness < best.badness:
                best_of_count[count] = candidate
    fewest = sorted(best_of_count)[:_MAX_TRIED]
    return [best_of_count[count].starts for count in fewest]


def _codes_in_a_row(name: Int64Array) -> Iterator[Int64Array]:
    """Yield codes of single names, then of 2, 4, 8 … names in a row, where each row begins."""
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
    """Return occurrences as starts of stretches; None if they are too uneven, or too many."""
    length = len(kernels.name)
    count = len(starts)
    if count * kernels.name_count > _MAX_CELLS:
        return None
    first = int(starts[0])
    mean_distance = (length - first) / count
    # If the part before the first start is shorter than a stretch, the recording began within one,
    # and its end closes the last one. Otherwise the last one is taken to be of mean length.
    end = length if first < mean_distance else starts[-1] + mean_distance
    distances = np.diff(np.append(starts, end))
    unevenness = float(np.abs(distances - mean_distance).max()) / mean_distance
    if unevenness > _MAX_UNEVENNESS:
        return None
    # Even distances and an early first start are better.
    return _Candidate(unevenness + first / length, starts)


def _period(kernels: _KernelSequence, starts: Int64Array) -> Period:
    """Return the period whose stretches start at some kernels, and how alike they are.

    The part before the first start is one of the stretches.
    """
    name_count = kernels.name_count
    stretch_count = len(starts) + 1
    stretch = np.searchsorted(starts, np.arange(len(kernels.name)), side="right")
    cells = stretch * name_count + kernels.name
    # Kernels by stretch and name, (s, m).
    counts = np.bincount(cells, minlength=stretch_count * name_count)
    counts = counts.reshape(stretch_count, name_count)
    # Of a typical stretch by name, (m,). Stretch 0 precedes the first start and may be partial.
    typical = np.percentile(counts[1:], 50, axis=0, method="lower")
    similarity = _similarity(kernels, counts, typical)
    duration = kernels.mean_duration[kernels.name]
    time = np.bincount(stretch, duration, stretch_count)
    alike_time = time[similarity >= _ALIKE_SHARE].sum()
    count_of_name = np.bincount(kernels.name, minlength=name_count)
    count = _typical_count(count_of_name, typical, kernels.mean_duration)
    return Period(count, float(alike_time / time.sum()))


def _similarity(
    kernels: _KernelSequence, counts: Int64Array, typical: Float64Array
) -> Float64Array:
    """Return how similar each stretch is to the typical one, 0 to 1, (s,).

    The similarity is what both have in common, divided by the larger of the two: by time, and by
    number of kernels; the lower of the two counts. The first and the last stretch may be cut off,
    so theirs is divided by their own size.
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
    """Return how many typical stretches there are.

    That is the whole number that holds for the names with most of the time, if it holds for 80 % of
    it; otherwise the total time divided by that of a typical stretch.
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
