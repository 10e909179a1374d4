"""First launches of kernels, which load the module of the kernel and are slow for it."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelens_ext.trace import BoolArray, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks
from tracelens_ext.trace.integer_sorting import begins_run

#: A first launch is slow if it takes at least this many times as long as a later one of the same
#: kernel …
_TIMES_LATER_LAUNCHES: Final = 5
#: … and at least this long, ns.
_LEAST_FIRST_LAUNCH_NS: Final = 50_000
#: The only launch of a kernel is slow if it takes longer than this, ns.
_LEAST_ONLY_LAUNCH_NS: Final = 200_000
#: A first launch that takes longer than this, ns, does more than load a module: it is a first use.
_MOST_FIRST_LAUNCH_NS: Final = 5_000_000
_NEVER: Final = np.iinfo(np.int64).max


def slow_first_launches(gpu_events: GpuEvents) -> Int64Array:
    """Return the rows of the first launches that are so slow that they load a module.

    Such a launch takes at least five times as long as the quickest later launch of the same kernel
    on the same device, or over 200 µs if the kernel is launched only once.
    """
    trace = gpu_events.trace
    events = np.flatnonzero(
        gpu_events.tree.linked & gpu_events.is_kernel & ~gpu_events.tree.by_graph
    )
    launch = gpu_events.tree.launch_of_gpu[events]
    # Each device loads its own modules, so a kernel on another device is another kernel.
    device = find_tracks(gpu_events, "device").of_gpu[events].astype(np.int64)
    kernel = device * len(trace.names) + gpu_events.name[events]
    by_kernel_and_time = np.lexsort((trace.ts[launch], kernel))
    launch = launch[by_kernel_and_time]
    duration = trace.dur[launch]
    is_first = begins_run(kernel[by_kernel_and_time])
    first_of_kernel = np.flatnonzero(is_first)
    if not len(first_of_kernel):
        return launch
    # Launches of a kernel stand together, so the minimum over each run is over one kernel.
    later_duration = np.where(is_first, _NEVER, duration)
    quickest_later = np.minimum.reduceat(later_duration, first_of_kernel)
    launch_count = np.diff(first_of_kernel, append=len(launch))
    first_duration = duration[first_of_kernel]
    is_slow = first_duration // _TIMES_LATER_LAUNCHES >= quickest_later
    is_slow &= first_duration >= _LEAST_FIRST_LAUNCH_NS
    is_only = launch_count == 1
    is_slow[is_only] = first_duration[is_only] > _LEAST_ONLY_LAUNCH_NS
    is_slow &= first_duration <= _MOST_FIRST_LAUNCH_NS
    slow: Int64Array = launch[first_of_kernel[is_slow]]
    return slow


def launch_known_kernels(gpu_events: GpuEvents, rows: Int64Array) -> BoolArray:
    """Return a mask of the k events that launch a kernel that was launched before, (k,)."""
    trace = gpu_events.trace
    events = np.flatnonzero(gpu_events.tree.linked & gpu_events.is_kernel)
    launch = gpu_events.tree.launch_of_gpu[events]
    name = gpu_events.name[events]
    by_name_and_time = np.lexsort((trace.ts[launch], name))
    is_first_of_name = begins_run(name[by_name_and_time])
    first_launches = launch[by_name_and_time[is_first_of_name]]
    is_launch = np.isin(rows, launch)
    return is_launch & ~np.isin(rows, first_launches)
