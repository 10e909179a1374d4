"""The built-in tables, in the order of the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext import hooks

if TYPE_CHECKING:
    from tracelens_ext.report.tables.table import Table


@hooks.hookimpl
def tracelens_sheets() -> list[Table]:
    """Return the built-in tables; this implements a hook."""
    return ordered_tables()


def ordered_tables() -> list[Table]:
    """Return the tables in the order of the report.

    The modules that declare them are imported here, as most commands need few of them.
    """
    from tracelens_ext.analysis.call_tree_chart import CALL_TREE
    from tracelens_ext.analysis.collective_tables import COLL_ANALYSIS
    from tracelens_ext.analysis.coverage.report_tables import RECORDING
    from tracelens_ext.analysis.cpu_time.tables import (
        CPU_DATA_LOADING,
        CPU_ITERATIONS,
        CPU_PYTHON_FRAMES,
        CPU_TIMELINE,
    )
    from tracelens_ext.analysis.cuda_graphs.tables import (
        GRAPH_CAPTURES,
        GRAPH_LAUNCHES,
        GRAPH_OPERATIONS,
    )
    from tracelens_ext.analysis.idle_time.cpu_stacks import IDLE_CALL_TREE
    from tracelens_ext.analysis.idle_time.kernel_pairs import (
        GAP_FULL_NAMES,
        IDLE_BY_KERNEL_PAIR,
    )
    from tracelens_ext.analysis.idle_time.tables import (
        GAP_HISTOGRAM,
        GAP_SHAPES,
        GAP_STREAMS,
        GAP_SUMMARY,
        GAPS,
        GAPS_LONGEST,
        IDLE_CPU_ACTIVITY,
    )
    from tracelens_ext.analysis.iterations.tables import (
        ITERATION_STATISTICS,
        ITERATIONS,
    )
    from tracelens_ext.analysis.kernels.tables import (
        GPU_TIME_BY_CATEGORY,
        KERNEL_CATEGORIES,
        KERNEL_FULL_NAMES,
        KERNEL_SOURCES,
        KERNEL_STATISTICS,
        KERNEL_SUMMARY,
        KERNELS,
        KERNELS_BY_CATEGORY,
        SHORT_KERNEL_HISTOGRAM,
        SHORT_KERNELS_SUMMARY,
        UNLINKED_KERNELS,
    )
    from tracelens_ext.analysis.memory.tables import (
        MEMORY_AT_PEAK,
        MEMORY_BY_OPERATION,
        MEMORY_ITERATIONS,
        MEMORY_LARGEST,
        MEMORY_OVER_TIME,
        MEMORY_PEAKS,
    )
    from tracelens_ext.analysis.module_tables import NN_MODULES
    from tracelens_ext.analysis.operations.api_calls import API_CALLS
    from tracelens_ext.analysis.operations.tables import (
        CPU_OPS,
        OPS_SUMMARY,
        OPS_SUMMARY_BY_CATEGORY,
        OPS_UNIQUE_ARGS,
        TREE,
    )
    from tracelens_ext.analysis.serving.phases import LAYER_KERNELS, LAYERS, PHASE_STEPS
    from tracelens_ext.analysis.timeline.counters import (
        COPY_BANDWIDTH,
        GPU_COUNTERS,
        QUEUE_LENGTH,
    )
    from tracelens_ext.analysis.timeline.timeline import GPU_TIMELINE
    from tracelens_ext.analysis.timeline.timeline_bins import TIMELINE_BINS
    from tracelens_ext.findings.tables import FINDING_DETAILS, FINDINGS
    from tracelens_ext.findings.timeline_markers import TIMELINE_MARKERS
    from tracelens_ext.roofline.phase_table import PHASES
    from tracelens_ext.roofline.tables import (
        FAMILIES,
        FAMILY_TABLES,
        MFU_BY_ITERATION,
        ROOFLINE,
        ROOFLINE_PEAKS,
    )
    from tracelens_ext.simulation.tables import (
        CRITICAL_PATH,
        CRITICAL_PATH_SUMMARY,
        WHAT_IF,
    )

    return [
        RECORDING,
        FINDINGS,
        FINDING_DETAILS,
        GPU_TIMELINE,
        GPU_COUNTERS,
        TIMELINE_BINS,
        TIMELINE_MARKERS,
        CALL_TREE,
        IDLE_CALL_TREE,
        GPU_TIME_BY_CATEGORY,
        KERNELS,
        API_CALLS,
        KERNELS_BY_CATEGORY,
        KERNEL_CATEGORIES,
        OPS_SUMMARY_BY_CATEGORY,
        OPS_SUMMARY,
        OPS_UNIQUE_ARGS,
        ROOFLINE,
        *FAMILY_TABLES,
        KERNEL_SUMMARY,
        SHORT_KERNEL_HISTOGRAM,
        SHORT_KERNELS_SUMMARY,
        COLL_ANALYSIS,
        GRAPH_LAUNCHES,
        GRAPH_OPERATIONS,
        GRAPH_CAPTURES,
        PHASES,
        PHASE_STEPS,
        LAYERS,
        LAYER_KERNELS,
        NN_MODULES,
        MEMORY_PEAKS,
        MEMORY_AT_PEAK,
        MEMORY_BY_OPERATION,
        MEMORY_LARGEST,
        MEMORY_OVER_TIME,
        MEMORY_ITERATIONS,
        UNLINKED_KERNELS,
        GAP_SUMMARY,
        GAP_SHAPES,
        IDLE_CPU_ACTIVITY,
        GAP_STREAMS,
        IDLE_BY_KERNEL_PAIR,
        GAPS_LONGEST,
        GAPS,
        GAP_FULL_NAMES,
        GAP_HISTOGRAM,
        QUEUE_LENGTH,
        COPY_BANDWIDTH,
        WHAT_IF,
        CRITICAL_PATH_SUMMARY,
        CRITICAL_PATH,
        ITERATIONS,
        ITERATION_STATISTICS,
        CPU_TIMELINE,
        CPU_ITERATIONS,
        CPU_DATA_LOADING,
        CPU_OPS,
        CPU_PYTHON_FRAMES,
        TREE,
        KERNEL_STATISTICS,
        KERNEL_FULL_NAMES,
        KERNEL_SOURCES,
        ROOFLINE_PEAKS,
        FAMILIES,
        MFU_BY_ITERATION,
    ]
