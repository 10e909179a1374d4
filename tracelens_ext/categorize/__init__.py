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
    from tracelens_ext.categorize.loading import load_pack
    from tracelens_ext.categorize.maps import load_maps
    from tracelens_ext.categorize.rules import Example, Rule, RulePack
    from tracelens_ext.hooks import hookimpl

__all__ = [
    "CATEGORIES",
    "UNCATEGORIZED",
    "CategorizerLike",
    "Decisions",
    "Example",
    "Finding",
    "KernelCategorizer",
    "Rule",
    "RulePack",
    "builtin_categorizer",
    "categorize_kernels",
    "check_pack",
    "hookimpl",
    "load_maps",
    "load_pack",
]

_HOME: Final = {
    "CATEGORIES": "categorize.categories",
    "UNCATEGORIZED": "categorize.categories",
    "CategorizerLike": "categorize.choice",
    "Decisions": "categorize.decisions",
    "Example": "categorize.rules",
    "Finding": "categorize.check",
    "KernelCategorizer": "categorize.categorizer",
    "Rule": "categorize.rules",
    "RulePack": "categorize.rules",
    "builtin_categorizer": "categorize.categorizer",
    "categorize_kernels": "categorize.categorizer",
    "check_pack": "categorize.check",
    "hookimpl": "hooks",
    "load_maps": "categorize.maps",
    "load_pack": "categorize.loading",
}


def __getattr__(name: str) -> object:
    """Import a public name from the module that defines it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"tracelens_ext.{_HOME[name]}"), name)
    globals()[name] = value
    return value
