"""The CPU op around each GPU event: its arguments, and what else it started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.analysis.grouping import texts
from tracelens_ext.analysis.launchers import busy_below
from tracelens_ext.analysis.op_arguments import op_argument
from tracelens_ext.trace import NONE, NS_PER_US

if TYPE_CHECKING:
    import pandas as pd

    from tracelens_ext.analysis.gpu_work import GpuWork

#: Column → argument of the CPU op.
_ARGUMENTS = {
    "Input dims": "Input Dims",
    "Input types": "Input type",
    "Input strides": "Input Strides",
    "Concrete Inputs": "Concrete Inputs",
}


def cpu_op_detail(work: GpuWork) -> pd.DataFrame:
    """A row a GPU event, in order of start: the innermost CPU op around its launch.

    Returns:
        Columns `Parent cpu_op` (else the launch's name, else empty), `Input dims`, `Input types`,
        `Input strides`, `Concrete Inputs` (empty where the trace has none), and, missing without a
        CPU op, `Parent cpu_op busy time (µs)` (of all GPU events below the CPU op),
        `Parent cpu_op kernel count` (those events) and `Percent of Parent cpu_op busy time (%)`
        (this event's duration).
    """
    import pandas as pd

    op = work.tree.cpu_op_of_gpu
    ops, number = np.unique(op[op != NONE], return_inverse=True)
    tree = work.tree
    position = tree.position[ops]
    launches = np.sort(tree.launch_position_of_gpu[tree.linked])
    below = np.searchsorted(launches, tree.subtree_end[position])
    count = below - np.searchsorted(launches, position)
    busy = np.full(len(work), np.nan)
    busy[op != NONE] = busy_below(work, ops)[number]
    kernels = np.full(len(work), NONE, dtype=np.int64)
    kernels[op != NONE] = count[number]
    percent = np.full(len(work), np.nan)
    np.divide(100.0 * work.duration, busy, out=percent, where=busy > 0)
    columns: dict[str, object] = {"Parent cpu_op": texts(*work.parent_op)}
    columns |= {
        column: texts(*op_argument(work.trace, op, argument))
        for column, argument in _ARGUMENTS.items()
    }
    columns |= {
        "Parent cpu_op busy time (µs)": busy / NS_PER_US,
        "Parent cpu_op kernel count": pd.Series(kernels, dtype="Int64").where(kernels != NONE),
        "Percent of Parent cpu_op busy time (%)": percent,
    }
    return pd.DataFrame(columns).iloc[np.argsort(work.start, kind="stable")].reset_index(drop=True)
