"""Kernels by the source line and the layer that launched them."""

from __future__ import annotations

import re

import numpy as np

from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.analysis.modules import module_of_gpu
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, EventKind, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import LabeledColumns, group_by_labels, percent
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT, nearest_marked

#: Python frames that only pass a call on: of PyTorch, Triton, Python itself and its built-ins.
_PASSES_ON = re.compile(
    r"nn\.Module: |<(?!eval_with_key)|(?:.*/)?(?:torch|triton|pybind11)/"
    r"|(?:.*/)?(?:contextlib|functools|threading|multiprocessing/\w+)\.py\("
)


def kernel_sources(
    work: GpuEvents, *, selection: EventFilter | None = None
) -> pd.DataFrame:
    """Kernels by source line and layer, of an analyzer made with `add_python_func=True`."""
    if not work.tree.add_python_func:
        raise UsageError("this needs TreePerfAnalyzer(…, add_python_func=True)")
    names = work.trace.names
    layer, layers = module_of_gpu(work)
    keys: LabeledColumns = {
        "kernel_name": (work.name, names),
        "cpu_op": work.tree.cpu_op_label_of_gpu,
        "source": (_source_of_gpu(work), names + [""]),
        "layer": (np.where(layer == NONE, len(layers), layer), layers + [""]),
    }
    is_selected = (selection or EventFilter()).of(work)
    columns, groups = group_by_labels(keys, work.duration, is_selected)
    columns |= groups.figures("count", "total_time_us", "avg_time_us")
    columns["% of duration"] = percent(groups.total, int(groups.total.sum()))
    return pd.DataFrame(columns)


def _source_of_gpu(work: GpuEvents) -> Int64Array:
    """Return the Python frame that does not only pass the launch on, around each GPU event.

    An index into the names of the trace, as many as those for no frame, (g,).
    """
    tree = work.tree
    trace = work.trace
    name = trace.name[tree.rows]
    is_frame = trace.kind[tree.rows] == EventKind.PYTHON_FUNCTION
    is_source = is_frame & ~trace.named(name, _PASSES_ON.match)
    # Launches of a graph have many GPU events; each launch is looked up once.
    launches, launch_number = np.unique(
        tree.launch_position_of_gpu, return_inverse=True
    )
    frame = values_at(
        nearest_marked(tree.parent_position, is_source), launches, missing=ROOT
    )
    source = values_at(name, frame, missing=len(trace.names))
    return source[launch_number].astype(np.int64)
