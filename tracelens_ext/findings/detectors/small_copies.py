"""Very many small copies, whose time is mostly overhead."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tracelens_ext.findings.detector import detector
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.findings.optimizer_steps import launched_within
from tracelens_ext.findings.program_facts import Fact
from tracelens_ext.findings.texts import (
    PYTORCH_PROGRAMS,
    AdviceVariant,
    EvidenceText,
    FindingText,
    Remedy,
    VariantText,
)
from tracelens_ext.findings.transfer_facts import (
    SMALL_BYTES,
    WITHIN_DEVICE,
    copied_bytes,
)
from tracelens_ext.trace import LAUNCH_KINDS, NONE, BoolArray, EventKind

_ADVICES: Final = (
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
)
TEXT: Final = FindingText(
    title="Many small copies: {saving}",
    advices=_ADVICES,
    reason="most of such a copy is its start and end; how many become one depends on the code",
    evidence={
        "events": EvidenceText(what="small copies", unit="GPU events", see="kernels"),
        "time_ms": EvidenceText(what="their time", unit="ms", see="kernels"),
        "launches": EvidenceText(what="launches of them", unit="calls", see="kernels"),
    },
    variants={
        "gradients": VariantText(
            advices=(
                AdviceVariant(
                    kinds=("pytorch-training",),
                    requires=(Fact.GRADIENT_BUCKETS,),
                    advice=(
                        "Combine them: keep gradients as views of their buckets, instead of "
                        "copying each of them."
                    ),
                    snippet="DistributedDataParallel(model, gradient_as_bucket_view=True)",
                ),
            )
            + _ADVICES,
        ),
        "buffers": VariantText(
            advices=(
                AdviceVariant(
                    kinds=("pytorch-training",),
                    requires=(Fact.GRADIENT_BUCKETS,),
                    advice=(
                        "Let DistributedDataParallel copy less: keep gradients as views of their "
                        "buckets, and do not send buffers (running statistics) in each step if "
                        "small differences between ranks do no harm."
                    ),
                    snippet=(
                        "DistributedDataParallel(model, gradient_as_bucket_view=True, "
                        "broadcast_buffers=False)"
                    ),
                ),
            )
            + _ADVICES,
        ),
        "graphs": VariantText(
            advices=(
                AdviceVariant(
                    kinds=PYTORCH_PROGRAMS,
                    advice=(
                        "Keep the inputs of compiled regions at fixed addresses, and use their "
                        "outputs before the next call: tensors are copied one by one into and "
                        "out of the memory of graphs."
                    ),
                    snippet="torch._dynamo.mark_static_address(x)  # before the first call",
                ),
            )
            + _ADVICES,
        ),
    },
    least_share=0.5,
    most_share=1.1,
)

#: Compiled regions, whose graphs have inputs and outputs of their own.
_COMPILED: Final = re.compile(
    r"CompiledFunction|CompiledFxGraph|## Call CompiledFxGraph|Torch-Compiled Region"
)
_LAUNCHES_GRAPHS: Final = re.compile(r"(?:cuda|hip)GraphLaunch")
#: Copies of gradients to and from their buckets.
_GRADIENTS: Final = re.compile(
    r"autograd::engine::evaluate_function|torch\.distributed\.ddp\.reducer"
)
#: DistributedDataParallel sends buffers of the model before the forward pass.
_SENDS_BUFFERS: Final = re.compile(r"DistributedDataParallel\.forward")
#: A cause that is named has at least this share of the copies, or is one of two with a third.
_MOST: Final = 0.5
_MANY: Final = 1 / 3

#: A copy of unknown size is small if it is at most this long.
_SHORT_NS: Final = 5_000
#: Limits for copies within a device, such as a parameter that is copied into a bucket.
_PARAMETER_BYTES: Final = 2**22
_PARAMETER_NS: Final = 25_000
#: Fewer small copies are not reported.
_FEWEST_COPIES: Final = 100


@detector("small-copies", TEXT, remedy=Remedy.REMOVES_LAUNCHES)
def small_copies(inspection: Inspection) -> Finding | None:
    """Detect very many small copies, whose time is mostly overhead."""
    gpu_events = inspection.gpu_events
    size = copied_bytes(inspection)
    is_within_device = gpu_events.trace.named(gpu_events.name, WITHIN_DEVICE.match)
    most_ns = np.where(is_within_device, _PARAMETER_NS, _SHORT_NS)
    is_short = gpu_events.duration <= most_ns
    most_bytes = np.where(is_within_device, _PARAMETER_BYTES, SMALL_BYTES)
    has_few_bytes = size <= most_bytes
    is_small = np.where(size > 0, has_few_bytes, is_short)
    is_small &= gpu_events.is_copy
    if is_small.sum() < _FEWEST_COPIES:
        return None
    launches = len(np.unique(gpu_events.tree.launch_of_gpu[is_small]))
    return inspection.finding_of_events(
        "small-copies",
        is_small.astype(np.float64),
        {"launches": launches},
        text=TEXT,
        variant=_variant(inspection, is_small),
        places={"copies": (gpu_events.name, gpu_events.trace.names)},
    )


def _variant(inspection: Inspection, is_small: BoolArray) -> str:
    """Return the variant of the text: what copies, if most of the copies are of one cause."""
    count = int(is_small.sum())

    def share_within(pattern: re.Pattern[str]) -> float:
        rows = inspection.host_rows(
            pattern, EventKind.CPU_OP, EventKind.USER_ANNOTATION
        )
        is_within = launched_within(inspection, rows).of_gpu != NONE
        return int((is_small & is_within).sum()) / count

    launches_graphs = len(inspection.host_rows(_LAUNCHES_GRAPHS, *LAUNCH_KINDS)) > 0
    if launches_graphs and share_within(_COMPILED) > _MOST:
        return "graphs"
    of_gradients = share_within(_GRADIENTS)
    of_buffers = share_within(_SENDS_BUFFERS)
    if of_gradients + of_buffers <= _MOST:
        return ""
    if of_buffers >= _MANY:
        return "buffers"
    return "gradients"
