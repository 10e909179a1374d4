"""`tracelens-ext memory`: shows what was alive at the memory peak, and what allocated it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import typer

from tracelens_ext.cli.options import (
    AnalysisOptions,
    Annotation,
    Device,
    Json,
    ReadingFlags,
    TraceArgument,
)
from tracelens_ext.cli.screen import Block, Part, first_lines, show, trace_report
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import Command
from tracelens_ext.lazy import pd

By = Literal["operation", "module", "frame", "phase"]

#: The columns, besides the phase, by which live memory is divided.
_OWNER_COLUMNS = {
    "operation": ["operation", "outer_operation"],
    "module": ["module"],
    "frame": ["python_frame"],
    "phase": [],
}
#: Devices whose peak is a smaller share of the largest peak are left out. In a job on GPUs, for
#: example, the CPU allocates a few bytes.
_MIN_SHARE_OF_PEAK = 0.01
_TABLES_OF_DEVICE = ("memory_by_operation", "memory_largest")


def memory(
    trace: TraceArgument,
    by: Annotated[
        By,
        typer.Option(
            help="Group the memory in use at the peak by operation, nn.Module, Python "
            "frame or phase."
        ),
    ] = "operation",
    top: Annotated[
        int, typer.Option("--top", "-t", min=0, help="Rows of each table.")
    ] = 10,
    device: Device = None,
    annotation: Annotation = None,
    json: Json = False,
    *,
    reading: ReadingFlags,
) -> None:
    """Show what used memory at the peak, and what allocated it."""
    from tracelens_ext.analysis.memory.events import has_memory_events
    from tracelens_ext.analysis.memory.snapshot import may_be_snapshot
    from tracelens_ext.analysis.memory.usage import memory_notes
    from tracelens_ext.cli.load import analyze, computed_tables, recording_notes
    from tracelens_ext.cli.snapshots import (
        snapshot_blocks,
        snapshot_report,
        tables_of_device,
    )

    if may_be_snapshot(trace):
        report = snapshot_report([trace], reading, device=device)
        show(report, snapshot_blocks(report, top), json=json)
        return
    analysis = AnalysisOptions(kernel_categories=False, reading=reading)
    analyzer = analyze(trace, analysis)
    if not has_memory_events(analyzer.trace):
        raise UsageError(
            f"{trace}: has no memory events; record it with torch.profiler.profile(...,"
            " profile_memory=True)"
        )
    makers = {
        "memory_peaks": lambda: analyzer.get_df_memory_peaks(annotation),
        "memory_at_peak": lambda: analyzer.get_df_memory_at_peak(annotation),
        "memory_by_operation": lambda: analyzer.get_df_memory_by_operation(annotation),
        "memory_largest": lambda: analyzer.get_df_memory_largest(top),
    }
    tables = tables_of_device(
        computed_tables(analyzer.failures, makers),
        device,
        refusal="no memory event belongs to device",
        recording="trace",
    )
    notes = list(memory_notes(analyzer.memory(annotation)))
    notes += recording_notes(analyzer, for_json=json)
    blocks = first_lines(analyzer.gpu_events, trace) + list(
        _device_blocks(tables, by, top)
    )
    show(
        trace_report(title="Memory", trace=trace, tables=tables, notes=notes),
        blocks,
        json=json,
    )


def _device_blocks(
    tables: Mapping[str, pd.DataFrame], by: By, top: int
) -> Iterator[Block]:
    """Yield a sentence and tables for each device."""
    at_peak = tables.get("memory_at_peak")
    peaks = tables.get("memory_peaks")
    if at_peak is None or peaks is None:
        return
    title = f"In use at the peak, by {by}"
    bytes_of_device = at_peak.groupby("device")["bytes"].sum()
    min_bytes = _MIN_SHARE_OF_PEAK * bytes_of_device.max()
    alive = _alive_by_owner(at_peak, ["phase"] + _OWNER_COLUMNS[by])
    for peak in peaks.to_dict("records"):
        device = peak["device"]
        yield ""
        yield _peak_sentence(peak)
        if bytes_of_device.get(device, 0) < min_bytes:
            continue
        alive_on_device = alive[alive["device"] == device].drop(columns="device")
        yield Part(title, alive_on_device, rows=top, keep=("bytes",))
        for name in _TABLES_OF_DEVICE:
            if name in tables:
                table = tables[name]
                part = Part.of(name, table[table["device"] == device], top)
                yield replace(part, keep=("allocated_bytes", "bytes"))


def _alive_by_owner(table: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Sum the table `memory_at_peak` by some of its columns; the largest sum comes first."""
    names = table[columns].replace("", "(none)")
    # Memory whose allocation is not in the trace has a name such as "(before the recording)".
    is_special = table["operation"].str.startswith("(")
    last = columns[-1]
    names[last] = names[last].mask(is_special, table["operation"])
    numbers = ["blocks", "bytes", "% of peak"]
    groups = table.assign(**names).groupby(["device"] + columns, sort=False)
    sums = groups[numbers].sum().sort_values("bytes", ascending=False, kind="stable")
    return sums.reset_index()[["device"] + columns[::-1] + numbers]


def _peak_sentence(peak: Mapping[Any, Any]) -> str:
    """Return the sentence for a row of `memory_peaks`."""
    from tracelens_ext.report.html_texts import bytes_text

    def size(column: str) -> str:
        return bytes_text(peak[column]).replace("\u00a0", " ")

    place = "The host" if peak["device"] < 0 else f"Device {peak['device']}"
    moment = f"at {peak['peak_at_ms']:,.3f} ms"
    if peak["peak_iteration"]:
        moment += f", in {peak['peak_iteration']}"
    if pd.isna(peak["peak_allocated_bytes"]):
        return f"{place}: memory in use peaked {moment}; the amount was not recorded."
    text = f"{place}: at most {size('peak_allocated_bytes')} allocated, {moment}."
    if not pd.isna(peak["unused_at_peak_bytes"]):
        text += f" {size('peak_reserved_bytes')} were reserved; at the peak,"
        text += (
            f" {size('unused_at_peak_bytes')} of that was not allocated "
            "(fragmentation)."
        )
    change = peak["change_per_iteration_bytes"]
    if not pd.isna(change) and change > 0:
        text += (
            f" Each iteration leaves {size('change_per_iteration_bytes')} more "
            "allocated."
        )
    return text


COMMAND = Command(
    name="memory",
    summary="Show what used memory at the peak, and what allocated it.",
    function=memory,
    group="Inspect",
    examples=(
        "memory trace.json.gz",
        "memory trace.json.gz --by module",
        "memory snapshot.pickle --top 20",
    ),
)
