"""Snapshots of PyTorch's memory allocator, as `memory`, `report` and `compare` show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.cli.screen import WIDEST_TEXT, Block, Part, Section, folded
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Report
from tracelens_ext.report.tables.short_names import cut_middle
from tracelens_ext.report.terminal import safe_text
from tracelens_ext.text import counted

if TYPE_CHECKING:
    from rich.console import Console

    from tracelens_ext.settings import ReadingOptions

#: The titles of the tables on the screen.
_TITLES = {
    "memory_peaks": "Peak memory of each device",
    "memory_at_peak": "In use at the peak, by Python frame",
    "memory_at_end": "In use at the end, by Python frame",
    "memory_segments": "Segments of the allocator at the end",
}
_KEPT_COLUMNS = (
    "peak_allocated_bytes",
    "peak_allocated_bytes A",
    "peak_allocated_bytes B",
    "peak_allocated_bytes B - A",
)


def snapshot_report(
    paths: Sequence[Path], reading: ReadingOptions, *, device: int | None = None
) -> Report:
    """Return a report of a snapshot, or of the differences between two.

    Args:
        paths: one or two snapshots.
        reading: how to read them.
        device: the device to report on; None for all devices.
    """
    from tracelens_ext.analysis.memory.snapshot import read_snapshot
    from tracelens_ext.analysis.memory.snapshot_tables import (
        compare_snapshots,
        snapshot_tables,
    )

    if len(paths) > 2:
        raise UsageError("only two snapshots can be compared")
    snapshots = [read_snapshot(path, reading) for path in paths]
    if len(snapshots) == 2:
        labels = ["Snapshot A", "Snapshot B"]
        tables = compare_snapshots(*snapshots)
    else:
        labels = ["Snapshot"]
        tables = snapshot_tables(snapshots[0])
    tables = tables_of_device(
        tables, device, refusal="no event belongs to device", recording="snapshot"
    )
    facts = list(zip(labels, map(str, paths), strict=True))
    notes = [
        f"{snapshot.path}: {counted(snapshot.dropped, 'event')} could not be used."
        for snapshot in snapshots
        if snapshot.dropped
    ]
    return Report(title="Memory", sheets=tables, facts=facts, notes=notes)


def snapshot_blocks(report: Report, top: int) -> Iterator[Block]:
    """Yield the blocks: files, findings, and the first rows of each table."""
    yield [f"{label}: {value}" for label, value in report.facts]
    findings = report.sheets.get("findings")
    if findings is not None:
        yield Section("findings", partial(_finding_lines, findings))
    for name, table in report.sheets.items():
        if name != "findings":
            title = _TITLES.get(name, name)
            yield Part(title, table, rows=top, keep=_KEPT_COLUMNS)


def _finding_lines(findings: pd.DataFrame, console: Console) -> Iterator[Block]:
    """Yield the title, the advice and the place of each finding, one line each."""
    width = min(console.width, WIDEST_TEXT)
    several_devices = findings["device"].nunique() > 1
    for rank, finding in enumerate(findings.to_dict("records"), 1):
        title = str(finding["title"])
        if several_devices:
            title = f"Device {finding['device']}: {title}"
        lines = [""]
        lines += folded(f"{rank}. {title}", width, "   ")
        lines += [f"   {line}" for line in folded(str(finding["advice"]), width - 3)]
        place = safe_text(str(finding["python_frame"]))
        if place:
            lines.append(f"   in {cut_middle(place, width - len('   in '))}")
        yield lines


def tables_of_device(
    tables: Mapping[str, pd.DataFrame],
    device: int | None,
    *,
    refusal: str,
    recording: str,
) -> dict[str, pd.DataFrame]:
    """Return the rows of one device.

    Args:
        tables: `memory_peaks`, which has a row for each device, and other tables.
        device: the device; None for all.
        refusal: the beginning of the message if there is no such device, such as "no event is of
            device".
        recording: what the tables describe, such as "snapshot".
    """
    if device is None:
        return dict(tables)
    devices = tables["memory_peaks"]["device"].tolist()
    if device not in devices:
        known_devices = ", ".join(map(str, devices)) or "none"
        raise UsageError(f"{refusal} {device}; the {recording} has {known_devices}")
    tables_of_device = {}
    for name, table in tables.items():
        is_of_device = table["device"] == device
        tables_of_device[name] = table[is_of_device]
    return tables_of_device
