"""The built-in commands. Each is a file with a function and its `COMMAND`.

They are offered by the same hook as the commands of plugins. Slow imports are inside functions, so
that `--help` is instant.
"""

from __future__ import annotations

from importlib import import_module

from tracelens_ext.hooks import Command, hookimpl

#: The modules of the commands, in the order in which each heading of `--help` lists them.
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
