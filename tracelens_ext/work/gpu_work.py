"""What the GPU events of a trace are: the columns that every analysis of GPU time shares."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.categorize import UNCATEGORIZED, KernelCategorizer, builtin_categorizer
from tracelens_ext.errors import UsageError
from tracelens_ext.trace import MEMORY_KINDS, NONE, EventKind, no_arg

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int32Array, Int64Array, Trace
    from tracelens_ext.tree import CallTree


COMMUNICATION = "Communication"
MEMORY_OPS = "Memory Ops"

KIND_LABELS = {
    EventKind.KERNEL: "kernel",
    EventKind.MEMCPY: "memcpy",
    EventKind.MEMSET: "memset",
}
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


class GpuWork:
    """The GPU events of a trace (g of them, in file order) as columns.

    Without a categorizer there are no categories. `include_unlinked` tells whether events without a
    launch in the trace count in the timeline.
    """

    def __init__(
        self,
        tree: CallTree,
        categorizer: KernelCategorizer | None,
        *,
        include_unlinked: bool,
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

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def end(self) -> Int64Array:
        """End of each event in ns since the trace's first event, (g,)."""
        return self.start + self.duration

    def count_text(self, which: BoolArray) -> str:
        """How many events these are: `509 GPU events (30.1 % of GPU time)`."""
        count, total = int(which.sum()), int(self.duration.sum())
        share = 100.0 * int(self.duration[which].sum()) / total if total else 0.0
        return f"{count:,} GPU events ({share:.1f} % of GPU time)"

    @cached_property
    def is_kernel(self) -> BoolArray:
        """Whether each event is a kernel, (g,)."""
        result: BoolArray = self.kind == EventKind.KERNEL
        return result

    @cached_property
    def counted(self) -> BoolArray:
        """Whether each event counts in the timeline, (g,)."""
        return np.ones(len(self), dtype=bool) if self.include_unlinked else self.tree.linked

    @cached_property
    def parent_op(self) -> tuple[Int32Array, list[str]]:
        """The innermost CPU op around each launch, else the launch's name, else empty.

        Codes, and what they stand for.
        """
        tree, trace = self.tree, self.trace
        code = np.full(len(self), len(trace.names), dtype=np.int32)
        code[tree.linked] = trace.name[tree.launch_of_gpu[tree.linked]]
        has_op = tree.cpu_op_of_gpu != NONE
        code[has_op] = trace.name[tree.cpu_op_of_gpu[has_op]]
        return code, [*trace.names, ""]

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
        if self.categories is None:
            raise UsageError(
                "kernel categories are switched off; make the analyzer with"
                " TreePerfAnalyzer(trace, use_kernel_name_categories=True)"
            )
        return self.categories

    @cached_property
    def op_categorizer(self) -> KernelCategorizer:
        """Gives operations their categories, whether or not kernels have any."""
        return self.categorizer or KernelCategorizer.create()

    @cached_property
    def is_communication(self) -> BoolArray:
        """Whether the built-in packs call an event communication, whatever was chosen, (g,)."""
        chosen = self.categorizer
        if chosen is not None and chosen.is_builtin and self.categories is not None:
            builtin = self.categories  # the same question, asked already
        else:
            builtin = self._categorize(builtin_categorizer())
        wanted = np.array([label == COMMUNICATION for label in builtin.labels] or [False])
        result: BoolArray = wanted[builtin.code] & self.is_kernel
        return result

    @cached_property
    def is_copy(self) -> BoolArray:
        """Whether an event copies memory between places, (g,)."""
        as_kernel = self.trace.named(self.name, _COPY_RECORDED_AS_KERNEL.match)
        result: BoolArray = (self.kind == EventKind.MEMCPY) | (self.is_kernel & as_kernel)
        return result

    @property
    def _context(self) -> tuple[Int64Array, list[str | None]]:
        """The CPU op that tells what a kernel is for: codes, shape (g,), and what they stand for.

        None without a CPU op; for the kernels of a graph whose capture is not known, as one op
        around its launch says nothing of each of them; for copies, whose names say it all; and for
        annotations, called as users like.
        """
        tree, trace = self.tree, self.trace
        op = tree.cpu_op_of_gpu
        telling = (op != NONE) & ~tree.by_opaque_graph & self.is_kernel
        telling &= trace.kind[op] == EventKind.CPU_OP
        code = np.full(len(self), len(trace.names), dtype=np.int64)
        code[telling] = trace.name[tree.cpu_op_of_gpu[telling]]
        return code, [*trace.names, None]

    def _categorize(self, categorizer: KernelCategorizer) -> Categories:
        """Ask for each distinct (name, CPU op) once.

        Memcpys and memsets are memory ops, unless a rule matches, be it the catch-all of a map.
        """
        op_code, ops = self._context
        pairs = self.name.astype(np.int64) * len(ops) + op_code
        distinct, inverse = np.unique(pairs, return_inverse=True)
        names = [self.trace.names[i] for i in (distinct // len(ops)).tolist()]
        launched_by = [ops[i] for i in (distinct % len(ops)).tolist()]
        decisions = categorizer.categorize(names, launched_by)
        labels = sorted({*decisions.category, MEMORY_OPS})
        place = {label: i for i, label in enumerate(labels)}
        code = np.array([place[a] for a in decisions.category], dtype=np.int32)[inverse]
        known = np.array(decisions.known, dtype=bool)[inverse]
        unmatched = np.array([label == UNCATEGORIZED for label in labels])[code]
        memory = unmatched & ~known & ~self.is_kernel
        code[memory] = place[MEMORY_OPS]
        return Categories(code, labels, known | memory)


_PAGEABLE = re.compile(r".*Pageable", re.IGNORECASE)
_TOLD = re.compile(r".*(?:Pageable|Pinned|Managed)", re.IGNORECASE)
_PAGEABLE_KIND, _UNKNOWN_KIND = 0, 7


def pageable_copies(work: GpuWork) -> tuple[BoolArray, BoolArray]:
    """Which GPU events copy from or to pageable memory, and of which it is known, each (g,)."""
    trace = work.trace
    pageable = trace.names_matching(_PAGEABLE.match)[work.name]
    known = trace.names_matching(_TOLD.match)[work.name]
    for argument in MEMORY_KINDS:
        kind = trace.args.get(argument, no_arg()).at(work.rows)
        pageable |= kind == _PAGEABLE_KIND
        known |= (kind >= 0) & (kind < _UNKNOWN_KIND)
    return pageable, known


def gigabytes_per_second(work: GpuWork, events: Int64Array) -> float:
    """How fast some GPU events moved their bytes together; NaN where no size was recorded."""
    size = work.trace.args.get("bytes", no_arg()).at(work.rows[events])
    told = size > 0
    time = int(work.duration[events][told].sum())
    return float(size[told].sum()) / time if time else np.nan
