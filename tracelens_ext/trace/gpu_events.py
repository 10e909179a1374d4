"""The GPU events of a trace as columns, the tracks that they run on, and the gaps between them."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from tracelens_ext.errors import TraceFormatError, UsageError
from tracelens_ext.text import UNCATEGORIZED, counted
from tracelens_ext.trace import MEMORY_KINDS, NONE, EventKind, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.categorization import Categories, Categorizer, Categorizers
from tracelens_ext.trace.grouping import number_groups
from tracelens_ext.trace.intervals import covered

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int32Array, Int64Array, IntArray

#: Categories that analyses treat in a way of their own.
COMMUNICATION = "Communication"
MEMORY_OPS = "Memory Ops"

KIND_LABELS = {
    EventKind.KERNEL: "kernel",
    EventKind.MEMCPY: "memcpy",
    EventKind.MEMSET: "memset",
}
#: The name of each `EventKind` in tables, by its number.
KIND_NAMES = [KIND_LABELS.get(kind, kind.name.lower()) for kind in EventKind]

#: Names of copies that older ROCm profilers record as kernels. The kernel tables list them as
#: kernels, like the profiler; the timeline counts them as copies, which is what the GPU does.
_COPY_RECORDED_AS_KERNEL = re.compile(r"MEMORY_COPY_|__amd_rocclr_copyBuffer")


class LabeledCodes(NamedTuple):
    """A column of texts for the GPU events, as codes."""

    code: Int32Array  #: index into `labels` of each GPU event, (g,)
    labels: list[str]  #: the text that each code stands for


class GpuEvents:
    """The g GPU events of a trace as columns, in file order.

    Args:
        tree: the call tree of the trace.
        categorizers: the categorizers of the run; without a chosen one, there are no categories.
        include_unlinked: False to leave events without a launch in the trace out of the timeline.
    """

    def __init__(
        self, tree: CallTree, categorizers: Categorizers, *, include_unlinked: bool
    ) -> None:
        self.tree = tree
        self.trace: Trace = tree.trace
        self.categorizer: Categorizer | None = categorizers.chosen
        self._categorizers = categorizers
        self.include_unlinked = include_unlinked
        self.rows = self.trace.gpu_rows
        self.name: Int32Array = self.trace.name[self.rows]
        self.kind = self.trace.kind[self.rows]
        self.start: Int64Array = self.trace.ts[self.rows]
        self.duration: Int64Array = self.trace.dur[self.rows]

        #: end of each event in ns since the trace's first event, (g,)
        self.end: Int64Array = self.start + self.duration
        #: True for kernels, (g,)
        self.is_kernel: BoolArray = self.kind == EventKind.KERNEL

    def __len__(self) -> int:
        return len(self.rows)

    def count_text(self, selected: BoolArray) -> str:
        """Return how many events are selected: `509 GPU events (30.1 % of GPU time)`."""
        count = int(selected.sum())
        total_ns = int(self.duration.sum())
        selected_ns = int(self.duration[selected].sum())
        share = 0.0
        if total_ns:
            share = 100.0 * selected_ns / total_ns
        return f"{counted(count, 'GPU event')} ({share:.1f} % of GPU time)"

    @cached_property
    def counted(self) -> BoolArray:
        """True for events that count in the timeline, (g,)."""
        if self.include_unlinked:
            return np.ones(len(self), dtype=bool)
        return self.tree.linked

    @cached_property
    def parent_op(self) -> LabeledCodes:
        """The innermost CPU op around each launch, else the launch's name, else empty."""
        names = self.trace.names
        operation = self.tree.op_of_gpu
        code = np.where(operation != NONE, self.trace.name[operation], len(names))
        return LabeledCodes(code=code.astype(np.int32), labels=names + [""])

    @cached_property
    def categories(self) -> Categories | None:
        """The category of each event by the chosen categorizer; None without one."""
        if self.categorizer is None:
            return None
        return self._categorize(self.categorizer)

    @property
    def category_key(self) -> dict[str, tuple[Int32Array, list[str]]]:
        """The column `kernel_category` for `group_by_labels`; empty without categories."""
        categories = self.categories
        if categories is None:
            return {}
        return {"kernel_category": (categories.code, categories.labels)}

    @property
    def needed_categories(self) -> Categories:
        """The category of each event; raises a UsageError without a categorizer."""
        if self.categories is not None:
            return self.categories
        remedy = (
            "create the analyzer with TreePerfAnalyzer(trace, "
            "use_kernel_name_categories=True)"
        )
        raise UsageError(f"kernel categories are turned off; {remedy}")

    @cached_property
    def op_categorizer(self) -> Categorizer:
        """The categorizer for operations, which have categories even if kernels have none."""
        return self.categorizer or self._categorizers.make_default()

    @cached_property
    def builtin_categories(self) -> Categories:
        """The category of each event by the built-in packs, whatever the user chose."""
        categories = self.categories
        if (
            categories is None
            or self.categorizer is None
            or not self.categorizer.is_builtin
        ):
            return self._categorize(self._categorizers.make_builtin())
        return categories

    @cached_property
    def is_communication(self) -> BoolArray:
        """True for kernels that the built-in packs categorize as communication, (g,)."""
        categories = self.builtin_categories
        is_label = np.array([label == COMMUNICATION for label in categories.labels])
        result: BoolArray = is_label[categories.code] & self.is_kernel
        return result

    @cached_property
    def is_copy(self) -> BoolArray:
        """True for events that copy memory from one place to another, (g,)."""
        is_copy_name = _COPY_RECORDED_AS_KERNEL.match
        has_name_of_copy = self.trace.named(self.name, is_copy_name)
        is_copy: BoolArray = self.kind == EventKind.MEMCPY
        is_copy |= self.is_kernel & has_name_of_copy
        return is_copy

    def _categorize(self, categorizer: Categorizer) -> Categories:
        """Categorize each distinct pair of a kernel name and the CPU op that launched the kernel.

        The CPU op tells what a kernel is for. It is not passed on for the kernels of a graph whose
        capture is not known, because the op around the graph launch tells nothing about a single
        kernel; for copies, whose names tell enough; and if it is an annotation, because users name
        these as they like. Memcpys and memsets without a matching rule are memory ops.
        """
        trace = self.trace
        operation = self.tree.cpu_op_of_gpu
        has_telling_op = operation != NONE
        has_telling_op &= ~self.tree.by_opaque_graph
        has_telling_op &= self.is_kernel
        has_telling_op &= trace.kind[operation] == EventKind.CPU_OP
        op_name = np.where(has_telling_op, trace.name[operation], NONE)
        first, pair_of_event = number_groups([self.name, op_name])

        kernel_names = [trace.names[code] for code in self.name[first].tolist()]
        texts_of_op_names = trace.names + [None]  # `NONE` is -1, the index of the last
        op_names = [texts_of_op_names[code] for code in op_name[first].tolist()]
        decisions = categorizer.categorize(kernel_names, op_names)

        labels = sorted(set(decisions.category) | {MEMORY_OPS})
        code_of_label = {label: code for code, label in enumerate(labels)}
        code_of_pair = [code_of_label[category] for category in decisions.category]
        code = np.array(code_of_pair, dtype=np.int32)[pair_of_event]
        is_known = np.array(decisions.known, dtype=bool)[pair_of_event]

        is_uncategorized = code == code_of_label.get(UNCATEGORIZED, NONE)
        is_memory_op = is_uncategorized & ~is_known & ~self.is_kernel
        code[is_memory_op] = code_of_label[MEMORY_OPS]
        return Categories(code=code, labels=labels, known=is_known | is_memory_op)


