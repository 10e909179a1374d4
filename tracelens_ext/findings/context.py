"""The interface that the tables of findings need of a trace."""

from __future__ import annotations

import os
from typing import Protocol

from tracelens_ext.analysis.context import AnalysisContext
from tracelens_ext.findings.finding import Findings


class FindingsContext(AnalysisContext, Protocol):
    """A trace that is being analyzed, and its findings."""

    def findings(self, device_peaks: str | os.PathLike[str] | None = None) -> Findings:
        """Return the findings.

        Args:
            device_peaks: see `roofline.peaks.read_peaks`; None: the known peaks of the devices.
        """
