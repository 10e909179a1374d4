"""Kernel categories: rules, rule packs, and the one categoriser that asks them.

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
from tracelens_ext.categorize.maps import CategorizerLike, load_maps
from tracelens_ext.categorize.rules import (
    CATEGORIES,
    Decisions,
    Example,
    Rule,
    RulePack,
    load_pack,
)
from tracelens_ext.hooks import hookimpl
from tracelens_ext.text import UNCATEGORIZED

__all__ = ["CATEGORIES", "UNCATEGORIZED", "CategorizerLike", "Decisions", "Example", "RuleProblem"]
__all__ += ["KernelCategorizer", "Rule", "RulePack", "builtin_categorizer", "categorize_kernels"]
__all__ += ["check_pack", "hookimpl", "load_maps", "load_pack"]
