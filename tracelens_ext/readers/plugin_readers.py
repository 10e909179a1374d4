"""Readers that plugins bring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracelens_ext.hooks import Offered, PluginAnswerError, PluginRegistry, default_registry

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracelens_ext.hooks import Reader
    from tracelens_ext.trace import Trace


def offered_readers(registry: PluginRegistry) -> list[Offered[Reader]]:
    """The readers of all plugins, in order of precedence."""
    return registry.offers("tracelens_readers", _check)


def read_with_plugins(
    path: Path, head: bytes, registry: PluginRegistry | None = None
) -> Mapping[str, Any] | Trace | None:
    """Read a file with the first plugin that recognises it.

    Args:
        path: the file.
        head: its first bytes, unpacked.
        registry: the plugins to ask instead of the installed ones.

    Returns:
        What the reader returned (see `hooks.Reader`); None when no plugin recognises the
        file, or the one that did failed (then a problem of the registry says how).
    """
    registry = registry or default_registry()
    for offered in offered_readers(registry):
        recognised = False
        with registry.guard(offered.plugin.name):
            recognised = bool(offered.item.recognises(path, head))
        if recognised:
            with registry.guard(offered.plugin.name):
                return offered.item.read(path)
    return None


def _check(reader: object) -> None:
    for method in ("recognises", "read"):
        if not callable(getattr(reader, method, None)):
            raise PluginAnswerError(f"tracelens_readers: {reader!r} has no method {method!r}")
