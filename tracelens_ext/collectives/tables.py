"""The sheet `coll_analysis`: collectives by size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.collectives.collectives import collectives
from tracelens_ext.tables.table import GPU_EVENTS, Condition, Table

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.lazy import pd


def _collectives(analyzer: TreePerfAnalyzer) -> pd.DataFrame:
    """Communication by collective, group, size and type."""
    return collectives(analyzer.work)


COLL_ANALYSIS = Table(
    name="coll_analysis",
    shows="Collectives by size: duration and bandwidth",
    columns="""
        kernel: a short name, which tells it from the others of the sheet
        Collective name: of the metadata, else of the annotation `nccl:…` around it
        Process Group Name, Process Group Description: of the metadata
        Group size [ranks]: of the process group
        dtype: of an element
        In msg nelems [elements]: what this rank puts in
        Out msg nelems [elements]: what this rank gets out
        In msg bytes [bytes]: what this rank puts in
        Out msg bytes [bytes]: what this rank gets out
        count [kernels]: how many
        total_time_ms: summed duration
        avg_time_us, std_time_us, min_time_us, max_time_us: of a kernel; `std` is that of a sample
        % of communication time: of the summed durations of all communication
        algorithm bandwidth (GB/s) [10⁹ bytes/s]: size of the whole array, that is the larger side,
            divided by the mean duration
        bus bandwidth (GB/s) [10⁹ bytes/s]: algorithm bandwidth times a factor of the collective
        best bus bandwidth (GB/s) [10⁹ bytes/s]: the same at the shortest duration
        kernel_name: as the trace has it
        """,
    table=_collectives,
    short_names="kernel_name",
    when=[
        GPU_EVENTS,
        Condition(
            "there is communication", lambda analyzer, _: bool(analyzer.work.is_communication.any())
        ),
    ],
    asked_by="collective_analysis",
    method="get_df_collectives()",
)

TABLES = [COLL_ANALYSIS]
