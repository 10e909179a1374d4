"""Other ways to say rules; what plugins offer; and what a user chooses of all that.

* Engine/model maps, JSON: `{"vllm": {"llama": {"regex|regex": "category", ".*": "misc"}}}`.
  Each model becomes a selectable pack called `ENGINE:MODEL`; the first pattern that matches wins,
  and what none matches is `(no pattern)`.
* Substring maps, also called class maps: `{"xmma_gemm": "gemm", "fmha_": "fmha"}`. Matched in
  lower case; NCCL kernels are always `nccl` and whatever is left is `others`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any, Final, TypeAlias

import platformdirs

from tracelens_ext.categorize.matcher import BoundPack, PythonStage, Source
from tracelens_ext.categorize.rules import (
    MATCH_ALL,
    Rule,
    RulePack,
    load_pack,
    parse_pack,
    read_document,
)
from tracelens_ext.errors import RuleError, UsageError
from tracelens_ext.hooks import Hook, Offered, Plugin, PluginAnswerError, PluginRegistry
from tracelens_ext.lazy import pd

NCCL_CLASS: Final = "nccl"
OTHERS_CLASS: Final = "others"
NO_PATTERN: Final = "(no pattern)"
"""The category of what an engine/model map has no pattern for."""
_LARGEST: Final = 4 * 2**20
_MOST_KEYS: Final = 5_000
_EXPECTED: Final = 'expected {"ENGINE": {"MODEL": {"regex|regex": "category"}}}'


def substring_pack(class_map: Mapping[str, str], name: str = "map") -> RulePack:
    """A rule pack of a substring map: part of a kernel name (case does not matter) → category."""
    if len(class_map) > _MOST_KEYS:
        raise RuleError(f"{name}: expected at most {_MOST_KEYS:,} keys, got {len(class_map):,}")
    for pair in class_map.items():
        if not all(isinstance(text, str) and text for text in pair):
            raise RuleError(
                f"{name}: {pair[0]!r}: expected a part of a kernel name and its category, both"
                f" texts, got {pair[0]!r}: {pair[1]!r}"
            )
    keys = [key.lower() for key in class_map]
    for one, other in combinations(keys, 2):
        if one == other:
            raise RuleError(f"{name}: the key {one!r} occurs twice; case does not matter")
        short, long = sorted((one, other), key=len)
        if short in long:
            raise RuleError(
                f"{name}: the key {long!r} contains the key {short!r}, so it is not clear "
                "which is meant; make them exclude one another"
            )
    import regex

    pairs = zip(keys, class_map.values(), strict=True)
    patterns = [
        (NCCL_CLASS, "(?i)nccl", f"{name}:{NCCL_CLASS}"),
        *((category, "(?i)" + regex.escape(key), None) for key, category in pairs),
        (OTHERS_CLASS, ".*", f"{name}:{OTHERS_CLASS}"),
    ]
    rules = (Rule(of, text, name=own, number=at) for at, (of, text, own) in enumerate(patterns))
    return RulePack(name, tuple(rules))


def engine_packs(document: object, source: str, *, check_patterns: bool = True) -> list[RulePack]:
    """One selectable rule pack a model of `{"ENGINE": {"MODEL": {"regex|regex": "category"}}}`.

    `source` is what errors call it; without `check_patterns` those are compiled when asked.
    """
    packs = []
    for engine, models in _object(document, source, "").items():
        for model, patterns in _object(models, source, f"{engine}: ").items():
            name = f"{engine}:{model}"
            entries = _object(patterns, source, f"{name}: ").items()
            rules = [{"category": category, "pattern": pattern} for pattern, category in entries]
            if not any(pattern in MATCH_ALL for pattern, _ in entries):
                # It answers for every name: no other pack is asked after it.
                rest = {"category": NO_PATTERN, "pattern": ".*", "name": f"{name} {NO_PATTERN}"}
                rules.append(rest)
            pack = {"pack": {"name": name, "selectable": True}, "rule": rules}
            where = f"{source}: {name}"
            packs.append(parse_pack(pack, source=where, check_patterns=check_patterns))
    return packs


def load_map_file(path: str | os.PathLike[str], *, check_patterns: bool = True) -> list[RulePack]:
    """Read one engine/model map; see `engine_packs`."""
    return engine_packs(read_json(path), os.fspath(path), check_patterns=check_patterns)


def load_maps(
    place: str | os.PathLike[str],
    *,
    check_patterns: bool = True,
    passed_over: list[str] | None = None,
) -> list[RulePack]:
    """Read every `*.json` engine/model map in a folder, or one such file; see `engine_packs`.

    `passed_over` gets a line for each file in a folder that is no such map; None: that is raised.
    """
    folder = Path(place)
    if folder.is_file():
        return load_map_file(folder, check_patterns=check_patterns)
    if not folder.is_dir():
        raise RuleError(f"{folder}: no such folder; give one that holds *.json maps")
    packs = []
    for path in sorted(path for path in folder.glob("*.json") if path.is_file()):
        try:
            packs += load_map_file(path, check_patterns=check_patterns)
        except RuleError as error:
            if passed_over is None:
                raise
            passed_over.append(str(error))
    return packs


def pack_from_mapping(mapping: Mapping[str, Any], name: str = "categorizer") -> RulePack:
    """Make one rule pack from a substring map, or from an engine/model map of a single model."""
    if not mapping:
        raise RuleError(f'{name}: is empty; expected {{"part_of_kernel_name": "category"}}')
    if not any(isinstance(value, Mapping) for value in mapping.values()):
        return substring_pack(mapping, name)
    packs = engine_packs(mapping, name)
    if len(packs) != 1:
        models = ", ".join(pack.name for pack in packs) or "none"
        raise RuleError(f"{name}: expected a map of one engine and model, got {models}")
    return packs[0]


def read_json(path: str | os.PathLike[str]) -> object:
    """Decode a JSON file."""
    source = os.fspath(path)
    words = ("JSON", "map", f"a JSON map: {_EXPECTED}")
    with suppress(OSError):
        if Path(source).stat().st_size > _LARGEST:
            raise RuleError(f"{source}: is too large for a map; {_EXPECTED}")
    parse = partial(json.loads, object_pairs_hook=without_repetition)
    document: object = read_document(source, parse, json.JSONDecodeError, words)
    return document


def without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of a JSON document; KeyError where a key, so a value, occurs twice."""
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for at, key in enumerate(keys) if key in keys[:at])
        raise KeyError(f"the key {twice!r} occurs twice in one object; leave one of them out")
    return members


