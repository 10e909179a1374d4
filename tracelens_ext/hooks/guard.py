"""Keeping the run safe from plugins: their errors become one line, their calls end in time."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tracelens_ext.errors import TracelensError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECONDS_VARIABLE: Final = "TRACELENS_EXT_PLUGIN_SECONDS"
"""How long one call of a plugin may take, in seconds."""
_DEFAULT_SECONDS: Final = 10.0


class PluginTimeoutError(TracelensError):
    """A plugin did not answer in time."""


@contextmanager
def guarded(name: str, problems: list[str]) -> Iterator[None]:
    """Run code of a plugin: its error ends the block and becomes a line in `problems`.

    Only `KeyboardInterrupt` and its like pass through.
    """
    try:
        yield
    except (Exception, SystemExit) as error:  # noqa: BLE001  # a plugin may raise anything
        line = f"{name}: {one_line(error)}"
        if line not in problems:
            problems.append(line)


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


def call_within(seconds: float, function: Callable[[], Any]) -> Any:  # noqa: ANN401
    """Call a function in a thread of its own; give up waiting when it takes too long.

    Python cannot stop a thread: a call that never ends keeps its (daemon) thread until the
    program exits.
    """
    answers: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(function())
        except BaseException as error:  # noqa: BLE001  # raised again by the thread that waits
            errors.append(error)

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
