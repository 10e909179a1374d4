"""`tracelens-ext phases`: prefill and decode of a serving engine, its slowest steps, its layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import analyze, show_problems
from tracelens_ext.cli.screen import Part, first_lines, show, trace_report
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd

#: The columns of the table of phases that a terminal shows, table by table.
_SHOWN = {
    "Phases": (
        *("phase", "steps", "context_requests", "generation_requests", "tokens", "gpu_busy_ms"),
        *("gpu_ms_per_step", "gpu_us_per_token"),
    ),
    "How busy the GPU was": (
        *("phase", "busy_%", "idle_ms", "tokens_per_s", "tokens_per_s_without_idle", "attention_%"),
        *("gemm_%", "% of roofline", "scheduler_%", "sampler_%"),
    ),
}
_MOST_LAYERS = 12


def phases(
    trace: Path,
    phase: list[str] | None = None,
    device_peaks: str | None = None,
    top: int = 10,
    json: bool = False,
    *,
    analysis: shared.AnalysisOptions,
    screen: shared.Screen,
) -> None:
    """Show prefill and decode of a serving engine: tokens, GPU time, idle time, steps, layers.

    Options:
        phase NAME=REGEX: Annotations whose name matches are steps of this phase, whatever an engine
            says; may be given several times.
        top -t 0..: Slowest steps to print.
    """
    from tracelens_ext.graphs.tables import capture_notes
    from tracelens_ext.serving.phases import phase_notes
    from tracelens_ext.serving.steps import own_phases

    own = tuple(phase or ())
    own_phases(own)  # before a trace is read that takes long
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
    show_problems(analyzer.problems)
    report = trace_report("Phases", trace, tables, notes)
    blocks = [*first_lines(analyzer.work, trace), *_parts(tables, top)]
    show(report, blocks, json=json, all_notes=screen.notes)


def _parts(tables: Mapping[str, pd.DataFrame], top: int) -> Iterator[Part]:
    phases, layers = tables["phases"], tables["layers"]
    for title, columns in _SHOWN.items():
        yield Part(title, phases, columns)
    yield Part("By category", _by_category(phases))
    yield Part.of("phase_steps", tables["phase_steps"], top)
    if len(layers):
        odd = layers[layers["odd"] != ""]
        columns = ("phase", "layer", "kernels", "busy_time_us", "std_busy_time_us", "odd")
        shown = (odd if len(odd) else layers).head(_MOST_LAYERS)
        yield Part("Odd layers" if len(odd) else "Layers", shown, columns)
        yield Part.of("layer_kernels", _one_layer(tables["layer_kernels"]))
    if "graph_operations" in tables:
        yield Part.of("graph_operations", tables["graph_operations"].head(top))


def _by_category(phases: pd.DataFrame) -> pd.DataFrame:
    """A row a category, a column a phase."""
    ending = "_time_ms"
    times = phases.set_index("phase").filter(regex=f"(?<!^roofline){ending}$")
    by_category = times.T.rename(index=lambda name: str(name).removesuffix(ending))
    return by_category.add_suffix("_ms").rename_axis("category").reset_index()


def _one_layer(kernels: pd.DataFrame) -> pd.DataFrame:
    """The layer that the phase with the longest layers has most of."""
    total = kernels["avg_duration_us"] * kernels["layers"]
    sums = total.groupby([kernels["phase"], kernels["kind"]]).sum().reset_index(name="us")
    longest = sums.sort_values("us").iloc[-1]
    chosen = (kernels["phase"] == longest["phase"]) & (kernels["kind"] == longest["kind"])
    layer: pd.DataFrame = kernels[chosen]
    return layer
