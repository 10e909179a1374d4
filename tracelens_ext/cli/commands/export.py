"""`tracelens-ext export`: writes a trace for Perfetto, or as a database."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli.options import AnalysisOptions, Force, TracesArgument
from tracelens_ext.cli.screen import print_line, tell
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import Command

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.export.choice import Choice
    from tracelens_ext.export.perfetto import Source

#: The export of a part of a trace with more GPU events than this has no findings by default:
#: computing them would take longer than all the rest.
_MANY_EVENTS = 100_000
#: From this size on, a note warns that the file is large. Browsers fail at one or two gigabytes of
#: text, and are slow long before.
_LARGE_BYTES = 300_000_000
_GZIP_LEVEL = 6
_NS_PER_US = 1000


def export(
    traces: TracesArgument,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Output file: .json.gz or .json for Perfetto, .db for SQLite.",
        ),
    ],
    window: Annotated[
        str | None,
        typer.Option(
            metavar="START-END",
            help="Only events that overlap this window, e.g. 1200ms-1300ms.",
        ),
    ] = None,
    iteration: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Only ProfilerStep#N and the GPU work it launched."
        ),
    ] = None,
    devices: Annotated[
        str | None, typer.Option(metavar="N,N", help="Only GPU work of these devices.")
    ] = None,
    streams: Annotated[
        str | None, typer.Option(metavar="N,N", help="Only GPU work of these streams.")
    ] = None,
    min_us: Annotated[
        float, typer.Option(min=0, help="Leave out events shorter than this, µs.")
    ] = 0,
    host: Annotated[
        bool, typer.Option("--host/--no-host", help="Include CPU events.")
    ] = True,
    findings: Annotated[
        bool | None,
        typer.Option(
            "--findings/--no-findings",
            help=(
                "Include findings and the critical path.  [default: included, unless "
                "the export is part of a trace and has more than 100,000 GPU events]"
            ),
        ),
    ] = None,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Include Python frames.")
    ] = False,
    clocks: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="clocks.parquet written by fleet; aligns the clocks of several ranks.",
        ),
    ] = None,
    force: Force = False,
    *,
    analysis: AnalysisOptions,
) -> None:
    """Write a trace of any format for Perfetto (ui.perfetto.dev), or as an SQLite database."""
    from tracelens_ext.cli.load import analyze, recording_notes
    from tracelens_ext.cli.named_traces import find_traces
    from tracelens_ext.export.choice import Choice, parse_window
    from tracelens_ext.report.manifest import check_output

    if window is not None and iteration is not None:
        raise UsageError(
            "--window and --iteration exclude each other; give only one of them"
        )
    is_database = output.suffix == ".db"
    if not is_database and not output.name.endswith((".json", ".json.gz")):
        raise UsageError(f"{output}: unknown file type; use .json.gz, .json or .db")
    choice = Choice(
        window=None if window is None else parse_window(window),
        iteration=iteration,
        devices=_numbers("--devices", devices),
        streams=_numbers("--streams", streams),
        min_ns=round(min_us * _NS_PER_US),
        host=host,
        stacks=stacks,
    )
    if is_database and choice != Choice():
        raise UsageError(
            f"{output}: a database holds the whole trace; leave out the options that "
            "select events, and select with SQL"
        )
    named = find_traces(traces)
    if named.problems:
        raise named.problems[0]
    if is_database and len(named.paths) != 1:
        raise UsageError(f"{output}: a database holds a single trace; give only one")
    check_output(output, named.paths, force=force)
    analyzers = [analyze(path, analysis) for path in named.paths]
    if is_database:
        from tracelens_ext.export.database import write_database

        write_database(analyzers[0], output)
        print_line(f"Wrote {output}")
    else:
        with_findings = findings
        if with_findings is None:
            with_findings = _findings_are_cheap(choice, analyzers)
        sources = _sources(named.paths, analyzers, clocks, with_findings=with_findings)
        _write_perfetto(sources, output, choice, with_findings=with_findings)
    for path, analyzer in zip(named.paths, analyzers, strict=True):
        for note in recording_notes(analyzer, for_json=False):
            tell(f"{path}: {note}")


def _findings_are_cheap(choice: Choice, analyzers: Sequence[TreePerfAnalyzer]) -> bool:
    """Return whether findings take no longer than the rest of an export."""
    is_part = choice.window is not None or choice.iteration is not None
    if not is_part:
        return True
    return sum(len(analyzer.gpu_events) for analyzer in analyzers) <= _MANY_EVENTS


def _sources(
    paths: Sequence[Path],
    analyzers: Sequence[TreePerfAnalyzer],
    clocks: Path | None,
    *,
    with_findings: bool,
) -> list[Source]:
    """Return each trace with its place on the time axis; without common clocks, all begin at 0."""
    from tracelens_ext.export.perfetto import Source
    from tracelens_ext.export.rank_shifts import shifts
    from tracelens_ext.export.spans import spans_of

    names = [path.name for path in paths]
    places = shifts([analyzer.trace for analyzer in analyzers], names, clocks)
    return [
        Source(
            analyzer.gpu_events,
            *place,
            spans=spans_of(analyzer, with_findings=with_findings),
            failures=analyzer.failures,
        )
        for analyzer, place in zip(analyzers, places, strict=True)
    ]


def _write_perfetto(
    sources: Sequence[Source], output: Path, choice: Choice, *, with_findings: bool
) -> None:
    """Write a file for Perfetto, and print what it contains."""
    from tracelens_ext.export.perfetto import ExportSummary, perfetto_json
    from tracelens_ext.report.atomic_files import written_beside

    summary = ExportSummary()
    size = 0
    with written_beside(output) as beside, beside.open("wb") as file:
        is_packed = output.suffix == ".gz"
        stream = (
            gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) if is_packed else file
        )
        for text in perfetto_json(sources, choice, summary):
            size += stream.write(text.encode())
        if is_packed:
            stream.close()
    print_line(f"Wrote {output}")
    without = (
        ""
        if with_findings
        else "; findings and the critical path are left out (include them with --findings)"
    )
    tell(f"{output}: {summary.text()}{without}")
    if size > _LARGE_BYTES:
        large = f"{size / 1e6:,.0f} MB unpacked, which is too large for most browsers"
        tell(f"{output}: {large}; export less with --iteration N or --window START-END")


def _numbers(option: str, text: str | None) -> frozenset[int] | None:
    """Return the numbers in the value of an option, where commas separate them."""
    if text is None:
        return None
    try:
        return frozenset(map(int, text.split(",")))
    except ValueError:
        raise UsageError(
            f"{option} {text!r}: is not a list of numbers; write it as 0,1"
        ) from None


COMMAND = Command(
    name="export",
    summary="Export a trace for Perfetto or to a database.",
    function=export,
    group="Inspect",
    examples=(
        "export trace.json.gz -o small.json.gz --iteration 7",
        "export run.nsys-rep -o run.json.gz --window 1200ms-1300ms",
        "export trace.json.gz -o trace.db",
    ),
)
