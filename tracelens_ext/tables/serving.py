"""Tables of serving engines, and of the CUDA graphs that they launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.tables.analyzed import Analyzed

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from tracelens_ext.serving.steps import Steps


class ServingTables(Analyzed):
    """Phases, layers and graph launches."""

    # Serving. `phases` are phases of your own, each `NAME=REGEX`, as `--phase` takes them.

    def serving_steps(self, phases: Sequence[str] = ()) -> Steps:
        """The steps of a serving engine; see `serving.inferred.serving_steps`.

        Raises:
            UsageError: one of `phases` has another form.
        """
        from tracelens_ext.serving.inferred import serving_steps
        from tracelens_ext.serving.steps import own_phases

        return serving_steps(self.tree, own_phases(phases))

    def get_df_phases(
        self,
        phases: Sequence[str] = (),
        device_peaks: str | os.PathLike[str] | None = None,
    ) -> pd.DataFrame:
        """Prefill, decode …: tokens, GPU time and idle time, as the sheet `phases`."""
        from tracelens_ext.roofline.phases import with_roofline
        from tracelens_ext.serving.phases import phase_table

        steps = self.serving_steps(phases)
        frame = phase_table(self.work, steps)
        return with_roofline(frame, self.roofline(device_peaks), self._launchers, steps)

    def get_df_phase_steps(self, phases: Sequence[str] = ()) -> pd.DataFrame:
        """A row a step, the slowest first, as the sheet `phase_steps`."""
        from tracelens_ext.serving.phases import step_table

        return step_table(self.work, self.serving_steps(phases))

    def get_df_layers(self, phases: Sequence[str] = ()) -> pd.DataFrame:
        """A row a layer of each phase, as the sheet `layers`."""
        from tracelens_ext.serving.layers import layer_table

        return layer_table(self.work, self.serving_steps(phases))

    def get_df_layer_kernels(self, phases: Sequence[str] = ()) -> pd.DataFrame:
        """The kernels of one layer, as the sheet `layer_kernels`."""
        from tracelens_ext.serving.layers import layer_kernel_table

        return layer_kernel_table(self.work, self.serving_steps(phases))

    def get_df_graph_launches(self) -> pd.DataFrame:
        """A row a site that launches a graph, as the sheet `graph_launches`."""
        from tracelens_ext.graphs.graph_launches import graph_launches

        return graph_launches(self.work)

    def get_df_graph_operations(self) -> pd.DataFrame:
        """GPU events of graph launches by captured operation, as the sheet `graph_operations`.

        No rows without a `capture`, and where no captured graph fits.
        """
        from tracelens_ext.graphs.graph_launches import graph_operations

        return graph_operations(self.work)

    def get_df_graph_captures(self) -> pd.DataFrame:
        """Which captured graphs the graph launches replay, as the sheet `graph_captures`.

        Raises:
            UsageError: there is no graph launch, or no capture.
        """
        from tracelens_ext.graphs.graph_launches import graph_captures

        if self.graph_replays is None:
            raise UsageError(
                "this needs a trace with graph launches, and"
                " TreePerfAnalyzer(trace, capture=FILE_OR_FOLDER)"
            )
        return graph_captures(self.graph_replays)
