"""Regular expressions that users give."""

from __future__ import annotations

import re
from typing import Any, Final, Union

from tracelens_ext.errors import UsageError

_SHOWN: Final = 80


class UserPattern:
    """An expression of a user, who knows it as `what`; searches have the time limit of rules."""

    def __init__(self, given: str | re.Pattern[str], what: str) -> None:
        import regex

        from tracelens_ext.categorize.matcher import TimedPattern

        text: Any = getattr(given, "pattern", given)
        kept = re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE | re.ASCII
        self._called = f"{what} {text!r}"
        try:
            self._pattern = TimedPattern(text, getattr(given, "flags", 0) & int(kept))
        except (regex.error, TypeError, RecursionError, OverflowError) as error:
            raise UsageError(f"{self._called} is no regular expression ({error})") from None

    def search(self, name: str) -> bool:
        """Whether the expression occurs in a name."""
        try:
            return self._pattern.search(name)
        except TimeoutError:
            shown = name if len(name) <= _SHOWN else name[: _SHOWN - 3] + "..."
            why = f"takes too long on {shown!r}; make repeated parts exclude one another"
            raise UsageError(f"{self._called} {why}") from None


def user_pattern(given: Expression | None, what: str) -> UserPattern | None:
    """The expression ready to be searched for; None for None. Raises as `UserPattern` does."""
    return given if given is None or isinstance(given, UserPattern) else UserPattern(given, what)


Expression = Union[str, "re.Pattern[str]", UserPattern]
"""An expression as users give it, or as an earlier call made it ready."""
