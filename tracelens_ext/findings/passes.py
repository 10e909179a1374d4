"""Passes over tensors that compute little: layouts, casts, chains of them, optimizers."""

from __future__ import annotations

import math
import re
from typing import Final

import numpy as np

from tracelens_ext.findings.attribution import ranked
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.roofline.analysis import RooflineRow
from tracelens_ext.roofline.element_types import short_type
from tracelens_ext.roofline.operation import Operation, Tensor
from tracelens_ext.trace import NONE, NS_PER_MS, BoolArray, EventKind, Float64Array, Int64Array
from tracelens_ext.trace.grouping import inverse, last_before, maxima, sums
from tracelens_ext.trace.nesting import ROOT, nearest_above

#: Kernels of cuDNN, cuTENSOR, MIOpen and XLA that transpose and compute nothing.
_TRANSPOSES: Final = re.compile(
    r"(?:nchw|nhwc)\w*To\w*(?:nchw|nhwc)|(?:nchw|nhwc|cnhw)2(?:nchw|nhwc|cnhw)|batched?_transpose_"
    r"|tensorTransformGeneric|genericTranspose|permutationKernel"
    r"|^(?:void )?(?:\w+::)*(?:loop_|input_|wrapped_)?transpose_?"
    r"(?:kernel|fusion|packed|\d*(?:$|\W))",
    re.IGNORECASE,
)
#: Operations that copy only where the elements are not in the order that is asked for.
_ASK_FOR_ORDER: Final = re.compile(r"aten::(?:contiguous|reshape|_reshape_copy)$")
_COPIES: Final = re.compile(r"aten::(?:copy_|clone|contiguous|reshape|_to_copy|_reshape_copy)$")
_ACROSS_LINK: Final = re.compile(r"Memcpy (?!DtoD|DeviceToDevice)", re.IGNORECASE)


def layout_conversion(inspection: Inspection) -> Finding | None:
    """Kernels and copies that only bring elements into another order."""
    work = inspection.work
    transposes = work.trace.named(work.name, _TRANSPOSES.search) & work.is_kernel
    claim = inspection.wall.claim_events(transposes | _copies_in_another_order(inspection))
    of_libraries = float(claim.event_ns[transposes[claim.events]].sum())
    copied_ms = (claim.saving_ns - of_libraries) / NS_PER_MS
    variant = "libraries" if 2 * of_libraries > claim.saving_ns else "copies"
    numbers = len(claim.events), of_libraries / NS_PER_MS, copied_ms
    return inspection.finding("layout-conversion", claim, numbers, variant=variant)


def _copies_in_another_order(inspection: Inspection) -> BoolArray:
    """Whether each GPU event copies a tensor within the device to change its layout, (g,)."""
    work = inspection.work
    trace = inspection.work.trace
    tree = inspection.work.tree
    op = tree.cpu_op_of_gpu
    copies = (op >= 0) & trace.named(trace.name[op], _COPIES.match)
    copies &= ~trace.named(work.name, _ACROSS_LINK.match) & ~tree.by_opaque_graph
    result = copies & (inspection.by_operation(lambda row: _reorders(row.operation)) > 0)
    chosen = np.flatnonzero(copies)
    by_position = trace.named(trace.name[tree.rows], _ASK_FOR_ORDER.match)
    above = nearest_above(tree.parent_position, tree.launch_position_of_gpu[chosen], by_position)
    result[chosen] |= above != ROOT
    return result


def _reorders(op: Operation) -> bool:
    """Whether a copy reads a tensor in one order of dimensions, and writes it in another."""
    if op.plain_name != "copy_" or len(op.tensors) < 2:
        return False
    to, source = op.tensors[:2]
    recorded = all(len(tensor.strides) == len(tensor.dims) for tensor in (to, source))
    if not recorded or (to.dims, to.kind) != (source.dims, source.kind):
        return False
    last = sum((n - 1) * s for n, s in zip(to.dims, to.strides, strict=True))
    is_dense = last + 1 == to.elements
    return is_dense and 0 not in source.strides and _order(to) != _order(source)


