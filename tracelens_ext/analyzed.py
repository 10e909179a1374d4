"""The base of `TreePerfAnalyzer`: the trace, its registered tables, and what is found once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tracelens_ext.tables.methods import TableMethods
from tracelens_ext.work.memoize import once_for_each

if TYPE_CHECKING:
    import os
    import re
    from collections.abc import Sequence

    from tracelens_ext.findings.finding import Findings
    from tracelens_ext.graphs.replays import GraphReplays
    from tracelens_ext.iterations.selection import Selection
    from tracelens_ext.lazy import pd
    from tracelens_ext.memory.usage import Memory
    from tracelens_ext.operations.launchers import Launchers
    from tracelens_ext.replay.what_if import Simulation
    from tracelens_ext.roofline.found import Roofline
    from tracelens_ext.serving.steps import Steps
    from tracelens_ext.trace import Trace
    from tracelens_ext.tree import CallTree
    from tracelens_ext.work.gpu_work import GpuWork


class Analyzed(TableMethods):
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

    @once_for_each
    def roofline(
        self, device_peaks: str | os.PathLike[str] | None = None, selection: Selection | None = None
    ) -> Roofline:
        """The operations and their best case, found once for each choice; see `get_df_roofline`."""
        from tracelens_ext.roofline.found import find_roofline
        from tracelens_ext.roofline.peaks import read_peaks

        return find_roofline(
            self.work,
            self.launchers,
            None if device_peaks is None else read_peaks(device_peaks),
            None if selection is None else selection.of(self.work),
        )

    @cached_property
    def launchers(self) -> Launchers:
        """The operations that launched GPU work."""
        from tracelens_ext.operations.launchers import find_launchers

        return find_launchers(self.work)

    @once_for_each
    def findings(self, device_peaks: str | os.PathLike[str] | None = None) -> Findings:
        """What would save the most wall time, how much, why, and what to do.

        It is found once for each choice of peaks, of which the slow operations are told.

        Raises:
            UsageError: the peaks cannot be read.
        """
        from tracelens_ext.findings.detect import find_findings

        return find_findings(
            self.work,
            lambda: self.launchers,
            lambda: self.roofline(device_peaks),
            simulate=self.simulation,
        )

    def serving_steps(self, phases: Sequence[str] = ()) -> Steps:
        """The steps of a serving engine; see `serving.steps.serving_steps`.

        Raises:
            UsageError: one of `phases` has another form.
        """
        from tracelens_ext.serving.steps import own_phases, serving_steps

        return serving_steps(self.tree, own_phases(phases))

    def memory(self, annotation: str | re.Pattern[str] | None = None) -> Memory:
        """What the memory events tell, found once."""
        from tracelens_ext.memory.usage import find_memory

        return find_memory(self.tree, annotation)