# Names of copies tell the kinds of memory in PyTorch (`Memcpy HtoD (Pageable -> Device)`), and the
# arguments `MEMORY_KINDS` tell them in Nsight Systems.
_PAGEABLE = re.compile(r".*Pageable", re.IGNORECASE)
_NAMES_MEMORY_KIND = re.compile(r".*(?:Pageable|Pinned|Managed)", re.IGNORECASE)
_PAGEABLE_KIND = 0
_UNKNOWN_KIND = 7


class PageableCopies(NamedTuple):
    """The GPU events that copy from or to pageable memory."""

    is_pageable: BoolArray  #: (g,)
    is_known: BoolArray  #: True if the trace tells the kind of memory, (g,)


def pageable_copies(gpu_events: GpuEvents) -> PageableCopies:
    """Return which GPU events copy from or to pageable memory, and for which that is known."""
    trace = gpu_events.trace
    name = gpu_events.name
    is_pageable = trace.names_matching(_PAGEABLE.match)[name]
    is_known = trace.names_matching(_NAMES_MEMORY_KIND.match)[name]
    for argument in MEMORY_KINDS:
        memory_kind = trace.arg(argument).at(gpu_events.rows)
        is_pageable |= memory_kind == _PAGEABLE_KIND
        is_recorded = memory_kind >= 0
        is_known |= is_recorded & (memory_kind < _UNKNOWN_KIND)
    return PageableCopies(is_pageable, is_known)


