"""Converts maps of names to categories, which other tools use, to rule packs.

* Engine/model maps, JSON: `{"vllm": {"llama": {"regex|regex": "category", ".*": "misc"}}}`.
  Each model becomes a selectable pack called `ENGINE:MODEL`. The first pattern that matches
  decides. Kernels that no pattern matches have the category `(no pattern)`.
* Substring maps, also called class maps: `{"xmma_gemm": "gemm", "fmha_": "fmha"}`. Upper and lower
  case are not distinguished. NCCL kernels always have the category `nccl`, and kernels that no key
  matches have the category `others`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from tracelens_ext.categorize.rule_files import DocumentWords, parse_pack, read_document
from tracelens_ext.categorize.rules import MATCH_ALL, Rule, RulePack
from tracelens_ext.errors import RuleError

NCCL_CLASS: Final = "nccl"
OTHERS_CLASS: Final = "others"
NO_PATTERN: Final = "(no pattern)"
"""The category of kernels that no pattern of an engine/model map matches."""
#: The most bytes of a JSON file, and the most keys of a substring map.
_LARGEST_FILE: Final = 4 * 2**20
_MOST_KEYS: Final = 5_000
_EXPECTED: Final = 'expected {"ENGINE": {"MODEL": {"regex|regex": "category"}}}'
_EXPECTED_CLASSES: Final = 'expected {"part_of_kernel_name": "category"}'


def substring_pack(class_map: Mapping[str, str], name: str = "map") -> RulePack:
    """Convert a substring map (part of a kernel name → category) to a rule pack.

    Raises:
        RuleError: the map is invalid, or one of its keys contains another one.
    """
    import regex

    _check_substring_map(class_map, name)
    rules = [Rule(NCCL_CLASS, "(?i)nccl", name=f"{name}:{NCCL_CLASS}", number=0)]
    for number, (key, category) in enumerate(class_map.items(), start=1):
        rules.append(Rule(category, "(?i)" + regex.escape(key.lower()), number=number))
    catch_all_name = f"{name}:{OTHERS_CLASS}"
    rules.append(Rule(OTHERS_CLASS, ".*", name=catch_all_name, number=len(rules)))
    return RulePack(name, tuple(rules))


def _check_substring_map(class_map: Mapping[str, str], name: str) -> None:
    """Check a substring map.

    Raises:
        RuleError: the map is invalid, or one of its keys contains another one.
    """
    if len(class_map) > _MOST_KEYS:
        raise RuleError(
            f"{name}: expected at most {_MOST_KEYS:,} keys, got {len(class_map):,}"
        )
    for key, category in class_map.items():
        are_texts = isinstance(key, str) and isinstance(category, str)
        if not are_texts or not key or not category:
            raise RuleError(
                f"{name}: {key!r}: expected a part of a kernel name and its category, "
                f"both strings, got {key!r}: {category!r}"
            )
    keys = [key.lower() for key in class_map]
    for first, second in combinations(keys, 2):
        if first == second:
            raise RuleError(
                f"{name}: the key {first!r} occurs twice; upper and lower case do not "
                "matter"
            )
        shorter, longer = sorted((first, second), key=len)
        if shorter in longer:
            raise RuleError(
                f"{name}: the key {longer!r} contains the key {shorter!r}, which is "
                "ambiguous; make them mutually exclusive"
            )


def engine_packs(
    document: object, source: str, *, check_patterns: bool = True
) -> list[RulePack]:
    """Convert an engine/model map to a selectable rule pack for each model.

    Args:
        document: `{"ENGINE": {"MODEL": {"regex|regex": "category"}}}`.
        source: the name of the document in messages.
        check_patterns: compile the patterns to check them.

    Raises:
        RuleError: the document is not an engine/model map.
    """
    packs = []
    for engine, models in _object(document, source, "").items():
        for model, patterns in _object(models, source, f"{engine}: ").items():
            name = f"{engine}:{model}"
            where = f"{source}: {name}"
            tables = _rule_tables(_object(patterns, source, f"{name}: "), name)
            pack = {"pack": {"name": name, "selectable": True}, "rule": tables}
            packs.append(parse_pack(pack, source=where, check_patterns=check_patterns))
    return packs


def _rule_tables(categories: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the rules of one model as the tables of a rule file."""
    tables = [
        {"category": category, "pattern": pattern}
        for pattern, category in categories.items()
    ]
    if not any(pattern in MATCH_ALL for pattern in categories):
        # The map decides about every kernel, so that no pack after it is used.
        catch_all_name = f"{name} {NO_PATTERN}"
        tables.append({"category": NO_PATTERN, "pattern": ".*", "name": catch_all_name})
    return tables


