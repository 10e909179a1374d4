"""The places of a claim: the operations, kernels, Python frames, … with most of its time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.idle_time import cpu_activity as hosts
from tracelens_ext.analysis.idle_time.cpu_activity import KINDS_OF_COLUMN
from tracelens_ext.analysis.iterations.named_iterations import named_iterations
from tracelens_ext.analysis.modules import has_modules, module_of_gpu
from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.findings.finding import Claim, Intervals, Place
from tracelens_ext.text import NO_OPERATION
from tracelens_ext.trace import (
    NONE,
    NS_PER_MS,
    BoolArray,
    EventKind,
    Float64Array,
    Int64Array,
    IntArray,
)
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import number_groups, texts
from tracelens_ext.trace.integer_sorting import distinct
from tracelens_ext.trace.intervals import inside
from tracelens_ext.trace.lookup import values_at

#: The most places of a kind that a finding names. Nobody acts on more at once.
MOST_PLACES: Final = 5
#: Python frames are looked up only for this many GPU events, the longest ones.
_MOST_LOOKED_UP: Final = 500
#: Events that tell the place of a launch outside of all operations.
_ENCLOSING: Final = (EventKind.USER_ANNOTATION, EventKind.PYTHON_FUNCTION)
#: Beginnings of the names of frames that users cannot change. Such a frame is a place only if no
#: other frame is around.
_NO_LINES: Final = (
    "<built-in",
    "nn.Module: ",
    "torch/",
    "threading.py",
    "queue.py",
    "selectors.py",
    "multiprocessing/",
)

#: `NO_OPERATION` is named only if it has this share of the idle time.
_NAMED_SHARE: Final = 1 / 3
#: A number that distinguishes similar ranges, as in `ensure_layer_4_weights`.
_NUMBER: Final = re.compile(
    r"(?<![A-Za-z0-9])[0-9]+(?![A-Za-z0-9])|(?<=_)[0-9]+(?=_|$)"
)
#: What follows the file in the name of a frame.
_LINE_OF_FRAME: Final = re.compile(r"\(\d+\): .*$")
#: At least this many names that differ only in numbers become one place.
_FEWEST_FOLDED: Final = 3

#: Finds the innermost events of some kinds, without those whose names begin in some ways.
FindMoments = Callable[[tuple[EventKind, ...], tuple[str, ...]], hosts.HostSegments]


def places_of(
    gpu_events: GpuEvents,
    claim: Claim,
    idle_moments: FindMoments,
    known: Mapping[str, Sequence[Place]] | None = None,
) -> dict[str, Sequence[Place]]:
    """Return the places of a claim by kind, those with the most time first.

    Args:
        gpu_events: the GPU events.
        claim: the attributed time.
        idle_moments: `hosts.idle_time_segments` of the work.
        known: places that the detector knows better, by kind; they replace those found here.
    """
    places_of_gaps = _of_gaps(gpu_events, claim, idle_moments)
    places_of_events = _of_events(gpu_events, claim)
    kinds = [
        "operations",
        "modules",
        "python_frames",
        "iterations",
        "streams",
        "kernels",
        "calls",
    ]
    places: dict[str, Sequence[Place]] = {}
    for kind in kinds:
        found = places_of_gaps.get(kind, []) + places_of_events.get(kind, [])
        by_time = sorted(_merged(found), key=lambda place: -place.attributed_ms)
        places[kind] = by_time[:MOST_PLACES]
    places.update(known or {})
    return {kind: found for kind, found in places.items() if found}


def _merged(places: Sequence[Place]) -> list[Place]:
    """Return places of which those with the same name are one."""
    by_name: dict[str, Place] = {}
    for place in places:
        same = by_name.get(
            place.name, Place(name=place.name, attributed_ms=0.0, count=0)
        )
        by_name[place.name] = Place(
            name=place.name,
            attributed_ms=same.attributed_ms + place.attributed_ms,
            count=same.count + place.count,
        )
    return list(by_name.values())


def ranked(
    code: IntArray, labels: Sequence[str], ns: IntArray | Float64Array
) -> list[Place]:
    """Return the labels with the most time as places, the largest first.

    Args:
        code: an index into `labels` for each item, `NONE` for items of no place, (n,).
        labels: the names of the places; an empty name is left out.
        ns: the time of each item, (n,).
    """
    items = np.flatnonzero(code != NONE)
    if not len(items):
        return []
    first, group = number_groups([code[items]])
    total_ms = np.bincount(group, ns[items]) / NS_PER_MS
    count = np.bincount(group)
    order = np.argsort(-total_ms, kind="stable")
    first_item = items[first[order]]
    names = texts(code[first_item], labels)
    # Several codes may have the same label, so names are compared, not codes.
    distinct_names = dict.fromkeys(filter(None, names))
    largest_names = set(islice(distinct_names, 4 * MOST_PLACES))
    places = []
    for name, attributed_ms, name_count in zip(
        names,
        total_ms[order].tolist(),
        count[order].tolist(),
        strict=True,
    ):
        if name in largest_names:
            places.append(Place(name, attributed_ms, name_count))
    return _merged(places)


def folded_labels(
    code: Int64Array, labels: Sequence[str]
) -> tuple[Int64Array, list[str]]:
    """Return codes and labels, with one label for those that differ only in numbers.

    `ensure_layer_0` to `ensure_layer_39` become `ensure_layer_#`. Fewer than `_FEWEST_FOLDED`
    similar labels stay as they are.
    """
    patterns = [_NUMBER.sub("#", label) for label in labels]
    count = Counter(patterns)

    def folded(label: str) -> str:
        pattern = _NUMBER.sub("#", label)
        if count[pattern] >= _FEWEST_FOLDED:
            return pattern
        return label

    return _relabeled(code, labels, folded)


def _relabeled(
    code: Int64Array, labels: Sequence[str], relabel: Callable[[str], str]
) -> tuple[Int64Array, list[str]]:
    """Return codes and labels with new labels; labels that become equal get one code."""
    new_labels = [relabel(label) for label in labels]
    distinct_labels = list(dict.fromkeys(new_labels))
    code_of_label = {label: new_code for new_code, label in enumerate(distinct_labels)}
    new_code_of_old = np.array(
        [code_of_label[label] for label in new_labels], dtype=np.int64
    )
    new_code = values_at(new_code_of_old, code)
    return np.where(code == NONE, NONE, new_code), distinct_labels


def _of_gaps(
    gpu_events: GpuEvents, claim: Claim, idle_moments: FindMoments
) -> dict[str, list[Place]]:
    """Return the places of the idle time of a claim: what the host was in at each moment."""
    idle = claim.intervals.chosen(claim.intervals.gap != NONE)
    if not len(idle.start):
        return {}
    columns: dict[str, hosts.HostColumn] = {
        "operations": "host_op",
        "calls": "host_call",
        "python_frames": "python_frame",
    }
    places = {}
    for kind, column in columns.items():
        places[kind] = _ranked_in_gaps(
            gpu_events, claim, idle_moments, KINDS_OF_COLUMN[column]
        )
    places["iterations"] = _iterations_during(gpu_events, idle, len(claim.devices))
    return places


def python_files(
    gpu_events: GpuEvents, claim: Claim, idle_moments: FindMoments
) -> list[Place]:
    """Return the Python files whose frames are innermost in most of the idle time of a claim."""
    kinds = KINDS_OF_COLUMN["python_frame"]
    places = _ranked_in_gaps(gpu_events, claim, idle_moments, kinds, _file_of_frame)
    return sorted(places, key=lambda place: -place.attributed_ms)[:MOST_PLACES]


def _file_of_frame(frame: str) -> str:
    """Return `model.py` for `model.py(12): forward`; a name without a line stays as it is."""
    return _LINE_OF_FRAME.sub("", frame)


def _ranked_in_gaps(
    gpu_events: GpuEvents,
    claim: Claim,
    idle_moments: FindMoments,
    kinds: tuple[EventKind, ...],
    relabel: Callable[[str], str] | None = None,
) -> list[Place]:
    """Return the innermost events of some kinds with the most idle time of a claim.

    Args:
        gpu_events: the GPU events.
        claim: the attributed time, some of it in gaps.
        idle_moments: `hosts.idle_time_segments` of the work.
        kinds: the kinds of events.
        relabel: returns the name of a place for the name of an event; places with the same name
            are one.
    """
    idle = claim.intervals.chosen(claim.intervals.gap != NONE)
    if not len(idle.start):
        return []
    searches = _innermost(
        find=partial(idle_moments, kinds),
        kinds=kinds,
        intervals=hosts.HostIntervals(
            thread=idle.thread, start=idle.start, end=idle.end
        ),
    )
    segments = _join_searches(searches, idle.gap)
    code, labels = hosts.event_labels(gpu_events.trace, segments.row)
    if EventKind.PYTHON_FUNCTION not in kinds:
        code, labels = folded_labels(code, labels)
    if relabel is not None:
        code, labels = _relabeled(code, labels, relabel)
    code = np.where(segments.ns > 0, code, NONE)
    device_count = len(claim.devices)
    places = []
    for place in ranked(code, labels, segments.ns / device_count):
        has_label = code == labels.index(place.name)
        places.append(replace(place, count=segments.count_gaps_with(has_label)))
    if EventKind.CPU_OP not in kinds:
        return places
    ns_in_operations = int(segments.ns[code != NONE].sum())
    total_ns = int((idle.end - idle.start).sum())
    ns_outside = total_ns - ns_in_operations
    if ns_outside >= _NAMED_SHARE * total_ns:
        outside = Place(
            name=NO_OPERATION,
            attributed_ms=ns_outside / device_count / NS_PER_MS,
            count=len(distinct(idle.gap)),
        )
        places.append(outside)
    return places


class _GapSegments(NamedTuple):
    """The m segments of host time that overlap p intervals of idle time."""

    row: Int64Array  #: the innermost event of each segment, (m,)
    ns: Int64Array  #: the idle time in each segment, (m,)
    gap: IntArray  #: the gap of each interval, (p,)
    first: Int64Array  #: the first segment of each interval, (p,)
    past: Int64Array  #: the segment after the last one of each interval, (p,)

    def count_gaps_with(self, is_chosen: BoolArray) -> int:
        """Return how many gaps overlap at least one of the chosen segments, (m,)."""
        chosen_before = np.append(0, np.cumsum(is_chosen))
        has_chosen = chosen_before[self.past] > chosen_before[self.first]
        return len(distinct(self.gap[has_chosen]))


class _Search(NamedTuple):
    """The innermost events around some of the given intervals."""

    interval: Int64Array  #: indices of the intervals
    #: the segments of host time, each in one innermost event
    segments: hosts.HostSegments
    overlap: hosts.SegmentOverlap  #: how the segments overlap with these intervals


def _join_searches(searches: Sequence[_Search], gap: IntArray) -> _GapSegments:
    """Return the segments of all searches, one search behind the other.

    Args:
        searches: the searches for some intervals of idle time.
        gap: the gap of each interval.
    """
    rows = []
    times_ns = []
    gaps = []
    firsts = []
    pasts = []
    segments_before = 0
    for search in searches:
        rows.append(search.segments.row)
        times_ns.append(search.overlap.of_segment)
        gaps.append(gap[search.interval])
        firsts.append(search.overlap.first + segments_before)
        pasts.append(search.overlap.past + segments_before)
        segments_before += len(search.segments.row)
    return _GapSegments(
        row=np.concatenate(rows),
        ns=np.concatenate(times_ns),
        gap=np.concatenate(gaps),
        first=np.concatenate(firsts),
        past=np.concatenate(pasts),
    )


def _innermost(
    find: Callable[[tuple[str, ...]], hosts.HostSegments],
    kinds: tuple[EventKind, ...],
    intervals: hosts.HostIntervals,
) -> list[_Search]:
    """Find the innermost events around intervals of host time.

    For Python frames there is a second search: intervals without a frame that users can change are
    searched again for any frame.

    Args:
        find: finds the segments of host time, given the beginnings of names to ignore.
        kinds: the kinds of events.
        intervals: the intervals.
    """
    searches = []
    searched = np.arange(len(intervals.start))
    for ignored in (_NO_LINES, ()):
        segments = find(("ProfilerStep#",) + ignored)
        overlap = segments.during(
            thread=intervals.thread[searched],
            start=intervals.start[searched],
            end=intervals.end[searched],
        )
        searches.append(_Search(interval=searched, segments=segments, overlap=overlap))
        searched = searched[overlap.of_interval == 0]
        if EventKind.PYTHON_FUNCTION not in kinds or not len(searched):
            break
    return searches


def _iterations_during(
    gpu_events: GpuEvents, idle: Intervals, device_count: int
) -> list[Place]:
    """Return the iterations with the most idle time, each from its own process."""
    iterations, labels, _ = named_iterations(gpu_events.tree, None)
    process_of_thread = gpu_events.trace.process_of_thread
    process = np.where(idle.thread != NONE, process_of_thread[idle.thread], NONE)
    places: list[Place] = []
    for process_number in np.unique(iterations.process).tolist():
        idle_of_process = idle.chosen(process == process_number)
        iterations_of_process = np.flatnonzero(iterations.process == process_number)
        parts = inside(
            start=idle_of_process.start,
            end=idle_of_process.end,
            other_start=iterations.start[iterations_of_process],
            other_end=iterations.end[iterations_of_process],
        )
        iteration = iterations_of_process[parts.other]
        ns = (parts.end - parts.start) / device_count
        places += ranked(code=iteration, labels=labels, ns=ns)
    return places


def _of_events(gpu_events: GpuEvents, claim: Claim) -> dict[str, list[Place]]:
    """Return the places of the GPU events of a claim."""
    events = claim.events
    ns = claim.event_ns
    if not len(events):
        return {}
    launch = gpu_events.tree.launch_of_gpu[events]
    has_launch = launch != NONE
    iterations, iteration_labels, _ = named_iterations(gpu_events.tree, None)
    is_launched_in_iteration = iterations.of_gpu != NONE
    iteration = np.where(
        is_launched_in_iteration, iterations.of_gpu, iterations.started_in
    )
    kernels = [
        replace(place, name=simple_name(place.name))
        for place in ranked(
            code=gpu_events.name[events], labels=gpu_events.trace.names, ns=ns
        )
    ]
    return {
        "operations": _operations_of_events(gpu_events, events, ns),
        "modules": _modules_of_events(gpu_events, events, ns),
        "python_frames": frames_around(
            gpu_events=gpu_events, calls=launch[has_launch], ns=ns[has_launch]
        ),
        "iterations": ranked(iteration[events], iteration_labels, ns),
        "streams": _streams_of_events(gpu_events, events, ns),
        "kernels": kernels,
    }


def _operations_of_events(
    gpu_events: GpuEvents, events: Int64Array, ns: Float64Array
) -> list[Place]:
    """Return the operations that launched GPU events, or the events around other launches."""
    operation, labels = gpu_events.parent_op
    launch = gpu_events.tree.launch_of_gpu[events]
    has_operation = gpu_events.tree.cpu_op_of_gpu[events] != NONE
    operation_of_events = np.where(has_operation, operation[events], NONE)
    places = ranked(operation_of_events, labels, ns)
    is_outside = (launch != NONE) & ~has_operation
    places += around(
        gpu_events=gpu_events,
        kinds=_ENCLOSING,
        calls=launch[is_outside],
        ns=ns[is_outside],
    )
    return places


def _modules_of_events(
    gpu_events: GpuEvents, events: Int64Array, ns: Float64Array
) -> list[Place]:
    """Return the modules that GPU events belong to; empty if none were recorded."""
    if not has_modules(gpu_events.trace):
        return []
    module, paths = module_of_gpu(gpu_events)
    return ranked(module[events], paths, ns)


def _streams_of_events(
    gpu_events: GpuEvents, events: Int64Array, ns: Float64Array
) -> list[Place]:
    """Return the streams that GPU events ran on."""
    numbers, code = np.unique(gpu_events.trace.stream[events], return_inverse=True)
    labels = [_stream_label(number) for number in numbers.tolist()]
    return ranked(code, labels, ns)


def _stream_label(number: int) -> str:
    if number == NONE:
        return ""
    return f"stream {number}"


def frames_around(
    gpu_events: GpuEvents, calls: Int64Array, ns: IntArray | Float64Array
) -> list[Place]:
    """Return the innermost lines of Python around the host calls with the most time.

    Args:
        gpu_events: the GPU events.
        calls: the rows of the calls, (k,).
        ns: the time of each call, (k,).
    """
    largest = np.argsort(-ns, kind="stable")[:_MOST_LOOKED_UP]
    return around(
        gpu_events=gpu_events,
        kinds=KINDS_OF_COLUMN["python_frame"],
        calls=calls[largest],
        ns=ns[largest],
    )


def around(
    gpu_events: GpuEvents,
    kinds: tuple[EventKind, ...],
    calls: Int64Array,
    ns: IntArray | Float64Array,
) -> list[Place]:
    """Return the innermost events of some kinds around host calls.

    The arguments are those of `frames_around`, but all calls are looked up.
    """
    trace = gpu_events.trace
    start = trace.ts[calls]
    intervals = hosts.HostIntervals(
        thread=trace.thread[calls], start=start, end=start + 1
    )
    find = partial(hosts.innermost_segments, trace, kinds, intervals)
    row = np.full(len(calls), NONE, dtype=np.int64)
    for search in _innermost(find, kinds, intervals):
        has_event = search.overlap.of_interval > 0
        first_segment = search.overlap.first[has_event]
        row[search.interval[has_event]] = search.segments.row[first_segment]
    code, labels = hosts.event_labels(trace, row)
    return ranked(code, labels, ns)
