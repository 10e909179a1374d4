"""Warm-up: work that happens once, such as first use, compilation, and the capture of graphs.

`warm_up_events` lists the host events that may be warm-up. This module drops those that do not
delay the GPU, and those that come back (`recurrence`) and therefore belong to the program's regular
work.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.coverage.first_launches import launch_known_kernels
from tracelens_ext.analysis.coverage.recurrence import (
    comes_back,
    repeated_captures_begin,
    repeated_compilations_begin,
)
from tracelens_ext.analysis.coverage.warm_up_events import (
    LONG_CALL_NS,
    WarmUp,
    warm_up_events,
)
from tracelens_ext.analysis.coverage.warm_up_work import WARM_UP_COLUMNS
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents, busy_within, find_tracks
from tracelens_ext.trace.grouping import maxima, minima, sums
from tracelens_ext.trace.launches import device_index_of_calls
from tracelens_ext.trace.nesting import ROOT, nearest_above

#: First launches that take a smaller share of a device's time are not worth mentioning.
_LEAST_FIRST_LAUNCHES_SHARE: Final = 0.01
#: Calls that allocate or free memory.
_MEMORY: Final = re.compile(r"(?i).*(?:alloc|free)")


def find_warm_up(gpu_events: GpuEvents, wall_start: int, wall_end: int) -> pd.DataFrame:
    """Return the warm-up of all devices within the wall time; its parts may overlap.

    Warm-up is:

    * a call of the runtime or driver during which the device is idle for over `LONG_CALL_NS`,
      because a library is loaded, a context is created, or the first memory is allocated. Waits,
      copies and graph launches do not count. A launch counts only if its kernel is launched for the
      first time, and allocations count only next to other warm-up. If one operation contains
      several such calls, the time between them is warm-up, too;
    * the first launch of a kernel, however short, if it loads the module of the kernel;
    * code loading, capture and instantiation of graphs, compilation, and cuDNN's search;
    * a range that the program calls warm-up;
    * a run of a compiled region that takes over ten times as long as its shortest run.

    What comes back is not warm-up: anything that is compiled or captured again; anything that the
    last iteration contains, too; and without iterations, long calls of one name that are spread
    over more than half of the wall time.

    Returns:
        A table with the columns `device` (an index), `start`, `end` (ns since the trace's first
        event), `row` (of the host event), `count` (always 1) and `what` (the kind of warm-up and
        the name of the event). Until the last step, `what` is the kind alone.
    """
    table = warm_up_events(gpu_events)
    if not len(table):
        return pd.DataFrame(columns=list(WARM_UP_COLUMNS))
    table = table.assign(
        device=device_index_of_calls(gpu_events, table["row"].to_numpy())
    )
    table = table[table["device"] != NONE]
    table = _clipped_to_device_times(gpu_events, table, wall_start)
    table = _with_idle_time(gpu_events, table)
    table = _without_allocations_alone(gpu_events, table)
    table = table[table["start"] < _repetition_begins(gpu_events, table, wall_end)]
    half_wall_ns = (wall_end - wall_start) // 2
    is_recurring = comes_back(gpu_events, table, half_wall_ns)
    # The first launch of a kernel cannot come back.
    is_first_launch = table["what"] == WarmUp.FIRST_LAUNCH.value
    table = table[is_first_launch | ~is_recurring]
    table = _without_few_first_launches(gpu_events, table)
    table = _joined_within_operations(gpu_events, table)
    names = [gpu_events.trace.name_of(row) for row in table["row"].tolist()]
    kinds = table["what"]
    causes = [f"{kind}: {name}" for kind, name in zip(kinds, names, strict=True)]
    return table.assign(count=1, what=causes)[list(WARM_UP_COLUMNS)]


class _Spans(NamedTuple):
    """When each of d devices works first and last, ns since the trace's first event."""

    start: Int64Array  #: (d,)
    end: Int64Array  #: (d,)


def _spans_of_devices(gpu_events: GpuEvents) -> _Spans:
    """Return the first start and the last end of the GPU events of each device."""
    tracks = find_tracks(gpu_events, "device")
    count = len(tracks)
    return _Spans(
        start=minima(tracks.of_gpu, gpu_events.start, count),
        end=maxima(tracks.of_gpu, gpu_events.end, count),
    )


