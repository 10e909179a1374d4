"""The sheets about idle time: its causes, what the host did, streams, kernels, longest gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.gaps import hosts, summaries
from tracelens_ext.gaps.classified import classify_gaps
from tracelens_ext.gaps.histogram import BINS, telling_histogram
from tracelens_ext.lazy import pd
from tracelens_ext.tables.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.gaps.summaries import GapSort
    from tracelens_ext.iterations.selection import Selection
    from tracelens_ext.work.lanes import Scope

# `selection` says which GPU events end the gaps, all by default.


def gaps(
    analyzer: TreePerfAnalyzer,
    scope: Scope = "stream",
    *,
    longest: int | None = None,
    selection: Selection | None = None,
) -> pd.DataFrame:
    """A row a gap.

    Args:
        analyzer: of the trace.
        scope: `stream` for the idle times of each stream, `device` for those of all streams.
        longest: only so many, the longest first, with what the host was doing.
        selection: which GPU events end the gaps, all by default.

    Raises:
        UsageError: there is no such scope, `longest` is negative, or nothing is selected.
    """
    if longest is not None and longest < 0:
        raise UsageError(f"longest is how many gaps to list, 0 or more, and not {longest}")
    return summaries.gap_list(classify_gaps(analyzer.work, scope, selection), longest=longest)


def gaps_longest(
    analyzer: TreePerfAnalyzer,
    scope: Scope = "device",
    *,
    longest: int = summaries.LONGEST_LISTED,
    selection: Selection | None = None,
) -> pd.DataFrame:
    """The longest gaps, and what the host was doing."""
    return gaps(analyzer, scope, longest=longest, selection=selection)


def gap_summary(
    analyzer: TreePerfAnalyzer,
    scopes: Sequence[Scope] = ("device", "stream"),
    *,
    selection: Selection | None = None,
) -> pd.DataFrame:
    """Why the GPU was idle."""
    return summaries.gap_summary([classify_gaps(analyzer.work, s, selection) for s in scopes])


def gap_hosts(
    analyzer: TreePerfAnalyzer, scope: Scope = "device", *, selection: Selection | None = None
) -> pd.DataFrame:
    """Idle time by what the host was in, longest first.

    Raises:
        UsageError: there is no such scope, or nothing is selected.
    """
    return hosts.gap_hosts(classify_gaps(analyzer.work, scope, selection))


def gap_streams(analyzer: TreePerfAnalyzer, *, selection: Selection | None = None) -> pd.DataFrame:
    """Gaps by stream, most gaps first."""
    return summaries.gap_streams(classify_gaps(analyzer.work, "stream", selection))


def gap_pairs(
    analyzer: TreePerfAnalyzer, sort: GapSort = "avg", *, selection: Selection | None = None
) -> pd.DataFrame:
    """Gaps by the kernels around them; `sort` by size."""
    return summaries.gap_pairs(classify_gaps(analyzer.work, "stream", selection), sort=sort)


def gap_full_names(
    analyzer: TreePerfAnalyzer, sort: GapSort = "avg", *, selection: Selection | None = None
) -> pd.DataFrame:
    """The full names behind the simplified ones of `gap_pairs`."""
    found = classify_gaps(analyzer.work, "stream", selection)
    return summaries.gap_full_names(found, summaries.gap_pairs(found, sort=sort))


def gap_histogram(
    analyzer: TreePerfAnalyzer,
    smallest: float | None = None,
    largest: float | None = None,
    *,
    log: bool = False,
    selection: Selection | None = None,
) -> pd.DataFrame:
    """How long the gaps of the streams are; the bounds are µs, those of the gaps by default."""
    length = classify_gaps(analyzer.work, "stream", selection).gaps.duration / 1e3
    found, _ = telling_histogram(length, BINS, smallest, largest, log=log)
    edges = found.edges if len(found.edges) else np.array([np.nan])
    counts = [found.below, *found.counts.tolist(), found.above]
    ends = {"from_us": [np.nan, *edges], "to_us": [*edges, np.nan]}
    bins = pd.DataFrame({**ends, "count": counts})
    return bins[bins.notna().all(axis=1) | (bins["count"] > 0)]


_GAP_COLUMNS = """
            process: as the trace names it
            device, stream: -1 where the trace does not say; of a whole device the stream is -1
            start_us: since the trace's first event
            gap_us: how long it was
            overlapped_us: while other streams were busy; 0 for a whole device
            cause: as in `gap_summary`, that of most of it
            cpu_op: that launched the event after it, as in `kernels_by_category`
            kernel_before, kernel_after: the GPU events around it
            launch_delay_us: from the launch of the event after to its start; empty without a launch
            """

TABLES = [
    Table(
        name="gap_summary",
        shows="Why the GPU was idle: gaps by cause",
        columns="""
            scope: `device`: times when all streams were idle, in sum the `idle_time` of
                `gpu_timeline`; `stream`: each stream by itself
            cause: `synchronisation`, `host`, `dependency`, `launch overhead`, `unknown`,
                `not_recorded` or `start_up`; a gap may have several
            count [gaps]: how many have time of this cause
            idle_time_ms: of this cause
            % of idle time: of that scope
            avg_gap_us, max_gap_us: of this cause, in a gap that has it
            overlapped_time_ms: of `idle_time_ms`, while other streams of the device were busy
            """,
        table=gap_summary,
        asked_by="gaps",
        on_every_page=True,
    ),
    Table(
        name="gap_hosts",
        shows="What the host was in while the GPU was idle",
        columns="""
            host_op: the innermost operation or annotation that covers at least half of that time;
                empty for none, `(unlinked)` where the launch of the event after is not in the trace
            python_frame: likewise the innermost Python frame, without addresses in memory; empty
                for none
            main_cause: of most of that time
            count [gaps]: how many
            idle_time_ms: of those gaps
            % of idle time: of all of it
            avg_gap_us, max_gap_us: of a gap
            """,
        table=gap_hosts,
        asked_by="gaps",
        on_every_page=True,
    ),
    Table(
        name="gap_streams",
        shows="Gaps between GPU events by stream",
        columns="""
            process: as the trace names it
            device, stream: -1 where the trace does not say; of a whole device the stream is -1
            events [GPU events]: on the stream
            gap_count [gaps]: between them
            idle_time_us: between the first and the last event of the stream
            avg_gap_us, max_gap_us: of a gap
            overlapped_us: of the idle time, while another stream was busy
            device_idle_us: of the idle time, while no stream of the device was busy
            """,
        table=gap_streams,
        asked_by="gaps",
    ),
    Table(
        name="gap_pairs",
        shows="Gaps by the kernels around them",
        columns="""
            kernel_before, kernel_after: simplified name
            count [gaps]: how many
            avg_gap_us, max_gap_us, min_gap_us: of a gap
            std_gap_us: standard deviation of a sample; 0 for a single gap
            total_gap_us: of all
            main_cause: of most of that time
            full_names [pairs]: of full names that share the simplified ones
            """,
        table=gap_pairs,
        asked_by="gaps",
    ),
    Table(
        name="gaps_longest",
        shows="The longest times without any GPU work, and what the host did",
        columns=f"""{_GAP_COLUMNS}host_op: the innermost operation or annotation that the launching
                thread was in for half of the time until it launched
            host_call: likewise the runtime call; of a synchronisation the call that synchronised
            python_frame: likewise the Python frame
            """,
        table=gaps_longest,
        asked_by="gaps",
    ),
    Table(
        name="gaps",
        shows="Every gap of each stream, by stream and time",
        columns=_GAP_COLUMNS,
        table=gaps,
        asked_by="tables",
    ),
    Table(
        name="gap_full_names",
        shows="The names behind the simplified ones of gap_pairs",
        columns="""
            rank: of the row of `gap_pairs`, from 1
            kernel_before, kernel_after: as there
            full_name_before, full_name_after: of each rank the most frequent first
            count [gaps]: how many
            total_gap_us: of all
            """,
        table=gap_full_names,
        asked_by="tables",
    ),
    Table(
        name="gap_histogram",
        shows="How long the gaps of the streams are",
        columns="""
            from_us, to_us: bounds of the bin; empty for what is shorter, or longer, than all bins
            count [gaps]: how many
            """,
        table=gap_histogram,
        asked_by="tables",
    ),
]
