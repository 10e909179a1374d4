"""The numbers of a chart on the terminal: categories by run, in seconds and percent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.chart.runs import TOTAL, category_table, grouped
from tracelens_ext.chart.specification import NS_PER_S
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from tracelens_ext.chart.runs import Run

_SIDE_BY_SIDE = 3  # runs whose shares stand beside their times


def show_runs(runs: Sequence[Run], console: Console) -> None:
    """Print a line a run, the table, and the notes."""
    from tracelens_ext.report.html_text import duration_text
    from tracelens_ext.report.terminal import frame_table, safe_text

    for number, run in enumerate(runs, 1):
        elapsed, gpu = duration_text(run.elapsed_ns / 1e6), duration_text(run.gpu_ns / 1e6)
        line = f"{number}: {run.label}; elapsed {elapsed} ({run.elapsed_from}), GPU {gpu}"
        console.print(safe_text(line.replace("\u00a0", " ")), markup=False, highlight=False)
    console.print()
    # Numbers for the runs: their labels would not fit, and could say anything about units.
    console.print(frame_table(_shown(runs), title="Elapsed time by category"))
    for note, numbers in grouped((str(number), run.notes) for number, run in enumerate(runs, 1)):
        console.print(safe_text(f"{numbers}: {note}"), markup=False, highlight=False)
    console.print()


def _shown(runs: Sequence[Run]) -> pd.DataFrame:
    table = category_table(runs)
    short = max(run.elapsed_ns for run in runs) < NS_PER_S
    unit, scale = ("ms", 1e3) if short else ("sec", 1.0)
    total = "total_elapsed" if short else TOTAL
    seconds: dict[str, object] = {}
    shares: dict[str, object] = {}
    for place, run in enumerate(runs):
        column = np.append(table[place].to_numpy(), run.elapsed_ns / NS_PER_S)
        seconds[f"{place + 1} ({unit})"] = scale * column
        shares[f"{place + 1} (%)"] = 100.0 * column / (run.elapsed_ns / NS_PER_S or 1.0)
    # Of many runs the shares come last: what does not fit is left out from the end.
    pairs = zip(seconds.items(), shares.items(), strict=True)
    mixed = [part for pair in pairs for part in pair]
    ordered = mixed if len(runs) <= _SIDE_BY_SIDE else [*seconds.items(), *shares.items()]
    return pd.DataFrame({"category": [*map(str, table.index), total], **dict(ordered)})
