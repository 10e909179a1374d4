"""Runs the recorded program as if it had been started directly.

The program inherits standard input, output and error. Signals to this process are forwarded to the
program. The exception is a signal to the whole process group, such as Ctrl-C at a terminal, because
the program gets it anyway.
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

#: Exit code of a shell for a program that does not exist.
NOT_FOUND = 127
#: Exit code of a shell for a program that cannot be run.
NOT_EXECUTABLE = 126
#: The exit code of a shell for a program that a signal ended is this plus the signal's number.
SIGNALED = 128
_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
#: Time between two checks whether the program has ended, seconds.
_POLL_S = 0.2
#: Time within which a signal to the process group reaches all of its processes, seconds.
_GROUP_SIGNAL_S = 0.1


class Ended(NamedTuple):
    """The end of the program."""

    exit_code: int  #: the exit code that a shell would have
    problem: str = ""  #: why the program could not be started; empty if it was started


def run_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    on_poll: Callable[[], None] | None = None,
) -> Ended:
    """Run a program to its end.

    Args:
        command: The program and its arguments.
        environment: Its environment variables.
        on_poll: Function that is called several times per second while the program runs.
    """
    with _GroupWitness.start() as witness, _signals_collected() as received:
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
                signal_number = received.pop(0)
                if not witness.saw(signal_number):
                    process.send_signal(signal_number)
            if on_poll is not None:
                on_poll()
    if code < 0:
        # `Popen` has the negative number of the signal that ended the program.
        return Ended(SIGNALED - code)
    return Ended(code)


def _start(
    command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a program; a script without a `#!` line is run by the shell."""
    try:
        return subprocess.Popen(command, env=environment)  # noqa: S603
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    return subprocess.Popen(["/bin/sh", *command], env=environment)  # noqa: S603


@contextmanager
def _signals_collected() -> Iterator[list[int]]:
    """Collect the numbers of the signals to this process in a list; they have no other effect."""
    received: list[int] = []

    def collect(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    handlers = {}
    try:
        for name in _FORWARDED:
            # Windows lacks some of them, and only the main thread may set handlers.
            with contextlib.suppress(AttributeError, ValueError, OSError):
                number = getattr(signal, name)
                if signal.getsignal(number) != signal.SIG_IGN:
                    handlers[number] = signal.signal(number, collect)
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _GroupWitness:
    """A process that only records which signals it gets.

    It is in the same process group as the program. A signal that the witness gets was sent to the
    whole group, such as Ctrl-C at a terminal, so the program got it as well.
    """

    def __init__(self, process: int, signal_pipe: int, life_pipe: int) -> None:
        self._process = process
        self._signal_pipe = signal_pipe  #: for reading the numbers of signals
        self._life_pipe = life_pipe  #: the witness ends when this is closed
        self._seen: list[int] = []

    @classmethod
    @contextmanager
    def start(cls) -> Iterator[_GroupWitness]:
        """Start the witness for this block."""
        if not hasattr(os, "fork"):  # Windows
            yield cls(0, -1, -1)
            return
        signal_reader, signal_writer = os.pipe()
        life_reader, life_writer = os.pipe()
        process = os.fork()
        if process == 0:
            _watch(signal_writer, life_reader, [signal_reader, life_writer])
        os.close(signal_writer)
        os.close(life_reader)
        try:
            yield cls(process, signal_reader, life_writer)
        finally:
            os.close(life_writer)
            os.close(signal_reader)
            os.waitpid(process, 0)

    def saw(self, number: int) -> bool:
        """Return True if the witness got a signal, too; the next call is about the next signal."""
        deadline = time.monotonic() + _GROUP_SIGNAL_S
        while number not in self._seen:
            remaining_s = deadline - time.monotonic()
            if self._process == 0 or remaining_s <= 0:
                return False
            is_ready, _, _ = select([self._signal_pipe], [], [], remaining_s)
            if is_ready:
                self._seen.extend(os.read(self._signal_pipe, 64))
        self._seen.remove(number)
        return True


def _watch(signal_writer: int, life_reader: int, unused_ends: Sequence[int]) -> None:
    """Run the witness in this process, and end the process.

    Args:
        signal_writer: Pipe for the numbers of signals.
        life_reader: Pipe that is closed at the other end when the witness must end.
        unused_ends: Ends of pipes that belong to the parent process.
    """
    try:
        for unused_end in unused_ends:
            os.close(unused_end)

        def report(number: int, _frame: FrameType | None) -> None:
            os.write(signal_writer, bytes([number]))

        for name in _FORWARDED:
            signal.signal(getattr(signal, name), report)
        while os.read(life_reader, 1):
            pass
    finally:
        os._exit(0)
