"""Snapshots of PyTorch's memory allocator, as `memory`, `report` and `compare` show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens_ext.cli.screen import Block, Part
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Report
from tracelens_ext.text import counted

if TYPE_CHECKING:
    from tracelens_ext.settings import ReadingOptions

_KEPT_COLUMNS = (
    "peak_allocated_bytes",
    "peak_allocated_bytes A",
    "peak_allocated_bytes B",
    "peak_allocated_bytes B - A",
)


def snapshot_report(
    paths: Sequence[Path], reading: ReadingOptions, *, device: int | None = None
) -> Report:
    """Return the tables of a snapshot, or of two compared.

    Args:
        paths: One or two.
        reading: How they are read.
        device: Only this device; None for all.
    """
    from tracelens_ext.analysis.memory.snapshot import (
        compare_snapshots,
        read_snapshot,
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
    return Report("Memory", tables, facts, notes)


def snapshot_blocks(report: Report, top: int) -> Iterator[Block]:
    """Yield what is shown of a snapshot's report: the files, then the first rows of each table."""
    yield [f"{label}: {value}" for label, value in report.facts]
    for name, table in report.sheets.items():
        yield Part(name, table, rows=top, keep=_KEPT_COLUMNS)


def tables_of_device(
    tables: Mapping[str, pd.DataFrame],
    device: int | None,
    *,
    refusal: str,
    recording: str,
) -> dict[str, pd.DataFrame]:
    """Return the rows of one device.

    Args:
        tables: `memory_peaks`, which has a row a device, and others.
        device: The device; None for all.
        refusal: What is said when there is no such device: "no event is of device".
        recording: What the tables are of: "snapshot".
    """
    if device is None:
        return dict(tables)
    devices = tables["memory_peaks"]["device"].tolist()
    if device not in devices:
        known = ", ".join(map(str, devices)) or "none"
        raise UsageError(f"{refusal} {device}; the {recording} has {known}")
    return {name: table[table["device"] == device] for name, table in tables.items()}
