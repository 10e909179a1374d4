"""`tracelens-ext sql`: queries the events of a trace and the tables of its report with SQL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracelens_ext.cli.options import AnalysisOptions
from tracelens_ext.cli.screen import show, tell, trace_report
from tracelens_ext.compatibility.earlier_names import (
    earlier_column_names,
    earlier_table_name,
)
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import Command


def sql(
    trace: Annotated[
        Path | None, typer.Argument(metavar="[TRACE]", help="A trace in any format.")
    ] = None,
    statement: Annotated[
        str | None, typer.Argument(metavar="[SQL]", help="One SELECT statement.")
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="List the tables and their columns.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the rows as JSON.")
    ] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of rows.")] = 1000,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Maximum run time, seconds.")
    ] = 30,
    *,
    analysis: AnalysisOptions,
) -> None:
    """Query the events of a trace, and the tables of its report, with SQL."""
    if schema:
        _print_schema()
        return
    if trace is None or statement is None:
        raise UsageError('give a trace and a query: tracelens-ext sql TRACE "select …"')
    if json and csv:
        raise UsageError("--json and --csv exclude each other; give only one of them")
    from tracelens_ext.cli.load import analyze, recording_notes
    from tracelens_ext.export.sql_query import query
    from tracelens_ext.report.terminal import frame_table

    analyzer = analyze(trace, analysis)
    rows, has_more = query(analyzer, statement, limit=limit, timeout=timeout)
    if csv:
        typer.echo(rows.to_csv(index=False, lineterminator="\n"), nl=False)
    else:
        table = frame_table(rows, fit_units=False)
        notes = recording_notes(analyzer, for_json=json)
        show(
            trace_report(
                title="SQL", trace=trace, tables={"result": rows}, notes=notes
            ),
            [table],
            json=json,
        )
    if has_more:
        tell(
            f"{trace}: only the first {limit:,} rows are shown; show more with --limit"
        )


def _print_schema() -> None:
    """Print the tables that can be queried: those of events, then those of the report."""
    from tracelens_ext.export.database import OWN_NAMES, SCHEMA, tables_of_report

    typer.echo(SCHEMA.strip())
    typer.echo("-- Tables of the report, computed when a query uses them:")
    for name, table in tables_of_report().items():
        earlier_name = earlier_table_name(name)
        shown_name = f"table_{name}" if name in OWN_NAMES else earlier_name
        names = [column.name for column in table.columns]
        earlier_names = earlier_column_names(names, name)
        columns = ", ".join(f'"{earlier_names.get(each, each)}"' for each in names)
        typer.echo(f"-- {shown_name}({columns})")


COMMAND = Command(
    name="sql",
    summary="Query a trace and its report tables with SQL.",
    function=sql,
    group="Inspect",
    examples=(
        "sql --schema",
        "sql trace.json.gz 'select name, count(*) from events group by name limit 9'",
        "sql trace.json.gz 'select * from kernel_summary' --csv",
    ),
)