def _object(value: object, source: str, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not value:
        raise RuleError(f"{source}: {where}{_EXPECTED}")
    return value


@lru_cache(maxsize=4)
def offered_packs(registry: PluginRegistry) -> tuple[Offered[RulePack], ...]:
    """Every rule pack of every plugin; a broken pack is a problem, the others stay."""
    packs: list[Offered[RulePack]] = []
    for offered in registry.offers("tracelens_rule_packs", _check_type):
        with registry.guard(offered.plugin.name):
            found = _packs_from(offered.item, offered.plugin)
            packs += [Offered(pack, offered.plugin) for pack in found]
    return tuple(packs)


def python_stages(registry: PluginRegistry) -> list[PythonStage]:
    """Every Python categoriser of every plugin, in order of precedence."""

    def stage(hook: Hook) -> PythonStage:
        name = hook.plugin.name
        its = hook.options
        return PythonStage(name, lambda t: hook.call(table=t), False, its.priority, its.selectable)

    return [*map(stage, registry.hooks("tracelens_categorize_kernels"))]


def _check_type(item: object) -> None:
    if not isinstance(item, (RulePack, Mapping, str, os.PathLike)):
        wanted = "tracelens_rule_packs: expected paths of rule packs, dicts or RulePack objects"
        raise PluginAnswerError(f"{wanted}, got {type(item).__name__}")


def _packs_from(item: RulePack | Mapping[str, object] | str, plugin: Plugin) -> list[RulePack]:
    """The rule packs in one item of a plugin's answer."""
    if isinstance(item, RulePack):
        return [item]
    if isinstance(item, Mapping):
        if any(isinstance(models, Mapping) for models in item.values()) and "rule" not in item:
            return engine_packs(item, f"a map of {plugin.name}")
        return [parse_pack(item, name=plugin.name)]
    if Path(item).suffix.lower() == ".json":
        return load_map_file(item)
    # The patterns of this distribution's own packs are compiled by its tests.
    return [load_pack(item, check_patterns=not plugin.own)]


# What a user chooses with `--categorizer` or `categorizer=`.

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
    if not isinstance(choice, (str, os.PathLike)):
        if callable(choice):
            called = getattr(choice, "__name__", type(choice).__name__)
            return [PythonStage(called, choice, own_risk=True)]
        got = type(choice).__name__
        raise UsageError(f"categorizer: expected a name, a map or a function, got {got}")
    name = os.fspath(choice)
    if name not in selectable and Path(name).suffix.lower() == ".json":
        return [BoundPack(map_in_file(name), "categorizer")]
    functions = python_stages(registry)
    of_plugin = [o for o in offered if o.plugin.name == name]
    whole = [o for o in of_plugin if not o.item.selectable]
    hooks = [each for each in functions if each.name == name]
    if name in selectable:
        hooks = []
        whole = [selectable[name]]
    elif not hooks and not whole:
        if of_plugin:
            names = ", ".join(sorted(o.item.name for o in of_plugin))
            raise UsageError(f"categorizer {name!r} is a collection; choose one of: {names}")
        whole = [o for o in offered if o.item.name == name][:1]
    if hooks or whole:
        whole.sort(key=lambda o: (-o.item.priority, o.item.name))
        packs = [BoundPack(o.item, "categorizer", limited=not o.plugin.own) for o in whole]
        return [*hooks, *packs]
    if failed := [p for p in registry.problems if p.startswith(f"{name}: ")]:
        raise UsageError(f"categorizer {name!r} failed: {failed[0].removeprefix(f'{name}: ')}")
    from difflib import get_close_matches

    known = sorted({*selectable, *(each.name for each in functions)})
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}? Known" if near else "known"
    raise UsageError(
        f"no categorizer is called {name!r}; {hint}: {', '.join(known) or 'none'}, "
        f"or the path of a JSON map{not_maps(passed_over)}"
    )