def gigabytes_per_second(gpu_events: GpuEvents, events: Int64Array) -> float:
    """Return the bytes of some GPU events by their total time, GB/s; NaN without recorded sizes."""
    size = gpu_events.trace.arg("bytes").at(gpu_events.rows[events])
    has_size = size > 0
    duration = gpu_events.duration[events]
    total_ns = int(duration[has_size].sum())
    if not total_ns:
        return np.nan
    total_bytes = float(size[has_size].sum())
    return total_bytes / total_ns


Scope = Literal["stream", "device"]


@dataclass(frozen=True, eq=False)
class GpuTracks:
    """The p tracks of a trace: its streams, or its devices. A track is busy or idle as a whole."""

    scope: Scope  #: whether the tracks are streams or devices
    #: the process of each track as the trace spells it, p of them
    process: list[int | str]
    #: number of each track's device, `NONE` if the trace does not tell, (p,)
    device: Int64Array
    #: number of each track's stream, `NONE` for a whole device or if the trace does not tell, (p,)
    stream: Int64Array
    of_gpu: Int64Array  #: index of the track of each GPU event, (g,)

    def __len__(self) -> int:
        return len(self.process)

    @property
    def device_labels(self) -> list[int | str]:
        """The number of each track's device, with the process if several tracks have the number."""
        numbers: list[int] = self.device.tolist()
        labels: list[int | str] = []
        for number, process in zip(numbers, self.process, strict=True):
            label: int | str = number
            if numbers.count(number) > 1:
                label = f"{number} of process {process}"
            labels.append(label)
        return labels


@cached_per_object
def find_tracks(gpu_events: GpuEvents, scope: Scope) -> GpuTracks:
    """Return the streams of the GPU events, or the devices, each with all of its streams."""
    trace = gpu_events.trace
    thread = trace.thread[gpu_events.rows]
    process = trace.process_of_thread[thread]
    keys: list[IntArray] = [process, trace.device]
    if scope == "stream":
        keys.append(trace.stream)
    elif trace.conventions.gpu_by_process:
        keys = [trace.device]  # processes may share a device
    first, track_of_event = number_groups(keys)

    processes = []
    for index in thread[first].tolist():
        process_label, _ = trace.threads[index]
        processes.append(process_label)
    stream = np.full(len(first), NONE)
    if scope == "stream":
        stream = trace.stream[first]
    device = trace.device[first]
    return GpuTracks(
        scope=scope,
        process=processes,
        device=device,
        stream=stream,
        of_gpu=track_of_event,
    )


def busy_within(
    gpu_events: GpuEvents, device_index: IntArray, start: Int64Array, end: Int64Array
) -> Int64Array:
    """Return how long a device is busy in each of k windows of time.

    Args:
        gpu_events: all GPU events of the trace.
        device_index: the device of each window, an index into the tracks of devices, (k,).
        start: when each window starts, ns, (k,).
        end: when each window ends, ns, (k,).

    Returns:
        The busy time of the device in each window, ns, (k,).
    """
    device_of_event = find_tracks(gpu_events, "device").of_gpu
    busy_ns = np.zeros(len(device_index), dtype=np.int64)
    for device in np.unique(device_index).tolist():
        events = device_of_event == device
        windows = device_index == device
        busy_ns[windows] = covered(
            start=gpu_events.start[events],
            end=gpu_events.end[events],
            window_start=start[windows],
            window_end=end[windows],
        )
    return busy_ns


#: The largest sum of all gaps, ns: 146 years. Sums below it fit in 64 bits.
_MOST_IN_ALL = 2**62


