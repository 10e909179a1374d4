"""Arguments as source code, wrapped as `ruff format` wraps them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

_LINE_WIDTH: Final = 88
_INDENT: Final = "    "


@dataclass(frozen=True)
class ArgumentSource:
    """The code of an argument: a plain value, or a call or list with items of its own."""

    #: the whole code of a plain value; else the code up to the first bracket
    opening: str
    items: tuple[ArgumentSource, ...] = ()
    closing: str = ""  #: the closing bracket; empty for a plain value
    #: the name of the parameter, or what is guessed; empty without a comment
    comment: str = ""
    #: True puts each item on a line, even if all fit on one
    has_item_per_line: bool = False

    @classmethod
    def of_call(cls, function: str, arguments: Iterable[str]) -> ArgumentSource:
        """Return the call of a function."""
        return cls(f"{function}(", tuple(map(cls, arguments)), ")")

    @classmethod
    def of_list(cls, items: Sequence[ArgumentSource], comment: str) -> ArgumentSource:
        """Return a list with one item per line."""
        return cls("[", tuple(items), "]", comment, has_item_per_line=True)

    @property
    def flat(self) -> str:
        """The code on a single line."""
        items = ", ".join(item.flat for item in self.items)
        return f"{self.opening}{items}{self.closing}"

    def named(self, name: str) -> ArgumentSource:
        """Return the argument as a keyword argument."""
        return replace(self, opening=f"{name}={self.opening}")

    def labeled(self, name: str) -> ArgumentSource:
        """Return the argument with the name of its parameter in the comment."""
        comment = f"{name}, {self.comment}" if self.comment else name
        return replace(self, comment=comment)

    def with_items(self, added: Iterable[str]) -> ArgumentSource:
        """Return a call with more arguments."""
        return replace(self, items=self.items + tuple(map(ArgumentSource, added)))

    def lines(self, indent: int, ending: str = ",") -> list[str]:
        """Return the lines of code, without the indentation that all of them get.

        Args:
            indent: the width of this indentation.
            ending: the text after the code.
        """
        lines = self._code_lines(indent, ending)
        if not self.comment:
            return lines
        trailing = f"{lines[0]}  # {self.comment}"
        if len(lines) == 1 and indent + len(trailing) <= _LINE_WIDTH:
            return [trailing]
        return [f"# {self.comment}"] + lines

    def _code_lines(self, indent: int, ending: str) -> list[str]:
        """Return the lines of code: a single one, three with all items on one, or one per item."""
        single = f"{self.flat}{ending}"
        if not self.items:
            return [single]
        if not self.has_item_per_line and indent + len(single) <= _LINE_WIDTH:
            return [single]
        inner_indent = indent + len(_INDENT)
        items = ", ".join(item.flat for item in self.items)
        if not self.has_item_per_line and inner_indent + len(items) <= _LINE_WIDTH:
            return [self.opening, f"{_INDENT}{items}", f"{self.closing}{ending}"]
        lines = [self.opening]
        for item in self.items:
            lines += [f"{_INDENT}{line}" for line in item.lines(inner_indent)]
        lines.append(f"{self.closing}{ending}")
        return lines
