"""`tracelens-ext phases`: shows prefill and decode, the slowest steps, and the layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli.options import AnalysisOptions, DevicePeaks, Json, TraceArgument
from tracelens_ext.cli.screen import (
    Block,
    Part,
    Section,
    first_lines,
    show,
    trace_report,
)
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import Command
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from rich.console import Console

_PHASE_COLUMNS = (
    "phase",
    "steps",
    "context_requests",
    "generation_requests",
    "tokens",
    "gpu_busy_ms",
    "gpu_ms_per_step",
    "gpu_us_per_token",
)
_BUSY_COLUMNS = (
    "phase",
    "busy_percent",
    "idle_ms",
    "tokens_per_s",
    "tokens_per_s_without_idle",
    "attention_percent",
    "gemm_percent",
    "% of roofline",
    "scheduler_percent",
    "sampler_percent",
)
_LAYER_COLUMNS = (
    "phase",
    "layer",
    "kernels",
    "busy_time_us",
    "std_busy_time_us",
    "odd",
)
_MOST_LAYERS = 12


def phases(
    trace: TraceArgument,
    phase: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=REGEX",
            help=(
                "Treat annotations whose name matches as steps of this phase, "
                "whatever the engine calls them (repeatable)."
            ),
        ),
    ] = None,
    device_peaks: DevicePeaks = None,
    top: Annotated[
        int,
        typer.Option("--top", "-t", min=0, help="Number of slowest steps to print."),
    ] = 10,
    json: Json = False,
    *,
    analysis: AnalysisOptions,
) -> None:
    """Show prefill and decode of a serving engine: tokens, GPU time, idle time, steps, layers."""
    from tracelens_ext.analysis.cuda_graphs.tables import capture_notes
    from tracelens_ext.analysis.serving.phases import phase_notes
    from tracelens_ext.analysis.serving.steps import parse_user_phases
    from tracelens_ext.cli.load import analyze, computed_tables, recording_notes
    from tracelens_ext.cli.messages import show_plugin_problems

    own = tuple(phase or ())
    parse_user_phases(own)  # fails before minutes are spent on reading a trace
    analyzer = analyze(trace, analysis)
    if not len(analyzer.serving_steps(own)) and analyzer.graph_replays is None:
        raise UsageError(
            f"{trace}: has no steps of a serving engine: neither annotations nor "
            "shapes identify them; name them with --phase NAME=REGEX"
        )
    makers: dict[str, Callable[[], pd.DataFrame]] = {
        "phases": lambda: analyzer.get_df_phases(own, device_peaks),
        "phase_steps": lambda: analyzer.get_df_phase_steps(own),
        "layers": lambda: analyzer.get_df_layers(own),
        "layer_kernels": lambda: analyzer.get_df_layer_kernels(own),
    }
    notes = list(phase_notes(analyzer, own))
    if analysis.capture is not None or analyzer.graph_replays is not None:
        makers["graph_operations"] = analyzer.get_df_graph_operations
        notes += capture_notes(analyzer)
    tables = computed_tables(analyzer.failures, makers)
    show_plugin_problems(analyzer)
    notes += recording_notes(analyzer, for_json=json)
    unique_notes = list(dict.fromkeys(notes))
    blocks = first_lines(analyzer.gpu_events, trace) + list(_blocks(tables, top))
    show(
        trace_report(title="Phases", trace=trace, tables=tables, notes=unique_notes),
        blocks,
        json=json,
    )


def _blocks(tables: Mapping[str, pd.DataFrame], top: int) -> Iterator[Block]:
    """Yield the blocks for the tables that the trace has."""
    if "phases" in tables:
        phase_table = tables["phases"]
        yield Part(title="Phases", frame=phase_table, columns=_PHASE_COLUMNS)
        yield Part(title="GPU utilization", frame=phase_table, columns=_BUSY_COLUMNS)
        yield Section("By category", lambda _: [_by_category(phase_table)])
    if "phase_steps" in tables:
        yield Part.of("phase_steps", tables["phase_steps"], top)
    if "layers" in tables and len(tables["layers"]):
        yield Section("Layers", lambda console: _layer_parts(tables, console))
    if "graph_operations" in tables:
        yield Part.of("graph_operations", tables["graph_operations"].head(top))


def _by_category(phase_table: pd.DataFrame) -> Part:
    """Return a table with a row for each category and a column for each phase."""
    times = phase_table.set_index("phase").filter(regex="(?<!^roofline)_time_ms$").T
    times = times.rename(index=lambda name: str(name).removesuffix("_time_ms"))
    times = times.add_suffix("_ms").rename_axis("category").reset_index()
    return Part("By category", times)


def _layer_parts(tables: Mapping[str, pd.DataFrame], _: Console) -> Iterator[Part]:
    """Yield the outliers among the layers, or all layers, and the kernels of one layer."""
    layers = tables["layers"]
    odd = layers[layers["odd"] != ""]
    if len(odd):
        yield Part(
            title="Odd layers", frame=odd.head(_MOST_LAYERS), columns=_LAYER_COLUMNS
        )
    else:
        yield Part(
            title="Layers", frame=layers.head(_MOST_LAYERS), columns=_LAYER_COLUMNS
        )
    if "layer_kernels" not in tables:
        return
    # The most frequent kind of layer in the phase with the longest layers.
    kernels = tables["layer_kernels"]
    total = kernels["avg_duration_us"] * kernels["layers"]
    sums = total.groupby([kernels["phase"], kernels["kind"]]).sum()
    phase, kind = sums.sort_values().index[-1]
    is_of_layer = (kernels["phase"] == phase) & (kernels["kind"] == kind)
    yield Part.of("layer_kernels", kernels[is_of_layer])


COMMAND = Command(
    name="phases",
    summary="Show prefill and decode of a serving engine.",
    function=phases,
    group="Inspect",
    examples=(
        "phases trace.json.gz",
        "phases trace.json.gz --phase 'decode=^decode' --phase 'prefill=^prefill'",
        "phases trace.json.gz --capture captures/",
    ),
)
