"""Estimates the offsets between the clocks of the ranks, by the ends of the calls they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens_ext.distributed.table_rows import whole_numbers
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_US, BoolArray, Float64Array, Int64Array

#: The reported error of an offset is this many standard deviations, plus the minimum.
_ERROR_DEVIATIONS = 2.5
#: The smallest error that is reported, ns.
_MIN_ERROR_NS = 100.0


class _CallSet(NamedTuple):
    """A set of ranks that share calls."""

    members: Int64Array  #: indices of the ranks, ascending
    call_count: float  #: the number of calls of exactly these ranks


class _Samples(NamedTuple):
    """The ends of kernels, one for each call and rank."""

    call: Int64Array  #: the index of the call, (n,)
    rank: Int64Array  #: the index of the rank, (n,)
    end: Float64Array  #: the end on the rank's own clock, ns since the earliest end, (n,)


def fit_clocks(kernels: pd.DataFrame, ranks: Int64Array) -> pd.DataFrame:
    """Fit the offsets between the clocks of the ranks by least squares.

    A call ends at about the same time on all of its ranks. The offsets are those for which the
    ends of each call, minus the offsets of their ranks, differ the least. Ranks that share no
    call, neither directly nor through other ranks, are in different components, each with a
    common clock of its own: that of its lowest rank.

    Args:
        kernels: the kernels of complete calls: `call`, `rank`, `end` (ns, on the rank's own
            clock), and `rank_set`, a number that calls of the same ranks share.
        ranks: all ranks, ascending.

    Returns:
        The table `clocks`, a row for each rank.
    """
    rank_count = len(ranks)
    samples = _samples(kernels, ranks)
    call_sets = _call_sets(samples, kernels["rank_set"])
    component = _components(call_sets, rank_count)
    mean_end = np.bincount(samples.call, samples.end) / np.bincount(samples.call)
    lateness = samples.end - mean_end[samples.call]
    # The right-hand side of the normal equations: the sum of the lateness of each rank.
    lateness_of_rank = np.bincount(samples.rank, lateness, rank_count)
    offset = np.zeros(rank_count)
    error = np.full(rank_count, _MIN_ERROR_NS)
    for number, sets_of_component in _by_component(call_sets, component).items():
        members = np.flatnonzero(component == number)
        inverse = np.linalg.inv(_normal_matrix(members, sets_of_component))
        solution = inverse @ lateness_of_rank[members]
        offset[members] = solution - solution[0]
        is_in_component = component[samples.rank] == number
        deviation = _deviation(
            samples=samples,
            offset=offset,
            is_in_component=is_in_component,
            rank_count=len(members),
        )
        # The variance of the difference between each offset and that of the first rank.
        variance = np.diag(inverse) + inverse[0, 0] - 2 * inverse[:, 0]
        error[members] += (
            _ERROR_DEVIATIONS * deviation * np.sqrt(np.maximum(variance, 0.0))
        )
    columns = {
        "rank": ranks,
        "offset_us": offset / NS_PER_US,
        "error_us": error / NS_PER_US,
        "component": component,
        "calls": np.bincount(samples.rank, minlength=rank_count),
    }
    return pd.DataFrame(columns)


def _samples(kernels: pd.DataFrame, ranks: Int64Array) -> _Samples:
    """Return the ends of kernels.

    They are counted from the earliest end, because times since 1970 in ns do not fit into a float.
    """
    call, _ = pd.factorize(kernels["call"])
    end = whole_numbers(kernels, "end")
    since_first = end - end.min(initial=np.iinfo(np.int64).max)
    rank = np.searchsorted(ranks, whole_numbers(kernels, "rank"))
    return _Samples(
        call=call.astype(np.int64),
        rank=rank,
        end=since_first.astype(np.float64),
    )


def _call_sets(samples: _Samples, set_of_kernel: pd.Series) -> list[_CallSet]:
    """Return the sets of ranks that share calls, with their numbers of calls."""
    if not len(samples.call):
        return []
    set_number = pd.factorize(set_of_kernel)[0].astype(np.int64)
    # The distinct pairs of set and rank, sorted, are cut where the next set begins.
    set_and_rank = np.unique(np.stack((set_number, samples.rank)), axis=1)
    set_begins = np.flatnonzero(np.diff(set_and_rank[0])) + 1
    members_of_set = np.split(set_and_rank[1], set_begins)
    _, first_kernel_of_call = np.unique(samples.call, return_index=True)
    calls_of_set = np.bincount(set_number[first_kernel_of_call]).astype(np.float64)
    return [
        _CallSet(members, call_count)
        for members, call_count in zip(
            members_of_set, calls_of_set.tolist(), strict=True
        )
    ]


def _components(call_sets: Sequence[_CallSet], rank_count: int) -> Int64Array:
    """Return the component of each rank, (r,): the lowest index of the ranks connected to it.

    Each round gives all ranks of a call set the lowest component among them, until nothing changes.
    """
    component = np.arange(rank_count)
    has_changed = True
    while has_changed:
        before = component.copy()
        for members, _ in call_sets:
            component[members] = component[members].min()
        has_changed = bool((component != before).any())
    return component


def _by_component(
    call_sets: Sequence[_CallSet], component: Int64Array
) -> dict[int, list[_CallSet]]:
    """Return the call sets of each component, by the number of the component."""
    sets_of_component: dict[int, list[_CallSet]] = {}
    for call_set in call_sets:
        number = int(component[call_set.members[0]])
        sets_of_component.setdefault(number, []).append(call_set)
    return sets_of_component


def _normal_matrix(members: Int64Array, call_sets: Sequence[_CallSet]) -> Float64Array:
    """Return the matrix of the normal equations for the offsets of some ranks, (m, m).

    The ends of calls determine only differences between offsets, which leaves the matrix singular.
    The constant that is added everywhere makes it invertible; it sets the sum of all offsets to 0.
    """
    count = len(members)
    matrix = np.full((count, count), 1.0 / count)
    for ranks, call_count in call_sets:
        position = np.searchsorted(members, ranks)
        matrix[np.ix_(position, position)] -= call_count / len(position)
        matrix[position, position] += call_count
    return matrix


def _deviation(
    samples: _Samples, offset: Float64Array, is_in_component: BoolArray, rank_count: int
) -> float:
    """Return the standard deviation of the ends of a call after the offsets are removed, ns."""
    rank = samples.rank[is_in_component]
    end = samples.end[is_in_component] - offset[rank]
    _, call = np.unique(samples.call[is_in_component], return_inverse=True)
    kernel_count = np.bincount(call)
    mean_end = np.bincount(call, end) / kernel_count
    residual = end - mean_end[call]
    free_offsets = rank_count - 1
    degrees_of_freedom = len(residual) - len(kernel_count) - free_offsets
    squares = (residual**2).sum()
    return float(np.sqrt(squares / max(degrees_of_freedom, 1)))
