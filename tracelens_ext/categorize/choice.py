"""Finding what a user chose with `--categorizer` or `categorizer=`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracelens_ext.categorize.maps import (
    load_map_file,
    load_maps,
    pack_from_mapping,
    python_hooks,
    read_json,
    user_map_files,
)
from tracelens_ext.categorize.matcher import BoundPack, PythonStage, Source
from tracelens_ext.categorize.rules import RulePack
from tracelens_ext.errors import RuleError, UsageError
from tracelens_ext.hooks import Hook, Offered, Plugin, PluginRegistry
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from typing import TypeAlias

CategorizerLike: TypeAlias = (
    str
    | os.PathLike[str]
    | RulePack
    | Mapping[str, Any]
    | Callable[["pd.DataFrame"], "Sequence[str | None]"]
)
"""What a user may choose: a name, a JSON file, a substring or engine/model map, a function."""

_USER: Final = Plugin("your maps", "", "", own=False)


def choose(
    choice: CategorizerLike | None,
    registry: PluginRegistry,
    offered: Sequence[Offered[RulePack]],
    selectable: Mapping[str, Offered[RulePack]],
    passed_over: Sequence[str] = (),
) -> list[Source]:
    """What the user's choice stands for."""
    if choice is None:
        return []
    if isinstance(choice, RulePack | Mapping):
        pack = choice if isinstance(choice, RulePack) else pack_from_mapping(choice)
        return [BoundPack(pack, "categorizer")]
    if isinstance(choice, (str, os.PathLike)):
        name = os.fspath(choice)
        if name in selectable:
            return [_chosen(selectable[name])]
        if Path(name).suffix.lower() == ".json":
            return [BoundPack(map_in_file(name), "categorizer")]
        return _by_name(name, registry, offered, selectable, passed_over)
    if callable(choice):
        called = getattr(choice, "__name__", type(choice).__name__)
        return [PythonStage(called, choice, own_risk=True)]
    raise UsageError(
        f"categorizer: expected a name, a map or a function, got {type(choice).__name__}"
    )


def user_maps(
    places: Sequence[str | os.PathLike[str] | RulePack],
    registry: PluginRegistry,
    passed_over: list[str],
) -> list[Offered[RulePack]]:
    """The engine/model maps of the user: the configuration folder's, then those asked for.

    Args:
        places: folders (or files) that the user named, or maps of them.
        registry: where an invalid map in the configuration folder is noted as a problem.
        passed_over: gets a line for each file in those folders that is no such map.

    Raises:
        RuleError: a place does not exist, or is a file that is no such map.
    """
    packs = []
    for path in user_map_files():
        with registry.guard("configuration folder"):
            packs += load_map_file(path)
    for place in places:
        packs += (
            [place] if isinstance(place, RulePack) else load_maps(place, passed_over=passed_over)
        )
    return [Offered(pack, _USER) for pack in packs]


def python_stage(hook: Hook) -> PythonStage:
    """A plugin's Python categoriser as a stage."""
    return PythonStage(
        hook.plugin.name, partial(_call_with_table, hook), priority=hook.options.priority
    )


def _call_with_table(hook: Hook, table: pd.DataFrame) -> Any:  # noqa: ANN401
    return hook.call(table=table)


def _chosen(offered: Offered[RulePack]) -> BoundPack:
    return BoundPack(offered.item, "categorizer", limited=not offered.plugin.own)


def map_in_file(path: str) -> RulePack:
    """The map, of whichever form, in a JSON file."""
    document = read_json(path)
    if not isinstance(document, Mapping):
        raise RuleError(f'{path}: expected {{"part_of_kernel_name": "category"}}')
    return pack_from_mapping(document, name=Path(path).name)


def _by_name(
    name: str,
    registry: PluginRegistry,
    offered: Sequence[Offered[RulePack]],
    selectable: Mapping[str, Offered[RulePack]],
    passed_over: Sequence[str],
) -> list[Source]:
    """The packs and functions of a plugin, or a single pack."""
    hooks: list[Source] = [
        python_stage(hook) for hook in python_hooks(registry) if hook.plugin.name == name
    ]
    of_plugin = [o for o in offered if o.plugin.name == name]
    packs = [_chosen(o) for o in of_plugin if not o.item.selectable]
    packs.sort(key=lambda source: (-source.priority, source.name))
    if hooks or packs:
        return [*hooks, *packs]
    if of_plugin:
        names = ", ".join(sorted(o.item.name for o in of_plugin))
        raise UsageError(f"categorizer {name!r} is a collection; choose one of: {names}")
    single = next((o for o in offered if o.item.name == name), None)
    if single is not None:
        return [_chosen(single)]
    failed = next((p for p in registry.problems if p.startswith(f"{name}: ")), None)
    if failed is not None:
        raise UsageError(f"categorizer {name!r} failed: {failed.removeprefix(f'{name}: ')}")
    from difflib import get_close_matches

    known = sorted({*selectable, *(h.plugin.name for h in python_hooks(registry))})
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}? Known" if near else "known"
    raise UsageError(
        f"no categorizer is called {name!r}; {hint}: {', '.join(known) or 'none'}, "
        f"or the path of a JSON map{not_maps(passed_over)}"
    )


def not_maps(passed_over: Sequence[str]) -> str:
    """What to add to the message that a map is not there: the files that were passed over."""
    more = f" and {len(passed_over) - 3} more" if len(passed_over) > 3 else ""
    return f"; passed over: {'; '.join(passed_over[:3])}{more}" if passed_over else ""
