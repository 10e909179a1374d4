"""The offsets of the ranks' clocks, from the ends of the calls that they share.

A call ends on all of its ranks at about the same time. So by least squares over all calls, an
offset a rank; ranks that share no call, directly or by others, have no offset between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_US

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens_ext.trace import Float64Array, Int64Array

#: Standard deviations that an error stands for, and what no error is below, ns.
_SURE, _LEAST = 2.5, 100.0


def fit_clocks(kernels: pd.DataFrame, ranks: Int64Array) -> pd.DataFrame:
    """Offsets of clocks.

    Args:
        kernels: of complete calls: `call`, `rank`, `end` (ns, own clock), `set` (the same number
            for calls of the same ranks).
        ranks: all ranks, ascending.

    Returns:
        `rank`, `offset_us`, `error_us`, `component`, `calls`, `drift_ppm` (empty where it is
        below its error), in the order of `ranks`.
    """
    place = np.searchsorted(ranks, kernels["rank"].to_numpy())
    call, calls = _codes(kernels["call"])
    of_set, _ = _codes(kernels["set"])
    end = kernels["end"].to_numpy(np.int64)
    lowest = np.full(len(ranks), np.iinfo(np.int64).max)
    np.minimum.at(lowest, place, end)
    base = lowest[place]
    e = (end - base).astype(np.float64) + (base - base.min(initial=0) if len(base) else base)
    n = np.bincount(call, minlength=calls)
    first = np.unique(call, return_index=True)[1]
    middle = (_mean(call, e, n) if calls else e)[call]
    moment = end - base - (end - base).mean() if len(end) else e
    moment = (_mean(call, moment, n) if calls else moment)[call]
    offset = np.zeros(len(ranks))
    error, drift = np.full(len(ranks), np.nan), np.full(len(ranks), np.nan)
    members = _members(of_set, place)
    component = _components(members, len(ranks))
    weight = np.bincount(of_set[first], minlength=len(members)).astype(np.float64)
    spread = np.bincount(of_set[first], moment[first] ** 2, minlength=len(members))
    pull = np.bincount(place, e - middle, minlength=len(ranks))
    lean = np.bincount(place, (e - middle) * moment, minlength=len(ranks))
    for number in np.unique(component).tolist():
        those = np.flatnonzero(component == number)
        error[those[0]] = _LEAST
        if len(those) < 2:
            continue
        offset[those], unit = _solve(members, weight, pull, those)
        mine = component[place] == number
        left = e - offset[place]
        left -= _mean(call, left, n)[call]
        free = int(mine.sum()) - len(np.unique(call[mine])) - len(those) + 1
        deviation = np.sqrt((left[mine] ** 2).sum() / max(free, 1))
        error[those] = _LEAST + _SURE * deviation * np.sqrt(unit)
        tilt, unit = _solve(members, spread, lean, those)
        sure = np.abs(tilt) > _SURE * deviation * np.sqrt(unit) + 1e-12
        drift[those[sure]] = tilt[sure] * 1e6
    count = np.bincount(place, minlength=len(ranks))
    frame = pd.DataFrame({"rank": ranks, "offset_us": offset / NS_PER_US})
    frame["error_us"], frame["component"] = error / NS_PER_US, component
    frame["calls"], frame["drift_ppm"] = count, drift
    return frame


def _codes(values: pd.Series) -> tuple[Int64Array, int]:
    codes, distinct = pd.factorize(values)
    return codes.astype(np.int64), len(distinct)


def _mean(call: Int64Array, values: Float64Array, n: Int64Array) -> Float64Array:
    mean: Float64Array = np.bincount(call, values, minlength=len(n)) / np.maximum(n, 1)
    return mean


def _members(of_set: Int64Array, place: Int64Array) -> dict[int, Int64Array]:
    """The places of the ranks of each set."""
    if not len(of_set):
        return {}
    pairs = np.unique(np.stack((of_set, place)), axis=1)
    return dict(enumerate(np.split(pairs[1], np.flatnonzero(np.diff(pairs[0])) + 1)))


def _components(members: dict[int, Int64Array], ranks: int) -> Int64Array:
    """The lowest of the ranks that each is joined with, as places."""
    label = np.arange(ranks)
    changed = True
    while changed:
        before = label.copy()
        for those in members.values():
            label[those] = label[those].min()
        label = label[label]
        changed = bool((label != before).any())
    return label


def _solve(
    members: dict[int, Int64Array], weight: Float64Array, pull: Float64Array, those: Int64Array
) -> tuple[Float64Array, Float64Array]:
    """Least squares over a component, less the first; and the variance a unit of each."""
    inside = np.zeros(int(those.max()) + 1, dtype=np.int64)
    inside[those] = np.arange(len(those))
    wanted = set(those.tolist())
    matrix: npt.NDArray[np.float64] = np.full((len(those), len(those)), 1.0 / len(those))
    scale = max(float(weight.max(initial=0.0)), 1e-300)
    for number, ranks in members.items():
        if int(ranks[0]) in wanted:
            at = inside[ranks]
            matrix[np.ix_(at, at)] -= weight[number] / scale / len(at)
            matrix[at, at] += weight[number] / scale
    try:
        inverse = np.linalg.inv(matrix) / scale
    except np.linalg.LinAlgError:  # calls of one moment tell nothing of drift
        inverse = np.linalg.pinv(matrix, hermitian=True) / scale
    found = inverse @ pull[those]
    unit = np.diag(inverse) + inverse[0, 0] - 2 * inverse[:, 0]
    return found - found[0], np.maximum(unit, 0.0)
