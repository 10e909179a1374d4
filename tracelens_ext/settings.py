"""The version of the program, and the options for reading traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracelens_ext.compatibility.earlier_arguments import keeps_old_names

#: The version of this distribution.
VERSION: Final = "0.1.0"

#: Called with the number of bytes of a file read so far, and its size (None if unknown).
Progress = Callable[[int, int | None], None]


@keeps_old_names
@dataclass(frozen=True)
class ReadingOptions:
    """The user's options for reading traces, which every reader receives."""

    #: analyze a truncated or damaged file up to the damage
    allow_truncated: bool = False
    #: the most bytes of unpacked text that a trace may have; None for the default
    max_bytes: int | None = None
    #: how many threads read one large file; None for one per core
    jobs: int | None = None
    #: the `nsys` program that converts Nsight Systems reports; None to read them directly
    nsys: str | None = None
    #: PyTorch's annotations of CUDA graphs; None for the file next to the trace
    kernel_annotations: str | None = None
    #: the only folders (resolved) from which files may be read; None for all
    folders: Sequence[Path] | None = None
    #: the rank to read from a merged file of several ranks; None for the whole file
    rank: int | None = None
    #: read the file even if it is in the cache
    no_cache: bool = False
    #: use the cache only if no byte of the file has changed
    verify_cache: bool = False

    def may_read(self, path: Path) -> bool:
        """Return whether a file lies in the folders from which files may be read."""
        return self.folders is None or is_below(path, self.folders)


#: The options if the user chooses none.
DEFAULT_READING_OPTIONS = ReadingOptions()


def is_below(path: Path, folders: Sequence[Path]) -> bool:
    """Return True if a path, after resolving links, is one of the folders or within one."""
    resolved = path.resolve()
    return any(resolved.is_relative_to(folder) for folder in folders)


def size_text(size: int) -> str:
    """Return a size with a unit and at most one decimal: `64 GB`, `1.5 MB`, `200 bytes`."""
    for unit, base in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= base:
            number = f"{size / base:,.1f}".removesuffix(".0")
            return f"{number} {unit}"
    return f"{size} bytes"
