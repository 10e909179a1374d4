"""Plugins: the hooks that they can implement, and the registry that finds and calls them.

    >>> from tracelens_ext.hooks import default_registry, hookimpl
    >>> default_registry().offers("tracelens_readers", check_reader)
    [Offered(item=<KernelListReader>, plugin=Plugin(name='my-company', ...)), ...]

This package knows nothing about rules, tables or readers: the packages that use a hook check what
plugins offer. Also here: `Table` (or `Sheet`), `Column`, `Chart`, `AnswerView`, `ScreenView`,
`Condition`, `GPU_EVENTS`, `CATEGORIES`.
"""

from importlib import import_module
from typing import Any

from tracelens_ext.hooks.hookspecs import Command, Reader, hookimpl
from tracelens_ext.hooks.registry import (
    NO_PLUGINS_VARIABLE,
    Hook,
    Offered,
    Plugin,
    PluginAnswerError,
    PluginRegistry,
    default_registry,
    load_registry,
)

#: Names that plugins need to declare tables → where they are defined. Those modules depend on this
#: package, so they are imported on demand.
_HOMES = {
    "AnswerView": "report.tables.views",
    "Chart": "report.tables.charts",
    "Column": "report.tables.columns",
    "CATEGORIES": "report.tables.conditions",
    "Condition": "report.tables.conditions",
    "GPU_EVENTS": "report.tables.conditions",
    "ScreenView": "report.tables.views",
    "Sheet": "report.tables.table",
    "Table": "report.tables.table",
}

__all__ = [
    "CATEGORIES",
    "GPU_EVENTS",
    "NO_PLUGINS_VARIABLE",
    "AnswerView",
    "Chart",
    "Column",
    "Command",
    "Condition",
    "Hook",
    "Offered",
    "Plugin",
    "PluginAnswerError",
    "PluginRegistry",
    "Reader",
    "ScreenView",
    "Sheet",
    "Table",
    "default_registry",
    "hookimpl",
    "load_registry",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"tracelens_ext.{_HOMES[name]}")
    return getattr(home, "Table" if name == "Sheet" else name)
