"""`small-copies`: floods of copies that are too small for the link or the memory to matter."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelens_ext.findings.exposed_copy import WITHIN_DEVICE
from tracelens_ext.findings.finding import Evidence, Finding
from tracelens_ext.findings.inspection import Detector, Inspection
from tracelens_ext.findings.kernel_claims import claimed, copied_bytes

#: A copy of so many bytes is mostly its own start and end; without a size, one that is as short.
SMALL_BYTES, _SHORT_NS = 65_536, 5_000
#: Within a device: a parameter of this size and less, copied into a bucket.
_PARAMETER_BYTES, _PARAMETER_NS = 2**22, 25_000
_FLOOD: Final = 100


def _detect(inspection: Inspection) -> Finding | None:
    work, size = inspection.work, copied_bytes(inspection)
    within = work.trace.named(work.name, WITHIN_DEVICE.match)
    short = work.duration <= np.where(within, _PARAMETER_NS, _SHORT_NS)
    few = size <= np.where(within, _PARAMETER_BYTES, SMALL_BYTES)
    small = work.is_copy & np.where(size > 0, few, short)
    if small.sum() < _FLOOD:
        return None
    launches = len(np.unique(work.tree.launch_of_gpu[small]))
    return claimed(
        inspection,
        DETECTOR.id,
        small.astype(np.float64),
        [Evidence("launches of them", launches, "calls", "kernels")],
        kinds={"copies": (work.name, work.trace.names)},
    )


DETECTOR = Detector("small-copies", _detect, instead="launches go")
