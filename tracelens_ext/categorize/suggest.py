"""Drafting rules for the kernels that no rule knows."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracelens_ext.categorize.rules import RulePack

#: The category of a drafted rule; `check_pack` refuses it.
TO_DO: Final = "TODO"
_EXAMPLES: Final = 3
_SHORTEST_STEM: Final = 5
_SUFFIXES: Final = re.compile(r"(?: \[clone [^\]]*\]|\.kd)+$")
_ANONYMOUS: Final = re.compile(r"\(anonymous namespace\)|<unnamed>|\(anonymous\)")
_NUMBERED: Final = re.compile(r"_?\d")


@dataclass
class Unknown:
    """Uncategorised kernels that share a stem."""

    stem: str  #: the text they have in common
    time_ms: float = 0.0  #: their GPU time
    names: dict[str, float] = field(default_factory=dict)  #: GPU time by kernel name
    cpu_ops: set[str] = field(default_factory=set)  #: the operations that launched them


def group_unknown(kernels: Iterable[tuple[str, str, float]]) -> list[Unknown]:
    """Group kernels by the stem of their names, the longest GPU time first.

    Of each kernel there are the name, the launching operation and the GPU time in ms.
    """
    groups: dict[str, Unknown] = {}
    for name, cpu_op, time_ms in kernels:
        stem = stem_of(name)
        group = groups.setdefault(stem, Unknown(stem))
        group.time_ms += time_ms
        group.names[name] = group.names.get(name, 0.0) + time_ms
        if cpu_op:
            group.cpu_ops.add(cpu_op)
    return sorted(groups.values(), key=lambda group: (-group.time_ms, group.stem))


def draft_rules(groups: list[Unknown], title: str) -> str:
    """Write a rule for each group, as a TOML file to edit and pass to `--rules`."""
    total = sum(group.time_ms for group in groups) or 1.0
    lines = [
        f"# Kernels without a category in {_one_line(title)}.",
        "# Replace each TODO, then: tracelens-ext report TRACE --rules THIS_FILE",
    ]
    if not groups:
        return "\n".join([f"# Every kernel in {_one_line(title)} has a category.", ""])
    for group in groups:
        share = 100 * group.time_ms / total
        kernels = "1 kernel" if len(group.names) == 1 else f"{len(group.names)} kernels"
        lines += ["", f"# {kernels}, {group.time_ms:.3f} ms, {share:.1f} % of what is unknown"]
        if group.cpu_ops:
            lines.append(f"# launched by {_one_line(', '.join(sorted(group.cpu_ops)[:3]))}")
        longest = sorted(group.names, key=lambda name: -group.names[name])[:_EXAMPLES]
        lines += [
            "[[rule]]",
            f'category = "{TO_DO}"',
            f"pattern = {_toml_text(re.escape(group.stem))}",
            "examples = [",
            *(f"    {_toml_text(name)}," for name in longest),
            "]",
        ]
    return "\n".join([*lines, ""])


def toml_pack(pack: RulePack) -> str:
    """A pack as the text of a rule file."""
    lines = ["[pack]", f"name = {_toml_text(pack.name)}"]
    for rule in pack.rules:
        lines += ["", "[[rule]]", f"category = {_toml_text(rule.category)}"]
        lines.append(f"pattern = {_toml_text(rule.pattern)}")
        for key in ("name", "about", "vendor", "library", "cpu_op"):
            value = getattr(rule, key)
            lines += [f"{key} = {_toml_text(value)}"] if value else []
        lines += [f"priority = {rule.priority}"] if rule.priority else []
    return "\n".join([*lines, ""])


def stem_of(name: str) -> str:
    """The part of a kernel's name that its variants have in common.

    The function's name without return type, template and call arguments, cut before the first
    number when enough remains. It always occurs in the name.
    """
    plain = _SUFFIXES.sub("", name)
    function = _mangled_function(plain) if plain.startswith("_Z") else _function(plain)
    number = _NUMBERED.search(function)
    if number and number.start() >= _SHORTEST_STEM:
        function = function[: number.start()]
    return function if function and function in name else name


def _function(name: str) -> str:
    """The qualified name of a demangled function, from behind any unnamed namespace."""
    # Same length, so that what follows can be cut out of the name as it is.
    masked = _ANONYMOUS.sub(lambda match: "\0" * len(match[0]), name)
    end = min((at for at in map(masked.find, "<(") if at > 0), default=len(masked))
    start = max(masked.rfind(" ", 0, end), masked.rfind("\0", 0, end)) + 1
    return name[start:end].lstrip(":")


def _mangled_function(name: str) -> str:
    """The last part of the qualified name at the head of an Itanium-mangled name."""
    at, last = name.find("N") + 1 if name.startswith("_ZN") else 2, ""
    while digits := re.match(r"(?:K|L|St)?(\d+)", name[at:]):
        at += len(digits[0])
        length = int(digits[1])
        part = name[at : at + length]
        last = last if part.startswith("_GLOBAL__N") else part
        at += length
    return last


def _toml_text(text: str) -> str:
    """A TOML string: literal where possible, so that patterns need no doubled backslashes."""
    if text.isprintable() and "'" not in text:
        return f"'{text}'"
    clean = text.encode("utf-8", "replace").decode("utf-8").replace("\x7f", "\ufffd")
    return json.dumps(clean, ensure_ascii=False)


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
