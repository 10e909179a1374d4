"""What was decided about a list of kernels, as columns in the order asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Decisions:
    """Parallel lists, one entry a kernel asked about.

    Attributes:
        category: `Uncategorized` where no rule matched.
        vendor: whose GPU the winning rule says, or None.
        library: which library the winning rule says, or None.
        rule: the winning rule (`gemm:12`, or its name), or None.
        pack: the pack or plugin of the winning rule, or None.
        known: False where nothing is known: no rule matched, or only a map's catch-all did.
    """

    category: list[str]
    vendor: list[str | None]
    library: list[str | None]
    rule: list[str | None]
    pack: list[str | None]
    known: list[bool]

    def __len__(self) -> int:
        return len(self.category)

    def to_frame(self) -> pd.DataFrame:
        """A table in the order asked.

        Returns:
            Columns `kernel_category`, `vendor`, `library`, `rule`, `pack`; None where a rule
            says nothing or no rule matched.
        """
        import pandas as pd

        return pd.DataFrame(
            {
                "kernel_category": pd.Series(self.category, dtype="object"),
                "vendor": pd.Series(self.vendor, dtype="object"),
                "library": pd.Series(self.library, dtype="object"),
                "rule": pd.Series(self.rule, dtype="object"),
                "pack": pd.Series(self.pack, dtype="object"),
            }
        )
