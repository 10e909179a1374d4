"""The declaration of a column of a table: its name, its meaning, and its unit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracelens_ext.report.tables.units import unit_of

#: Stands for any category of kernels in the name of a declared column.
ANY_CATEGORY = "CATEGORY"


@dataclass(frozen=True)
class Column:
    """A column that a table can have.

    Attributes:
        name: the name of the column, in which `CATEGORY` stands for any category.
        meaning: what the column has, as a phrase.
        unit: the unit of the numbers, or the noun for what they count; None if the name has the
            unit.
    """

    name: str
    meaning: str
    unit: str | None = None

    @property
    def shown_unit(self) -> str:
        """The unit that is shown; empty if there is none."""
        if self.unit is not None:
            return self.unit
        return unit_of(self.name).symbol

    def matches(self, name: str) -> bool:
        """Return True if this declaration describes the column of a table with the given name."""
        pattern = re.escape(self.name).replace(ANY_CATEGORY, ".+")
        return re.fullmatch(pattern, name) is not None


def units_of_columns(
    declared: Sequence[Column], names: Iterable[str]
) -> dict[str, str]:
    """Return the unit of each named column; empty for a column without a declared unit."""
    units = {}
    for name in names:
        units[name] = ""
        for column in declared:
            if column.matches(name):
                units[name] = column.shown_unit
                break
    return units
