"""The GPU events of a trace: their columns, on which tracks they ran, and when those were idle."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from tracelens_ext.categorize import UNCATEGORIZED, KernelCategorizer, builtin_categorizer
from tracelens_ext.errors import TraceFormatError, UsageError
from tracelens_ext.trace import MEMORY_KINDS, NONE, EventKind, Trace
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.grouping import number_groups
from tracelens_ext.trace.intervals import covered

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int32Array, Int64Array, IntArray

COMMUNICATION = "Communication"
MEMORY_OPS = "Memory Ops"

KIND_LABELS = {EventKind.KERNEL: "kernel", EventKind.MEMCPY: "memcpy", EventKind.MEMSET: "memset"}
#: What tables call each kind of event.
KIND_NAMES = [KIND_LABELS.get(kind, kind.name.lower()) for kind in EventKind]

#: How older ROCm profilers record a copy: as a kernel. (They are kernels in the kernel tables,
#: as the profiler says, and copies on the timeline, as the hardware says.)
_COPY_RECORDED_AS_KERNEL = re.compile(r"MEMORY_COPY_|__amd_rocclr_copyBuffer")


@dataclass(frozen=True, eq=False)
class Categories:
    """The category of each GPU event."""

    code: Int32Array  #: index into `labels`, shape (g,)
    labels: list[str]  #: the categories that occur
    known: BoolArray  #: False where no rule knows an event, or only a map's catch-all, shape (g,)


class GpuEvents:
    """The GPU events of a trace (g of them, in file order) as columns.

    Without a categorizer there are no categories. `include_unlinked` tells whether events without a
    launch in the trace count in the timeline.
    """

    def __init__(
        self, tree: CallTree, categorizer: KernelCategorizer | None, *, include_unlinked: bool
    ) -> None:
        self.tree = tree
        self.trace: Trace = tree.trace
        self.categorizer = categorizer
        self.include_unlinked = include_unlinked
        self.rows = self.trace.gpu_rows
        self.name: Int32Array = self.trace.name[self.rows]
        self.kind = self.trace.kind[self.rows]
        self.start: Int64Array = self.trace.ts[self.rows]
        self.duration: Int64Array = self.trace.dur[self.rows]

        #: end of each event in ns since the trace's first event, (g,)
        self.end: Int64Array = self.start + self.duration
        #: whether each event is a kernel, (g,)
        self.is_kernel: BoolArray = self.kind == EventKind.KERNEL

    def __len__(self) -> int:
        return len(self.rows)

    def count_text(self, which: BoolArray) -> str:
        """How many events these are: `509 GPU events (30.1 % of GPU time)`."""
        count = int(which.sum())
        total = int(self.duration.sum())
        share = 100.0 * int(self.duration[which].sum()) / total if total else 0.0
        return f"{count:,} GPU events ({share:.1f} % of GPU time)"

    @cached_property
    def counted(self) -> BoolArray:
        """Whether each event counts in the timeline, (g,)."""
        return np.ones(len(self), dtype=bool) if self.include_unlinked else self.tree.linked

    @cached_property
    def parent_op(self) -> tuple[Int32Array, list[str]]:
        """The innermost CPU op around each launch, else the launch's name, else empty; codes."""
        names = self.trace.names
        op = self.tree.op_of_gpu
        code = np.where(op != NONE, self.trace.name[op], len(names)).astype(np.int32)
        return code, [*names, ""]

    @cached_property
    def categories(self) -> Categories | None:
        """The category of each event by the chosen categorizer; None without one."""
        return self._categorize(self.categorizer) if self.categorizer is not None else None

    @property
    def category_key(self) -> dict[str, tuple[Int32Array, list[str]]]:
        """The column `kernel_category`, as `group_labelled` takes it; none without categories."""
        found = self.categories
        return {} if found is None else {"kernel_category": (found.code, found.labels)}

    @property
    def needed_categories(self) -> Categories:
        """The same; a UsageError without a categorizer."""
        if self.categories is not None:
            return self.categories
        remedy = "make the analyzer with TreePerfAnalyzer(trace, use_kernel_name_categories=True)"
        raise UsageError(f"kernel categories are switched off; {remedy}")

    @cached_property
    def op_categorizer(self) -> KernelCategorizer:
        """Gives operations their categories, whether or not kernels have any."""
        return self.categorizer or KernelCategorizer.create()

    @cached_property
    def is_communication(self) -> BoolArray:
        """Whether the built-in packs call an event communication, whatever was chosen, (g,)."""
        found = self.categories  # the same question, perhaps asked already
        if found is None or self.categorizer is None or not self.categorizer.is_builtin:
            found = self._categorize(builtin_categorizer())
        wanted = np.array([label == COMMUNICATION for label in found.labels])
        result: BoolArray = wanted[found.code] & self.is_kernel
        return result

    @cached_property
    def is_copy(self) -> BoolArray:
        """Whether an event copies memory between places, (g,)."""
        as_kernel = self.trace.named(self.name, _COPY_RECORDED_AS_KERNEL.match)
        result: BoolArray = (self.kind == EventKind.MEMCPY) | (self.is_kernel & as_kernel)
        return result

    def _categorize(self, categorizer: KernelCategorizer) -> Categories:
        """Ask for each distinct name and CPU op, which tells what the kernel is for, once.

        No CPU op tells it of the kernels of a graph whose capture is not known, as the one around
        its launch says nothing of each of them; of copies, whose names say it all; nor annotations,
        called as users like. Memcpys and memsets are memory ops, unless a rule matches, be it the
        catch-all of a map.
        """
        trace = self.trace
        op = self.tree.cpu_op_of_gpu
        telling = (op != NONE) & ~self.tree.by_opaque_graph & self.is_kernel
        telling &= trace.kind[op] == EventKind.CPU_OP
        first, number = number_groups([self.name, np.where(telling, trace.name[op], NONE)])
        names = [trace.names[code] for code in self.name[first].tolist()]
        ops = [trace.name_of(op[at]) if telling[at] else None for at in first.tolist()]
        decisions = categorizer.categorize(names, ops)
        labels = sorted({*decisions.category, MEMORY_OPS})
        place = {label: i for i, label in enumerate(labels)}
        code = np.array([place[a] for a in decisions.category], dtype=np.int32)[number]
        known = np.array(decisions.known, dtype=bool)[number]
        memory = (code == place.get(UNCATEGORIZED, NONE)) & ~known & ~self.is_kernel
        code[memory] = place[MEMORY_OPS]
        return Categories(code, labels, known | memory)


