"""`layout-conversion`: kernels and copies that only bring elements into another order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.nesting import ROOT, nearest_above
from tracelens_ext.trace import NS_PER_MS

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Operation, Tensor
    from tracelens_ext.trace import BoolArray

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


def _detect(inspection: Inspection) -> Finding | None:
    work = inspection.work
    transposes = work.trace.named(work.name, _TRANSPOSES.search) & work.is_kernel
    claim = inspection.wall.claim_events(transposes | copies_in_another_order(inspection))
    of_libraries = float(claim.event_ns[transposes[claim.events]].sum())
    return inspection.finding(
        DETECTOR.id,
        claim,
        variant="libraries" if 2 * of_libraries > claim.saving_ns else "copies",
        evidence=[
            Evidence("transposing kernels and copies", len(claim.events), "GPU events", "kernels"),
            Evidence("transposes by libraries", of_libraries / NS_PER_MS, "ms", "kernels"),
            Evidence(
                "copies into another order",
                (claim.saving_ns - of_libraries) / NS_PER_MS,
                "ms",
                "roofline",
            ),
        ],
    )


def copies_in_another_order(inspection: Inspection) -> BoolArray:
    """Whether each GPU event copies a tensor within the device to change its layout, (g,)."""
    work = inspection.work
    trace, tree = work.trace, work.tree
    op = tree.cpu_op_of_gpu
    copies = (op >= 0) & trace.named(trace.name[op], _COPIES.match)
    copies &= ~trace.named(work.name, _ACROSS_LINK.match) & ~tree.by_opaque_graph
    asked = trace.names_matching(_ASK_FOR_ORDER.match)
    result = inspection.by_operation([_reorders(r.operation) for r in inspection.roofline.rows]) > 0
    result &= copies
    chosen = np.flatnonzero(copies)
    by_position = asked[trace.name[tree.rows]]
    above = nearest_above(tree.parent_position, tree.launch_position_of_gpu[chosen], by_position)
    result[chosen] |= above != ROOT
    return result


def _reorders(op: Operation) -> bool:
    """Whether a copy reads a tensor in one order of dimensions, and writes it in another."""
    if op.plain_name != "copy_" or len(op.tensors) < 2:
        return False
    to, source = op.tensors[:2]
    if to.dims != source.dims or to.kind != source.kind:
        return False
    if any(len(tensor.strides) != len(tensor.dims) for tensor in (to, source)):
        return False  # not recorded
    return _is_dense(to) and 0 not in source.strides and _order(to) != _order(source)


def _order(tensor: Tensor) -> list[int]:
    """The dimensions with more than one element, the one with the largest stride first."""
    sizes = enumerate(zip(tensor.dims, tensor.strides, strict=True))
    return sorted((i for i, (n, _) in sizes if n > 1), key=lambda i: -tensor.strides[i])


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill the memory between the first and the last."""
    last = sum((n - 1) * s for n, s in zip(tensor.dims, tensor.strides, strict=True))
    return last + 1 == tensor.elements


DETECTOR = Detector("layout-conversion", _detect)
