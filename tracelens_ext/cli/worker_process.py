"""What runs in a worker process: one trace after the other, until the parent process ends."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
from collections.abc import Callable, MutableSequence
from multiprocessing.connection import Connection
from typing import Generic, NamedTuple, TypeVar

from tracelens_ext.errors import OutputError, TraceError
from tracelens_ext.settings import Progress, ReadingOptions

Result = TypeVar("Result")
#: What to do with one trace, given how to read it and what to call with the bytes read so far.
Task = Callable[[ReadingOptions, Progress | None], Result]


class Answer(NamedTuple, Generic[Result]):
    """What a worker returns for one trace."""

    printed: str  #: what the task wrote to standard output and standard error
    result: Result | None  #: None if there is an error
    error: str | None  #: the message of the error of the trace, None if there is none


class ReadingProgress:
    """How far the traces are read, in memory that the parent shares with its workers.

    Each trace has two numbers: the bytes read so far, and the size of the file, 0 if unknown.
    """

    def __init__(self, numbers: MutableSequence[int]) -> None:
        self._numbers = numbers

    def set(self, trace: int, bytes_read: int, size: int | None) -> None:
        """Note how far a trace is read."""
        self._numbers[2 * trace] = bytes_read
        self._numbers[2 * trace + 1] = size or 0

    def bytes_read(self, trace: int) -> int:
        """Return how many bytes of a trace are read."""
        return self._numbers[2 * trace]

    def size(self, trace: int) -> int | None:
        """Return the size of the file of a trace, None if it is unknown."""
        return self._numbers[2 * trace + 1] or None


#: Set in each worker when it starts.
_progress: ReadingProgress | None = None


def start_worker(parent: Connection, progress_numbers: MutableSequence[int]) -> None:
    """Prepare a new worker process.

    Args:
        parent: a connection on which nothing is sent; it closes when the parent ends, and then the
            worker ends, too, and removes half-written files.
        progress_numbers: the shared memory of `ReadingProgress`.
    """
    global _progress
    _progress = ReadingProgress(progress_numbers)
    signal.signal(signal.SIGTERM, _exit_in_order)
    _close_output()
    watcher = threading.Thread(target=_end_with, args=(parent,), daemon=True)
    watcher.start()


def _close_output() -> None:
    """Discard what libraries print past `sys.stdout`; only the parent prints."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    stdout_and_stderr = (1, 2)
    for descriptor in stdout_and_stderr:
        os.dup2(nowhere, descriptor)


def _end_with(parent: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        parent.recv()
    os.kill(os.getpid(), signal.SIGTERM)


def _exit_in_order(*_: object) -> None:
    """Exit through the `finally` blocks that remove half-written files."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit


def answer(
    task: Task[Result], trace: int, reading: ReadingOptions
) -> Answer[Result] | None:
    """Do a task in the worker.

    Returns:
        The answer, or None after an unexpected error: the parent then does the task itself and
        meets that error where it can be reported.
    """
    printed = io.StringIO()

    def note_progress(bytes_read: int, size: int | None) -> None:
        if _progress is not None:
            _progress.set(trace, bytes_read, size)

    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            result = task(reading, note_progress)
    except (TraceError, OutputError) as error:
        return Answer(printed=printed.getvalue(), result=None, error=str(error))
    except SystemExit:
        # A `ProcessPoolExecutor` would catch this and go on with the next task.
        os._exit(1)
    except Exception:  # noqa: BLE001  # the parent does the task again and reports the error
        return None
    return Answer(printed=printed.getvalue(), result=result, error=None)
