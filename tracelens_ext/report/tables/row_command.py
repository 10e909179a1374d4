"""A command about a row of a table, which an HTML page offers to copy."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Stands for the number of the row in the text of a command.
ROW = "{row}"


@dataclass(frozen=True)
class RowCommand:
    """A command about a row of a table."""

    text: str  #: the command, with `{row}` for the number of the row, counted from 1
    label: str  #: the text of the button that copies the command
    #: the column that must have a text for a row to have the command
    needed_column: str

    def with_option(self, option: str) -> RowCommand:
        """Return the command with an option added."""
        return replace(self, text=f"{self.text} {option}")