def _order(tensor: Tensor) -> list[int]:
    """The dimensions with more than one element, the one with the largest stride first."""
    sizes = enumerate(zip(tensor.dims, tensor.strides, strict=True))
    return sorted((i for i, (n, _) in sizes if n > 1), key=lambda i: -tensor.strides[i])


_CASTS: Final = ("copy_", "_to_copy", "to", "_foreach_copy_")
#: Kernels that only cast, told without types: PyTorch's copies between types, and XLA's. Those
#: within a convolution of a library are not for its caller to change.
_BY_NAME: Final = re.compile(
    r"direct_copy_kernel_cuda.*LoadWithCast|b?float(?:16|8\w*)?\w*_copy_kernel_cuda"
    r"|^wrapped_convert"
)


def dtype_casts(inspection: Inspection) -> Finding | None:
    """Kernels that read a tensor and write it in another data type."""
    work = inspection.work
    types = [_types(row.operation) for row in inspection.roofline.rows]
    codes = {text: code for code, text in enumerate(sorted({*filter(None, types)}))}
    code = inspection.by_operation(lambda _, text: codes.get(text, NONE), types, otherwise=NONE)
    same = inspection.by_operation(lambda _, text: text == "", types) > 0  # a copy, and no cast
    by_name = work.trace.named(work.name, _BY_NAME.search)
    claim = inspection.wall.claim_events(((code != NONE) | (by_name & ~same)) & work.is_kernel)
    gigabytes = float(inspection.by_operation(_bytes)[claim.events].sum()) / 1e9
    kinds = ranked(code[claim.events].astype(np.int64), [*codes], claim.event_ns)
    numbers = len(claim.events), claim.saving_ms, gigabytes or None
    return inspection.finding("dtype-casts", claim, numbers, where={"types": kinds})


def _types(op: Operation) -> str | None:
    """`bf16 to fp32` of a cast; empty for a copy that is none; None where types do not tell."""
    if op.plain_name not in _CASTS or len(op.tensors) < 2:
        return None
    to, source = (short_type(tensor.kind) for tensor in op.tensors[:2])
    return f"{source} to {to}" if to != source else ""


def _bytes(row: RooflineRow) -> int:
    return row.cost.bytes if row.cost else 0


#: Families that a loop or a model applies to one tensor after the other, rarely twice to the same.
_ONCE: Final = frozenset({"Normalization", "Softmax", "Concatenation", "Reduce_fwd"})
#: What a compiler fuses into one pass. Fills and random numbers read nothing; casts and copies
#: into another layout are findings of their own.
_FAMILIES: Final = _ONCE | {"UnaryElementwise", "BinaryElementwise"}
_DROPOUT: Final = frozenset({"native_dropout", "native_dropout_backward", "_fused_dropout"})
#: A smaller tensor is read and written in less time than a launch takes: then bytes do not matter.
_LARGE_BYTES: Final = 4 << 20
#: Passes for each tensor of loops over tensors: moving averages, norms and scaling of gradients.
_REPEATS_WITHIN: Final = 4


def memory_bound_chain(inspection: Inspection) -> Finding | None:
    """Passes over the same large tensor that one fused pass replaces."""
    if not inspection.has_shapes:
        return None
    work = inspection.work
    free = inspection.wall.free & work.is_kernel & (_steps(inspection)[1] == NONE)
    chain, passes = _find_chains(inspection, free)
    member = chain != NONE
    chain = chain[member]
    passes = passes[member]
    ns = work.duration[member]
    total = np.bincount(chain, ns)
    one_pass = maxima(chain, sums(passes, ns, len(work))[passes], len(total))
    share = np.zeros(len(work))
    share[member] = (1.0 - one_pass / np.maximum(total, 1))[chain]
    claim = inspection.wall.claim_events(member, share)
    _, first = np.unique(passes, return_index=True)
    gigabytes = float(inspection.by_operation(_bytes)[member][first].sum()) / 1e9
    numbers = len(total), len(first), inspection.wall.mean_ms(total), gigabytes
    tensors = inspection.ranked_by(_shape, claim)
    return inspection.finding("memory-bound-chain", claim, numbers, where={"tensors": tensors})


