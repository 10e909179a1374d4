"""Lines for the terminal, whatever names are in them: files, kernels and plugins have any."""

from __future__ import annotations

import typer


def say(text: str, *, error: bool = False) -> None:
    """Print a line; what could act on a terminal, or break the line, is shown as an escape.

    Args:
        text: the line.
        error: to standard error.
    """
    from tracelens_ext.report.terminal import safe_text

    typer.echo(safe_text(text), err=error)
