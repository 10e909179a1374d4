"""What is decided about kernels: a verdict on one, and the columns of many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tracelens_ext.categorize.categories import UNCATEGORIZED
from tracelens_ext.lazy import pd

Kernel = tuple[str, str | None]
"""A kernel's name and the operation that launched it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule or a Python categoriser says about one kernel; see `Decisions`."""

    category: str
    vendor: str | None = None
    library: str | None = None
    rule: str | None = None
    pack: str | None = None
    known: bool = True


UNKNOWN: Final = Verdict(UNCATEGORIZED, known=False)


@dataclass(frozen=True, slots=True)
class Decisions:
    """Parallel lists, one entry a kernel asked about."""

    category: list[str]  #: `Uncategorized` where no rule matched
    vendor: list[str | None]  #: whose GPU the winning rule says, or None
    library: list[str | None]  #: which library the winning rule says, or None
    rule: list[str | None]  #: the winning rule (`gemm:12`, or its name), or None
    pack: list[str | None]  #: the pack or plugin of the winning rule, or None
    #: False where nothing is known: no rule matched, or only a map's catch-all did
    known: list[bool]

    def __len__(self) -> int:
        return len(self.category)

    def to_frame(self) -> pd.DataFrame:
        """A table in the order asked; None where a rule says nothing or no rule matched."""
        columns = {
            "kernel_category": self.category,
            "vendor": self.vendor,
            "library": self.library,
            "rule": self.rule,
            "pack": self.pack,
        }
        return pd.DataFrame(columns, dtype="object")
