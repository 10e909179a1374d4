"""Kernels by the Python source line and the model layer that launched them."""

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

#: Python frames of libraries that only forward calls: PyTorch, Triton, Python and its built-ins.
_FORWARDS_CALLS = re.compile(
    r"nn\.Module: |<(?!eval_with_key)|(?:.*/)?(?:torch|triton|pybind11)/"
    r"|(?:.*/)?(?:contextlib|functools|threading|multiprocessing/\w+)\.py\("
)


def kernel_sources(
    gpu_events: GpuEvents, *, selection: EventFilter | None = None
) -> pd.DataFrame:
    """Return GPU events by kernel, operation, source line and layer, longest total first.

    Raises:
        UsageError: the call tree has no Python frames (`add_python_func=True`).
    """
    if not gpu_events.tree.add_python_func:
        raise UsageError("this needs TreePerfAnalyzer(…, add_python_func=True)")
    names = gpu_events.trace.names
    layer, layers = module_of_gpu(gpu_events)
    keys: LabeledColumns = {
        "kernel_name": (gpu_events.name, names),
        "cpu_op": gpu_events.tree.cpu_op_label_of_gpu,
        "source": (_source_of_gpu(gpu_events), names + [""]),
        "layer": (np.where(layer == NONE, len(layers), layer), layers + [""]),
    }
    is_selected = (selection or EventFilter()).of(gpu_events)
    columns, groups = group_by_labels(keys, gpu_events.duration, is_selected)
    columns |= groups.figures("count", "total_time_us", "avg_time_us")
    columns["% of duration"] = percent(groups.total, int(groups.total.sum()))
    return pd.DataFrame(columns)


def _source_of_gpu(gpu_events: GpuEvents) -> Int64Array:
    """Return the innermost Python frame around each launch that does not only forward calls, (g,).

    A frame is a name code of the trace. GPU events without such a frame have the code after the
    last one, `len(trace.names)`.
    """
    tree = gpu_events.tree
    trace = gpu_events.trace
    name = trace.name[tree.rows]
    is_frame = trace.kind[tree.rows] == EventKind.PYTHON_FUNCTION
    is_source = is_frame & ~trace.named(name, _FORWARDS_CALLS.match)
    # Launches of a graph have many GPU events; each launch is looked up once.
    launches, launch_number = np.unique(
        tree.launch_position_of_gpu, return_inverse=True
    )
    source_position = nearest_marked(tree.parent_position, is_source)
    source_of_launch = values_at(source_position, launches, missing=ROOT)
    source_name = values_at(name, source_of_launch, missing=len(trace.names))
    return source_name[launch_number].astype(np.int64)
