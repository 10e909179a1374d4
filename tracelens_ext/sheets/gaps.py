"""The sheets about idle time: its causes, what the host did, streams, kernels, longest gaps."""

from __future__ import annotations

from tracelens_ext.sheets.sheet import Sheet

SHEETS = [
    Sheet(
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
        table=lambda analyzer, _: analyzer.get_df_gap_summary(),
        asked_by="gaps",
        on_every_page=True,
        method="get_df_gap_summary()",
    ),
    Sheet(
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
        table=lambda analyzer, _: analyzer.get_df_gap_hosts(),
        asked_by="gaps",
        on_every_page=True,
        method="get_df_gap_hosts()",
    ),
    Sheet(
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
        table=lambda analyzer, _: analyzer.get_df_gap_streams(),
        asked_by="gaps",
        method="get_df_gap_streams()",
    ),
    Sheet(
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
        table=lambda analyzer, _: analyzer.get_df_gap_pairs(),
        asked_by="gaps",
        method="get_df_gap_pairs()",
    ),
    Sheet(
        name="gaps_longest",
        shows="The longest times without any GPU work, and what the host did",
        columns="""
            process: as the trace names it
            device, stream: -1 where the trace does not say; of a whole device the stream is -1
            start_us: since the trace's first event
            gap_us: how long it was
            overlapped_us: while other streams were busy; 0 for a whole device
            cause: as in `gap_summary`, that of most of it
            cpu_op: that launched the event after it, as in `kernels_by_category`
            kernel_before, kernel_after: the GPU events around it
            launch_delay_us: from the launch of the event after to its start; empty without a launch
            host_op: the innermost operation or annotation that the launching thread was in for half
                of the time until it launched
            host_call: likewise the runtime call; of a synchronisation the call that synchronised
            python_frame: likewise the Python frame
            """,
        table=lambda analyzer, _: analyzer.get_df_gaps("device", longest=100),
        asked_by="gaps",
        method='get_df_gaps("device", longest=100)',
    ),
]
