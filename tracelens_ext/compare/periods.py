"""The unit of a trace without iterations: the period in which kernel names come back.

Names that occur once a period cut the stream with the most kernels into stretches. A period is
good if the stretches hold the same kernels, but for a few insertions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.work.grouping import number_groups, ranks

if TYPE_CHECKING:
    from tracelens_ext.trace import Float64Array, Int64Array
    from tracelens_ext.work.gpu_work import GpuWork

_LEAST_KERNELS, _TWICE = 8, 1.8
_MOST_CELLS = 1 << 22  # names of all stretches
_MOST_TRIED = 48  # counts of occurrences, the smallest of which are the longest periods
#: Share of a stretch's time and kernels that it has in common with the typical one.
_ALIKE = 0.9
_COVERED = 0.8  # share of the GPU time in such stretches
#: A shorter period instead of a multiple of it may leave out no more than this besides.
_SAME_COVER = 0.01
_MOST_UNEVEN = 0.5  # how far, of the mean, distances between occurrences may lie from it


@dataclass(frozen=True)
class Period:
    """A period that comes back."""

    count: float  #: how often, in kernels of a typical one; whole where the recording is
    confidence: float  #: share of the GPU time in stretches that are alike, 0 to 1


def find_period(work: GpuWork) -> Period | None:
    """Find the longest period that occurs twice; of its multiples the shortest."""
    chosen = np.flatnonzero(work.is_kernel & ~work.is_communication)
    if len(chosen) < _LEAST_KERNELS:
        chosen = np.arange(len(work))
    if len(chosen) < _LEAST_KERNELS:
        return None
    trace = work.trace
    _, stream = number_groups([trace.device[chosen], trace.stream[chosen]])
    chosen = chosen[stream == np.bincount(stream).argmax()]
    chosen = chosen[np.argsort(work.start[chosen], kind="stable")]
    name, names = ranks(work.name[chosen])
    weight = np.maximum(work.duration[chosen], 1).astype(np.float64)
    weight = np.bincount(name, weight, names) / np.bincount(name, minlength=names)
    found: Period | None = None
    for starts in _candidates(name):
        period = _judged(name, weight, starts)
        if period.confidence < _COVERED or period.count < _TWICE:
            continue
        if found is None or (
            period.confidence >= found.confidence - _SAME_COVER
            and abs(period.count / found.count - round(period.count / found.count)) < 0.02
        ):
            found = period
    return found


def _candidates(name: Int64Array) -> list[Int64Array]:
    """Where stretches could start: occurrences of a few kernels in a row, the fewest first."""
    best: dict[int, tuple[float, Int64Array]] = {}
    code = name
    for length in (1, 2, 4, 8, 16, 32, 64):
        if length > 1:  # twice as many in a row
            half = length // 2
            if len(code) <= half:
                break
            code, _ = ranks(code[:-half] * len(name) + code[half:])
        order = np.argsort(code, kind="stable")
        counts = np.bincount(code)
        ends = np.cumsum(counts)
        for group in np.flatnonzero((counts >= 2) & (counts <= len(name) // 2)).tolist():
            places = order[ends[group] - counts[group] : ends[group]]
            first, count = int(places[0]), int(counts[group])
            mean = (len(name) - first) / count
            apart = np.diff(np.append(places, len(name) if first < mean else places[-1] + mean))
            uneven = float(np.abs(apart - mean).max()) / mean
            quality = uneven + first / len(name)
            fits = uneven <= _MOST_UNEVEN and count * (int(name.max()) + 1) <= _MOST_CELLS
            if fits and quality < best.get(count, (np.inf,))[0]:
                best[count] = quality, places
    return [best[count][1] for count in sorted(best)[:_MOST_TRIED]]


def _judged(name: Int64Array, weight: Float64Array, starts: Int64Array) -> Period:
    """How alike the stretches are, the part before the first start being one of them."""
    names, stretches = len(weight), len(starts) + 1
    stretch = np.searchsorted(starts, np.arange(len(name)), side="right")
    number = np.bincount(stretch * names + name, minlength=stretches * names)
    number = number.reshape(stretches, names)
    typical = np.percentile(number[1:], 50, axis=0, method="lower")
    common = np.minimum(number, typical)
    ends = np.isin(np.arange(stretches), (0, stretches - 1))  # which may be cut off
    alike = np.ones(stretches)
    for unit in (weight, np.ones(names)):
        own, whole, shared = number @ unit, typical @ unit, common @ unit
        size = np.maximum(own, np.where(ends, 0.0, whole))
        alike = np.minimum(alike, np.where(size > 0, shared / np.maximum(size, 1e-9), 1.0))
    time = np.bincount(stretch, weight[name], stretches)
    good = float(time[alike >= _ALIKE].sum() / time.sum())
    return Period(_count(np.bincount(name, minlength=names), typical, weight), good)


def _count(number: Int64Array, typical: Float64Array, weight: Float64Array) -> float:
    """How many typical stretches there are: what most kernels say, else their mean."""
    time = typical * weight
    if not time.any():
        return 0.0
    ratio = number[time > 0] / typical[time > 0]
    share = np.bincount(np.rint(ratio).astype(np.int64), time[time > 0] * (ratio == np.rint(ratio)))
    most = int(share.argmax())
    if share[most] >= _COVERED * time.sum():
        return most
    return float((number * weight).sum() / time.sum())
