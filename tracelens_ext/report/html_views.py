"""The time axis and the call tree of a page: their data, in whole ns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracelens_ext.lazy import pd
from tracelens_ext.report.colours import colour_of
from tracelens_ext.report.excel_text import cleaned
from tracelens_ext.report.html_figures import Figure
from tracelens_ext.report.html_text import duration_text, elided, percent_text, plotly_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_LABEL = 120  # characters
_IN_SUMMARY = 3
_MOST_CATEGORIES = 24  # in the legend
_MOST_MARKS = 400  # of a kind


def view_figures(sheets: Mapping[str, pd.DataFrame], sheet: str) -> list[Figure]:
    """The figure of `time_axis` or `call_tree`; its data is what `view_data` says."""
    frame = sheets[sheet]
    if not frame["gpu_time_ns"].sum():
        return []
    if sheet == "time_axis":
        sums = frame.groupby("category")["gpu_time_ns"].sum()
    else:
        top = frame[frame["parent"] < 0]
        sums = top.groupby("label")["gpu_time_ns"].sum()
    sums = sums.sort_values(ascending=False)
    total = int(sums.sum())
    parts = [
        f"{elided(str(name), _LABEL)} {percent_text(100 * ns / total)}"
        for name, ns in sums.head(_IN_SUMMARY).items()
    ]
    axis = sheet == "time_axis"
    return [
        Figure(
            key=sheet.replace("_", "-"),
            title="GPU work over time" if axis else "GPU time in the call tree",
            summary="as wide as the time of both; red takes longer than the baseline, blue less"
            if "colour" in frame
            else f"{duration_text(total / 1e6)} of GPU work: {', '.join(parts)}",
            legend=[(str(name), colour_of(str(name))) for name in sums.index[:_MOST_CATEGORIES]]
            if axis
            else [],
            sheet=sheet,
            spec={"view": sheet},
        )
    ]


def view_data(sheets: Mapping[str, pd.DataFrame]) -> dict[str, object]:
    """What the script draws, by the names of the tables."""
    data: dict[str, object] = {}
    if "time_axis" in sheets:
        data["time_axis"] = _time_axis(sheets["time_axis"], sheets.get("time_axis_marks"))
    if "call_tree" in sheets:
        data["call_tree"] = _call_tree(sheets["call_tree"])
    return data


def _time_axis(frame: pd.DataFrame, marks: pd.DataFrame | None) -> dict[str, object]:
    bins = int(frame["bin"].max()) + 1
    order = frame.groupby("category")["gpu_time_ns"].sum().sort_values(ascending=False).index
    rows = []
    for device, part in frame.groupby("device"):
        ns: dict[str, list[int]] = {}
        for category in order:
            own = part[part["category"] == category]
            if len(own):
                values = [0] * bins
                for at, value in zip(own["bin"].tolist(), own["gpu_time_ns"].tolist(), strict=True):
                    values[at] = value
                ns[plotly_text(category)] = values
        rows.append({"rank": None, "device": device, "ns": ns})
    marked: dict[str, list[dict[str, object]]] = {"iteration": [], "hole": []}
    findings: dict[str, dict[str, Any]] = {}
    for each in [] if marks is None else marks.to_dict("records"):
        name = plotly_text(elided(each["name"], _LABEL))
        span = {"start_ms": each["start_ms"], "end_ms": each["end_ms"]}
        if each["kind"] == "finding":
            known = {"id": cleaned(each["finding"]), "title": name, "intervals": []}
            findings.setdefault(each["finding"], known)["intervals"].append(span)
            continue
        marks_of_kind = marked["iteration" if each["kind"] == "iteration" else "hole"]
        if len(marks_of_kind) < _MOST_MARKS:
            marks_of_kind.append({"name": name, "device": each["device"], **span})
    return {
        "start_ms": float(frame["start_ms"].min()),
        "end_ms": float(frame["end_ms"].max()),
        "bins": bins,
        "rows": rows,
        "iterations": marked["iteration"],
        "holes": marked["hole"],
        "findings": list(findings.values()),
        "colours": {plotly_text(name): colour_of(name) for name in order},
    }


def _call_tree(frame: pd.DataFrame) -> dict[str, object]:
    total = int(frame.loc[frame["parent"] < 0, "gpu_time_ns"].sum())
    rows = frame.to_dict("records")
    return {
        "labels": [plotly_text(elided(row["label"], _LABEL)) for row in rows],
        "parents": [row["parent"] for row in rows],
        "ns": [row["gpu_time_ns"] for row in rows],
        "kinds": [row["kind"] for row in rows],
        "categories": [plotly_text(row["category"]) for row in rows],
        "colours": [row.get("colour") or _colour(row["kind"], row["category"]) for row in rows],
        "hover": [
            row.get("hover")
            or f"{duration_text(row['gpu_time_ns'] / 1e6)}"
            f" ({percent_text(100 * row['gpu_time_ns'] / total)})"
            for row in rows
        ],
    }


def _colour(kind: str, category: str) -> str:
    """Of a kernel that of its category; of an operation a paler one; of a module none."""
    if kind == "module":
        return "#dfe3ea"
    colour = colour_of(category)
    if kind != "operation":
        return colour
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{(part + 255) // 2:02x}" for part in parts)
