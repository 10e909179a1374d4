"""The options of every command that reads traces: how they are read, and what is kept of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tracelens_ext.cache.store import TraceCache
    from tracelens_ext.settings import ReadingOptions

Salvage = Annotated[
    bool,
    typer.Option("--salvage", help="Of a cut off or damaged file, analyse the events before that."),
]
MaxBytes = Annotated[
    str | None,
    typer.Option(
        "--max-bytes",
        metavar="SIZE",
        help="Refuse more text than this, unpacked, such as 5GB.  [default: 64GB, or 100 times"
        " the file beyond 200MB]",
        show_default=False,
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs", metavar="N", help="Threads or processes.  [default: one a core]", min=1, max=1024
    ),
]
Nsys = Annotated[
    str | None,
    typer.Option(
        "--nsys",
        metavar="PROGRAM",
        help="Converts .nsys-rep files.  [default: nsys on the PATH]",
        show_default=False,
    ),
]
KernelAnnotations = Annotated[
    str | None,
    typer.Option(
        "--kernel-annotations",
        metavar="FILE",
        help="PyTorch's annotations of CUDA graphs (JSON).  [default: found beside the trace]",
        show_default=False,
    ),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Read the file, whatever the cache holds.")
]
VerifyCache = Annotated[
    bool, typer.Option("--verify-cache", help="Use the cache only if no byte has changed (slower).")
]
Notes = Annotated[bool, typer.Option("--notes", help="Print every note, not five lines of them.")]

#: Field of `ReadingOptions` → its option; and that about notes.
OPTIONS: dict[str, Any] = {
    "salvage": Salvage,
    "max_bytes": MaxBytes,
    "jobs": Jobs,
    "nsys": Nsys,
    "kernel_annotations": KernelAnnotations,
    "no_cache": NoCache,
    "verify_cache": VerifyCache,
    "notes": Notes,
}


def size_of(text: str | None) -> int | None:
    """The size that `--max-bytes` gives.

    Raises:
        UsageError: it is none.
    """
    from tracelens_ext.cache.folder import parse_size
    from tracelens_ext.errors import UsageError

    if text is None:
        return None
    size = parse_size(text)
    if not size:
        raise UsageError(f"--max-bytes {text!r} is no size; write it as 5GB or 500MB")
    return size


def chosen_cache(reading: ReadingOptions) -> TraceCache | None:
    """The cache that a command is to use; None for none.

    Raises:
        UsageError: the limit in the environment is no size.
    """
    from tracelens_ext.cache.folder import cache_is_off
    from tracelens_ext.cache.store import TraceCache

    if reading.no_cache or cache_is_off():
        return None
    return TraceCache.from_environment(verify=reading.verify_cache, tell=_tell)


def _tell(note: str) -> None:
    from tracelens_ext.report.terminal import safe_text

    typer.echo(f"tracelens-ext: {safe_text(note)}", err=True)
