"""Kernels by the line of source and the layer of the model that launched them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.iterations.selection import Selection
from tracelens_ext.lazy import pd
from tracelens_ext.modules.modules import module_of_gpu
from tracelens_ext.nesting import ROOT, nearest_above
from tracelens_ext.tables.table import GPU_EVENTS, Condition, Table
from tracelens_ext.trace import NONE, NS_PER_US, EventKind
from tracelens_ext.work.grouping import group_durations, percent, texts

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.work.gpu_work import GpuWork

#: Python frames that only pass a call on: of PyTorch, Triton, Python itself and its built-ins.
_PASSES_ON = re.compile(
    r"nn\.Module: |<(?!eval_with_key)|(?:.*/)?(?:torch|triton|pybind11)/"
    r"|(?:.*/)?(?:contextlib|functools|threading|multiprocessing/\w+)\.py\("
)


def kernel_sources(work: GpuWork, *, selection: Selection | None = None) -> pd.DataFrame:
    """A row a kernel, source line and layer; needs a call tree with Python frames.

    Args:
        work: the GPU events.
        selection: which of them count, all by default.

    Returns:
        Columns `kernel_name`, `cpu_op`, `source` (the innermost Python function around the launch
        that does not only pass the call on: file, the line where it begins, name; empty where none
        was recorded), `layer` (the `nn.Module`s around, outermost first; of a backward operation
        those of its forward operation), `count`, `total_time_us`, `avg_time_us`, `% of duration`.
        Longest total first.
    """
    tree, trace = work.tree, work.trace
    mask = (selection or Selection()).of(work)
    positions, number = np.unique(tree.launch_position_of_gpu[mask], return_inverse=True)
    name = trace.name[tree.rows]
    frames = trace.kind[tree.rows] == EventKind.PYTHON_FUNCTION
    is_source = frames & ~trace.named(name, _PASSES_ON.match)
    linked = positions != NONE
    source = np.full(len(positions), len(trace.names), dtype=np.int64)
    above = nearest_above(tree.parent_position, positions[linked], is_source)
    source[linked] = np.where(above == ROOT, len(trace.names), name[above])
    layer, paths = module_of_gpu(work)
    op, ops = tree.cpu_op_label_of_gpu
    duration = work.duration[mask]
    groups = group_durations([work.name[mask], op[mask], source[number], layer[mask]], duration)
    return pd.DataFrame(
        {
            "kernel_name": texts(groups.keys[0], trace.names),
            "cpu_op": texts(groups.keys[1], ops),
            "source": texts(groups.keys[2], [*trace.names, ""]),
            "layer": texts(groups.keys[3], [*paths, ""]),
            "count": groups.count,
            "total_time_us": groups.total / NS_PER_US,
            "avg_time_us": groups.mean / NS_PER_US,
            "% of duration": percent(groups.total, int(duration.sum())),
        }
    )


def source_table(analyzer: TreePerfAnalyzer, *, selection: Selection | None = None) -> pd.DataFrame:
    """Kernels by source line and layer.

    Raises:
        UsageError: the analyzer was made without `add_python_func=True`.
    """
    if not analyzer.tree.add_python_func:
        raise UsageError("this needs TreePerfAnalyzer(…, add_python_func=True)")
    return kernel_sources(analyzer.work, selection=selection)


TABLES = [
    Table(
        name="kernel_sources",
        shows="Kernels by source line and layer",
        columns="""
            kernel_name: as the trace has it
            cpu_op: that launched it
            source: the innermost Python function around the launch that does not only pass the call
                on: file, the line where it begins, name; empty where none was recorded
            layer: the `nn.Module`s around, outermost first; of a backward operation those of its
                forward operation
            count [GPU events]: how many
            total_time_us: summed duration
            avg_time_us: of a GPU event
            % of duration: of all that were selected
            """,
        table=source_table,
        when=[
            GPU_EVENTS,
            Condition(
                "Python frames are in the call tree",
                lambda analyzer, _: analyzer.tree.add_python_func,
            ),
        ],
        asked_by="tables",
    ),
]
