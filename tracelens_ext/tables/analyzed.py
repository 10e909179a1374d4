"""What the base classes of `TreePerfAnalyzer` share: the trace, and what is found once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from tracelens_ext.graphs.replays import GraphReplays
    from tracelens_ext.iterations.selection import Selection
    from tracelens_ext.operations.launchers import Launchers
    from tracelens_ext.roofline.table import Roofline
    from tracelens_ext.trace import Trace
    from tracelens_ext.tree import CallTree
    from tracelens_ext.work.gpu_work import GpuWork


class Analyzed:
    """A trace that was read, its call tree and its GPU events."""

    trace: Trace
    tree: CallTree
    work: GpuWork
    #: What graph launches replay, where a capture tells.
    graph_replays: GraphReplays | None

    def roofline(
        self,
        device_peaks: str | os.PathLike[str] | None = None,
        selection: Selection | None = None,
    ) -> Roofline:
        """The operations and their best case, found once for each choice; see `get_df_roofline`."""
        from tracelens_ext.roofline.peaks import read_peaks
        from tracelens_ext.roofline.table import find_roofline

        key = (None if device_peaks is None else str(device_peaks), selection)
        if key not in self._rooflines:
            self._rooflines[key] = find_roofline(
                self.work,
                self._launchers,
                None if device_peaks is None else read_peaks(device_peaks),
                None if selection is None else selection.of(self.work),
            )
        return self._rooflines[key]

    @cached_property
    def _rooflines(self) -> dict[tuple[str | None, Selection | None], Roofline]:
        return {}

    @cached_property
    def _launchers(self) -> Launchers:
        from tracelens_ext.operations.launchers import find_launchers

        return find_launchers(self.work)
