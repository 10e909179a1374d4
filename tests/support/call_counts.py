"""How much work a function does, as a number of calls: unlike its time, always the same."""

from __future__ import annotations

import sys
from collections.abc import Callable


def calls_during(function: Callable[[], object]) -> int:
    """Return how many functions, of Python and C, are called while a function runs."""
    calls = 0

    def count_call(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    earlier_profiler = sys.getprofile()
    sys.setprofile(count_call)
    try:
        function()
    finally:
        sys.setprofile(earlier_profiler)
    return calls
