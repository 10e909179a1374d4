"""Old names of arguments and attributes keep working for one release, with a warning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from tracelens_ext.compatibility.renamed_names import Kind, new_names

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class")


def takes_old_arguments(function: _Function) -> _Function:
    """Let callers use the names that the arguments had in version 0.1."""
    new_of_old = new_names(Kind.ARGUMENT)

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:  # noqa: ANN401  # whatever the function takes
        called = function.__qualname__.removesuffix(".__init__")
        arguments = _in_new_names(given, new_of_old, f"the argument {{}} of {called}")
        return function(*args, **arguments)

    return call  # type: ignore[return-value]  # of the same signature


def keeps_old_names(kind: type[_Class]) -> type[_Class]:
    """Let the fields of a dataclass be set and read by their old names, too."""
    new_of_old = new_names(Kind.ATTRIBUTE, kind.__name__)
    words = f"{kind.__name__}.{{}}"
    make = kind.__init__

    @functools.wraps(make)
    def make_with_old_names(self: _Class, *args: Any, **given: Any) -> None:  # noqa: ANN401
        make(self, *args, **_in_new_names(given, new_of_old, words))

    kind.__init__ = make_with_old_names  # type: ignore[assignment]  # of the same signature
    for old, new in new_of_old.items():
        setattr(kind, old, property(_getter(words.format(old), new)))
    return kind


def warn_of_old_name(old: str, new: str, stacklevel: int = 2) -> None:
    """Warn that a name will be removed in the next release.

    Args:
        old: a description of what was used.
        new: the name to use.
        stacklevel: the stack level of the user's line, counted from the caller of this function.
    """
    warnings.warn(
        f"{old} is now {new}; the old name will be removed in the next release",
        DeprecationWarning,
        stacklevel=stacklevel + 1,
    )


def _in_new_names(
    given: dict[str, Any], new_of_old: dict[str, str], words: str
) -> dict[str, Any]:
    """Replace old names of arguments by the current ones.

    Args:
        given: the arguments, by old or current names.
        new_of_old: old name → new name.
        words: the text of the warning about an old name, which replaces `{}`.
    """
    if new_of_old.keys().isdisjoint(given):
        return given
    arguments = {}
    for name, value in given.items():
        new = new_of_old.get(name, name)
        if new != name:
            # the caller of the decorated function
            warn_of_old_name(words.format(name), new, stacklevel=3)
        arguments[new] = value
    return arguments


def _getter(old: str, new: str) -> Callable[[object], object]:
    """Return a getter for the old name of an attribute."""

    def get(self: object) -> object:
        warn_of_old_name(old, new)
        return getattr(self, new)

    return get
