"""Link GPU work to the launches that started it, by correlation id within one rank.

If a trace tells which process launched a GPU event, each process is linked by itself. Any other
trace must be of one rank; it is refused if it turns out to hold several.
"""

from __future__ import annotations

import re
import shlex
from typing import Final, NamedTuple, NoReturn

import numpy as np

from tracelens_ext.errors import MergedRanksError
from tracelens_ext.trace import LAUNCH_KINDS, NONE, EventKind, Int64Array, Trace
from tracelens_ext.trace.merged_ranks import find_merged_ranks, rank_labels

_LAUNCHES_ON_SEVERAL_DEVICES: Final = re.compile(r"GraphLaunch|MultiDevice")
#: Processes or devices that a message names.
_MOST_NAMED: Final = 4


def is_graph_launch(name: str) -> bool:
    """Return True for the name of a runtime call that launches a graph."""
    return name.startswith(("cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch"))


def link(trace: Trace) -> Int64Array:
    """Return the row of each GPU event's launch, `NONE` without one, shape (g,).

    Raises MergedRanksError where several ranks in the file reuse each other's correlation ids.
    """
    gpu = trace.gpu_rows
    launches = trace.rows_of(*LAUNCH_KINDS)
    launches = launches[trace.correlation[launches] > 0]
    launch_of_gpu = np.full(len(gpu), NONE, dtype=np.int64)
    if not len(launches) or not len(gpu):
        return launch_of_gpu
    ids = _ids_of(trace, launches, gpu)
    order = np.argsort(ids.of_launches, kind="stable")
    launches = launches[order]
    launch_ids = ids.of_launches[order]
    first = np.searchsorted(launch_ids, ids.of_gpu, "left")
    behind = np.searchsorted(launch_ids, ids.of_gpu, "right")
    is_linked = (behind > first) & (trace.correlation[gpu] > 0)
    launch_of_gpu[is_linked] = launches[first[is_linked]]

    has_several = np.flatnonzero(is_linked & (behind - first > 1))
    by_process = trace.conventions.gpu_by_process
    if len(has_several):
        if not by_process:
            _refuse_ids_of_two_processes(trace, launches, launch_ids)
        wanted = ids.of_gpu[has_several]
        is_candidate = np.isin(launch_ids, wanted)
        launch_of_gpu[has_several] = _latest_before(
            trace=trace,
            launches=launches[is_candidate],
            ids=launch_ids[is_candidate],
            gpu=gpu[has_several],
            wanted=wanted,
        )
    if not by_process:
        _refuse_launches_on_two_devices(trace, launch_of_gpu)
    return launch_of_gpu


class _Ids(NamedTuple):
    """Numbers that are equal for a launch and the GPU events that it started."""

    of_launches: Int64Array
    of_gpu: Int64Array


def _ids_of(trace: Trace, launches: Int64Array, gpu: Int64Array) -> _Ids:
    """Return the correlation ids; where they count within a process, with the process."""
    rows = np.concatenate((launches, gpu))
    ids = trace.correlation[rows]
    if trace.conventions.gpu_by_process:
        thread = trace.thread[rows]
        process = trace.process_of_thread[thread].astype(np.int64)
        processes = int(process.max()) + 1
        # the ids are huge, but there are not many
        if int(ids.max()) >= 2**62 // processes:
            _, number = np.unique(ids, return_inverse=True)
            ids = number.astype(np.int64)
        ids = ids * processes + process
    return _Ids(of_launches=ids[: len(launches)], of_gpu=ids[len(launches) :])


def _refuse_ids_of_two_processes(
    trace: Trace, launches: Int64Array, ids: Int64Array
) -> None:
    """Raise when launches of two processes share an id that GPU events carry; ids ascend."""
    process = trace.process_of_thread[trace.thread[launches]]
    is_used = np.isin(ids, trace.correlation[trace.gpu_rows])
    is_shared = np.diff(ids) == 0
    is_shared &= np.diff(process) != 0
    is_shared &= is_used[1:]
    if is_shared.any():
        threads = np.unique(trace.thread[launches[is_used]])
        labels = {str(trace.threads[thread][0]) for thread in threads.tolist()}
        processes = sorted(labels)
        _refuse(
            trace=trace, what="processes", labels=processes, count=int(is_shared.sum())
        )


def _refuse_launches_on_two_devices(trace: Trace, launch_of_gpu: Int64Array) -> None:
    """Raise when an ordinary launch has kernels on two devices.

    It starts one kernel on one device; in containers every rank may have the same process id.
    """
    is_kernel = trace.kind[trace.gpu_rows] == EventKind.KERNEL
    has_launch = launch_of_gpu != NONE
    kernels = np.flatnonzero(has_launch & is_kernel)
    call = trace.name[launch_of_gpu[kernels]]
    is_on_several = trace.named(call, _LAUNCHES_ON_SEVERAL_DEVICES.search)
    kernels = kernels[~is_on_several]
    launch = launch_of_gpu[kernels]
    order = np.lexsort((trace.device[kernels], launch))
    kernels = kernels[order]
    is_astray = np.diff(launch[order]) == 0
    is_astray &= np.diff(trace.device[kernels]) != 0
    if is_astray.any():
        devices = np.unique(trace.device[kernels]).tolist()
        _refuse(
            trace=trace,
            what="devices",
            labels=list(map(str, devices)),
            count=int(is_astray.sum()),
        )


def _refuse(trace: Trace, what: str, labels: list[str], count: int) -> NoReturn:
    named = ", ".join(labels[:_MOST_NAMED])
    if len(labels) > _MOST_NAMED:
        named += " …"
    path = trace.provenance.path
    file = shlex.quote(path)
    ranks = find_merged_ranks(trace)
    if ranks:
        raise MergedRanksError(
            path=path,
            problem=f"contains several ranks merged into one file: {rank_labels(ranks)}",
            remedy=f"analyze one of them with --rank {ranks[0].number}, or compare all with:"
            f" tracelens-ext fleet {file} -o results",
            ranks=tuple(rank.number for rank in ranks),
        )
    raise MergedRanksError(
        path=path,
        problem=f"contains several ranks ({what} {named}) that reuse {count:,} correlation ids,"
        " so kernels cannot be attributed to the right one",
        remedy="analyze each rank's own file",
    )


def _latest_before(
    trace: Trace,
    launches: Int64Array,
    ids: Int64Array,
    gpu: Int64Array,
    wanted: Int64Array,
) -> Int64Array:
    """Return, of several launches with a GPU event's id, the last that starts no later.

    The first one where all start later. Launches and GPU events are sorted together, by id and
    time, a launch before a GPU event of the same time; then the launches up to each are counted.

    Args:
        trace: the trace.
        launches: rows of launches, (l,).
        ids: the id of each, ascending, (l,).
        gpu: rows of GPU events, (k,).
        wanted: the id of each, (k,).

    Returns:
        A row of a launch for each of the GPU events, (k,).
    """
    order_of_launches = np.lexsort((trace.ts[launches], ids))
    launches_by_time = launches[order_of_launches]
    first_with_id = np.searchsorted(ids, wanted)
    rows = np.concatenate((launches_by_time, gpu))
    is_gpu = np.arange(len(rows)) >= len(launches)
    all_ids = np.concatenate((ids, wanted))
    order = np.lexsort((is_gpu, trace.ts[rows], all_ids))
    launches_so_far = np.empty(len(rows), dtype=np.int64)
    is_launch = ~is_gpu
    launches_so_far[order] = np.cumsum(is_launch[order])
    latest = launches_so_far[is_gpu] - 1
    launch = np.maximum(latest, first_with_id)
    return rows[launch]
