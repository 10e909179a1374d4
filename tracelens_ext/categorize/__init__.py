"""Kernel categories: rules, rule packs, and the categorizer that applies them.

>>> from tracelens_ext.categorize import KernelCategorizer
>>> categorizer = KernelCategorizer.create(rules=["my_rules.toml"])
>>> categorizer.categorize(["void my_company::fused_bias_gelu<float>(float*)"]).category
['My Fused Op']
"""

from tracelens_ext.categorize.categorizer import (
    KernelCategorizer,
    builtin_categorizer,
    categorize_kernels,
)
from tracelens_ext.categorize.check import RuleProblem, check_pack
from tracelens_ext.categorize.choices import CategorizerLike
from tracelens_ext.categorize.maps import load_maps
from tracelens_ext.categorize.rule_files import load_pack
from tracelens_ext.categorize.rules import (
    CATEGORIES,
    UNCATEGORIZED,
    Decisions,
    Example,
    Rule,
    RulePack,
)
from tracelens_ext.hooks import hookimpl

__all__ = [
    "CATEGORIES",
    "UNCATEGORIZED",
    "CategorizerLike",
    "Decisions",
    "Example",
    "KernelCategorizer",
    "Rule",
    "RulePack",
    "RuleProblem",
    "builtin_categorizer",
    "categorize_kernels",
    "check_pack",
    "hookimpl",
    "load_maps",
    "load_pack",
]
