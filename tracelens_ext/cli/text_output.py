"""Write a text file, but not over a file that this program did not write; or standard output."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What stands for standard output.
STANDARD_OUTPUT = Path("-")
_LOOK_BYTES = 200


def check_texts(
    paths: Sequence[Path | None], trace: Path, *, force: bool, json: bool, every: bool
) -> None:
    """Check that texts replace no file of the user, not the trace, and not one another.

    Args:
        paths: where the texts go; None for no text.
        trace: what may not be replaced.
        force: whether other files may.
        json: whether `--json` is given.
        every: whether `--all` is given.

    Raises:
        OutputError: a file stands in the way.
        UsageError: two outputs are one file, or the options do not go together.
    """
    from tracelens_ext.errors import UsageError
    from tracelens_ext.report.manifest import check_output

    if every and not json:
        raise UsageError("--all is about the JSON; add --json")
    if json and STANDARD_OUTPUT in paths:
        raise UsageError("--json writes to standard output, so a text cannot go there too")
    given = [path for path in paths if path is not None]
    if len({os.path.realpath(path) for path in given}) < len(given):
        raise UsageError(f"{given[0]}: is named for two outputs; name two")
    for path in given:
        if path == STANDARD_OUTPUT:
            continue
        check_output(path, [trace], force=force or _is_our_text(path))


def write_text(path: Path, text: str) -> None:
    """Write a whole text or nothing; `-` is standard output.

    Raises:
        OutputError: it cannot be written.
    """
    from tracelens_ext.report.atomic import written_beside

    if path == STANDARD_OUTPUT:
        typer.echo(text, nl=False)
        return
    with written_beside(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")


def tell_written(paths: Sequence[Path | None]) -> None:
    """Say which files were written; on standard error where a text is on standard output."""
    from tracelens_ext.cli.messages import print_line

    for path in paths:
        if path is not None and path != STANDARD_OUTPUT:
            print_line(f"Wrote {path}", error=STANDARD_OUTPUT in paths)


def _is_our_text(path: Path) -> bool:
    """Whether a file begins as the texts of this program do."""
    from tracelens_ext.report.kernel_text import GAP_TITLE, KERNEL_TITLE

    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            head = stream.read(_LOOK_BYTES)
    except (OSError, ValueError):
        return False
    titles = (KERNEL_TITLE, GAP_TITLE)
    return head.startswith(tuple(f"{title}\n{'=' * 50}\n".encode() for title in titles))