def _find_chains(inspection: Inspection, free: BoolArray) -> tuple[Int64Array, Int64Array]:
    """The chain of each GPU event, `NONE` for none, and its pass, by stream and start, both (g,).

    Calls over tensors of one size, one after the other on a stream; small work may lie between.
    """
    order, stream = inspection.stream_order
    call = inspection.launchers.of_gpu[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (call[1:] != call[:-1]) | (call[1:] == NONE) | (stream[1:] != stream[:-1])
    number = np.cumsum(begins) - 1
    size = inspection.by_operation(_size)[order]
    size[~free[order]] = 0
    vector = inspection.by_operation(lambda row: bool(row.cost) and row.cost.engine == "vector") > 0
    small = inspection.by_operation(_bytes) < _LARGE_BYTES
    between = (vector & (small | ~inspection.wall.free))[order]  # what fusing takes along
    passing = np.flatnonzero(begins & ((size > 0) | ~between))
    names = sorted({"", *map(_once_a_tensor, inspection.roofline.rows)})
    once = inspection.by_operation(lambda row: names.index(_once_a_tensor(row)))[order]
    joins = np.zeros(len(passing), dtype=bool)
    now = passing[1:]
    before = passing[:-1]
    joins[1:] = (size[now] > 0) & (size[now] == size[before]) & (stream[now] == stream[before])
    chain = _without_repeats(np.cumsum(~joins) - 1, once[passing])
    long = np.bincount(chain)[chain] > 1 if len(chain) else joins
    of_pass = np.full(int(number[-1]) + 1, NONE)
    of_pass[number[passing[long]]] = np.unique(chain[long], return_inverse=True)[1]
    passes = number[inverse(order)]
    return np.where(free, of_pass[passes], NONE), passes


def _without_repeats(chain: Int64Array, once: Float64Array) -> Int64Array:
    """Chains, (p,), cut where an operation comes again that goes `once` over each tensor (or 0)."""
    cut = np.append(True, chain[1:] != chain[:-1])[: len(chain)]
    place = np.arange(len(chain))
    for lag in range(1, _REPEATS_WITHIN + 1):
        again = np.zeros(len(chain), dtype=bool)
        again[lag:] = (once[lag:] == once[:-lag]) & (once[lag:] > 0) & (chain[lag:] == chain[:-lag])
        since = place - np.maximum.accumulate(np.where(again, -1, place)) - 1
        cut |= again & (since % lag == 0)
    return np.cumsum(cut) - 1


def _size(row: RooflineRow) -> int:
    """Elements that a pass over a large tensor goes over; 0 for other operations."""
    cost = row.cost
    op = row.operation
    if cost is None or row.is_host_copy:
        return 0
    if cost.family == "Concatenation":  # reads and writes as much; types of lists are not recorded
        sizes = op.dims[0] if op.dims and isinstance(op.dims[0], tuple) else ()
        parts = [math.prod(part) for part in sizes if isinstance(part, tuple)]
        return sum(parts) if cost.bytes >= 2 * _LARGE_BYTES else 0
    if not op.tensors or (cost.family not in _FAMILIES and op.plain_name not in _DROPOUT):
        return 0
    if cost.family == "Reduce_fwd" and cost.parameters.get("num_output_elems", 1) == 1:
        return 0  # a norm of gradients, a loss: nothing goes on from there element by element
    largest = max(op.tensors, key=lambda tensor: tensor.elements)
    return largest.elements if largest.written >= _LARGE_BYTES else 0


def _once_a_tensor(row: RooflineRow) -> str:
    """The name of an operation that, when it comes again soon, goes over another tensor.

    Gradients are scaled, keys and values joined, queries and keys normalised one after the other,
    and have the same size; what else computes a new tensor may well continue the one before.
    """
    many = row.cost is not None and row.cost.family in _ONCE
    return row.operation.name if row.operation.in_place or many else ""


def _shape(row: RooflineRow) -> str:
    """The largest tensor, as `16×559×1024 bf16`; that of a list of tensors is not told."""
    if row.cost is None or not row.operation.tensors:
        return ""
    largest = max(row.operation.tensors, key=lambda tensor: tensor.elements)
    return f"{'×'.join(map(str, largest.dims))} {short_type(largest.kind)}"


#: PyTorch's annotation around a step of an optimizer.
_STEP: Final = re.compile(r"Optimizer\.step#(\w+)")
#: Kernels that work on many parameters at once: PyTorch's foreach and fused ones, Apex's, compiled.
_MANY_AT_ONCE: Final = re.compile(r".*(multi_tensor|foreach|[Ff]used|triton_)")
#: A step with fewer kernels that each work on one parameter gains nothing worth a change.
_MANY_KERNELS: Final = 20
#: A fused Adam reads four tensors a parameter and writes three; its single steps (two decays, two
#: updates of moments, root, division, sum) move about twenty. Other optimizers lie near that.
_FUSED_SHARE: Final = 0.35
#: What any kernel takes however little it does: nobody needs that once for each parameter.
_FIXED_NS: Final = 2_500


def unfused_optimizer(inspection: Inspection) -> Finding | None:
    """The windows of steps with kernels for each parameter, less what a fused step needs."""
    work = inspection.work
    wall = inspection.wall
    trace = inspection.work.trace
    steps, step = _steps(inspection)
    if not len(steps):
        return None
    together = trace.named(work.name, _MANY_AT_ONCE.match)
    single = (step != NONE) & work.is_kernel & ~together & ~work.is_communication
    count = np.bincount(step[single], minlength=len(steps))
    of_all = np.bincount(step[work.is_kernel] + 1, minlength=len(steps) + 1)[1:]
    unfused = (count >= _MANY_KERNELS) & (2 * count > of_all)
    chosen = single & unfused[step]
    needed = _FUSED_SHARE * np.maximum(work.duration - _FIXED_NS, 0)
    share = 1.0 - needed / np.maximum(work.duration, 1)
    before = wall.classified.gaps.before
    after = wall.classified.gaps.after
    within = chosen[before] & chosen[after] & (step[before] == step[after])
    idle = wall.claim_idle_during(steps[unfused])
    idle = idle + wall.claim_idle(within[wall.idle.gap])
    claim = idle + wall.claim_events(chosen, share)
    names = {trace.names[i] for i in np.unique(trace.name[steps[unfused]]).tolist()}
    names = {match[1] for match in map(_STEP.match, names) if match}
    name = names.pop() if len(names) == 1 else ""
    numbers = int(unfused.sum()), *inspection.size_of(claim), idle.saving_ms
    told = {"who": name or "The optimizer", "name": name or "AdamW"}
    return inspection.finding("unfused-optimizer", claim, numbers, told=told)


def _steps(inspection: Inspection) -> tuple[Int64Array, Int64Array]:
    """The steps; and which launched each GPU event, an index into them, `NONE` without, (g,)."""
    trace = inspection.work.trace
    tree = inspection.work.tree
    rows = inspection.host_rows(_STEP, EventKind.CPU_OP, EventKind.USER_ANNOTATION)
    rows = rows[np.lexsort((trace.ts[rows], trace.thread[rows]))]
    launch = tree.launch_of_gpu
    if not len(rows):
        return rows, np.full(len(launch), NONE)
    begun = trace.ts[launch]
    at = last_before(trace.thread[rows], trace.ts[rows], trace.thread[launch], begun + 1)
    inside = tree.linked & (at != NONE) & (begun < trace.end_of(rows[at]))
    return rows, np.where(inside, at, NONE)
