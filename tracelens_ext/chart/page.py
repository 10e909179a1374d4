"""The page of a chart: a stacked bar for each run, the numbers under it, and all kernels."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from tracelens_ext.chart.runs import (
    ELAPSED,
    TOTAL,
    Run,
    category_table,
    grouped,
    input_table,
    kernel_table,
)
from tracelens_ext.chart.specification import NS_PER_S
from tracelens_ext.lazy import pd
from tracelens_ext.report.colours import colour_of
from tracelens_ext.report.excel_text import cleaned
from tracelens_ext.report.html import render_page, require_html_extra
from tracelens_ext.report.html_figures import (
    Figure,
    Plotly,
    amount_text,
    bar_piece,
    bars_spec,
    duration_text,
    elided,
    percent_text,
    plotly_lines,
    plotly_text,
)
from tracelens_ext.report.html_tables import FIRST_ROWS, Card, Table, page_tables
from tracelens_ext.report.manifest import (
    check_folder,
    check_output,
    unfinished_note,
    write_folder,
    written_beside,
)
from tracelens_ext.tables.units import Quantity, Shown, Unit
from tracelens_ext.trace import Int64Array

DEFAULT_TITLE: Final = "Where the elapsed time went"
_BY_CATEGORY, _INPUTS, _KERNELS = "elapsed_sec_by_category", "inputs", "kernels"
_DESCRIPTIONS: Final = {
    _BY_CATEGORY: "Elapsed seconds by category and run; empty where a run has no such kernel",
    _INPUTS: "What each bar is of, and where its elapsed time was taken from",
    _KERNELS: "Which kernels make up each category; the time of one is that in which no GPU event"
    " that started before it ran. result.csv has the same rows",
}
_MOST_CARDS: Final = 6
_WIDE, _NARROW = 62, 40  # characters of a bar's name on wide and narrow screens
_MS: Final = 1e3
#: Of bars that differ by this factor the short ones show nothing but their length.
_MUCH_LONGER: Final = 3


def write_page(path: str | os.PathLike[str], runs: Sequence[Run], *, title: str = "") -> None:
    """Write `result.html`, self-contained."""
    require_html_extra()
    table = category_table(runs)
    pool: dict[str, int] = {}
    pivoted = table.set_axis([run.label for run in runs], axis=1)
    pivoted.loc[TOTAL] = [run.elapsed_ns / NS_PER_S for run in runs]
    by_category = {_BY_CATEGORY: pivoted.rename_axis("Category").reset_index()}
    (found,), _ = page_tables(by_category, _DESCRIPTIONS, pool)
    pivot = replace(found, key="table-by-category")
    kernels = kernel_table(runs).sort_values(
        ELAPSED, ascending=False, kind="stable", ignore_index=True
    )
    others, cut = page_tables({_INPUTS: input_table(runs), _KERNELS: kernels}, _DESCRIPTIONS, pool)
    tables = [_with_digits(table, _decimals(runs)) for table in (pivot, *others)]
    figures = [_figure(table, runs, title)]
    if (longest := max(run.elapsed_ns for run in runs)) > _MUCH_LONGER * min(
        run.elapsed_ns or longest for run in runs
    ):
        figures.append(_figure(table, runs, title, percent=True))
    told = grouped((run.label, [*run.warnings, *run.notes]) for run in runs)
    notes = [*(f"{labels}: {note}" for note, labels in told), *cut]
    with written_beside(path) as beside:
        page = render_page(
            title=cleaned(title or DEFAULT_TITLE),
            subtitle="",
            cards=[_card(run) for run in runs] if len(runs) <= _MOST_CARDS else [],
            notes=[cleaned(note) for note in notes],
            figures=figures,
            facts=[],
            tables=tables,
            sheet_keys={_BY_CATEGORY: pivot.key},
            pool=pool,
            # The whole pivot table is in sight, its total row too.
            first_rows=max(FIRST_ROWS, pivot.total),
        )
        beside.write_text(page, encoding="utf-8", newline="\n")


def _figure(
    table: pd.DataFrame, runs: Sequence[Run], title: str, *, percent: bool = False
) -> Figure:
    """A bar a run, a piece a category: in seconds, as the tables, or in percent of the bar."""
    wholes = [run.elapsed_ns / 1e6 for run in runs]
    scales = [100 / (ms or 1.0) if percent else 1 / _MS for ms in wholes]
    bars = [plotly_lines(run.label) for run in runs]
    instances = [_by_category(run, run.instances) for run in runs]
    pieces: list[Plotly] = []
    legend = []
    for name, row in table.iterrows():
        amounts = [0.0 if math.isnan(value) else value * _MS for value in row.tolist()]
        if not any(amounts):
            continue
        category = str(name)
        legend.append((cleaned(category), colour_of(category)))
        values = [ms * by for ms, by in zip(amounts, scales, strict=True)]
        found = [of_run[category] for of_run in instances]
        counts = [f", {n:,} GPU event{'s' * (n != 1)}" if n else "" for n in found]
        hover = [
            f"<b>{plotly_text(elided(category, _WIDE))}</b><br>"
            f"{plotly_text(amount_text(ms, 'ms', whole))}{count}<br>{bar}"
            for ms, whole, bar, count in zip(amounts, wholes, bars, counts, strict=True)
        ]
        inside = map(percent_text if percent else _short, values)
        pieces.append(bar_piece(len(pieces), values, colour_of(category), hover, inside))
    return Figure(
        key="chart-share-of-time" if percent else "chart-elapsed-time",
        title=cleaned(
            ("Share of elapsed time" if percent else "Elapsed time")
            + (f" for {title}" if title else " by category")
        ),
        summary="; ".join(f"{elided(run.label, _WIDE)}: {_in_words(run)}" for run in runs[:4]),
        legend=legend,
        sheet=_BY_CATEGORY,
        spec=bars_spec(
            pieces,
            [elided(run.label, _WIDE) for run in runs],
            [elided(run.label, _NARROW) for run in runs],
            [f"{_short(whole / _MS)}\u00a0s" for whole in wholes],
            "%" if percent else "s",
        ),
    )


def _with_digits(table: Table, decimals: int) -> Table:
    """A table whose seconds, of categories all numbers, have so many digits after the point."""
    shown = Shown(Unit(Quantity.TIME, "s", decimals))
    columns = [
        replace(column, shown=shown)
        if column.header.endswith("(sec)") or (table.name, column.kind) == (_BY_CATEGORY, "number")
        else column
        for column in table.columns
    ]
    return replace(table, columns=columns)


def _decimals(runs: Sequence[Run]) -> int:
    """Digits after the point that show a thousandth of a percent of the longest run."""
    longest = max(run.elapsed_ns for run in runs) / NS_PER_S
    return min(max(5 - math.floor(math.log10(longest)), 2), 9) if longest else 2


def _card(run: Run) -> Card:
    label = cleaned(run.label)
    return Card(
        f"{duration_text(run.elapsed_ns / 1e6)} elapsed",
        elided(label, _WIDE),
        _in_words(run),
        colour_of(_largest(run)[0]),
        label,  # in the smaller type of names
    )


def _in_words(run: Run) -> str:
    """The GPU's part and the largest category."""
    category, ns = _largest(run)
    parts = [("GPU", run.gpu_ns), (elided(category, _NARROW), ns)]
    return ", ".join(
        f"{name} {amount_text(part / 1e6, 'ms', run.elapsed_ns / 1e6)}" for name, part in parts
    )


