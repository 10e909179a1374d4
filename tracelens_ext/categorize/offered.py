"""What plugins offer for categories: rule packs and Python categorisers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from tracelens_ext.categorize.loading import load_pack, parse_pack
from tracelens_ext.categorize.maps import engine_packs, load_map_file
from tracelens_ext.categorize.rules import RulePack
from tracelens_ext.hooks import Hook, Offered, Plugin, PluginAnswerError, PluginRegistry


@lru_cache(maxsize=4)
def offered_packs(registry: PluginRegistry) -> tuple[Offered[RulePack], ...]:
    """Every rule pack of every plugin; a broken pack is a problem, the others stay."""
    packs: list[Offered[RulePack]] = []
    for offered in registry.offers("tracelens_rule_packs", _check_type):
        with registry.guard(offered.plugin.name):
            found = list(_packs_from(offered.item, offered.plugin))
            packs += [Offered(pack, offered.plugin) for pack in found]
    return tuple(packs)


def python_hooks(registry: PluginRegistry) -> list[Hook]:
    """Every Python categoriser of every plugin, in order of precedence."""
    return registry.hooks("tracelens_categorize_kernels")


def _check_type(item: object) -> None:
    if not isinstance(item, (RulePack, Mapping, str, os.PathLike)):
        raise PluginAnswerError(
            "tracelens_rule_packs: expected paths of rule packs, dicts or RulePack objects, "
            f"got {type(item).__name__}"
        )


def _packs_from(item: RulePack | Mapping[str, object] | str, plugin: Plugin) -> Iterator[RulePack]:
    """The rule packs in one item of a plugin's answer."""
    if isinstance(item, RulePack):
        yield item
    elif isinstance(item, Mapping):
        if any(isinstance(models, Mapping) for models in item.values()) and "rule" not in item:
            yield from engine_packs(item, f"a map of {plugin.name}")
        else:
            yield parse_pack(item, name=plugin.name)
    elif Path(item).suffix.lower() == ".json":
        yield from load_map_file(item)
    else:
        # The patterns of this distribution's own packs are compiled by its tests.
        yield load_pack(item, check_patterns=not plugin.own)
