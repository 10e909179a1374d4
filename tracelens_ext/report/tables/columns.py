"""A column of a table, declared: its name, what it holds, and its unit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracelens_ext.report.tables.units import unit_of

#: In the name of a declared column: any category of kernels.
ANY_CATEGORY = "CATEGORY"


@dataclass(frozen=True)
class Column:
    """A column that a table can have.

    Attributes:
        name: its name. `CATEGORY` in it stands for any category.
        meaning: what it holds, a clause.
        unit: the unit of its numbers, or what is counted; None where the name tells the unit.
    """

    name: str
    meaning: str
    unit: str | None = None

    @property
    def shown_unit(self) -> str:
        """The unit that is shown; empty for none."""
        if self.unit is not None:
            return self.unit
        return unit_of(self.name).symbol

    def matches(self, name: str) -> bool:
        """Return whether a column of a table, by its name, is this one."""
        pattern = re.escape(self.name).replace(ANY_CATEGORY, ".+")
        return re.fullmatch(pattern, name) is not None


def units_of_columns(
    declared: Sequence[Column], names: Iterable[str]
) -> dict[str, str]:
    """Return the unit of each named column, empty where nothing declares one."""
    units = {}
    for name in names:
        units[name] = ""
        for column in declared:
            if column.matches(name):
                units[name] = column.shown_unit
                break
    return units
