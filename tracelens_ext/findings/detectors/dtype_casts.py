"""Kernels that only convert a tensor to another data type."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.findings.attribution import ranked
from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.optimizer_steps import bytes_of_row, launched_within
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import (
    AdviceVariant,
    EvidenceText,
    FindingText,
    VariantText,
)
from tracelens_ext.roofline.analysis import RooflineRow
from tracelens_ext.roofline.element_types import short_type
from tracelens_ext.roofline.operation import Operation
from tracelens_ext.trace import NONE, EventKind

_ADVICES: Final = (
    AdviceVariant(
        follows=(Fact.COMPILED,),
        advice=(
            "Keep tensors in the type in which they are computed with: cast weights once "
            "instead of in every step, and compile the code around these casts as well."
        ),
        snippet="model = model.to(torch.bfloat16)",
    ),
    AdviceVariant(
        requires=(Fact.BEFORE_AMPERE,),
        advice=(
            "Keep tensors in the type in which they are computed with: cast weights once "
            "instead of in every step, or compile the model, which fuses casts into their "
            "neighbors."
        ),
        snippet="model = model.half()  # or torch.compile(model)",
    ),
    AdviceVariant(
        advice=(
            "Keep tensors in the type in which they are computed with: cast weights once "
            "instead of in every step, or compile the model, which fuses casts into their "
            "neighbors."
        ),
        snippet="model = model.to(torch.bfloat16)  # or torch.compile(model)",
    ),
)
TEXT: Final = FindingText(
    title="Data type conversions: {saving}",
    advices=_ADVICES,
    reason="these kernels only convert; some conversions are wanted for accuracy",
    evidence={
        "casts": EvidenceText(what="conversions", unit="GPU events", see="kernels"),
        "time_ms": EvidenceText(what="their time", unit="ms", see="roofline"),
        "gigabytes": EvidenceText(
            what="bytes that they move", unit="GB", see="roofline"
        ),
    },
    variants={
        "norms": VariantText(
            advices=(
                AdviceVariant(
                    follows=(Fact.COMPILED,),
                    advice=(
                        "Use a fused norm, or compile the code around the norms as well: they "
                        "compute in single precision, and convert to it and back in kernels "
                        "of their own."
                    ),
                    snippet="torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)",
                ),
                AdviceVariant(
                    advice=(
                        "Use a fused norm, or compile the model: its norms compute in single "
                        "precision, and convert to it and back in kernels of their own."
                    ),
                    snippet="torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)",
                ),
            ),
        ),
    },
    least_share=0.5,
)

_NORMS: Final = re.compile(r"nn\.Module: \w*(?:Norm|norm)\w*$")
#: Advice is about norms if at least this share of the conversions is in them.
_MOST: Final = 0.5

_CASTS: Final = ("copy_", "_to_copy", "to", "_foreach_copy_")
#: Names of kernels that only convert: PyTorch's copies between types, and XLA's. Kernels of a
#: library that convert within a convolution are not among them, because users cannot change that.
_CASTING_KERNELS: Final = re.compile(
    r"direct_copy_kernel_cuda.*LoadWithCast|b?float(?:16|8\w*)?\w*_copy_kernel_cuda"
    r"|^wrapped_convert"
)


@detector(
    "dtype-casts", TEXT, kinds=("pytorch-training", "pytorch-inference", "serving")
)
def dtype_casts(inspection: Inspection) -> Finding | None:
    """Detect kernels that only convert a tensor to another data type."""
    gpu_events = inspection.gpu_events
    types_of_rows = [_types(row.operation) for row in inspection.roofline.rows]
    labels = sorted({types for types in types_of_rows if types})
    codes = {types: code for code, types in enumerate(labels)}

    def code_of(_: RooflineRow, types: str | None) -> int:
        if types is None:
            return NONE
        return codes.get(types, NONE)

    code = inspection.by_operation(code_of, types_of_rows, otherwise=NONE)
    has_one_type = inspection.by_operation(lambda _, types: types == "", types_of_rows)
    is_plain_copy = has_one_type > 0
    has_casting_name = gpu_events.trace.named(gpu_events.name, _CASTING_KERNELS.search)
    is_cast = (code != NONE) | (has_casting_name & ~is_plain_copy)
    claim = inspection.wall.claim_events(is_cast & gpu_events.is_kernel)
    cast_bytes = inspection.by_operation(bytes_of_row)[claim.events]
    gigabytes = float(cast_bytes.sum()) / 1e9
    numbers: dict[str, float | None] = {
        "casts": len(claim.events),
        "time_ms": claim.attributed_ms,
        "gigabytes": gigabytes or None,
    }
    code_of_events = code[claim.events].astype(np.int64)
    where = {"types": ranked(code_of_events, labels, claim.event_ns)}
    norms = inspection.host_rows(_NORMS, EventKind.PYTHON_FUNCTION)
    in_norms = launched_within(inspection, norms).of_gpu[claim.events] != NONE
    variant = ""
    if float(claim.event_ns[in_norms].sum()) > _MOST * claim.attributed_ns:
        variant = "norms"
    return inspection.finding(
        "dtype-casts", claim, numbers, text=TEXT, where=where, variant=variant
    )


def _types(operation: Operation) -> str | None:
    """Return the types of a conversion: `bf16 to fp32`.

    Empty for a copy without conversion; None for other operations and without recorded types.
    """
    if operation.plain_name not in _CASTS or len(operation.tensors) < 2:
        return None
    target = short_type(operation.tensors[0].kind)
    source = short_type(operation.tensors[1].kind)
    if target == source:
        return ""
    return f"{source} to {target}"
