"""The options about gaps of the commands `gaps` and `kernels`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from tracelens_ext.errors import UsageError

GapSort = Literal["count", "avg", "avggap", "max", "maxgap", "stdev"]

DEFAULT_TOP = 15
DEFAULT_SORT: GapSort = "avg"

HistMin = Annotated[
    float | None, typer.Option(min=0, help="Shortest gap in the histogram, µs.")
]
HistMax = Annotated[
    float | None, typer.Option(min=0, help="Longest gap in the histogram, µs.")
]
Logarithmic = Annotated[
    bool, typer.Option("--log", help="Use logarithmic histogram bins.")
]
EveryGap = Annotated[
    bool, typer.Option("--all", help="In the JSON, include a row for every gap.")
]


@dataclass(frozen=True)
class GapOptions:
    """The options about gaps of commands that show kernels, too."""

    gap_top: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=("Number of rows of each table to print.  [default: 15]"),
        ),
    ] = None
    gap_sort: Annotated[
        GapSort | None,
        typer.Option(
            help="How to sort the kernel pairs, largest first.  [default: avg]"
        ),
    ] = None
    hist_min: HistMin = None
    hist_max: HistMax = None
    log: Logarithmic = False
    all: EveryGap = False

    def __post_init__(self) -> None:
        low = self.hist_min or 0.0
        high = self.hist_max or 0.0
        if not (math.isfinite(low) and math.isfinite(high)):
            raise UsageError("--hist-min and --hist-max must be finite numbers of µs")
        if self.hist_max is not None and high <= low:
            raise UsageError(
                f"--hist-max {high:g} is not greater than --hist-min {low:g}, so no "
                "gap fits"
            )

    @property
    def top(self) -> int:
        """How many rows of each table are printed."""
        return DEFAULT_TOP if self.gap_top is None else self.gap_top

    @property
    def sort(self) -> GapSort:
        """The statistic by which pairs of kernels are sorted."""
        return self.gap_sort or DEFAULT_SORT
