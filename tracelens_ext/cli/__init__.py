"""The command line: what every command has in common. Nothing else prints, and nothing else exits.

Being told to stop (Ctrl-C, a closed terminal, `kill`) raises `KeyboardInterrupt` in the main
thread, so that everything half written is removed by the `finally` that knows of it. A second
Ctrl-C does not disturb that; a third ends the program at once.
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

_INTERRUPTED = 130  # typer answers it too
#: Exit codes are 128 and the number of the signal, as shells have it.
_BASE_EXIT_CODE = 128
#: The signal at which the program ends at once, whatever is half written.
_LAST_SIGNAL = 3
#: New objects before the garbage collector looks: a command makes tables, hardly any cycles, and
#: by default a fifth of a small trace's time goes into looking. Importing the libraries alone makes
#: fewer than this.
_OBJECTS_BEFORE_COLLECTION = 200_000
_MIN_MEMORY_BYTES = 1 << 28
_MIN_COLUMNS = 20
_CRAMPED = "cannot be analyzed with so little memory (ulimit -v); allow at least 256 MB"
_NO_MEMORY = (
    "there is not enough memory for this; free some memory, or analyze fewer traces "
    "at once"
)


class Stopping:
    """The signals that end a run, and which of them came."""

    def __init__(self) -> None:
        self._first_signal = 0
        self._signals = 0
        self._process = os.getpid()

    def listen(self) -> None:
        """Take over the signals; those that are ignored (as under `nohup`) stay so."""
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            # Windows has no SIGHUP; other threads than the main one cannot.
            with contextlib.suppress(AttributeError, ValueError, OSError):
                number = getattr(signal, name)
                is_ignored = signal.getsignal(number) == signal.SIG_IGN
                if not is_ignored:
                    signal.signal(number, self._receive)

    @property
    def message(self) -> str:
        """What happened, in a word."""
        return "terminated" if self._first_signal == signal.SIGTERM else "interrupted"

    @property
    def exit_code(self) -> int:
        """What the program exits with after it."""
        return _BASE_EXIT_CODE + (self._first_signal or signal.SIGINT)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        exit_code = _BASE_EXIT_CODE + number
        is_worker = os.getpid() != self._process  # that inherited this: it just ends
        if is_worker or self._signals >= _LAST_SIGNAL:
            os._exit(exit_code)
        if self._signals == 1:
            self._first_signal = number
            raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 when all is well, 1 for bad input, 2 for bad usage."""
    # Threads for matrices, of which there are none here, need memory, and SIGINT if they get none.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    stopping = Stopping()
    stopping.listen()
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    if sys.stderr is None:  # closed
        sys.stderr = io.StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names that this terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    code = run(arguments, stopping)
    gc.freeze()  # the process ends: there is nothing worth collecting
    sys.exit(code)


def run(
    arguments: Sequence[str] | None = None, stopping: Stopping | None = None
) -> int:
    """Run a command, and return the exit code. Errors are one line on standard error.

    Args:
        arguments: Those of the command line; by default those of the process.
        stopping: Knows which signal interrupted the command; without it that is a Ctrl-C.
    """
    if sys.stdout is None:
        return _fail(
            "standard output is closed; open it, or redirect it to /dev/null", 1
        )
    columns = os.environ.get("COLUMNS", "")
    if columns and not (columns.isdecimal() and int(columns) >= _MIN_COLUMNS):
        del os.environ["COLUMNS"]  # nothing can be shown in so few
    with contextlib.suppress(KeyboardInterrupt):
        if arguments is None:
            arguments = sys.argv[1:]
        code = _run(list(arguments))
        if code != _INTERRUPTED:
            return code
    stopping = stopping or Stopping()
    return _fail(stopping.message, stopping.exit_code)


def _run(arguments: Sequence[str]) -> int:
    """Run a command, and return the exit code; a Ctrl-C goes through."""
    from tracelens_ext.cli.app import app
    from tracelens_ext.errors import TracelensError

    needs_memory = not {"-h", "--help", "--version"} & set(arguments)
    if needs_memory and _is_cramped():
        sys.stderr.write(f"tracelens-ext: {_file_in(arguments)}{_CRAMPED}\n")
        return 1
    try:
        outcome = app(
            args=list(arguments), prog_name="tracelens-ext", standalone_mode=False
        )
        sys.stdout.flush()
    except TracelensError as error:
        return _fail(str(error), error.exit_code)
    except MemoryError:
        return _fail(f"{_file_in(arguments)}{_NO_MEMORY}", 1)
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
    """Report an error about a path that was only looked at, or about standard output."""
    if error.filename is None:
        _abandon_output()
        return _fail(f"cannot write to standard output: {error.strerror or error}", 1)
    problem = f"{error.filename}: cannot be used ({error.strerror})"
    return _fail(f"{problem}; check the path and its permissions", 1)


def _fail_unexpectedly(error: Exception, arguments: Sequence[str]) -> int:
    """Report an error that no part of the command expected: a bug, or too little memory."""
    if isinstance(error, ImportError) and "failed to map segment" in str(error):
        return _fail(f"{_file_in(arguments)}{_NO_MEMORY}", 1)
    from tracelens_ext.isolation import DEBUG_VARIABLE, failure_message

    message = failure_message("The result", error)
    return _fail(f"internal error: {message} with what {DEBUG_VARIABLE}=1 shows", 1)


def _is_cramped() -> bool:
    """Return whether the memory of the process is limited to less than the libraries need."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return False
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return limit != resource.RLIM_INFINITY and limit < _MIN_MEMORY_BYTES


def _file_in(arguments: Sequence[str]) -> str:
    """Return the first file that arguments name, for the beginning of a message."""
    for argument in arguments:
        if Path(argument).is_file():
            return f"{argument}: "
    return ""


def _abandon_output() -> None:
    """Keep Python from writing what is left when it exits, and from complaining then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage_exit_code(error: Exception) -> int | None:
    """Report an error of the command line itself, such as an unknown option; its exit code."""
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
    """Return what to write in place of an option of another tool; empty if nothing is known."""
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
