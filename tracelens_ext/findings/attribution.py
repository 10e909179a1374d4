"""Where the time of a claim is: the operations, kernels, frames, iterations with most of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

import numpy as np

from tracelens_ext.analysis.idle_time import cpu_activity as hosts
from tracelens_ext.analysis.idle_time.cpu_activity import KINDS_OF_COLUMN
from tracelens_ext.analysis.iterations.named_iterations import named_iterations
from tracelens_ext.analysis.modules import has_modules, module_of_gpu
from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.findings.finding import Claim, Place
from tracelens_ext.text import NO_OPERATION
from tracelens_ext.trace import (
    NONE,
    NS_PER_MS,
    EventKind,
    Float64Array,
    Int64Array,
    IntArray,
)
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import number_groups, texts
from tracelens_ext.trace.intervals import distinct, inside
from tracelens_ext.trace.lookup import values_at

#: How many places of a kind a finding names: more than anybody acts on at once.
MOST_PLACES: Final = 5
#: Python frames are looked up for so many GPU events, the largest; a trace has a million.
_MOST_LOOKED_UP: Final = 500
#: What tells where a launch is that no operation encloses.
_ENCLOSING: Final = (EventKind.USER_ANNOTATION, EventKind.PYTHON_FUNCTION)
#: How the names of frames begin that nobody can change; they count where there are no others.
_NO_LINES: Final = (
    "<built-in",
    "nn.Module: ",
    "torch/",
    "threading.py",
    "queue.py",
    "selectors.py",
    "multiprocessing/",
)

#: A place is the largest one only if it has this share.
_NAMED_SHARE: Final = 1 / 3
#: Numbers that tell one of many ranges from the others, as in `ensure_layer_4_weights`.
_NUMBER: Final = re.compile(
    r"(?<![A-Za-z0-9])[0-9]+(?![A-Za-z0-9])|(?<=_)[0-9]+(?=_|$)"
)
#: What follows the file in the name of a frame.
_LINE_OF_FRAME: Final = re.compile(r"\(\d+\): .*$")
#: So many names at least that differ in numbers only are one place.
_FEWEST_FOLDED: Final = 3

#: The innermost events of some kinds, but for those whose names begin so.
FindMoments = Callable[[tuple[EventKind, ...], tuple[str, ...]], hosts.HostSegments]


def places_of(
    work: GpuEvents,
    claim: Claim,
    idle_moments: FindMoments,
    known: Mapping[str, Sequence[Place]] | None = None,
) -> dict[str, Sequence[Place]]:
    """Where a claim is, by kind of place, or what is known better; what is not told is left out.

    `idle_moments` is `hosts.idle_time_segments` of the work.
    """
    both = _of_gaps(work, claim, idle_moments), _of_events(work, claim)
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
        found = _merged([place for each in both for place in each.get(kind, ())])
        places[kind] = sorted(found, key=lambda place: -place.attributed_ms)[
            :MOST_PLACES
        ]
    return {
        kind: found for kind, found in (places | dict(known or {})).items() if found
    }


def _merged(places: Sequence[Place]) -> list[Place]:
    by_name: dict[str, Place] = {}
    for place in places:
        same = by_name.get(
            place.name, Place(name=place.name, attributed_ms=0.0, count=0)
        )
        total = same.attributed_ms + place.attributed_ms
        by_name[place.name] = Place(
            name=place.name, attributed_ms=total, count=same.count + place.count
        )
    return list(by_name.values())


def ranked(
    code: IntArray, labels: Sequence[str], ns: IntArray | Float64Array
) -> list[Place]:
    """The labels with the most time; what has the code `NONE`, or no label, is left out."""
    known = np.flatnonzero(code != NONE)
    if not len(known):
        return []
    first, number = number_groups([code[known]])
    total_ms = np.bincount(number, ns[known]) / NS_PER_MS
    count = np.bincount(number)
    order = np.argsort(-total_ms, kind="stable")
    first_of_code = known[first[order]]
    names = texts(code[first_of_code], labels)
    distinct_names = dict.fromkeys(filter(None, names))
    shown = set(islice(distinct_names, 4 * MOST_PLACES))
    places = []
    for name, attributed_ms, name_count in zip(
        names,
        total_ms[order].tolist(),
        count[order].tolist(),
        strict=True,
    ):
        if name in shown:
            places.append(Place(name, attributed_ms, name_count))
    return _merged(places)


def folded_labels(
    code: Int64Array, labels: Sequence[str]
) -> tuple[Int64Array, list[str]]:
    """Return codes and labels in which those that differ in numbers only are one.

    `ensure_layer_4` and 39 others become `ensure_layer_#`; two or three alike stay what they are.
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
    """Return codes and labels with other labels, of which those that are equal are one."""
    new_labels = [relabel(label) for label in labels]
    unique = list(dict.fromkeys(new_labels))
    number = {label: place for place, label in enumerate(unique)}
    code_of_labels = np.array([number[label] for label in new_labels], dtype=np.int64)
    new_code = values_at(code_of_labels, code)
    return np.where(code == NONE, NONE, new_code), unique


