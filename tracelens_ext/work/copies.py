"""What copies read and write, and how fast, as far as a trace says it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.trace import MEMORY_KINDS, no_arg

if TYPE_CHECKING:
    from tracelens_ext.trace import BoolArray, Int64Array
    from tracelens_ext.work.gpu_work import GpuWork

_PAGEABLE = re.compile(r".*Pageable", re.IGNORECASE)
_TOLD = re.compile(r".*(?:Pageable|Pinned|Managed)", re.IGNORECASE)
_PAGEABLE_KIND, _UNKNOWN_KIND = 0, 7


def pageable_copies(work: GpuWork) -> tuple[BoolArray, BoolArray]:
    """Which GPU events copy from or to pageable memory, and of which it is known, each (g,)."""
    trace = work.trace
    pageable = trace.names_matching(_PAGEABLE.match)[work.name]
    known = trace.names_matching(_TOLD.match)[work.name]
    for argument in MEMORY_KINDS:
        kind = trace.args.get(argument, no_arg()).at(work.rows)
        pageable |= kind == _PAGEABLE_KIND
        known |= (kind >= 0) & (kind < _UNKNOWN_KIND)
    return pageable, known


def gigabytes_per_second(work: GpuWork, events: Int64Array) -> float:
    """How fast some GPU events moved their bytes together; NaN where no size was recorded."""
    size = work.trace.args.get("bytes", no_arg()).at(work.rows[events])
    told = size > 0
    time = int(work.duration[events][told].sum())
    return float(size[told].sum()) / time if time else np.nan