def _clipped_to_device_times(
    gpu_events: GpuEvents, table: pd.DataFrame, wall_start: int
) -> pd.DataFrame:
    """Return the events clipped to the time from their device's first to its last GPU event.

    Events outside of this time are left out. If the first GPU events were dropped, the wall time
    begins before all recorded work. The time of the device that works first then begins with the
    wall time.
    """
    spans = _spans_of_devices(gpu_events)
    is_first_device = spans.start == spans.start.min()
    device_start = np.where(is_first_device, wall_start, spans.start)
    device = table["device"].to_numpy()
    table = table.assign(
        start=table["start"].clip(device_start[device]),
        end=table["end"].clip(upper=spans.end[device]),
    )
    return table[table["end"] > table["start"]]


def _with_idle_time(gpu_events: GpuEvents, table: pd.DataFrame) -> pd.DataFrame:
    """Return the events during which the device is idle, with that time as `idle`, ns.

    A first use must leave the device idle for over `LONG_CALL_NS`, and must not launch a kernel
    that was launched before.
    """
    start = table["start"].to_numpy()
    end = table["end"].to_numpy()
    busy_ns = busy_within(
        gpu_events=gpu_events,
        device_index=table["device"].to_numpy(),
        start=start,
        end=end,
    )
    idle_ns = end - start - busy_ns
    is_first_use = (table["what"] == WarmUp.FIRST_USE.value).to_numpy()
    least_idle_ns = np.where(is_first_use, LONG_CALL_NS, 0)
    is_known_kernel = launch_known_kernels(gpu_events, table["row"].to_numpy())
    is_chosen = (idle_ns > least_idle_ns) & ~(is_first_use & is_known_kernel)
    chosen: pd.DataFrame = table.assign(idle=idle_ns)[is_chosen]
    return chosen


def _without_allocations_alone(
    gpu_events: GpuEvents, table: pd.DataFrame
) -> pd.DataFrame:
    """Return the table, or no rows if all of them allocate or free memory.

    Without any other warm-up, the allocator of a running program just asks for more memory.
    """
    names = gpu_events.trace.name[table["row"].to_numpy()]
    is_about_memory = gpu_events.trace.named(names, _MEMORY.match)
    if is_about_memory.all():
        return table.head(0)
    return table


def _repetition_begins(
    gpu_events: GpuEvents, table: pd.DataFrame, wall_end: int
) -> list[int]:
    """Return, for each event, the time from which on its kind of warm-up is a repetition, ns.

    Kinds of warm-up other than compilations and captures get the end of the wall time.
    """
    repeated_captures = repeated_captures_begin(gpu_events)
    begin_of_kind = {
        WarmUp.COMPILATION.value: repeated_compilations_begin(gpu_events),
        WarmUp.CAPTURE.value: repeated_captures,
        WarmUp.INSTANTIATION.value: repeated_captures,
    }
    return [begin_of_kind.get(kind, wall_end) for kind in table["what"]]


def _without_few_first_launches(
    gpu_events: GpuEvents, table: pd.DataFrame
) -> pd.DataFrame:
    """Return the table without first launches on devices on which they take hardly any time."""
    spans = _spans_of_devices(gpu_events)
    is_first_launch = (table["what"] == WarmUp.FIRST_LAUNCH.value).to_numpy()
    device = table["device"].to_numpy().astype(np.int64)
    idle_ns = np.where(is_first_launch, table["idle"].to_numpy(), 0)
    idle_ns_of_device = sums(
        group_index=device, values=idle_ns, group_count=len(spans.start)
    )
    threshold_ns = _LEAST_FIRST_LAUNCHES_SHARE * (spans.end - spans.start)
    is_much = idle_ns_of_device >= threshold_ns
    return table[~is_first_launch | is_much[device]]


def _joined_within_operations(
    gpu_events: GpuEvents, table: pd.DataFrame
) -> pd.DataFrame:
    """Extend first uses: each one lasts until the last first use of its operation ends.

    The time between several first uses of one operation is warm-up, too.
    """
    tree = gpu_events.tree
    first_uses = table[table["what"] == WarmUp.FIRST_USE.value]
    position = tree.position[first_uses["row"].to_numpy()]
    operation = nearest_above(
        parent=tree.parent_position, nodes=position, marked=tree.is_operation
    )
    first_uses = first_uses.assign(operation=operation)
    first_uses = first_uses[first_uses["operation"] != ROOT]
    last_end = first_uses.groupby(["device", "operation"])["end"].transform("max")
    table = table.copy()
    table.loc[last_end.index, "end"] = last_end
    return table
