"""The sheets `queue_length` and `copy_bandwidth`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.sheets.sheet import Sheet

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.lazy import pd
    from tracelens_ext.sheets.options import ReportOptions


def _queue_length(analyzer: TreePerfAnalyzer, _: ReportOptions) -> pd.DataFrame:
    from tracelens_ext.counters.tables import queue_length

    return queue_length(analyzer.work)


def _copy_bandwidth(analyzer: TreePerfAnalyzer, _: ReportOptions) -> pd.DataFrame | None:
    from tracelens_ext.counters.tables import copy_bandwidth

    table = copy_bandwidth(analyzer.work)
    return table if len(table) else None


SHEETS = [
    Sheet(
        name="queue_length",
        shows="How much launched work waits for each stream",
        columns="""
            device, stream: whose queue it is
            changes [changes]: launches and starts of GPU events that have a launch
            mean [GPU events]: launched and not begun, on average after each change
            max [GPU events]: likewise, at most
            time at 1024 (%): share of the time in which so many wait that the host must wait too
            """,
        table=_queue_length,
        asked_by="counters",
    ),
    Sheet(
        name="copy_bandwidth",
        shows="How fast copies are, by direction",
        columns="""
            device: its number
            direction: `HtoD`, `DtoH`, `DtoD`, `HtoH`, `PtoP`; or `other`
            copies [copies]: those whose speed is known
            mean [GB/s]: as recorded, else bytes by duration; 10⁹ bytes
            max [GB/s]: likewise, the fastest
            bytes [bytes]: copied
            """,
        table=_copy_bandwidth,
        asked_by="counters",
    ),
]
