"""Engine/model maps: which part of serving a model a kernel belongs to.

`--categorizer vllm:gpt-oss`. Each JSON file in this folder holds the models of one engine, and a
file put here, in `--maps DIR`, or in the user's configuration folder is picked up by being there.
A few engines and models go by a second, shorter name.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Final

from tracelens_ext.categorize import RulePack, load_maps
from tracelens_ext.hooks import hookimpl

SHORT_NAMES: Final = {"tensorrt-llm": "trtllm", "deepseek": "ds"}


@hookimpl
def tracelens_rule_packs() -> list[RulePack]:
    """A pack for each engine and model, and one more for each short name."""
    packs = load_maps(Path(__file__).parent, check_patterns=False)
    return packs + [
        replace(pack, name=name)
        for pack in packs
        for name in dict.fromkeys(map(":".join, product(*map(_spellings, pack.name.split(":")))))
        if name != pack.name
    ]


def _spellings(part: str) -> tuple[str, str]:
    return part, SHORT_NAMES.get(part, part)
