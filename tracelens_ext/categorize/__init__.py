"""Kernel categories: rules, rule packs, plugins, and the one categoriser that asks them.

    >>> from tracelens_ext.categorize import KernelCategorizer
    >>> categorizer = KernelCategorizer.create(rules=["my_rules.toml"])
    >>> categorizer.categorize(["void my_company::fused_bias_gelu<float>(float*)"]).category
    ['My Fused Op']

Names are imported when first used, so that importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tracelens_ext.categorize.categories import CATEGORIES, UNCATEGORIZED
    from tracelens_ext.categorize.categorizer import (
        KernelCategorizer,
        builtin_categorizer,
        categorize_kernels,
    )
    from tracelens_ext.categorize.check import Finding, check_pack
    from tracelens_ext.categorize.choice import CategorizerLike
    from tracelens_ext.categorize.decisions import Decisions
    from tracelens_ext.categorize.hookspecs import hookimpl
    from tracelens_ext.categorize.loading import load_pack
    from tracelens_ext.categorize.maps import load_maps
    from tracelens_ext.categorize.registry import PluginRegistry, default_registry
    from tracelens_ext.categorize.rules import Example, Rule, RulePack

__all__ = [
    "CATEGORIES",
    "UNCATEGORIZED",
    "CategorizerLike",
    "Decisions",
    "Example",
    "Finding",
    "KernelCategorizer",
    "PluginRegistry",
    "Rule",
    "RulePack",
    "builtin_categorizer",
    "categorize_kernels",
    "check_pack",
    "default_registry",
    "hookimpl",
    "load_maps",
    "load_pack",
]

_HOME: Final = {
    "CATEGORIES": "categories",
    "UNCATEGORIZED": "categories",
    "CategorizerLike": "choice",
    "Decisions": "decisions",
    "Example": "rules",
    "Finding": "check",
    "KernelCategorizer": "categorizer",
    "PluginRegistry": "registry",
    "Rule": "rules",
    "RulePack": "rules",
    "builtin_categorizer": "categorizer",
    "categorize_kernels": "categorizer",
    "check_pack": "check",
    "default_registry": "registry",
    "hookimpl": "hookspecs",
    "load_maps": "maps",
    "load_pack": "loading",
}


def __getattr__(name: str) -> object:
    """Import a public name from the module that defines it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
