"""Drafts rules for kernels that no rule matches, and writes packs as rule files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tracelens_ext.categorize.rules import RulePack

#: The category of a drafted rule, for which `check_pack` reports an error.
TO_DO: Final = "TODO"
#: How many examples and how many operations a draft contains.
_EXAMPLES: Final = 3
_SHOWN_OPERATIONS: Final = 3
#: A stem is not cut at a number if it would become shorter than this.
_SHORTEST_STEM: Final = 5
#: Suffixes that compilers add to names.
_SUFFIXES: Final = re.compile(r"(?: \[clone [^\]]*\]|\.kd)+$")
_ANONYMOUS: Final = re.compile(r"\(anonymous namespace\)|<unnamed>|\(anonymous\)")
_NUMBERED: Final = re.compile(r"_?\d")
_MANGLED_PART: Final = re.compile(r"(?:K|L|St)?(\d+)")
_TEXT_KEYS: Final = (
    "category",
    "pattern",
    "name",
    "about",
    "vendor",
    "library",
    "cpu_op",
)


@dataclass
class UnknownKernels:
    """Uncategorized kernels whose names have the same stem."""

    stem: str  #: the text that the names have in common
    time_ms: float = 0.0  #: the GPU time of all kernels
    names: dict[str, float] = field(default_factory=dict)  #: kernel name → GPU time, ms
    #: the operations that launched the kernels
    cpu_ops: set[str] = field(default_factory=set)


def group_unknown(kernels: Iterable[tuple[str, str, float]]) -> list[UnknownKernels]:
    """Group kernels, given as (name, operation, ms), by the stems of their names.

    The group with the longest GPU time comes first.
    """
    groups: dict[str, UnknownKernels] = {}
    for name, cpu_op, time_ms in kernels:
        stem = stem_of(name)
        group = groups.setdefault(stem, UnknownKernels(stem))
        group.time_ms += time_ms
        group.names[name] = group.names.get(name, 0.0) + time_ms
        if cpu_op:
            group.cpu_ops.add(cpu_op)
    return sorted(groups.values(), key=lambda group: (-group.time_ms, group.stem))


def draft_rules(groups: list[UnknownKernels], title: str) -> str:
    """Return the text of a TOML file with a rule for each group, for the user to edit."""
    if not groups:
        return f"# Every kernel in {_one_line(title)} has a category.\n"
    total_ms = sum(group.time_ms for group in groups) or 1.0
    lines = [
        f"# Kernels without a category in {_one_line(title)}.",
        "# Replace each TODO, then: tracelens-ext report TRACE --rules THIS_FILE",
    ]
    for group in groups:
        lines.append("")
        lines += _draft_of_group(group, 100 * group.time_ms / total_ms)
    lines.append("")
    return "\n".join(lines)


def _draft_of_group(group: UnknownKernels, percent: float) -> list[str]:
    """Return the lines of the rule for a group."""
    count = len(group.names)
    kernels = "1 kernel" if count == 1 else f"{count} kernels"
    lines = [
        (
            f"# {kernels}, {group.time_ms:.3f} ms, {percent:.1f} % of the uncategorized "
            "time"
        )
    ]
    if group.cpu_ops:
        operations = sorted(group.cpu_ops)[:_SHOWN_OPERATIONS]
        lines.append(f"# launched by {_one_line(', '.join(operations))}")
    lines.append("[[rule]]")
    lines.append(f'category = "{TO_DO}"')
    lines.append(f"pattern = {_toml_text(re.escape(group.stem))}")
    lines.append("examples = [")
    longest_first = sorted(group.names, key=lambda name: -group.names[name])
    lines += [f"    {_toml_text(name)}," for name in longest_first[:_EXAMPLES]]
    lines.append("]")
    return lines


def toml_pack(pack: RulePack) -> str:
    """Return a pack as the text of a rule file."""
    lines = ["[pack]", f"name = {_toml_text(pack.name)}"]
    for rule in pack.rules:
        lines.append("")
        lines.append("[[rule]]")
        for key in _TEXT_KEYS:
            value = getattr(rule, key)
            if value:
                lines.append(f"{key} = {_toml_text(value)}")
        if rule.priority:
            lines.append(f"priority = {rule.priority}")
    lines.append("")
    return "\n".join(lines)


def stem_of(name: str) -> str:
    """Return the text that variants of a kernel share: the function up to its first number."""
    plain = _SUFFIXES.sub("", name)
    function = _mangled_function(plain) if plain.startswith("_Z") else _function(plain)
    number = _NUMBERED.search(function)
    if number and number.start() >= _SHORTEST_STEM:
        function = function[: number.start()]
    return function if function and function in name else name


def _function(name: str) -> str:
    """Return the qualified name of a demangled function, without unnamed namespaces before it."""
    # Unnamed namespaces contain brackets and blanks. They are replaced by as many null characters,
    # so that positions in the masked name are positions in the name.
    masked = _ANONYMOUS.sub(lambda match: "\0" * len(match[0]), name)
    bracket_positions = [masked.find(bracket) for bracket in "<("]
    end = min(
        (position for position in bracket_positions if position > 0),
        default=len(masked),
    )
    last_blank = masked.rfind(" ", 0, end)
    last_unnamed = masked.rfind("\0", 0, end)
    start = max(last_blank, last_unnamed) + 1
    return name[start:end].lstrip(":")


def _mangled_function(name: str) -> str:
    """Return the last part of the qualified name in an Itanium-mangled name."""
    position = name.find("N") + 1 if name.startswith("_ZN") else len("_Z")
    function = ""
    while True:
        length = _MANGLED_PART.match(name, position)
        if length is None:
            return function
        start = length.end()
        position = start + int(length[1])
        part = name[start:position]
        is_unnamed_namespace = part.startswith("_GLOBAL__N")
        if not is_unnamed_namespace:
            function = part


def _toml_text(text: str) -> str:
    """Return a text as a TOML string, in single quotes if possible to avoid double backslashes."""
    if text.isprintable() and "'" not in text:
        return f"'{text}'"
    clean = text.encode("utf-8", "replace").decode("utf-8").replace("\x7f", "\ufffd")
    return json.dumps(clean, ensure_ascii=False)


def _one_line(text: str) -> str:
    """Return a text with unprintable characters replaced, so that it fits into a comment."""
    return "".join(
        character if character.isprintable() else "\ufffd" for character in text
    )
