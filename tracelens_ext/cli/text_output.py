"""Write a text file, but not over a file that this program did not write."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_LOOK_BYTES = 200


def check_texts(paths: Sequence[Path | None], trace: Path, *, force: bool) -> None:
    """Check that texts replace no file of the user, not the trace, and not one another.

    Raises:
        OutputError: a file stands in the way.
        UsageError: two outputs are one file.
    """
    from tracelens_ext.errors import UsageError
    from tracelens_ext.report.manifest import check_output

    given = [path for path in paths if path is not None]
    if len({path.resolve() for path in given}) < len(given):
        raise UsageError(f"{given[0]}: is named for two outputs; name two")
    for path in given:
        check_output(path, [trace], force=force or _is_our_text(path))


def write_text(path: Path, text: str) -> None:
    """Write a whole text or nothing.

    Raises:
        OutputError: it cannot be written.
    """
    from tracelens_ext.report.atomic import written_beside

    with written_beside(path) as beside:
        beside.write_text(text, encoding="utf-8", newline="\n")


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
