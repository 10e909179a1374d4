"""Runs a command of the command line, reports its errors, and exits.

Only this package prints, and only this module exits.

A signal that asks the program to stop (Ctrl-C, a closed terminal, `kill`) raises
`KeyboardInterrupt` in the main thread, so that the `finally` blocks of writers remove half-written
files. A second signal does not disturb them; a third ends the program at once.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

#: Exit code after a Ctrl-C. typer returns it, too, when it catches the `KeyboardInterrupt`.
_INTERRUPTED = 130
#: Like a shell, the program exits with 128 plus the number of the signal that stopped it.
_BASE_EXIT_CODE = 128
#: The number of signals after which the program ends at once and leaves half-written files.
_MOST_SIGNALS = 3
#: The garbage collector runs after this many new objects. Commands make tables and hardly any
#: reference cycles, and with Python's default, collecting takes a fifth of the time of a small
#: trace. Importing the libraries makes fewer objects than this.
_OBJECTS_BEFORE_COLLECTION = 200_000
_MIN_MEMORY_BYTES = 1 << 28
_MIN_COLUMNS = 20
_TOO_LITTLE_MEMORY = (
    "cannot be analyzed with so little memory (ulimit -v); allow at least 256 MB"
)
_OUT_OF_MEMORY = (
    "there is not enough memory for this; free some memory, or analyze fewer traces "
    "at once"
)


class Stopping:
    """Receives the signals that stop a run, and remembers the first one."""

    def __init__(self) -> None:
        self._first_signal = 0
        self._signal_count = 0
        self._process = os.getpid()

    def listen(self) -> None:
        """Handle the signals, except those that are ignored, as under `nohup`."""
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            # Windows has no SIGHUP, and only the main thread can set handlers.
            with contextlib.suppress(AttributeError, ValueError, OSError):
                number = getattr(signal, name)
                is_ignored = signal.getsignal(number) == signal.SIG_IGN
                if not is_ignored:
                    signal.signal(number, self._receive)

    @property
    def message(self) -> str:
        """The message that says what stopped the run."""
        if self._first_signal == signal.SIGTERM:
            return "terminated"
        return "interrupted"

    @property
    def exit_code(self) -> int:
        """The exit code that says which signal stopped the run."""
        return _BASE_EXIT_CODE + (self._first_signal or signal.SIGINT)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self._signal_count += 1
        exit_code = _BASE_EXIT_CODE + number
        # A worker process inherits this handler; it has nothing to clean up.
        is_worker = os.getpid() != self._process
        if is_worker or self._signal_count >= _MOST_SIGNALS:
            os._exit(exit_code)
        if self._signal_count == 1:
            self._first_signal = number
            raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 when all is well, 1 for bad input, 2 for bad usage."""
    # No command multiplies matrices. OpenBLAS would start threads for that all the same; they take
    # memory, and where the memory is limited OpenBLAS raises SIGINT.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    stopping = Stopping()
    stopping.listen()
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    is_stderr_closed = sys.stderr is None
    if is_stderr_closed:
        sys.stderr = io.StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names in a trace may hold characters that the terminal cannot show.
            stream.reconfigure(errors="backslashreplace")
    code = run(arguments, stopping)
    gc.freeze()  # the process ends, so the collection at exit would be wasted time
    sys.exit(code)


def run(
    arguments: Sequence[str] | None = None, stopping: Stopping | None = None
) -> int:
    """Run a command and return the exit code. An error is one line on standard error.

    Args:
        arguments: the arguments of the command line; by default those of this process.
        stopping: knows which signal stopped the command; without it, a Ctrl-C is assumed.
    """
    if sys.stdout is None:
        return _fail(
            "standard output is closed; open it, or redirect it to /dev/null", 1
        )
    columns = os.environ.get("COLUMNS", "")
    if columns and not (columns.isdecimal() and int(columns) >= _MIN_COLUMNS):
        del os.environ["COLUMNS"]  # not a width in which anything can be shown
    with contextlib.suppress(KeyboardInterrupt):
        if arguments is None:
            arguments = sys.argv[1:]
        code = _run(list(arguments))
        if code != _INTERRUPTED:
            return code
    stopping = stopping or Stopping()
    return _fail(stopping.message, stopping.exit_code)


