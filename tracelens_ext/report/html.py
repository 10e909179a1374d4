"""Write a report as one HTML page that needs no server, no network and no other file.

The page contains its data, its script and plotly.js (2 MB compressed instead of 5 MB). Its content
security policy allows only these two scripts, by their hashes, and no request. So even a text that
was not escaped by mistake could not run a script or send data.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import os
import shlex
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import PurePath
from typing import Any, NamedTuple

from tracelens_ext.errors import UsageError
from tracelens_ext.isolation import PartFailures
from tracelens_ext.lazy import pd
from tracelens_ext.report import html_figures as plot
from tracelens_ext.report import html_tables
from tracelens_ext.report.atomic_files import written_beside
from tracelens_ext.report.excel_text import cleaned, fact_text
from tracelens_ext.report.html_bars import bar_figure
from tracelens_ext.report.html_call_trees import (
    call_tree_figures,
    idle_call_tree_figures,
)
from tracelens_ext.report.html_findings import finding_cards
from tracelens_ext.report.html_headline import Card, headline
from tracelens_ext.report.html_iterations import iteration_figures
from tracelens_ext.report.html_memory import memory_figures
from tracelens_ext.report.html_roofline import roofline_figures
from tracelens_ext.report.html_tables import FIRST_ROWS, MOST_ROWS
from tracelens_ext.report.html_texts import json_for_script
from tracelens_ext.report.html_timeline import timeline_figure
from tracelens_ext.report.html_timeline_bins import timeline_bins_figures
from tracelens_ext.report.report import Report
from tracelens_ext.report.tables.charts import Chart, chart_table, charted
from tracelens_ext.report.tables.units import FIRST_FACTS, Quantity, with_units

#: Draws a chart, given the tables of the report and the table of the chart.
_Drawing = Callable[[Mapping[str, "pd.DataFrame"], "pd.DataFrame"], list[plot.Figure]]


def _draw_timeline(
    _tables: Mapping[str, pd.DataFrame], frame: pd.DataFrame
) -> list[plot.Figure]:
    return [timeline_figure(frame)]


def _draw_iterations(
    _tables: Mapping[str, pd.DataFrame], frame: pd.DataFrame
) -> list[plot.Figure]:
    return iteration_figures(frame)


def _draw_roofline(
    tables: Mapping[str, pd.DataFrame], frame: pd.DataFrame
) -> list[plot.Figure]:
    return roofline_figures(frame, tables.get("roofline_peaks"))


def _draw_memory(
    tables: Mapping[str, pd.DataFrame], _frame: pd.DataFrame
) -> list[plot.Figure]:
    return memory_figures(tables)


def _draw_timeline_bins(
    tables: Mapping[str, pd.DataFrame], frame: pd.DataFrame
) -> list[plot.Figure]:
    return timeline_bins_figures(frame, tables.get("timeline_markers"))


def _draw_call_tree(
    _tables: Mapping[str, pd.DataFrame], frame: pd.DataFrame
) -> list[plot.Figure]:
    return call_tree_figures(frame)


def _draw_idle_call_tree(
    _tables: Mapping[str, pd.DataFrame], frame: pd.DataFrame
) -> list[plot.Figure]:
    return idle_call_tree_figures(frame)


#: Kind of chart → the function that draws it; charts of other kinds are bars.
_DRAWINGS: dict[str, _Drawing] = {
    "timeline": _draw_timeline,
    "iterations": _draw_iterations,
    "roofline": _draw_roofline,
    "memory": _draw_memory,
    "timeline_bins": _draw_timeline_bins,
    "call_tree": _draw_call_tree,
    "idle_call_tree": _draw_idle_call_tree,
}


def page_figures(
    sheets: Mapping[str, pd.DataFrame],
    charts: Iterable[Chart],
    failures: PartFailures | None = None,
) -> list[plot.Figure]:
    """Draw the charts of a page, without those for workbooks only and those with only zeros.

    Args:
        sheets: the tables of the report.
        charts: the charts of the report.
        failures: records the charts that cannot be drawn.
    """
    if failures is None:
        failures = PartFailures()
    figures: list[plot.Figure] = []
    for chart in charts:
        is_replaced = any(name in sheets for name in chart.unless)
        if chart.on == "workbook" or is_replaced:
            continue
        frame = charted(sheets, chart)
        with failures.isolate(chart.part):
            figures += _chart_figures(chart, sheets, frame)
    return _with_unique_keys(figures)


def _chart_figures(
    chart: Chart, sheets: Mapping[str, pd.DataFrame], frame: pd.DataFrame
) -> list[plot.Figure]:
    """Draw one chart; the result is empty if all of its numbers are zero."""
    draw = _DRAWINGS.get(chart.kind)
    if draw is not None:
        return draw(sheets, frame)
    table = chart_table(frame, chart)
    if not len(table):
        return []
    return [bar_figure(chart, table)]


def _with_unique_keys(figures: Sequence[plot.Figure]) -> list[plot.Figure]:
    """Return the figures with different keys, even if charts have the same title."""
    numbered = []
    taken: set[str] = set()
    for number, figure in enumerate(figures):
        key = figure.key
        if key in taken:
            key = f"{key}-{number}"
        taken.add(figure.key)
        numbered.append(replace(figure, key=key))
    return numbered


_Figures = Sequence[plot.Figure]
_Links = Sequence[tuple[str, str]]
#: Columns that tell how to draw a row, and which the table on the page leaves out.
_DRAWING_COLUMNS = ("colour", "hover")
_SCRIPTS = ("tables.js", "charts.js")
#: The highest level would make the script 1 % smaller and take twice the time.
_COMPRESSION_LEVEL = 5


def require_html_extra() -> None:
    """Raise a UsageError if packages for the page are not installed."""
    missing = [
        name for name in ("jinja2", "plotly") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise UsageError(
            f"the HTML report needs {' and '.join(missing)}, which is not installed; "
            "run: pip install 'tracelens-ext[html]'"
        )


def write_html(
    path: str | os.PathLike[str],
    report: Report,
    *,
    figures: _Figures = (),
    links: _Links = (),
) -> list[str]:
    """Write a report as one self-contained HTML file, and return the notes of the page."""
    require_html_extra()
    with written_beside(path) as temporary_path:
        page, notes = page_of(report, figures, links)
        temporary_path.write_text(page, encoding="utf-8", newline="\n")
    return notes


def page_of(
    report: Report,
    figures: _Figures = (),
    links: _Links = (),
    most_rows: int = MOST_ROWS,
) -> tuple[str, list[str]]:
    """Return the page of a report, and its notes.

    The page has a headline (the busy share of the GPU, exposed communication, idle time, the top
    category and operation), charts, notes, links to the tables, facts, and the tables without their
    index. Numbers have the format that the name of their column tells.

    Args:
        report: the report.
        figures: charts that are drawn already; they come before the charts of the report.
        links: texts and addresses of links to other pages.
        most_rows: the most rows of each table on the page.

    Returns:
        The HTML text and the notes: those of the report, then notes about tables that were cut, and
        about parts that could not be computed.
    """
    failures = PartFailures()
    sheets: dict[str, pd.DataFrame] = {**report.sheets, **report.page_sheets}
    contents = html_tables.page_tables(
        sheets=_shown_tables(sheets, report.units),
        descriptions=report.descriptions,
        most_rows=most_rows,
        failures=failures,
        commands=report.row_commands,
    )
    facts = [_fact(label, value) for label, value in report.facts]
    findings: dict[str, object] = {}
    with failures.isolate("The findings of the page"):
        findings = finding_cards(
            sheets=sheets,
            answers=report.answers,
            source_url=report.source_url,
            explanations=report.explanations,
        )
    cards: list[Card] = []
    with failures.isolate("The headline of the page"):
        cards = headline(sheets)
    chart_figures = page_figures(sheets, report.charts, failures)
    notes = list(report.notes) + contents.notes
    notes += [message for message in failures.messages if message not in notes]
    # A link to a table that failed leads to the top of the page.
    sheet_keys = dict.fromkeys(sheets, "")
    sheet_keys |= {name: table.key for name, table in contents.tables.items()}
    page = render_page(
        title=cleaned(report.title),
        subtitle=_trace_name(facts),
        perfetto_command=_perfetto_command(facts),
        first=[
            f"{fact.label}: {fact.text}" for fact in facts if fact.label in FIRST_FACTS
        ],
        found=findings,
        cards=cards,
        notes=[cleaned(note) for note in notes],
        figures=list(figures) + chart_figures,
        links=[(cleaned(name), address) for name, address in links],
        facts=facts,
        tables=list(contents.tables.values()),
        sheet_keys=sheet_keys,
        pool=contents.pool,
    )
    return page, notes


def _shown_tables(
    sheets: Mapping[str, pd.DataFrame], units: Mapping[str, Mapping[str, str]]
) -> dict[str, pd.DataFrame]:
    """Return tables without the columns that are only for charts, and with units in the header."""
    shown = {}
    for name, frame in sheets.items():
        page_table = frame.drop(columns=list(_DRAWING_COLUMNS), errors="ignore")
        shown[name] = with_units(page_table, units.get(name, {}))
    return shown


def _trace_name(facts: Iterable[PageFact]) -> str:
    """Return the name of the trace file from the facts; empty if they do not have it."""
    for fact in facts:
        if fact.label == "Trace":
            return PurePath(fact.text).name
    return ""


def _perfetto_command(facts: Iterable[PageFact]) -> str:
    """Return the command that exports the trace for Perfetto; empty without a trace file."""
    name = _trace_name(facts)
    if not name:
        return ""
    stem = name.partition(".")[0] or name
    output = shlex.quote(f"{stem}.perfetto.json.gz")
    return f"tracelens-ext export {shlex.quote(name)} -o {output}"


def cell_of(report: Report) -> str:
    """Return the page in a frame for a cell of a notebook, with the first rows of tables."""
    require_html_extra()
    page, _ = page_of(report, most_rows=FIRST_ROWS)
    source = page.translate({ord("&"): "&amp;", ord("'"): "&#39;", ord("<"): "&lt;"})
    style = "width: 100%; height: 720px; border: 0"
    return (
        f"<iframe sandbox='allow-scripts' style='{style}' srcdoc='{source}'></iframe>"
    )


def render_page(
    *,
    tables: Sequence[html_tables.HtmlTable],
    figures: _Figures,
    pool: Iterable[str],
    first_rows: int = FIRST_ROWS,
    **variables: Any,  # noqa: ANN401  # further variables of the template
) -> str:
    """Return the page from its template, which escapes all variables.

    Args:
        tables: the tables of the page.
        figures: the charts of the page.
        pool: the distinct texts of the tables.
        first_rows: the number of rows of a table that are visible at first.
        variables: further variables of the template.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    texts = list(pool)
    variables |= {
        "texts": texts,
        "first_rows": first_rows,
        "tables": tables,
        "figures": figures,
    }
    data = {
        "texts": texts,
        "first_rows": first_rows,
        "tables": [table.for_script() for table in tables],
        "figures": [{"key": figure.key, **figure.spec} for figure in figures],
        "look": plot.LOOK,
    }
    script = "\n".join(map(_template, _SCRIPTS))
    plotly, packed = _plotly()
    # These need no escaping: files of this package, base64, and JSON that is escaped already.
    safe = {"style": _template("report.css"), "script": script, "plotly": packed}
    safe["data"] = json_for_script(data)
    variables |= {name: Markup(text) for name, text in safe.items()}  # noqa: S704
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(_template("report.html.jinja"))
    return template.render(**variables, script_hashes=[_content_hash(script), plotly])


def _template(name: str) -> str:
    """Return the text of a file in the folder of templates."""
    path = resources.files("tracelens_ext.report") / "templates" / name
    return path.read_text(encoding="utf-8")


@functools.cache
def _plotly() -> tuple[str, str]:
    """Return the hash of plotly.js, and the compressed script in base64."""
    from plotly.offline import get_plotlyjs

    source = get_plotlyjs()
    packed = zlib.compress(source.encode(), _COMPRESSION_LEVEL)
    return _content_hash(source), base64.b64encode(packed).decode()


def _content_hash(script: str) -> str:
    """Return the hash of a script for the content security policy."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


class PageFact(NamedTuple):
    """A fact on the page."""

    label: str
    text: str  #: the value as text
    #: length of the bar of a percentage, 0 to 100; None for other values
    percent: float | None


def _fact(label: str, value: object) -> PageFact:
    """Return a fact with its value as text, in the unit that the label tells."""
    text, notation = fact_text(label, value)
    percent = None
    if notation is not None and notation.unit.quantity is Quantity.PERCENT:
        is_negative = text.startswith("-")
        if notation.largest <= 100 and not is_negative:
            percent = notation.largest
    return PageFact(label=cleaned(label), text=cleaned(text), percent=percent)
