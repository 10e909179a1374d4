"""The one simplifier of kernel names: what a reader needs of a C++ signature."""

from __future__ import annotations

import functools
import re
from typing import Final

from tracelens_ext.categorize.mangled_names import LENGTH, MangledName

_QUALIFIER: Final = re.compile(
    r"(?:\(anonymous namespace\)|<unnamed>|\b[A-Za-z_]\w*)::(?=[A-Za-z_(<~])"
)
_CLONE: Final = re.compile(r"(?: ?\[clone [^\]]*\]|\.kd)+$")
#: Functions whose template arguments alone tell what they compute: one row for all of each.
_FAMILIES: Final = frozenset(
    {"elementwise_kernel", "vectorized_elementwise_kernel", "reduce_kernel"}
)


@functools.lru_cache(maxsize=4096)
def simple_name(name: str) -> str:
    """Return a kernel's name as in lists by kernel: without return type, some families as one.

    `elementwise_kernel`, `vectorized_elementwise_kernel` and `reduce_kernel` lose their template
    arguments, so many kernels share such a name: whoever shows it says how many.
    """
    short = _without_return_type(short_name(name))
    function = short.partition("<")[0].strip()
    return function if function in _FAMILIES else short


def short_name(name: str) -> str:
    """Return a kernel's name without return type, namespaces and parameters.

    Template arguments stay: `void at::native::reduce_kernel<512, 1>(float*)` becomes
    `reduce_kernel<512, 1>`, and `_ZN5aiter3mlaILi8EEEvPf` becomes `mla<8>`. A name that
    is no C++ signature stays as it is.
    """
    is_mangled = name.startswith("_Z")
    if name.isidentifier() and not is_mangled:
        return name  # nothing to cut, as in the names of Triton's kernels
    text = _CLONE.sub("", name.strip()).removeprefix("void ")
    if text.startswith("_Z"):
        return _demangled(text)
    signature = _without_parameters(text)
    short = _QUALIFIER.sub("", signature)
    return short or name


def _demangled(text: str) -> str:
    """Return a mangled name without namespaces and parameters.

    Unusual template arguments stay as they are; so does what is no mangled name.
    """
    place = len("_ZN") if text.startswith("_ZN") else len("_Z")
    function = ""
    while True:
        length = LENGTH.match(text, place)
        if length is None:
            break
        place = length.end() + int(length[0])
        function = text[length.end() : place]
    if not function or place > len(text):
        return text
    has_template_arguments = text[place : place + 1] == "I"
    if not has_template_arguments:
        return function
    try:
        return _QUALIFIER.sub("", MangledName(text).function())
    except (ValueError, IndexError, RecursionError):
        return f"{function}<{text[place + 1 :]}>"


def _without_return_type(text: str) -> str:
    """Cut what stands before the last blank outside of all brackets, if that leaves a function."""
    opened: list[str] = []
    start = 0
    for place, character in enumerate(text):
        is_less_than = text[place + 1 : place + 2] == " "
        if character in "([{" or (character == "<" and not is_less_than):
            opened.append(character)
        elif character == ">":
            if opened[-1:] == ["<"]:  # else an arrow, or a comparison in parentheses
                opened.pop()
        elif character in ")]}":
            _close(opened)
        elif character == " " and not opened:
            start = place + 1
    function = text[start:]
    return function if start and "<" in function else text


def _close(opened: list[str]) -> None:
    """Close the last bracket that is none of a template, and the templates within it."""
    while opened:
        if opened.pop() != "<":
            return


def _without_parameters(text: str) -> str:
    """Cut the parenthesis that the text ends with, if something stands before it."""
    if not text.endswith(")"):
        return text
    depth = 0
    for place in range(len(text) - 1, 0, -1):
        if text[place] == ")":
            depth += 1
        elif text[place] == "(":
            depth -= 1
        if depth == 0:
            is_remark = text[place - 1] == " "  # as in `Memset (Device)`
            return text if is_remark else text[:place]
    return text