def _run(arguments: Sequence[str]) -> int:
    """Run a command and return the exit code.

    Raises:
        KeyboardInterrupt: a signal stopped the command.
    """
    from tracelens_ext.cli.app import app
    from tracelens_ext.errors import TracelensError

    needs_memory = not {"-h", "--help", "--version"} & set(arguments)
    if needs_memory and _has_too_little_memory():
        sys.stderr.write(f"tracelens-ext: {_file_in(arguments)}{_TOO_LITTLE_MEMORY}\n")
        return 1
    try:
        outcome = app(
            args=list(arguments), prog_name="tracelens-ext", standalone_mode=False
        )
        sys.stdout.flush()
    except TracelensError as error:
        return _fail(str(error), error.exit_code)
    except MemoryError:
        return _fail(f"{_file_in(arguments)}{_OUT_OF_MEMORY}", 1)
    except BrokenPipeError:
        _abandon_output()
        return 1
    except OSError as error:
        return _fail_for_system(error)
    except Exception as error:
        from tracelens_ext.isolation import raises_unexpected_errors

        code = _usage_exit_code(error)
        if code is not None:
            return code
        if raises_unexpected_errors():
            raise
        return _fail_unexpectedly(error, arguments)
    return outcome if isinstance(outcome, int) else 0


def _fail_for_system(error: OSError) -> int:
    """Report an error of the operating system: about a path, or about standard output.

    Errors about files that are read or written have become `TracelensError`s before.
    """
    if error.filename is None:
        _abandon_output()
        return _fail(f"cannot write to standard output: {error.strerror or error}", 1)
    problem = f"{error.filename}: cannot be used ({error.strerror})"
    return _fail(f"{problem}; check the path and its permissions", 1)


def _fail_unexpectedly(error: Exception, arguments: Sequence[str]) -> int:
    """Report an error that no part of the command expected: a bug, or too little memory."""
    if isinstance(error, ImportError) and "failed to map segment" in str(error):
        return _fail(f"{_file_in(arguments)}{_OUT_OF_MEMORY}", 1)
    from tracelens_ext.isolation import DEBUG_VARIABLE, failure_message

    message = failure_message("The result", error)
    return _fail(f"internal error: {message} with what {DEBUG_VARIABLE}=1 shows", 1)


def _has_too_little_memory() -> bool:
    """Return whether `ulimit -v` gives the process less memory than the libraries need."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return False
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return limit != resource.RLIM_INFINITY and limit < _MIN_MEMORY_BYTES


def _file_in(arguments: Sequence[str]) -> str:
    """Return the beginning of a message: the first argument that is a file, or nothing."""
    for argument in arguments:
        if Path(argument).is_file():
            return f"{argument}: "
    return ""


def _abandon_output() -> None:
    """Discard what is still in the buffer of standard output, which Python would flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage_exit_code(error: Exception) -> int | None:
    """Report an error of click, such as an unknown option, and return the exit code.

    Any other error is left alone, and None returned. click is not imported here: it is slow, and
    typer may have its own copy of it.
    """
    format_message = getattr(error, "format_message", None)
    code = getattr(error, "exit_code", None)
    if not isinstance(code, int) or not callable(format_message):
        return None
    message = str(format_message())
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(f"{message}\n")
        return code
    command = getattr(getattr(error, "ctx", None), "command_path", "tracelens-ext")
    message = message.rstrip(".")
    if type(error).__name__ == "NoSuchOption":
        option = str(getattr(error, "option_name", ""))
        hint = _option_hint(option)
        if hint:
            message = f"No such option: {option}; here: {hint}"
    return _fail(f"{message}; see '{command} --help'", code)


def _option_hint(option: str) -> str:
    """Return what replaces an option of TraceLens; empty if it has no replacement."""
    from tracelens_ext.cli.app import report_options
    from tracelens_ext.compatibility.tracelens import option_hint

    return option_hint(option, report_options())


def _fail(message: str, code: int) -> int:
    """Write a message on standard error, in one line, and return the exit code."""
    from tracelens_ext.report.terminal import safe_text

    one_line = " ".join(message.splitlines())
    line = safe_text(one_line)
    if sys.stderr is not None:
        sys.stderr.write(f"tracelens-ext: {line}\n")
    return code
