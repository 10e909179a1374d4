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

from tracelens_ext.compare.engine_chart import runs as measured
from tracelens_ext.compare.engine_chart.runs import EngineRun
from tracelens_ext.compare.engine_chart.specification import NS_PER_S
from tracelens_ext.lazy import pd
from tracelens_ext.report import html_figures as spelled
from tracelens_ext.report.colors import colour_of
from tracelens_ext.report.excel_text import cleaned
from tracelens_ext.report.html import render_page, require_html_extra
from tracelens_ext.report.html_figures import Figure, Plotly, bar_piece, bars_spec
from tracelens_ext.report.html_tables import FIRST_ROWS, Card, HtmlTable, page_tables
from tracelens_ext.report.manifest import (
    check_folder,
    check_output,
    unfinished_note,
    write_folder,
    written_beside,
)
from tracelens_ext.report.tables.units import Quantity, Shown, Unit
from tracelens_ext.trace import Int64Array

DEFAULT_TITLE: Final = "Where the elapsed time went"
_BY_CATEGORY = "elapsed_sec_by_category"
_INPUTS = "inputs"
_KERNELS = "kernels"
_DESCRIPTIONS: Final = {
    _BY_CATEGORY: "Elapsed seconds by category and run; empty where a run has no such kernel",
    _INPUTS: "What each bar is of, and where its elapsed time was taken from",
    _KERNELS: "Which kernels make up each category; the time of one is that in which no GPU event"
    " that started before it ran. result.csv has the same rows",
}
_MOST_CARDS: Final = 6
# characters of a bar's name on wide and narrow screens
_WIDE = 62
_NARROW = 40
_MS: Final = 1e3
#: Of bars that differ by this factor the short ones show nothing but their length.
_MUCH_LONGER: Final = 3


def write_page(path: str | os.PathLike[str], runs: Sequence[EngineRun], *, title: str = "") -> None:
    """Write `result.html`, self-contained."""
    require_html_extra()
    by_run = measured.category_table(runs)
    labels = [run.label for run in runs]
    pool: dict[str, int] = {}
    whole = by_run.set_axis(labels, axis=1)
    whole.loc[measured.TOTAL] = [run.elapsed_ns / NS_PER_S for run in runs]
    by_category = {_BY_CATEGORY: whole.rename_axis("Category").reset_index()}
    pivots = page_tables(by_category, _DESCRIPTIONS, pool=pool)
    pivot = replace(pivots.tables[_BY_CATEGORY], key="table-by-category")
    kernels = measured.kernel_table(runs).sort_values(
        measured.ELAPSED, ascending=False, kind="stable"
    )
    sheets = {_INPUTS: measured.input_table(runs), _KERNELS: kernels.reset_index(drop=True)}
    others = page_tables(sheets, _DESCRIPTIONS, pool=pool)
    elapsed = [run.elapsed_ns for run in runs]
    figures = [_figure(by_run, runs, title)]
    if max(elapsed) > _MUCH_LONGER * min(ns or max(elapsed) for ns in elapsed):
        figures.append(_figure(by_run, runs, title, percent=True))
    told = measured.grouped((run.label, [*run.warnings, *run.notes]) for run in runs)
    longest_s = max(elapsed) / NS_PER_S
    notes = [*(f"{labels}: {note}" for note, labels in told), *others.notes]
    with written_beside(path) as beside:
        page = render_page(
            title=cleaned(title or DEFAULT_TITLE),
            subtitle="",
            cards=[_card(run) for run in runs] if len(runs) <= _MOST_CARDS else [],
            notes=[cleaned(note) for note in notes],
            figures=figures,
            facts=[],
            tables=[_with_digits(table, longest_s) for table in (pivot, *others.tables.values())],
            sheet_keys={_BY_CATEGORY: pivot.key},
            pool=pool,
            # The whole pivot table is in sight, its total row too.
            first_rows=max(FIRST_ROWS, pivot.total),
        )
        beside.write_text(page, encoding="utf-8", newline="\n")


