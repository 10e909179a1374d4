"""`tracelens-ext phases`: prefill and decode of a serving engine, its slowest steps, its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console


#: The columns of the table of phases that a terminal shows, table by table.
_SHOWN = {
    "Phases": (
        *("steps", "context_requests", "generation_requests", "tokens", "gpu_busy_ms"),
        *("gpu_ms_per_step", "gpu_us_per_token"),
    ),
    "How busy the GPU was": (
        *("busy_%", "idle_ms", "tokens_per_s", "tokens_per_s_without_idle", "attention_%"),
        *("gemm_%", "% of roofline", "scheduler_%", "sampler_%"),
    ),
}
_MOST_LAYERS = 12


def phases(
    trace: shared.Trace,
    phase: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=REGEX",
            help="Annotations whose name matches are steps of this phase, whatever an engine says;"
            " may be given several times.",
        ),
    ] = None,
    device_peaks: shared.DevicePeaks = None,
    top: Annotated[int, typer.Option("--top", "-t", help="Slowest steps to print.", min=0)] = 10,
    json: shared.Json = False,
    *,
    analysis: shared.AnalysisOptions,
) -> None:
    """Show prefill and decode of a serving engine: tokens, GPU time, idle time, steps, layers."""
    from tracelens_ext.cli.load import analyze, show_problems
    from tracelens_ext.cli.messages import print_json
    from tracelens_ext.cli.screen import console, first_lines, show_lines
    from tracelens_ext.graphs.tables import capture_notes
    from tracelens_ext.roofline.peaks import read_peaks
    from tracelens_ext.serving.steps import own_phases
    from tracelens_ext.serving.tables import phase_notes

    own = tuple(phase or ())
    own_phases(own)  # before a trace is read that takes long
    if device_peaks is not None:
        read_peaks(device_peaks)
    analyzer = analyze(trace, analysis)
    if not len(analyzer.serving_steps(own)) and analyzer.graph_replays is None:
        raise UsageError(
            f"{trace}: no annotation of a serving engine names a step, and shapes show none; name"
            " the steps with --phase NAME=REGEX"
        )
    tables = {
        "phases": analyzer.get_df_phases(own, device_peaks),
        "phase_steps": analyzer.get_df_phase_steps(own),
        "layers": analyzer.get_df_layers(own),
        "layer_kernels": analyzer.get_df_layer_kernels(own),
    }
    notes = list(phase_notes(analyzer, own))
    if analysis.capture is not None or analyzer.graph_replays is not None:
        tables["graph_operations"] = analyzer.get_df_graph_operations()
        notes += capture_notes(analyzer)
    show_problems(analyzer.problems, set())
    if json:
        print_json("Phases", trace, tables, notes)
    else:
        screen = console()
        show_lines([*first_lines(analyzer.work), f"Trace: {trace}", ""], screen)
        _show(tables, notes, top, screen)


def _show(
    tables: Mapping[str, pd.DataFrame], notes: Sequence[str], top: int, console: Console
) -> None:
    from tracelens_ext.cli.screen import show_lines, show_notes
    from tracelens_ext.report.terminal import frame_table

    for title, frame in _parts(tables["phases"]):
        console.print(frame_table(frame, title=title))
        console.print()
    steps = tables["phase_steps"]
    if top and len(steps):
        shown = steps.head(top).drop(columns=["gpu_events", "context_requests", "wall_time_ms"])
        console.print(frame_table(shown, title="Slowest steps"))
        if len(steps) > top:
            show_lines([f"{len(steps) - top:,} more steps (--json shows all)"], console)
        console.print()
    layers = tables["layers"]
    if len(layers):
        odd = layers[layers["odd"] != ""]
        shown = (odd if len(odd) else layers).head(_MOST_LAYERS)
        title = "Odd layers" if len(odd) else "Layers"
        columns = ["phase", "layer", "kernels", "busy_time_us", "std_busy_time_us", "odd"]
        console.print(frame_table(shown[columns], title=title))
        console.print()
        console.print(frame_table(_one_layer(tables["layer_kernels"]), title="A layer"))
        console.print()
    if "graph_operations" in tables and top:
        shown = tables["graph_operations"].head(top)
        console.print(frame_table(shown, title="Operations inside of graph launches"))
        console.print()
    show_notes(notes, console)


def _parts(phases: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The table of phases in parts that a terminal has room for."""
    parts = [
        (title, ["phase", *(c for c in columns if c in phases)])
        for title, columns in _SHOWN.items()
    ]
    times = [
        c for c in map(str, phases.columns) if c.endswith("_time_ms") and c != "roofline_time_ms"
    ]
    frames = [(title, phases[columns]) for title, columns in parts]
    if times:
        by_category = phases.set_index("phase")[times].T
        by_category.index = [str(name).removesuffix("_time_ms") for name in times]
        by_category.columns = [f"{name}_ms" for name in by_category.columns]
        frames.append(("By category", by_category.rename_axis("category").reset_index()))
    return frames


def _one_layer(kernels: pd.DataFrame) -> pd.DataFrame:
    """The layer that the phase with the longest layers has most of."""
    total = kernels["avg_duration_us"] * kernels["layers"]
    sums = total.groupby([kernels["phase"], kernels["kind"]]).sum().reset_index(name="us")
    longest = sums.sort_values("us").iloc[-1]
    chosen = (kernels["phase"] == longest["phase"]) & (kernels["kind"] == longest["kind"])
    columns = ["position", "avg_duration_us", "% of layer", "cpu_op", "kernel_name"]
    layer: pd.DataFrame = kernels[chosen][columns]
    return layer
