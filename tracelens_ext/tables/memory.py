"""Tables of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.tables.analyzed import Analyzed

if TYPE_CHECKING:
    import re

    from tracelens_ext.memory.tables import Memory


class MemoryTables(Analyzed):
    """Who allocated the memory."""

    # Memory, where the profiler recorded it (`profile_memory=True`). `annotation` chooses the
    # iterations, as for `get_df_iterations`.

    def get_df_memory_peaks(self, annotation: str | re.Pattern[str] | None = None) -> pd.DataFrame:
        """How much memory each device had allocated at most, and when, as the sheet."""
        from tracelens_ext.memory.tables import memory_peaks

        return memory_peaks(self.memory(annotation))

    def get_df_memory_at_peak(
        self, annotation: str | re.Pattern[str] | None = None
    ) -> pd.DataFrame:
        """What was alive at the peak of each device, by who allocated it, as the sheet."""
        from tracelens_ext.memory.tables import memory_at_peak

        return memory_at_peak(self.memory(annotation))

    def get_df_memory_by_operation(
        self, annotation: str | re.Pattern[str] | None = None
    ) -> pd.DataFrame:
        """What each operation allocated, and for how long, as the sheet."""
        from tracelens_ext.memory.tables import memory_by_operation

        return memory_by_operation(self.memory(annotation))

    def get_df_memory_blocks(self, largest: int | None = None) -> pd.DataFrame:
        """A row a block of memory; see `memory.tables.memory_blocks`.

        Args:
            largest: only so many of each device, all by default.
        """
        from tracelens_ext.memory.tables import memory_blocks

        return memory_blocks(self.memory(), largest)

    def memory(self, annotation: str | re.Pattern[str] | None = None) -> Memory:
        """What the memory events tell, found once."""
        from tracelens_ext.memory.tables import find_memory

        return find_memory(self.tree, annotation)
