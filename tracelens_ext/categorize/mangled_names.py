"""Demangles C++ names of the Itanium ABI, as far as the names of GPU kernels need it."""

from __future__ import annotations

import re
from typing import Final

LENGTH: Final = re.compile(r"\d{1,4}")
"""The length of a name, which precedes the name."""
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
    """Parses a mangled name from left to right.

    The methods raise a ValueError if the name contains parts that are not supported, such as
    expressions.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = len("_Z")
        #: names that later parts of the text can refer to by their index
        self._referable_names: list[str] = []

    def function(self) -> str:
        """Return the function with its namespaces and template arguments, without parameters."""
        if self._takes("N"):
            return self._nested()
        return self._plain()

    def _takes(self, text: str) -> bool:
        """Tell whether a text follows, and skip it if it does."""
        if not self._text.startswith(text, self._position):
            return False
        self._position += len(text)
        return True

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return the match of a pattern with the text that follows, and skip it."""
        match = pattern.match(self._text, self._position)
        if match is not None:
            self._position = match.end()
        return match

    def _remember(self, name: str) -> str:
        """Return a name after adding it to those that later parts can refer to."""
        # References to references can make a name exponentially long.
        if len(name) > _LONGEST:
            raise ValueError
        self._referable_names.append(name)
        return name

    def _source(self) -> str:
        """Parse a name in the source code, which follows its length."""
        length = self._match(LENGTH)
        if length is None:
            raise ValueError
        end = self._position + int(length[0])
        if end > len(self._text):
            raise ValueError
        name = self._text[self._position : end]
        self._position = end
        return "(anonymous namespace)" if name.startswith(_UNNAMED) else name

    def _standard_namespace(self) -> str:
        return "std::" if self._takes("St") else ""

    def _nested(self) -> str:
        """Parse a name with its namespaces and template arguments, up to its end."""
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
        """Parse a name without namespaces other than `std`."""
        prefix = self._standard_namespace()
        name = self._remember(prefix + self._source())
        return self._with_arguments(name)

    def _with_arguments(self, name: str) -> str:
        """Return a name with its template arguments, if it has any."""
        if not self._takes("I"):
            return name
        return self._remember(name + self._arguments())

    def _referred(self) -> str:
        """Return the name to which `S_`, `S0_` and so on refer; empty if no reference follows."""
        match = self._match(_SUBSTITUTION)
        if match is None:
            return ""
        number = 0
        if match[1]:
            number = int(match[1], 36) + 1
        return self._referable_names[number]

    def _arguments(self) -> str:
        """Parse template arguments and return them in brackets, such as `<int, 4>`."""
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
        """Parse a number or a Boolean."""
        type_letter = self._text[self._position]
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
        """Parse a type."""
        built_in = self._match(_BUILT_IN_TYPE)
        if built_in is not None:
            return _BUILT_IN_TYPES[built_in[0]]
        known_name = self._referred()
        if known_name:
            return self._with_arguments(known_name)
        if self._takes("N"):
            return self._nested()
        sign = _COMPOUND_TYPES.get(self._text[self._position])
        if sign is None:
            return self._plain()
        self._position += 1
        return self._remember(self._type() + sign)
