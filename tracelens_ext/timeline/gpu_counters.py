"""Counters of GPUs that were sampled while the program ran, such as `SM Active (%)`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, EventKind

if TYPE_CHECKING:
    from tracelens_ext.trace import Trace

#: The argument that holds the value, and the process that the samples are under.
_VALUE: Final = ""
_PROCESS: Final = re.compile(r"GPU (\d{1,6}) Counters")


def has_gpu_counters(trace: Trace) -> bool:
    """Whether there are samples of counters; takes no time."""
    return _VALUE in trace.args


def gpu_counters(trace: Trace) -> pd.DataFrame:
    """A row a counter of a GPU, columns as the sheet `gpu_counters`, in order of name."""
    column = trace.arg(_VALUE)
    rows = column.rows[trace.kind[column.rows] == EventKind.OTHER]
    found = [_PROCESS.fullmatch(str(process)) for process, _ in trace.threads]
    device = np.array([int(m[1]) if m else NONE for m in found] or [NONE])[trace.thread[rows]]
    values = pd.to_numeric(pd.Series(column.texts or [""], dtype="str").str.strip('"'), "coerce")
    frame = pd.DataFrame(
        {
            "device": device,
            "counter": np.array(trace.names, dtype=object)[trace.name[rows]],
            "value": values.to_numpy(dtype=np.float64)[column.at(rows)],
        }
    )
    frame = frame[(device != NONE) & np.isfinite(frame["value"])]
    table: pd.DataFrame = frame.groupby(["device", "counter"])["value"].agg(
        samples="size", mean="mean", min="min", max="max"
    )
    return table.reset_index()
