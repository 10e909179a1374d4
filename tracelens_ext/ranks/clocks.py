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
    from tracelens_ext.trace import Int64Array

#: Standard deviations that an error stands for, and what no error is below, ns.
_SURE, _LEAST = 2.5, 100.0


def fit_clocks(kernels: pd.DataFrame, ranks: Int64Array) -> pd.DataFrame:
    """Offsets of clocks, as in the table `clocks`, in the order of `ranks`.

    Args:
        kernels: of complete calls: `call`, `rank`, `end` (ns, own clock), `set` (the same number
            for calls of the same ranks).
        ranks: all ranks, ascending.
    """
    place = np.searchsorted(ranks, kernels["rank"].to_numpy())
    call = pd.factorize(kernels["call"])[0].astype(np.int64)
    of_set = pd.factorize(kernels["set"])[0].astype(np.int64)
    end = kernels["end"].to_numpy(np.int64)
    time = (end - end.min(initial=np.iinfo(np.int64).max)).astype(np.float64)
    count = np.bincount(call)
    pull = np.bincount(place, time - (np.bincount(call, time) / count)[call], len(ranks))
    pairs = np.unique(np.stack((of_set, place)), axis=1)
    members = np.split(pairs[1], np.flatnonzero(np.diff(pairs[0])) + 1)
    weight = np.bincount(of_set[np.unique(call, return_index=True)[1]]).astype(np.float64)
    component = _components(members, len(ranks))
    offset, error = np.zeros(len(ranks)), np.full(len(ranks), _LEAST)
    of_component = component[[those[0] for those in members if len(those)]]
    for number in np.unique(component[place]).tolist():
        those, mine = np.flatnonzero(component == number), component[place] == number
        matrix = np.full((len(those), len(those)), 1.0 / len(those))
        for of in np.flatnonzero(of_component == number).tolist():
            at = np.searchsorted(those, members[of])
            matrix[np.ix_(at, at)] -= weight[of] / len(at)
            matrix[at, at] += weight[of]
        inverse = np.linalg.inv(matrix)
        offset[those] = inverse @ pull[those]
        offset[those] -= offset[those[0]]
        left = (time - offset[place])[mine]
        calls = np.unique(call[mine], return_inverse=True)[1]
        left -= (np.bincount(calls, left) / np.bincount(calls))[calls]
        free = len(left) - int(calls.max()) - len(those)
        unit = np.diag(inverse) + inverse[0, 0] - 2 * inverse[:, 0]
        deviation = np.sqrt((left**2).sum() / max(free, 1))
        error[those] += _SURE * deviation * np.sqrt(np.maximum(unit, 0.0))
    return pd.DataFrame(
        {
            "rank": ranks,
            "offset_us": offset / NS_PER_US,
            "error_us": error / NS_PER_US,
            "component": component,
            "calls": np.bincount(place, minlength=len(ranks)),
        }
    )


def _components(members: list[Int64Array], ranks: int) -> Int64Array:
    """The lowest of the ranks that each is joined with, as places."""
    label = np.arange(ranks)
    before = label[:0]
    while len(before) != ranks or (label != before).any():
        before = label.copy()
        for those in members:
            label[those] = label[those].min(initial=ranks)
    return label