def _of_gaps(
    work: GpuEvents, claim: Claim, idle_moments: FindMoments
) -> dict[str, list[Place]]:
    """What the host was in, moment by moment, of all that is claimed of gaps."""
    start, end, _, _, _, thread = claim.intervals.chosen(claim.intervals.gap != NONE)
    if not len(start):
        return {}
    names = dict(
        zip(KINDS_OF_COLUMN, ("operations", "calls", "python_frames"), strict=True)
    )
    found = {
        names[column]: _ranked_in_gaps(work, claim, idle_moments, kinds)
        for column, kinds in KINDS_OF_COLUMN.items()
    }
    return found | {
        "iterations": _iterations_during(
            work=work,
            start=start,
            end=end,
            thread=thread,
            devices=len(claim.devices),
        )
    }


def python_files(
    work: GpuEvents, claim: Claim, idle_moments: FindMoments
) -> list[Place]:
    """Return the files of Python with most of the idle time of a claim, by the innermost frame."""
    kinds = KINDS_OF_COLUMN["python_frame"]
    places = _ranked_in_gaps(work, claim, idle_moments, kinds, _file_of_frame)
    return sorted(places, key=lambda place: -place.attributed_ms)[:MOST_PLACES]


def _file_of_frame(frame: str) -> str:
    """Return `model.py` of `model.py(12): forward`; what has no line keeps its name."""
    return _LINE_OF_FRAME.sub("", frame)


def _ranked_in_gaps(
    work: GpuEvents,
    claim: Claim,
    idle_moments: FindMoments,
    kinds: tuple[EventKind, ...],
    relabel: Callable[[str], str] | None = None,
) -> list[Place]:
    """Return the innermost events of some kinds with the most idle time of a claim.

    Args:
        work: the GPU events.
        claim: the attributed time, some of it in gaps.
        idle_moments: `hosts.idle_time_segments` of the work.
        kinds: the kinds of events.
        relabel: makes the names of places of the names of events; those that become equal are one.
    """
    start, end, _, gap, _, thread = claim.intervals.chosen(claim.intervals.gap != NONE)
    if not len(start):
        return []
    devices = len(claim.devices)
    find = partial(idle_moments, kinds)
    parts = _innermost(
        find, kinds, hosts.HostIntervals(thread=thread, start=start, end=end)
    )
    before = 0
    # of each part the row and the ns of moments, and the gap and the moments of
    columns = []
    for moments, asked, (first, past, _, ns) in parts:  # stretches
        columns.append((moments.row, ns, gap[asked], first + before, past + before))
        before += len(ns)
    row, ns, gaps, first, past = map(np.concatenate, zip(*columns, strict=True))
    code, labels = hosts.event_labels(work.trace, row)
    if EventKind.PYTHON_FUNCTION not in kinds:
        code, labels = folded_labels(code, labels)
    if relabel is not None:
        code, labels = _relabeled(code, labels, relabel)
    code = np.where(ns > 0, code, NONE)

    def gaps_with(label: str) -> int:
        its = np.append(0, np.cumsum(code == labels.index(label)))
        # a place counts once in a gap
        return len(distinct(gaps[its[past] > its[first]]))

    found = ranked(code, labels, ns / devices)
    found = [replace(place, count=gaps_with(place.name)) for place in found]
    if EventKind.CPU_OP not in kinds:
        return found
    seen_ns = int(ns[code != NONE].sum())
    total_ns = int((end - start).sum())
    outside_ms = (total_ns - seen_ns) / devices / NS_PER_MS
    least_ms = _NAMED_SHARE * float(total_ns) / devices / NS_PER_MS
    if outside_ms < least_ms:
        return found
    count = len(distinct(gap))
    outside = Place(name=NO_OPERATION, attributed_ms=outside_ms, count=count)
    return found + [outside]


