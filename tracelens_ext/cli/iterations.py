"""`tracelens-ext iterations`: what each training step took, and which were odd.

And `tracelens-ext phases`: prefill and decode of a serving engine, its slowest steps, its layers;
`tracelens-ext counters`: how much work waits for each stream, and how fast copies are;
`tracelens-ext memory`: what was alive at the peak, and who allocated it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tracelens_ext.categorize.user_patterns import user_pattern
from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import analyze, show_problems
from tracelens_ext.cli.screen import Block, Part, first_lines, folded, show, trace_report
from tracelens_ext.errors import TraceError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Report
from tracelens_ext.report.tables.units import Shown
from tracelens_ext.report.terminal import name_text
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.analysis.iterations.measurement import IterationTable
    from tracelens_ext.trace.call_tree import CallTree

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
    from tracelens_ext.analysis.iterations.measurement import iteration_table

    pattern = user_pattern(annotation, "annotation")
    analyzer = analyze(trace, analysis)
    table = iteration_table(analyzer.work, pattern)
    if not len(table):
        raise UsageError(_nothing_found(trace, analyzer.tree, annotation))
    frame = table.frame
    statistics = table.statistics
    tables = {"iterations": frame, "iteration_statistics": statistics}
    count = int(statistics["iterations"].max()) if len(statistics) else 0
    title = f"Mean and spread of {count:,} whole iteration{'s' if count > 1 else ''}, ms"
    blocks: list[Block] = [
        *first_lines(analyzer.work, trace),
        Part("Iterations", frame, _shown([*frame]), top),
        Part(title, statistics.head(_MOST_STATISTICS), _STATISTICS),
        lambda console: [_odd_lines(table, console)],
    ]
    show(trace_report("Iterations", trace, tables, table.notes), blocks, json=json)


def _nothing_found(path: Path, tree: CallTree, annotation: str | None) -> str:
    """Say that there are no iterations, and what could be taken for them."""
    from tracelens_ext.analysis.iterations.candidates import likely_iterations

    found = [name for name in likely_iterations(tree, _SUGGESTED) if len(name) <= _MOST_TO_PASTE]
    wanted = "ProfilerStep#N" if annotation is None else f"annotation that matches {annotation!r}"
    if not found:
        return f"{path}: has no {wanted}, nor any other annotation that launches GPU work"
    quoted = ", ".join(map(shlex.quote, found))
    return f"{path}: has no {wanted}; choose others with --annotation REGEX, such as {quoted}"


def _shown(columns: Sequence[str]) -> list[str]:
    """The columns to print; what does not fit is left out from the end."""
    from tracelens_ext.analysis.iterations.measurement import is_category_time

    shown = [c for c in columns if c not in ("odd", "whole", *_SHOWN_LAST)]
    at = next((at for at, column in enumerate(shown) if is_category_time(column)), len(shown))
    return [*shown[:at], *_SHOWN_LAST, *shown[at:]]


def _odd_lines(table: IterationTable, console: Console) -> list[str]:
    """What each odd iteration took, against the median, in lines that fit."""
    from tracelens_ext.analysis.iterations.measurement import ODD_AT_LEAST, ODD_BEYOND

    odd = table.frame[table.frame["odd"] != ""]
    if not len(odd):
        return []
    keys = ["column", "device"] if "device" in table.frame else ["column"]
    medians = table.statistics.set_index(keys)["median"].to_dict()
    told = []
    for row in odd.to_dict("records"):
        where = f", device {row['device']}" if "device" in row else ""
        away = 0.0
        parts = []
        for column in str(row["odd"]).split(", "):
            median = medians[(column, row["device"]) if where else column]
            parts.append(_against(column, row[column], median).replace(" ", "\u00a0"))
            away = max(away, 0.0 if column == "kernels" else abs(row[column] - median))
        if more := len(parts[_MOST_COLUMNS:]):
            parts[_MOST_COLUMNS:] = [f"{more}\u00a0more"]
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
    this = shown.text(value)
    usual = shown.text(median)
    unit = shown.unit
    named = column.removesuffix(f"_{unit.symbol}")
    symbol = f" {unit.symbol}".rstrip()
    return f"{named} {this}{symbol} (median {usual}{symbol})"


#: The columns of the table of phases that a terminal shows, table by table.
_OF_PHASES = {
    "Phases": "phase|steps|context_requests|generation_requests|tokens|gpu_busy_ms"
    "|gpu_ms_per_step|gpu_us_per_token",
    "How busy the GPU was": "phase|busy_%|idle_ms|tokens_per_s|tokens_per_s_without_idle"
    "|attention_%|gemm_%|% of roofline|scheduler_%|sampler_%",
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
    from tracelens_ext.analysis.cuda_graphs.tables import capture_notes
    from tracelens_ext.analysis.serving.phases import phase_notes
    from tracelens_ext.analysis.serving.steps import own_phases

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
    blocks = [*first_lines(analyzer.work, trace), *_parts(tables, top)]
    show(trace_report("Phases", trace, tables, notes), blocks, json=json)


def _parts(tables: Mapping[str, pd.DataFrame], top: int) -> Iterator[Part]:
    phases = tables["phases"]
    layers = tables["layers"]
    for title, names in _OF_PHASES.items():
        yield Part(title, phases, names.split("|"))
    times = phases.set_index("phase").filter(regex="(?<!^roofline)_time_ms$")
    by_category = times.T.rename(index=lambda name: str(name).removesuffix("_time_ms"))
    by_category = by_category.add_suffix("_ms").rename_axis("category").reset_index()
    yield Part("By category", by_category)
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


def counters(trace: Path, json: bool = False, *, reading: ReadingOptions) -> None:
    """Show the queue length of each stream and the bandwidth of copies."""
    from tracelens_ext.analysis.timeline.counters import copy_bandwidth, queue_length

    work = analyze(trace, shared.AnalysisOptions(reading=reading)).work
    if not len(work):
        raise TraceError(trace, "has no GPU events", "record a part of the run that uses the GPU")
    tables = {"queue_length": queue_length(work), "copy_bandwidth": copy_bandwidth(work)}
    parts = [Part.of(name, table) for name, table in tables.items()]
    show(trace_report("Counters", trace, tables), [[f"Trace: {trace}"], *parts], json=json)


By = Literal["operation", "module", "frame", "phase"]
#: What tells apart what was alive, beside its phase.
_BY = {
    "operation": ["operation", "outer_operation"],
    "module": ["module"],
    "frame": ["python_frame"],
}
#: Of the largest peak: the host of a job on GPUs allocates a few bytes.
_WORTH_SHOWING = 0.01


def memory(
    trace: Path,
    by: By = "operation",
    top: int = 10,
    device: int | None = None,
    annotation: str | None = None,
    json: bool = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Show what was alive when the most memory was allocated, and who allocated it.

    Options:
        by: Tell what was alive apart by operation, nn.Module, Python frame, phase.
        top -t 0..: Rows of each table.
    """
    from tracelens_ext.analysis.memory.events import has_memory_events
    from tracelens_ext.analysis.memory.snapshot import is_snapshot
    from tracelens_ext.analysis.memory.usage import memory_notes

    if is_snapshot(trace):
        show_snapshots([trace], top, reading, device=device, json=json)
        return
    analyzer = analyze(trace, shared.AnalysisOptions(kernel_categories=False, reading=reading))
    if not has_memory_events(analyzer.trace):
        raise UsageError(
            f"{trace}: has no memory events; record it with torch.profiler.profile(...,"
            " profile_memory=True)"
        )
    tables = {
        "memory_peaks": analyzer.get_df_memory_peaks(annotation),
        "memory_at_peak": analyzer.get_df_memory_at_peak(annotation),
        "memory_by_operation": analyzer.get_df_memory_by_operation(annotation),
        "memory_largest": analyzer.get_df_memory_largest(top),
    }
    tables = _of_device(tables, device, "no memory event is of device", "trace")
    blocks = [*first_lines(analyzer.work, trace), *_devices(tables, by, top)]
    notes = memory_notes(analyzer.memory(annotation))
    show(trace_report("Memory", trace, tables, notes), blocks, json=json)