def load_map_file(
    path: str | os.PathLike[str], *, check_patterns: bool = True
) -> list[RulePack]:
    """Read one engine/model map; see `engine_packs`."""
    return engine_packs(read_json(path), os.fspath(path), check_patterns=check_patterns)


def load_maps(
    place: str | os.PathLike[str],
    *,
    check_patterns: bool = True,
    passed_over: list[str] | None = None,
) -> list[RulePack]:
    """Read every `*.json` engine/model map in a folder, or one such file; see `engine_packs`.

    Args:
        place: the folder or the file.
        check_patterns: compile the patterns to check them.
        passed_over: receives a line for each file in the folder that is not a map; None to raise an
            error for such a file.

    Raises:
        RuleError: the folder does not exist, or a file is not a map.
    """
    folder = Path(place)
    if folder.is_file():
        return load_map_file(folder, check_patterns=check_patterns)
    if not folder.is_dir():
        raise RuleError(
            f"{folder}: no such folder; give a folder that contains *.json maps"
        )
    packs = []
    for path in sorted(path for path in folder.glob("*.json") if path.is_file()):
        try:
            packs += load_map_file(path, check_patterns=check_patterns)
        except RuleError as error:
            if passed_over is None:
                raise
            passed_over.append(str(error))
    return packs


def pack_from_mapping(
    mapping: Mapping[str, Any], name: str = "categorizer"
) -> RulePack:
    """Convert a substring map, or an engine/model map of a single model, to a rule pack.

    Raises:
        RuleError: the mapping is neither of them.
    """
    if not mapping:
        raise RuleError(f"{name}: is empty; {_EXPECTED_CLASSES}")
    if not any(isinstance(value, Mapping) for value in mapping.values()):
        return substring_pack(mapping, name)
    packs = engine_packs(mapping, name)
    if len(packs) != 1:
        models = ", ".join(pack.name for pack in packs) or "none"
        raise RuleError(f"{name}: expected a map of one engine and model, got {models}")
    return packs[0]


def map_in_file(path: str) -> RulePack:
    """Return the rule pack of a map of either form in a JSON file.

    Raises:
        RuleError: the file cannot be read, or is not a map.
    """
    document = read_json(path)
    if not isinstance(document, Mapping):
        raise RuleError(f"{path}: {_EXPECTED_CLASSES}")
    return pack_from_mapping(document, name=Path(path).name)


def read_json(path: str | os.PathLike[str]) -> object:
    """Return the document in a JSON file.

    Raises:
        RuleError: the file cannot be read, is too large, or has a key twice.
    """
    source = os.fspath(path)
    with suppress(OSError):
        if Path(source).stat().st_size > _LARGEST_FILE:
            raise RuleError(f"{source}: is too large for a map; {_EXPECTED}")
    parse = partial(json.loads, object_pairs_hook=without_repetition)
    words = DocumentWords(form="JSON", what="map", expected=f"a JSON map: {_EXPECTED}")
    document: object = read_document(
        source=source, parse=parse, wrong=json.JSONDecodeError, words=words
    )
    return document


def without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the members of a JSON object as a dictionary; a hook for `json.loads`.

    Raises:
        KeyError: a key occurs twice. Its first value would be lost.
    """
    members: dict[str, object] = {}
    for key, value in pairs:
        if key in members:
            raise KeyError(
                f"the key {key!r} occurs twice in one object; leave one of them out"
            )
        members[key] = value
    return members


def _object(value: object, source: str, where: str) -> Mapping[str, Any]:
    """Return a value that must be a JSON object with members.

    Raises:
        RuleError: the value is not an object, or is empty.
    """
    if not isinstance(value, Mapping) or not value:
        raise RuleError(f"{source}: {where}{_EXPECTED}")
    return value


def not_maps(passed_over: Sequence[str]) -> str:
    """Return the end of a message about a missing map: the files that were ignored.

    Args:
        passed_over: a line for each file that is not a map.
    """
    if not passed_over:
        return ""
    text = f"; ignored: {'; '.join(passed_over[:3])}"
    if len(passed_over) > 3:
        text = f"{text} and {len(passed_over) - 3} more"
    return text
