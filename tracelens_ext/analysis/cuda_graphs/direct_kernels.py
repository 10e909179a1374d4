"""The kernels of captured launches whose names the profiler did not record.

The program usually runs the same code outside of graphs, too, to warm up. There, the profiler
records the kernels.
"""

from __future__ import annotations

import numpy as np

from tracelens_ext.trace import NONE, EventKind, Int64Array, Trace
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.grouping import (
    NumberedGroups,
    maxima,
    minima,
    number_groups,
    texts,
)
from tracelens_ext.trace.nesting import ROOT, nearest_above


def kernels_elsewhere(tree: CallTree, rows: Int64Array) -> dict[int, str]:
    """Return the kernels that captured launches start where the same code runs outside of graphs.

    Two launches are of the same code if their CPU ops have the same name, the same shapes and the
    same number of launches, and if both launches are at the same place within their op. A captured
    launch gets a kernel only if all launches of the same code outside of graphs start that kernel.

    Args:
        tree: the call tree.
        rows: the captured launches.

    Returns:
        Row of a captured launch → the name of the kernel; launches without an answer are absent.
    """
    trace = tree.trace
    launches, kernel = _kernels_of_direct_launches(tree)
    calls = np.concatenate((launches, rows))
    kernel = np.append(kernel, np.full(len(rows), NONE))
    is_op = trace.kind[tree.rows] == EventKind.CPU_OP
    op_position = nearest_above(
        parent=tree.parent_position, nodes=tree.position[calls], marked=is_op
    )
    is_in_op = op_position != ROOT
    calls = calls[is_in_op]
    kernel = kernel[is_in_op]
    op = tree.rows[op_position[is_in_op]]
    by_op = np.lexsort((trace.ts[calls], op))
    calls = calls[by_op]
    kernel = kernel[by_op]
    op = op[by_op]

    first_call_of_code, code_of_call = _same_code(trace, op)
    code_count = len(first_call_of_code)

    # Code starts a single kernel if the least and the greatest name of its kernels are equal.
    is_known = kernel != NONE
    known_kernel = kernel[is_known].astype(np.int64)
    known_code = code_of_call[is_known]
    least = minima(known_code, known_kernel, code_count)
    greatest = maxima(known_code, known_kernel, code_count)
    has_one_kernel = least == greatest
    is_answered = np.isin(calls, rows) & has_one_kernel[code_of_call]
    names = texts(greatest[code_of_call[is_answered]], trace.names)
    return dict(zip(calls[is_answered].tolist(), names, strict=True))


def _same_code(trace: Trace, op: Int64Array) -> NumberedGroups:
    """Put launches of the same code into one group; `kernels_elsewhere` says which these are.

    Args:
        trace: the trace.
        op: the CPU op around each launch; launches are sorted by op and time, (c,).
    """
    # Ops 7 7 9 9 9: each call is at place 0 1 0 1 2 of its op, which has 2 2 3 3 3 calls.
    first_of_op = np.flatnonzero(np.diff(op, prepend=NONE))
    calls_of_op = np.diff(np.append(first_of_op, len(op)))
    place_in_op = np.arange(len(op)) - np.repeat(first_of_op, calls_of_op)
    call_count = np.repeat(calls_of_op, calls_of_op)
    shapes = trace.arg("Input Dims").at(op)
    return number_groups([trace.name[op], shapes, call_count, place_in_op])


def _kernels_of_direct_launches(tree: CallTree) -> tuple[Int64Array, Int64Array]:
    """Return the launches outside of graphs, and the name code of each one's kernel.

    The code is `NONE` for a launch that started several GPU events.
    """
    trace = tree.trace
    events = np.flatnonzero(tree.linked & ~tree.by_graph)
    launch_of_event = tree.launch_of_gpu[events]
    launches, first, event_count = np.unique(
        launch_of_event, return_index=True, return_counts=True
    )
    first_kernel = trace.name[trace.gpu_rows[events[first]]]
    return launches, np.where(event_count == 1, first_kernel, NONE)
