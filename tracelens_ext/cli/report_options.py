"""Every field of `ReportOptions` as an option of a command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

from tracelens_ext.cli.options import report_option
from tracelens_ext.tables.options import ReportOptions


def with_report_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each field of `ReportOptions`.

    Args:
        command: takes them as one `ReportOptions`, by keyword; the options stand in its place.
    """
    types = get_type_hints(ReportOptions)
    parameters: list[inspect.Parameter] = []
    taken_as = ""
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if parameter.annotation is not ReportOptions:
            parameters.append(parameter)
            continue
        taken_as = parameter.name
        parameters += [
            parameter.replace(
                name=field.name,
                default=field.default,
                annotation=Annotated[types[field.name], report_option(field.name)],
            )
            for field in fields(ReportOptions)
        ]

    @functools.wraps(command)
    def with_options(**given: Any) -> None:  # noqa: ANN401  # whatever the command takes
        chosen = {field.name: given.pop(field.name) for field in fields(ReportOptions)}
        command(**given, **{taken_as: ReportOptions(**chosen)})

    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_options
