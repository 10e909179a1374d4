"""The version, and how traces are read: what is done about broken, huge and foreign files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracelens_ext.compatibility.earlier_arguments import keeps_old_names

#: The version of this distribution.
VERSION: Final = "0.1.0"

#: Called with the bytes of a file that are read so far, and its size or None.
Progress = Callable[[int, int | None], None]


@keeps_old_names
@dataclass(frozen=True)
class ReadingOptions:
    """What the user chose about reading; whoever reads is handed it."""

    #: analyze the events before the place where a file is cut off or damaged
    allow_truncated: bool = False
    #: most bytes of decompressed text that a trace may have; None for the default
    max_bytes: int | None = None
    #: threads that read one large file; None for as many as there are cores
    jobs: int | None = None
    #: the `nsys` program that shall convert Nsight Systems reports; None: they are read directly
    nsys: str | None = None
    #: the file that says what is in CUDA graphs; None: found beside the trace
    kernel_annotations: str | None = None
    #: the only folders (resolved) whose files are read; None for all
    folders: Sequence[Path] | None = None
    #: the rank that is taken of a file into which several were merged; None for the whole file
    rank: int | None = None
    #: read the file, whatever the cache holds
    no_cache: bool = False
    #: use what the cache holds only if no byte of the file has changed
    verify_cache: bool = False

    def may_read(self, path: Path) -> bool:
        """Return True for a file that may be read."""
        return self.folders is None or is_below(path, self.folders)


#: As when nothing is chosen.
DEFAULT_READING_OPTIONS = ReadingOptions()


def is_below(path: Path, folders: Sequence[Path]) -> bool:
    """Return True for a path that is one of the folders or within one, its links resolved."""
    resolved = path.resolve()
    return any(resolved.is_relative_to(folder) for folder in folders)


def size_text(size: int) -> str:
    """Return a size as people write it: `64 GB`, `1.5 MB`, `200 bytes`; to a tenth of the unit."""
    for unit, base in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= base:
            number = f"{size / base:,.1f}".removesuffix(".0")
            return f"{number} {unit}"
    return f"{size} bytes"
