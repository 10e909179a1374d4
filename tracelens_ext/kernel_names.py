"""The one simplifier of kernel names: what a reader needs of a C++ signature."""

from __future__ import annotations

import functools
import re

from tracelens_ext.mangled_names import MangledName

_QUALIFIER = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\b[A-Za-z_]\w*)::(?=[A-Za-z_(<~])")
_LENGTH = re.compile(r"\d{1,4}")
_CLONE = re.compile(r"(?: ?\[clone [^\]]*\]|\.kd)+$")


#: Functions whose template arguments alone tell what they compute: one row for all of each.
_FAMILIES = frozenset({"elementwise_kernel", "vectorized_elementwise_kernel", "reduce_kernel"})


@functools.lru_cache(maxsize=4096)
def simple_name(name: str) -> str:
    """A kernel's name as in lists by kernel: without return type, three large families as one each.

    `elementwise_kernel`, `vectorized_elementwise_kernel` and `reduce_kernel` lose their template
    arguments, so many kernels share such a name: whoever shows it says how many.
    """
    short = _without_return_type(short_name(name))
    function = short.partition("<")[0].strip()
    return function if function in _FAMILIES else short


def short_name(name: str) -> str:
    """A kernel's name without return type, namespaces and parameters.

    Template arguments stay: `void at::native::reduce_kernel<512, 1>(float*)` becomes
    `reduce_kernel<512, 1>`, and `_ZN5aiter3mlaILi8EEEvPf` becomes `mla<8>`. A name that
    is no C++ signature stays as it is.
    """
    if name.isidentifier() and not name.startswith("_Z"):
        return name  # nothing to cut, as in the names of Triton's kernels
    text = _CLONE.sub("", name.strip()).removeprefix("void ")
    if text.startswith("_Z"):
        return _demangled(text)
    text = _QUALIFIER.sub("", _without_parameters(text))
    return text or name


def _demangled(text: str) -> str:
    """A mangled name without namespaces and parameters; unusual template arguments as they are."""
    place, part = 3 if text.startswith("_ZN") else 2, ""
    while found := _LENGTH.match(text, place):
        place = found.end() + int(found[0])
        part = text[found.end() : place]
    if not part or place > len(text):
        return text
    if text[place : place + 1] != "I":
        return part
    try:
        return _QUALIFIER.sub("", MangledName(text).function())
    except (ValueError, IndexError, RecursionError):
        return f"{part}<{text[place + 1 :]}>"


def _without_return_type(text: str) -> str:
    """Cut what stands before the last blank outside of all brackets, if that leaves a function."""
    opened: list[str] = []
    start = 0
    for place, character in enumerate(text):
        if character in "([{" or (character == "<" and text[place + 1 : place + 2] != " "):
            opened.append(character)
        elif character == ">":
            if opened[-1:] == ["<"]:  # else an arrow, or a comparison in parentheses
                opened.pop()
        elif character in ")]}":
            while opened and opened.pop() == "<":
                pass
        elif character == " " and not opened:
            start = place + 1
    function = text[start:]
    return function if start and "<" in function else text


def _without_parameters(text: str) -> str:
    """Cut the parenthesis that the text ends with, if something stands before it."""
    if not text.endswith(")"):
        return text
    depth = 0
    for place in range(len(text) - 1, 0, -1):
        depth += (text[place] == ")") - (text[place] == "(")
        if depth == 0:  # a blank before it: a remark, as in `Memset (Device)`
            return text if text[place - 1] == " " else text[:place]
    return text
