"""`tracelens-ext what-if`: predicts the wall time if something took longer or shorter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli.options import (
    AnalysisOptions,
    Device,
    DevicePeaks,
    Force,
    TraceArgument,
)
from tracelens_ext.cli.screen import (
    Block,
    Part,
    Section,
    show,
    trace_report,
    write_text,
)
from tracelens_ext.compatibility.earlier_names import earlier_table
from tracelens_ext.hooks import Command
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.simulation.simulation import Simulation

_JSON_COLUMNS = ["change", "factor", "wall_ms", "saved_ms"]


def what_if(
    trace: TraceArgument,
    change: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FACTOR",
            help=(
                "Duration factors to apply together, separated by commas, such as "
                "GEMM=0.5. NAME is a category, kernels, kernel:REGEX, op:NAME, "
                "copies, communication, launch, gaps, host, host:NAME or finding:ID "
                "(=0)."
            ),
        ),
    ] = None,
    iteration: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Only ProfilerStep#N, not the whole recording."
        ),
    ] = None,
    device: Device = None,
    waits: Annotated[
        Path | None,
        typer.Option(
            "--collective-waits",
            metavar="FILE",
            help=(
                "collective_waits.parquet of fleet: how long collectives waited for "
                "other ranks."
            ),
        ),
    ] = None,
    device_peaks: DevicePeaks = None,
    top: Annotated[
        int, typer.Option("--top", "-t", min=0, help="Number of scenarios to print.")
    ] = 20,
    csv: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write all scenarios to a CSV file (- prints it)."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead, with the critical path.")
    ] = False,
    force: Force = False,
    *,
    analysis: AnalysisOptions,
) -> None:
    """Predict the wall time if kernels, copies or the CPU were faster or removed."""
    from tracelens_ext.cli.load import analyze, recording_notes
    from tracelens_ext.cli.messages import show_plugin_problems
    from tracelens_ext.cli.outputs import check_texts
    from tracelens_ext.findings.engine import tell_claims
    from tracelens_ext.report.formats import nested_json_text
    from tracelens_ext.simulation.collective_waits import read_collective_waits
    from tracelens_ext.simulation.scenarios import parse_change

    changes = [parse_change(text) for text in change] if change else None
    collective_waits = None if waits is None else read_collective_waits(waits)
    check_texts([csv] if csv else [], trace, force=force, json=json)
    analyzer = analyze(trace, analysis)
    simulation = analyzer.simulation(iteration, device, collective_waits)
    names_findings = any("finding:" in text for text in change or ())
    if changes is None or names_findings:
        with analyzer.failures.isolate("The findings"):
            tell_claims(simulation, analyzer.findings(device_peaks).findings)
    table = simulation.what_if(changes)
    show_plugin_problems(analyzer)
    csv_text = _csv_text(table) if csv else ""
    if json:
        if csv:
            write_text(csv, csv_text)
        document = {
            "window": simulation.json_window(),
            "model": simulation.json_model(),
            "what_if": table[_JSON_COLUMNS],
            "path": simulation.critical_path_table,
            "notes": recording_notes(analyzer, for_json=True),
        }
        typer.echo(nested_json_text(document))
        return
    texts: dict[Path, Callable[[], str]] = {}
    if csv:
        texts[csv] = lambda: csv_text
    report = trace_report(
        title="What if",
        trace=trace,
        tables={},
        notes=recording_notes(analyzer, for_json=False),
    )
    show(report, _blocks(simulation, table, top), texts=texts)


def _blocks(simulation: Simulation, table: pd.DataFrame, top: int) -> Iterator[Block]:
    """Yield the blocks: the simulation, the changes, and the critical path."""
    yield from simulation.summary_lines()
    yield Part("WHAT IF", table.head(top))

    def critical_path(_: Console) -> list[Block]:
        return [Part("CRITICAL PATH", simulation.critical_path_summary().head(top))]

    yield Section("CRITICAL PATH", critical_path)


def _csv_text(table: pd.DataFrame) -> str:
    """Return all changes as CSV."""
    named = earlier_table(table, "what_if")
    return str(named.to_csv(index=False, lineterminator="\n"))


COMMAND = Command(
    name="what-if",
    summary="Predict the wall time if something were faster or removed.",
    function=what_if,
    group="Diagnose",
    examples=(
        "what-if trace.json.gz",
        "what-if trace.json.gz --change GEMM=0.5 --change host=0",
        "what-if trace.json.gz --iteration 7 --csv changes.csv",
    ),
)
