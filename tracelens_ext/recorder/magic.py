"""`%%tracelens` in notebooks: runs a cell under PyTorch's profiler, and shows its report below."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from typing import Any, NoReturn

from tracelens_ext.errors import TracelensError, UsageError
from tracelens_ext.recorder.in_python import record


def load_ipython_extension(shell: Any) -> None:  # noqa: ANN401  # of IPython, which may be missing
    """Add `%%tracelens` to a notebook; `%load_ext tracelens_ext` calls this.

    Args:
        shell: The interactive shell of IPython.
    """

    def tracelens(line: str, cell: str) -> None:
        """Run a cell under PyTorch's profiler, and show the page of its report below it.

        %%tracelens [-o FOLDER] [--no-stacks] [--memory]
        """
        _run_cell(shell, line, cell)

    shell.register_magic_function(tracelens, "cell", "tracelens")


class _Parser(argparse.ArgumentParser):
    """A parser that raises a `UsageError` for wrong options, instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Raise a `UsageError`."""
        raise UsageError(f"%%tracelens: {message}; {self.format_usage().strip()}")


def _run_cell(shell: Any, line: str, cell: str) -> None:  # noqa: ANN401  # of IPython
    """Run a cell and show the page of its report; IPython shows errors in the cell as usual."""
    try:
        options = _parsed(shlex.split(line))
        recording = record(
            options.output,
            skip=0,
            warmup=0,
            steps=1,
            stacks=not options.no_stacks,
            memory=options.memory,
            quiet=True,
        )
        with recording:
            shell.run_cell(cell)
    except TracelensError as error:
        # IPython shows the message of this error without a traceback.
        raise _usage_error(str(error)) from None
    if recording.result is not None:
        # A notebook displays a report as its page.
        import_module("IPython.display").display(recording.result.report)


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    """Return the options in the line of the magic."""
    now = datetime.now().astimezone()
    parser = _Parser(prog="%%tracelens", add_help=False)
    parser.add_argument("-o", "--output", default=f"tracelens-{now:%Y%m%d-%H%M%S}")
    parser.add_argument("--no-stacks", action="store_true")
    parser.add_argument("--memory", action="store_true")
    return parser.parse_args(words)


def _usage_error(message: str) -> Exception:
    """Return IPython's own usage error with a message."""
    errors = import_module("IPython.core.error")
    error: Exception = errors.UsageError(message)
    return error
