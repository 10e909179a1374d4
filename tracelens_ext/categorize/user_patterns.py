"""Regular expressions that users give."""

from __future__ import annotations

import re
from typing import Any, Final, Union

from tracelens_ext.errors import UsageError

_LONGEST_SHOWN: Final = 80
_FLAGS: Final = re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE | re.ASCII


class UserPattern:
    """An expression of a user, who knows it as `what`; searches have the time limit of rules."""

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
        """Return whether the expression occurs in a name.

        Raises:
            UsageError: it takes too long.
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
    """Return the expression ready to be searched for; None for None.

    Raises:
        UsageError: it is no regular expression.
    """
    if given is None or isinstance(given, UserPattern):
        return given
    return UserPattern(given, what)


Expression = Union[str, "re.Pattern[str]", UserPattern]
"""An expression as users give it, or as an earlier call made it ready."""
