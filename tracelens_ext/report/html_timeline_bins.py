"""The chart of GPU work over time: a row for each device, with an area for each category.

Below the devices, each finding has a row that shows the times that are attributed to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tracelens_ext.lazy import pd
from tracelens_ext.report import html_figures as plot
from tracelens_ext.report.colors import color_of
from tracelens_ext.report.excel_text import cleaned
from tracelens_ext.report.html_texts import elided, plotly_text

_MOST_CATEGORIES = 24  # in the legend
_MOST_MARKS = 400  # of each kind
# Heights, pixels.
_ROW = 130  # of the row of a device
_ROW_TITLE = 22  # the part of the row with the name of the GPU
_BELOW_ROW = 10  # the part of the row with the lowest label of the axis
_AROUND_ROWS = 70  # above and below all rows: margins, and labels of the time axis
_FINDING = 32  # of a finding: its title, and a bar below it
#: The margin beside the title of a finding, and the width of a character in it, pixels.
_TITLE_MARGIN = 68
_TITLE_DIGIT = 6.4
#: Colors of the bars of findings, which differ from all colors of categories.
_FINDING_COLORS = (
    "#1d3557",
    "#7a1f4a",
    "#14532d",
    "#6b3e00",
    "#4c1d95",
    "#134e4a",
    "#7c2d12",
    "#3f3f46",
)
#: The least opacity of a bar, so that a bar of which a finding has little is still visible.
_PALEST_PERCENT = 25.0


class _TimeAxis(NamedTuple):
    """The time axis, which all rows of the chart have in common."""

    first: float  #: start of the axis, ms
    last: float  #: end of the axis, ms
    bins: int  #: number of bins
    height: int  #: height of all rows, pixels

    @property
    def step(self) -> float:
        """The length of a bin, ms."""
        return (self.last - self.first) / self.bins


class _DeviceRows(NamedTuple):
    """The rows of all devices, one below the other."""

    traces: list[plot.Plotly]  #: the areas of the categories
    axes: plot.Plotly  #: the part of the layout with the axis of each row
    names: list[plot.Plotly]  #: an annotation for each row with the name of the device


class _FindingRows(NamedTuple):
    """The rows of all findings, which are below the devices and have a single axis."""

    traces: list[plot.Plotly]  #: the bars of the findings
    axes: plot.Plotly  #: the part of the layout with the axis of the rows
    axis_name: str  #: the name of that axis in traces and annotations
    titles: dict[str, str]  #: id of the card of a finding → title


def timeline_bins_figures(
    frame: pd.DataFrame, marks: pd.DataFrame | None
) -> list[plot.Figure]:
    """Draw the GPU work over time, and marks: gaps in the recording, iterations and findings.

    Args:
        frame: the table `timeline_bins`.
        marks: the table `timeline_markers`; None if there is none.
    """
    sums = frame.groupby("category")["gpu_time_ns"].sum().sort_values(ascending=False)
    if not sums.sum():
        return []
    marks_of_kind: dict[str, pd.DataFrame] = {}
    if marks is not None:
        marks_of_kind = {str(kind): part for kind, part in marks.groupby("kind")}
    no_findings = pd.DataFrame({"finding": []})
    finding_marks = marks_of_kind.pop("finding", no_findings)
    marks_of_findings = list(finding_marks.groupby("finding", sort=False))
    bins_of_devices = list(frame.groupby("device"))
    device_height = len(bins_of_devices) * _ROW
    finding_height = len(marks_of_findings) * _FINDING
    axis = _TimeAxis(
        first=float(frame["start_ms"].min()),
        last=float(frame["end_ms"].max()),
        bins=int(frame["bin"].max()) + 1,
        height=device_height + finding_height,
    )
    categories = [str(name) for name in sums.index]
    devices = _device_rows(bins_of_devices, categories, axis)
    findings = _finding_rows(
        marks_of_findings, axis, number_of_axis=len(bins_of_devices) + 1
    )

    def layout_of_width(page_width: int) -> plot.Plotly:
        titles = _titles(findings.titles, findings.axis_name, page_width)
        return {"annotations": devices.names + titles}

    figure = plot.Figure(
        key="time-axis",
        title="GPU work over time",
        summary=plot.gpu_work_in_words(sums),
        legend=[(name, color_of(name)) for name in categories[:_MOST_CATEGORIES]],
        sheet="timeline_bins",
        spec=plot.spec_of(
            data=devices.traces + findings.traces,
            layout=_layout(axis, marks_of_kind) | devices.axes | findings.axes,
            layout_of_width=layout_of_width,
        ),
    )
    return [figure]


def _layout(axis: _TimeAxis, marks_of_kind: Mapping[str, pd.DataFrame]) -> plot.Plotly:
    """Return the layout that all rows have in common."""
    return {
        "barmode": "overlay",
        "height": axis.height + _AROUND_ROWS,
        "margin": {"l": 56, "r": 12, "t": 20, "b": 42},
        "xaxis": {
            "range": [axis.first, axis.last],
            "anchor": "free",
            "position": 0,
            "title": plot.MS_SINCE_FIRST_EVENT,
        },
        "shapes": _shapes(marks_of_kind),
    }


def _device_rows(
    bins_of_devices: Iterable[tuple[Any, pd.DataFrame]],
    categories: Sequence[str],
    axis: _TimeAxis,
) -> _DeviceRows:
    """Return the rows of devices.

    Args:
        bins_of_devices: each device with its rows of `timeline_bins`.
        categories: the categories, in the order of the legend.
        axis: the time axis.
    """
    rows = _DeviceRows(traces=[], axes={}, names=[])
    for row, (device, bins) in enumerate(bins_of_devices):
        # plotly calls the first axis "y" and the next one "y2".
        number_of_axis = str(row + 1) if row else ""
        top = 1 - row * _ROW / axis.height
        rows.axes[f"yaxis{number_of_axis}"] = _axis_of_row(top, axis.height)
        rows.names.append(_device_name(str(device), top))
        areas = _areas(
            frame=bins, categories=categories, bins=axis.bins, step=axis.step
        )
        for area in areas:
            area["yaxis"] = f"y{number_of_axis}"
            area["stackgroup"] = f"row{row}"
            area["x0"] = axis.first
            area["dx"] = axis.step
            rows.traces.append(area)
    return rows


def _finding_rows(
    marks_of_findings: Sequence[tuple[Any, pd.DataFrame]],
    axis: _TimeAxis,
    number_of_axis: int,
) -> _FindingRows:
    """Return the rows of findings.

    Args:
        marks_of_findings: the id of each finding with its rows of `timeline_markers`.
        axis: the time axis.
        number_of_axis: the number of the axis of the rows.
    """
    rows = _FindingRows(traces=[], axes={}, axis_name=f"y{number_of_axis}", titles={})
    count = len(marks_of_findings)
    rows.axes[f"yaxis{number_of_axis}"] = {
        "domain": [0, count * _FINDING / axis.height],
        # From above the title of the first finding to below the bar of the last one.
        "range": [count - 0.5, -0.75],
        "visible": False,
    }
    for row, (finding_id, marks) in enumerate(marks_of_findings):
        card = f"finding-{cleaned(str(finding_id))}"
        title = marks["name"].iloc[0]
        rows.titles[card] = title
        strip = _finding_strip(
            marks=marks,
            row=row,
            least_length=axis.step / 4,
            yaxis=rows.axis_name,
            name=plotly_text(elided(title, plot.LABEL)),
            customdata=[card] * len(marks),
        )
        rows.traces.append(strip)
    return rows


def _device_name(device: str, top: float) -> plot.Plotly:
    """Return the name of a device above its areas; `top` is a share of the height."""
    return {
        "text": f"GPU {device}",
        "y": top,
        "yref": "paper",
        "yanchor": "top",
        "x": 0,
        "xref": "paper",
    }


def _titles(titles: Mapping[str, str], axis: str, page_width: int) -> list[plot.Plotly]:
    """Return the titles of findings above their bars, shortened to the width of the page.

    Args:
        titles: id of the card of a finding → title.
        axis: the axis of the rows of findings.
        page_width: the width of the page, pixels.
    """
    characters = int((page_width - _TITLE_MARGIN) / _TITLE_DIGIT)
    annotations = []
    for row, (card, title) in enumerate(titles.items()):
        annotations.append(
            {
                "text": plotly_text(elided(title, characters)),
                "name": card,
                "captureevents": True,
                "borderpad": 0,
                "y": row,
                "yref": axis,
                "x": 0,
                "xref": "paper",
            }
        )
    return annotations


def _shapes(marks_of_kind: Mapping[str, pd.DataFrame]) -> list[plot.Plotly]:
    """Return a line at the start of each iteration, and a rectangle over each other mark."""
    shapes = []
    for kind, part in marks_of_kind.items():
        times = part[["start_ms", "end_ms"]].head(_MOST_MARKS)
        for start, end in times.to_numpy().tolist():
            if kind == "iteration":
                shapes.append(plot.start_line(start, "paper"))
            else:
                shapes.append(_rectangle(start, end))
    return shapes


def _axis_of_row(top: float, height: int) -> plot.Plotly:
    """Return the axis of a device's areas, which are below the line with its name."""
    return {
        "domain": [top - (_ROW - _BELOW_ROW) / height, top - _ROW_TITLE / height],
        "rangemode": "tozero",
        "tickformat": ".0%",
        "nticks": 3,
    }


