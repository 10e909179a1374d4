"""`tracelens-ext memory`: what was alive at the peak, and who allocated it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import analyze
from tracelens_ext.cli.screen import Block, Part, first_lines, show, trace_report
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Report
from tracelens_ext.settings import ReadingOptions

By = Literal["operation", "module", "frame", "phase"]
_COLUMNS: dict[By, list[str]] = {
    "operation": ["phase", "operation", "outer_operation"],
    "module": ["phase", "module"],
    "frame": ["phase", "python_frame"],
    "phase": ["phase"],
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
    screen: shared.Screen,
) -> None:
    """Show what was alive when the most memory was allocated, and who allocated it.

    Options:
        by: Tell what was alive apart by operation, nn.Module, Python frame, phase.
        top -t 0..: Rows of each table.
    """
    from tracelens_ext.memory.events import has_memory_events
    from tracelens_ext.memory.snapshot import is_snapshot
    from tracelens_ext.memory.usage import memory_notes

    if is_snapshot(trace):
        show_snapshots([trace], top, reading, screen, device=device, json=json)
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
    report = trace_report("Memory", trace, tables, memory_notes(analyzer.memory(annotation)))
    blocks = [*first_lines(analyzer.work, trace), *_devices(tables, by, top)]
    show(report, blocks, json=json, all_notes=screen.notes)


def show_snapshots(
    paths: list[Path],
    top: int,
    reading: ReadingOptions,
    screen: shared.Screen,
    *,
    device: int | None = None,
    json: bool,
) -> None:
    """Print the tables of a snapshot of PyTorch's allocator, or of two compared."""
    from tracelens_ext.memory.snapshot import compare_snapshots, read_snapshot, snapshot_tables

    if len(paths) > 2:
        raise UsageError("two snapshots are compared, not more")
    read = [read_snapshot(path, reading) for path in paths]
    tables = compare_snapshots(*read) if len(read) == 2 else snapshot_tables(read[0])
    tables = _of_device(tables, device, "no event is of device", "snapshot")
    names = ["Snapshot"] if len(read) == 1 else ["Snapshot A", "Snapshot B"]
    facts: list[tuple[str, object]] = list(zip(names, map(str, paths), strict=True))
    unused = [each for each in read if each.dropped]
    notes = [f"{each.path}: {each.dropped:,} events cannot be used." for each in unused]
    lines = [f"{name}: {path}" for name, path in facts]
    keep = [f"peak_allocated_bytes{end}" for end in ("", " A", " B", " B - A")]
    parts = [Part(name, table, rows=top, keep=keep) for name, table in tables.items()]
    show(Report("Memory", tables, facts, notes), [lines, *parts], json=json, all_notes=screen.notes)


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
    alive = _alive(tables["memory_at_peak"], _COLUMNS[by])
    for row in tables["memory_peaks"].to_dict("records"):
        yield from ("", _sentence(row))
        if sizes.get(device := row["device"], 0) >= _WORTH_SHOWING * sizes.max():
            own = alive[alive["device"] == device].drop(columns="device")
            yield Part(title, own, rows=top, keep=("bytes",))
            kept = {"memory_by_operation": "allocated_bytes", "memory_largest": "bytes"}
            for name, column in kept.items():
                part = Part.of(name, tables[name][tables[name]["device"] == device], top)
                yield replace(part, keep=(column,))


def _alive(table: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """The table `memory_at_peak`, summed by some of its columns, the largest first."""
    named = table[columns].replace("", "(none)")
    others = table["operation"].str.startswith("(")  # what the trace did not see allocated
    named[columns[-1]] = named[columns[-1]].mask(others, table["operation"])
    sums = table.assign(**named).groupby(["device", *columns], sort=False)
    frame = sums[["blocks", "bytes", "% of peak"]].sum().reset_index()
    frame = frame.sort_values("bytes", ascending=False, kind="stable")
    return frame[["device", *columns[::-1], "blocks", "bytes", "% of peak"]]


def _sentence(row: Mapping[Any, Any]) -> str:
    """What a row of `memory_peaks` says."""
    from tracelens_ext.report.html_figures import bytes_text

    def size(column: str) -> str:
        return bytes_text(int(row[column])).replace("\u00a0", " ")

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
