"""A comparison of traces on a terminal, as `compare` and `report --compare` show it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tracelens_ext.cli.screen import Block, Part
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Report

if TYPE_CHECKING:
    from tracelens_ext.compare.comparison import Comparison

#: The tables that the screen shows, in this order, with their titles.
_TITLES = {
    "wall_time": "Wall time",
    "history": "Compared with the median of earlier runs",
    "findings": "Findings",
    "timeline": "GPU timeline",
    "phases": "GPU time by serving phase, whole traces",
    "categories": "GPU time by category",
    "operations": "GPU time by CPU operation",
    "kernels": "GPU time by kernel",
    "places": "GPU time by place in the program",
    "roofline": "Time lost against the roofline",
}
_LONG = frozenset({"history", "operations", "kernels", "places", "roofline"})
#: How the names of columns end that follow from other columns.
_REDUNDANT = (
    "ratio",
    "_count",
    "_calls",
    "_kernels",
    "by_calls_ms",
    "backward",
    "only_in",
)
#: The same with more than two traces, where only the percentages have room.
_REDUNDANT_OF_SEVERAL = ("difference_ms", "by_speed_ms")


def comparison_blocks(
    comparison: Comparison, report: Report, top: int
) -> Iterator[Block]:
    """Yield the blocks: the verdict, the traces, and the tables."""
    from tracelens_ext.compare.notes import time_basis

    facts = dict(report.facts)
    yield str(facts["Verdict"])
    if not comparison.history:
        baseline = comparison.letters[0]
        for letter in comparison.letters:
            role = f"{letter} (baseline)" if letter == baseline else letter
            line = f"{role}: {facts[role]}; devices: {facts[f'{letter} devices']};"
            yield f"{line} iterations: {facts[f'{letter} iterations']}"
    for name, title in _TITLES.items():
        frame = report.sheets.get(name)
        if frame is None or not len(frame):
            continue
        if name == "timeline" and _repeats_wall_time(report):
            continue
        rows = frame.head(top) if name in _LONG else frame
        if name != "phases":
            title = f"{title}, {time_basis(comparison)}"
        yield Part(title, _shown(rows), keep=("difference_ms",))


def _repeats_wall_time(report: Report) -> bool:
    """Return True if the timeline of single devices repeats the wall time."""
    return "wall_time" in report.sheets and "device" not in report.sheets["timeline"]


def _shown(frame: pd.DataFrame) -> pd.DataFrame:
    """Leave out redundant columns, and put the simplified kernel names first."""
    from tracelens_ext.categorize.kernel_names import short_name

    redundant = list(_REDUNDANT)
    if "difference_ms" not in frame:
        redundant += _REDUNDANT_OF_SEVERAL
    columns = [column for column in frame if not str(column).endswith(tuple(redundant))]
    table = frame[columns]
    if "path" in table:
        table = _with_operation(table)
    if "kernel_name" not in table:
        return table
    names = [short_name(name) for name in table["kernel_name"]]
    return table.drop(columns="kernel_category", errors="ignore").assign(
        kernel_name=names
    )


def _with_operation(frame: pd.DataFrame) -> pd.DataFrame:
    """Put the path of each place first, then its operation, as each trace names it."""
    sides = [column for column in frame if str(column).endswith("_operation")]
    operations = []
    for names in frame[sides].fillna("").to_numpy().tolist():
        distinct_names = dict.fromkeys(name for name in names if name)
        operations.append(" → ".join(distinct_names))
    table = frame.drop(columns=sides + ["path"])
    table.insert(0, "operation", operations)
    table.insert(0, "path", frame["path"])
    return table
