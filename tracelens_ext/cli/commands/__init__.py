"""The commands of this distribution, one a file: a function, and its `COMMAND`.

They come by the same hook as those of plugins. A file imports what is slow inside its functions,
so that `--help` is instant.
"""

from __future__ import annotations

from importlib import import_module

from tracelens_ext.hooks import Command, hookimpl

#: The files, in the order of `--help` within its groups.
MODULES = (
    "record",
    "report",
    "kernels",
    "gaps",
    "iterations",
    "tree",
    "memory",
    "phases",
    "counters",
    "sql",
    "mcp",
    "export",
    "nsys",
    "findings",
    "what_if",
    "roofline",
    "reproduce",
    "explain",
    "compare",
    "chart",
    "fleet",
    "ranks",
    "rules",
    "plugins",
    "formats",
    "cache",
    "demo",
)


@hookimpl
def tracelens_commands() -> list[Command]:
    """Return the commands of this distribution."""
    return [import_module(f"{__name__}.{module}").COMMAND for module in MODULES]
