"""Writes the page of a chart: a stacked bar for each run, and tables of numbers and kernels."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from tracelens_ext.compare.engine_chart import runs as measured
from tracelens_ext.compare.engine_chart.runs import EngineRun
from tracelens_ext.compare.engine_chart.specification import NS_PER_S
from tracelens_ext.report.atomic_files import written_beside
from tracelens_ext.report.atomic_folders import write_folder
from tracelens_ext.report.colors import color_of
from tracelens_ext.report.excel_text import cleaned
from tracelens_ext.report.html import render_page, require_html_extra
from tracelens_ext.report.html_bars import bar_piece, bars_spec
from tracelens_ext.report.html_figures import Figure, Plotly
from tracelens_ext.report.html_headline import Card
from tracelens_ext.report.html_tables import FIRST_ROWS, HtmlTable, page_tables
from tracelens_ext.report.html_texts import (
    amount_text,
    duration_text,
    elided,
    percent_text,
    plotly_lines,
    plotly_text,
)
from tracelens_ext.report.manifest import check_folder, check_output, unfinished_note
from tracelens_ext.report.tables.units import Quantity, Shown, Unit
from tracelens_ext.trace import NS_PER_MS, Int64Array

DEFAULT_TITLE: Final = "Elapsed time by category"
_BY_CATEGORY = "elapsed_sec_by_category"
_INPUTS = "inputs"
_KERNELS = "kernels"
_DESCRIPTIONS: Final = {
    _BY_CATEGORY: "Elapsed seconds by category and run; empty if a run has no such kernel",
    _INPUTS: "What each bar shows, and the source of its elapsed time",
    _KERNELS: (
        "Kernels of each category; the time of a kernel counts only while no GPU "
        "event that started earlier is running. result.csv has the same rows"
    ),
}
#: With more runs, the page has no cards.
_MAX_CARDS: Final = 6
#: The most characters of a bar's name on wide and on narrow screens.
_WIDE = 62
_NARROW = 40
#: How many runs the summary of a chart describes.
_SUMMARIZED_RUNS: Final = 4
_MAX_DECIMALS: Final = 9
_MS_PER_S: Final = 1e3
#: If the longest bar is this many times as long as the shortest one, the pieces of short bars are
#: too small to see. Then there is a second chart of shares.
_MUCH_LONGER: Final = 3


def write_page(
    path: str | os.PathLike[str], runs: Sequence[EngineRun], *, title: str = ""
) -> None:
    """Write the page `result.html`, which needs no other files.

    Args:
        path: the file to write.
        runs: the runs, one for each bar.
        title: the title of the page; empty for the default.
    """
    require_html_extra()
    tables = _tables(runs)
    with written_beside(path) as beside:
        page = render_page(
            title=cleaned(title or DEFAULT_TITLE),
            subtitle="",
            cards=[_card(run) for run in runs] if len(runs) <= _MAX_CARDS else [],
            notes=[cleaned(note) for note in _notes(runs) + tables.notes],
            figures=_figures(runs, title),
            facts=[],
            tables=tables.tables,
            sheet_keys={_BY_CATEGORY: tables.by_category.key},
            pool=tables.pool,
            # The table by category is shown completely, with its total row.
            first_rows=max(FIRST_ROWS, tables.by_category.total),
        )
        beside.write_text(page, encoding="utf-8", newline="\n")


class _ChartTables(NamedTuple):
    """The tables of the page."""

    by_category: HtmlTable
    tables: list[HtmlTable]  #: all tables, in order
    notes: list[str]  #: remarks on rows or columns that are left out
    pool: dict[str, int]  #: text that several cells share → its index


def _tables(runs: Sequence[EngineRun]) -> _ChartTables:
    """Return the tables below the chart."""
    pool: dict[str, int] = {}
    seconds = measured.category_table(runs).set_axis(
        [run.label for run in runs], axis=1
    )
    seconds.loc[measured.TOTAL] = [run.elapsed_ns / NS_PER_S for run in runs]
    by_category_sheet = seconds.rename_axis("Category").reset_index()
    page_table = page_tables(
        {_BY_CATEGORY: by_category_sheet}, _DESCRIPTIONS, pool=pool
    )
    by_category = replace(page_table.tables[_BY_CATEGORY], key="table-by-category")
    kernels = measured.kernel_table(runs).sort_values(
        measured.ELAPSED, ascending=False, kind="stable"
    )
    sheets = {
        _INPUTS: measured.input_table(runs),
        _KERNELS: kernels.reset_index(drop=True),
    }
    other_tables = page_tables(sheets, _DESCRIPTIONS, pool=pool)
    longest_s = max(run.elapsed_ns for run in runs) / NS_PER_S
    tables = [
        _with_digits(table, longest_s)
        for table in (by_category,) + tuple(other_tables.tables.values())
    ]
    return _ChartTables(
        by_category=by_category,
        tables=tables,
        notes=list(other_tables.notes),
        pool=pool,
    )


def _notes(runs: Sequence[EngineRun]) -> list[str]:
    """Return the warnings and notes of all runs without duplicates, each with its runs."""
    notes_of_runs = [(run.label, run.warnings + run.notes) for run in runs]
    return [
        f"{about.names}: {about.note}"
        for about in measured.names_of_notes(notes_of_runs)
    ]


def _figures(runs: Sequence[EngineRun], title: str) -> list[Figure]:
    """Return the chart of times, and one of shares if the bars differ much in length."""
    elapsed = [run.elapsed_ns for run in runs]
    longest = max(elapsed)
    shortest = min(ns or longest for ns in elapsed)
    figures = [_figure(runs, title, percent=False)]
    if longest > _MUCH_LONGER * shortest:
        figures.append(_figure(runs, title, percent=True))
    return figures


def _figure(runs: Sequence[EngineRun], title: str, *, percent: bool) -> Figure:
    """Return the chart with a bar for each run and a piece for each category.

    Args:
        runs: the runs, one for each bar.
        title: the title of the page; may be empty.
        percent: True to draw percent of each bar instead of seconds.
    """
    seconds = measured.category_table(runs).fillna(0.0)
    pieces: list[Plotly] = []
    legend = []
    counts = [_by_category(run, run.instances) for run in runs]
    for category, amounts_ms in zip(
        map(str, seconds.index), (seconds.to_numpy() * _MS_PER_S).tolist(), strict=True
    ):
        if not any(amounts_ms):
            continue
        color = color_of(category)
        legend.append((cleaned(category), color))
        events = [count[category] for count in counts]
        values = _piece_lengths(runs, amounts_ms, percent=percent)
        texts = [percent_text(value) if percent else _short(value) for value in values]
        hover = _hover_texts(
            runs=runs, category=category, amounts_ms=amounts_ms, event_counts=events
        )
        pieces.append(
            bar_piece(
                place=len(pieces),
                values=values,
                color=color,
                hover=hover,
                inside=texts,
            )
        )
    subject = "Share of elapsed time" if percent else "Elapsed time"
    return Figure(
        key="chart-share-of-time" if percent else "chart-elapsed-time",
        title=cleaned(f"{subject} for {title}" if title else f"{subject} by category"),
        summary="; ".join(_summary(run) for run in runs[:_SUMMARIZED_RUNS]),
        legend=legend,
        sheet=_BY_CATEGORY,
        spec=bars_spec(
            pieces=pieces,
            wide=[elided(run.label, _WIDE) for run in runs],
            narrow=[elided(run.label, _NARROW) for run in runs],
            ends=[f"{_short(_elapsed_ms(run) / _MS_PER_S)}\u00a0s" for run in runs],
            axis="%" if percent else "s",
        ),
    )


def _elapsed_ms(run: EngineRun) -> float:
    """Return the length of a bar, ms."""
    return run.elapsed_ns / NS_PER_MS


def _piece_lengths(
    runs: Sequence[EngineRun], amounts_ms: Sequence[float], *, percent: bool
) -> list[float]:
    """Return the length of a category's piece in each bar, in percent of the bar or in seconds."""
    lengths = []
    for run, amount_ms in zip(runs, amounts_ms, strict=True):
        factor = 1 / _MS_PER_S
        if percent:
            factor = 100 / (_elapsed_ms(run) or 1.0)
        lengths.append(amount_ms * factor)
    return lengths


