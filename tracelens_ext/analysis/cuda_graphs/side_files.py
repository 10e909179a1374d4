"""Reads files that lie beside a trace and must not be larger than a limit."""

from __future__ import annotations

from pathlib import Path

from tracelens_ext.errors import TraceTooLargeError
from tracelens_ext.settings import size_text


def read_side_file(path: Path, max_bytes: int, remedy: str) -> bytes:
    """Return the content of a file.

    Args:
        path: the file.
        max_bytes: the most bytes that the file may have.
        remedy: what the user can do about a larger file.

    Raises:
        TraceTooLargeError: the file is larger than `max_bytes`.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        # One more byte than is allowed shows that the file is too large.
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        problem = f"is larger than {size_text(max_bytes)}, the most that is read"
        raise TraceTooLargeError(path, problem, remedy)
    return content
