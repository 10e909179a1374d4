"""The sheets that come with this distribution, in the order of the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.hooks import hookimpl

if TYPE_CHECKING:
    from tracelens_ext.sheets.sheet import Sheet


@hookimpl
def tracelens_sheets() -> list[Sheet]:
    """The sheets; imported here, as only a report needs them."""
    from tracelens_ext.sheets import (
        collectives,
        cpu_ops,
        gaps,
        graphs,
        iterations,
        kernels,
        modules,
        operations,
        timeline,
        unlinked,
    )

    return [
        timeline.GPU_TIMELINE,
        kernels.KERNEL_CATEGORIES,
        kernels.KERNELS_BY_CATEGORY,
        *operations.SHEETS,
        kernels.KERNEL_SUMMARY,
        kernels.SHORT_KERNEL_HISTOGRAM,
        kernels.SHORT_KERNELS_SUMMARY,
        collectives.COLL_ANALYSIS,
        graphs.GRAPH_LAUNCHES,
        modules.NN_MODULES,
        unlinked.UNLINKED_KERNELS,
        *gaps.SHEETS,
        *iterations.SHEETS,
        cpu_ops.CPU_OPS,
    ]
