"""A command about one row of a table, which a page offers to copy."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Stands for the number of the row.
ROW = "{row}"


@dataclass(frozen=True)
class RowCommand:
    """A command about one row of a table."""

    text: str  #: the command, with `{row}` for the number of the row, from 1
    label: str  #: of the button that copies it
    needed_column: str  #: only rows with a text in this column have the command

    def with_option(self, option: str) -> RowCommand:
        """Return the command with one more option."""
        return replace(self, text=f"{self.text} {option}")
