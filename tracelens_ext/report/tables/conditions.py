"""Conditions that a trace must meet for a report to have a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tracelens_ext.report.tables.options import ReportOptions


class _GpuEvents(Protocol):
    """The GPU events of a trace, as far as conditions use them."""

    def __len__(self) -> int: ...
    @property
    def categories(self) -> object | None: ...


class _Context(Protocol):
    @property
    def gpu_events(self) -> _GpuEvents: ...


@dataclass(frozen=True)
class Condition:
    """A condition that a trace must meet for a report to have a table.

    Attributes:
        words: the condition as a clause, such as `the trace has GPU events`.
        holds: returns True if the trace of a context meets the condition, given the options of the
            report.
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
