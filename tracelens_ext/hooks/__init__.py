"""Plugins: the hooks they can implement, and the registry that finds and asks them.

    >>> from tracelens_ext.hooks import default_registry, hookimpl
    >>> default_registry().offers("tracelens_readers", check_reader)
    [Offered(item=<KernelListReader>, plugin=Plugin(name='my-company', ...)), ...]

This package knows no rule, sheet or reader: the packages that use a hook check what it offers.
"""

from tracelens_ext.hooks.hookspecs import Reader, hookimpl
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

__all__ = [
    "NO_PLUGINS_VARIABLE",
    "Hook",
    "Offered",
    "Plugin",
    "PluginAnswerError",
    "PluginRegistry",
    "Reader",
    "default_registry",
    "hookimpl",
    "load_registry",
]
