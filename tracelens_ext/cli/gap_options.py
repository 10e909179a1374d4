"""The options about selecting GPU events and about gaps, which `kernels` and `gaps` share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli.messages import print_report
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens_ext.iterations.selection import Selection
    from tracelens_ext.work.gpu_work import GpuWork


class GapSort(Enum):
    """What kernel pairs are sorted by, largest first."""

    count = "count"
    avg = "avg"
    avggap = "avggap"
    max = "max"
    maxgap = "maxgap"
    stdev = "stdev"


class StepBy(Enum):
    """How GPU work is of a step."""

    launch = "launch"
    time = "time"


PStep = Annotated[
    int | None,
    typer.Option("--pstep", metavar="N", help="Only GPU work of ProfilerStep#N.", min=0),
]
PStepBy = Annotated[
    StepBy | None,
    typer.Option(
        "--pstep-by",
        help="Work of that step by launch, or by time.  [default: launch]",
        show_default=False,
    ),
]
Stream = Annotated[int | None, typer.Option("--stream", help="Only this stream.")]
Device = Annotated[int | None, typer.Option("--device", help="Only this device.")]
GAP_TOP, GAP_SORT = 15, GapSort.avg
GapTop = Annotated[
    int | None,
    typer.Option(
        "--gap-top",
        help="Kernel pairs, longest gaps and (at most 8) rows of what the host was in to print."
        f"  [default: {GAP_TOP}]",
        min=0,
        show_default=False,
    ),
]
GapSorting = Annotated[
    GapSort | None,
    typer.Option(
        "--gap-sort",
        help=f"What kernel pairs are sorted by, largest first.  [default: {GAP_SORT.value}]",
        show_default=False,
    ),
]
GapOutput = Annotated[
    Path | None,
    typer.Option(
        "--gap-output",
        metavar="FILE",
        help="Write all about the gaps to a text file (- prints it).",
    ),
]
HistMin = Annotated[
    float | None, typer.Option("--hist-min", help="Shortest gap of the histogram, µs.", min=0)
]
HistMax = Annotated[
    float | None, typer.Option("--hist-max", help="Longest gap of the histogram, µs.", min=0)
]
Log = Annotated[bool, typer.Option("--log", help="Histogram bins of one ratio, not one width.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print all tables as JSON instead, every row of them.")
]
All = Annotated[bool, typer.Option("--all", help="In the JSON, every gap as a row too.")]


@dataclass(frozen=True)
class GapOptions:
    """What is asked about gaps."""

    sort: GapSort  #: what the pairs are sorted by
    top: int  #: pairs and longest gaps to print
    #: the shortest gap of the histogram, µs; None for the shortest there is.
    hist_min: float | None
    hist_max: float | None  #: the longest, likewise
    log: bool  #: whether the bins of the histogram have one ratio, not one width
    all: bool = False  #: whether the tables are to have every gap

    def __post_init__(self) -> None:
        for bound in (self.hist_min, self.hist_max):
            if bound is not None and not math.isfinite(bound):
                raise UsageError("--hist-min and --hist-max are numbers of µs")
        low = self.hist_min or 0.0
        if self.hist_max is not None and self.hist_max <= low:
            raise UsageError(
                f"--hist-max {self.hist_max:g} is not above --hist-min {low:g}: no gap fits"
            )


def of_kernels(
    sort: GapSort | None,
    top: int | None,
    hist_min: float | None,
    hist_max: float | None,
    log: bool,
    every: bool,
    *,
    wants_gaps: bool,
) -> GapOptions | None:
    """What `kernels` is asked about gaps; None for nothing.

    Raises:
        UsageError: an option about gaps is given, and gaps are not wanted.
    """
    if wants_gaps:
        top = GAP_TOP if top is None else top
        return GapOptions(sort or GAP_SORT, top, hist_min, hist_max, log, every)
    of_gaps = {
        "--gap-top": top is not None,
        "--gap-sort": sort is not None,
        "--hist-min": hist_min is not None,
        "--hist-max": hist_max is not None,
        "--log": log,
        "--all": every,
    }
    given = [option for option, is_given in of_gaps.items() if is_given]
    if given:
        verb = "need" if len(given) > 1 else "needs"
        raise UsageError(f"{', '.join(given)} {verb} --gaps (or --gap-output FILE)")
    return None


def selection_of(
    pstep: int | None,
    pstep_by: StepBy | None,
    stream: int | None,
    device: int | None,
    category: str | None = None,
) -> Selection:
    """What the options select.

    Raises:
        UsageError: they do not go together.
    """
    from tracelens_ext.iterations.selection import Selection

    if pstep_by is not None and pstep is None:
        raise UsageError("--pstep-by needs --pstep N")
    return Selection(
        pstep=pstep,
        pstep_by="time" if pstep_by is StepBy.time else "launch",
        stream=stream,
        device=device,
        category=category,
    )


def selected_text(selection: Selection, work: GpuWork) -> str:
    """What is selected in words, and what is left out for want of a launch; empty for all."""
    left_out = selection.left_out(work)
    if not left_out:
        return selection.text
    return f"{selection.text}. {left_out} --pstep-by time goes by that."


def print_json(
    title: str,
    trace: Path,
    sheets: Mapping[str, pd.DataFrame],
    selected: str,
    notes: Sequence[str] = (),
    members: Mapping[str, object] | None = None,
) -> None:
    """Print tables as one JSON document."""
    from tracelens_ext.report.report import Report

    facts: list[tuple[str, object]] = [("Trace", str(trace))]
    if selected:
        facts.append(("Selected", selected))
    print_report(Report(title, sheets, facts, notes, members=members or {}))
