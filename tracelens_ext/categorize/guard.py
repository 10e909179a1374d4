"""Keeping the run safe from plugins: their errors become one line, their calls end in time."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final

from tracelens_ext.errors import TracelensError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

SECONDS_VARIABLE: Final = "TRACELENS_EXT_PLUGIN_SECONDS"
"""How long one call of a plugin may take, in seconds."""
_DEFAULT_SECONDS: Final = 10.0


class PluginTimeoutError(TracelensError):
    """A plugin did not answer in time."""


class Guard:
    """Keeps a plugin's errors from the run: inside the context they become one line each.

    Only `KeyboardInterrupt` and its like pass through.
    """

    def __init__(self, name: str, problems: list[str]) -> None:
        self._name = name
        self._problems = problems

    def __enter__(self) -> None:
        """Start guarding."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Note an error; True so that it goes no further."""
        if not isinstance(error, (Exception, SystemExit)):
            return False
        line = f"{self._name}: {one_line(error)}"
        if line not in self._problems:
            self._problems.append(line)
        return True


def one_line(error: BaseException) -> str:
    """An error in one line, with its type unless it is one of ours."""
    text = " ".join(str(error).split())
    if isinstance(error, TracelensError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def time_limit() -> float:
    """How many seconds one call of a plugin may take."""
    try:
        seconds = float(os.environ.get(SECONDS_VARIABLE, ""))
    except ValueError:
        return _DEFAULT_SECONDS
    return min(max(0.1, seconds), threading.TIMEOUT_MAX) if seconds > 0 else _DEFAULT_SECONDS


def call_within(seconds: float, function: Callable[..., Any], arguments: Sequence[object]) -> Any:  # noqa: ANN401
    """Call a function in a thread of its own; give up waiting when it takes too long.

    Python cannot stop a thread: a call that never ends keeps its (daemon) thread until the
    program exits.
    """
    answers: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        catcher = _Catcher(errors)
        with catcher:
            answers.append(function(*arguments))

    thread = threading.Thread(target=run, name="tracelens-ext plugin", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise PluginTimeoutError(
            f"no answer within {seconds:g} s; {SECONDS_VARIABLE} sets the limit"
        )
    if errors:
        raise errors[0]
    return answers[0]


class _Catcher:
    """Carries whatever is raised in a thread over to the one that waits for it."""

    def __init__(self, errors: list[BaseException]) -> None:
        self._errors = errors

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is not None:
            self._errors.append(error)
        return True
