"""C++ names as compilers mangle them (Itanium ABI), as far as GPU kernels need it."""

from __future__ import annotations

import re
from typing import Final

LENGTH: Final = re.compile(r"\d{1,4}")
"""How long a name is that follows."""
_BUILT_IN_TYPES: Final = {
    "v": "void",
    "w": "wchar_t",
    "b": "bool",
    "c": "char",
    "a": "signed char",
    "h": "unsigned char",
    "s": "short",
    "t": "unsigned short",
    "i": "int",
    "j": "unsigned int",
    "l": "long",
    "m": "unsigned long",
    "x": "long long",
    "y": "unsigned long long",
    "f": "float",
    "d": "double",
    "Dh": "_Float16",
    "DF16_": "_Float16",
    "DF16b": "std::bfloat16_t",
    "Sa": "std::allocator",
    "Ss": "std::string",
    "Dn": "decltype(nullptr)",
}
_COMPOUND_TYPES: Final = {
    "P": "*",
    "R": "&",
    "O": "&&",
    "K": " const",
    "V": " volatile",
}
_NUMBER_SUFFIXES: Final = {
    "i": "",
    "j": "u",
    "l": "l",
    "m": "ul",
    "x": "ll",
    "y": "ull",
}
_BUILT_IN_TYPE: Final = re.compile(r"DF16[b_]|D[hn]|S[as]|[vwbcahstijlmxyfd]")
_SUBSTITUTION: Final = re.compile(r"S([0-9A-Z]*)_")
_VALUE: Final = re.compile(r"(n?\d+)E")
_LONGEST: Final = 10_000
_UNNAMED: Final = "_GLOBAL__N_"


class MangledName:
    """Reads a mangled name.

    A ValueError says that it holds what is not known here, such as expressions.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = len("_Z")
        self._known: list[str] = []  # what the text may refer to, by number

    def function(self) -> str:
        """Return the function with its namespaces and template arguments, without parameters."""
        if self._takes("N"):
            return self._nested()
        return self._plain()

    def _takes(self, text: str) -> bool:
        """Return whether a text stands here, and pass over it."""
        if not self._text.startswith(text, self._place):
            return False
        self._place += len(text)
        return True

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return what matches here, and pass over it."""
        match = pattern.match(self._text, self._place)
        if match is not None:
            self._place = match.end()
        return match

    def _remember(self, name: str) -> str:
        """Return a name, to which what follows may refer."""
        if len(name) > _LONGEST:  # what refers to itself twice, again and again
            raise ValueError
        self._known.append(name)
        return name

    def _source(self) -> str:
        """Read a name of the source, its length first."""
        length = self._match(LENGTH)
        if length is None:
            raise ValueError
        end = self._place + int(length[0])
        if end > len(self._text):
            raise ValueError
        name = self._text[self._place : end]
        self._place = end
        return "(anonymous namespace)" if name.startswith(_UNNAMED) else name

    def _standard_namespace(self) -> str:
        return "std::" if self._takes("St") else ""

    def _nested(self) -> str:
        """Read a name with its namespaces, up to their end."""
        name = ""
        while not self._takes("E"):
            if self._takes("I"):
                name = self._remember(name + self._arguments())
                continue
            known_name = "" if name else self._referred()
            if known_name:
                name = known_name
                continue
            prefix = f"{name}::" if name else self._standard_namespace()
            name = self._remember(prefix + self._source())
        return name

    def _plain(self) -> str:
        """Read a name without namespaces but `std`."""
        prefix = self._standard_namespace()
        name = self._remember(prefix + self._source())
        return self._with_arguments(name)

    def _with_arguments(self, name: str) -> str:
        """Return a name with its template arguments, if it has any."""
        if not self._takes("I"):
            return name
        return self._remember(name + self._arguments())

    def _referred(self) -> str:
        """Return what `S_`, `S0_` and so on stand for; empty where no such thing stands."""
        match = self._match(_SUBSTITUTION)
        if match is None:
            return ""
        number = 0
        if match[1]:
            number = int(match[1], 36) + 1
        return self._known[number]

    def _arguments(self) -> str:
        """Read template arguments, or those of a pack: `<int, 4>`."""
        return f"<{', '.join(self._arguments_until_end())}>"

    def _arguments_until_end(self) -> list[str]:
        arguments: list[str] = []
        while not self._takes("E"):
            if self._takes("J"):
                arguments += self._arguments_until_end()
            elif self._takes("L"):
                arguments.append(self._literal())
            else:
                arguments.append(self._type())
        return arguments

    def _literal(self) -> str:
        """Read a number or a truth value."""
        type_letter = self._text[self._place]
        type_name = self._type()
        value = self._match(_VALUE)
        if value is None:
            raise ValueError
        number = value[1].replace("n", "-")
        if type_letter == "b":
            return "true" if number == "1" else "false"
        if type_letter in _NUMBER_SUFFIXES:
            return number + _NUMBER_SUFFIXES[type_letter]
        return f"({type_name}){number}"

    def _type(self) -> str:
        """Read a type."""
        built_in = self._match(_BUILT_IN_TYPE)
        if built_in is not None:
            return _BUILT_IN_TYPES[built_in[0]]
        known_name = self._referred()
        if known_name:
            return self._with_arguments(known_name)
        if self._takes("N"):
            return self._nested()
        sign = _COMPOUND_TYPES.get(self._text[self._place])
        if sign is None:
            return self._plain()
        self._place += 1
        return self._remember(self._type() + sign)
