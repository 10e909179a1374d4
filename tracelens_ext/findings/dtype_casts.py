"""`dtype-casts`: kernels that read a tensor and write it in another data type."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.places import ranked
from tracelens_ext.roofline.operation import Operation, short_type
from tracelens_ext.trace import NS_PER_MS

_CASTS: Final = ("copy_", "_to_copy", "to", "_foreach_copy_")
#: Kernels that only cast, told without types: PyTorch's copies between types, and XLA's. Those
#: within a convolution of a library are not for its caller to change.
_BY_NAME: Final = re.compile(
    r"direct_copy_kernel_cuda.*LoadWithCast|b?float(?:16|8\w*)?\w*_copy_kernel_cuda"
    r"|^wrapped_convert"
)


def _detect(inspection: Inspection) -> Finding | None:
    work, rows = inspection.work, inspection.roofline.rows
    types = [_types(row.operation) for row in rows]
    labels = sorted({text for text in types if text})
    code = inspection.by_operation([labels.index(text) if text else -1 for text in types], -1)
    by_types = code >= 0
    same = inspection.by_operation([text == "" for text in types]) > 0  # a copy, and no cast
    by_name = work.trace.named(work.name, _BY_NAME.search)
    claim = inspection.wall.claim_events((by_types | (by_name & ~same)) & work.is_kernel)
    moved = [row.cost.bytes if row.cost is not None else 0 for row in rows]
    gigabytes = float(inspection.by_operation(moved)[claim.events].sum()) / 1e9
    kinds = ranked(code[claim.events].astype(np.int64), labels, claim.event_ns)
    return inspection.finding(
        DETECTOR.id,
        claim,
        evidence=[
            Evidence("casts", len(claim.events), "GPU events", "kernels"),
            Evidence("their time", claim.saving_ns / NS_PER_MS, "ms", "roofline"),
            *([Evidence("bytes that they move", gigabytes, "GB", "roofline")] * (gigabytes > 0)),
        ],
        where={"types": kinds} if kinds else {},
    )


def _types(op: Operation) -> str | None:
    """`bf16 to fp32` of a cast; empty for a copy that is none; None where types do not tell."""
    if op.plain_name not in _CASTS or len(op.tensors) < 2:
        return None
    to, source = (short_type(tensor.kind) for tensor in op.tensors[:2])
    return f"{source} to {to}" if to != source else ""


DETECTOR = Detector("dtype-casts", _detect)
