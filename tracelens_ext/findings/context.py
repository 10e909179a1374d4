"""What the tables of findings ask for."""

from __future__ import annotations

import os
from typing import Protocol

from tracelens_ext.analysis.context import AnalysisContext
from tracelens_ext.findings.finding import Findings


class FindingsContext(AnalysisContext, Protocol):
    """A trace that is being analyzed, and its findings."""

    def findings(self, device_peaks: str | os.PathLike[str] | None = None) -> Findings:
        """Return what would save time, judged by these peaks of the devices."""
