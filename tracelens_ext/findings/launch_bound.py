"""Why a program launches too slowly: what of it the trace shows, for the advice.

A launch takes the CPU the same time whatever the GPU makes of it. What helps depends on the
program: a fused optimizer where the optimizer has most of the time, a compiler where most launches
are of element-wise operations, larger batches where batches are small. Waits for the GPU and sizes
that change from iteration to iteration stand in the way of CUDA graphs. A program that waits after
every few launches cannot launch ahead, however fast it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tracelens_ext.analysis.coverage.coverage import recording_of
from tracelens_ext.analysis.coverage.program import program_of
from tracelens_ext.analysis.cpu_time.activities import Activity, events_by_activity
from tracelens_ext.analysis.idle_time.gpu_calls import blocking_calls
from tracelens_ext.analysis.iterations.iterations import find_iterations
from tracelens_ext.analysis.iterations.named_iterations import named_iterations
from tracelens_ext.analysis.operations.arguments import argument_values, parsed
from tracelens_ext.findings.finding import Claim, Place
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.optimizer_steps import (
    optimizer_name,
    optimizer_steps,
    option_of_optimizer,
)
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import PYTORCH_JOBS
from tracelens_ext.trace import NONE, EventKind
from tracelens_ext.trace.intervals import covered
from tracelens_ext.trace.launches import find_launches
from tracelens_ext.trace.nesting import ROOT, nearest_marked

#: A part of the time, or of the launches, that decides what to do first.
_LARGE_SHARE: Final = 1 / 3
_MOST: Final = 0.5
#: What a compiler fuses.
_FUSED_BY_COMPILERS: Final = (
    "Memory Ops",
    "Normalization",
    "Softmax",
    "Elementwise",
    "Reduction",
    "RNG & Dropout",
    "Positional Encoding",
)
#: One wait at the end of an iteration, to read the loss, does not stand in the way of graphs.
_MANY_WAITS: Final = 3
_READS_VALUES: Final = re.compile(
    r"aten::(?:item|_local_scalar_dense|is_nonzero|nonzero|masked_select|_?unique)"
)
#: So many reductions in each iteration, nearly all in the backward pass, are of single gradients.
_MANY_REDUCTIONS: Final = 50
_NEARLY_ALL: Final = 0.8
_ALL_REDUCE: Final = re.compile(r"all_?reduce", re.IGNORECASE)
#: So many waits at least, and at most so many launches for each of them.
_FEWEST_ROUNDS: Final = 50
_FEW_LAUNCHES: Final = 20
#: Iterations differ in their sizes if so much of their launches does.
_CHANGING_SHARE: Final = 0.1
#: Batches up to this keep a GPU busy for a short time per launch.
_SMALL_BATCH: Final = 8


@dataclass(frozen=True)
class LaunchBound:
    """Why launches are too slow.

    Attributes:
        variant: of the text of the finding; empty if nothing special is seen.
        values: what stands for names in braces in its advice.
    """

    variant: str = ""
    values: Mapping[str, object] = field(default_factory=dict)


def launch_bound(
    inspection: Inspection, claim: Claim, parts_of_step: Sequence[Place]
) -> LaunchBound:
    """Return why launches are too slow, as far as the trace shows it.

    Args:
        inspection: of the trace.
        claim: idle time in which the GPU waits for launches.
        parts_of_step: the parts of the training step that have it, by name.
    """
    facts = inspection.facts
    if facts.shows(Fact.GPU_GRAPHS) or not facts.shows(Fact.SHORT_LAUNCHES):
        return LaunchBound()
    graphs = "HIP graphs" if facts.shows(Fact.AMD) else "CUDA graphs"
    kind = program_of(inspection.work.trace).kind
    looks: tuple[_Look, ...] = ()
    if kind in PYTORCH_JOBS:
        looks = _LOOKS_AT_PYTORCH
    elif kind == "native":
        looks = (_rounds,)
    for look in looks:
        found = look(inspection, claim, parts_of_step)
        if found is not None:
            return LaunchBound(found.variant, {**found.values, "graphs": graphs})
    return LaunchBound()


def _optimizer(
    inspection: Inspection, claim: Claim, parts_of_step: Sequence[Place]
) -> LaunchBound | None:
    """Return the case in which the optimizer has much of the time, and is not fused."""
    if inspection.facts.shows(Fact.FUSED_OPTIMIZER):
        return None
    for part in parts_of_step:
        share = part.attributed_ms / claim.attributed_ms
        if part.name == "the optimizer" and share >= _LARGE_SHARE:
            steps, _ = optimizer_steps(inspection)
            name = optimizer_name(inspection, steps)
            values = {
                "optimizer": name or "AdamW",
                "option": option_of_optimizer(name),
                "optimizer_percent": 100 * share,
            }
            return LaunchBound("optimizer", values)
    return None


def _changing_sizes(
    inspection: Inspection, _claim: Claim, _parts: Sequence[Place]
) -> LaunchBound | None:
    """Return the case in which sizes of tensors change from iteration to iteration."""
    if "shapes" in inspection.missing or not inspection.roofline.has_shapes:
        return None
    iterations = find_iterations(inspection.work.tree)
    whole = np.flatnonzero(iterations.whole)
    if len(whole) < 2:
        return None
    group = inspection.roofline.groups.of_gpu.astype(np.int64)
    groups = int(group.max(initial=0)) + 1
    counts = []
    for iteration in whole.tolist():
        is_launched = (iterations.of_gpu == iteration) & (group != NONE)
        counts.append(np.bincount(group[is_launched], minlength=groups))
    launches = np.array(counts, dtype=np.float64)
    differing = np.abs(np.diff(launches, axis=0)).sum(axis=1)
    both = (launches[1:] + launches[:-1]).sum(axis=1)
    share = float(np.median(differing / np.maximum(both, 1)))
    if share < _CHANGING_SHARE:
        return None
    return LaunchBound("sizes", {"changing_percent": 100 * share})


def _waits(
    inspection: Inspection, _claim: Claim, _parts: Sequence[Place]
) -> LaunchBound | None:
    """Return the case in which operations read values of the GPU several times per iteration."""
    work = inspection.work
    trace = work.trace
    tree = work.tree
    calls = blocking_calls(work)
    iterations, _, _ = named_iterations(tree, None)
    if not len(iterations) or not len(calls):
        return None
    begun = np.sort(trace.ts[calls])
    begun_before_end = np.searchsorted(begun, iterations.end)
    begun_before_start = np.searchsorted(begun, iterations.start)
    share_within = (begun_before_end - begun_before_start).sum() / len(calls)
    above = nearest_marked(tree.parent_position, tree.is_operation)
    position = above[tree.position[calls]]
    operation = tree.rows[position[position != ROOT]]
    names = trace.name[operation]
    names = names[trace.named(names, _READS_VALUES.match)]
    per_iteration = share_within * len(names) / len(iterations)
    if per_iteration < _MANY_WAITS:
        return None
    commonest = int(np.bincount(names).argmax())
    values = {"waits": per_iteration, "waiting_operation": trace.names[commonest]}
    return LaunchBound("waits", values)


def _rounds(
    inspection: Inspection, _claim: Claim, _parts: Sequence[Place]
) -> LaunchBound | None:
    """Return the case in which a program waits for the GPU after every few launches."""
    trace = inspection.work.trace
    waits = blocking_calls(inspection.work)
    launches = find_launches(inspection.work)
    count = int((launches.is_kernel | launches.is_graph).sum())
    if len(waits) < _FEWEST_ROUNDS or count > _FEW_LAUNCHES * len(waits):
        return None
    commonest = int(np.bincount(trace.name[waits]).argmax())
    launches_per_wait = round(count / len(waits))
    how_often = f"after every {launches_per_wait} launches"
    if launches_per_wait < 2:
        how_often = "after each launch"
    values = {"how_often": how_often, "waiting_call": trace.names[commonest]}
    return LaunchBound("rounds", values)


def _single_gradients(
    inspection: Inspection, claim: Claim, _parts: Sequence[Place]
) -> LaunchBound | None:
    """Return the case in which gradients of single parameters are reduced over the ranks."""
    work = inspection.work
    trace = work.trace
    iterations, _, _ = named_iterations(work.tree, None)
    is_reduction = work.is_communication & work.tree.linked
    is_reduction &= trace.named(work.name, _ALL_REDUCE.search)
    launched_at = trace.ts[work.tree.launch_of_gpu[is_reduction]]
    if not len(iterations) or not len(launched_at):
        return None
    if inspection.facts.shows(Fact.GRADIENT_BUCKETS):
        return None
    backward = dict(events_by_activity(trace))[Activity.BACKWARD]
    in_backward = covered(
        trace.ts[backward], trace.end_of(backward), launched_at, launched_at + 1
    )
    devices = len(claim.devices)
    per_iteration = len(launched_at) / len(iterations) / devices
    is_mostly_backward = int(in_backward.sum()) >= _NEARLY_ALL * len(launched_at)
    if per_iteration < _MANY_REDUCTIONS or not is_mostly_backward:
        return None
    return LaunchBound("gradients", {"reductions": per_iteration})


def _small_batches(
    inspection: Inspection, _claim: Claim, _parts: Sequence[Place]
) -> LaunchBound | None:
    """Return the case in which the convolutions or products of the program have small batches."""
    batch = _largest_batch(inspection)
    if batch is None or batch > _SMALL_BATCH:
        return None
    return LaunchBound("batch", {"batches": _batches_in_words(batch)})


def _batches_in_words(batch: int) -> str:
    if batch == 1:
        return "single inputs"
    return f"batches of {batch}"


def _largest_batch(inspection: Inspection) -> int | None:
    """Return the largest number of images or sequences that convolutions or embeddings get."""
    trace = inspection.work.trace
    largest = None
    for name, argument, dimensions in _BATCHED:
        rows = trace.rows_named(re.compile(f"{name}$"), EventKind.CPU_OP)
        no_tensors: tuple[tuple[int, ...], ...] = ()
        shapes = argument_values(trace, rows, "Input Dims", _dimensions, no_tensors)
        for value in shapes.values:
            if len(value) > argument and len(value[argument]) in dimensions:
                largest = max(largest or 0, value[argument][0])
    return largest


#: Operations whose input has one item of the batch at each first index: which argument that is, and
#: how many dimensions it has then.
_BATCHED: Final = (
    ("aten::conv2d", 0, (4,)),
    ("aten::convolution", 0, (4, 5)),
    ("aten::conv1d", 0, (3,)),
    ("aten::embedding", 1, (2,)),
)


def _dimensions(text: str) -> tuple[tuple[int, ...], ...]:
    """Return the sizes of the tensors among the arguments of an operation."""
    value = parsed(text).value
    if not isinstance(value, tuple):
        return ()
    result = []
    for sizes in value:
        is_tensor = isinstance(sizes, tuple) and all(
            isinstance(size, int) for size in sizes
        )
        result.append(sizes if is_tensor else ())
    return tuple(result)


def _fusible(
    inspection: Inspection, _claim: Claim, _parts: Sequence[Place]
) -> LaunchBound | None:
    """Return the case in which most launches are of operations that a compiler fuses."""
    work = inspection.work
    categories = work.builtin_categories
    is_counted = work.is_kernel & ~work.is_communication
    is_counted &= ~recording_of(work).set_aside(work)
    codes = []
    for code, label in enumerate(categories.labels):
        if label in _FUSED_BY_COMPILERS:
            codes.append(code)
    is_fusible = np.isin(categories.code, codes) & is_counted
    share = int(is_fusible.sum()) / max(int(is_counted.sum()), 1)
    if share < _MOST:
        return None
    return LaunchBound("fusible", {"fusible_percent": 100 * share})


_Look = Callable[[Inspection, Claim, Sequence[Place]], LaunchBound | None]
#: What to look at in programs of PyTorch, what helps most first.
_LOOKS_AT_PYTORCH: Final[tuple[_Look, ...]] = (
    _optimizer,
    _single_gradients,
    _changing_sizes,
    _waits,
    _small_batches,
    _fusible,
)