_PAGEABLE = re.compile(r".*Pageable", re.IGNORECASE)
_TOLD = re.compile(r".*(?:Pageable|Pinned|Managed)", re.IGNORECASE)
_PAGEABLE_KIND = 0
_UNKNOWN_KIND = 7


def pageable_copies(work: GpuEvents) -> tuple[BoolArray, BoolArray]:
    """Which GPU events copy from or to pageable memory, and of which it is known, each (g,)."""
    trace = work.trace
    pageable = trace.names_matching(_PAGEABLE.match)[work.name]
    known = trace.names_matching(_TOLD.match)[work.name]
    for argument in MEMORY_KINDS:
        kind = trace.arg(argument).at(work.rows)
        pageable |= kind == _PAGEABLE_KIND
        known |= (kind >= 0) & (kind < _UNKNOWN_KIND)
    return pageable, known


def gigabytes_per_second(work: GpuEvents, events: Int64Array) -> float:
    """How fast some GPU events moved their bytes together; NaN where no size was recorded."""
    size = work.trace.arg("bytes").at(work.rows[events])
    told = size > 0
    time = int(work.duration[events][told].sum())
    return float(size[told].sum()) / time if time else np.nan


Scope = Literal["stream", "device"]


@dataclass(frozen=True, eq=False)
class GpuTracks:
    """What is idle or busy as a whole: the streams of a trace, or its devices, p of them."""

    scope: Scope  #: which of the two
    process: list[int | str]  #: the process of each as the trace spells it, p of them
    device: Int64Array  #: its number, `NONE` where the trace does not say, (p,)
    stream: Int64Array  #: likewise; `NONE` for a whole device, (p,)
    of_gpu: Int64Array  #: the track of each GPU event, (g,)

    def __len__(self) -> int:
        return len(self.process)

    @property
    def device_labels(self) -> list[int | str]:
        """What the devices are called: by their number, with the process where two have one."""
        numbers: list[int] = self.device.tolist()
        return [
            number if numbers.count(number) == 1 else f"{number} of process {process}"
            for number, process in zip(numbers, self.process, strict=True)
        ]


