"""The best case of each phase of serving."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_MS

if TYPE_CHECKING:
    from tracelens_ext.operations.launchers import Launchers
    from tracelens_ext.roofline.found import Roofline
    from tracelens_ext.serving.steps import Steps


def with_roofline(
    frame: pd.DataFrame, roofline: Roofline, launchers: Launchers, steps: Steps
) -> pd.DataFrame:
    """The table of phases with what operations with a model could take at best.

    Args:
        frame: a row a phase, as `phase_table` makes it.
        roofline: the operations of the trace.
        launchers: their calls.
        steps: the steps of the phases.

    Returns:
        With the columns `modelled_ms` (GPU time of operations with a best case),
        `roofline_time_ms` and `% of roofline` (of that time), if any operation has one.
    """
    first = roofline.groups.first_gpu
    group = roofline.groups.of_gpu[first]
    best = np.array(
        [
            np.nan if row.roofline_ns is None else row.roofline_ns / row.count
            for row in roofline.rows
        ]
    )[group]
    known = ~np.isnan(best)
    if not known.any():
        return frame
    phase, count = steps.phase_of_gpu[first][known], len(steps.labels)
    time = launchers.direct_ns[launchers.of_gpu[first]][known]
    gpu_ns, best_ns = (np.bincount(phase, ns, count)[: len(frame)] for ns in (time, best[known]))
    percent = np.full(len(frame), np.nan)
    np.divide(100.0 * best_ns, gpu_ns, out=percent, where=gpu_ns > 0)
    at = list(frame.columns).index("tokens_per_s_without_idle") + 1
    columns = {
        "modelled_ms": gpu_ns / NS_PER_MS,
        "roofline_time_ms": best_ns / NS_PER_MS,
        "% of roofline": percent,
    }
    for place, (name, values) in enumerate(columns.items()):
        frame.insert(at + place, name, values)
    return frame
