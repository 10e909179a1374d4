"""The options of a report: for Python, for the command line, and for their documentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import ge, le
from typing import Any, TypeVar, get_type_hints

from tracelens_ext.errors import UsageError
from tracelens_ext.work.patterns import user_pattern

#: What `tables` is for every table.
ALL_TABLES = "all"
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _option(default: Any, meaning: str, **more: Any) -> Any:  # noqa: ANN401
    """A field, and what the command line and the documentation say of it.

    `more`: the limits `least` and `most`; `metavar`, `shown_default` for the command line.
    """
    return field(default=default, metadata={"meaning": meaning, **more})


@dataclass(frozen=True)
class ReportOptions:
    """Which sheets a report has, and what they hold."""

    micro_idle_thresh_us: float | None = _option(
        None, "Split idle time into holes up to this, µs, and longer.", least=0, metavar="US"
    )
    tracelens_sheets: bool = _option(
        False, "Write TraceLens's sheets with its columns, and kernel_summary, as its scripts do."
    )
    kernel_summary: bool | None = _option(
        None, "Write the sheet kernel_summary.", shown_default="as --tracelens-sheets"
    )
    nn_module_instances: bool = _option(
        False, "In nn_modules, a row for each module and not for each class."
    )
    short_kernel_study: bool = _option(False, "Write the sheets about short kernels.")
    short_kernel_threshold_us: float = _option(
        10, "Kernels shorter than this are short, µs.", least=0
    )
    short_kernel_histogram_bins: int = _option(
        100, "Bins of the histogram of short kernels.", least=1, most=10_000
    )
    topk_short_kernels: int | None = _option(None, "Rows of the table of short kernels.", least=1)
    topk_ops: int | None = _option(None, "Rows of each of the three ops_ tables.", least=1)
    group_by_num_kernels: bool = _option(
        False, "In ops_unique_args, a row for each number of GPU events launched."
    )
    include_call_stack: bool = _option(
        False, "In ops_unique_args, also the modules around each operation."
    )
    include_first_occurrence_time: bool = _option(
        False, "In ops_unique_args, also when each operation ran first."
    )
    collective_analysis: bool = _option(
        True, "Write the sheet coll_analysis, where there is communication."
    )
    device_peaks: str | None = _option(
        None,
        "Peaks for the roofline: a file (TOML, or TraceLens's JSON), or a known device by its name,"
        " such as 'H100 SXM'.",
        metavar="FILE",
        shown_default="the device of the trace",
    )
    finding_details: bool = _option(
        False, "Write the table of the places and the evidence of findings, a row each."
    )
    gaps: bool = _option(False, "Write the sheets about idle time and its causes.")
    counters: bool = _option(False, "Write the sheets about queue lengths and speeds of copies.")
    time_axis: bool = _option(False, "Write the tables of GPU work over time.")
    call_tree: bool = _option(False, "Write the table of modules, operations and kernels.")
    what_if: bool = _option(
        False, "Write the sheets about a replay: what if, and the critical path."
    )
    iterations: bool = _option(False, "Write the sheets about iterations, if there are any.")
    annotation: str | None = _option(
        None,
        "Take annotations whose name matches for iterations; implies --iterations.",
        metavar="REGEX",
        shown_default="ProfilerStep#N",
    )

    tables: str = _option(
        "", "Also write these tables, joined by commas; `all` for every table.", metavar="NAMES"
    )

    @property
    def named_tables(self) -> frozenset[str]:
        """What `tables` names."""
        return frozenset(name.strip() for name in self.tables.split(",")) - {""}

    def names(self, *tables: str) -> bool:
        """Whether `tables` names one of these, or all."""
        return not self.named_tables.isdisjoint((ALL_TABLES, *tables))

    def __post_init__(self) -> None:
        for each in fields(self):
            what = "time" if each.name.endswith("_us") else "number"
            for limit, fits in (("least", ge), ("most", le)):
                value, bound = getattr(self, each.name), each.metadata.get(limit)
                if value is not None and bound is not None and not fits(value, bound):
                    expected = f"expected a {what} of at {limit} {bound}"
                    raise UsageError(f"{each.name} is {value}; {expected}")
        user_pattern(self.annotation, "annotation")
        if self.kernel_summary is None:
            object.__setattr__(self, "kernel_summary", self.tracelens_sheets)
        if self.annotation is not None:
            object.__setattr__(self, "iterations", True)


def takes_report_options(function: _Function) -> _Function:
    """Name the fields of `ReportOptions` in a function's signature, and as last of its `Args`."""
    signature, types = inspect.signature(function), get_type_hints(ReportOptions)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [f for f in fields(ReportOptions) if f.name not in signature.parameters]
    named = [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=types[f.name]
        )
        for f in options
    ]
    function.__signature__ = signature.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
    lines = [f"        {f.name}: {f.metadata['meaning']}\n" for f in options]
    head, _, tail = (function.__doc__ or "").partition("        options: ")
    function.__doc__ = head + "".join(lines) + tail.partition("\n")[2]
    return function
