"""The options with which a fleet analyzes its traces, in a form that other machines can use."""

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

#: The version of the parts. It is increased when the parts or their meaning change, so that the
#: traces are analyzed again.
LAYOUT = 5


@dataclass(frozen=True)
class JobOptions:
    """The options with which every trace of a fleet is analyzed."""

    #: arguments of the analyzer about categorization; see `portable_rules`
    rules: Mapping[str, Any] = field(default_factory=dict)
    #: count GPU events without a launch in the timelines
    unlinked_kernels: bool = True
    reading: ReadingOptions = DEFAULT_READING_OPTIONS  #: how traces are read
    cache: bool = False  #: use the user's cache of traces, for files but not for URLs
    #: the pause before the second attempt at a URL; it doubles with each further one
    pause_s: float = 1.0

    @property
    def key(self) -> str:
        """A hash of everything that affects the results of a trace.

        Results with a different key are out of date.
        """
        plugins = sorted(
            (plugin.name, plugin.distribution) for plugin in default_registry().plugins
        )
        reading = (
            self.reading.allow_truncated,
            self.reading.max_bytes,
            self.reading.rank,
        )
        parts = [LAYOUT, VERSION, self.rules, self.unlinked_kernels, reading, plugins]
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


def portable_rules(
    rules: Sequence[str | os.PathLike[str]],
    categorizer: str | os.PathLike[str] | None,
    maps: Sequence[str | os.PathLike[str]],
    disabled_packs: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the arguments of a categorizer with the contents of files in place of their paths.

    Workers on other machines do not have the files.

    Args:
        rules: TOML files of rules.
        categorizer: the name of a plugin or map, or a JSON file with a map.
        maps: folders of engine/model maps.
        disabled_packs: names of rule packs that are not used.

    Raises:
        UsageError: the categorizer is a function or a map, or nothing has this name.
        RuleError: the rules are invalid.
    """
    if categorizer is not None and not isinstance(categorizer, str | os.PathLike):
        raise errors.UsageError(
            "categorizer: fleet takes a name or a JSON file, not a function or map"
        )
    # Invalid arguments fail here, before workers start.
    KernelCategorizer.create(
        rules=rules, categorizer=categorizer, maps=maps, disabled_packs=disabled_packs
    )
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
    """Return the name of a categorizer, or the map that its JSON file contains."""
    if categorizer is None:
        return None
    name = os.fspath(categorizer)
    if name.lower().endswith(".json"):
        return _without_folder(map_in_file(name))
    return name


def _without_folder(pack: RulePack) -> RulePack:
    """Return a pack without the folder of its file, which must not affect `JobOptions.key`."""
    return replace(pack, source=Path(pack.source or "").name)
