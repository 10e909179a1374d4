"""`tracelens-ext fleet`: the traces of all ranks, on many processes or machines, and compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.messages import print_report
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from tracelens_ext.fleet import FleetResult

#: What the command exits with when a trace failed; with --strict, when a rank is missing too.
FAILED = 1


def fleet(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACES",
            help="Traces, one a rank: folders, patterns such as 'run/*.json.gz', or URLs of them"
            " (s3://, gs://, https:// …).",
            show_default=False,
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Folder or URL. What an earlier run did stays.",
            show_default=False,
        ),
    ],
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler",
            metavar="ADDRESS",
            help="Dask scheduler (tcp://host:8786).  [default: this machine]",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            help="Processes here; 0: only this one.  [default: one a core]",
            min=0,
            show_default=False,
        ),
    ] = None,
    attempts: Annotated[
        int, typer.Option(help="How often a trace that fails is tried.", min=1)
    ] = 3,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(
            help="To tell the nodes.  [default: by the devices]", min=1, show_default=False
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the tables as JSON.")] = False,
    top: Annotated[int, typer.Option(help="Ranks and collectives to print.", min=0)] = 5,
    force: shared.Force = False,
    unlinked_kernels: shared.UnlinkedKernels = True,
    quiet: shared.Quiet = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 when ranks are missing too.")
    ] = False,
    *,
    rules: shared.RuleOptions,
    reading: ReadingOptions,
) -> None:
    """Analyse the traces of all ranks; which ranks are slow, and whom collectives wait for."""
    from tracelens_ext.cli.progress import fleet_progress
    from tracelens_ext.cli.reading import chosen_cache
    from tracelens_ext.fleet.cluster import require_fleet_extra

    require_fleet_extra()
    from tracelens_ext.fleet import run_fleet

    if workers is None and scheduler is None:
        workers = reading.jobs
    with fleet_progress() as progress:
        result = run_fleet(
            traces,
            out,
            scheduler=scheduler,
            workers=workers,
            attempts=attempts,
            **rules.arguments(),
            include_unlinked_kernels=unlinked_kernels,
            ranks_per_node=ranks_per_node,
            cache=chosen_cache(reading) is not None,
            reading=reading,
            force=force,
            progress=progress,
        )
    if json:
        _print_json(result)
    elif not quiet:
        from tracelens_ext.cli.fleet_view import show_fleet
        from tracelens_ext.cli.screen import console

        show_fleet(result, console(), top=top)
    _tell_problems(result)
    if strict and result.missing:
        lacking = "1 rank has" if result.missing == 1 else f"{result.missing:,} ranks have"
        typer.echo(f"tracelens-ext: {lacking} no trace", err=True)
    if result.failed or (strict and result.missing):
        raise typer.Exit(FAILED)


def _tell_problems(result: FleetResult) -> None:
    """Say on standard error which plugins failed, and how many traces."""
    from tracelens_ext.report.terminal import safe_text

    for problem in result.problems:
        typer.echo(f"tracelens-ext: plugin {safe_text(problem)}", err=True)
    if not result.failed:
        return
    total = result.done + result.kept + result.failed
    counts = f"{result.failed} of {total} traces failed, listed in {result.out}/failures.parquet"
    first = "; the first: " if result.failed > 1 else ": "
    message = str(result.failures["message"].iloc[0])
    typer.echo(f"tracelens-ext: {safe_text(counts + first + message)}", err=True)


def _print_json(result: FleetResult) -> None:
    from tracelens_ext.report.report import Report

    facts: list[tuple[str, object]] = [
        ("Results", result.out),
        ("Traces analysed", result.done),
        ("Traces kept", result.kept),
        ("Traces failed", result.failed),
        ("Ranks missing", result.missing),
    ]
    sheets = {**result.tables, "failures": result.failures}
    report = Report("GPU performance of a fleet", sheets, facts, result.notes)
    print_report(report)
