"""Names of version 0.1 that have changed, and what they are now. `docs/renamed.md` lists them.

This table is the only place that knows both names. `earlier_names` renames output with it,
`earlier_arguments` accepts old Python names, and the command line accepts old options.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """What has a new name."""

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
        kind: what has the name.
        old: the name in version 0.1. In the name of a column, `*` stands for any text.
        new: the name now.
        where: the tables of a column, the columns and fields of a value, the field around a JSON
            field, the command of an option, or the class of an attribute. Empty for all.
    """

    kind: Kind
    old: str
    new: str
    where: tuple[str, ...] = ()


def _renamed(
    kind: Kind, names: dict[str, str], where: tuple[str, ...] = ()
) -> list[RenamedName]:
    return [RenamedName(kind, old, new, where) for old, new in names.items()]


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
#: The tables of ranks with the mean over them.
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
#: Of the table of several traces.
_SHARES_OF_TRACES: Final = {
    "busy (%)": "busy_percent",
    "computation (%)": "computation_percent",
    "exposed comm (%)": "exposed_communication_percent",
    "idle (%)": "idle_percent",
    "top finding": "top_finding",
    "top category": "top_category",
}
_COLUMNS: Final = (
    _renamed(Kind.COLUMN, {"claimed_ms": "attributed_ms"}, ("findings",))
    + _renamed(Kind.COLUMN, {"*_saving_ms": "*_attributed_ms"}, ("findings",))
    + _renamed(Kind.COLUMN, {"*% of judged time": "*% of analyzed time"})
    + _renamed(Kind.COLUMN, {"*difference_%": "*difference_percent"})
    + _renamed(Kind.COLUMN, {"ms": "duration_ms"}, ("recording", "parts"))
    + _renamed(
        Kind.COLUMN,
        {"launches_without_gpu_work": "unmatched_launches"},
        ("iterations",),
    )
    + _renamed(
        Kind.COLUMN, {"% of launches": "% of GPU events"}, ("kernel_statistics",)
    )
    + _renamed(
        Kind.COLUMN,
        {"gpu_time_%": "gpu_time_percent", "modelled_%": "modeled_percent"},
        ("families",),
    )
    + _renamed(
        Kind.COLUMN,
        {"mfu_%": "mfu_percent", "modelled_%": "modeled_percent"},
        ("mfu_by_iteration",),
    )
    + _renamed(Kind.COLUMN, _PHASE_COLUMNS, ("phases",))
    + _renamed(Kind.COLUMN, {"saved (%)": "saved_percent"}, ("what_if",))
    + _renamed(
        Kind.COLUMN, {"on_path (%)": "on_path_percent"}, ("critical_path_summary",)
    )
    + _renamed(Kind.COLUMN, {"padding (%)": "padding_percent"}, ("graph_captures",))
    + _renamed(Kind.COLUMN, {"* (% of kernel time)": "*_percent"}, ("graph_launches",))
    + _renamed(
        Kind.COLUMN,
        {"top_category (% of kernel time)": "top_category_percent"},
        ("nn_modules",),
    )
    + _renamed(
        Kind.COLUMN,
        {"time at 1024 (%)": "time_at_1024_percent"},
        ("queue_length",),
    )
    + _renamed(Kind.COLUMN, {"percent": "% of wall time"}, ("cpu_timeline",))
    + _renamed(Kind.COLUMN, _BANDWIDTHS, ("coll_analysis", "collectives"))
    + _renamed(Kind.COLUMN, _SHARES_OF_TRACES, ("traces",))
    + _renamed(
        Kind.COLUMN,
        {
            "busy (%)": "busy_percent",
            "computation over mean (%)": "computation_over_mean_percent",
        },
        ("ranks",),
    )
    + _renamed(
        Kind.COLUMN, {"max over mean (%)": "max_over_mean_percent"}, _ACROSS_RANKS
    )
    + _renamed(Kind.COLUMN, {"hidden (%)": "hidden_percent"}, ("overlap",))
    + _renamed(Kind.COLUMN, {"in_sync_us": "transfer_us"}, ("collective_calls",))
)
_FIELDS: Final = _renamed(
    Kind.FIELD, {"saving_ms": "attributed_ms"}, ("where",)
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
        Kind.VALUE,
        {"good": "ok", "warned": "low_confidence", "withheld": "unavailable"},
        ("model.state",),
    )
    + _renamed(
        Kind.VALUE,
        {"synchronisation": "synchronization"},
        ("cause", "main_cause", "finding", "id"),
    )
    + _renamed(
        Kind.VALUE,
        {"finding:synchronisation": "finding:synchronization"},
        ("change",),
    )
    + _renamed(Kind.VALUE, {"start_up": "warm_up"}, ("cause", "main_cause"))
    + _renamed(
        Kind.VALUE,
        {
            "hole": "dropped_events",
            "before": "pre_recording",
            "start_up": "warm_up",
            "judged": "analyzed",
            "launches_without_gpu_work": "unmatched_launches",
        },
        ("recording.kind", "parts.kind", "timeline_markers.kind"),
    )
    + _renamed(Kind.VALUE, _TABLES, ("see",))
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
    + _renamed(Kind.OPTION, {"--time-axis": "--timeline-bins"}, ("report",))
    + _renamed(Kind.OPTION, {"--waits": "--collective-waits"}, ("what-if",))
    + _renamed(Kind.OPTION, {"--format json": "--json"}, ("compare",))
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
        Kind.ATTRIBUTE, {"pstep": "step", "pstep_by": "step_by"}, ("EventFilter",)
    )
    + _renamed(Kind.ATTRIBUTE, {"claimed_ms": "attributed_ms"}, ("Finding",))
    + _renamed(Kind.ATTRIBUTE, {"judged_ms": "analyzed_ms"}, ("Findings",))
    + _renamed(Kind.ATTRIBUTE, {"saving_ms": "attributed_ms"}, ("Place",))
    + _renamed(
        Kind.ATTRIBUTE,
        {"saving_ms": "attributed_ms", "saving_ns": "attributed_ns"},
        ("Claim",),
    )
    + _renamed(Kind.ATTRIBUTE, {"salvage": "allow_truncated"}, ("ReadingOptions",))
    + _renamed(Kind.ATTRIBUTE, {"time_axis": "timeline_bins"}, ("ReportOptions",))
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
        kind: of the names.
        where: only names of this command, class or table, and those of all; None for any.
    """
    return {
        renamed.old: renamed.new
        for renamed in RENAMED_NAMES
        if renamed.kind is kind
        and (where is None or not renamed.where or where in renamed.where)
    }
