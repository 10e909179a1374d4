"""`tracelens-ext ranks`: what the results of `fleet` say of the ranks: verdicts, then each call."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tracelens_ext.cli.screen import Part, show
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import Command
from tracelens_ext.report.report import Report

_CALL_COLUMNS = (
    "call",
    "collective",
    "wait_us",
    "in_sync_us",
    "last_rank",
    "iteration",
    "state",
    "process_group",
    "bus_bandwidth_gb_s",
    "matched_by",
    "reason",
    "ranks",
)


def ranks(
    results: Annotated[
        str,
        typer.Argument(
            metavar="RESULTS", help="Folder of the results of `fleet`, or its URL."
        ),
    ],
    top: Annotated[
        int,
        typer.Option(
            "--top", "-t", min=0, help="Calls to print, the longest waits first."
        ),
    ] = 20,
    json: Annotated[
        bool, typer.Option("--json", help="Print the tables as JSON instead.")
    ] = False,
) -> None:
    """Show which ranks and links are slow, and of each collective its transfer, wait and cause."""
    from tracelens_ext.cli.pipeline_blocks import pipeline_blocks
    from tracelens_ext.cli.verdict_blocks import verdict_blocks
    from tracelens_ext.distributed.cluster import require_fleet_extra

    require_fleet_extra()
    from tracelens_ext.distributed.collective_analysis import TABLES
    from tracelens_ext.distributed.storage import ResultStore

    _refuse_traces(results)
    store = ResultStore.at(results)
    tables = {name: store.get_table(name).to_pandas() for name in TABLES}
    calls = tables["collective_sync"].sort_values(
        "wait_us", ascending=False, kind="stable"
    )
    part = Part(f"{len(calls):,} calls, by wait", calls, _CALL_COLUMNS, top)
    blocks = list(verdict_blocks(tables["verdicts"]))
    blocks.extend(pipeline_blocks(tables["pipeline_stages"]))
    blocks.append(part)
    report = Report("The ranks of a job", tables, [("Results", store.url)])
    show(report, blocks, json=json)


def _refuse_traces(results: str) -> None:
    """Say what to do first if a folder, or a file, holds traces and no results of `fleet`."""
    from tracelens_ext.distributed.storage import DONE
    from tracelens_ext.trace_files import traces_in

    path = Path(results)
    if not path.is_dir() or (path / DONE).exists():
        return
    traces = traces_in(path)
    if traces:
        count = f"{len(traces):,} trace{'s' if len(traces) > 1 else ''}"
        folder = shlex.quote(results)
        raise UsageError(
            f"{results}: holds {count}, and no results of fleet yet; run first: "
            f"tracelens-ext fleet {folder} -o results; then: tracelens-ext ranks results"
        )


COMMAND = Command(
    name="ranks",
    summary="Show slow ranks and links, and each collective call.",
    function=ranks,
    group="Compare",
    examples=("ranks results", "ranks results --top 50", "ranks results --json"),
)
