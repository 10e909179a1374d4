"""The page of a fleet: who waits when and what for, bandwidths by size, what does not match."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.report.colours import ONE_COLOUR
from tracelens_ext.report.html import write_html
from tracelens_ext.report.html_figures import Figure
from tracelens_ext.report.html_text import bytes_text, duration_text, elided, plotly_text
from tracelens_ext.tables.charts import Chart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_ORIGINS = Chart(
    "Waits by the rank they come from", "origins", "rank", "wait_ms", "stacked", 64, "cause"
)
_MOST_COLUMNS, _MOST_POINTS, _MOST_LEGEND, _MOST_VERDICTS = 300, 2000, 6, 10
_PALETTE = (ONE_COLOUR, "#e58a2b", "#2f9e73", "#d1495b", "#8d6bc7", "#17a2b8", "#8b93a1")


def write_page(
    path: Path, tables: Mapping[str, pd.DataFrame], links: Sequence[tuple[str, str]]
) -> None:
    """Write the page of the tables over all ranks.

    Args:
        path: the file.
        tables: by name.
        links: name and relative address of the pages of single ranks.
    """
    sync, waits = tables["collective_sync"], tables["collective_waits"]
    waits = waits.assign(
        wait_ms=waits["wait_us"] / 1e3,
        iteration=waits["call"].map(sync.set_index("call")["iteration"]),
    )
    known = sync[sync["bus_bandwidth_gb_s"].notna() & (sync["bytes"] > 0)]
    keys = ["collective", "process_group", "ranks", "span", "bytes"]
    rates = known.groupby(keys, dropna=False)["bus_bandwidth_gb_s"]
    sheets = {
        "verdicts": tables["verdicts"],
        "waits": waits.groupby(["rank", "iteration"])["wait_ms"].sum(min_count=1).reset_index(),
        "origins": tables["wait_origins"].astype({"rank": "Int64"}),
        "bandwidths": rates.agg(calls="size", median_gb_s="median", best_gb_s="max").reset_index(),
        "not_matched": sync[sync["state"] != "complete"],
        "collective_groups": tables["collective_groups"],
        "clocks": tables["clocks"],
        "overlap": tables["overlap"],
    }
    write_html(
        path,
        sheets,
        figures=[*_heat_map(sheets["waits"].dropna()), *_bandwidths(sheets["bandwidths"])],
        charts=[_ORIGINS] if _ORIGINS.fits(sheets["origins"]) else [],
        links=links,
        facts=_facts(tables["verdicts"]),
        title="The ranks of a job",
    )


def _facts(verdicts: pd.DataFrame) -> list[tuple[str, str]]:
    """The verdicts in words, the first ones; the table has all."""
    first = verdicts.head(_MOST_VERDICTS)
    columns = (first[name].tolist() for name in ("verdict", "rank", "evidence"))
    said = [
        ("Verdict", f"{verdict}{'' if pd.isna(rank) else f', rank {rank:.0f}'}: {evidence}")
        for verdict, rank, evidence in zip(*columns, strict=True)
    ]
    return said or [("Verdict", "none: no rank and no link stands out")]


def _heat_map(waits: pd.DataFrame) -> list[Figure]:
    """Ranks down, iterations across; many iterations share a column."""
    if waits.empty:
        return []
    names = sorted(set(waits["iteration"]), key=lambda name: (len(name), name))
    column = np.arange(len(names)) * min(len(names), _MOST_COLUMNS) // len(names)
    parts = np.split(np.array(names, dtype=object), np.flatnonzero(np.diff(column)) + 1)
    across = [" to ".join(dict.fromkeys((part[0] or "outside", part[-1]))) for part in parts]
    at = waits["iteration"].map(dict(zip(names, column.tolist(), strict=True)))
    cells = waits.groupby([waits["rank"], at])["wait_ms"].sum().unstack()
    cells = cells.reindex(range(int(cells.index.min()), int(cells.index.max()) + 1))
    rows = [[None if np.isnan(ms) else ms for ms in row] for row in cells.to_numpy().tolist()]
    longest = waits.groupby("rank")["wait_ms"].sum().nlargest(3)
    trace = {
        "type": "heatmap",
        "x": [plotly_text(name) for name in across],
        "y": cells.index.tolist(),
        "z": rows,
        "zmin": 0,
        "colorscale": [[0, "rgba(139,147,161,0.15)"], [1, "#d1495b"]],
        "colorbar": {"thickness": 10, "ticksuffix": " ms", "outlinewidth": 0},
        "hovertemplate": "<b>rank %{y}</b>, iteration %{x}<br>%{z:,.3~f} ms<extra></extra>",
        "xgap": 1,
        "ygap": 1 if len(rows) <= 128 else 0,
    }
    whole = {"autorange": "reversed", "tickformat": "d", "title": "rank", "showgrid": False}
    words = [f"rank {rank} {duration_text(ms)}" for rank, ms in longest.items()]
    spec = {
        "plain": [trace],
        "height": int(np.clip(22 * len(rows) + 70, 180, 700)),
        "x": {"type": "category", "title": "iteration", "showgrid": False},
        "y": whole | ({"dtick": 1} if len(rows) <= 32 else {}),
    }
    summary = f"The longest: {', '.join(words)}"
    return [Figure("chart-waits", "Waits by rank and iteration", summary, [], "waits", spec)]


def _bandwidths(table: pd.DataFrame) -> list[Figure]:
    """A point a group, collective and size: its median; lines at the best by span."""
    if table.empty:
        return []
    points = table.nlargest(_MOST_POINTS, "calls", keep="first")
    kinds = points["collective"].value_counts().index.tolist()
    named = kinds if len(kinds) <= _MOST_LEGEND + 1 else [*kinds[:_MOST_LEGEND], "others"]
    kind = points["collective"].where(points["collective"].isin(named), "others")
    legend = [(elided(name, 40), colour) for name, colour in zip(named, _PALETTE, strict=False)]
    traces = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": part["bytes"].tolist(),
            "y": part["median_gb_s"].tolist(),
            "marker": {"size": 9, "opacity": 0.7, "color": colour},
            "customdata": [
                plotly_text(
                    f"{row.collective}, {bytes_text(row.bytes)}, ranks {elided(row.ranks, 50)}"
                )
                + f"<br>{row.median_gb_s:,.1f} GB/s, at best {row.best_gb_s:,.1f};"
                f" calls: {row.calls:,}"
                for row in part.itertuples()
            ],
            "hovertemplate": "%{customdata}<extra></extra>",
        }
        for part, colour in (
            (points[kind == name], colour) for name, colour in zip(named, _PALETTE, strict=False)
        )
    ]
    best = table.groupby(table["span"].fillna(""))["best_gb_s"].max()
    where = {"node": "Best in a node", "across": "Best across nodes"}
    words = [f"{where.get(str(span), 'Best')}: {rate:,.1f} GB/s" for span, rate in best.items()]
    lines = [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": rate,
            "y1": rate,
            "line": {"color": "#8b93a1", "width": 1.5, "dash": "dot"},
            "label": {"text": text, "textposition": "start", "font": {"size": 11}},
        }
        for text, rate in zip(words, best.tolist(), strict=True)
    ]
    summary = "; ".join(words)
    if len(points) < len(table):
        summary += f"; the {len(points):,} of {len(table):,} points with the most calls"
    spec = {
        "plain": traces,
        "shapes": lines,
        "height": 380,
        "x": {"type": "log", "title": "bytes of the call", "exponentformat": "SI"},
        "y": {"title": "GB/s", "range": [0, 1.12 * float(best.max())]},
    }
    title = "Bus bandwidth by size, the median of each group"
    return [Figure("chart-bandwidths", title, summary, legend, "bandwidths", spec)]
