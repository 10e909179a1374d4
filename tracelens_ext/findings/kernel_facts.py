"""Facts about kernels: their number of blocks, and the duration below which they are short."""

from __future__ import annotations

import json
import math
from typing import Final

import numpy as np

from tracelens_ext.analysis.operations.arguments import argument_values
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.trace import Float64Array

#: A shorter kernel spends most of its time starting and ending (see `small-kernels`).
SHORT_NS: Final = 5_000


def blocks_of_events(inspection: Inspection) -> Float64Array:
    """Return the number of blocks of each GPU event, (g,); 0: not recorded."""
    trace = inspection.gpu_events.trace
    rows = inspection.gpu_events.rows
    if trace.arg("grid").texts is None:
        return trace.arg("grid").at(rows, 0).astype(np.float64)
    code, blocks = argument_values(
        trace=trace, rows=rows, name="grid", convert=_blocks_of_grid, missing=0.0
    )
    return np.array(blocks, dtype=np.float64)[code]


def _blocks_of_grid(text: str) -> float:
    """Return the number of blocks in a grid such as `[512, 1, 1]`; 0 for any other text."""
    try:
        blocks = math.prod(map(int, json.loads(text)))
        if 0 < blocks < 2**53:
            return float(blocks)
    except (ValueError, TypeError, OverflowError, RecursionError):
        pass
    return 0.0
