"""The interface of a categorizer of kernels, as far as the data model uses it.

The categorizer itself is in a package above this one, which passes it in when it creates
`GpuEvents`, so nothing here imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from tracelens_ext.trace.trace import BoolArray, Int32Array


class CategoryDecisions(Protocol):
    """The categories of several kernels: parallel sequences, one entry a kernel."""

    @property
    def category(self) -> Sequence[str]:
        """The category of each kernel; `UNCATEGORIZED` if no rule matched."""
        ...

    @property
    def known(self) -> Sequence[bool]:
        """False for a kernel that no rule matched except the catch-all rule of a map."""
        ...


class Categorizer(Protocol):
    """Assigns categories to kernels and CPU operations by their names."""

    @property
    def is_builtin(self) -> bool:
        """True if the categorizer uses the built-in rule packs and nothing else."""
        ...

    def categorize(
        self, names: Collection[str], cpu_ops: Collection[str | None] | None = None, /
    ) -> CategoryDecisions:
        """Return the category of each kernel, given the operation that launched it, if known."""
        ...

    def categorize_ops(self, op_names: Collection[str], /) -> Sequence[str]:
        """Return the category of each CPU operation."""
        ...


@dataclass(frozen=True, eq=False)
class Categorizers:
    """The categorizers of a run. Functions create those that the run may not need."""

    #: the categorizer that the user chose; None if kernels get no categories
    chosen: Categorizer | None
    #: creates a categorizer with the built-in packs alone, whatever the user chose
    make_builtin: Callable[[], Categorizer]
    #: creates the categorizer that is used if the user chose none
    make_default: Callable[[], Categorizer]


@dataclass(frozen=True, eq=False)
class Categories:
    """The category of each GPU event."""

    code: Int32Array  #: index into `labels`, shape (g,)
    labels: list[str]  #: the names of the categories that occur
    #: False for an event that no rule matched except the catch-all rule of a map, shape (g,)
    known: BoolArray
