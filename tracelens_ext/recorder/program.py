"""Runs the program that is recorded as if this program were not there.

It inherits standard input, output and error. A typed Ctrl-C reaches it from the terminal, so it is
not forwarded; a signal to this process alone is.
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

#: What a shell exits with for a program that is not there, and for one that cannot be run.
NOT_FOUND = 127
NOT_EXECUTABLE = 126
#: A shell adds the number of the signal that ended the program.
SIGNALED = 128
_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
#: How often a program is looked at, seconds.
_POLL_S = 0.2
#: How long a signal to all processes of the terminal takes to reach both of two, seconds.
_TOGETHER_S = 0.1


class Ended(NamedTuple):
    """How the program ended."""

    exit_code: int  #: as a shell has it
    problem: str = ""  #: why it could not be started; empty if it was


def run_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    on_poll: Callable[[], None] | None = None,
) -> Ended:
    """Run a program to its end.

    Args:
        command: The program and its arguments.
        environment: Its environment variables.
        on_poll: Called several times a second while it runs.
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
    """Start a program; one without a first line that names its interpreter is a shell's."""
    try:
        return subprocess.Popen(command, env=environment)  # noqa: S603
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    return subprocess.Popen(["/bin/sh", *command], env=environment)  # noqa: S603


@contextmanager
def _signals_kept() -> Iterator[list[int]]:
    """Yield a list that grows by the signals that this process gets, which do nothing else."""
    received: list[int] = []

    def keep(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    handlers = {}
    try:
        for name in _FORWARDED:
            # Windows has not all of them; other threads than the main one cannot.
            with contextlib.suppress(AttributeError, ValueError, OSError):
                number = getattr(signal, name)
                if signal.getsignal(number) != signal.SIG_IGN:
                    handlers[number] = signal.signal(number, keep)
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _GroupWitness:
    """A process that does nothing but note signals to the whole group of processes.

    What it gets too, the program got as well: Ctrl-C at a terminal, or `kill` of the group.
    """

    def __init__(self, process: int, notes: int, life: int) -> None:
        self._process = process
        self._notes = notes  #: a pipe of the numbers of signals
        self._life = life  #: a pipe whose end is the end of the witness
        self._seen: list[int] = []

    @classmethod
    @contextmanager
    def start(cls) -> Iterator[_GroupWitness]:
        """Start the witness for this block."""
        if not hasattr(os, "fork"):  # Windows
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
        """Return whether a signal went to the whole group; each is told once."""
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
    """Be the witness; the process ends here."""
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
