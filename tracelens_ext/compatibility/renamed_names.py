"""Names of version 0.1 that have changed, and what they are now. `docs/renamed.md` lists them.

This table is the only place that knows both names. `earlier_names` renames output with it,
`earlier_arguments` accepts old Python names, and the command line accepts old options.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """The kinds of things that were renamed."""

    TABLE = "table"
    PART = "folder of parts in the results of `fleet`"
    COLUMN = "column"
    FIELD = "JSON field"
    VALUE = "value"
    OPTION = "option"
    METHOD = "method of `TreePerfAnalyzer`"
    ARGUMENT = "argument"
    ATTRIBUTE = "attribute"
    GROUP = "command group"


@dataclass(frozen=True)
class RenamedName:
    """A name that has changed.

    Attributes:
        kind: what kind of thing has the name.
        old: the name in version 0.1. In the name of a column, `*` stands for any text.
        new: the current name.
        where: where the name occurs: the tables of a column, the columns and fields of a value, the
            field around a JSON field, the command of an option, or the class of an attribute.
            Empty if it is renamed everywhere.
    """

    kind: Kind
    old: str
    new: str
    where: tuple[str, ...] = ()


def _renamed(
    kind: Kind, names: dict[str, str], where: tuple[str, ...] = ()
) -> list[RenamedName]:
    return [
        RenamedName(kind=kind, old=old, new=new, where=where)
        for old, new in names.items()
    ]


_TABLES: Final = {
    "gap_hosts": "idle_cpu_activity",
    "gap_pairs": "idle_by_kernel_pair",
    "time_axis": "timeline_bins",
    "time_axis_marks": "timeline_markers",
    "collective_sync": "collective_calls",
    "wait_origins": "wait_root_causes",
    "timeline_spread": "timeline_across_ranks",
    "category_spread": "category_across_ranks",
    "op_spread": "op_across_ranks",
    "kernel_spread": "kernel_across_ranks",
    "finding_spread": "finding_across_ranks",
}
_METHODS: Final = {
    "get_df_gap_hosts": "get_df_idle_cpu_activity",
    "get_df_gap_pairs": "get_df_idle_by_kernel_pair",
    "get_df_time_axis": "get_df_timeline_bins",
    "get_df_time_axis_marks": "get_df_timeline_markers",
}
#: Tables about ranks that also contain the mean over all ranks.
_ACROSS_RANKS: Final = (
    "timeline_across_ranks",
    "category_across_ranks",
    "op_across_ranks",
    "kernel_across_ranks",
    "finding_across_ranks",
)
_BANDWIDTHS: Final = {
    "algorithm bandwidth (GB/s)": "algorithm_bandwidth_gb_s",
    "bus bandwidth (GB/s)": "bus_bandwidth_gb_s",
    "best bus bandwidth (GB/s)": "best_bus_bandwidth_gb_s",
}
_PHASE_COLUMNS: Final = {
    "busy_%": "busy_percent",
    "modelled_ms": "modeled_ms",
    "modelled_%": "modeled_percent",
    "idle_synchronisation_ms": "idle_synchronization_ms",
    "scheduler_%": "scheduler_percent",
    "sampler_%": "sampler_percent",
    "attention_%": "attention_percent",
    "gemm_%": "gemm_percent",
}
#: Shares in the table about several traces.
_SHARES_OF_TRACES: Final = {
    "busy (%)": "busy_percent",
    "computation (%)": "computation_percent",
    "exposed comm (%)": "exposed_communication_percent",
    "idle (%)": "idle_percent",
    "top finding": "top_finding",
    "top category": "top_category",
}
_COLUMNS: Final = (
    _renamed(
        kind=Kind.COLUMN, names={"claimed_ms": "attributed_ms"}, where=("findings",)
    )
    + _renamed(
        kind=Kind.COLUMN, names={"*_saving_ms": "*_attributed_ms"}, where=("findings",)
    )
    + _renamed(Kind.COLUMN, {"*% of judged time": "*% of analyzed time"})
    + _renamed(Kind.COLUMN, {"*difference_%": "*difference_percent"})
    + _renamed(
        kind=Kind.COLUMN, names={"ms": "duration_ms"}, where=("recording", "parts")
    )
    + _renamed(
        kind=Kind.COLUMN,
        names={"launches_without_gpu_work": "unmatched_launches"},
        where=("iterations",),
    )
    + _renamed(
        kind=Kind.COLUMN,
        names={"% of launches": "% of GPU events"},
        where=("kernel_statistics",),
    )
    + _renamed(
        kind=Kind.COLUMN,
        names={"gpu_time_%": "gpu_time_percent", "modelled_%": "modeled_percent"},
        where=("families",),
    )
    + _renamed(
        kind=Kind.COLUMN,
        names={"mfu_%": "mfu_percent", "modelled_%": "modeled_percent"},
        where=("mfu_by_iteration",),
    )
    + _renamed(kind=Kind.COLUMN, names=_PHASE_COLUMNS, where=("phases",))
    + _renamed(
        kind=Kind.COLUMN, names={"saved (%)": "saved_percent"}, where=("what_if",)
    )
    + _renamed(
        kind=Kind.COLUMN,
        names={"on_path (%)": "on_path_percent"},
        where=("critical_path_summary",),
    )
    + _renamed(
        kind=Kind.COLUMN,
        names={"padding (%)": "padding_percent"},
        where=("graph_captures",),
    )
    + _renamed(
        kind=Kind.COLUMN,
        names={"* (% of kernel time)": "*_percent"},
        where=("graph_launches",),
    )
    + _renamed(
        kind=Kind.COLUMN,
        names={"top_category (% of kernel time)": "top_category_percent"},
        where=("nn_modules",),
    )
    + _renamed(
        kind=Kind.COLUMN,
        names={"time at 1024 (%)": "time_at_1024_percent"},
        where=("queue_length",),
    )
    + _renamed(
        kind=Kind.COLUMN, names={"percent": "% of wall time"}, where=("cpu_timeline",)
    )
    + _renamed(
        kind=Kind.COLUMN, names=_BANDWIDTHS, where=("coll_analysis", "collectives")
    )
    + _renamed(kind=Kind.COLUMN, names=_SHARES_OF_TRACES, where=("traces",))
    + _renamed(
        kind=Kind.COLUMN,
        names={
            "busy (%)": "busy_percent",
            "computation over mean (%)": "computation_over_mean_percent",
        },
        where=("ranks",),
    )
    + _renamed(
        kind=Kind.COLUMN,
        names={"max over mean (%)": "max_over_mean_percent"},
        where=_ACROSS_RANKS,
    )
    + _renamed(
        kind=Kind.COLUMN, names={"hidden (%)": "hidden_percent"}, where=("overlap",)
    )
    + _renamed(
        kind=Kind.COLUMN,
        names={"in_sync_us": "transfer_us"},
        where=("collective_calls",),
    )
)
_FIELDS: Final = _renamed(
    kind=Kind.FIELD, names={"saving_ms": "attributed_ms"}, where=("where",)
) + _renamed(
    Kind.FIELD,
    {
        "claimed_ms": "attributed_ms",
        "judged_ms": "analyzed_ms",
        "start_up_ms": "warm_up_ms",
        "launches_without_gpu_work": "unmatched_launches",
        "synchronisation": "synchronization",
        "start_up": "warm_up",
        "GPU time modelled (%)": "GPU time modeled (%)",
    },
)
_VALUES: Final = (
    _renamed(
        kind=Kind.VALUE,
        names={"good": "ok", "warned": "low_confidence", "withheld": "unavailable"},
        where=("model.state",),
    )
    + _renamed(
        kind=Kind.VALUE,
        names={"synchronisation": "synchronization"},
        where=("cause", "main_cause", "finding", "id"),
    )
    + _renamed(
        kind=Kind.VALUE,
        names={"finding:synchronisation": "finding:synchronization"},
        where=("change",),
    )
    + _renamed(
        kind=Kind.VALUE, names={"start_up": "warm_up"}, where=("cause", "main_cause")
    )
    + _renamed(
        kind=Kind.VALUE,
        names={
            "hole": "dropped_events",
            "before": "pre_recording",
            "start_up": "warm_up",
            "judged": "analyzed",
            "launches_without_gpu_work": "unmatched_launches",
        },
        where=("recording.kind", "parts.kind", "timeline_markers.kind"),
    )
    + _renamed(kind=Kind.VALUE, names=_TABLES, where=("see",))
)
_OPTIONS: Final = (
    _renamed(
        Kind.OPTION,
        {
            "--pstep": "--step",
            "--pstep-by": "--step-by",
            "--salvage": "--allow-truncated",
            "--without-pack": "--disable-pack",
        },
    )
    + _renamed(
        kind=Kind.OPTION, names={"--time-axis": "--timeline-bins"}, where=("report",)
    )
    + _renamed(
        kind=Kind.OPTION, names={"--waits": "--collective-waits"}, where=("what-if",)
    )
    + _renamed(kind=Kind.OPTION, names={"--format json": "--json"}, where=("compare",))
)
_PYTHON_NAMES: Final = (
    _renamed(Kind.METHOD, _METHODS)
    + _renamed(
        Kind.ARGUMENT,
        {
            "salvage": "allow_truncated",
            "without_packs": "disabled_packs",
            "time_axis": "timeline_bins",
        },
    )
    + _renamed(
        kind=Kind.ATTRIBUTE,
        names={"pstep": "step", "pstep_by": "step_by"},
        where=("EventFilter",),
    )
    + _renamed(
        kind=Kind.ATTRIBUTE, names={"claimed_ms": "attributed_ms"}, where=("Finding",)
    )
    + _renamed(
        kind=Kind.ATTRIBUTE, names={"judged_ms": "analyzed_ms"}, where=("Findings",)
    )
    + _renamed(
        kind=Kind.ATTRIBUTE, names={"saving_ms": "attributed_ms"}, where=("Place",)
    )
    + _renamed(
        kind=Kind.ATTRIBUTE,
        names={"saving_ms": "attributed_ms", "saving_ns": "attributed_ns"},
        where=("Claim",),
    )
    + _renamed(
        kind=Kind.ATTRIBUTE,
        names={"salvage": "allow_truncated"},
        where=("ReadingOptions",),
    )
    + _renamed(
        kind=Kind.ATTRIBUTE,
        names={"time_axis": "timeline_bins"},
        where=("ReportOptions",),
    )
    + _renamed(
        kind=Kind.ATTRIBUTE,
        names={
            "shows": "description",
            "table": "build",
            "when": "requires",
            "asked_by": "enabled_by",
            "method": "analyzer_call",
        },
        where=("Table",),
    )
)
_GROUPS: Final = {"Look": "Inspect", "Explain": "Diagnose", "Extend": "Manage"}

RENAMED_NAMES: Final = (
    _renamed(Kind.TABLE, _TABLES)
    + _renamed(Kind.PART, {"collective_calls": "collective_kernels"})
    + _COLUMNS
    + _FIELDS
    + _VALUES
    + _OPTIONS
    + _PYTHON_NAMES
    + _renamed(Kind.GROUP, _GROUPS)
)


def new_names(kind: Kind, where: str | None = None) -> dict[str, str]:
    """Return old name → new name.

    Args:
        kind: the kind of the names.
        where: only names in this command, class or table, and those that occur everywhere; None for
            all names.
    """
    return {
        renamed.old: renamed.new
        for renamed in RENAMED_NAMES
        if renamed.kind is kind
        and (where is None or not renamed.where or where in renamed.where)
    }
