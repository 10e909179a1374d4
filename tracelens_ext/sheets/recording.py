"""The sheet `recording`: how much of the wall time the recording lets anybody judge."""

from __future__ import annotations

from tracelens_ext.sheets.sheet import Sheet

SHEETS = [
    Sheet(
        name="recording",
        shows="How much of the wall time can be judged, and what was not recorded",
        columns="""
            kind: `wall`, what of it is `not_recorded` and `start_up`, and what can be `judged`, as
                means over the devices; `launches` of kernels, graphs and copies, and how many of
                them have no GPU work; then each `hole`, work of `before` the recording and
                `start_up`, the longest first; without GPU work `api_calls` by time; and what is
                `missing`
            device: the number of the device
            start_ms, end_ms: since the start of the wall
            ms: idle time of the device in it
            % of wall time: `ms`, of the wall time
            count [launches]: launches, or calls, that it is about
            what: what it is
            place: the operation, annotation or frame in which it begins
            how: how to record what is missing
            """,
        table=lambda analyzer, _: analyzer.get_df_recording(),
        when=(),
        method="get_df_recording()",
    ),
]
