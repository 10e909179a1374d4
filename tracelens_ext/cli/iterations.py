"""`tracelens-ext iterations`: what each training step took, and which were odd.

And `tracelens-ext phases`: prefill and decode of a serving engine, its slowest steps, its layers;
`tracelens-ext counters`: how much work waits for each stream, and how fast copies are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import analyze, show_problems
from tracelens_ext.cli.screen import Block, Part, first_lines, folded, show, trace_report
from tracelens_ext.errors import TraceError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.terminal import name_text
from tracelens_ext.settings import ReadingOptions
from tracelens_ext.tables.units import Shown
from tracelens_ext.work.patterns import user_pattern

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.iterations.measured import IterationTable
    from tracelens_ext.tree import CallTree

_SUGGESTED = 5
_MOST_TO_PASTE = 200  # characters of an expression
_MOST_ODD = 10
_MOST_COLUMNS = 4
_MOST_STATISTICS = 15
#: What a narrow terminal can do without most easily: both are parts of the busy time.
_SHOWN_LAST = ("computation_time_ms", "exposed_memcpy_time_ms")
_STATISTICS = ("column", "device", "mean", "std", "median", "mad", "odd", "min", "max")


def iterations(
    trace: Path,
    annotation: str | None = None,
    json: bool = False,
    top: int = 50,
    *,
    analysis: shared.AnalysisOptions,
) -> None:
    """Show wall time, GPU time and idle time of each iteration, and the odd ones out.

    Options:
        top 0..: Iterations to print, the first ones.
        unlinked_kernels --include-unlinked-kernels/--exclude-unlinked-kernels: Count GPU events
            without a launch, or not.  [default: include]
    """
    from tracelens_ext.iterations.measured import iteration_table

    pattern = user_pattern(annotation, "annotation")
    analyzer = analyze(trace, analysis)
    table = iteration_table(analyzer.work, pattern)
    if not len(table):
        raise UsageError(_nothing_found(trace, analyzer.tree, annotation))
    frame, statistics = table.frame, table.statistics
    tables = {"iterations": frame, "iteration_statistics": statistics}
    blocks: list[Block] = [*first_lines(analyzer.work, trace)]
    blocks.append(Part("Iterations", frame, _shown(frame.columns), top))
    if len(statistics):
        count = int(statistics["iterations"].max())
        title = f"Mean and spread of {count:,} whole iteration{'s' if count > 1 else ''}, ms"
        blocks.append(Part(title, statistics.head(_MOST_STATISTICS), _STATISTICS))
    blocks.append(lambda console: [_odd_lines(table, console)])
    report = trace_report("Iterations", trace, tables, table.notes)
    show(report, blocks, json=json)


def _nothing_found(path: Path, tree: CallTree, annotation: str | None) -> str:
    """Say that there are no iterations, and what could be taken for them."""
    import shlex

    from tracelens_ext.iterations.iterations import likely_iterations

    found = [name for name in likely_iterations(tree, _SUGGESTED) if len(name) <= _MOST_TO_PASTE]
    wanted = "ProfilerStep#N" if annotation is None else f"annotation that matches {annotation!r}"
    if not found:
        return f"{path}: has no {wanted}, nor any other annotation that launches GPU work"
    quoted = ", ".join(shlex.quote(name) for name in found)
    return f"{path}: has no {wanted}; choose others with --annotation REGEX, such as {quoted}"


def _shown(columns: Iterable[str]) -> list[str]:
    """The columns to print; what does not fit is left out from the end."""
    from tracelens_ext.iterations.measured import is_category_time

    shown = [c for c in columns if c not in ("odd", "whole", *_SHOWN_LAST)]
    at = next((at for at, column in enumerate(shown) if is_category_time(column)), len(shown))
    return [*shown[:at], *_SHOWN_LAST, *shown[at:]]


def _odd_lines(table: IterationTable, console: Console) -> list[str]:
    """What each odd iteration took, against the median, in lines that fit."""
    from tracelens_ext.iterations.measured import ODD_AT_LEAST, ODD_BEYOND

    odd = table.frame[table.frame["odd"] != ""]
    if not len(odd):
        return []
    has_device = "device" in table.frame
    keys = ["column", "device"] if has_device else ["column"]
    medians = table.statistics.set_index(keys)["median"].to_dict()
    told = []
    for row in odd.to_dict("records"):
        where = f", device {row['device']}" if has_device else ""
        away, parts = 0.0, []
        for column in str(row["odd"]).split(", "):
            median = medians[(column, row["device"]) if has_device else column]
            parts.append(_against(column, row[column], median).replace(" ", "\u00a0"))
            away = max(away, 0.0 if column == "kernels" else abs(row[column] - median))
        if len(parts) > _MOST_COLUMNS:
            parts[_MOST_COLUMNS:] = [f"{len(parts) - _MOST_COLUMNS}\u00a0more"]
        line = f"  {name_text(str(row['iteration']))}{where}: {'; '.join(parts)}"
        told.append((away, folded(line, console.width, "    ")))
    told.sort(key=lambda each: -each[0])
    shown = [line for _, lines in told[:_MOST_ODD] for line in lines]
    if len(told) > _MOST_ODD:
        shown.append(f"  and {len(told) - _MOST_ODD:,} more (--json shows all)")
    beyond = f"{ODD_BEYOND} median absolute deviations and {ODD_AT_LEAST:.0%} from the median"
    return ["", f"Odd (beyond {beyond}):", *shown]


def _against(column: str, value: float, median: float) -> str:
    """A value and its median, with as many decimals: `idle_time 2.461 ms (median 3.907 ms)`."""
    shown = Shown.of(column, [value, median])
    this, usual, unit = shown.text(value), shown.text(median), shown.unit
    named, symbol = column.removesuffix(f"_{unit.symbol}"), f" {unit.symbol}".rstrip()
    return f"{named} {this}{symbol} (median {usual}{symbol})"


#: The columns of the table of phases that a terminal shows, table by table.
_OF_PHASES = {
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
    show(report, blocks, json=json)


def _parts(tables: Mapping[str, pd.DataFrame], top: int) -> Iterator[Part]:
    phases, layers = tables["phases"], tables["layers"]
    for title, columns in _OF_PHASES.items():
        yield Part(title, phases, columns)
    yield Part("By category", _by_category(phases))
    yield Part.of("phase_steps", tables["phase_steps"], top)
    if len(layers):
        odd = layers[layers["odd"] != ""]
        columns = ("phase", "layer", "kernels", "busy_time_us", "std_busy_time_us", "odd")
        shown = (odd if len(odd) else layers).head(_MOST_LAYERS)
        yield Part("Odd layers" if len(odd) else "Layers", shown, columns)
        # The layer that the phase with the longest layers has most of.
        kernels = tables["layer_kernels"]
        total = kernels["avg_duration_us"] * kernels["layers"]
        sums = total.groupby([kernels["phase"], kernels["kind"]]).sum()
        phase, kind = sums.sort_values().index[-1]
        one = kernels[(kernels["phase"] == phase) & (kernels["kind"] == kind)]
        yield Part.of("layer_kernels", one)
    if "graph_operations" in tables:
        yield Part.of("graph_operations", tables["graph_operations"].head(top))


def _by_category(phases: pd.DataFrame) -> pd.DataFrame:
    """A row a category, a column a phase."""
    ending = "_time_ms"
    times = phases.set_index("phase").filter(regex=f"(?<!^roofline){ending}$")
    by_category = times.T.rename(index=lambda name: str(name).removesuffix(ending))
    return by_category.add_suffix("_ms").rename_axis("category").reset_index()


def counters(trace: Path, json: bool = False, *, reading: ReadingOptions) -> None:
    """Show the queue length of each stream and the bandwidth of copies."""
    from tracelens_ext.timeline.timeline import COUNTERS, copy_bandwidth, queue_length

    work = analyze(trace, shared.AnalysisOptions(reading=reading)).work
    if not len(work):
        raise TraceError(trace, "has no GPU events", "record a part of the run that uses the GPU")
    tables = {"queue_length": queue_length(work), "copy_bandwidth": copy_bandwidth(work)}
    parts = [Part.of(table, tables[table.name]) for table in COUNTERS]
    show(trace_report("Counters", trace, tables), [[f"Trace: {trace}"], *parts], json=json)
