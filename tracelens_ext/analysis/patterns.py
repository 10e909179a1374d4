"""Regular expressions that users give."""

from __future__ import annotations

import re

from tracelens_ext.errors import UsageError


def user_pattern(given: str | re.Pattern[str] | None, what: str) -> re.Pattern[str] | None:
    """The compiled expression; None for None.

    Args:
        given: the expression.
        what: what the user knows it as, such as `annotation` or `--op`.

    Raises:
        UsageError: it is none.
    """
    try:
        return None if given is None else re.compile(given)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"{what} {given!r} is no regular expression ({error})") from None
