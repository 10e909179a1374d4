"""What a rank of a pipeline does besides sending and receiving: when, and what kind of work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens_ext.analysis import collectives
from tracelens_ext.distributed.pipeline.intervals import Intervals
from tracelens_ext.distributed.pipeline.optimizer_steps import is_of_optimizer
from tracelens_ext.lazy import pd
from tracelens_ext.trace import BoolArray, Int64Array

if TYPE_CHECKING:
    from tracelens_ext.trace.gpu_events import GpuEvents

#: Values of the column `kind` of `pipeline_activity`.
COMPUTATION = "computation"
OPTIMIZER = "optimizer"
COMMUNICATION = "communication"


def other_activity(
    gpu_events: GpuEvents,
    is_other_work: BoolArray,
    iteration: np.ndarray[Any, np.dtype[np.object_]],
) -> pd.DataFrame:
    """Return when a rank does each kind of work, apart from sends and receives.

    Args:
        gpu_events: the GPU events of the trace.
        is_other_work: the GPU events of the rank that are neither sends nor receives, (g,).
        iteration: the iteration of each GPU event, (g,).

    Returns:
        `kind`; `group`, the ranks of the process group of communication, empty for other kinds;
        `iteration`; `start` and `end` (ns) of intervals that do not overlap within a kind, group
        and iteration.
    """
    is_computed = gpu_events.is_kernel & ~gpu_events.is_copy
    kernels = np.flatnonzero(is_other_work & is_computed)
    frame = pd.DataFrame(
        {
            "kind": _kinds(gpu_events, kernels),
            "group": _groups(gpu_events, kernels),
            "iteration": iteration[kernels],
            "start": gpu_events.start[kernels],
            "end": gpu_events.end[kernels],
        }
    )
    keys = ["kind", "group", "iteration"]
    base = gpu_events.trace.base_ns
    parts = [pd.DataFrame(columns=keys + ["start", "end"])]
    for _, rows in frame.groupby(keys, sort=True):
        intervals = Intervals.of_rows(rows)
        part = pd.DataFrame(
            {
                "start": intervals.start + base,
                "end": intervals.end + base,
            }
        )
        for key in keys:
            part[key] = rows[key].iloc[0]
        parts.append(part)
    non_empty = [part for part in parts if len(part)]
    return pd.concat(non_empty or parts, ignore_index=True)


def _kinds(
    gpu_events: GpuEvents, kernels: Int64Array
) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return the kind of work of each kernel, (k,)."""
    kinds = np.full(len(kernels), COMPUTATION, dtype=object)
    kinds[is_of_optimizer(gpu_events, kernels)] = OPTIMIZER
    kinds[gpu_events.is_communication[kernels]] = COMMUNICATION
    return kinds


def _groups(
    gpu_events: GpuEvents, kernels: Int64Array
) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return the ranks of the process group of each collective; empty for other kernels, (k,)."""
    is_communication = gpu_events.is_communication[kernels]
    describing_rows = collectives.describing_events(
        gpu_events, kernels[is_communication]
    )
    groups = np.full(len(kernels), "", dtype=object)
    groups[is_communication] = collectives.text_argument(
        gpu_events=gpu_events,
        name="Process Group Ranks",
        rows=describing_rows,
    )
    return groups
