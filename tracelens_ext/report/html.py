"""Write a report as one HTML page that needs nothing else: no server, no network, no other file.

The page carries its data, its script and plotly.js (compressed: 2 MB instead of 5). A content
security policy in it allows these two scripts, by their hashes, and no request at all, so that
even a text that slipped through the escaping would run nothing and reach nobody.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report import html_figures as plot
from tracelens_ext.report import html_tables
from tracelens_ext.report.excel_text import cleaned, fact_text
from tracelens_ext.report.html_drawings import memory_figures, roofline_figures, time_axis_figures
from tracelens_ext.report.html_iterations import iteration_figures
from tracelens_ext.report.html_tables import FIRST_ROWS, MOST_ROWS
from tracelens_ext.report.manifest import written_beside
from tracelens_ext.report.tables.charts import Chart, chart_table, charted
from tracelens_ext.report.tables.units import FIRST_FACTS, Quantity, with_units

if TYPE_CHECKING:
    from tracelens_ext.report.report import Report


def page_figures(sheets: Mapping[str, pd.DataFrame], charts: Iterable[Chart]) -> list[plot.Figure]:
    """Draw charts but those for workbooks alone and those without a number other than zero."""
    figures: list[plot.Figure] = []
    for chart in charts:
        if chart.on != "workbook" and not any(sheet in sheets for sheet in chart.unless):
            frame = charted(sheets, chart)
            if draw := _DRAWINGS.get(chart.kind):
                figures += draw(sheets, frame)
            elif len(table := chart_table(frame, chart)):
                figures.append(plot.bar_figure(chart, table))
    keys = [figure.key for figure in figures]  # two charts may have one title
    return [
        replace(figure, key=f"{figure.key}-{at}") if figure.key in keys[:at] else figure
        for at, figure in enumerate(figures)
    ]


#: What draws a chart of its own kind, of the tables and the chart's.
_DRAWINGS: dict[str, Callable[[Mapping[str, pd.DataFrame], pd.DataFrame], list[plot.Figure]]] = {
    "timeline": lambda _, frame: [plot.timeline_figure(frame)],
    "iterations": lambda _, frame: iteration_figures(frame),
    "roofline": lambda sheets, frame: roofline_figures(frame, sheets.get("roofline_peaks")),
    "memory": lambda sheets, _: memory_figures(sheets),
    "time_axis": lambda sheets, frame: time_axis_figures(frame, sheets.get("time_axis_marks")),
    "call_tree": lambda _, frame: plot.call_tree_figures(frame),
}
_Figures = Sequence[plot.Figure]
_Links = Sequence[tuple[str, str]]
_SCRIPTS = ("tables.js", "charts.js")
_PACKING = 5  # the highest level makes the script 1 % smaller and takes twice the time


def require_html_extra() -> None:
    """Check that what the page is made with is installed, before a trace is read for nothing."""
    missing = [name for name in ("jinja2", "plotly") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the HTML report needs {' and '.join(missing)}, not installed here; "
            "run: pip install 'tracelens-ext[html]'"
        )


def write_html(
    path: str | os.PathLike[str], report: Report, *, figures: _Figures = (), links: _Links = ()
) -> list[str]:
    """Write a report as one self-contained HTML file; gives its notes, as `page_of`."""
    require_html_extra()
    with written_beside(path) as beside:
        page, notes = page_of(report, figures, links)
        beside.write_text(page, encoding="utf-8", newline="\n")
    return notes


def page_of(
    report: Report,
    figures: _Figures = (),
    links: _Links = (),
    most_rows: int = MOST_ROWS,
) -> tuple[str, list[str]]:
    """The page of a report, and its notes: those given, then what was cut to keep it usable.

    The headline comes first (how busy the GPU was, exposed communication, idle time, the top
    category and operation), then charts, notes, links to the tables, facts, and the tables in the
    order given, `most_rows` of each. The index of a DataFrame is not written. Numbers are shown as
    their column's name suggests. `figures` are drawn already and come before the report's charts.
    """
    sheets: dict[str, pd.DataFrame] = {**report.sheets, **report.page_sheets}
    pool: dict[str, int] = {}
    headed = {name: with_units(sheets[name], report.units.get(name, {})) for name in sheets}
    tables, cut = html_tables.page_tables(headed, report.descriptions, pool, most_rows)
    notes = [*report.notes, *cut]
    facts = [_fact(label, value) for label, value in report.facts]
    page = render_page(
        title=cleaned(report.title),
        subtitle=next((PurePath(text).name for label, text, _ in facts if label == "Trace"), ""),
        first=[f"{label}: {text}" for label, text, _ in facts if label in FIRST_FACTS],
        found=html_tables.finding_cards(sheets, report.answers, report.source_url),
        cards=html_tables.headline(sheets),
        notes=[cleaned(note) for note in notes],
        figures=[*figures, *page_figures(sheets, report.charts)],
        links=[(cleaned(name), address) for name, address in links],
        facts=facts,
        tables=tables,
        sheet_keys={name: table.key for name, table in zip(sheets, tables, strict=True)},
        pool=pool,
    )
    return page, notes


def cell_of(report: Report) -> str:
    """The page for a cell of a notebook, in a frame of its own; tables have their first rows."""
    require_html_extra()
    page, _ = page_of(report, most_rows=FIRST_ROWS)
    source = page.translate({ord("&"): "&amp;", ord("'"): "&#39;", ord("<"): "&lt;"})
    style = "width: 100%; height: 720px; border: 0"
    return f"<iframe sandbox='allow-scripts' style='{style}' srcdoc='{source}'></iframe>"


def render_page(
    *,
    tables: Sequence[html_tables.HtmlTable],
    figures: _Figures,
    pool: Iterable[str],
    first_rows: int = FIRST_ROWS,
    **shown: Any,  # noqa: ANN401  # what else the template names
) -> str:
    """Fill the page's template; all is escaped. `pool`: the texts of the tables."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    texts = list(pool)
    shown |= {"texts": texts, "first_rows": first_rows, "tables": tables, "figures": figures}
    data = {
        "texts": texts,
        "first_rows": first_rows,
        "tables": [table.for_script() for table in tables],
        "figures": [{"key": figure.key, **figure.spec} for figure in figures],
        "look": plot.LOOK,
    }
    script = "\n".join(map(_template, _SCRIPTS))
    plotly, packed = _plotly()
    # Files of this package, base64, and JSON escaped for where it stands.
    safe = {"style": _template("report.css"), "script": script, "plotly": packed}
    safe["data"] = plot.json_for_script(data)
    shown |= {name: Markup(text) for name, text in safe.items()}  # noqa: S704
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(_template("report.html.jinja"))
    return template.render(**shown, script_hashes=[_content_hash(script), plotly])


def _template(name: str) -> str:
    path = resources.files("tracelens_ext.report") / "templates" / name
    return path.read_text(encoding="utf-8")


@functools.cache
def _plotly() -> tuple[str, str]:
    """Give the hash of plotly.js, and the script itself: deflated, in base64."""
    from plotly.offline import get_plotlyjs

    source = get_plotlyjs()
    packed = zlib.compress(source.encode(), _PACKING)
    return _content_hash(source), base64.b64encode(packed).decode()


def _content_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _fact(label: str, value: object) -> tuple[str, str, float | None]:
    """Label and value of a fact, with the unit that its label tells; the percentage that it is."""
    text, shown = fact_text(label, value)
    percent = shown and shown.unit.quantity is Quantity.PERCENT and not text.startswith("-")
    share = shown.largest if shown and percent and shown.largest <= 100 else None
    return cleaned(label), cleaned(text), share
