"""What the base classes of `TreePerfAnalyzer` share: the trace, and what is found once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from tracelens_ext.graphs.replays import GraphReplays
    from tracelens_ext.iterations.selection import Selection
    from tracelens_ext.lazy import pd
    from tracelens_ext.operations.launchers import Launchers
    from tracelens_ext.replay.what_if import Simulation
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

    def simulation(
        self,
        iteration: int | None = None,
        device: int | None = None,
        waits: pd.DataFrame | None = None,
    ) -> Simulation:
        """The replay of the whole recording, or of an iteration; see `Simulation`.

        Raises:
            UsageError: the trace has no GPU events, or no such iteration or device.
        """
        from tracelens_ext.replay.what_if import Simulation

        if iteration is None and device is None and waits is None:
            return self._simulation
        return Simulation(self.work, iteration, device, waits)

    @cached_property
    def _simulation(self) -> Simulation:
        from tracelens_ext.replay.what_if import Simulation

        return Simulation(self.work)

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
