"""What `memory` and `compare` show of snapshots of PyTorch's allocator."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_ext.settings import ReadingOptions


def show_snapshots(
    paths: list[Path], top: int, reading: ReadingOptions, *, device: int | None, json: bool
) -> None:
    """Print the tables of a snapshot, or of two compared.

    Raises:
        UsageError: there are more, or no event is of the device.
        TraceError: one cannot be read.
    """
    from tracelens_ext.cli.messages import print_report
    from tracelens_ext.cli.screen import console, show_lines, show_notes
    from tracelens_ext.errors import UsageError
    from tracelens_ext.memory.snapshot import compare_snapshots, read_snapshot, snapshot_tables
    from tracelens_ext.report.report import Report
    from tracelens_ext.report.terminal import frame_table

    if len(paths) > 2:
        raise UsageError("two snapshots are compared, not more")
    read = [read_snapshot(path, reading) for path in paths]
    tables = compare_snapshots(*read) if len(read) == 2 else snapshot_tables(read[0])
    if device is not None:
        if device not in (known := tables["memory_peaks"]["device"].tolist()):
            has = ", ".join(map(str, known)) or "none"
            raise UsageError(f"no event is of device {device}; the snapshot has {has}")
        tables = {name: table[table["device"] == device] for name, table in tables.items()}
    facts: list[tuple[str, object]] = [
        (f"Snapshot {letter}".strip(), str(path))
        for letter, path in zip("AB" if len(read) == 2 else " ", paths, strict=True)
    ]
    notes = [
        f"{snapshot.path}: {snapshot.dropped:,} events cannot be used."
        for snapshot in read
        if snapshot.dropped
    ]
    if json:
        print_report(Report("Memory", tables, facts, notes))
        return
    screen = console()
    show_lines([f"{name}: {path}" for name, path in facts], screen)
    for name, table in tables.items():
        if len(table) and top:
            screen.print()
            screen.print(frame_table(table, title=name, rows=top))
    show_notes(notes, screen)
