"""C++ names as compilers mangle them (Itanium ABI), as far as names of GPU kernels need it."""

from __future__ import annotations

import re
from typing import Final

_NAMES: Final = (
    "v=void;w=wchar_t;b=bool;c=char;a=signed char;h=unsigned char;s=short;t=unsigned short;i=int"
    ";j=unsigned int;l=long;m=unsigned long;x=long long;y=unsigned long long;f=float;d=double"
    ";Dh=_Float16;DF16_=_Float16;DF16b=std::bfloat16_t;Sa=std::allocator;Ss=std::string"
    ";Dn=decltype(nullptr)"
)
_BUILT_IN: Final = dict(name.split("=") for name in _NAMES.split(";"))
_COMPOUND: Final = {"P": "*", "R": "&", "O": "&&", "K": " const", "V": " volatile"}
_SUFFIXES: Final = {"i": "", "j": "u", "l": "l", "m": "ul", "x": "ll", "y": "ull"}
_LENGTH: Final = re.compile(r"\d{1,4}")
_BUILT_IN_TYPE: Final = re.compile(r"DF16[b_]|D[hn]|S[as]|[vwbcahstijlmxyfd]")
_SUBSTITUTION: Final = re.compile(r"S([0-9A-Z]*)_")
_VALUE: Final = re.compile(r"(n?\d+)E")
_LONGEST: Final = 10_000
_UNNAMED: Final = "_GLOBAL__N_"


class MangledName:
    """Reads one; a ValueError says that it holds what is not known here, such as expressions."""

    def __init__(self, text: str) -> None:
        self._text, self._place = text, 0
        self._known: list[str] = []  # what the text may refer to, by number

    def function(self) -> str:
        """The function with its namespaces and template arguments, without its parameters."""
        if not self._takes("_Z"):
            raise ValueError
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
        end = self._place + int(length[0]) if length else 0
        if length is None or end > len(self._text):
            raise ValueError
        name, self._place = self._text[self._place : end], end
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
        sign = _COMPOUND.get(self._text[self._place])
        if sign is not None:
            self._place += 1
            return self._knows(self._type() + sign)
        return self._plain()
