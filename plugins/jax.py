"""The key lists with which JAX and XLA users sort their kernels, as a pack to choose.

`--categorizer jax` or `categorizer="jax"`. A kernel belongs to the first list of which a key is
part of its name, in upper and lower case as written; what no list knows is `Uncategorized Events`
and counts as uncategorized in the coverage. `jax-keys` has the same lists, and leaves the rest to
the other rules, which know the names that XLA gives its fusions; traces of JAX get it unasked.

The lists are the ones that people compare numbers with, so they are kept as they are. One key to
know about: `FillBuffer`, under `Conv`, stands for the fills that precede convolutions on AMD GPUs
and finds every other buffer fill as well.
"""

from __future__ import annotations

import re
from typing import Final

from tracelens_ext.categorize import Rule, RulePack
from tracelens_ext.hooks import hookimpl

KEYS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("GEMM", ("Cijk", "gemm", "nvjet", "cublasLt")),
    (
        "FA BWD",
        ("FmhaBwd", "flash_bprop", "ck_fused_attn::dk_dv_reduce_thd", "fmha_bwd"),
    ),
    ("FA FWD", ("FmhaFwd", "flash_fprop", "fmha_fwd")),
    ("FA V3", ("kernel_func",)),
    ("Conv", ("FillBuffer", "conv_", "conv.", "conv-")),
    ("TE", ("transformer_engine", "te_fused_attn")),
    ("Communication rccl/nccl", ("rccl", "nccl")),
)
"""Label and keys, in the order in which they are tried."""

UNKNOWN: Final = "Uncategorized Events"


@hookimpl
def tracelens_rule_packs() -> list[RulePack]:
    """Return the packs `jax` and `jax-keys`."""
    rules = []
    for number, (label, keys) in enumerate(KEYS, start=1):
        pattern = "|".join(re.escape(key) for key in keys)
        rules.append(Rule(label, pattern, number=number))
    rest = Rule(UNKNOWN, ".*", number=len(rules) + 1)
    return [
        RulePack("jax", (*rules, rest), selectable=True),
        RulePack("jax-keys", tuple(rules), selectable=True, usual_for="JAX"),
    ]