def _innermost(
    find: Callable[[tuple[str, ...]], hosts.HostSegments],
    kinds: tuple[EventKind, ...],
    stretches: hosts.HostIntervals,
) -> list[tuple[hosts.HostSegments, Int64Array, hosts.SegmentOverlap]]:
    """The innermost events around stretches of time, and which of those were asked about.

    Of Python frames those that somebody can change, then the others, where there are none of these.
    """
    (thread, start, end) = stretches
    found = []
    asked = np.arange(len(start))
    for ignored in (_NO_LINES, ()):
        stretches = hosts.HostIntervals(
            thread=thread[asked], start=start[asked], end=end[asked]
        )
        moments = find(("ProfilerStep#",) + ignored)
        its = moments.during(*stretches)
        found.append((moments, asked, its))
        asked = asked[its.of_interval == 0]
        if EventKind.PYTHON_FUNCTION not in kinds or not len(asked):
            break
    return found


def _iterations_during(
    work: GpuEvents,
    start: Int64Array,
    end: Int64Array,
    thread: Int64Array,
    devices: int,
) -> list[Place]:
    """The iterations of the threads' processes during which some stretches of time are."""
    iterations, labels, _ = named_iterations(work.tree, None)
    process = np.where(thread != NONE, work.trace.process_of_thread[thread], NONE)
    found: list[Place] = []
    for number in np.unique(iterations.process).tolist():
        mine = np.flatnonzero(process == number)
        its = iterations.process == number
        begin, until, _, window = inside(
            start[mine],
            end[mine],
            iterations.start[its],
            iterations.end[its],
        )
        iteration = np.flatnonzero(its)[window]
        ns = (until - begin) / devices
        found += ranked(code=iteration, labels=labels, ns=ns)
    return found


def _of_events(work: GpuEvents, claim: Claim) -> dict[str, list[Place]]:
    events = claim.events
    ns = claim.event_ns
    if not len(events):
        return {}
    (op, ops) = work.parent_op
    launch = work.tree.launch_of_gpu[events]
    linked = launch != NONE
    with_op = work.tree.cpu_op_of_gpu[events] != NONE
    without = linked & ~with_op
    module, paths = (
        module_of_gpu(work) if has_modules(work.trace) else (np.full_like(op, NONE), [])
    )
    iterations, labels, _ = named_iterations(work.tree, None)
    step = np.where(iterations.of_gpu != NONE, iterations.of_gpu, iterations.started_in)
    numbers, stream = np.unique(work.trace.stream[events], return_inverse=True)
    streams = [
        "" if number == NONE else f"stream {number}" for number in numbers.tolist()
    ]
    op_of_events = np.where(with_op, op[events], NONE)
    operations = ranked(op_of_events, ops, ns)
    operations += around(
        work=work,
        kinds=_ENCLOSING,
        calls=launch[without],
        ns=ns[without],
    )
    return {
        "operations": operations,
        "modules": ranked(module[events], paths, ns),
        "python_frames": frames_around(work=work, calls=launch[linked], ns=ns[linked]),
        "iterations": ranked(step[events], labels, ns),
        "streams": ranked(stream, streams, ns),
        "kernels": [
            replace(place, name=simple_name(place.name))
            for place in ranked(code=work.name[events], labels=work.trace.names, ns=ns)
        ],
    }


def frames_around(
    work: GpuEvents, calls: Int64Array, ns: IntArray | Float64Array
) -> list[Place]:
    """The innermost lines of Python around the host calls with the most time, (k,)."""
    largest = np.argsort(-ns, kind="stable")[:_MOST_LOOKED_UP]
    return around(
        work=work,
        kinds=KINDS_OF_COLUMN["python_frame"],
        calls=calls[largest],
        ns=ns[largest],
    )


def around(
    work: GpuEvents,
    kinds: tuple[EventKind, ...],
    calls: Int64Array,
    ns: IntArray | Float64Array,
) -> list[Place]:
    """The innermost events of some kinds around host calls, as `frames_around`, of all of them."""
    trace = work.trace
    thread = trace.thread[calls]
    start = trace.ts[calls]
    end = start + 1
    row = np.full(len(calls), NONE, dtype=np.int64)
    stretches = hosts.HostIntervals(thread=thread, start=start, end=end)
    find = partial(hosts.innermost_segments, trace, kinds, stretches)
    for moments, asked, its in _innermost(find, kinds, stretches):
        there = its.of_interval > 0
        asked_there = asked[there]
        first_moment = its.first[there]
        row[asked_there] = moments.row[first_moment]
    code, labels = hosts.event_labels(trace, row)
    return ranked(code, labels, ns)
