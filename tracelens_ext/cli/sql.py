"""`tracelens-ext sql`: ask a trace anything, in SQL."""

from __future__ import annotations

from pathlib import Path

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import analyze
from tracelens_ext.cli.screen import show, tell, trace_report


def sql(
    trace: Path | None = None,
    statement: str | None = None,
    schema: bool = False,
    json: bool = False,
    csv: bool = False,
    limit: int = 1000,
    timeout: float = 30,
    *,
    analysis: shared.AnalysisOptions,
) -> None:
    """Query the events of a trace, and the tables of its report, with SQL.

    Operands:
        trace [TRACE]: A trace of any format.
        statement [SQL]: One SELECT statement.

    Options:
        schema: Print the tables and their columns.
        json: Print the rows as JSON.
        csv: Print the rows as CSV.
        limit 1..: Rows at most.
        timeout 0.1..: Seconds at most.
    """
    from tracelens_ext.errors import UsageError

    if schema:
        _print_schema()
        return
    if trace is None or statement is None:
        raise UsageError('name a trace and a query: tracelens-ext sql TRACE "select …"')
    if json and csv:
        raise UsageError("--json and --csv exclude each other; give one")
    from tracelens_ext.export.database import query
    from tracelens_ext.report.terminal import frame_table

    rows, more = query(analyze(trace, analysis), statement, limit=limit, timeout=timeout)
    if csv:
        typer.echo(rows.to_csv(index=False, lineterminator="\n"), nl=False)
    else:
        table = frame_table(rows, fit_units=False)
        show(trace_report("SQL", trace, {"result": rows}), [table], json=json)
    if more:
        tell(f"{trace}: there are more than {limit:,} rows (--limit)")


def _print_schema() -> None:
    """What can be asked: tables of events, then those of the report."""
    from tracelens_ext.export.database import OWN_NAMES, SCHEMA, tables_of_report

    typer.echo(SCHEMA.strip())
    typer.echo("\n-- Tables of the report, made when a query names them:")
    for name, sheet in tables_of_report().items():
        shown = f"table_{name}" if name in OWN_NAMES else name
        columns = ", ".join(f'"{column.name}"' for column in sheet.described_columns())
        typer.echo(f"-- {shown}({columns})")
