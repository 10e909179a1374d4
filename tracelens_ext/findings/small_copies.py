"""`small-copies`: floods of copies that are too small for the link or the memory to matter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.findings.exposed_copy import WITHIN_DEVICE
from tracelens_ext.findings.finding import Evidence
from tracelens_ext.findings.inspection import Detector
from tracelens_ext.findings.kernel_claims import copied_bytes, kernel_finding
from tracelens_ext.findings.places import ranked

if TYPE_CHECKING:
    from tracelens_ext.findings.finding import Finding
    from tracelens_ext.findings.inspection import Inspection

#: A copy of so many bytes is mostly its own start and end; without a size, one that is as short.
SMALL_BYTES, _SHORT_NS = 65_536, 5_000
#: Within a device: a parameter of this size and less, copied into a bucket.
_PARAMETER_BYTES, _PARAMETER_NS = 2**22, 25_000
#: Fewer are no flood.
_FLOOD: Final = 100


def _detect(inspection: Inspection) -> Finding | None:
    work = inspection.work
    size = copied_bytes(work)
    within = work.trace.named(work.name, WITHIN_DEVICE.match)
    small = np.where(
        size > 0,
        size <= np.where(within, _PARAMETER_BYTES, SMALL_BYTES),
        work.duration <= np.where(within, _PARAMETER_NS, _SHORT_NS),
    )
    small &= work.is_copy
    if small.sum() < _FLOOD:
        return None
    launches = len(np.unique(work.tree.launch_of_gpu[small]))
    kinds = ranked(work.name[small], work.trace.names, work.duration[small])
    return kernel_finding(
        inspection,
        DETECTOR.id,
        small,
        1.0,
        title="A flood of small copies takes {saving}",
        advice=(
            "Copy once what belongs together: gradients as views of the buckets"
            " (gradient_as_bucket_view), values that are read one by one (.item(), .tolist()) in one"
            " tensor, lists of tensors by one concatenation or a foreach operation."
        ),
        snippet="DistributedDataParallel(model, gradient_as_bucket_view=True)",
        confidence="medium",
        reason="most of such a copy is its start and end; how many become one depends on the code",
        evidence=[Evidence("launches of them", launches, "calls", "kernels")],
        where={"copies": kinds},
    )


DETECTOR = Detector("small-copies", _detect, instead="launches go")