def show_snapshots(
    paths: list[Path], top: int, reading: ReadingOptions, *, device: int | None = None, json: bool
) -> None:
    """Print the tables of a snapshot of PyTorch's allocator, or of two compared."""
    from tracelens_ext.analysis.memory.snapshot import (
        compare_snapshots,
        read_snapshot,
        snapshot_tables,
    )

    if len(paths) > 2:
        raise UsageError("two snapshots are compared, not more")
    read = [read_snapshot(path, reading) for path in paths]
    tables = compare_snapshots(*read) if len(read) == 2 else snapshot_tables(read[0])
    tables = _of_device(tables, device, "no event is of device", "snapshot")
    names = ["Snapshot"] if len(read) == 1 else ["Snapshot A", "Snapshot B"]
    facts = [*zip(names, map(str, paths), strict=True)]
    notes = [
        f"{each.path}: {each.dropped:,} events cannot be used." for each in read if each.dropped
    ]
    keep = [f"peak_allocated_bytes{end}" for end in ("", " A", " B", " B - A")]
    parts = [Part(name, table, rows=top, keep=keep) for name, table in tables.items()]
    report = Report("Memory", tables, facts, notes)
    show(report, [[": ".join(fact) for fact in facts], *parts], json=json)


def _of_device(
    tables: dict[str, pd.DataFrame], device: int | None, none: str, file: str
) -> dict[str, pd.DataFrame]:
    """The rows of one device, if only one is asked about."""
    if device is None:
        return tables
    if device not in (known := tables["memory_peaks"]["device"].tolist()):
        has = ", ".join(map(str, known)) or "none"
        raise UsageError(f"{none} {device}; the {file} has {has}")
    return {name: table[table["device"] == device] for name, table in tables.items()}