def _hover_texts(
    runs: Sequence[EngineRun],
    category: str,
    amounts_ms: Sequence[float],
    event_counts: Sequence[int],
) -> list[str]:
    """Return the text that appears when the mouse is over a category's piece of each bar."""
    name = plotly_text(elided(category, _WIDE))
    texts = []
    for run, amount_ms, events in zip(runs, amounts_ms, event_counts, strict=True):
        amount = plotly_text(amount_text(amount_ms, "ms", _elapsed_ms(run)))
        if events:
            plural = "" if events == 1 else "s"
            amount = f"{amount}, {events:,} GPU event{plural}"
        texts.append(f"<b>{name}</b><br>{amount}<br>{plotly_lines(run.label)}")
    return texts


def _summary(run: EngineRun) -> str:
    """Return a sentence about a bar."""
    return f"{elided(run.label, _WIDE)}: {_run_summary(run)}"


def _with_digits(table: HtmlTable, longest_s: float) -> HtmlTable:
    """Return a table whose times have enough decimals to show 0.001 % of the longest time."""
    decimals = 2
    if longest_s:
        decimals = min(max(5 - math.floor(math.log10(longest_s)), 2), _MAX_DECIMALS)
    notation = Shown(Unit(quantity=Quantity.TIME, symbol="s", decimals=decimals))
    columns = []
    for column in table.columns:
        is_by_category = table.name == _BY_CATEGORY and column.kind == "number"
        if is_by_category or column.header.endswith("(sec)"):
            columns.append(replace(column, shown=notation))
        else:
            columns.append(column)
    return replace(table, columns=columns)


