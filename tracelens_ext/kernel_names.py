"""The one simplifier of kernel names: what a reader needs of a C++ signature."""

from __future__ import annotations

import re

_QUALIFIER = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\b[A-Za-z_]\w*)::(?=[A-Za-z_(<~])")
_CLONE = re.compile(r"(?: ?\[clone [^\]]*\]|\.kd)+$")


def short_name(name: str) -> str:
    """A kernel's name without return type, namespaces and parameters.

    Template arguments stay: `void at::native::reduce_kernel<512, 1>(float*)` becomes
    `reduce_kernel<512, 1>`. A name that is no C++ signature stays as it is.
    """
    text = _CLONE.sub("", name.strip()).removeprefix("void ")
    text = _QUALIFIER.sub("", _without_parameters(text))
    return text or name


def _without_parameters(text: str) -> str:
    """Cut the parenthesis that the text ends with, if something stands before it."""
    if not text.endswith(")"):
        return text
    depth = 0
    for place in range(len(text) - 1, 0, -1):
        depth += (text[place] == ")") - (text[place] == "(")
        if depth == 0:
            return text[:place]
    return text
