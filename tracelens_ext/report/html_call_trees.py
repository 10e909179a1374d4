"""The call trees of an HTML page, drawn from the top down."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from tracelens_ext.lazy import pd
from tracelens_ext.report.colors import color_of
from tracelens_ext.report.html_figures import (
    LABEL,
    Figure,
    Plotly,
    gpu_work_in_words,
    plotly_trace,
    spec_of,
)
from tracelens_ext.report.html_texts import (
    duration_text,
    elided,
    percent_text,
    plotly_text,
)

# Pixels. A level of the tree has room for one line of text.
_LEVEL_HEIGHT = 22
_HIGHEST_TREE = 900
_PATH_HEIGHT = 24
_SMALLEST_TEXT = 10


_NO_CATEGORY = "#dfe3ea"  # the color of modules, which have no category
#: Kind of host event → color.
_COLORS_OF_CPU = {
    "annotation": "#dfe3ea",
    "python": "#f5d7a1",
    "operation": "#a9c8ef",
    "call": "#f0b8a6",
}
#: The summary of a call tree of two traces.
_OF_TWO_TRACES = (
    "as wide as the time of both; red takes longer than in the baseline, blue less"
)


def call_tree_figures(frame: pd.DataFrame) -> list[Figure]:
    """Draw the call tree; the table of two traces has a column with the colors."""
    top = frame[frame["parent"] < 0]
    sums = top.groupby("label")["gpu_time_ns"].sum().sort_values(ascending=False)
    total = int(sums.sum())
    if not total:
        return []
    labels = ["GPU work"]
    hover = [""]
    colors = [_NO_CATEGORY]
    for row in frame.to_dict("records"):
        labels.append(plotly_text(elided(row["label"], LABEL)))
        colors.append(row.get("colour") or _color(row))
        text = row.get("hover") or _time_and_share(row["gpu_time_ns"], total)
        category = plotly_text(row["category"])
        hover.append(f"{text}<br>{category}")
    values = [total] + list(frame["gpu_time_ns"])
    spec = _icicle_spec(frame["parent"], labels, values, hover, colors)
    summary = _OF_TWO_TRACES
    if "colour" not in frame:
        summary = gpu_work_in_words(sums)
    return [
        Figure(
            key="call-tree",
            title="GPU time in the call tree",
            summary=summary,
            legend=[],
            sheet="call_tree",
            spec=spec,
        )
    ]


def idle_call_tree_figures(frame: pd.DataFrame) -> list[Figure]:
    """Draw the tree of what the CPU did while the GPU waited for it."""
    top = frame[frame["parent"] < 0]
    total = int(top["idle_time_ns"].sum())
    if not total:
        return []
    labels = ["GPU waits for the CPU"]
    hover = [""]
    colors = [_NO_CATEGORY]
    for row in frame.to_dict("records"):
        labels.append(plotly_text(elided(row["label"], LABEL)))
        colors.append(_COLORS_OF_CPU.get(row["kind"], _NO_CATEGORY))
        share = percent_text(100 * row["idle_time_ns"] / total)
        time = duration_text(row["idle_time_ns"] / 1e6)
        hover.append(f"{time} ({share})<br>{plotly_text(row['kind'])}")
    values = [total] + list(frame["idle_time_ns"])
    largest = top.sort_values("idle_time_ns", ascending=False)["label"].head(1)
    words = f"{duration_text(total / 1e6)} in which the GPU waits for the CPU"
    for label in largest:
        words += f", most of it in {elided(str(label), LABEL)}"
    return [
        Figure(
            key="idle-call-tree",
            title="What the CPU did while the GPU waited for it",
            summary=words,
            legend=[],
            sheet="idle_call_tree",
            spec=_icicle_spec(frame["parent"], labels, values, hover, colors),
        )
    ]


def _icicle_spec(
    parents: pd.Series,
    labels: list[str],
    values: list[int],
    hover: list[str],
    colors: list[str],
) -> Plotly:
    """Return the drawing of a tree.

    The other lists begin with an additional node at the top, which `parents` does not have.

    Args:
        parents: index of the parent of each node; negative for a node below the top.
        labels: the text of each node.
        values: the time of each node, with all nodes below it, ns.
        hover: the text beside the pointer for each node.
        colors: the color of each node.
    """
    icicle = plotly_trace(
        "icicle",
        # Plotly would draw an empty node above several nodes at the top.
        ids=list(range(len(labels))),
        labels=labels,
        parents=[""] + list(parents + 1),
        values=values,
        customdata=hover,
        hovertemplate="<b>%{label}</b><br>%{customdata}<extra></extra>",
        branchvalues="total",
        tiling={"orientation": "v"},
        textfont={"color": "#22262e"},
        marker={"colors": colors, "line": {"width": 0.5, "color": "#ffffff"}},
    )
    levels = 1 + _levels(parents.tolist())
    layout = {
        "height": min(_LEVEL_HEIGHT * levels, _HIGHEST_TREE) + _PATH_HEIGHT,
        "margin": {"l": 0, "r": 0, "t": _PATH_HEIGHT, "b": 0},
        # Labels that would be too small to read are hidden.
        "uniformtext": {"minsize": _SMALLEST_TEXT, "mode": "hide"},
    }
    return spec_of([icicle], layout)


def _time_and_share(ns: float, total: int) -> str:
    """Return the time of a node of the call tree, and its share of all GPU work."""
    share = percent_text(100 * ns / total)
    return f"{duration_text(ns / 1e6)} ({share})"


def _levels(parents: Sequence[int]) -> int:
    """Return the number of levels of a tree, whose parents come before their children."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths, default=0)


def _color(row: dict[Hashable, Any]) -> str:
    """Return the color of a node: of its category, paler for an operation."""
    color = _NO_CATEGORY if row["kind"] == "module" else color_of(row["category"])
    if row["kind"] != "operation":
        return color
    paler = [(part + 255) // 2 for part in bytes.fromhex(color[1:])]
    return "#" + bytes(paler).hex()
