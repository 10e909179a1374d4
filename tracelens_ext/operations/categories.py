"""The category of an operation in its context: `GEMM`, `elementwise`, … `graph`, `runtime`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.categorize.categories import OTHER_OP
from tracelens_ext.trace import NONE
from tracelens_ext.work.grouping import number_groups

if TYPE_CHECKING:
    from tracelens_ext.trace import Int64Array, IntArray
    from tracelens_ext.work.gpu_work import GpuWork

GRAPH_CATEGORY = "graph"
RUNTIME_CATEGORY = "runtime"


def op_categories(
    work: GpuWork, rows: IntArray, of_gpu: Int64Array
) -> tuple[Int64Array, list[str]]:
    """Categorize operations, each by its name and what it launched.

    A CPU op is judged by its name. One whose name says nothing is `graph` when it launched one (as
    compiled functions do), else it is judged by the name of the first kernel it launched: the same
    rules are asked, for some know what a kernel tells of its operation. A launch that no CPU op
    encloses is `graph` or `runtime`.

    Args:
        work: the GPU events.
        rows: CPU ops and launches, shape (k,).
        of_gpu: which of those each GPU event belongs to, `NONE` for none, shape (g,).

    Returns:
        Codes, shape (k,), and the labels that they stand for.
    """
    trace = work.trace
    name = trace.name[rows]
    kernels = np.flatnonzero((of_gpu != NONE) & work.is_kernel)
    owners, first = np.unique(of_gpu[kernels], return_index=True)
    kernel_name = np.full(len(rows), NONE, dtype=np.int64)
    kernel_name[owners] = work.name[kernels[first]]

    labels = [GRAPH_CATEGORY, RUNTIME_CATEGORY, OTHER_OP]
    graph, runtime, other = range(3)
    launched_graph = np.zeros(len(rows), dtype=bool)
    launched_graph[of_gpu[(of_gpu != NONE) & work.tree.by_opaque_graph]] = True
    is_op = np.isin(trace.kind[rows], trace.operation_kinds)
    category = np.where(is_op, other, np.where(launched_graph, graph, runtime))
    for names in (name, kernel_name):
        unknown = np.flatnonzero((category == other) & (names != NONE))
        first, inverse = number_groups([names[unknown]])
        used = names[unknown[first]]
        answers = work.op_categorizer.categorize_ops([trace.names[i] for i in used.tolist()])
        labels += sorted(set(answers) - set(labels))
        code = np.array([labels.index(answer) for answer in answers], dtype=np.int64)
        category[unknown] = code[inverse]
        category[(category == other) & launched_graph] = graph
    return category, labels
