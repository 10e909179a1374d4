"""The built-in detectors, registered through the same hook as those of plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.hooks import hookimpl

if TYPE_CHECKING:
    from tracelens_ext.findings.inspection import Detector


@hookimpl
def tracelens_findings() -> list[Detector]:
    """Return the built-in detectors in the order in which they may attribute time."""
    from tracelens_ext.findings.order import DETECTORS

    return list(DETECTORS)
