"""Shortens kernel names to the part of a C++ signature that a reader needs."""

from __future__ import annotations

import functools
import re
from typing import Final

from tracelens_ext.categorize.mangled_names import LENGTH, MangledName

_QUALIFIER: Final = re.compile(
    r"(?:\(anonymous namespace\)|<unnamed>|\b[A-Za-z_]\w*)::(?=[A-Za-z_(<~])"
)
_CLONE: Final = re.compile(r"(?: ?\[clone [^\]]*\]|\.kd)+$")
#: Functions whose kernels differ only in template arguments. They share one row in lists.
_FAMILIES: Final = frozenset(
    {"elementwise_kernel", "vectorized_elementwise_kernel", "reduce_kernel"}
)


@functools.lru_cache(maxsize=4096)
def simple_name(name: str) -> str:
    """Return the name of a kernel in lists by kernel: the short name without the return type.

    `elementwise_kernel`, `vectorized_elementwise_kernel` and `reduce_kernel` lose their template
    arguments. Many kernels share such a name, so lists show how many there are.
    """
    short = _without_return_type(short_name(name))
    function = short.partition("<")[0].strip()
    return function if function in _FAMILIES else short


def short_name(name: str) -> str:
    """Return the name of a kernel without return type, namespaces and parameters.

    Template arguments are kept: `void at::native::reduce_kernel<512, 1>(float*)` becomes
    `reduce_kernel<512, 1>`, and `_ZN5aiter3mlaILi8EEEvPf` becomes `mla<8>`. A name that is not a
    C++ signature is returned unchanged.
    """
    is_mangled = name.startswith("_Z")
    # The names of Triton kernels, for example, are plain identifiers.
    if name.isidentifier() and not is_mangled:
        return name
    text = _CLONE.sub("", name.strip()).removeprefix("void ")
    if text.startswith("_Z"):
        return _demangled(text)
    signature = _without_parameters(text)
    short = _QUALIFIER.sub("", signature)
    return short or name


def _demangled(text: str) -> str:
    """Return a mangled name demangled, without namespaces and parameters.

    Unusual template arguments are kept in their mangled form. A text that is not a mangled name is
    returned unchanged.
    """
    position = len("_ZN") if text.startswith("_ZN") else len("_Z")
    function = ""
    while True:
        length = LENGTH.match(text, position)
        if length is None:
            break
        position = length.end() + int(length[0])
        function = text[length.end() : position]
    if not function or position > len(text):
        return text
    has_template_arguments = text[position : position + 1] == "I"
    if not has_template_arguments:
        return function
    try:
        return _QUALIFIER.sub("", MangledName(text).function())
    except (ValueError, IndexError, RecursionError):
        return f"{function}<{text[position + 1 :]}>"


def _without_return_type(text: str) -> str:
    """Return a signature without the return type of a template function.

    The return type ends at the last blank that is outside of all brackets.
    """
    open_brackets: list[str] = []
    start = 0
    for position, character in enumerate(text):
        is_less_than = text[position + 1 : position + 2] == " "
        if character in "([{" or (character == "<" and not is_less_than):
            open_brackets.append(character)
        elif character == ">":
            # Otherwise, it is part of an arrow, or a comparison in parentheses.
            if open_brackets[-1:] == ["<"]:
                open_brackets.pop()
        elif character in ")]}":
            _close_bracket(open_brackets)
        elif character == " " and not open_brackets:
            start = position + 1
    function = text[start:]
    return function if start and "<" in function else text


def _close_bracket(open_brackets: list[str]) -> None:
    """Close the last bracket other than `<` in place, and all `<` that were opened within it."""
    while open_brackets:
        if open_brackets.pop() != "<":
            return


def _without_parameters(text: str) -> str:
    """Return a signature without the parentheses at its end, unless it consists of them alone."""
    if not text.endswith(")"):
        return text
    depth = 0
    for position in range(len(text) - 1, 0, -1):
        if text[position] == ")":
            depth += 1
        elif text[position] == "(":
            depth -= 1
        if depth == 0:
            # Parentheses after a blank are a remark, as in `Memset (Device)`.
            is_remark = text[position - 1] == " "
            return text if is_remark else text[:position]
    return text
