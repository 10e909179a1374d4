"""`tracelens-ext sql`: ask a trace anything, in SQL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracelens_ext.cli import options as shared


def sql(
    trace: Annotated[
        Path | None,
        typer.Argument(metavar="[TRACE]", help="A trace of any format.", show_default=False),
    ] = None,
    statement: Annotated[
        str | None,
        typer.Argument(metavar="[SQL]", help="One SELECT statement.", show_default=False),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the tables and their columns.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.")] = False,
    limit: Annotated[int, typer.Option(help="Rows at most.", min=1)] = 1000,
    timeout: Annotated[float, typer.Option(help="Seconds at most.", min=0.1)] = 30,
    *,
    analysis: shared.AnalysisOptions,
) -> None:
    """Query the events of a trace, and the tables of its report, with SQL."""
    from tracelens_ext.cli.load import analyze
    from tracelens_ext.cli.messages import print_json, print_line
    from tracelens_ext.errors import UsageError

    if schema:
        _print_schema()
        return
    if trace is None or statement is None:
        raise UsageError('name a trace and a query: tracelens-ext sql TRACE "select …"')
    if json and csv:
        raise UsageError("--json and --csv exclude each other; give one")
    from tracelens_ext.export.database import query

    rows, more = query(analyze(trace, analysis), statement, limit=limit, timeout=timeout)
    if json:
        print_json("SQL", trace, {"result": rows})
    elif csv:
        typer.echo(rows.to_csv(index=False, lineterminator="\n"), nl=False)
    else:
        from tracelens_ext.cli.screen import console
        from tracelens_ext.report.terminal import frame_table

        console().print(frame_table(rows, fit_units=False))
    if more:
        print_line(
            f"tracelens-ext: {trace}: there are more than {limit:,} rows (--limit)", error=True
        )


def _print_schema() -> None:
    """What can be asked: tables of events, then those of the report."""
    from tracelens_ext.export.database import OWN_NAMES, SCHEMA, tables_of_report

    typer.echo(SCHEMA.strip())
    typer.echo("\n-- Tables of the report, made when a query names them:")
    for name, sheet in tables_of_report().items():
        shown = f"table_{name}" if name in OWN_NAMES else name
        columns = ", ".join(f'"{column.name}"' for column in sheet.described_columns())
        typer.echo(f"-- {shown}({columns})")
