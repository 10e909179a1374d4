"""The time axis of a page (areas by category, a row a device) and its call tree (an icicle)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracelens_ext.lazy import pd
from tracelens_ext.report.colours import GREY, colour_of
from tracelens_ext.report.excel_text import cleaned
from tracelens_ext.report.html_figures import MARK, Figure, spec_of, trace
from tracelens_ext.report.html_text import duration_text, elided, percent_text, plotly_text

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from tracelens_ext.report.html_figures import Plotly

SINCE = {"text": "ms since the first event"}
_IN_SUMMARY = 3
_LABEL = 120  # characters
_MOST_CATEGORIES = 24  # in the legend
_MOST_MARKS = 400  # of a kind
_ROW, _FINDING = 130, 32  # pixels: of a device; of a finding, a bar below its title
_NO_CATEGORY = "#dfe3ea"  # a module's
_LAID = {"x": 0, "xref": "paper"}


def time_axis_figures(frame: pd.DataFrame, marks: pd.DataFrame | None) -> list[Figure]:
    """Draw which part of the time the GPUs worked, with holes, iterations and findings.

    `marks`: the table `time_axis_marks`.
    """
    sums = frame.groupby("category")["gpu_time_ns"].sum().sort_values(ascending=False)
    if not sums.sum():
        return []
    kinds = {} if marks is None else dict(list(marks.groupby("kind")))
    findings = kinds.pop("finding", pd.DataFrame({"finding": []})).groupby("finding", sort=False)
    devices = frame.groupby("device")
    first, last = float(frame["start_ms"].min()), float(frame["end_ms"].max())
    bins = int(frame["bin"].max()) + 1
    step = (last - first) / bins
    below = len(findings) * _FINDING
    plotted = len(devices) * _ROW + below
    categories = [str(name) for name in sums.index]
    data: list[Plotly] = []
    names: list[Plotly] = []
    layout: Plotly = {
        "barmode": "overlay",
        "height": plotted + 70,
        "margin": {"l": 56, "r": 12, "t": 20, "b": 42},
        "xaxis": {"range": [first, last], "anchor": "free", "position": 0, "title": SINCE},
        "annotations": names,
        "shapes": [
            start_line(mark["start_ms"], "paper") if kind == "iteration" else _hole(mark)
            for kind, part in kinds.items()
            for mark in part.head(_MOST_MARKS).to_dict("records")
        ],
    }
    for row, (device, part) in enumerate(devices):
        axis, top = str(row + 1) if row else "", 1 - row * _ROW / plotted
        layout[f"yaxis{axis}"] = {
            "domain": [top - _ROW / plotted + 0.02, top - 0.03],
            "rangemode": "tozero",
            "tickformat": ".0%",
            "nticks": 3,
        }
        names.append({"text": f"GPU {device}", "y": top, "yref": "paper", **_LAID})
        where = {"yaxis": f"y{axis}", "stackgroup": f"row{row}", "x0": first, "dx": step}
        data += [{**area, **where} for area in _areas(part, categories, bins, step)]
    under = str(len(devices) + 1)
    layout[f"yaxis{under}"] = {
        "domain": [0, below / plotted],
        "range": [len(findings) - 0.5, -0.5],
        "visible": False,
    }
    for row, (ident, part) in enumerate(findings):
        card = f"finding-{cleaned(str(ident))}"
        title = plotly_text(elided(part["name"].iloc[0], _LABEL))
        data.append({**_stretches(row, part, step), "yaxis": f"y{under}", "name": title})
        data[-1]["customdata"] = [card] * len(part)
        click = {"name": card, "captureevents": True, "borderpad": 0}
        names.append({"text": title, **click, "y": row - 0.2, "yref": f"y{under}", **_LAID})
    legend = [(name, colour_of(name)) for name in categories[:_MOST_CATEGORIES]]
    spec = spec_of(data, layout)
    title = "GPU work over time"
    return [Figure("time-axis", title, _in_words(sums), legend, "time_axis", spec)]


def _areas(frame: pd.DataFrame, categories: list[str], bins: int, step: float) -> Iterator[Plotly]:
    """The part of each bin, of `step` ms, in which a device worked, by category."""
    for piece, name in enumerate(categories):
        own = frame[frame["category"] == name]
        if len(own):
            ns = own.set_index("bin")["gpu_time_ns"].reindex(range(bins + 1), fill_value=0)
            ns.iloc[-1] = ns.iloc[-2]  # where the last bin ends
            told = "<b>%{fullData.name}</b><br>%{y:.0%} at %{x:,.3f} ms<extra></extra>"
            look = {"fillcolor": colour_of(name), "line": {"shape": "hv", "width": 0}}
            y = (ns / 1e6 / step).round(4).tolist()
            about = {"name": plotly_text(name), "hovertemplate": told}
            yield trace("scatter", piece, mode="lines", y=y, **look, **about)


def _stretches(row: int, frame: pd.DataFrame, step: float) -> Plotly:
    """Where a finding is; a short stretch is seen, too."""
    start, end = frame["start_ms"], frame["end_ms"]
    lengths = (end - start).clip(lower=step / 4).tolist()
    at = {"base": start.tolist(), "x": lengths, "y": [row + 0.2] * len(frame)}
    look = {"orientation": "h", "width": 0.35, "marker": {"color": MARK["color"]}}
    return trace("bar", hovertemplate="%{fullData.name}<extra></extra>", **at, **look)


def start_line(ms: float, yref: str) -> Plotly:
    """A line where an iteration begins."""
    line = {"width": 1, "dash": "dot", "color": GREY}
    return {"type": "line", "x0": ms, "x1": ms, "y0": 0, "y1": 1, "yref": yref, "line": line}


def _hole(mark: dict[Hashable, Any]) -> Plotly:
    return {
        "type": "rect",
        "x0": mark["start_ms"],
        "x1": mark["end_ms"],
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "fillcolor": "rgba(139, 147, 161, 0.25)",
        "line": {"width": 0},
        "layer": "below",
    }


def _in_words(sums: pd.Series) -> str:
    total = int(sums.sum())
    parts = [
        f"{elided(str(name), _LABEL)} {percent_text(100 * ns / total)}"
        for name, ns in sums.head(_IN_SUMMARY).items()
    ]
    return f"{duration_text(total / 1e6)} of GPU work: {', '.join(parts)}"


def call_tree_figures(frame: pd.DataFrame) -> list[Figure]:
    """Draw the call tree, from the top down; a table of two traces has colours of its own."""
    top = frame[frame["parent"] < 0]
    sums = top.groupby("label")["gpu_time_ns"].sum().sort_values(ascending=False)
    total = int(sums.sum())
    if not total:
        return []
    rows = frame.to_dict("records")
    hover = [
        row.get("hover")
        or duration_text(row["gpu_time_ns"] / 1e6)
        + f" ({percent_text(100 * row['gpu_time_ns'] / total)})"
        for row in rows
    ]
    categories = [plotly_text(row["category"]) for row in rows]
    colours = [row.get("colour") or _colour(row) for row in rows]
    nodes = {  # one top: several would stand below a blank
        "ids": [*range(len(rows) + 1)],
        "labels": ["GPU work", *(plotly_text(elided(row["label"], _LABEL)) for row in rows)],
        "parents": ["", *(row["parent"] + 1 for row in rows)],
        "values": [total, *(row["gpu_time_ns"] for row in rows)],
        "customdata": ["", *map("{}<br>{}".format, hover, categories)],
        "hovertemplate": "<b>%{label}</b><br>%{customdata}<extra></extra>",
    }
    look = {
        "branchvalues": "total",
        "tiling": {"orientation": "v"},
        "textfont": {"color": "#22262e"},
        "marker": {"colors": [_NO_CATEGORY, *colours], "line": {"width": 0.5, "color": "#ffffff"}},
    }
    layout = {"height": 500, "margin": {"l": 0, "r": 0, "t": 24, "b": 0}}
    said = "as wide as the time of both; red takes longer than the baseline, blue less"
    words = said if "colour" in frame else _in_words(sums)
    spec = spec_of([trace("icicle", **nodes, **look)], layout)
    return [Figure("call-tree", "GPU time in the call tree", words, [], "call_tree", spec)]


def _colour(row: dict[Hashable, Any]) -> str:
    """Of a kernel that of its category; of an operation a paler one; of a module none."""
    if row["kind"] == "module":
        return _NO_CATEGORY
    colour = colour_of(row["category"])
    if row["kind"] != "operation":
        return colour
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{(part + 255) // 2:02x}" for part in parts)
