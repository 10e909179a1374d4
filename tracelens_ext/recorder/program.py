"""Runs the program to record as if it had been started without `record`.

The program inherits standard input, output and error. A Ctrl-C at the terminal reaches the program
directly, so it is not forwarded. A signal to this process alone is forwarded.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from select import select
from types import FrameType
from typing import NamedTuple

#: Exit codes of a shell for a program that does not exist, and for one that cannot be run.
NOT_FOUND = 127
NOT_EXECUTABLE = 126
#: A shell exits with this plus the number of the signal that ended the program.
SIGNALED = 128
_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
#: How often the state of the program is checked, seconds.
_POLL_S = 0.2
#: How much later a signal to all processes of a terminal may reach one of them, seconds.
_TOGETHER_S = 0.1


class Ended(NamedTuple):
    """The end of the program."""

    exit_code: int  #: the exit code that a shell would report
    problem: str = ""  #: why it could not be started; empty if it was


def run_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    on_poll: Callable[[], None] | None = None,
) -> Ended:
    """Run a program to its end.

    Args:
        command: the program and its arguments.
        environment: its environment variables.
        on_poll: called several times a second while it runs.
    """
    with _GroupWitness.start() as witness, _signals_kept() as received:
        try:
            process = _start(command, environment)
        except FileNotFoundError:
            return Ended(NOT_FOUND, f"{command[0]}: command not found")
        except OSError as error:
            problem = f"{command[0]}: cannot be run ({error.strerror})"
            return Ended(NOT_EXECUTABLE, problem)
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(_POLL_S)
                break
            while received:
                number = received.pop(0)
                if not witness.saw(number):
                    process.send_signal(number)
            if on_poll is not None:
                on_poll()
    return Ended(code if code >= 0 else SIGNALED - code)


def _start(
    command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a program. A script whose first line names no interpreter runs in a shell."""
    try:
        return subprocess.Popen(command, env=environment)  # noqa: S603
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    return subprocess.Popen(["/bin/sh", *command], env=environment)  # noqa: S603


@contextmanager
def _signals_kept() -> Iterator[list[int]]:
    """Yield a list that collects the signals to this process, which have no other effect."""
    received: list[int] = []

    def keep(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    handlers = {}
    try:
        for name in _FORWARDED:
            # Windows lacks some of these signals, and only the main thread can set handlers.
            with contextlib.suppress(AttributeError, ValueError, OSError):
                number = getattr(signal, name)
                if signal.getsignal(number) != signal.SIG_IGN:
                    handlers[number] = signal.signal(number, keep)
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _GroupWitness:
    """A process that only notes the signals to its group of processes.

    A signal that reaches the witness has reached the program, too: a Ctrl-C at the terminal, or a
    `kill` of the group.
    """

    def __init__(self, process: int, notes: int, life: int) -> None:
        self._process = process
        self._notes = (
            notes  #: the pipe on which the witness sends the numbers of signals
        )
        self._life = life  #: the pipe that, when it is closed, ends the witness
        self._seen: list[int] = []

    @classmethod
    @contextmanager
    def start(cls) -> Iterator[_GroupWitness]:
        """Run the witness during this block."""
        if not hasattr(os, "fork"):  # on Windows, there is no witness
            yield cls(0, -1, -1)
            return
        notes_end, notes = os.pipe()
        life_end, life = os.pipe()
        process = os.fork()
        if process == 0:
            _watch(notes, life_end, [notes_end, life])
        os.close(notes)
        os.close(life_end)
        try:
            yield cls(process, notes_end, life)
        finally:
            os.close(life)
            os.close(notes_end)
            os.waitpid(process, 0)

    def saw(self, number: int) -> bool:
        """Return whether a signal went to the whole group; each signal is reported only once."""
        deadline = time.monotonic() + _TOGETHER_S
        while number not in self._seen:
            patience_s = deadline - time.monotonic()
            if self._process == 0 or patience_s <= 0:
                return False
            is_ready, _, _ = select([self._notes], [], [], patience_s)
            if is_ready:
                self._seen.extend(os.read(self._notes, 64))
        self._seen.remove(number)
        return True


def _watch(notes: int, life: int, others: Sequence[int]) -> None:
    """Do the work of the witness; the process ends here."""
    try:
        for other in others:
            os.close(other)

        def note(number: int, _frame: FrameType | None) -> None:
            os.write(notes, bytes([number]))

        for name in _FORWARDED:
            signal.signal(getattr(signal, name), note)
        while os.read(life, 1):
            pass
    finally:
        os._exit(0)
