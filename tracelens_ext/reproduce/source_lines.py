"""Lines of the source of a script: an argument, and what was guessed of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class SourceLine:
    """An argument as source code."""

    code: str
    comment: str = ""  #: what is guessed; empty for nothing

    @classmethod
    def of_list(cls, items: Sequence[str], comment: str) -> SourceLine:
        """Return a list, an item a line."""
        code = "[\n" + "".join(f"            {item},\n" for item in items) + "        ]"
        return cls(code, comment)

    @property
    def text(self) -> str:
        """The line, with its comment at the end; that of a list is at its beginning."""
        if not self.comment:
            return f"{self.code},"
        first, end_of_line, rest = self.code.partition("\n")
        if end_of_line:
            return f"{first}  # {self.comment}\n{rest},"
        return f"{self.code},  # {self.comment}"

    def named(self, name: str) -> SourceLine:
        """Return it as a keyword argument."""
        return replace(self, code=f"{name}={self.code}")

    def with_options(self, options: Mapping[str, object]) -> SourceLine:
        """Return a call with more keyword arguments."""
        added = "".join(f", {name}={value!r}" for name, value in options.items())
        return replace(self, code=f"{self.code.removesuffix(')')}{added})")
