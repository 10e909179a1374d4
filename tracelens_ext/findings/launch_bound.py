"""Finds the reason why a program launches work too slowly, for the advice.

A launch takes the CPU the same time, no matter how much work the GPU gets. What helps depends on
the program: a fused optimizer if the optimizer takes most of the time, a compiler if most launches
are of element-wise operations, larger batches if batches are small. Waits for the GPU, and sizes
that change from iteration to iteration, make CUDA graphs impossible. A program that waits after
every few launches cannot launch ahead, however fast it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.coverage.coverage import coverage_of
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

#: An optimizer with at least this share of the time comes first.
_LARGE_SHARE: Final = 1 / 3
_MOST: Final = 0.5
#: Categories of kernels that a compiler fuses.
_FUSED_BY_COMPILERS: Final = (
    "Memory Ops",
    "Normalization",
    "Softmax",
    "Elementwise",
    "Reduction",
    "RNG & Dropout",
    "Positional Encoding",
)
#: Fewer waits in an iteration do not matter: a wait at the end, to read the loss, allows graphs.
_MANY_WAITS: Final = 3
_READS_VALUES: Final = re.compile(
    r"aten::(?:item|_local_scalar_dense|is_nonzero|nonzero|masked_select|_?unique)"
)
#: Gradients are reduced one by one if an iteration has at least this many reductions, and at least
#: this share of them is in the backward pass.
_MANY_REDUCTIONS: Final = 50
_NEARLY_ALL: Final = 0.8
_ALL_REDUCE: Final = re.compile(r"all_?reduce", re.IGNORECASE)
#: A program works in rounds if it waits at least this often, with at most this many launches for
#: each wait.
_FEWEST_ROUNDS: Final = 50
_FEW_LAUNCHES: Final = 20
#: Sizes change if at least this share of the launches differs from one iteration to the next.
_CHANGING_SHARE: Final = 0.1
#: Batches of at most this size are small: each launch keeps the GPU busy only for a short time.
_SMALL_BATCH: Final = 8


@dataclass(frozen=True)
class LaunchBound:
    """The reason why launches are too slow.

    Attributes:
        variant: the variant of the finding's text; empty if the trace shows no special reason.
        values: values for the names in braces in the advice.
    """

    variant: str = ""
    values: Mapping[str, object] = field(default_factory=dict)


def launch_bound(
    inspection: Inspection, claim: Claim, parts_of_step: Sequence[Place]
) -> LaunchBound:
    """Return the reason why launches are too slow, as far as the trace shows it.

    Args:
        inspection: the inspection of the trace.
        claim: the idle time in which the GPU waits for launches.
        parts_of_step: the parts of the training step that contain this time.
    """
    facts = inspection.facts
    if facts.shows(Fact.GPU_GRAPHS) or not facts.shows(Fact.SHORT_LAUNCHES):
        return LaunchBound()
    kind = program_of(inspection.gpu_events.trace).kind
    tests: tuple[_Test, ...] = ()
    if kind in PYTORCH_JOBS:
        tests = _TESTS_OF_PYTORCH
    elif kind == "native":
        tests = (_rounds,)
    for test in tests:
        reason = test(inspection, claim, parts_of_step)
        if reason is not None:
            return reason
    return LaunchBound()


def _optimizer(
    inspection: Inspection, claim: Claim, parts_of_step: Sequence[Place]
) -> LaunchBound | None:
    """Return the reason if the optimizer takes much of the time and is not fused, else None."""
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
    """Return the reason if sizes of tensors change from iteration to iteration, else None."""
    if "shapes" in inspection.missing or not inspection.roofline.has_shapes:
        return None
    iterations = find_iterations(inspection.gpu_events.tree)
    whole = np.flatnonzero(iterations.whole)
    if len(whole) < 2:
        return None
    # Count the GPU events of each operation (with its sizes) in each whole iteration.
    group = inspection.roofline.groups.of_gpu.astype(np.int64)
    group_count = int(group.max(initial=0)) + 1
    counts_of_iterations = []
    for iteration in whole.tolist():
        is_launched = (iterations.of_gpu == iteration) & (group != NONE)
        counts = np.bincount(group[is_launched], minlength=group_count)
        counts_of_iterations.append(counts)
    launches = np.array(counts_of_iterations, dtype=np.float64)
    # Compare each iteration with the one before.
    differing = np.abs(np.diff(launches, axis=0)).sum(axis=1)
    total = (launches[1:] + launches[:-1]).sum(axis=1)
    share = float(np.median(differing / np.maximum(total, 1)))
    if share < _CHANGING_SHARE:
        return None
    return LaunchBound("sizes", {"changing_percent": 100 * share})


def _waits(
    inspection: Inspection, _claim: Claim, _parts: Sequence[Place]
) -> LaunchBound | None:
    """Return the reason if operations read values from the GPU several times per iteration."""
    gpu_events = inspection.gpu_events
    trace = gpu_events.trace
    tree = gpu_events.tree
    calls = blocking_calls(gpu_events)
    iterations, _, _ = named_iterations(tree, None)
    if not len(iterations) or not len(calls):
        return None
    start = np.sort(trace.ts[calls])
    count_before_end = np.searchsorted(start, iterations.end)
    count_before_start = np.searchsorted(start, iterations.start)
    calls_in_iterations = (count_before_end - count_before_start).sum()
    share_in_iterations = calls_in_iterations / len(calls)
    operation_above = nearest_marked(tree.parent_position, tree.is_operation)
    position = operation_above[tree.position[calls]]
    operation = tree.rows[position[position != ROOT]]
    names = trace.name[operation]
    names = names[trace.named(names, _READS_VALUES.match)]
    per_iteration = share_in_iterations * len(names) / len(iterations)
    if per_iteration < _MANY_WAITS:
        return None
    most_common = int(np.bincount(names).argmax())
    values = {"waits": per_iteration, "waiting_operation": trace.names[most_common]}
    return LaunchBound("waits", values)


def _rounds(
    inspection: Inspection, _claim: Claim, _parts: Sequence[Place]
) -> LaunchBound | None:
    """Return the reason if a program waits for the GPU after every few launches, else None."""
    trace = inspection.gpu_events.trace
    waits = blocking_calls(inspection.gpu_events)
    launches = find_launches(inspection.gpu_events)
    count = int((launches.is_kernel | launches.is_graph).sum())
    if len(waits) < _FEWEST_ROUNDS or count > _FEW_LAUNCHES * len(waits):
        return None
    most_common = int(np.bincount(trace.name[waits]).argmax())
    launches_per_wait = round(count / len(waits))
    how_often = f"after every {launches_per_wait} launches"
    if launches_per_wait < 2:
        how_often = "after each launch"
    values = {"how_often": how_often, "waiting_call": trace.names[most_common]}
    return LaunchBound("rounds", values)


def _single_gradients(
    inspection: Inspection, claim: Claim, _parts: Sequence[Place]
) -> LaunchBound | None:
    """Return the reason if gradients are reduced one by one over the ranks, else None."""
    gpu_events = inspection.gpu_events
    trace = gpu_events.trace
    iterations, _, _ = named_iterations(gpu_events.tree, None)
    is_reduction = gpu_events.is_communication & gpu_events.tree.linked
    is_reduction &= trace.named(gpu_events.name, _ALL_REDUCE.search)
    launched_at = trace.ts[gpu_events.tree.launch_of_gpu[is_reduction]]
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
    """Return the reason if convolutions and embeddings of the program have small batches."""
    batch = _largest_batch(inspection)
    if batch is None or batch > _SMALL_BATCH:
        return None
    return LaunchBound("batch", {"batches": _batches_in_words(batch)})


def _batches_in_words(batch: int) -> str:
    if batch == 1:
        return "single inputs"
    return f"batches of {batch}"


def _largest_batch(inspection: Inspection) -> int | None:
    """Return the largest batch of a convolution or an embedding; None if none was recorded."""
    trace = inspection.gpu_events.trace
    largest = None
    for name, argument, dimensions in _BATCHED:
        rows = trace.rows_named(re.compile(f"{name}$"), EventKind.CPU_OP)
        no_tensors: tuple[tuple[int, ...], ...] = ()
        shapes = argument_values(trace, rows, "Input Dims", _dimensions, no_tensors)
        for value in shapes.values:
            if len(value) > argument and len(value[argument]) in dimensions:
                largest = max(largest or 0, value[argument][0])
    return largest


class _Batched(NamedTuple):
    """An operation whose input may have the batch as its first dimension."""

    name: str
    argument: int  #: the position of the input
    dimensions: tuple[int, ...]  #: the numbers of dimensions of an input with a batch


_BATCHED: Final = (
    _Batched("aten::conv2d", argument=0, dimensions=(4,)),
    _Batched("aten::convolution", argument=0, dimensions=(4, 5)),
    _Batched("aten::conv1d", argument=0, dimensions=(3,)),
    _Batched("aten::embedding", argument=1, dimensions=(2,)),
)


def _dimensions(text: str) -> tuple[tuple[int, ...], ...]:
    """Return the sizes of each argument of an operation; empty for arguments without tensors."""
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
    """Return the reason if most kernels are of operations that a compiler fuses, else None."""
    gpu_events = inspection.gpu_events
    categories = gpu_events.builtin_categories
    is_counted = gpu_events.is_kernel & ~gpu_events.is_communication
    is_counted &= ~coverage_of(gpu_events).is_set_aside(gpu_events)
    codes = []
    for code, label in enumerate(categories.labels):
        if label in _FUSED_BY_COMPILERS:
            codes.append(code)
    is_fusible = np.isin(categories.code, codes) & is_counted
    share = int(is_fusible.sum()) / max(int(is_counted.sum()), 1)
    if share < _MOST:
        return None
    return LaunchBound("fusible", {"fusible_percent": 100 * share})


#: Tests whether a reason applies.
_Test = Callable[[Inspection, Claim, Sequence[Place]], LaunchBound | None]
#: The tests for PyTorch programs; the reason whose remedy helps most comes first.
_TESTS_OF_PYTORCH: Final[tuple[_Test, ...]] = (
    _optimizer,
    _single_gradients,
    _changing_sizes,
    _waits,
    _small_batches,
    _fusible,
)
