"""Chains of passes over the same large tensor, which one fused pass could replace."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.optimizer_steps import bytes_of_row, optimizer_steps
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import AdviceVariant, EvidenceText, FindingText
from tracelens_ext.roofline.analysis import RooflineRow
from tracelens_ext.roofline.element_types import short_type
from tracelens_ext.trace import NONE, BoolArray, Float64Array, Int64Array
from tracelens_ext.trace.grouping import inverse_permutation, maxima, sums

TEXT: Final = FindingText(
    title="Unfused elementwise passes over large tensors: {saving}",
    advices=(
        AdviceVariant(
            kinds=("serving",),
            follows=(Fact.COMPILED,),
            advice=(
                "Use the engine's fused operations (norm, rotary embedding, activation) where "
                "the compiler left passes apart."
            ),
        ),
        AdviceVariant(
            kinds=("serving",),
            advice=(
                "Use the engine's fused operations (norm, rotary embedding, activation), or "
                "let it compile the model."
            ),
        ),
        AdviceVariant(
            follows=(Fact.COMPILED,),
            advice=(
                "Fuse the passes that the compiler left apart: remove graph breaks between "
                "them (TORCH_LOGS=graph_breaks), or use a fused operation where there is one."
            ),
        ),
        AdviceVariant(
            advice=(
                "Fuse them: compile the module around them, or use a fused operation "
                "(rms_norm, layer_norm, a fused rotary embedding or SwiGLU)."
            ),
            snippet="model = torch.compile(model)",
        ),
    ),
    reason=(
        "passes over tensors of one size follow each other; whether each reads what the one "
        "before wrote is not recorded"
    ),
    evidence={
        "chains": EvidenceText(what="chains", unit="chains", see="roofline"),
        "passes": EvidenceText(what="passes in them", unit="passes", see="roofline"),
        "time_ms": EvidenceText(what="their time", unit="ms", see="roofline"),
        "gigabytes": EvidenceText(
            what="bytes that they move", unit="GB", see="roofline"
        ),
    },
    least_share=0.5,
    most_share=1.1,
)

#: Families of operations that models apply to one tensor after another, but rarely twice to the
#: same tensor.
_ONCE: Final = frozenset({"Normalization", "Softmax", "Concatenation", "Reduce_fwd"})
#: Families of operations that a compiler fuses into one pass. Fills and random numbers are not
#: among them, because they read nothing; casts and layout conversions have their own findings.
_FAMILIES: Final = _ONCE | {"UnaryElementwise", "BinaryElementwise"}
_DROPOUT: Final = frozenset(
    {"native_dropout", "native_dropout_backward", "_fused_dropout"}
)
#: A smaller tensor is read and written faster than a kernel is launched, so bytes do not matter.
_LARGE_BYTES: Final = 4 << 20
#: A loop over tensors has at most this many passes for each tensor: moving averages, norms, scaling
#: of gradients.
_REPEATS_WITHIN: Final = 4


@detector(
    "memory-bound-chain",
    TEXT,
    kinds=("pytorch-training", "pytorch-inference", "serving"),
)
def memory_bound_chain(inspection: Inspection) -> Finding | None:
    """Detect chains of passes over the same large tensor.

    A fused pass is assumed to take as long as the longest pass of the chain.
    """
    if not inspection.has_shapes:
        return None
    gpu_events = inspection.gpu_events
    is_outside_steps = optimizer_steps(inspection).of_gpu == NONE
    chains = _find_chains(
        inspection, inspection.wall.free & gpu_events.is_kernel & is_outside_steps
    )
    is_member = chains.of_gpu != NONE
    chain = chains.of_gpu[is_member]
    pass_number = chains.pass_of_gpu[is_member]
    duration = gpu_events.duration[is_member]
    total_ns = np.bincount(chain, duration)
    pass_ns = sums(pass_number, duration, len(gpu_events))
    longest_pass_ns = maxima(
        group_index=chain, values=pass_ns[pass_number], group_count=len(total_ns)
    )
    share = np.zeros(len(gpu_events))
    share[is_member] = (1.0 - longest_pass_ns / np.maximum(total_ns, 1))[chain]
    claim = inspection.wall.claim_events(is_member, share)
    _, first_of_pass = np.unique(pass_number, return_index=True)
    moved = inspection.by_operation(bytes_of_row)[is_member][first_of_pass]
    numbers = {
        "chains": len(total_ns),
        "passes": len(first_of_pass),
        "time_ms": inspection.wall.mean_ms(total_ns),
        "gigabytes": float(moved.sum()) / 1e9,
    }
    where = {"tensors": inspection.ranked_by(_shape, claim)}
    return inspection.finding(
        "memory-bound-chain", claim, numbers, text=TEXT, where=where
    )


class _Chains(NamedTuple):
    """Chains of calls over tensors of the same size, which follow each other on a stream."""

    of_gpu: Int64Array  #: the chain of each GPU event, `NONE` without one, (g,)
    pass_of_gpu: Int64Array  #: the number of the call of each GPU event, by stream and start, (g,)


def _find_chains(inspection: Inspection, free: BoolArray) -> _Chains:
    """Return the chains of free GPU events. Small work may run between their passes.

    Args:
        inspection: the inspection of the trace.
        free: True for the GPU events that may belong to a chain, (g,).
    """
    order, stream = inspection.stream_order
    call = inspection.launchers.of_gpu[order]
    begins_pass = np.ones(len(order), dtype=bool)
    begins_pass[1:] = call[1:] != call[:-1]
    begins_pass[1:] |= call[1:] == NONE
    begins_pass[1:] |= stream[1:] != stream[:-1]
    pass_number = np.cumsum(begins_pass) - 1
    size = inspection.by_operation(_size)[order]
    size[~free[order]] = 0

    is_end = (size > 0) | ~_lies_between(inspection)[order]
    passes = np.flatnonzero(begins_pass & is_end)

    joins = np.zeros(len(passes), dtype=bool)
    current = passes[1:]
    previous = passes[:-1]
    joins[1:] = size[current] > 0
    joins[1:] &= size[current] == size[previous]
    joins[1:] &= stream[current] == stream[previous]
    joined_chain = np.cumsum(~joins) - 1
    name_code = _name_codes(inspection)[order]
    chain = _without_repeats(joined_chain, name_code[passes])

    chain_of_pass = np.full(int(pass_number[-1]) + 1, NONE)
    if len(chain):
        passes_of_chain = np.bincount(chain)
        is_long = passes_of_chain[chain] > 1
        _, number = np.unique(chain[is_long], return_inverse=True)
        long_passes = pass_number[passes[is_long]]
        chain_of_pass[long_passes] = number
    pass_of_gpu = pass_number[inverse_permutation(order)]
    chain_of_gpu = np.where(free, chain_of_pass[pass_of_gpu], NONE)
    return _Chains(chain_of_gpu, pass_of_gpu)


def _lies_between(inspection: Inspection) -> BoolArray:
    """Tell which GPU events fusing takes along if they lie between the passes of a chain, (g,)."""
    is_vector = inspection.by_operation(_is_vector) > 0
    is_small = inspection.by_operation(bytes_of_row) < _LARGE_BYTES
    is_taken_along = is_small | ~inspection.wall.free
    return is_vector & is_taken_along


def _name_codes(inspection: Inspection) -> Float64Array:
    """Return a code for the name of operations that run once per tensor, 0 for others, (g,)."""
    names_of_rows = [_once_a_tensor(row) for row in inspection.roofline.rows]
    names = sorted({""}.union(names_of_rows))

    def code_of(_: RooflineRow, name: str) -> int:
        return names.index(name)

    return inspection.by_operation(code_of, names_of_rows)


def _without_repeats(chain: Int64Array, once: Float64Array) -> Int64Array:
    """Cut chains before an operation that runs once per tensor and comes again.

    In the calls `a b a b` of a chain, the third call starts another chain: calls that repeat with a
    period of two are cut at every second call.

    Args:
        chain: the chain of each of p calls, (p,).
        once: the code of the name of an operation that runs once per tensor, 0 for others, (p,).

    Returns:
        The new chain of each call, (p,).
    """
    is_cut = np.ones(len(chain), dtype=bool)
    is_cut[1:] = chain[1:] != chain[:-1]
    position = np.arange(len(chain))
    for lag in range(1, _REPEATS_WITHIN + 1):
        # Repeating calls are numbered from 0 behind the last call that does not repeat. With a lag
        # of 2, the calls 0, 2, 4 … of these start another tensor.
        repeats = _repeats_after(chain, once, lag)
        position_if_other = np.where(repeats, -1, position)
        last_other = np.maximum.accumulate(position_if_other)
        repeats_before = position - last_other - 1
        starts_period = repeats_before % lag == 0
        is_cut |= repeats & starts_period
    return np.cumsum(is_cut) - 1


def _repeats_after(chain: Int64Array, once: Float64Array, lag: int) -> BoolArray:
    """Return which calls, (p,), have the name and the chain of the call `lag` calls before."""
    current_name = once[lag:]
    is_same_name = current_name == once[:-lag]
    is_same_name &= current_name > 0
    is_same_chain = chain[lag:] == chain[:-lag]
    repeats = np.zeros(len(chain), dtype=bool)
    repeats[lag:] = is_same_name & is_same_chain
    return repeats


def _is_vector(row: RooflineRow) -> bool:
    return row.cost is not None and row.cost.engine == "vector"


def _size(row: RooflineRow) -> int:
    """Return the elements that a pass over a large tensor goes over; 0 for other operations."""
    cost = row.cost
    operation = row.operation
    if cost is None or row.is_host_copy:
        return 0
    if cost.family == "Concatenation":
        return _concatenated_elements(row)
    is_pass = cost.family in _FAMILIES or operation.plain_name in _DROPOUT
    if not operation.tensors or not is_pass:
        return 0
    if cost.family == "Reduce_fwd" and cost.parameters.get("num_output_elems", 1) == 1:
        # The result of a norm of gradients, or of a loss, is not processed element by element.
        return 0
    largest = max(operation.tensors, key=lambda tensor: tensor.elements)
    if largest.written < _LARGE_BYTES:
        return 0
    return largest.elements


def _concatenated_elements(row: RooflineRow) -> int:
    """Return the elements of all parts of a concatenation; 0 if it is small.

    The types of tensors in lists are not recorded, so the bytes of the operation decide.
    """
    if row.cost is None or row.cost.bytes < 2 * _LARGE_BYTES:
        return 0
    dims = row.operation.dims
    if not dims or not isinstance(dims[0], tuple):
        return 0
    elements = 0
    for part in dims[0]:
        if isinstance(part, tuple):
            elements += math.prod(part)
    return elements


def _once_a_tensor(row: RooflineRow) -> str:
    """Return the name of an operation that runs once per tensor; empty for other operations.

    If such an operation comes again soon, it processes another tensor of the same size: the next
    gradient that is scaled, values after keys that are concatenated, keys after queries that are
    normalized. Other operations may well process the result of the one before.
    """
    is_once = row.cost is not None and row.cost.family in _ONCE
    if row.operation.in_place or is_once:
        return row.operation.name
    return ""


def _shape(row: RooflineRow) -> str:
    """Return the largest tensor as text: `16×559×1024 bf16`; empty for a list of tensors."""
    if row.cost is None or not row.operation.tensors:
        return ""
    largest = max(row.operation.tensors, key=lambda tensor: tensor.elements)
    dims = "×".join(map(str, largest.dims))
    data_type = short_type(largest.kind)
    return f"{dims} {data_type}"
