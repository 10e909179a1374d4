"""Kernels and copies that only change the layout of a tensor."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import (
    AdviceVariant,
    EvidenceText,
    FindingText,
    VariantText,
)
from tracelens_ext.roofline.operation import Operation, Tensor
from tracelens_ext.trace import NS_PER_MS, BoolArray
from tracelens_ext.trace.nesting import ROOT, nearest_above

TEXT: Final = FindingText(
    title="Layout conversions: {saving}",
    reason="these kernels compute nothing, but some consumers need the other layout",
    evidence={
        "events": EvidenceText(
            what="transposing kernels and copies", unit="GPU events", see="kernels"
        ),
        "library_ms": EvidenceText(
            what="transposes by libraries", unit="ms", see="kernels"
        ),
        "copy_ms": EvidenceText(
            what="copies into another order", unit="ms", see="roofline"
        ),
    },
    variants={
        "libraries": VariantText(
            advices=(
                AdviceVariant(
                    follows=(Fact.CHANNELS_LAST,),
                    advice=(
                        "Keep the remaining tensors in channels-last as well: inputs, and what "
                        "views or .contiguous() calls bring back to the default layout."
                    ),
                    snippet="x = x.to(memory_format=torch.channels_last)",
                ),
                AdviceVariant(
                    advice=(
                        "Keep model and input in channels-last, the layout in which the "
                        "convolutions compute: the library transposes before and after each."
                    ),
                    snippet=(
                        "model.to(memory_format=torch.channels_last); "
                        "x = x.to(memory_format=torch.channels_last)"
                    ),
                ),
            ),
        ),
        "copies": VariantText(
            advice=(
                "Keep tensors in the order in which the next kernel reads them: avoid "
                ".contiguous() and .reshape() on transposed views where the consumer takes "
                "strides (attention, matrix products)."
            ),
        ),
    },
    least_share=0.5,
)

#: Kernels of cuDNN, cuTENSOR, MIOpen and XLA that transpose and compute nothing.
_TRANSPOSES: Final = re.compile(
    r"(?:nchw|nhwc)\w*To\w*(?:nchw|nhwc)|(?:nchw|nhwc|cnhw)2(?:nchw|nhwc|cnhw)|batched?_transpose_"
    r"|tensorTransformGeneric|genericTranspose|permutationKernel"
    r"|^(?:void )?(?:\w+::)*(?:loop_|input_|wrapped_)?transpose_?"
    r"(?:kernel|fusion|packed|\d*(?:$|\W))",
    re.IGNORECASE,
)
#: Operations that copy only if the elements do not have the requested order yet.
_REQUESTS_ORDER: Final = re.compile(r"aten::(?:contiguous|reshape|_reshape_copy)$")
_COPIES: Final = re.compile(
    r"aten::(?:copy_|clone|contiguous|reshape|_to_copy|_reshape_copy)$"
)
_ACROSS_LINK: Final = re.compile(r"Memcpy (?!DtoD|DeviceToDevice)", re.IGNORECASE)


@detector(
    "layout-conversion",
    TEXT,
    kinds=("pytorch-training", "pytorch-inference", "serving"),
)
def layout_conversion(inspection: Inspection) -> Finding | None:
    """Detect kernels and copies that only change the layout of a tensor."""
    gpu_events = inspection.gpu_events
    is_transpose = (
        gpu_events.trace.named(gpu_events.name, _TRANSPOSES.search)
        & gpu_events.is_kernel
    )
    claim = inspection.wall.claim_events(
        is_transpose | _copies_in_another_order(inspection)
    )
    library_ns = float(claim.event_ns[is_transpose[claim.events]].sum())
    variant = "copies"
    if 2 * library_ns > claim.attributed_ns:
        variant = "libraries"
    numbers = {
        "events": len(claim.events),
        "library_ms": library_ns / NS_PER_MS,
        "copy_ms": (claim.attributed_ns - library_ns) / NS_PER_MS,
    }
    return inspection.finding(
        "layout-conversion", claim, numbers, text=TEXT, variant=variant
    )


def _copies_in_another_order(inspection: Inspection) -> BoolArray:
    """Return which GPU events copy a tensor within the device to change its layout, (g,).

    The strides of the copy show it, or an operation around the copy that requests an order.
    """
    gpu_events = inspection.gpu_events
    trace = gpu_events.trace
    tree = gpu_events.tree
    operation = tree.cpu_op_of_gpu
    is_copy = (operation >= 0) & trace.named(trace.name[operation], _COPIES.match)
    is_copy &= ~trace.named(gpu_events.name, _ACROSS_LINK.match) & ~tree.by_opaque_graph
    has_reordering_strides = (
        inspection.by_operation(lambda row: _reorders(row.operation)) > 0
    )
    changes_layout = is_copy & has_reordering_strides
    copies = np.flatnonzero(is_copy)
    requests_order = trace.named(trace.name[tree.rows], _REQUESTS_ORDER.match)
    operation_around = nearest_above(
        parent=tree.parent_position,
        nodes=tree.launch_position_of_gpu[copies],
        marked=requests_order,
    )
    changes_layout[copies] |= operation_around != ROOT
    return changes_layout


def _reorders(operation: Operation) -> bool:
    """Return whether a copy writes a tensor in another order of dimensions than it reads it."""
    if operation.plain_name != "copy_" or len(operation.tensors) < 2:
        return False
    target, source = operation.tensors[:2]
    if not _has_strides(target) or not _has_strides(source):
        return False
    if target.dims != source.dims or target.kind != source.kind:
        return False
    if not _is_dense(target) or 0 in source.strides:
        return False
    return _order(target) != _order(source)


def _is_dense(tensor: Tensor) -> bool:
    """Return whether the elements of a tensor fill its memory without gaps."""
    offset_of_last = 0
    for size, stride in zip(tensor.dims, tensor.strides, strict=True):
        offset_of_last += (size - 1) * stride
    return offset_of_last + 1 == tensor.elements


def _has_strides(tensor: Tensor) -> bool:
    return len(tensor.strides) == len(tensor.dims)


def _order(tensor: Tensor) -> list[int]:
    """Return the dimensions with more than one element, the largest stride first."""
    dimensions = [number for number, size in enumerate(tensor.dims) if size > 1]
    return sorted(dimensions, key=lambda number: -tensor.strides[number])