def _card(run: EngineRun) -> Card:
    """Return the card of a run."""
    label = cleaned(run.label)
    elapsed = duration_text(_elapsed_ms(run))
    color = color_of(_largest(run).category)
    # The value is a name, so `full` makes the page use the smaller type of names.
    return Card(
        label=f"{elapsed} elapsed",
        value=elided(label, _WIDE),
        detail=_run_summary(run),
        color=color,
        full=label,
    )


def _run_summary(run: EngineRun) -> str:
    """Return the GPU time of a run and its largest category in words."""
    largest = _largest(run)
    largest_name = elided(largest.category, _NARROW)
    texts = []
    for name, ns in (("GPU", run.gpu_ns), (largest_name, largest.ns)):
        amount = amount_text(amount=ns / NS_PER_MS, unit="ms", whole=_elapsed_ms(run))
        texts.append(f"{name} {amount}")
    return ", ".join(texts)


class _CategoryTime(NamedTuple):
    """The time of a category."""

    category: str
    ns: int


def _largest(run: EngineRun) -> _CategoryTime:
    """Return the GPU category with the most time in a run."""
    category, ns = _by_category(run, run.gpu_ns_of_kernel).most_common(1)[0]
    return _CategoryTime(category, ns)


def _by_category(run: EngineRun, values: Int64Array) -> Counter[str]:
    """Return the sum of the values of each category's kernels."""
    sums: Counter[str] = Counter()
    for category, value in zip(run.category, values.tolist(), strict=True):
        sums[category] += value
    return sums


def _short(value: float) -> str:
    """Return a number with three significant digits, for a piece or a bar."""
    if value >= 100:
        decimals = 0
    elif value >= 10:
        decimals = 1
    elif 0 < value < 1:
        decimals = min(2 - math.floor(math.log10(value)), _MAX_DECIMALS)
    else:
        decimals = 2
    return f"{value:,.{decimals}f}"


PAGE: Final = "result.html"
CSV: Final = "result.csv"


def check_results(
    folder: str | os.PathLike[str], inputs: Sequence[Path], *, force: bool = False
) -> list[str]:
    """Check that a chart may be written to a folder; return notes on unfinished earlier runs.

    Args:
        folder: the folder for the chart.
        inputs: files that are never overwritten, even with `force`.
        force: overwrite files that this program did not write.

    Raises:
        OutputError: the chart must not be written there.
    """
    require_html_extra()
    page = Path(folder) / PAGE
    check_output(page, inputs, force=force)
    check_folder(folder, [CSV], inputs, force=force)
    return unfinished_note(folder)


def write_results(
    folder: str | os.PathLike[str], runs: Sequence[EngineRun], *, title: str = ""
) -> list[Path]:
    """Write the chart and its numbers into a folder; return the page and the CSV file."""
    from tracelens_ext.report.formats import write_csv

    writers: dict[str, Callable[[Path], object]] = {
        PAGE: partial(write_page, runs=runs, title=title),
        CSV: partial(write_csv, frame=measured.kernel_table(runs)),
    }
    # The folder may also contain the tables of a report. These files are kept, and the manifest
    # still lists them.
    return write_folder(folder, writers, keep=True)
