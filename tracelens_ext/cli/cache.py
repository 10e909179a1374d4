"""`tracelens-ext cache`: what is kept of traces; and the options of the commands that read."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tracelens_ext.readers.cache import TraceCache

app = typer.Typer(
    help="Look at the cache of parsed traces, or empty it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

NoCache = Annotated[
    bool,
    typer.Option("--no-cache", help="Read the file, whatever the cache holds of it."),
]
VerifyCache = Annotated[
    bool,
    typer.Option(
        "--verify-cache", help="Use the cache only if no byte of the file has changed (slower)."
    ),
]


@dataclass(frozen=True)
class _Choice:
    off: bool = False
    verify: bool = False


_chosen: ContextVar[_Choice] = ContextVar("cache", default=_Choice())  # noqa: B039  # frozen


def reads_traces(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options `--no-cache` and `--verify-cache`; `chosen_cache` heeds them."""
    signature = inspect.signature(command, eval_str=True)
    extra = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in (("no_cache", NoCache), ("verify_cache", VerifyCache))
    ]

    @functools.wraps(command)
    def with_options(*args: Any, no_cache: bool, verify_cache: bool, **options: Any) -> None:  # noqa: ANN401  # whatever the command takes
        token = _chosen.set(_Choice(no_cache, verify_cache))
        try:
            command(*args, **options)
        finally:
            _chosen.reset(token)

    parameters = [*signature.parameters.values(), *extra]
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return with_options


def chosen_cache() -> TraceCache | None:
    """The cache that the running command is to use; None for none.

    Raises:
        UsageError: the limit in the environment is no size.
    """
    from tracelens_ext.readers.cache import TraceCache
    from tracelens_ext.readers.cache_settings import cache_is_off

    choice = _chosen.get()
    if choice.off or cache_is_off():
        return None
    return TraceCache.from_environment(verify=choice.verify, tell=_tell)


def _tell(note: str) -> None:
    from tracelens_ext.report.terminal import safe_text

    typer.echo(f"tracelens-ext: {safe_text(note)}", err=True)


@app.command()
def info() -> None:
    """Show where the cache is, how big, and which traces it holds."""
    import pandas as pd
    from rich.console import Console

    from tracelens_ext.readers.cache import TraceCache
    from tracelens_ext.readers.cache_settings import OFF_VARIABLE, cache_is_off
    from tracelens_ext.report.terminal import frame_table, safe_text

    cache = TraceCache.from_environment()
    entries = cache.entries()
    size = sum(entry.size for entry in entries)
    typer.echo(f"Folder: {safe_text(str(cache.folder))}")
    typer.echo(f"Traces: {len(entries)}, {_megabytes(size)} of {_megabytes(cache.limit)}")
    if cache_is_off():
        typer.echo(f"Switched off by {OFF_VARIABLE}")
    if not entries:
        return
    frame = pd.DataFrame(
        {
            "trace": [entry.path for entry in entries],
            "size_MB": [entry.size / 1e6 for entry in entries],
            "last used": [_moment(entry.used) for entry in entries],
            "state": ["usable" if entry.usable else "outdated" for entry in entries],
        }
    )
    typer.echo()
    Console().print(frame_table(frame))


@app.command()
def clear() -> None:
    """Remove all that the cache holds."""
    from tracelens_ext.readers.cache import TraceCache

    count, size = TraceCache.from_environment().clear()
    typer.echo(f"Removed {count} trace{'' if count == 1 else 's'}, {_megabytes(size)}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _moment(seconds: float) -> str:
    from datetime import UTC, datetime

    local = datetime.fromtimestamp(seconds, UTC).astimezone()
    return local.strftime("%Y-%m-%d %H:%M")
