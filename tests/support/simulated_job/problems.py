"""The problems that the job can have: each makes one finding, of a cost that is asked for.

``problems.json`` has for each the statements of the job that make it, and ``after`` or ``before``
which part of the job they are played.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.simulated_job.machine import read_data
from tracelens_ext.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: What it costs at most: a trace of more would be hundreds of megabytes.
_MOST_MS = 10_000.0
#: How many steps are profiled, and by the problem that needs more: five whole ones, at least, say
#: which is odd.
_USUAL_STEPS = 3
_STEPS = {"slow-iterations": 6}


def check_problems(problems: Mapping[str, float]) -> None:
    """Whether the demo can have them.

    Raises:
        UsageError: there is no such problem, or it cannot cost that.
    """
    known = read_data("problems")
    for ident, cost in problems.items():
        if ident not in known:
            names = ", ".join(known)
            raise UsageError(f"no problem {ident!r} in the demo; choose of: {names}")
        if not 0 < cost <= _MOST_MS:
            raise UsageError(
                f"{ident}={cost:g}: a problem costs up to {_MOST_MS:g} milliseconds"
            )


def steps_for(problems: Iterable[str], asked: int | None = None) -> int:
    """How many steps are profiled, so that all the problems show: as many as were asked for.

    Raises:
        UsageError: that is too few.
    """
    least = max((_STEPS.get(ident, 1) for ident in problems), default=1)
    steps = max(_USUAL_STEPS, least) if asked is None else asked
    if steps < least:
        those = "the problems take" if least > 1 else "choose"
        raise UsageError(f"{steps} steps cannot be profiled; {those} at least {least}")
    return steps
