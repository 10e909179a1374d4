"""`memory-bound-chain`: passes over the same large tensor that one fused pass replaces."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.places import ranked
from tracelens_ext.findings.unfused_optimizer import in_optimizer_step
from tracelens_ext.roofline.operation import short_type
from tracelens_ext.trace import NONE
from tracelens_ext.work.grouping import maxima, sums

if TYPE_CHECKING:
    from tracelens_ext.roofline.found import RooflineRow
    from tracelens_ext.trace import BoolArray, Float64Array, Int64Array

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


def _detect(inspection: Inspection) -> Finding | None:
    if not inspection.has_shapes:
        return None
    work, rows = inspection.work, inspection.roofline.rows
    free = inspection.wall.free & work.is_kernel & ~in_optimizer_step(inspection)
    chain, passes = _find_chains(inspection, free)
    member = chain != NONE
    ns = work.duration[member]
    total = np.bincount(chain[member], ns)
    one_pass = maxima(
        chain[member], sums(passes[member], ns, len(work))[passes[member]], len(total)
    )
    share = np.zeros(len(work))
    share[member] = (1.0 - one_pass / np.maximum(total, 1))[chain[member]]
    claim = inspection.wall.claim_events(member, share)
    of_gpu = inspection.roofline.groups.of_gpu
    moved = inspection.by_operation([row.cost.bytes if row.cost else 0 for row in rows])
    _, first = np.unique(passes[member], return_index=True)
    gigabytes = float(moved[member][first].sum()) / 1e9
    return inspection.finding(
        DETECTOR.id,
        claim,
        evidence=[
            Evidence("chains", len(total), "chains", "roofline"),
            Evidence("passes in them", len(first), "passes", "roofline"),
            Evidence("their time", inspection.wall.mean_ms(total), "ms", "roofline"),
            Evidence("bytes that they move", gigabytes, "GB", "roofline"),
        ],
        where={"tensors": ranked(of_gpu[claim.events], [*map(_shape, rows)], claim.event_ns)},
    )


def _find_chains(inspection: Inspection, free: BoolArray) -> tuple[Int64Array, Int64Array]:
    """Calls over tensors of one size, one after the other on a stream; small work may lie between.

    Args:
        inspection: the trace.
        free: the GPU events that may be part of one, (g,).

    Returns:
        The chain of each GPU event, `NONE` for none, and its pass, numbered by stream and start,
        each (g,).
    """
    rows = inspection.roofline.rows
    order, stream = inspection.stream_order
    call = inspection.launchers.of_gpu[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (call[1:] != call[:-1]) | (call[1:] == NONE) | (stream[1:] != stream[:-1])
    number = np.cumsum(begins) - 1
    size = inspection.by_operation([_size(each) for each in rows])[order]
    size[~free[order]] = 0
    small, vector = (inspection.by_operation([*map(f, rows)]) > 0 for f in (_is_small, _is_vector))
    between = (vector & (small | ~inspection.wall.free))[order]  # what fusing takes along
    passing = np.flatnonzero(begins & ((size > 0) | ~between))
    texts = [_once_a_tensor(each) for each in rows]
    known = ["", *sorted({*texts} - {""})]
    once = inspection.by_operation([known.index(text) for text in texts])[order]
    joins = np.zeros(len(passing), dtype=bool)
    now, before = passing[1:], passing[:-1]
    joins[1:] = (size[now] > 0) & (size[now] == size[before]) & (stream[now] == stream[before])
    chain = _without_repeats(np.cumsum(~joins) - 1, once[passing])
    long = np.bincount(chain)[chain] > 1 if len(chain) else joins
    of_pass = np.full(int(number[-1]) + 1, NONE)
    of_pass[number[passing[long]]] = np.unique(chain[long], return_inverse=True)[1]
    result, passes = np.empty_like(order), np.empty_like(order)
    result[order], passes[order] = of_pass[number], number
    result[~free] = NONE
    return result, passes


def _without_repeats(chain: Int64Array, once: Float64Array) -> Int64Array:
    """Chains cut where operations come again that go over each tensor once.

    Args:
        chain: of each pass, ascending, (p,).
        once: the operation if it is such a one, else 0, (p,).
    """
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
    cost, op = row.cost, row.operation
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


def _is_small(row: RooflineRow) -> bool:
    return row.cost is not None and row.cost.bytes < _LARGE_BYTES


def _is_vector(row: RooflineRow) -> bool:
    return row.cost is not None and row.cost.engine == "vector"


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


DETECTOR = Detector("memory-bound-chain", _detect)