def _largest(run: Run) -> tuple[str, int]:
    """The GPU category that takes most of a run."""
    return _by_category(run, run.gpu_ns_of).most_common(1)[0]


def _by_category(run: Run, values: Int64Array) -> Counter[str]:
    found: Counter[str] = Counter()
    for category, value in zip(run.category, values.tolist(), strict=True):
        found[category] += value
    return found


def _short(value: float) -> str:
    """A number for a piece or a bar, three digits of it."""
    decimals = 2 - math.floor(math.log10(value)) if 0 < value < 1 else 2
    return f"{value:,.{min(decimals, 9) if value < 10 else 1 if value < 100 else 0}f}"


_STEM: Final = "result"
PAGE: Final = f"{_STEM}.html"
CSV: Final = f"{_STEM}.csv"


def check_results(
    folder: str | os.PathLike[str], inputs: Sequence[Path], *, force: bool = False
) -> list[str]:
    """Check that a chart may be written to a folder; answer a line if a run left it unfinished.

    `inputs` are never written over, whatever `force` says.
    """
    require_html_extra()
    check_output(Path(folder) / PAGE, inputs, force=force)
    check_folder(folder, [CSV], inputs, force=force)
    return unfinished_note(folder)


def write_results(
    folder: str | os.PathLike[str], runs: Sequence[Run], *, title: str = ""
) -> list[Path]:
    """Write the chart and its numbers into a folder; answer the page and the CSV file."""
    from tracelens_ext.report.formats import write_csv

    writers: dict[str, Callable[[Path], object]] = {
        PAGE: partial(write_page, runs=runs, title=title),
        CSV: partial(write_csv, frame=kernel_table(runs)),
    }
    # A folder of a report's tables may be the same one: its files stay, and stay known.
    return write_folder(folder, writers, keep=True)
