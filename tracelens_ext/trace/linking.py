"""Which launch started which GPU work: by correlation id, within one rank.

If a trace tells which process launched a GPU event, each process is linked by itself. Any other
trace must be of one rank; it is refused if it turns out to hold several.
"""

from __future__ import annotations

import re
from typing import NoReturn

import numpy as np

from tracelens_ext.errors import MergedRanksError
from tracelens_ext.trace import LAUNCH_KINDS, NONE, EventKind, Int64Array, Trace

_OF_SEVERAL_DEVICES = re.compile(r"GraphLaunch|MultiDevice")


def is_graph_launch(name: str) -> bool:
    """Whether a runtime call of that name launches a graph."""
    return name.startswith(("cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch"))


def link(trace: Trace) -> Int64Array:
    """Row of each GPU event's launch, `NONE` without one, shape (g,).

    Raises MergedRanksError where several ranks in the file reuse each other's correlation ids.
    """
    gpu = trace.gpu_rows
    launches = trace.rows_of(*LAUNCH_KINDS)
    launches = launches[trace.correlation[launches] > 0]
    result = np.full(len(gpu), NONE, dtype=np.int64)
    if not len(launches) or not len(gpu):
        return result
    ids, wanted = _ids(trace, launches, gpu)
    order = np.argsort(ids, kind="stable")
    launches = launches[order]
    ids = ids[order]
    first, last = (np.searchsorted(ids, wanted, side) for side in ("left", "right"))
    found = (last > first) & (trace.correlation[gpu] > 0)
    result[found] = launches[first[found]]
    several = np.flatnonzero(found & (last - first > 1))
    by_process = trace.conventions.gpu_by_process
    if len(several):
        if not by_process:
            _refuse_ids_of_two_processes(trace, launches, ids)
        shared = np.isin(ids, wanted[several])
        result[several] = _latest_before(
            trace, launches[shared], ids[shared], gpu[several], wanted[several]
        )
    if not by_process:
        _refuse_launches_on_two_devices(trace, result)
    return result


def _ids(trace: Trace, launches: Int64Array, gpu: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Ids of the launches and of the GPU events, equal for those that belong together."""
    rows = np.concatenate((launches, gpu))
    ids = trace.correlation[rows]
    if trace.conventions.gpu_by_process:
        process = trace.process_of_thread[trace.thread[rows]].astype(np.int64)
        processes = int(process.max()) + 1
        if int(ids.max()) >= 2**62 // processes:  # the ids are huge, but there are not many
            ids = np.unique(ids, return_inverse=True)[1].astype(np.int64)
        ids = ids * processes + process
    return ids[: len(launches)], ids[len(launches) :]


def _refuse_ids_of_two_processes(trace: Trace, launches: Int64Array, ids: Int64Array) -> None:
    """Raise when launches of two processes share an id that GPU events carry."""
    process = trace.process_of_thread[trace.thread[launches]]
    used = np.isin(ids, trace.correlation[trace.gpu_rows])
    shared = (np.diff(ids) == 0) & (np.diff(process) != 0) & used[1:]
    if shared.any():
        threads = np.unique(trace.thread[launches[used]]).tolist()
        pids = sorted({str(trace.threads[thread][0]) for thread in threads})
        _refuse(trace, "processes", pids, int(shared.sum()))


def _refuse_launches_on_two_devices(trace: Trace, launch_of_gpu: Int64Array) -> None:
    """Raise when an ordinary launch has kernels on two devices.

    It starts one kernel on one device; in containers every rank may have the same process id.
    """
    is_kernel = trace.kind[trace.gpu_rows] == EventKind.KERNEL
    kernels = np.flatnonzero((launch_of_gpu != NONE) & is_kernel)
    calls = trace.name[launch_of_gpu[kernels]]
    kernels = kernels[~trace.named(calls, _OF_SEVERAL_DEVICES.search)]
    kernels = kernels[np.lexsort((trace.device[kernels], launch_of_gpu[kernels]))]
    one_launch = np.diff(launch_of_gpu[kernels]) == 0
    astray = one_launch & (np.diff(trace.device[kernels]) != 0)
    if astray.any():
        devices = np.unique(trace.device[kernels])
        _refuse(trace, "devices", [str(number) for number in devices], int(astray.sum()))


def _refuse(trace: Trace, what: str, labels: list[str], count: int) -> NoReturn:
    shown = ", ".join(labels[:4]) + (" …" if len(labels) > 4 else "")
    raise MergedRanksError(
        trace.provenance.path,
        f"holds several ranks ({what} {shown}) that reuse {count:,} correlation ids,"
        " so kernels cannot be attributed to the right one",
        "analyse each rank's own file",
    )


def _latest_before(
    trace: Trace, candidates: Int64Array, ids: Int64Array, gpu: Int64Array, wanted: Int64Array
) -> Int64Array:
    """Of several launches with a GPU event's id, the last that starts no later; else the first."""
    order = np.lexsort((trace.ts[candidates], ids))
    first = np.searchsorted(ids, wanted)
    rows = np.concatenate((candidates[order], gpu))
    is_gpu = np.arange(len(rows)) >= len(order)
    merged = np.lexsort((is_gpu, trace.ts[rows], np.concatenate((ids, wanted))))
    so_far = np.empty(len(rows), dtype=np.int64)  # launches up to each, by id and time
    so_far[merged] = np.cumsum(~is_gpu[merged])
    return rows[np.maximum(so_far[is_gpu] - 1, first)]
