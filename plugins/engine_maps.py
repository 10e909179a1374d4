"""Engine/model maps: which part of serving a model a kernel belongs to.

`--categorizer vllm:gpt-oss`. Each JSON file in this folder holds the models of one engine, and a
file put here, in `--maps DIR`, or in the user's configuration folder is picked up by being there.
A few engines and models go by a second, shorter name.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from tracelens_ext.categorize import RulePack, load_maps
from tracelens_ext.hooks import hookimpl

SHORT_NAMES: Final = {"tensorrt-llm": "trtllm", "deepseek": "ds"}


@hookimpl
def tracelens_rule_packs() -> list[RulePack]:
    """Return a pack for each engine and model, and one more for each short name."""
    packs = load_maps(Path(__file__).parent, check_patterns=False)
    packs_by_short_names: list[RulePack] = []
    for pack in packs:
        names = _other_names(pack.name)
        packs_by_short_names += [replace(pack, name=name) for name in names]
    return packs + packs_by_short_names


def _other_names(name: str) -> list[str]:
    """Return the names with a short one: `trtllm:ds` and two more for `tensorrt-llm:deepseek`."""
    engine, _, model = name.partition(":")
    short_engine = SHORT_NAMES.get(engine, engine)
    short_model = SHORT_NAMES.get(model, model)
    names = [
        f"{engine}:{short_model}",
        f"{short_engine}:{model}",
        f"{short_engine}:{short_model}",
    ]
    distinct = dict.fromkeys(names)
    return [other for other in distinct if other != name]
