"""`tracelens-ext what-if`: the wall time if something took longer or shorter, by a replay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracelens_ext.cli import gap_options
from tracelens_ext.cli import options as shared


def what_if(
    trace: shared.Trace,
    change: Annotated[
        list[str] | None,
        typer.Option(
            help="What to multiply, such as GEMM=0.5; joined by commas, together. NAME is a"
            " category, kernels, kernel:REGEX, op:NAME, copies, communication, launch, gaps, host,"
            " host:NAME or finding:ID (=0).",
            metavar="NAME=FACTOR",
        ),
    ] = None,
    iteration: Annotated[
        int | None,
        typer.Option(metavar="N", help="Only ProfilerStep#N, not the whole recording.", min=0),
    ] = None,
    device: gap_options.Device = None,
    waits: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="How long collectives waited for other ranks: a collective_waits.parquet.",
        ),
    ] = None,
    device_peaks: shared.DevicePeaks = None,
    top: Annotated[int, typer.Option("--top", "-t", help="Changes to print.", min=0)] = 20,
    csv: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="Write all changes to a file (- prints it)."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead, with the critical path.")
    ] = False,
    force: shared.Force = False,
    *,
    analysis: shared.AnalysisOptions,
) -> None:
    """Show what the wall time would be if kernels, copies or the host were faster, or gone."""
    from tracelens_ext.cli.load import analyze, show_problems
    from tracelens_ext.cli.screen import console, folded, show_lines
    from tracelens_ext.cli.text_output import check_texts, tell_written, write_text
    from tracelens_ext.findings.detect import tell_claims
    from tracelens_ext.replay.changes import parse_change
    from tracelens_ext.replay.what_if import read_waits
    from tracelens_ext.report.json_text import nested_json_text
    from tracelens_ext.report.terminal import frame_table
    from tracelens_ext.roofline.peaks import read_peaks

    asked = [parse_change(text) for text in change] if change else None
    table = None if waits is None else read_waits(waits)
    if device_peaks is not None:
        read_peaks(device_peaks)  # before a trace is read that takes long
    check_texts([csv], trace, force=force, json=json, every=False)
    analyzer = analyze(trace, analysis)
    simulation = analyzer.simulation(iteration, device, table)
    if asked is None or any("finding:" in each for each in change or ()):
        tell_claims(simulation, analyzer.findings(device_peaks).findings)
    frame = simulation.what_if(asked)
    show_problems(analyzer.problems, set())
    if csv is not None:
        write_text(csv, frame.to_csv(index=False, lineterminator="\n"))
    if json:
        columns = ["change", "factor", "wall_ms", "saved_ms"]
        document = {
            "window": simulation.window(),
            "model": simulation.model(),
            "what_if": frame[columns].to_dict("records"),
            "path": simulation.critical_path.to_dict("records"),
        }
        typer.echo(nested_json_text(document))
        return
    if str(csv) == "-":
        return
    screen = console()
    show_lines([line for text in simulation.lines() for line in folded(text, screen.width)], screen)
    if len(frame):
        screen.print()
        screen.print(frame_table(frame.head(top), title="WHAT IF"))
    if top:
        screen.print()
        screen.print(
            frame_table(simulation.critical_path_summary().head(top), title="CRITICAL PATH")
        )
    tell_written([csv])