def user_maps(
    places: Sequence[str | os.PathLike[str] | RulePack],
    registry: PluginRegistry,
    passed_over: list[str],
) -> list[Offered[RulePack]]:
    """The engine/model maps of the user: the configuration folder's, then those of `places`.

    What is wrong is a problem of the registry, a line of `passed_over` (in folders), or raised.
    """
    packs = []
    files = list[Path]()
    with suppress(OSError, RuntimeError):  # absent, or another user's, as in a container
        files = sorted(platformdirs.user_config_path("tracelens-ext").glob("*.json"))
    for path in files:
        with registry.guard("configuration folder"):
            packs += load_map_file(path)
    for each in places:
        packs += [each] if isinstance(each, RulePack) else load_maps(each, passed_over=passed_over)
    return [Offered(pack, _USER) for pack in packs]


def map_in_file(path: str) -> RulePack:
    """The map, of whichever form, in a JSON file."""
    document = read_json(path)
    if not isinstance(document, Mapping):
        raise RuleError(f'{path}: expected {{"part_of_kernel_name": "category"}}')
    return pack_from_mapping(document, name=Path(path).name)


def not_maps(passed_over: Sequence[str]) -> str:
    """What to add to the message that a map is not there: the files that were passed over."""
    more = f" and {len(passed_over) - 3} more" if len(passed_over) > 3 else ""
    return f"; passed over: {'; '.join(passed_over[:3])}{more}" if passed_over else ""
