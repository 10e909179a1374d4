"""Link GPU work to the launches that started it, by correlation id within one rank.

If a trace tells which process launched a GPU event, ids are compared within each process. Any
other trace must be from one rank: `link` raises an error if it finds several.
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
#: The most processes or devices that a message names.
_MOST_NAMED: Final = 4


def is_graph_launch(name: str) -> bool:
    """Return True for the name of a runtime call that launches a graph."""
    return name.startswith(("cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch"))


def link(trace: Trace) -> Int64Array:
    """Return the row of each GPU event's launch, `NONE` for an event without one, shape (g,).

    Raises:
        MergedRanksError: several ranks in the file reuse each other's correlation ids.
    """
    gpu = trace.gpu_rows
    launches = trace.rows_of(*LAUNCH_KINDS)
    launches = launches[trace.correlation[launches] > 0]
    launch_of_gpu = np.full(len(gpu), NONE, dtype=np.int64)
    if not len(launches) or not len(gpu):
        return launch_of_gpu
    ids = _ids_of(trace, launches, gpu)
    # The launches with the id of a GPU event are neighbors in order of id: from `first` to `end`.
    order = np.argsort(ids.of_launches, kind="stable")
    launches = launches[order]
    launch_ids = ids.of_launches[order]
    first = np.searchsorted(launch_ids, ids.of_gpu, "left")
    end = np.searchsorted(launch_ids, ids.of_gpu, "right")
    is_linked = (end > first) & (trace.correlation[gpu] > 0)
    launch_of_gpu[is_linked] = launches[first[is_linked]]

    has_several = np.flatnonzero(is_linked & (end - first > 1))
    by_process = trace.conventions.gpu_by_process
    if len(has_several):
        if not by_process:
            _refuse_ids_of_two_processes(trace, launches, launch_ids)
        gpu_ids = ids.of_gpu[has_several]
        is_candidate = np.isin(launch_ids, gpu_ids)
        launch_of_gpu[has_several] = _latest_before(
            trace=trace,
            launches=launches[is_candidate],
            launch_ids=launch_ids[is_candidate],
            gpu=gpu[has_several],
            gpu_ids=gpu_ids,
        )
    if not by_process:
        _refuse_launches_on_two_devices(trace, launch_of_gpu)
    return launch_of_gpu


class _Ids(NamedTuple):
    """Numbers that are equal for a launch and the GPU events that it started."""

    of_launches: Int64Array
    of_gpu: Int64Array


def _ids_of(trace: Trace, launches: Int64Array, gpu: Int64Array) -> _Ids:
    """Return the correlation ids, combined with the process if ids are unique only within one."""
    rows = np.concatenate((launches, gpu))
    ids = trace.correlation[rows]
    if trace.conventions.gpu_by_process:
        thread = trace.thread[rows]
        process = trace.process_of_thread[thread].astype(np.int64)
        processes = int(process.max()) + 1
        # Ids that are too large to be combined are replaced by their ranks, which are small.
        if int(ids.max()) >= 2**62 // processes:
            _, rank_of_id = np.unique(ids, return_inverse=True)
            ids = rank_of_id.astype(np.int64)
        ids = ids * processes + process
    return _Ids(of_launches=ids[: len(launches)], of_gpu=ids[len(launches) :])


def _refuse_ids_of_two_processes(
    trace: Trace, launches: Int64Array, launch_ids: Int64Array
) -> None:
    """Raise an error if launches of two processes have the same id, and a GPU event has it, too.

    Args:
        trace: the trace.
        launches: rows of launches, sorted by id, (l,).
        launch_ids: the id of each launch, (l,).
    """
    process = trace.process_of_thread[trace.thread[launches]]
    is_used = np.isin(launch_ids, trace.correlation[trace.gpu_rows])
    is_shared = np.diff(launch_ids) == 0
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
    """Raise an error if an ordinary launch has kernels on two devices.

    Such a launch starts one kernel on one device. Kernels on two devices mean that two ranks share
    a process id, as ranks in containers may.
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
    is_on_other_device = np.diff(launch[order]) == 0
    is_on_other_device &= np.diff(trace.device[kernels]) != 0
    if is_on_other_device.any():
        devices = np.unique(trace.device[kernels]).tolist()
        _refuse(
            trace=trace,
            what="devices",
            labels=list(map(str, devices)),
            count=int(is_on_other_device.sum()),
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
    launch_ids: Int64Array,
    gpu: Int64Array,
    gpu_ids: Int64Array,
) -> Int64Array:
    """Return the last launch with each GPU event's id that does not start after the event.

    If all launches with the id start after the event, it is the first of them.

    Args:
        trace: the trace.
        launches: rows of launches, (l,).
        launch_ids: the id of each launch, ascending, (l,).
        gpu: rows of GPU events, (k,).
        gpu_ids: the id of each GPU event, which at least one launch has, too, (k,).

    Returns:
        The row of a launch for each GPU event, (k,).
    """
    order_of_launches = np.lexsort((trace.ts[launches], launch_ids))
    launches_by_time = launches[order_of_launches]
    first_with_id = np.searchsorted(launch_ids, gpu_ids)
    # Launches and GPU events are sorted together by id and time, a launch before a GPU event of the
    # same time. The number of launches up to an event is the index of its latest launch, plus 1.
    rows = np.concatenate((launches_by_time, gpu))
    is_gpu = np.arange(len(rows)) >= len(launches)
    all_ids = np.concatenate((launch_ids, gpu_ids))
    order = np.lexsort((is_gpu, trace.ts[rows], all_ids))
    launches_so_far = np.empty(len(rows), dtype=np.int64)
    is_launch = ~is_gpu
    launches_so_far[order] = np.cumsum(is_launch[order])
    latest = launches_so_far[is_gpu] - 1
    launch = np.maximum(latest, first_with_id)
    return rows[launch]
