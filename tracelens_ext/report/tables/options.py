"""The options of a report, declared once for Python, the command line and the documentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from inspect import Parameter
from typing import Any, TypeVar, get_type_hints

from tracelens_ext.categorize.user_patterns import user_pattern
from tracelens_ext.compatibility.earlier_arguments import keeps_old_names
from tracelens_ext.compatibility.earlier_names import new_table_name
from tracelens_ext.errors import UsageError

#: The value of the option `tables` for all tables.
ALL_TABLES = "all"
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _option(
    default: Any,  # noqa: ANN401
    meaning: str,
    *,
    least: float | None = None,
    most: float | None = None,
    metavar: str | None = None,
    shown_default: str | None = None,
) -> Any:  # noqa: ANN401
    """Declare an option of a report.

    Args:
        default: the value if none is given.
        meaning: what the option does, a sentence for `--help` and docstrings.
        least: the smallest valid value, if any.
        most: the largest valid value, if any.
        metavar: the placeholder of the value in `--help`.
        shown_default: the description of the default in `--help`, if the value does not explain
            itself.
    """
    properties = {
        "meaning": meaning,
        "least": least,
        "most": most,
        "metavar": metavar,
        "shown_default": shown_default,
    }
    metadata = {key: value for key, value in properties.items() if value is not None}
    return field(default=default, metadata=metadata)


@keeps_old_names
@dataclass(frozen=True)
class ReportOptions:
    """The options of a report: which tables it has, and what they contain.

    The metadata of each field describes the option. The command line and the docstrings of
    functions take the descriptions from there.

    Raises:
        UsageError: a value is outside the limits of its option, or an invalid pattern.
    """

    micro_idle_thresh_us: float | None = _option(
        None,
        "Report idle gaps up to this length (µs) separately.",
        least=0,
        metavar="US",
    )
    tracelens_sheets: bool = _option(
        False,
        "Write TraceLens's sheets with its columns, and kernel_summary, as its "
        "scripts do.",
    )
    kernel_summary: bool | None = _option(
        None,
        "Write the sheet kernel_summary.",
        shown_default="as --tracelens-sheets",
    )
    nn_module_instances: bool = _option(
        False,
        "In nn_modules, write one row per module instead of one per class.",
    )
    short_kernel_study: bool = _option(False, "Write the sheets about short kernels.")
    short_kernel_threshold_us: float = _option(
        10,
        "Kernels shorter than this (µs) count as short.",
        least=0,
    )
    short_kernel_histogram_bins: int = _option(
        100,
        "Number of histogram bins for short kernels.",
        least=1,
        most=10_000,
    )
    topk_short_kernels: int | None = _option(
        None,
        "Number of rows in the table of short kernels.",
        least=1,
    )
    topk_ops: int | None = _option(
        None, "Number of rows in each of the three ops_ tables.", least=1
    )
    group_by_num_kernels: bool = _option(
        False,
        "In ops_unique_args, separate rows by the number of GPU events launched.",
    )
    include_call_stack: bool = _option(
        False,
        "In ops_unique_args, include the modules around each operation.",
    )
    include_first_occurrence_time: bool = _option(
        False,
        "In ops_unique_args, include the time of each operation's first run.",
    )
    collective_analysis: bool = _option(
        True,
        "Write the sheet coll_analysis if there is communication.",
    )
    device_peaks: str | None = _option(
        None,
        "Peaks for the roofline: a file (TOML, or TraceLens JSON), or the name of a "
        "known device, such as 'H100 SXM'.",
        metavar="FILE",
        shown_default="the device of the trace",
    )
    finding_details: bool = _option(
        False,
        "Write a table with one row per place and piece of evidence of each finding.",
    )
    gaps: bool = _option(False, "Write the sheets about idle time and its causes.")
    counters: bool = _option(
        False,
        "Write the sheets about queue lengths and copy bandwidth.",
    )
    timeline_bins: bool = _option(False, "Write the tables of GPU work over time.")
    call_tree: bool = _option(
        False,
        "Write the table of modules, operations and kernels.",
    )
    what_if: bool = _option(
        False,
        "Write the sheets about the simulation: what-if scenarios and the critical "
        "path.",
    )
    iterations: bool = _option(
        False, "Write the sheets about iterations, if there are any."
    )
    annotation: str | None = _option(
        None,
        "Use annotations whose name matches as iterations; implies --iterations.",
        metavar="REGEX",
        shown_default="ProfilerStep#N",
    )
    tables: str = _option(
        "",
        "Also write these tables, separated by commas; `all` for every table.",
        metavar="NAMES",
    )

    @property
    def named_tables(self) -> frozenset[str]:
        """The names in the option `tables`."""
        names = {name.strip() for name in self.tables.split(",")}
        return frozenset(new_table_name(name) for name in names - {""})

    def names_any_of(self, *tables: str) -> bool:
        """Return True if the option `tables` names one of these tables, or all tables."""
        return not self.named_tables.isdisjoint((ALL_TABLES,) + tables)

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            check_option(option.name, value)
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
    if value is None:
        return
    limits = ReportOptions.__dataclass_fields__[name].metadata
    what = "time" if name.endswith("_us") else "number"
    if "least" in limits and not value >= limits["least"]:
        expected = f"expected a {what} of at least {limits['least']}"
        raise UsageError(f"{name} is {value}; {expected}")
    if "most" in limits and not value <= limits["most"]:
        expected = f"expected a {what} of at most {limits['most']}"
        raise UsageError(f"{name} is {value}; {expected}")


def takes_report_options(function: _Function) -> _Function:
    """Add the fields of `ReportOptions` to the signature and the docstring of a function.

    The function takes them as `**options`, and its docstring has a line `options:` in `Args`, which
    the descriptions of the options replace.
    """
    signature = inspect.signature(function)
    parameters_of_function = signature.parameters
    own_parameters = [
        parameter
        for parameter in parameters_of_function.values()
        if parameter.kind is not Parameter.VAR_KEYWORD
    ]
    options = [
        option
        for option in fields(ReportOptions)
        if option.name not in parameters_of_function
    ]
    option_parameters = _keyword_parameters(options)
    parameters = own_parameters + option_parameters
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    if function.__doc__ is not None:  # `python -OO` removes docstrings
        function.__doc__ = _with_options_described(function.__doc__, options)
    return function


def _keyword_parameters(options: list[Field[Any]]) -> list[Parameter]:
    types = get_type_hints(ReportOptions)
    return [
        Parameter(
            option.name,
            Parameter.KEYWORD_ONLY,
            default=option.default,
            annotation=types[option.name],
        )
        for option in options
    ]


def _with_options_described(docstring: str, options: list[Field[Any]]) -> str:
    """Return a docstring with a line for each option in place of the line `options:`."""
    text_before, _, rest = docstring.partition("        options: ")
    _, _, text_after = rest.partition("\n")
    lines = [
        f"        {option.name}: {option.metadata['meaning']}\n" for option in options
    ]
    return text_before + "".join(lines) + text_after
