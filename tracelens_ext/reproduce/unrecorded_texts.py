"""Texts among the arguments: not recorded, so guessed from the kernels, or the usual ones."""

from __future__ import annotations

from typing import Final

from tracelens_ext.reproduce.overloads import BoundCall
from tracelens_ext.reproduce.recorded_values import NotReproducibleError
from tracelens_ext.reproduce.schemas import Parameter
from tracelens_ext.reproduce.source_lines import SourceLine
from tracelens_ext.reproduce.specification import RecordedOperation

#: The usual text of a parameter that has no default.
_USUAL: Final = {"reduce": "sum", "rounding_mode": "floor", "padding": "same"}
#: Texts that the name of a kernel shows.
_SHOWN_BY_KERNELS: Final = {
    "rounding_mode": {"trunc": "trunc", "floor": "floor"},
    "reduce": {
        "Multiply": "prod",
        "Maximum": "amax",
        "Minimum": "amin",
        "Mean": "mean",
        "Add": "sum",
    },
}


def text_of(
    operation: RecordedOperation, call: BoundCall, parameter: Parameter
) -> SourceLine:
    """Return the text of a parameter that was not recorded.

    Raises:
        NotReproducibleError: nothing tells it.
    """
    kernels = " ".join(operation.kernels)
    for part, text in _SHOWN_BY_KERNELS.get(parameter.name, {}).items():
        if part in kernels:
            return SourceLine(f'"{text}"', "guessed: from the name of its kernel")
    if parameter.has_default:
        default = parameter.default
        shown = "None" if default is None else f'"{default}"'
        return SourceLine(
            shown, "guessed: the default, because strings are not recorded"
        )
    usual = _USUAL.get(parameter.name)
    if usual is not None:
        return SourceLine(f'"{usual}"', "guessed: strings are not recorded")
    if parameter.is_optional:
        return SourceLine("None", "guessed: strings are not recorded")
    raise NotReproducibleError(
        f"the string `{parameter.name}` of {call.schema.name} was not recorded"
    )
