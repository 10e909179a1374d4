"""What an export draws in lanes of our own: iterations, and what is said of stretches of time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracelens_ext.iterations.iterations import find_iterations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracelens_ext.work.gpu_work import GpuWork


@dataclass(frozen=True)
class Span:
    """A stretch of time, ns since the trace's first event."""

    lane: str
    name: str
    start: int
    end: int
    args: Mapping[str, object] = field(default_factory=dict)


def iteration_spans(work: GpuWork) -> list[Span]:
    """The iterations of the trace's first process that has any."""
    found = find_iterations(work.tree)
    return [
        Span("iterations", f"iteration {number}", int(start), int(end))
        for number, process, start, end in zip(
            found.number, found.process, found.start, found.end, strict=True
        )
        if process == found.process[0]
    ]
