"""`tracelens-ext cache`: what is kept of traces."""

from __future__ import annotations

import typer

from tracelens_ext.lazy import pd

app = typer.Typer(
    help="Look at the cache of parsed traces, or empty it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def info() -> None:
    """Show where the cache is, how big, and which traces it holds."""
    from tracelens_ext.cache.folder import OFF_VARIABLE, cache_is_off
    from tracelens_ext.cache.store import TraceCache
    from tracelens_ext.cli.screen import Part, console, show_blocks

    cache = TraceCache.from_environment()
    entries = cache.entries()
    size = sum(entry.size for entry in entries)
    lines = [f"Folder: {cache.folder}"]
    lines += [f"Traces: {len(entries)}, {_megabytes(size)} of {_megabytes(cache.limit)}"]
    lines += [f"Switched off by {OFF_VARIABLE}"] if cache_is_off() else []
    frame = pd.DataFrame(
        {
            "trace": [entry.path for entry in entries],
            "size_MB": [entry.size / 1e6 for entry in entries],
            "last used": [_moment(entry.used) for entry in entries],
            "state": ["usable" if entry.usable else "outdated" for entry in entries],
        }
    )
    show_blocks([lines, Part("", frame)], console())


@app.command()
def clear() -> None:
    """Remove all that the cache holds."""
    from tracelens_ext.cache.store import TraceCache

    count, size = TraceCache.from_environment().clear()
    typer.echo(f"Removed {count} trace{'' if count == 1 else 's'}, {_megabytes(size)}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _moment(seconds: float) -> str:
    from datetime import UTC, datetime

    local = datetime.fromtimestamp(seconds, UTC).astimezone()
    return local.strftime("%Y-%m-%d %H:%M")