def _finding_strip(
    marks: pd.DataFrame, row: int, least_length: float, **properties: object
) -> plot.Plotly:
    """Return the bars of a finding; a bar is paler if little of its time is the finding's.

    Args:
        marks: the marks of the finding.
        row: the row of the finding.
        least_length: the length of shorter bars, which would be invisible, ms.
        properties: further properties of the bars.
    """
    lengths = (marks["end_ms"] - marks["start_ms"]).clip(lower=least_length)
    opacity = marks["covered_percent"].clip(lower=_PALEST_PERCENT) / 100
    marker = {
        "color": _FINDING_COLORS[row % len(_FINDING_COLORS)],
        "opacity": opacity.round(2).tolist(),
        "line": {"width": 0},
    }
    return plot.plotly_trace(
        "bar",
        hovertemplate="%{fullData.name}<extra></extra>",
        base=marks["start_ms"].tolist(),
        x=lengths.tolist(),
        y=[row + 0.2] * len(marks),
        orientation="h",
        width=0.35,
        marker=marker,
        **properties,
    )


def _areas(
    frame: pd.DataFrame, categories: Iterable[str], bins: int, step: float
) -> Iterator[plot.Plotly]:
    """Yield an area for each category: the part of each bin in which a device did its work.

    Args:
        frame: the rows of `timeline_bins` for the device.
        categories: the categories, in the order of the legend.
        bins: the number of bins.
        step: the length of a bin, ms.
    """
    for piece, name in enumerate(categories):
        of_category = frame[frame["category"] == name]
        if not len(of_category):
            continue
        time_of_bin = of_category.set_index("bin")["gpu_time_ns"]
        ns = time_of_bin.reindex(range(bins + 1), fill_value=0)
        ns.iloc[-1] = ns.iloc[-2]  # extends the area to the end of the last bin
        share = ns / 1e6 / step
        hover = "<b>%{fullData.name}</b><br>%{y:.0%} at %{x:,.3f} ms<extra></extra>"
        yield plot.plotly_trace(
            "scatter",
            piece,
            mode="lines",
            y=share.round(4).tolist(),
            fillcolor=color_of(name),
            line={"shape": "hv", "width": 0},
            name=plotly_text(name),
            hovertemplate=hover,
        )


def _rectangle(start: float, end: float) -> plot.Plotly:
    """Return a rectangle over time that is not recorded or not analyzed."""
    return {
        "type": "rect",
        "x0": start,
        "x1": end,
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "fillcolor": "rgba(139, 147, 161, 0.25)",
        "line": {"width": 0},
        "layer": "below",
    }
