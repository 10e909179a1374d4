"""What the data model needs of whoever categorizes kernels.

The categorizer itself is in a package above this one, which hands it over when it makes the
`GpuEvents`; nothing here imports it.
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
        """The category of each kernel, `UNCATEGORIZED` where no rule matched."""
        ...

    @property
    def known(self) -> Sequence[bool]:
        """False where no rule matched, or only the catch-all of a map."""
        ...


class Categorizer(Protocol):
    """Gives kernels, and CPU operations, their categories by name."""

    @property
    def is_builtin(self) -> bool:
        """True if it asks the built-in rule packs and nothing else."""
        ...

    def categorize(
        self, names: Collection[str], cpu_ops: Collection[str | None] | None = None, /
    ) -> CategoryDecisions:
        """Return the categories of kernels, given the operations that launched them."""
        ...

    def categorize_ops(self, op_names: Collection[str], /) -> Sequence[str]:
        """Return the categories of CPU operations."""
        ...


@dataclass(frozen=True, eq=False)
class Categorizers:
    """The categorizers of a run; those that may not be needed are made when they are."""

    #: what the user chose; None if kernels get no categories
    chosen: Categorizer | None
    #: the built-in packs alone, whatever was chosen
    make_builtin: Callable[[], Categorizer]
    make_default: Callable[[], Categorizer]  #: what is used when nothing was chosen


@dataclass(frozen=True, eq=False)
class Categories:
    """The category of each GPU event."""

    code: Int32Array  #: index into `labels`, shape (g,)
    labels: list[str]  #: the categories that occur
    #: False where no rule knows an event, or only a map's catch-all, shape (g,)
    known: BoolArray
