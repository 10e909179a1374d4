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
_PATIENCE = 3
#: New objects before the garbage collector looks: a command makes tables, hardly any cycles, and
#: by default a fifth of a small trace's time goes into looking. Importing the libraries alone makes
#: fewer than this.
_OBJECTS_BEFORE_COLLECTION = 200_000
_LEAST_MEMORY = 1 << 28
_LEAST_COLUMNS = 20
_CRAMPED = "cannot be analysed in so little memory (ulimit -v); allow 256 MB at least"
_NO_MEMORY = "there is not enough memory for this; free some, or analyse less at once"


class Stopping:
    """The signals that end a run, and which of them came."""

    def __init__(self) -> None:
        self._number = 0  # of the first that came
        self._times = 0
        self._process = os.getpid()

    def listen(self) -> None:
        """Take over the signals; those that are ignored (as under `nohup`) stay so."""
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            # Windows has no SIGHUP; other threads than the main one cannot.
            with contextlib.suppress(AttributeError, ValueError, OSError):
                number = getattr(signal, name)
                if signal.getsignal(number) != signal.SIG_IGN:
                    signal.signal(number, self._heard)

    def told(self) -> tuple[str, int]:
        """What happened, in a word, and what the program exits with after it."""
        word = "terminated" if self._number == signal.SIGTERM else "interrupted"
        return word, _BASE_EXIT_CODE + (self._number or signal.SIGINT)

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        self._times += 1
        # A worker that inherited this just ends.
        if os.getpid() != self._process or self._times >= _PATIENCE:
            os._exit(_BASE_EXIT_CODE + number)
        if self._times == 1:
            self._number = number
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


def run(arguments: Sequence[str] | None = None, stopping: Stopping | None = None) -> int:
    """Run a command; the exit code. Errors are one line on standard error.

    `stopping` knows which signal interrupted the command; without it that is a Ctrl-C.
    """
    if sys.flags.optimize > 1:
        return _fail("options are made of docstrings; run Python without -OO", 1)
    if sys.stdout is None:
        return _fail("standard output is closed; open it, or send it to /dev/null", 1)
    columns = os.environ.get("COLUMNS", "")
    if columns and not (columns.isdecimal() and int(columns) >= _LEAST_COLUMNS):
        del os.environ["COLUMNS"]  # nothing can be shown in so few
    with contextlib.suppress(KeyboardInterrupt):
        if (code := _run(arguments)) != _INTERRUPTED:
            return code
    return _fail(*(stopping or Stopping()).told())


def _run(arguments: Sequence[str] | None) -> int:
    from tracelens_ext.cli.app import app
    from tracelens_ext.errors import TracelensError

    given = list(sys.argv[1:] if arguments is None else arguments)
    if _is_cramped() and not {"-h", "--help", "--version"} & set(given):
        sys.stderr.write(f"tracelens-ext: {_file_in(given)}{_CRAMPED}\n")
        return 1
    try:
        outcome = app(args=given, prog_name="tracelens-ext", standalone_mode=False)
        sys.stdout.flush()
    except TracelensError as error:
        return _fail(str(error), error.exit_code)
    except MemoryError:
        return _fail(f"{_file_in(given)}{_NO_MEMORY}", 1)
    except BrokenPipeError:
        _abandon_output()
        return 1
    except OSError as error:  # of a path that was only looked at, or of standard output
        if error.filename is None:
            _abandon_output()
            return _fail(f"standard output cannot be written: {error.strerror or error}", 1)
        problem = f"{error.filename}: cannot be used ({error.strerror})"
        return _fail(f"{problem}; check the path and its permissions", 1)
    except Exception as error:
        from tracelens_ext.isolation import DEBUG_VARIABLE, raises_unexpected_errors

        if code := _usage_exit_code(error):
            return code
        if raises_unexpected_errors():
            raise
        if isinstance(error, ImportError) and "failed to map segment" in str(error):
            return _fail(f"{_file_in(given)}{_NO_MEMORY}", 1)
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        bug = f"this is a bug: please report it with what {DEBUG_VARIABLE}=1 shows"
        return _fail(f"internal error: {said}; {bug}", 1)
    return outcome if isinstance(outcome, int) else 0


def _is_cramped() -> bool:
    """Whether the memory of the process is limited to less than the libraries need."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return False
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return limit != resource.RLIM_INFINITY and limit < _LEAST_MEMORY


def _file_in(arguments: Sequence[str]) -> str:
    """The first file that arguments name, for the beginning of a message."""
    named = next((each for each in arguments if Path(each).is_file()), None)
    return f"{named}: " if named else ""


def _abandon_output() -> None:
    """Keep Python from writing what is left when it exits, and from complaining then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage_exit_code(error: Exception) -> int | None:
    """Tell of an error of the command line itself, such as an unknown option; its exit code."""
    show = getattr(error, "format_message", None)
    code = getattr(error, "exit_code", None)
    if not isinstance(code, int) or not callable(show):
        return None
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(f"{show()}\n")
        return code
    command = getattr(getattr(error, "ctx", None), "command_path", "tracelens-ext")
    told = str(show()).rstrip(".")
    if type(error).__name__ == "NoSuchOption":
        from tracelens_ext.cli.app import report_options
        from tracelens_ext.compatibility.tracelens import option_hint

        name = str(getattr(error, "option_name", ""))
        if here := option_hint(name, report_options()):
            told = f"No such option: {name}; here: {here}"
    return _fail(f"{told}; see '{command} --help'", code)


def _fail(message: str, code: int) -> int:
    from tracelens_ext.report.terminal import safe_text

    line = safe_text(" ".join(message.splitlines()))
    if sys.stderr is not None:
        sys.stderr.write(f"tracelens-ext: {line}\n")
    return code