def _figure(
    table: pd.DataFrame, runs: Sequence[EngineRun], title: str, *, percent: bool = False
) -> Figure:
    """A bar a run, a piece a category: in seconds, as the tables, or in percent of the bar."""
    wholes = [run.elapsed_ns / 1e6 for run in runs]
    bars = [spelled.plotly_lines(run.label) for run in runs]
    instances = [_by_category(run, run.instances) for run in runs]
    inside = spelled.percent_text if percent else _short
    pieces: list[Plotly] = []
    legend = []
    rows = (table.fillna(0.0).to_numpy() * _MS).tolist()
    for category, amounts in zip(map(str, table.index), rows, strict=True):
        if not any(amounts):
            continue
        legend.append((cleaned(category), colour_of(category)))
        name = spelled.plotly_text(spelled.elided(category, _WIDE))
        values = []
        hover = []
        for ms, whole, bar, of_run in zip(amounts, wholes, bars, instances, strict=True):
            events = of_run[category]
            count = f", {events:,} GPU event{'s' * (events != 1)}" if events else ""
            amount = spelled.plotly_text(spelled.amount_text(ms, "ms", whole))
            hover.append(f"<b>{name}</b><br>{amount}{count}<br>{bar}")
            values.append(ms * (100 / (whole or 1.0) if percent else 1 / _MS))
        pieces.append(
            bar_piece(len(pieces), values, colour_of(category), hover, map(inside, values))
        )
    what = "Share of elapsed time" if percent else "Elapsed time"
    return Figure(
        key="chart-share-of-time" if percent else "chart-elapsed-time",
        title=cleaned(f"{what} for {title}" if title else f"{what} by category"),
        summary="; ".join(
            f"{spelled.elided(run.label, _WIDE)}: {_in_words(run)}" for run in runs[:4]
        ),
        legend=legend,
        sheet=_BY_CATEGORY,
        spec=bars_spec(
            pieces,
            [spelled.elided(run.label, _WIDE) for run in runs],
            [spelled.elided(run.label, _NARROW) for run in runs],
            [f"{_short(whole / _MS)}\u00a0s" for whole in wholes],
            "%" if percent else "s",
        ),
    )


def _with_digits(table: HtmlTable, longest: float) -> HtmlTable:
    """A table whose seconds, of categories all numbers, show 0.001 % of so many seconds."""
    decimals = min(max(5 - math.floor(math.log10(longest)), 2), 9) if longest else 2
    shown = Shown(Unit(Quantity.TIME, "s", decimals))
    columns = [
        replace(column, shown=shown)
        if column.header.endswith("(sec)") or (table.name, column.kind) == (_BY_CATEGORY, "number")
        else column
        for column in table.columns
    ]
    return replace(table, columns=columns)


def _card(run: EngineRun) -> Card:
    label = cleaned(run.label)
    elapsed = spelled.duration_text(run.elapsed_ns / 1e6)
    colour = colour_of(_largest(run)[0])  # the label again, in the smaller type of names
    return Card(f"{elapsed} elapsed", spelled.elided(label, _WIDE), _in_words(run), colour, label)


def _in_words(run: EngineRun) -> str:
    """The GPU's part and the largest category."""
    category, ns = _largest(run)
    return ", ".join(
        f"{name} {spelled.amount_text(part / 1e6, 'ms', run.elapsed_ns / 1e6)}"
        for name, part in (("GPU", run.gpu_ns), (spelled.elided(category, _NARROW), ns))
    )


def _largest(run: EngineRun) -> tuple[str, int]:
    """The GPU category that takes most of a run."""
    return _by_category(run, run.gpu_ns_of).most_common(1)[0]


def _by_category(run: EngineRun, values: Int64Array) -> Counter[str]:
    found: Counter[str] = Counter()
    for category, value in zip(run.category, values.tolist(), strict=True):
        found[category] += value
    return found


def _short(value: float) -> str:
    """A number for a piece or a bar, three digits of it."""
    decimals = 2 - math.floor(math.log10(value)) if 0 < value < 1 else 2
    return f"{value:,.{min(decimals, 9) if value < 10 else 1 if value < 100 else 0}f}"


PAGE: Final = "result.html"
CSV: Final = "result.csv"


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
    folder: str | os.PathLike[str], runs: Sequence[EngineRun], *, title: str = ""
) -> list[Path]:
    """Write the chart and its numbers into a folder; answer the page and the CSV file."""
    from tracelens_ext.report.formats import write_csv

    writers: dict[str, Callable[[Path], object]] = {
        PAGE: partial(write_page, runs=runs, title=title),
        CSV: partial(write_csv, frame=measured.kernel_table(runs)),
    }
    # A folder of a report's tables may be the same one: its files stay, and stay known.
    return write_folder(folder, writers, keep=True)
