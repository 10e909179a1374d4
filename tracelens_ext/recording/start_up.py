"""Start-up: idle time that costs once, and not in later iterations.

* A call of the runtime or driver during which the device has nothing to do for over 5 ms, other
  than waits, copies and graph launches: a library is loaded, a context created, the first memory
  allocated (if anything else starts up). A launch is one only where its kernel is launched for
  the first time.
* Loading of code, capture and instantiation of graphs, compilation, cuDNN's search.
* A compiled region that takes over ten times the shortest of its name.

What comes back is none: what is compiled or captured `again`; what the last iteration has, too; and
where nothing tells iterations, long calls of one name that are spread over more than half of the
wall.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.intervals import covered
from tracelens_ext.iterations.iterations import find_iterations
from tracelens_ext.lazy import pd
from tracelens_ext.recording.again import (
    captured_again_from,
    compilations,
    compiled_again_from,
    instantiations,
    slow_regions,
)
from tracelens_ext.trace import LAUNCH_KINDS, NONE, EventKind
from tracelens_ext.work.grouping import maxima, minima, sums
from tracelens_ext.work.lanes import find_lanes
from tracelens_ext.work.launches import captures, lane_of_calls, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens_ext.trace import BoolArray, Int64Array
    from tracelens_ext.work.gpu_work import GpuWork

_LONG_NS: Final = 5_000_000
_SPREAD: Final = 3  # calls of one name at least that are spread
_COMES_BACK: Final = 0.2  # of the most that an iteration has

_FIRST_USE: Final = "first use"
_COMPILATION, _CAPTURE = "compilation", "capture of a graph"
_INSTANTIATION: Final = "instantiation of a graph"
#: What waits for the GPU, copies, or launches a graph may be long whenever it is called.
_WAITS: Final = re.compile(r".*(?:Synchronize|Memcpy|GraphLaunch|Query|EventElapsed)")
_MEMORY: Final = re.compile(r"(?i).*(?:alloc|free)")
#: Calls that are start-up however short they are.
_CALLS: Final = {
    "loading of code": re.compile(r"(?:cuda|hip|cu)(?:Module|Library)Load"),
    "creation of a context": re.compile(r"(?:cu|hip)(?:Init$|CtxCreate|DevicePrimaryCtxRetain)"),
}
_SEARCH: Final = re.compile(r"cudnn(?:Find|Get)\w*Algorithm")


def find_start_up(work: GpuWork, start: int, end: int) -> pd.DataFrame:
    """The start-up of all devices in the wall; parts may overlap.

    Returns:
        Columns as `Recording.parts`, without `ns`.
    """
    trace = work.trace
    found = [
        pd.DataFrame({"what": what, "row": rows, "start": trace.ts[rows], "end": ends})
        for what, rows, ends in _candidates(work)
    ]
    table = pd.concat(found, ignore_index=True)
    table = table.assign(start=table["start"].clip(start), end=table["end"].clip(upper=end))
    table["device"] = lane_of_calls(work, table["row"].to_numpy())
    table = table[(table["device"] != NONE) & (table["end"] > table["start"])]
    table["idle"] = _idle(work, table)
    first_use = table["what"] == _FIRST_USE
    again = _launched_before(work, table["row"].to_numpy())
    table = table[(table["idle"] > np.where(first_use, _LONG_NS, 0)) & ~(first_use & again)]
    memory = trace.names_matching(_MEMORY.match)[trace.name[table["row"].to_numpy()]]
    if memory.all():  # nothing else starts up: the allocator asks again
        table = table[~memory]
    begins = {_COMPILATION: compiled_again_from(work)}
    begins |= dict.fromkeys((_CAPTURE, _INSTANTIATION), captured_again_from(work))
    table = table[table["start"] < [begins.get(what, end) for what in table["what"]]]
    table = table[~_comes_back(work, table, (end - start) // 2)]
    place = [place_of(work, row) for row in table["row"].tolist()]
    names = trace.name[table["row"].to_numpy()].tolist()
    what = [f"{w}: {trace.names[n]}" for w, n in zip(table["what"], names, strict=True)]
    columns = ["device", "start", "end"]
    return table[columns].assign(kind="start_up", count=1, what=what, place=place)


def _candidates(work: GpuWork) -> Iterator[tuple[str, Int64Array, Int64Array]]:
    """What it is called, the host events, and when each ends."""
    trace = work.trace
    calls = trace.rows_of(*LAUNCH_KINDS)
    long = np.setdiff1d(calls[trace.dur[calls] > _LONG_NS], instantiations(trace))
    long = long[~trace.named(trace.name[long], _WAITS.match)]
    yield _FIRST_USE, long, trace.end_of(long)
    yield _CAPTURE, *captures(trace)
    for what, pattern in _CALLS.items():
        rows = calls[trace.named(trace.name[calls], pattern.match)]
        yield what, rows, trace.end_of(rows)
    around = trace.rows_of(EventKind.CPU_OP, EventKind.USER_ANNOTATION)
    searches = around[trace.named(trace.name[around], _SEARCH.match)]
    for what, rows in (
        (_INSTANTIATION, instantiations(trace)),
        (_COMPILATION, compilations(trace)),
        (_COMPILATION, slow_regions(trace)),
        ("search for the best convolution", searches),
    ):
        yield what, rows, trace.end_of(rows)


def _idle(work: GpuWork, table: pd.DataFrame) -> Int64Array:
    """How long the device of each row is idle in it, ns."""
    lane, device = find_lanes(work, "device").of_gpu, table["device"].to_numpy()
    start, end = table["start"].to_numpy(), table["end"].to_numpy()
    idle: Int64Array = end - start
    for number in np.unique(device).tolist():
        mine, here = lane == number, device == number
        idle[here] -= covered(work.start[mine], work.end[mine], start[here], end[here])
    return idle


def _launched_before(work: GpuWork, rows: Int64Array) -> BoolArray:
    """Whether each is a launch of a kernel that was launched before."""
    trace, events = work.trace, np.flatnonzero(work.tree.linked & work.is_kernel)
    launch, name = work.tree.launch_of_gpu[events], work.name[events]
    order = np.lexsort((trace.ts[launch], name))
    first = np.diff(name[order], prepend=NONE) != 0
    again = np.isin(rows, launch) & ~np.isin(rows, launch[order[first]])
    result: BoolArray = again
    return result


def _comes_back(work: GpuWork, table: pd.DataFrame, half: int) -> BoolArray:
    """Whether what each row is about comes back later."""
    trace, iterations = work.trace, find_iterations(work.tree)
    number = table.groupby(
        [table["what"], trace.name[table["row"].to_numpy()]], sort=False
    ).ngroup()
    groups = number.to_numpy()
    count = int(groups.max(initial=-1)) + 1
    start, idle = table["start"].to_numpy(), table["idle"].to_numpy()
    if len(iterations) < 2:
        spread = maxima(groups, start, count) - minima(groups, start, count) > half
        many = np.bincount(groups, minlength=count) >= _SPREAD
        return (spread & many)[groups] & (table["what"] == _FIRST_USE).to_numpy()
    order = np.argsort(iterations.start, kind="stable")
    step = np.searchsorted(iterations.start[order], start, side="right")
    steps = len(order) + 1
    time = sums(groups * steps + step, idle, count * steps).reshape(count, steps)
    enough = time >= np.maximum(_COMES_BACK * time.max(axis=1, keepdims=True), 1)
    last = int(np.flatnonzero(iterations.whole[order]).max(initial=0)) + 1
    result: BoolArray = (enough[:, last] & (enough[:, 1:].sum(axis=1) > 1))[groups]
    return result
