"""Searching in a kernel's own name alone.

That is what stands before the template arguments and parameters, where other kernels' words abound:
`softmax` in `void lib::copy<lib::softmax>(float*)` is not in its own name.
"""

from __future__ import annotations

from typing import Final

# Mangled names of at:: are left to rules that know those kernels: nothing ends their own name.
_START: Final = r"^(?!_ZN2at)(?:std::enable_if<.*?>::type )?"
_WITHIN: Final = r"(?:[\w: ]{0,120}(?:\(anonymous namespace\)|<unnamed>)::)?[^<(]{0,160}?"


def own_name_pattern(pattern: str, unless: str | None) -> str:
    """A pattern for whole names that finds what a pattern finds in the own name.

    Args:
        pattern: searched in the own name.
        unless: names in whose own name this pattern occurs are passed over.
    """
    passed_over = "" if unless is None else f"(?!{_WITHIN}(?:{unless}))"
    return f"{_START}{passed_over}{_WITHIN}(?:{pattern})"
