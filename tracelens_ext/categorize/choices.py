"""Collects the rule packs and functions of plugins, and resolves the user's choice among them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import platformdirs

from tracelens_ext.categorize.maps import (
    engine_packs,
    load_map_file,
    load_maps,
    map_in_file,
    not_maps,
    pack_from_mapping,
)
from tracelens_ext.categorize.matcher import BoundPack, PythonStage, Source
from tracelens_ext.categorize.rule_files import load_pack, parse_pack
from tracelens_ext.categorize.rules import RulePack
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import Hook, Offered, Plugin, PluginAnswerError, PluginRegistry
from tracelens_ext.lazy import pd

CategorizerLike: TypeAlias = (
    str
    | os.PathLike[str]
    | RulePack
    | Mapping[str, Any]
    | Callable[["pd.DataFrame"], "Sequence[str | None]"]
)
"""A choice of a user: a name, a JSON file, a pack, a substring or engine/model map, a function."""

_USER: Final = Plugin(name="your maps", module="", distribution="", own=False)


@lru_cache(maxsize=4)
def offered_packs(registry: PluginRegistry) -> tuple[Offered[RulePack], ...]:
    """Return the rule packs of all plugins; broken packs are left out and noted as problems."""
    packs: list[Offered[RulePack]] = []
    for offered in registry.offers("tracelens_rule_packs", _check_type):
        with registry.guard(offered.plugin.name):
            packs_of_item = _packs_of_item(offered.item, offered.plugin)
            packs += [Offered(pack, offered.plugin) for pack in packs_of_item]
    return tuple(packs)


def _check_type(item: object) -> None:
    if not isinstance(item, (RulePack, Mapping, str, os.PathLike)):
        expected = "expected paths of rule packs, dicts or RulePack objects"
        raise PluginAnswerError(
            f"tracelens_rule_packs: {expected}, got {type(item).__name__}"
        )


def _packs_of_item(
    item: RulePack | Mapping[str, object] | str | os.PathLike[str], plugin: Plugin
) -> list[RulePack]:
    """Return the rule packs in one item that a plugin returned."""
    if isinstance(item, RulePack):
        return [item]
    if isinstance(item, Mapping):
        has_models = any(isinstance(models, Mapping) for models in item.values())
        if has_models and "rule" not in item:
            return engine_packs(item, f"a map of {plugin.name}")
        return [parse_pack(item, name=plugin.name)]
    if Path(item).suffix.lower() == ".json":
        return load_map_file(item)
    # The tests of this distribution have checked the patterns of its own packs.
    return [load_pack(item, check_patterns=not plugin.own)]


def python_stages(registry: PluginRegistry) -> list[PythonStage]:
    """Return the Python categorizers of all plugins, in order of precedence."""
    return [
        _python_stage(hook) for hook in registry.hooks("tracelens_categorize_kernels")
    ]


def _python_stage(hook: Hook) -> PythonStage:
    return PythonStage(
        name=hook.plugin.name,
        call=lambda table: hook.call(table=table),
        priority=hook.options.priority,
        selectable=hook.options.selectable,
    )


class Choices(NamedTuple):
    """The categorizers among which a user can choose."""

    registry: PluginRegistry
    offered: Sequence[Offered[RulePack]]  #: the packs of plugins
    #: name → pack, for packs that are used only if they are chosen
    selectable: Mapping[str, Offered[RulePack]]
    #: a line for each file of the user that is not a map
    passed_over: Sequence[str] = ()


def choose(choice: CategorizerLike | None, choices: Choices) -> list[Source]:
    """Return the packs or the function that a user chose.

    Raises:
        UsageError: there is no categorizer of the given name.
        RuleError: a map is invalid.
    """
    if choice is None:
        return []
    if isinstance(choice, RulePack):
        return [BoundPack(choice, "categorizer")]
    if isinstance(choice, Mapping):
        return [BoundPack(pack_from_mapping(choice), "categorizer")]
    if isinstance(choice, (str, os.PathLike)):
        return _named(os.fspath(choice), choices)
    if callable(choice):
        name = getattr(choice, "__name__", type(choice).__name__)
        return [PythonStage(name, choice, raises_errors=True)]
    got = type(choice).__name__
    raise UsageError(f"categorizer: expected a name, a map or a function, got {got}")


def _named(name: str, choices: Choices) -> list[Source]:
    """Return the packs or the function with a name, which is that of a pack, a file or a plugin."""
    if name in choices.selectable:
        return _bound([choices.selectable[name]])
    if Path(name).suffix.lower() == ".json":
        return [BoundPack(map_in_file(name), "categorizer")]
    stages = python_stages(choices.registry)
    packs_of_plugin = [
        offered for offered in choices.offered if offered.plugin.name == name
    ]
    default_packs = [
        offered for offered in packs_of_plugin if not offered.item.selectable
    ]
    stages_of_plugin: list[Source] = [stage for stage in stages if stage.name == name]
    if stages_of_plugin or default_packs:
        return stages_of_plugin + _bound(default_packs)
    # All packs of the plugin have to be chosen one by one.
    if packs_of_plugin:
        names = ", ".join(sorted(offered.item.name for offered in packs_of_plugin))
        raise UsageError(
            f"categorizer {name!r} is a collection; choose one of: {names}"
        )
    for offered in choices.offered:
        if offered.item.name == name:
            return _bound([offered])
    raise UsageError(_nothing_is_called(name, choices, stages))


def _bound(packs: Sequence[Offered[RulePack]]) -> list[Source]:
    """Return chosen packs in order of precedence."""
    ordered = sorted(
        packs, key=lambda offered: (-offered.item.priority, offered.item.name)
    )
    return [
        BoundPack(offered.item, "categorizer", limited=not offered.plugin.own)
        for offered in ordered
    ]


def _nothing_is_called(
    name: str, choices: Choices, stages: Sequence[PythonStage]
) -> str:
    """Return the message about an unknown name, with the most similar known one."""
    from difflib import get_close_matches

    prefix = f"{name}: "
    for problem in choices.registry.problems:
        if problem.startswith(prefix):
            return f"categorizer {name!r} failed: {problem.removeprefix(prefix)}"
    known_names = sorted(set(choices.selectable) | {stage.name for stage in stages})
    similar_names = get_close_matches(name, known_names, n=1, cutoff=0.6)
    hint = "known"
    if similar_names:
        hint = f"did you mean {similar_names[0]!r}? Known"
    return (
        f"there is no categorizer called {name!r}; {hint}: "
        f"{', '.join(known_names) or 'none'}, or the path of a JSON "
        f"map{not_maps(choices.passed_over)}"
    )


def user_maps(
    places: Sequence[str | os.PathLike[str] | RulePack],
    registry: PluginRegistry,
    passed_over: list[str],
) -> list[Offered[RulePack]]:
    """Return the engine/model maps of the user: those in the configuration folder, then others.

    Args:
        places: files and folders, or packs that were read from them.
        registry: receives the problems in the configuration folder.
        passed_over: receives a line for each file in a folder that is not a map.

    Raises:
        RuleError: a file is not a map, or a folder does not exist.
    """
    packs: list[RulePack] = []
    files: list[Path] = []
    # The folder may not exist, or may belong to another user, for example in a container.
    with suppress(OSError, RuntimeError):
        files = sorted(platformdirs.user_config_path("tracelens-ext").glob("*.json"))
    for path in files:
        with registry.guard("configuration folder"):
            packs += load_map_file(path)
    for place in places:
        if isinstance(place, RulePack):
            packs.append(place)
        else:
            packs += load_maps(place, passed_over=passed_over)
    return [Offered(pack, _USER) for pack in packs]
