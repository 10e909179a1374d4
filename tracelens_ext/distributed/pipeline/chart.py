"""The chart of pipeline stages over time, with one color for each kind of time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracelens_ext.distributed.pipeline.intervals import Intervals
from tracelens_ext.distributed.pipeline.tables import (
    STAGES_TABLE,
    PipelineIteration,
    PipelineJob,
)
from tracelens_ext.distributed.pipeline.times import (
    BUBBLE_KINDS,
    StageTimes,
    TimeKind,
)
from tracelens_ext.report.colors import ONE_COLOR
from tracelens_ext.report.html_figures import Figure, plotly_trace, spec_of
from tracelens_ext.report.html_texts import duration_text
from tracelens_ext.trace import NS_PER_MS

_COLORS = {
    TimeKind.COMPUTATION: ONE_COLOR,
    TimeKind.TRANSFER: "#e58a2b",
    TimeKind.WAIT_PREVIOUS: "#d1495b",
    TimeKind.WAIT_NEXT: "#8d6bc7",
    TimeKind.WARMUP: "#17a2b8",
    TimeKind.DRAIN: "#8b93a1",
}
_NAMES = {
    TimeKind.COMPUTATION: "computation",
    TimeKind.TRANSFER: "transfer",
    TimeKind.WAIT_PREVIOUS: "wait for the previous stage",
    TimeKind.WAIT_NEXT: "wait for the next stage",
    TimeKind.WARMUP: "warm-up",
    TimeKind.DRAIN: "drain",
}
#: Intervals of one kind are drawn as one bar if the gap between them is below this share of the
#: iteration.
_SMALLEST_PART = 1 / 2000
#: The largest number of bars and of iterations in the chart.
_MAX_BARS = 6000
_MAX_ITERATIONS = 3
_MAX_ROWS_WITH_ALL_LABELS = 32


def stage_timeline(job: PipelineJob) -> list[Figure]:
    """Return the chart of the stages of the first pipeline; an empty list if there is none."""
    iterations = _first_iterations(job)
    if not iterations:
        return []
    stage_count = iterations[0].schedule.stages
    figure = Figure(
        key="chart-pipeline",
        title=_title(iterations),
        summary=_summary(iterations),
        legend=[(_NAMES[kind], color) for kind, color in _COLORS.items()],
        sheet=STAGES_TABLE,
        spec=spec_of(_bar_traces(iterations), _layout(stage_count)),
    )
    return [figure]


def _bar_traces(iterations: Sequence[PipelineIteration]) -> list[dict[str, object]]:
    """Return the bars of each kind of time, at most `_MAX_BARS` in all, for Plotly."""
    start = min(times.window_start for times in iterations[0].times)
    bar_traces = []
    bar_count = 0
    for index, (kind, color) in enumerate(_COLORS.items()):
        bars = [
            _bars(times, kind, start)
            for iteration in iterations
            for times in iteration.times
        ]
        base = np.concatenate([bar.base for bar in bars])
        length = np.concatenate([bar.length for bar in bars])
        stage = np.concatenate([bar.stage for bar in bars])
        remaining = max(_MAX_BARS - bar_count, 0)
        bar_count += len(base)
        bar_traces.append(
            plotly_trace(
                "bar",
                index,
                orientation="h",
                base=base[:remaining].round(4).tolist(),
                x=length[:remaining].round(4).tolist(),
                y=stage[:remaining].tolist(),
                width=0.8,
                marker={"color": color},
                hovertemplate=(
                    f"<b>stage %{{y}}</b>, {_NAMES[kind]}<br>%{{x:,.3~f}} ms"
                    "<extra></extra>"
                ),
            )
        )
    return bar_traces


def _layout(stage_count: int) -> dict[str, object]:
    """Return the layout of the chart for Plotly, with a row for each stage."""
    stage_axis: dict[str, object] = {
        "autorange": "reversed",
        "tickformat": "d",
        "title": {"text": "stage"},
        "showgrid": False,
    }
    if stage_count <= _MAX_ROWS_WITH_ALL_LABELS:
        stage_axis["dtick"] = 1
    height = 34 * stage_count + 80
    return {
        "barmode": "overlay",
        "height": int(np.clip(height, 180, 700)),
        "xaxis": {"title": {"text": "ms"}},
        "yaxis": stage_axis,
    }


class _Bars:
    """The bars of one kind of time of one stage: `base` and `length` in ms, and `stage`."""

    def __init__(self, intervals: Intervals, stage: int, start: int) -> None:
        self.base = (intervals.start - start) / NS_PER_MS
        self.length = (intervals.end - intervals.start) / NS_PER_MS
        self.stage = np.full(len(intervals.start), stage)


def _first_iterations(job: PipelineJob) -> Sequence[PipelineIteration]:
    """Return the first iterations of the first pipeline."""
    if not job.iterations:
        return []
    pipeline = job.iterations[0].pipeline
    own = [iteration for iteration in job.iterations if iteration.pipeline is pipeline]
    own.sort(key=lambda iteration: iteration.times[0].window_start)
    return own[:_MAX_ITERATIONS]


def _bars(times: StageTimes, kind: TimeKind, start: int) -> _Bars:
    """Return the bars of a kind of time; intervals close to one another become one bar."""
    intervals = times.intervals[kind]
    if len(intervals.start):
        smallest = times.window * _SMALLEST_PART
        gaps = intervals.start[1:] - intervals.end[:-1]
        is_apart = gaps > smallest
        is_first = np.append(True, is_apart)
        is_last = np.append(is_apart, True)
        intervals = Intervals(
            start=intervals.start[is_first],
            end=intervals.end[is_last],
        )
    return _Bars(
        intervals=intervals,
        stage=times.stage,
        start=start,
    )


def _title(iterations: Sequence[PipelineIteration]) -> str:
    """Return the title of the chart: its ranks and iterations."""
    ranks = iterations[0].pipeline.ranks
    names = [iteration.iteration for iteration in iterations if iteration.iteration]
    shown = ""
    if names:
        plural = "s" if len(names) > 1 else ""
        shown = f", iteration{plural} {', '.join(names)}"
    return f"Pipeline stages over time, ranks {ranks[0]} to {ranks[-1]}{shown}"


def _summary(iterations: Sequence[PipelineIteration]) -> str:
    """Return a sentence on the schedule, its bubble, and the largest part of the bubble."""
    schedule = iterations[0].schedule
    times = [times for iteration in iterations for times in iteration.times]
    window = sum(rank.window for rank in times)
    time_of_kind = {}
    for kind in BUBBLE_KINDS:
        time_of_kind[kind] = sum(rank.time(kind) for rank in times)
    bubble = sum(time_of_kind.values())
    share = 100.0 * bubble / max(window, 1)
    ideal_text = ""
    if np.isfinite(schedule.ideal_bubble_percent):
        ideal_text = f", ideally {schedule.ideal_bubble_percent:.1f} %"
    largest = max(time_of_kind, key=time_of_kind.__getitem__)
    largest_ms = time_of_kind[largest] / len(times) / NS_PER_MS
    return (
        f"{schedule.kind} with {schedule.micro_batches} micro-batches: the bubble is "
        f"{share:.1f} %{ideal_text}; the largest part: {_NAMES[largest]}, "
        f"{duration_text(largest_ms)} per stage"
    )
