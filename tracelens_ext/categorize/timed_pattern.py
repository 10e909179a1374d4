"""Searching for expressions of users, which may backtrack without end, under a time limit."""

from __future__ import annotations

import time
from typing import Final

_SEARCH_SECONDS: Final = 0.8
_FIRST_SECONDS: Final = 1.0
_SECONDS_PER_SEARCH: Final = 0.0005


class TimedPattern:
    """A regular expression whose searches end in time.

    Args:
        expression: in the syntax of the `regex` library.
        flags: such as `re.IGNORECASE`.

    Raises:
        regex.error, OverflowError, RecursionError: it is no regular expression.
    """

    def __init__(self, expression: str, flags: int = 0) -> None:
        import regex

        self._pattern = regex.compile(expression, flags)
        self._seconds = 0.0
        self._searches = 0

    def search(self, text: str, *, limit_all: bool = True) -> bool:
        """Whether the expression occurs in a text.

        Args:
            text: where to search.
            limit_all: whether all searches together have a limit, which grows with their number.

        Raises:
            TimeoutError: this search, or all of them, take too long.
        """
        started = time.perf_counter()
        found = self._pattern.search(text, timeout=_SEARCH_SECONDS) is not None
        self._searches += 1
        self._seconds += time.perf_counter() - started
        # One search may be quick enough and a hundred thousand of them still hang the run.
        if limit_all and self._seconds > _FIRST_SECONDS + self._searches * _SECONDS_PER_SEARCH:
            raise TimeoutError
        return found
