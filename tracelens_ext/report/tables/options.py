"""The options of a report: for Python, for the command line, and for their documentation."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from inspect import Parameter
from operator import ge, le
from types import MappingProxyType
from typing import Any, TypeVar, get_type_hints

from tracelens_ext.categorize.user_patterns import user_pattern
from tracelens_ext.errors import UsageError

#: What `tables` is for every table.
ALL_TABLES = "all"
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _option(default: Any, **more: Any) -> Any:  # noqa: ANN401
    """A field with limits, `least` and `most`; `metavar`, `shown_default` for the command line."""
    return field(default=default, metadata=more)


@dataclass(frozen=True)
class ReportOptions:
    """Which sheets a report has, and what they hold.

    Attributes:
        micro_idle_thresh_us: Split idle time into holes up to this, µs, and longer.
        tracelens_sheets: Write TraceLens's sheets with its columns, and kernel_summary, as its
            scripts do.
        kernel_summary: Write the sheet kernel_summary.
        nn_module_instances: In nn_modules, a row for each module and not for each class.
        short_kernel_study: Write the sheets about short kernels.
        short_kernel_threshold_us: Kernels shorter than this are short, µs.
        short_kernel_histogram_bins: Bins of the histogram of short kernels.
        topk_short_kernels: Rows of the table of short kernels.
        topk_ops: Rows of each of the three ops_ tables.
        group_by_num_kernels: In ops_unique_args, a row for each number of GPU events launched.
        include_call_stack: In ops_unique_args, also the modules around each operation.
        include_first_occurrence_time: In ops_unique_args, also when each operation ran first.
        collective_analysis: Write the sheet coll_analysis, where there is communication.
        device_peaks: Peaks for the roofline: a file (TOML, or TraceLens's JSON), or a known device
            by its name, such as 'H100 SXM'.
        finding_details: Write the table of the places and the evidence of findings, a row each.
        gaps: Write the sheets about idle time and its causes.
        counters: Write the sheets about queue lengths and speeds of copies.
        time_axis: Write the tables of GPU work over time.
        call_tree: Write the table of modules, operations and kernels.
        what_if: Write the sheets about a replay: what if, and the critical path.
        iterations: Write the sheets about iterations, if there are any.
        annotation: Take annotations whose name matches for iterations; implies --iterations.
        tables: Also write these tables, joined by commas; `all` for every table.
    """

    micro_idle_thresh_us: float | None = _option(None, least=0, metavar="US")
    tracelens_sheets: bool = False
    kernel_summary: bool | None = _option(None, shown_default="as --tracelens-sheets")
    nn_module_instances: bool = False
    short_kernel_study: bool = False
    short_kernel_threshold_us: float = _option(10, least=0)
    short_kernel_histogram_bins: int = _option(100, least=1, most=10_000)
    topk_short_kernels: int | None = _option(None, least=1)
    topk_ops: int | None = _option(None, least=1)
    group_by_num_kernels: bool = False
    include_call_stack: bool = False
    include_first_occurrence_time: bool = False
    collective_analysis: bool = True
    device_peaks: str | None = _option(
        None, metavar="FILE", shown_default="the device of the trace"
    )
    finding_details: bool = False
    gaps: bool = False
    counters: bool = False
    time_axis: bool = False
    call_tree: bool = False
    what_if: bool = False
    iterations: bool = False
    annotation: str | None = _option(None, metavar="REGEX", shown_default="ProfilerStep#N")
    tables: str = _option("", metavar="NAMES")

    @property
    def named_tables(self) -> frozenset[str]:
        """What `tables` names."""
        return frozenset(name.strip() for name in self.tables.split(",")) - {""}

    def names(self, *tables: str) -> bool:
        """Whether `tables` names one of these, or all."""
        return not self.named_tables.isdisjoint((ALL_TABLES, *tables))

    def __post_init__(self) -> None:
        for option in fields(self):
            check_option(option.name, getattr(self, option.name))
        user_pattern(self.annotation, "annotation")
        if self.kernel_summary is None:
            object.__setattr__(self, "kernel_summary", self.tracelens_sheets)
        if self.annotation is not None:
            object.__setattr__(self, "iterations", True)


def check_option(name: str, value: Any) -> None:  # noqa: ANN401
    """Check a value for a field of `ReportOptions` against the limits of the field.

    Raises:
        UsageError: the value is too small or too large.
    """
    limits = ReportOptions.__dataclass_fields__[name].metadata
    what = "time" if name.endswith("_us") else "number"
    if value is None:
        return
    for limit, fits in (("least", ge), ("most", le)):
        bound = limits.get(limit)
        if bound is not None and not fits(value, bound):
            expected = f"expected a {what} of at {limit} {bound}"
            raise UsageError(f"{name} is {value}; {expected}")


_DOC = inspect.cleandoc(ReportOptions.__doc__ or "")
_MEANINGS = dict(re.findall(r"(?m)^ +(\w+): (.+(?:\n {8}.+)*)", _DOC))
for _field in fields(ReportOptions):
    _meaning = {"meaning": " ".join(_MEANINGS.get(_field.name, "").split())}
    _field.metadata = MappingProxyType({**_field.metadata, **_meaning})


def takes_report_options(function: _Function) -> _Function:
    """Name the fields of `ReportOptions` in a function's signature, and as last of its `Args`."""
    signature = inspect.signature(function)
    types = get_type_hints(ReportOptions)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [f for f in fields(ReportOptions) if f.name not in signature.parameters]
    named = [
        Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=types[f.name])
        for f in options
    ]
    function.__signature__ = signature.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
    lines = [f"        {f.name}: {f.metadata['meaning']}\n" for f in options]
    head, _, tail = (function.__doc__ or "").partition("        options: ")
    function.__doc__ = head + "".join(lines) + tail.partition("\n")[2]
    return function
