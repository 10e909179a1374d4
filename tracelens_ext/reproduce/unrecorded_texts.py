"""String arguments: not recorded, so guessed from the names of kernels or the defaults."""

from __future__ import annotations

from typing import Final

from tracelens_ext.reproduce.argument_source import ArgumentSource
from tracelens_ext.reproduce.overloads import BoundCall
from tracelens_ext.reproduce.recorded_values import NotReproducibleError
from tracelens_ext.reproduce.schemas import Parameter
from tracelens_ext.reproduce.specification import RecordedOperation

#: The usual string of a parameter without a default.
_USUAL: Final = {
    "reduce": "sum",
    "rounding_mode": "floor",
    "padding": "same",
    "indexing": "ij",
}
#: Parts of the names of kernels, and the strings that they stand for.
_SHOWN_BY_KERNELS: Final = {
    # The kernel's function has two lambdas: the first computes with tanh.
    "approximate": {
        "GeluType)::{lambda()#1}": "tanh",
        "GeluType)::{lambda()#2}": "none",
    },
    "rounding_mode": {"trunc": "trunc", "floor": "floor"},
    "reduce": {
        "Multiply": "prod",
        "Maximum": "amax",
        "Minimum": "amin",
        "Mean": "mean",
        "Add": "sum",
    },
}
_NOT_RECORDED: Final = "guessed: strings are not recorded"


def text_argument(
    operation: RecordedOperation, call: BoundCall, parameter: Parameter
) -> ArgumentSource:
    """Return a string argument.

    Raises:
        NotReproducibleError: nothing shows its value.
    """
    kernels = " ".join(operation.kernels)
    for part, text in _SHOWN_BY_KERNELS.get(parameter.name, {}).items():
        if part in kernels:
            return _guessed(text, "guessed: from the name of its kernel")
    if parameter.has_default:
        comment = "guessed: the default; strings are not recorded"
        return _guessed(parameter.default, comment)
    if parameter.name in _USUAL:
        return _guessed(_USUAL[parameter.name], _NOT_RECORDED)
    if parameter.is_optional:
        return _guessed(None, _NOT_RECORDED)
    raise NotReproducibleError(
        f"the string `{parameter.name}` of {call.schema.name} was not recorded"
    )


def _guessed(value: object, comment: str) -> ArgumentSource:
    code = "None" if value is None else f'"{value}"'
    return ArgumentSource(code, comment=comment)
