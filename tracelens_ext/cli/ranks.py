"""`tracelens-ext ranks`: what a fleet's results say of its ranks: verdicts, then each call."""

from __future__ import annotations

from tracelens_ext.cli.screen import Part, show

_SHOWN = ["call", "collective", "wait_us", "in_sync_us", "last_rank", "iteration", "state"]
_SHOWN += ["process_group", "bus_bandwidth_gb_s", "matched_by", "reason", "ranks"]


def ranks(results: str, top: int = 20, json: bool = False) -> None:
    """Show which ranks and links are slow, and of each collective its transfer, wait and cause.

    Operands:
        results RESULTS: Folder of the results of `fleet`, or its URL.

    Options:
        top -t 0..: Calls to print, the longest waits first.
        json: Print the tables as JSON instead.
    """
    from tracelens_ext.fleet.cluster import require_fleet_extra

    require_fleet_extra()
    from tracelens_ext.cli.fleet import verdict_lines
    from tracelens_ext.fleet.store import ResultStore
    from tracelens_ext.fleet.together import TABLES
    from tracelens_ext.report.report import Report

    store = ResultStore.at(results)
    tables = {name: store.get_table(name).to_pandas() for name in TABLES}
    calls = tables["collective_sync"].sort_values("wait_us", ascending=False, kind="stable")
    part = Part(f"{len(calls):,} calls, by wait", calls, _SHOWN, top)
    blocks = [*verdict_lines(tables["verdicts"]), part]
    show(Report("The ranks of a job", tables, [("Results", store.url)]), blocks, json=json)
