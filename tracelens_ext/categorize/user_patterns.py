"""Regular expressions that users give as options or arguments."""

from __future__ import annotations

import re
from typing import Any, Final, Union

from tracelens_ext.errors import UsageError

_LONGEST_SHOWN: Final = 80
_FLAGS: Final = re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE | re.ASCII


class UserPattern:
    """A regular expression of a user. Searches have the same time limit as those of rules.

    Args:
        given: the expression.
        what: the name of the option or argument, for error messages.

    Raises:
        UsageError: the expression is invalid.
    """

    def __init__(self, given: str | re.Pattern[str], what: str) -> None:
        import regex

        from tracelens_ext.categorize.matcher import TimedPattern

        text: Any = getattr(given, "pattern", given)
        flags = getattr(given, "flags", 0) & int(_FLAGS)
        self._label = f"{what} {text!r}"
        try:
            self._pattern = TimedPattern(text, flags)
        except (regex.error, TypeError, RecursionError, OverflowError) as error:
            raise UsageError(
                f"{self._label} is not a regular expression ({error})"
            ) from None

    def search(self, name: str) -> bool:
        """Tell whether the expression occurs in a name.

        Raises:
            UsageError: the search takes too long.
        """
        try:
            return self._pattern.search(name)
        except TimeoutError:
            quoted = name
            if len(name) > _LONGEST_SHOWN:
                quoted = name[: _LONGEST_SHOWN - 3] + "..."
            reason = (
                f"takes too long on {quoted!r}; make repeated parts mutually exclusive"
            )
            raise UsageError(f"{self._label} {reason}") from None


def user_pattern(given: Expression | None, what: str) -> UserPattern | None:
    """Return an expression as a `UserPattern`; None for None.

    Raises:
        UsageError: the expression is invalid.
    """
    if given is None or isinstance(given, UserPattern):
        return given
    return UserPattern(given, what)


Expression = Union[str, "re.Pattern[str]", UserPattern]
"""An expression of a user, or one that was already converted."""
