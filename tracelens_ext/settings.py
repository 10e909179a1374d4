"""How traces are read, as the user chose it: what is done about broken, huge and foreign files."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class ReadSettings:
    """What the user chose about reading."""

    #: analyse the events before the place where a file is cut off or damaged
    salvage: bool = False
    #: most bytes of decompressed text that a trace may have; None for the default
    max_bytes: int | None = None
    #: threads that read one large file; None for as many as there are cores
    jobs: int | None = None
    #: the `nsys` program that converts Nsight Systems reports; None: found on the PATH
    nsys: str | None = None
    #: the file that says what is in CUDA graphs; None: found beside the trace
    kernel_annotations: str | None = None
    #: the only folders (resolved) whose files are read; None for all
    folders: Sequence[Path] | None = None


_current: ContextVar[ReadSettings] = ContextVar("read_settings", default=ReadSettings())  # noqa: B039  # frozen


def read_settings() -> ReadSettings:
    """The settings in force."""
    return _current.get()


@contextmanager
def reading_with(**changes: Any) -> Iterator[ReadSettings]:  # noqa: ANN401  # the settings' own types
    """Put changed settings in force for a while."""
    token = _current.set(replace(_current.get(), **changes))
    try:
        yield _current.get()
    finally:
        _current.reset(token)


def is_below(path: Path, folders: Sequence[Path]) -> bool:
    """Whether a path, its links resolved, is one of the folders or within one."""
    whole = path.resolve()
    return any(whole.is_relative_to(folder) for folder in folders)


def may_read(path: Path) -> bool:
    """Whether the settings in force let a file be read."""
    return (folders := read_settings().folders) is None or is_below(path, folders)


def size_text(size: int) -> str:
    """A size as people write it: `64 GB`, `1.5 MB`, `200 bytes`; exact to a tenth of the unit."""
    for unit, base in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= base:
            return f"{size / base:,.1f}".removesuffix(".0") + f" {unit}"
    return f"{size} bytes"