@cached_per_object
def find_tracks(work: GpuEvents, scope: Scope) -> GpuTracks:
    """The streams, or the devices (all streams of one taken together), on which GPU events ran."""
    trace = work.trace
    process = trace.process_of_thread[trace.thread[work.rows]]
    keys: list[IntArray] = [process, trace.device]
    if scope == "stream":
        keys.append(trace.stream)
    elif trace.conventions.gpu_by_process:
        keys = [trace.device]  # two processes may share one
    first, number = number_groups(keys)
    processes = [trace.threads[i][0] for i in trace.thread[work.rows[first]].tolist()]
    stream = trace.stream[first] if scope == "stream" else np.full(len(first), NONE)
    return GpuTracks(scope, processes, trace.device[first], stream, number)


def busy_within(
    work: GpuEvents, device: IntArray, start: Int64Array, end: Int64Array
) -> Int64Array:
    """How long a device (an index into the tracks) is busy in each stretch of time, ns, (k,)."""
    of_gpu = find_tracks(work, "device").of_gpu
    busy = np.zeros(len(device), dtype=np.int64)
    for number in np.unique(device).tolist():
        mine = of_gpu == number
        here = device == number
        busy[here] = covered(work.start[mine], work.end[mine], start[here], end[here])
    return busy


#: Sums of gaps, ns, fit in 64 bits below this, 146 years; streams count one by one.
_MOST_IN_ALL = 2**62


@dataclass(frozen=True, eq=False)
class Gaps:
    """The gaps of all tracks, k of them, by track, then by time."""

    tracks: GpuTracks  #: the streams or devices
    track: Int64Array  #: of each gap, an index into those, (k,)
    start: Int64Array  #: when the event before ended, ns since the trace's first event, (k,)
    end: Int64Array  #: when the event after started, (k,)
    before: Int64Array  #: the event that ended last, a place in `trace.gpu_rows`, (k,)
    after: Int64Array  #: the event that ended the gap, likewise, (k,)
    overlapped: Int64Array  #: how much of the gap other streams of the device were busy, ns, (k,)

    def __len__(self) -> int:
        return len(self.track)

    @cached_property
    def duration(self) -> Int64Array:
        """Length of each gap, ns, always more than 0, (k,)."""
        return self.end - self.start

    def chosen(self, which: BoolArray | IntArray) -> Gaps:
        """Some of the gaps."""
        columns = [field.name for field in fields(self) if field.name != "tracks"]
        return replace(self, **{name: getattr(self, name)[which] for name in columns})


def holes(
    start: Int64Array, end: Int64Array, order: Int64Array | None = None
) -> tuple[Int64Array, Int64Array]:
    """The times between the first start and the last end in which no interval runs.

    Of each, in order of time, the interval that ended last before it (of equals the last), and the
    one that ends it. `order`: the intervals that count, by start; all of them by default.
    """
    order = np.argsort(start, kind="stable") if order is None else order
    ends = end[order]
    reach = np.maximum.accumulate(ends)
    at = np.flatnonzero(start[order[1:]] > reach[:-1])
    last = np.maximum.accumulate(np.where(ends == reach, np.arange(len(order)), 0))
    return order[last[at]], order[at + 1]


@cached_per_object
def find_gaps(work: GpuEvents, scope: Scope) -> Gaps:
    """The gaps between successive GPU events of each stream, or of each device.

    All events count, unlinked ones too; the gaps of a device are what its timeline calls idle.
    Events that overlap count as one stretch of work: the one that ended last is the one before.
    """
    tracks = find_tracks(work, scope)
    order = np.lexsort((work.end, work.start, tracks.of_gpu))
    of_track = np.split(order, np.flatnonzero(np.diff(tracks.of_gpu[order])) + 1)
    found = [holes(work.start, work.end, mine) for mine in of_track]
    before, after = map(np.concatenate, zip(*found, strict=True))
    begins = work.end[before]
    ends = work.start[after]
    if (ends - begins).sum(dtype=np.float64) >= _MOST_IN_ALL:
        why = "its GPU is idle for more than a century"
        remedy = "check the times of its GPU events"
        raise TraceFormatError(work.trace.provenance.path, why, remedy)
    overlapped = busy_within(work, find_tracks(work, "device").of_gpu[after], begins, ends)
    return Gaps(tracks, tracks.of_gpu[after], begins, ends, before, after, overlapped)
