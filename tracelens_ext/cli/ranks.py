"""`tracelens-ext ranks`: what a fleet's results say of its ranks: verdicts, then each call."""

from __future__ import annotations

from typing import Annotated

import typer


def ranks(
    results: Annotated[
        str, typer.Argument(metavar="RESULTS", help="Folder of the results of `fleet`, or its URL.")
    ],
    top: Annotated[
        int, typer.Option("--top", "-t", help="Calls to print, the longest waits first.", min=0)
    ] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print the tables as JSON instead.")] = False,
) -> None:
    """Show which ranks and links are slow, and of each collective its transfer, wait and cause."""
    from tracelens_ext.cli.messages import print_report
    from tracelens_ext.fleet.cluster import require_fleet_extra

    require_fleet_extra()
    from tracelens_ext.fleet.store import ResultStore
    from tracelens_ext.fleet.together import TABLES
    from tracelens_ext.report.report import Report

    store = ResultStore.at(results)
    tables = {name: store.get_table(name).to_pandas() for name in TABLES}
    if json:
        print_report(Report("The ranks of a job", tables, [("Results", store.url)]))
        return
    from tracelens_ext.cli.fleet_view import show_verdicts
    from tracelens_ext.cli.screen import console
    from tracelens_ext.report.terminal import frame_table

    out = console()
    show_verdicts(tables["verdicts"], out)
    shown = ["call", "collective", "wait_us", "in_sync_us", "last_rank", "iteration", "state"]
    shown += ["process_group", "bus_bandwidth_gb_s", "matched_by", "reason", "ranks"]
    calls = tables["collective_sync"].sort_values("wait_us", ascending=False, kind="stable")
    out.print(frame_table(calls[shown].head(top), title=f"{len(calls):,} calls, by wait"))
