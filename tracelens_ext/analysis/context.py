"""The context that tables are built from: a trace, its call tree and its GPU events.

`TreePerfAnalyzer` is a context. It depends on the tables, so they must not depend on it; they
depend on this protocol. A table that needs more declares a protocol that extends this one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from inspect import Parameter
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from tracelens_ext.isolation import PartFailures
from tracelens_ext.trace import Trace
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.gpu_events import GpuEvents

TableOptions = ParamSpec("TableOptions")
TableResult = TypeVar("TableResult")


class AnalysisContext(Protocol):
    """A trace that is being analyzed."""

    @property
    def trace(self) -> Trace:
        """The trace."""

    @property
    def tree(self) -> CallTree:
        """Its call tree."""

    @property
    def gpu_events(self) -> GpuEvents:
        """Its GPU events, with their categories if those are on."""

    @property
    def failures(self) -> PartFailures:
        """The parts that could not be computed."""

    def cited_tables(self, device_peaks: str | None = None) -> frozenset[str]:
        """Return the names of the tables, and commands, that the evidence of findings cites."""


def of_gpu_events(
    function: Callable[Concatenate[GpuEvents, TableOptions], TableResult],
) -> Callable[Concatenate[AnalysisContext, TableOptions], TableResult]:
    """Make a table function, which takes a context, from a function that takes GPU events."""

    @wraps(function)
    def table(
        context: AnalysisContext,
        /,
        *args: TableOptions.args,
        **options: TableOptions.kwargs,
    ) -> TableResult:
        return function(context.gpu_events, *args, **options)

    # The signature shows the options of the table, with the context as the first parameter.
    signature = inspect.signature(function)
    _, *parameters = signature.parameters.values()
    context_parameter = Parameter("context", Parameter.POSITIONAL_ONLY)
    vars(table)["__signature__"] = signature.replace(
        parameters=[context_parameter] + parameters
    )
    return table
