"""What a trace must have for a table to be there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tracelens_ext.report.tables.options import ReportOptions


class _GpuEvents(Protocol):
    """The GPU events of a trace, as far as a report asks for them."""

    def __len__(self) -> int: ...
    @property
    def categories(self) -> object | None: ...


class _Context(Protocol):
    @property
    def gpu_events(self) -> _GpuEvents: ...


@dataclass(frozen=True)
class Condition:
    """What a trace must have for a table to be there.

    Attributes:
        words: what it is: `the trace has GPU events`.
        holds: returns whether the trace of a context has it, given the options of the report.
    """

    words: str
    holds: Callable[[Any, ReportOptions], bool]


def _has_gpu_events(context: _Context, _options: ReportOptions) -> bool:
    return len(context.gpu_events) > 0


def _has_no_gpu_events(context: _Context, _options: ReportOptions) -> bool:
    return len(context.gpu_events) == 0


def _has_categories(context: _Context, _options: ReportOptions) -> bool:
    return context.gpu_events.categories is not None


GPU_EVENTS = Condition("the trace has GPU events", _has_gpu_events)
NO_GPU_EVENTS = Condition("the trace has no GPU events", _has_no_gpu_events)
CATEGORIES = Condition("categories are on", _has_categories)