@dataclass(frozen=True, eq=False)
class Gaps:
    """The k gaps of all tracks, sorted by track, then by time."""

    tracks: GpuTracks  #: the streams or devices
    track: Int64Array  #: index of the track of each gap, (k,)
    #: when the event before the gap ended, ns since the trace's first event, (k,)
    start: Int64Array
    end: Int64Array  #: when the event after the gap started, as `start`, (k,)
    #: the event that ended last before the gap, an index into `trace.gpu_rows`, (k,)
    before: Int64Array
    #: the event that ended the gap, an index into `trace.gpu_rows`, (k,)
    after: Int64Array
    #: how long other streams of the device were busy during the gap, ns, (k,)
    overlapped: Int64Array

    def __len__(self) -> int:
        return len(self.track)

    @cached_property
    def duration(self) -> Int64Array:
        """Length of each gap, ns, always more than 0, (k,)."""
        return self.end - self.start

    def chosen(self, selected: BoolArray | IntArray) -> Gaps:
        """Return the gaps that a mask or their indices select."""
        columns = {}
        for field in fields(self):
            if field.name == "tracks":
                continue
            values = getattr(self, field.name)
            columns[field.name] = values[selected]
        return replace(self, **columns)


class Holes(NamedTuple):
    """Times during which no interval runs, in order of time, k of them."""

    #: index of the interval that ended last before each hole; the last one of equal ends, (k,)
    before: Int64Array
    #: index of the interval that starts at the end of each hole, (k,)
    after: Int64Array


def holes(start: Int64Array, end: Int64Array, order: Int64Array | None = None) -> Holes:
    """Return the times between the first start and the last end during which no interval runs.

    Args:
        start: when each interval starts, (n,).
        end: when each interval ends, (n,).
        order: indices of the intervals to look at, sorted by start; all of them by default.
    """
    if order is None:
        order = np.argsort(start, kind="stable")
    ordered_end = end[order]
    latest_end = np.maximum.accumulate(ordered_end)
    position_before = np.flatnonzero(start[order[1:]] > latest_end[:-1])
    # The position of the interval with the latest end so far: the running maximum of the positions
    # at which an interval reaches the latest end.
    is_latest = ordered_end == latest_end
    position_if_latest = np.where(is_latest, np.arange(len(order)), 0)
    latest_position = np.maximum.accumulate(position_if_latest)
    return Holes(
        before=order[latest_position[position_before]],
        after=order[position_before + 1],
    )


@cached_per_object
def find_gaps(gpu_events: GpuEvents, scope: Scope) -> Gaps:
    """Return the gaps between successive GPU events of each stream, or of each device.

    All events count, including unlinked ones. The gaps of a device are the idle time of its
    timeline. Events that overlap count as one interval; the event of the interval that ended last
    is the event before the gap.

    Raises:
        TraceFormatError: the gaps are so long that their sum does not fit in 64 bits.
    """
    tracks = find_tracks(gpu_events, scope)
    order = np.lexsort((gpu_events.end, gpu_events.start, tracks.of_gpu))
    first_of_track = np.flatnonzero(np.diff(tracks.of_gpu[order])) + 1
    holes_of_tracks = [
        holes(start=gpu_events.start, end=gpu_events.end, order=events)
        for events in np.split(order, first_of_track)
    ]
    before = np.concatenate(
        [holes_of_track.before for holes_of_track in holes_of_tracks]
    )
    after = np.concatenate([holes_of_track.after for holes_of_track in holes_of_tracks])

    start = gpu_events.end[before]
    end = gpu_events.start[after]
    if (end - start).sum(dtype=np.float64) >= _MOST_IN_ALL:
        problem = "its GPU is idle for more than a century"
        remedy = "check the times of its GPU events"
        raise TraceFormatError(gpu_events.trace.provenance.path, problem, remedy)
    device_index = find_tracks(gpu_events, "device").of_gpu[after]
    return Gaps(
        tracks=tracks,
        track=tracks.of_gpu[after],
        start=start,
        end=end,
        before=before,
        after=after,
        overlapped=busy_within(
            gpu_events=gpu_events, device_index=device_index, start=start, end=end
        ),
    )
