"""The one simplifier of kernel names: what a reader needs of a C++ signature."""

from __future__ import annotations

import functools
import re
from typing import Final

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
    place = 3 if text.startswith("_ZN") else 2
    part = ""
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


_NAMES: Final = (
    "v=void;w=wchar_t;b=bool;c=char;a=signed char;h=unsigned char;s=short;t=unsigned short;i=int"
    ";j=unsigned int;l=long;m=unsigned long;x=long long;y=unsigned long long;f=float;d=double"
    ";Dh=_Float16;DF16_=_Float16;DF16b=std::bfloat16_t;Sa=std::allocator;Ss=std::string"
    ";Dn=decltype(nullptr)"
)
_BUILT_IN: Final = dict(name.split("=") for name in _NAMES.split(";"))
_COMPOUND: Final = {"P": "*", "R": "&", "O": "&&", "K": " const", "V": " volatile"}
_SUFFIXES: Final = {"i": "", "j": "u", "l": "l", "m": "ul", "x": "ll", "y": "ull"}
_BUILT_IN_TYPE: Final = re.compile(r"DF16[b_]|D[hn]|S[as]|[vwbcahstijlmxyfd]")
_SUBSTITUTION: Final = re.compile(r"S([0-9A-Z]*)_")
_VALUE: Final = re.compile(r"(n?\d+)E")
_LONGEST: Final = 10_000
_UNNAMED: Final = "_GLOBAL__N_"


class MangledName:
    """Reads a C++ name as compilers mangle it (Itanium ABI), as far as GPU kernels need it.

    A ValueError says that it holds what is not known here, such as expressions.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = len("_Z")
        self._known: list[str] = []  # what the text may refer to, by number

    def function(self) -> str:
        """The function with its namespaces and template arguments, without its parameters."""
        return self._nested() if self._takes("N") else self._plain()

    def _takes(self, text: str) -> bool:
        found = self._text.startswith(text, self._place)
        self._place += len(text) * found
        return found

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        if found := pattern.match(self._text, self._place):
            self._place = found.end()
        return found

    def _knows(self, name: str) -> str:
        if len(name) > _LONGEST:  # what refers to itself twice, again and again
            raise ValueError
        self._known.append(name)
        return name

    def _source(self) -> str:
        length = self._match(_LENGTH)
        if length is None or (end := self._place + int(length[0])) > len(self._text):
            raise ValueError
        name = self._text[self._place : end]
        self._place = end
        return "(anonymous namespace)" if name.startswith(_UNNAMED) else name

    def _nested(self) -> str:
        name = ""
        while not self._takes("E"):
            if self._takes("I"):
                name += self._arguments()
            elif not name and (known := self._referred()):
                name = known
                continue
            else:
                before = f"{name}::" if name else "std::" * self._takes("St")
                name = before + self._source()
            self._knows(name)
        return name

    def _plain(self) -> str:
        name = self._knows("std::" * self._takes("St") + self._source())
        return self._knows(name + self._arguments()) if self._takes("I") else name

    def _referred(self) -> str:
        """What `S_`, `S0_` and so on stand for; empty where no such thing stands."""
        if not (found := self._match(_SUBSTITUTION)):
            return ""
        return self._known[int(found[1], 36) + 1 if found[1] else 0]

    def _arguments(self) -> str:
        """Template arguments, or those of a pack: `<int, 4>`."""
        return f"<{', '.join(self._until_end())}>"

    def _until_end(self) -> list[str]:
        found: list[str] = []
        while not self._takes("E"):
            if self._takes("J"):
                found += self._until_end()
            else:
                found.append(self._literal() if self._takes("L") else self._type())
        return found

    def _literal(self) -> str:
        kind = self._text[self._place]
        name = self._type()
        if not (value := self._match(_VALUE)):
            raise ValueError
        number = value[1].replace("n", "-")
        if kind == "b":
            return "true" if number == "1" else "false"
        return number + _SUFFIXES[kind] if kind in _SUFFIXES else f"({name}){number}"

    def _type(self) -> str:
        if found := self._match(_BUILT_IN_TYPE):
            return _BUILT_IN[found[0]]
        if known := self._referred():
            return self._knows(known + self._arguments()) if self._takes("I") else known
        if self._takes("N"):
            return self._nested()
        if sign := _COMPOUND.get(self._text[self._place]):
            self._place += 1
            return self._knows(self._type() + sign)
        return self._plain()
