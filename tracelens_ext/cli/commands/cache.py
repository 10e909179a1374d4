"""`tracelens-ext cache`: shows or empties the cache of parsed traces."""

from __future__ import annotations

from datetime import UTC, datetime

import typer

from tracelens_ext.cli.screen import Part, console, show_blocks
from tracelens_ext.hooks import Command
from tracelens_ext.lazy import pd

app = typer.Typer(
    help="Show or clear the cache of parsed traces.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def info() -> None:
    """Show the location, size and contents of the cache."""
    from tracelens_ext.readers.cache.folder import OFF_VARIABLE, cache_is_off
    from tracelens_ext.readers.cache.store import TraceCache

    cache = TraceCache.from_environment()
    entries = cache.entries()
    size = sum(entry.size for entry in entries)
    lines = [
        f"Folder: {cache.folder}",
        f"Traces: {len(entries)}, {_megabytes(size)} of {_megabytes(cache.limit)}",
    ]
    if cache_is_off():
        lines.append(f"Turned off by {OFF_VARIABLE}")
    rows = [
        {
            "trace": entry.path,
            "size_MB": entry.size / 1e6,
            "last used": f"{datetime.fromtimestamp(entry.used, UTC).astimezone():%Y-%m-%d %H:%M}",
            "state": "usable" if entry.usable else "outdated",
        }
        for entry in entries
    ]
    show_blocks([lines, Part("", pd.DataFrame(rows))], console())


@app.command()
def clear() -> None:
    """Remove everything from the cache."""
    from tracelens_ext.readers.cache.store import TraceCache

    count, size = TraceCache.from_environment().clear()
    plural = "" if count == 1 else "s"
    typer.echo(f"Removed {count} trace{plural}, {_megabytes(size)}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


COMMAND = Command(
    name="cache",
    summary="Show or clear the cache of parsed traces.",
    function=app,
    group="Manage",
    examples=("cache info", "cache clear", "cache info | head"),
)
