"""What the tables of the roofline need from an analyzed trace."""

from __future__ import annotations

import os
from typing import Protocol

from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.analysis.operations.launchers import Launchers
from tracelens_ext.analysis.serving.phases import ServingContext
from tracelens_ext.roofline.analysis import Roofline


class RooflineContext(ServingContext, Protocol):
    """A trace that is being analyzed, with its serving steps and its roofline."""

    @property
    def launchers(self) -> Launchers:
        """The operations that launched GPU work."""

    def roofline(
        self,
        device_peaks: str | os.PathLike[str] | None = None,
        selection: EventFilter | None = None,
    ) -> Roofline:
        """Return the operations and their best case."""
