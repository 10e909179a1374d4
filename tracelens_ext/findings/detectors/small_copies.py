"""Floods of copies that are too small for the link or the memory to matter."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import (
    PYTORCH_PROGRAMS,
    AdviceVariant,
    EvidenceText,
    FindingText,
    Remedy,
)
from tracelens_ext.findings.transfer_facts import (
    SMALL_BYTES,
    WITHIN_DEVICE,
    copied_bytes,
)

TEXT: Final = FindingText(
    title="Many small copies: {saving}",
    advices=(
        AdviceVariant(
            kinds=("pytorch-training",),
            requires=(Fact.GRADIENT_BUCKETS,),
            advice=(
                "Combine them: keep gradients as views of their buckets, and copy values that "
                "are read one by one as one array."
            ),
            snippet="DistributedDataParallel(model, gradient_as_bucket_view=True)",
        ),
        AdviceVariant(
            kinds=PYTORCH_PROGRAMS,
            advice=(
                "Combine them: copy values that are read one by one as one array, and many "
                "small tensors as one large tensor."
            ),
            snippet="torch.stack(values).tolist()",
        ),
        AdviceVariant(
            advice="Combine them: copy many small buffers as one large buffer.",
        ),
    ),
    reason="most of such a copy is its start and end; how many become one depends on the code",
    evidence={
        "events": EvidenceText(what="small copies", unit="GPU events", see="kernels"),
        "time_ms": EvidenceText(what="their time", unit="ms", see="kernels"),
        "launches": EvidenceText(what="launches of them", unit="calls", see="kernels"),
    },
    least_share=0.5,
)

#: A copy without a known size is small if it is as short as this.
_SHORT_NS: Final = 5_000
#: Within a device: a parameter of this size and less, copied into a bucket.
_PARAMETER_BYTES: Final = 2**22
_PARAMETER_NS: Final = 25_000
#: Fewer copies are no flood.
_FLOOD: Final = 100


@detector("small-copies", TEXT, remedy=Remedy.REMOVES_LAUNCHES)
def small_copies(inspection: Inspection) -> Finding | None:
    """Floods of copies that are too small for the link or the memory to matter."""
    work = inspection.work
    size = copied_bytes(inspection)
    is_within_device = work.trace.named(work.name, WITHIN_DEVICE.match)
    most_ns = np.where(is_within_device, _PARAMETER_NS, _SHORT_NS)
    is_short = work.duration <= most_ns
    most_bytes = np.where(is_within_device, _PARAMETER_BYTES, SMALL_BYTES)
    has_few_bytes = size <= most_bytes
    is_small = np.where(size > 0, has_few_bytes, is_short)
    is_small &= work.is_copy
    if is_small.sum() < _FLOOD:
        return None
    launches = len(np.unique(work.tree.launch_of_gpu[is_small]))
    return inspection.finding_of_events(
        "small-copies",
        is_small.astype(np.float64),
        {"launches": launches},
        text=TEXT,
        places={"copies": (work.name, work.trace.names)},
    )
