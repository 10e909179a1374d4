"""The tables of idle time, with descriptions of their columns."""

from __future__ import annotations

from tracelens_ext.analysis.context import of_gpu_events
from tracelens_ext.analysis.idle_time.gap_tables import (
    gap_histogram,
    gap_shapes,
    gap_streams,
    gap_summary,
    gaps,
    gaps_longest,
    idle_cpu_activity,
)
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.table import Table

_PROCESS = Column("process", "process of the GPU events, as recorded in the trace")
_DEVICE = Column("device", "number of the device; -1 if not recorded")
_GAP_COUNT = Column("count", "number of gaps", unit="gaps")
_AVG_GAP_US = Column("avg_gap_us", "mean length of a gap")
_MAX_GAP_US = Column("max_gap_us", "length of the longest gap")

_GAP_COLUMNS = [
    _PROCESS,
    _DEVICE,
    Column(
        "stream",
        "number of the stream; -1 if not recorded, and for the gaps of a whole device",
    ),
    Column("start_us", "start of the gap, since the first event of the trace"),
    Column("gap_us", "length of the gap"),
    Column(
        "overlapped_us",
        "part of the gap during which other streams of the device were "
        "busy; 0 for the gaps of a whole device",
    ),
    Column("cause", "cause of most of the gap, as in `gap_summary`"),
    Column(
        "cpu_op",
        "operation that launched the GPU event after the gap, as in "
        "`cpu_op` of `kernels_by_category`",
    ),
    Column("kernel_before", "name of the GPU event before the gap"),
    Column("kernel_after", "name of the GPU event after the gap"),
    Column(
        "launch_delay_us",
        "time from the start of the launch of the GPU event after the gap "
        "to the start of that event; empty if the launch is not in the "
        "trace",
    ),
]

_CPU_ACTIVITY_COLUMNS = [
    Column(
        "host_op",
        "innermost operation or annotation that covers at least half of "
        "the time from the start of the gap to the launch, on the "
        "launching thread; empty if there is none",
    ),
    Column(
        "host_call",
        "innermost runtime call that covers at least half of that time; "
        "for a synchronization, the call that synchronized; empty if "
        "there is none",
    ),
    Column(
        "python_frame",
        "innermost Python frame that covers at least half of that time; "
        "empty if there is none",
    ),
]

GAP_SUMMARY = Table(
    name="gap_summary",
    description="Why the GPU was idle: gaps by cause",
    columns=[
        Column(
            "scope",
            "`device` for the times when all streams of a device were idle, "
            "which add up to the `idle_time` of `gpu_timeline`; `stream` for "
            "the gaps of each stream",
        ),
        Column(
            "cause",
            "cause of the idle time: `synchronization`, `host`, `dependency`, "
            "`launch overhead`, `unknown`, `not_recorded` or `warm_up`; a "
            "gap may have several causes",
        ),
        Column("count", "number of gaps in which the cause occurs", unit="gaps"),
        Column("idle_time_ms", "total idle time due to the cause"),
        Column("% of idle time", "share of all idle time of the scope"),
        Column(
            "avg_gap_us", "mean idle time due to the cause in a gap in which it occurs"
        ),
        Column("max_gap_us", "longest idle time due to the cause in a gap"),
        Column(
            "overlapped_time_ms",
            "part of `idle_time_ms` during which other streams of the device were busy",
        ),
    ],
    build=of_gpu_events(gap_summary),
    enabled_by="gaps",
    on_every_page=True,
)
GAP_SHAPES = Table(
    name="gap_shapes",
    description="Idle time of the devices, by the shape of the gaps",
    columns=[
        Column(
            "shape",
            "shape of the gaps: `short gaps`, `long gaps` (1 ms or longer), "
            "`recurring pauses` (long gaps of similar length at regular "
            "intervals or between iterations) or `end of the recording` (a "
            "long gap with hardly any GPU work after it)",
        ),
        _GAP_COUNT,
        Column(
            "idle_time_ms",
            (
                "total length of the gaps; the sum over all shapes is the idle "
                "time of the devices in `gap_summary`"
            ),
        ),
        Column("% of idle time", "share of the idle time of all gaps"),
        _AVG_GAP_US,
        _MAX_GAP_US,
        Column(
            "period_ms",
            "median time from one pause to the next, for the group of "
            "recurring pauses with the most idle time; empty for other shapes",
        ),
    ],
    build=of_gpu_events(gap_shapes),
    enabled_by="gaps",
)
IDLE_CPU_ACTIVITY = Table(
    name="idle_cpu_activity",
    description="CPU activity while the GPU was idle",
    columns=[
        Column(
            "host_op",
            "innermost operation or annotation on the launching thread that "
            "covers at least half of the time from the start of the gap to "
            "the launch of the next GPU event; empty if there is none, "
            "`(unlinked)` if that launch is not in the trace",
        ),
        Column(
            "python_frame",
            "innermost Python frame that covers at least half of that time, "
            "without memory addresses; empty if there is none",
        ),
        Column("main_cause", "cause of most of the idle time, as in `gap_summary`"),
        _GAP_COUNT,
        Column("idle_time_ms", "total length of the gaps"),
        Column("% of idle time", "share of the length of all gaps"),
        _AVG_GAP_US,
        _MAX_GAP_US,
    ],
    build=of_gpu_events(idle_cpu_activity),
    enabled_by="gaps",
    on_every_page=True,
)
GAP_STREAMS = Table(
    name="gap_streams",
    description="Gaps between GPU events by stream",
    columns=[
        _PROCESS,
        _DEVICE,
        Column(
            "stream",
            "number of the stream; -1 if not recorded",
        ),
        Column("events", "number of GPU events on the stream", unit="GPU events"),
        Column("gap_count", "number of gaps between these events", unit="gaps"),
        Column("idle_time_us", "total length of the gaps"),
        _AVG_GAP_US,
        _MAX_GAP_US,
        Column(
            "overlapped_us",
            "part of the idle time during which another stream of the device was busy",
        ),
        Column(
            "device_idle_us",
            "part of the idle time during which no stream of the device was busy",
        ),
    ],
    build=of_gpu_events(gap_streams),
    enabled_by="gaps",
)
GAPS_LONGEST = Table(
    name="gaps_longest",
    description="Longest times without GPU work, and the CPU activity during them",
    columns=_GAP_COLUMNS + _CPU_ACTIVITY_COLUMNS,
    build=of_gpu_events(gaps_longest),
    enabled_by="gaps",
)
GAPS = Table(
    name="gaps",
    description="Every gap of each stream, by stream and time",
    columns=_GAP_COLUMNS,
    build=of_gpu_events(gaps),
    enabled_by="tables",
)
GAP_HISTOGRAM = Table(
    name="gap_histogram",
    description="Histogram of the lengths of the gaps of all streams",
    columns=[
        Column(
            "from_us",
            "lower bound of the bin; empty for the gaps below all bins",
        ),
        Column(
            "to_us",
            "upper bound of the bin; empty for the gaps above all bins",
        ),
        Column("count", "number of gaps in the bin", unit="gaps"),
    ],
    build=of_gpu_events(gap_histogram),
    enabled_by="tables",
)
