"""`tracelens-ext memory`: what was alive at the peak, and who allocated it."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer

from tracelens_ext.cli import gap_options
from tracelens_ext.cli import options as shared
from tracelens_ext.cli.snapshot import show_snapshots
from tracelens_ext.lazy import pd
from tracelens_ext.settings import ReadingOptions


class MemoryBy(Enum):
    """What blocks of memory are told apart by."""

    operation = "operation"
    module = "module"
    frame = "frame"
    phase = "phase"


_COLUMNS = {
    MemoryBy.operation: ["phase", "operation", "outer_operation"],
    MemoryBy.module: ["phase", "module"],
    MemoryBy.frame: ["phase", "python_frame"],
    MemoryBy.phase: ["phase"],
}
#: Of the largest peak: the host of a job on GPUs allocates a few bytes.
_WORTH_SHOWING = 0.01
#: Of `memory_by_operation` on the terminal; all of them would be too wide.
_CHURN = ["outer_operation", "operation", "allocations", "allocated_bytes", "kept_bytes"]
_CHURN += ["mean_lifetime_us", "frees_within_operation"]
_BLOCKS = ["outer_operation", "bytes", "allocated_at_ms", "lifetime_us", "module", "python_frame"]


def memory(
    trace: shared.Trace,
    by: Annotated[
        MemoryBy,
        typer.Option(
            help="Tell what was alive apart by operation, nn.Module, Python frame, phase."
        ),
    ] = MemoryBy.operation,
    top: Annotated[int, typer.Option("--top", "-t", help="Rows of each table.", min=0)] = 10,
    device: gap_options.Device = None,
    annotation: shared.Annotation = None,
    json: shared.Json = False,
    *,
    reading: ReadingOptions,
) -> None:
    """Show what was alive when the most memory was allocated, and who allocated it."""
    from tracelens_ext.cli.load import analyze
    from tracelens_ext.cli.messages import print_json
    from tracelens_ext.cli.screen import first_lines
    from tracelens_ext.errors import UsageError
    from tracelens_ext.memory.events import has_memory_events
    from tracelens_ext.memory.snapshot import is_snapshot
    from tracelens_ext.memory.usage import memory_notes

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
    if device is not None:
        known = tables["memory_peaks"]["device"].tolist()
        if device not in known:
            has = ", ".join(map(str, known)) or "none"
            raise UsageError(f"no memory event is of device {device}; the trace has {has}")
        tables = {name: table[table["device"] == device] for name, table in tables.items()}
    notes = list(memory_notes(analyzer.memory(annotation)))
    if json:
        print_json("Memory", trace, tables, notes)
    else:
        _show(first_lines(analyzer.work), str(trace), tables, notes, by, top)


def _show(
    first: list[str],
    trace: str,
    tables: dict[str, pd.DataFrame],
    notes: list[str],
    by: MemoryBy,
    top: int,
) -> None:
    from tracelens_ext.cli.screen import console, folded, show_lines, show_notes
    from tracelens_ext.report.terminal import frame_table

    screen = console()
    show_lines([*first, f"Trace: {trace}"], screen)
    parts = {
        f"Alive at the peak, by {by.value}": _alive(tables["memory_at_peak"], _COLUMNS[by]),
        "Allocated most in all": tables["memory_by_operation"][["device", *_CHURN]],
        "Largest blocks": tables["memory_largest"][["device", *_BLOCKS]],
    }
    sizes = tables["memory_at_peak"].groupby("device")["bytes"].sum()
    for row in tables["memory_peaks"].to_dict("records"):
        show_lines(["", *folded(_sentence(row), screen.width)], screen)
        matters = sizes.get(row["device"], 0) >= _WORTH_SHOWING * sizes.max()
        for title, table in parts.items():
            part = table[table["device"] == row["device"]].drop(columns="device")
            if top and matters:
                screen.print()
                keep = ("bytes", "allocated_bytes")
                screen.print(frame_table(part, title=title, rows=top, keep=keep))
    if notes:
        screen.print()
        show_notes(notes, screen)


def _alive(table: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """The table `memory_at_peak`, summed by some of its columns, the largest first."""
    named = table[columns].replace("", "(none)")
    others = table["operation"].str.startswith("(")  # what the trace did not see allocated
    named[columns[-1]] = named[columns[-1]].mask(others, table["operation"])
    sums = table.assign(**named).groupby(["device", *columns], sort=False)
    frame = sums[["blocks", "bytes", "% of peak"]].sum().reset_index()
    frame = frame.sort_values("bytes", ascending=False, kind="stable")
    return frame[["device", *columns[::-1], "blocks", "bytes", "% of peak"]]


def _sentence(row: dict[Any, Any]) -> str:
    """What a row of `memory_peaks` says."""
    from tracelens_ext.report.html_text import bytes_text

    def size(column: str) -> str:
        return bytes_text(int(row[column])).replace("\u00a0", " ")

    where = "The host" if row["device"] < 0 else f"Device {row['device']}"
    when = f"at {row['peak_at_ms']:,.3f} ms"
    when += f", in {row['peak_iteration']}" if row["peak_iteration"] else ""
    if pd.isna(row["peak_allocated_bytes"]):
        return f"{where}: most was allocated {when}; how much is not recorded."
    text = f"{where}: at most {size('peak_allocated_bytes')} allocated, {when}."
    if not pd.isna(row["unused_at_peak_bytes"]):
        text += (
            f" Reserved: {size('peak_reserved_bytes')}; at the peak"
            f" {size('unused_at_peak_bytes')} of it were not allocated (fragmentation)."
        )
    if not pd.isna(change := row["change_per_iteration_bytes"]) and change > 0:
        text += f" From iteration to iteration {size('change_per_iteration_bytes')} more stay."
    return text
