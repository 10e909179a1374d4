"""The rules and functions that a categorizer tries, and their order."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tracelens_ext.categorize.choices import Choices, python_stages, user_maps
from tracelens_ext.categorize.matcher import BoundPack, PythonStage, Source
from tracelens_ext.categorize.rules import RulePack
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import Offered, PluginRegistry

#: Files or folders with rules, or packs that were read from them.
Paths = Sequence["str | os.PathLike[str] | RulePack"]


def usual_pack(offered: Sequence[Offered[RulePack]], framework: str) -> str | None:
    """Return the name of the pack that is used by default for traces of a framework."""
    for offer in offered:
        pack = offer.item
        if pack.usual_for == framework:
            return pack.name
    return None


def user_choices(
    maps: Paths, registry: PluginRegistry, offered: Sequence[Offered[RulePack]]
) -> Choices:
    """Return everything that a user can choose from.

    If a map of the user and another pack have the same name, the user's map is taken.
    """
    passed_over: list[str] = []
    selectable = {offer.item.name: offer for offer in offered if offer.item.selectable}
    for offer in user_maps(maps, registry, passed_over):
        selectable[offer.item.name] = offer
    return Choices(
        registry=registry,
        offered=offered,
        selectable=selectable,
        passed_over=passed_over,
    )


def used_by_default(
    offered: Sequence[Offered[RulePack]],
    disabled_packs: Sequence[str],
    chosen: Sequence[Source],
) -> list[Offered[RulePack]]:
    """Return the packs that are used by default, without disabled and chosen ones.

    Raises:
        UsageError: a name in `disabled_packs` is not that of a pack that is used by default.
    """
    default_packs = [offer for offer in offered if not offer.item.selectable]
    known_names = sorted({offer.item.name for offer in default_packs})
    for name in disabled_packs:
        if name not in known_names:
            raise UsageError(
                f"there is no pack called {name!r}; known: {', '.join(known_names)}"
            )
    chosen_packs = {
        id(source.pack) for source in chosen if isinstance(source, BoundPack)
    }
    return [
        offer
        for offer in default_packs
        if offer.item.name not in disabled_packs and id(offer.item) not in chosen_packs
    ]


def plugin_sources(
    registry: PluginRegistry,
    default_packs: Sequence[Offered[RulePack]],
    chosen: Sequence[Source],
) -> list[Source]:
    """Return the packs and functions of other distributions that are used by default."""
    chosen_functions = {
        source.name
        for source in chosen
        if isinstance(source, PythonStage) and not source.raises_errors
    }
    sources: list[Source] = [
        BoundPack(offer.item, "plugin")
        for offer in default_packs
        if not offer.plugin.own
    ]
    sources += [
        function
        for function in python_stages(registry)
        if not function.selectable and function.name not in chosen_functions
    ]
    return sorted(sources, key=_precedence)


def builtin_sources(default_packs: Sequence[Offered[RulePack]]) -> list[Source]:
    """Return the packs of this distribution that are used by default."""
    sources: list[Source] = [
        BoundPack(offer.item, "builtin", limited=False)
        for offer in default_packs
        if offer.plugin.own
    ]
    return sorted(sources, key=_precedence)


def _precedence(source: Source) -> tuple[int, str, bool]:
    """Return the sort key of a source: priority (higher first), name, then functions first."""
    return -source.priority, source.name, isinstance(source, BoundPack)
