"""The options of every command that reads traces: how they are read, and what is kept of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracelens_ext.cache.store import TraceCache

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

#: Parameter → its option, and what it is when it is not given.
OPTIONS: dict[str, tuple[Any, object]] = {
    "salvage": (Salvage, False),
    "max_bytes": (MaxBytes, None),
    "jobs": (Jobs, None),
    "nsys": (Nsys, None),
    "kernel_annotations": (KernelAnnotations, None),
    "no_cache": (NoCache, False),
    "verify_cache": (VerifyCache, False),
}


@dataclass(frozen=True)
class _Cache:
    off: bool = False
    verify: bool = False


_cache: ContextVar[_Cache] = ContextVar("cache", default=_Cache())  # noqa: B039  # frozen


def reads_traces(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options about reading.

    Readers find them in `read_settings()`; `chosen_cache` heeds those about the cache.
    """
    signature = inspect.signature(command, eval_str=True)
    extra = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in OPTIONS.items()
        if name != "kernel_annotations" or "capture" in signature.parameters
    ]

    @functools.wraps(command)
    def with_options(*args: Any, **options: Any) -> None:  # noqa: ANN401  # whatever the command takes
        chosen = {name: options.pop(name, default) for name, (_, default) in OPTIONS.items()}
        _run(functools.partial(command, *args, **options), **chosen)

    parameters = [*signature.parameters.values(), *extra]
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return with_options


def _run(
    command: Callable[[], None],
    *,
    max_bytes: str | None,
    no_cache: bool,
    verify_cache: bool,
    **settings: object,
) -> None:
    """Run a command with the chosen settings in force."""
    settings["max_bytes"] = _bytes(max_bytes)
    with choosing(settings, {"off": no_cache, "verify": verify_cache}):
        command()


@contextmanager
def choosing(settings: Mapping[str, object], cache: Mapping[str, bool]) -> Iterator[None]:
    """Put choices in force."""
    from tracelens_ext.settings import reading_with

    token = _cache.set(_Cache(**cache))
    try:
        with reading_with(**settings):
            yield
    finally:
        _cache.reset(token)


def cache_choice() -> dict[str, bool]:
    """What was chosen about the cache."""
    return asdict(_cache.get())


def _bytes(text: str | None) -> int | None:
    """The size that `--max-bytes` gives.

    Raises:
        UsageError: it is none.
    """
    from tracelens_ext.cache.settings import parse_size
    from tracelens_ext.errors import UsageError

    if text is None:
        return None
    size = parse_size(text)
    if not size:
        raise UsageError(f"--max-bytes {text!r} is no size; write it as 5GB or 500MB")
    return size


def chosen_cache() -> TraceCache | None:
    """The cache that the running command is to use; None for none.

    Raises:
        UsageError: the limit in the environment is no size.
    """
    from tracelens_ext.cache.settings import cache_is_off
    from tracelens_ext.cache.store import TraceCache

    choice = _cache.get()
    if choice.off or cache_is_off():
        return None
    return TraceCache.from_environment(verify=choice.verify, tell=_tell)


def _tell(note: str) -> None:
    from tracelens_ext.report.terminal import safe_text

    typer.echo(f"tracelens-ext: {safe_text(note)}", err=True)
