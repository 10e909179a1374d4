"""A trace for other programs: `tracelens-ext export`, `sql`, and `mcp` for agents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import analyze, find_traces
from tracelens_ext.cli.screen import print_line, show, tell, trace_report
from tracelens_ext.errors import UsageError
from tracelens_ext.report.manifest import check_output, written_beside
from tracelens_ext.report.terminal import frame_table

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.export.choice import Choice

#: GPU events of which an export of a part has no findings unasked: to find them takes longer than
#: all the rest.
_MANY = 100_000
#: Browsers stop at a gigabyte or two of text, and are slow long before.
_LARGE = 300_000_000


def export(
    traces: list[str],
    output: Path,
    window: str | None = None,
    iteration: int | None = None,
    devices: str | None = None,
    streams: str | None = None,
    min_us: float = 0,
    host: bool = True,
    findings: bool | None = None,
    stacks: bool = False,
    clocks: Path | None = None,
    force: bool = False,
    *,
    analysis: shared.AnalysisOptions,
) -> None:
    """Write a trace of any format for Perfetto (ui.perfetto.dev), or as an SQLite database.

    Options:
        output -o FILE: File to write: .json.gz or .json for Perfetto, .db for SQLite.
        window START-END: What touches this, such as 1200ms-1300ms.
        iteration N: Only ProfilerStep#N and what it launched.
        devices N,N: GPU work of these devices.
        streams N,N: GPU work of these streams.
        min_us 0..: Leave out what is shorter, µs.
        host: With what the host did.
        findings --findings/--no-findings: With findings and the critical path.
            [default: unless it is a part of more than 100,000 GPU events]
        stacks: With Python frames.
        clocks FILE: clocks.parquet of fleet: puts several ranks on one axis.
    """
    from tracelens_ext.export.choice import Choice, parse_window

    if window is not None and iteration is not None:
        raise UsageError("--window and --iteration exclude each other; give one")
    database = output.suffix == ".db"
    if not database and not output.name.endswith((".json", ".json.gz")):
        raise UsageError(f"{output}: the name says the form: .json.gz, .json or .db")
    span = None if window is None else parse_window(window)
    numbers = (_numbers("--devices", devices), _numbers("--streams", streams))
    choice = Choice(span, iteration, *numbers, round(min_us * 1000), host, stacks)
    if database and choice != Choice():
        raise UsageError(f"{output}: a database holds the whole trace; choose with SQL")
    found, problems = find_traces(traces)
    if problems:
        raise problems[0]
    if database and len(found) != 1:
        raise UsageError(f"{output}: a database is of one trace; name one")
    check_output(output, found, force=force)
    analyzers = [analyze(path, analysis) for path in found]
    if database:
        from tracelens_ext.export.database import write_database

        write_database(analyzers[0], output)
        print_line(f"Wrote {output}")
        return
    _write_perfetto(found, analyzers, output, choice, findings, clocks)


def _write_perfetto(
    found: Sequence[Path],
    analyzers: Sequence[TreePerfAnalyzer],
    output: Path,
    choice: Choice,
    findings: bool | None,
    clocks: Path | None,
) -> None:
    import gzip

    from tracelens_ext.export.perfetto import ExportSummary, Source, perfetto_json
    from tracelens_ext.export.rank_shifts import shifts
    from tracelens_ext.export.spans import spans_of

    if findings is None:
        part = choice.window is not None or choice.iteration is not None
        findings = not part or sum(len(each.work) for each in analyzers) <= _MANY
    # Each with its place on the axis: without clocks each begins at 0.
    placed = shifts([each.trace for each in analyzers], [path.name for path in found], clocks)
    sources = [
        Source(
            each.work,
            *where,
            spans=spans_of(each, with_findings=findings),
            failures=each.failures,
        )
        for each, where in zip(analyzers, placed, strict=True)
    ]
    told = ExportSummary()
    size = 0
    with written_beside(output) as beside, beside.open("wb") as file:
        packed = output.suffix == ".gz"
        stream = gzip.GzipFile("", "wb", 6, file, mtime=0) if packed else file
        for text in perfetto_json(sources, choice, told):
            size += stream.write(text.encode())
        if packed:
            stream.close()
    print_line(f"Wrote {output}")
    without = "" if findings else "; no findings and critical path (--findings)"
    tell(f"{output}: {told.text()}{without}")
    if size > _LARGE:
        large = f"{size / 1e6:,.0f} MB unpacked, which browsers hardly open"
        tell(f"{output}: {large}; --iteration N or --window START-END make it smaller")


def _numbers(option: str, text: str | None) -> frozenset[int] | None:
    try:
        return None if text is None else frozenset(map(int, text.split(",")))
    except ValueError:
        raise UsageError(f"{option} {text!r}: write numbers, such as 0,1") from None


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
    if schema:
        # What can be asked: tables of events, then those of the report.
        from tracelens_ext.export.database import OWN_NAMES, SCHEMA, tables_of_report

        typer.echo(SCHEMA.strip())
        typer.echo("\n-- Tables of the report, made when a query names them:")
        for name, sheet in tables_of_report().items():
            shown = f"table_{name}" if name in OWN_NAMES else name
            columns = ", ".join(f'"{column.name}"' for column in sheet.columns)
            typer.echo(f"-- {shown}({columns})")
        return
    if trace is None or statement is None:
        raise UsageError('name a trace and a query: tracelens-ext sql TRACE "select …"')
    if json and csv:
        raise UsageError("--json and --csv exclude each other; give one")
    from tracelens_ext.export.database import query

    rows, more = query(analyze(trace, analysis), statement, limit=limit, timeout=timeout)
    if csv:
        typer.echo(rows.to_csv(index=False, lineterminator="\n"), nl=False)
    else:
        table = frame_table(rows, fit_units=False)
        show(trace_report("SQL", trace, {"result": rows}), [table], json=json)
    if more:
        tell(f"{trace}: there are more than {limit:,} rows (--limit)")


def mcp(folders: list[Path]) -> None:
    """Serve the traces in folders to an agent over stdin and stdout; nothing is written.

    Operands:
        folders FOLDER…: Whose traces may be asked about.
    """
    from tracelens_ext.cli.mcp_server import make_server

    make_server(folders).run("stdio")
