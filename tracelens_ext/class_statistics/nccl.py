"""Which collective a kernel of NCCL runs, by its name.

Names as NCCL's sources build them: `ncclDevKernel_AllGather_RING_LL(…)` (2.19 and later),
`ncclKernel_AllReduce_RING_LL_Sum_float(…)` (from 2.12), `ncclAllReduceRingLLKernel_sum_f32(…)`
(before), and `ncclSymkDevKernel_AllReduce_RSxLD_AGxST(…)` (symmetric memory).
"""

from __future__ import annotations

import re

from tracelens_ext.kernel_names import short_name

_NAMED = (
    re.compile(r"nccl(?:Symk?)?(?:Dev)?Kernel_([A-Z][A-Za-z]*)"),
    re.compile(
        r"nccl([A-Z][A-Za-z]*?)(?:Ring|Tree|CollNet)?(?:LL128|LL|Simple)?Kernel(?![A-Za-z])"
    ),
)


def collective_of(name: str) -> str:
    """The collective, such as `AllGather`; of a kernel that names none its own short name."""
    for pattern in _NAMED:
        if found := pattern.search(name):
            return found[1]
    return short_name(name)
