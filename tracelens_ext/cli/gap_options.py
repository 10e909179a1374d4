"""The options about selecting GPU events and about gaps, which `kernels` and `gaps` share."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.errors import UsageError

if TYPE_CHECKING:
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


_TOP, _SORT = 15, GapSort.avg


class StepBy(Enum):
    """How GPU work is of a step."""

    launch = "launch"
    time = "time"


Device = Annotated[int | None, typer.Option("--device", help="Only this device.")]
PStep = Annotated[
    int | None, typer.Option("--pstep", metavar="N", help="Only GPU work of ProfilerStep#N.", min=0)
]


@dataclass(frozen=True)
class SelectionOptions:
    """Which GPU events are asked about."""

    pstep: PStep = None
    pstep_by: Annotated[
        StepBy | None,
        typer.Option(
            "--pstep-by",
            help="Work of that step by launch, or by time.  [default: launch]",
            show_default=False,
        ),
    ] = None
    stream: Annotated[int | None, typer.Option("--stream", help="Only this stream.")] = None
    device: Device = None

    def selection(self, category: str | None = None) -> Selection:
        """What they select.

        Raises:
            UsageError: they do not go together.
        """
        from tracelens_ext.iterations.selection import Selection

        if self.pstep_by is not None and self.pstep is None:
            raise UsageError("--pstep-by needs --pstep N")
        by_time = self.pstep_by is StepBy.time
        return Selection(
            pstep=self.pstep,
            pstep_by="time" if by_time else "launch",
            stream=self.stream,
            device=self.device,
            category=category,
        )


@dataclass(frozen=True)
class GapOptions:
    """What is asked about gaps."""

    gap_top: Annotated[
        int | None,
        typer.Option(
            "--gap-top",
            help="Kernel pairs, longest gaps and (at most 8) rows of what the host was in to print."
            f"  [default: {_TOP}]",
            min=0,
            show_default=False,
        ),
    ] = None
    gap_sort: Annotated[
        GapSort | None,
        typer.Option(
            "--gap-sort",
            help=f"What kernel pairs are sorted by, largest first.  [default: {_SORT.value}]",
            show_default=False,
        ),
    ] = None
    hist_min: Annotated[
        float | None, typer.Option("--hist-min", help="Shortest gap of the histogram, µs.", min=0)
    ] = None
    hist_max: Annotated[
        float | None, typer.Option("--hist-max", help="Longest gap of the histogram, µs.", min=0)
    ] = None
    log: Annotated[
        bool, typer.Option("--log", help="Histogram bins of one ratio, not one width.")
    ] = False
    all: Annotated[bool, typer.Option("--all", help="In the JSON, every gap as a row too.")] = False

    def __post_init__(self) -> None:
        for bound in (self.hist_min, self.hist_max):
            if bound is not None and not math.isfinite(bound):
                raise UsageError("--hist-min and --hist-max are numbers of µs")
        low = self.hist_min or 0.0
        if self.hist_max is not None and self.hist_max <= low:
            raise UsageError(
                f"--hist-max {self.hist_max:g} is not above --hist-min {low:g}: no gap fits"
            )

    @property
    def top(self) -> int:
        """Pairs and longest gaps to print."""
        return _TOP if self.gap_top is None else self.gap_top

    @property
    def sort(self) -> GapSort:
        """What the pairs are sorted by."""
        return self.gap_sort or _SORT

    def check_unused(self) -> None:
        """Check that none is given, as gaps are not wanted.

        Raises:
            UsageError: one is.
        """
        given = [
            f"--{each.name.replace('_', '-')}"
            for each in fields(self)
            if getattr(self, each.name) != each.default
        ]
        if given:
            verb = "need" if len(given) > 1 else "needs"
            raise UsageError(f"{', '.join(given)} {verb} --gaps (or --gap-output FILE)")


@dataclass(frozen=True)
class OwnGapOptions(GapOptions):
    """Likewise, by the shorter names that the command `gaps` has."""

    gap_top: Annotated[
        int,
        typer.Option(
            "--gap-top",
            "--top",
            "-t",
            help="Kernel pairs, longest gaps and (at most 8) host rows to print.",
            min=0,
        ),
    ] = _TOP
    gap_sort: Annotated[
        GapSort,
        typer.Option(
            "--gap-sort", "--sort", "-s", help="What kernel pairs are sorted by, largest first."
        ),
    ] = _SORT


def selected_text(selection: Selection, work: GpuWork) -> str:
    """What is selected in words, and what is left out for want of a launch; empty for all."""
    left_out = selection.left_out(work)
    if not left_out:
        return selection.text
    return f"{selection.text}. {left_out} --pstep-by time goes by that."