def _devices(tables: dict[str, pd.DataFrame], by: By, top: int) -> Iterator[Block]:
    """A sentence and tables for each device."""
    title = f"Alive at the peak, by {by}"
    sizes = tables["memory_at_peak"].groupby("device")["bytes"].sum()
    alive = _alive(tables["memory_at_peak"], ["phase", *_BY.get(by, [])])
    for row in tables["memory_peaks"].to_dict("records"):
        yield from ("", _sentence(row))
        if sizes.get(device := row["device"], 0) >= _WORTH_SHOWING * sizes.max():
            own = alive[alive["device"] == device].drop(columns="device")
            yield Part(title, own, rows=top, keep=("bytes",))
            for name in ("memory_by_operation", "memory_largest"):
                part = Part.of(name, tables[name][tables[name]["device"] == device], top)
                yield replace(part, keep=("allocated_bytes", "bytes"))


def _alive(table: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """The table `memory_at_peak`, summed by some of its columns, the largest first."""
    named = table[columns].replace("", "(none)")
    numbers = ["blocks", "bytes", "% of peak"]
    others = table["operation"].str.startswith("(")  # what the trace did not see allocated
    named[columns[-1]] = named[columns[-1]].mask(others, table["operation"])
    sums = table.assign(**named).groupby(["device", *columns], sort=False)[numbers].sum()
    frame = sums.sort_values("bytes", ascending=False, kind="stable").reset_index()
    return frame[["device", *columns[::-1], *numbers]]


def _sentence(row: Mapping[Any, Any]) -> str:
    """What a row of `memory_peaks` says."""
    from tracelens_ext.report.html_figures import bytes_text

    def size(column: str) -> str:
        return bytes_text(row[column]).replace("\u00a0", " ")

    where = "The host" if row["device"] < 0 else f"Device {row['device']}"
    when = f"at {row['peak_at_ms']:,.3f} ms"
    when += f", in {row['peak_iteration']}" if row["peak_iteration"] else ""
    if pd.isna(row["peak_allocated_bytes"]):
        return f"{where}: most was allocated {when}; how much is not recorded."
    text = f"{where}: at most {size('peak_allocated_bytes')} allocated, {when}."
    if not pd.isna(row["unused_at_peak_bytes"]):
        text += f" Reserved: {size('peak_reserved_bytes')}; at the peak"
        text += f" {size('unused_at_peak_bytes')} of it were not allocated (fragmentation)."
    if not pd.isna(change := row["change_per_iteration_bytes"]) and change > 0:
        text += f" From iteration to iteration {size('change_per_iteration_bytes')} more stay."
    return text
