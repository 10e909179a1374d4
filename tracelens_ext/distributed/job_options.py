"""How the traces of a fleet are analyzed, in a form that workers on other machines can use."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tracelens_ext import errors
from tracelens_ext.categorize import KernelCategorizer, RulePack, load_maps, load_pack
from tracelens_ext.categorize.maps import map_in_file
from tracelens_ext.hooks import default_registry
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, VERSION, ReadingOptions

#: Raised when the parts, or what they mean, change: what was done before is then done again.
LAYOUT = 5


@dataclass(frozen=True)
class JobOptions:
    """How every trace of a fleet is analyzed."""

    #: the arguments of an analyzer about rules; see `portable_rules`
    rules: Mapping[str, Any] = field(default_factory=dict)
    unlinked_kernels: bool = True  #: GPU events without a launch count in the timeline
    reading: ReadingOptions = DEFAULT_READING_OPTIONS  #: how traces are read
    cache: bool = False  #: the user's cache of traces is used (for files, not for URLs)
    #: how long the second attempt at a URL waits; each further one waits twice as long
    pause_s: float = 1.0

    @property
    def key(self) -> str:
        """A hash of all that changes the results: those made with another are made again."""
        plugins = sorted(
            (plugin.name, plugin.distribution) for plugin in default_registry().plugins
        )
        chosen = self.reading
        reading = (chosen.allow_truncated, chosen.max_bytes, chosen.rank)
        parts = [LAYOUT, VERSION, self.rules, self.unlinked_kernels, reading, plugins]
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


def portable_rules(
    rules: Sequence[str | os.PathLike[str]],
    categorizer: str | os.PathLike[str] | None,
    maps: Sequence[str | os.PathLike[str]],
    disabled_packs: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the arguments of a categorizer with its files read, as workers do not have the files.

    Args:
        rules: TOML files of rules.
        categorizer: the name of a plugin or map, or a JSON file with a map.
        maps: folders of engine/model maps.
        disabled_packs: names of rule packs that take no part.

    Raises:
        UsageError: the categorizer is a function or a map, or nothing has its name.
        RuleError: the rules are invalid.
    """
    if categorizer is not None and not isinstance(categorizer, str | os.PathLike):
        raise errors.UsageError(
            "categorizer: fleet takes a name or a JSON file, not a function or map"
        )
    given: dict[str, Any] = {"rules": rules, "categorizer": categorizer, "maps": maps}
    KernelCategorizer.create(**given, disabled_packs=disabled_packs)
    rule_packs = [_without_folder(load_pack(path)) for path in rules]
    map_packs: list[RulePack] = []
    for folder in maps:
        packs = load_maps(folder, passed_over=[])
        map_packs.extend(_without_folder(pack) for pack in packs)
    return {
        "rules": rule_packs,
        "maps": map_packs,
        "categorizer": _portable_categorizer(categorizer),
        "disabled_packs": list(disabled_packs),
    }


def _portable_categorizer(
    categorizer: str | os.PathLike[str] | None,
) -> RulePack | str | None:
    """Return a categorizer's name, or the map in its file."""
    if categorizer is None:
        return None
    name = os.fspath(categorizer)
    if name.lower().endswith(".json"):
        return _without_folder(map_in_file(name))
    return name


def _without_folder(pack: RulePack) -> RulePack:
    """Return a pack that does not say in which folder its file is, which changes no result."""
    return replace(pack, source=Path(pack.source or "").name)
