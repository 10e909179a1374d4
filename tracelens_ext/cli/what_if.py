"""`tracelens-ext what-if`: the wall time if something took longer or shorter, by a replay."""

from __future__ import annotations

from pathlib import Path

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import analyze, show_problems
from tracelens_ext.cli.outputs import check_texts, tell_written, write_text
from tracelens_ext.cli.screen import Part, show, trace_report


def what_if(
    trace: Path,
    change: list[str] | None = None,
    iteration: int | None = None,
    device: int | None = None,
    waits: Path | None = None,
    device_peaks: str | None = None,
    top: int = 20,
    csv: Path | None = None,
    json: bool = False,
    force: bool = False,
    *,
    analysis: shared.AnalysisOptions,
) -> None:
    """Show what the wall time would be if kernels, copies or the host were faster, or gone.

    Options:
        change NAME=FACTOR: What to multiply, such as GEMM=0.5; joined by commas, together. NAME is
            a category, kernels, kernel:REGEX, op:NAME, copies, communication, launch, gaps, host,
            host:NAME or finding:ID (=0).
        iteration N 0..: Only ProfilerStep#N, not the whole recording.
        waits FILE: How long collectives waited for other ranks: a collective_waits.parquet.
        top -t 0..: Changes to print.
        csv FILE: Write all changes to a file (- prints it).
        json: Print JSON instead, with the critical path.
    """
    from tracelens_ext.findings.detect import tell_claims
    from tracelens_ext.replay.changes import parse_change
    from tracelens_ext.replay.what_if import read_waits
    from tracelens_ext.report.json_text import nested_json_text

    asked = [parse_change(text) for text in change] if change else None
    table = None if waits is None else read_waits(waits)
    check_texts([csv], trace, force=force, json=json, every=False)
    analyzer = analyze(trace, analysis)
    simulation = analyzer.simulation(iteration, device, table)
    if asked is None or any("finding:" in each for each in change or ()):
        tell_claims(simulation, analyzer.findings(device_peaks).findings)
    frame = simulation.what_if(asked)
    show_problems(analyzer.problems)
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
    elif str(csv) != "-":
        path = simulation.critical_path_summary()
        parts = [Part("WHAT IF", frame.head(top)), Part("CRITICAL PATH", path.head(top))]
        show(trace_report("What if", trace, {}), [*simulation.lines(), *parts])
        tell_written([csv])
