"""Tables of the replay: what the wall time would be, and the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.tables.analyzed import Analyzed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.lazy import pd


class ReplayTables(Analyzed):
    """The trace run again by its dependencies, unchanged or with changed durations."""

    def get_df_what_if(
        self,
        changes: Sequence[str] = (),
        iteration: int | None = None,
        device: int | None = None,
    ) -> pd.DataFrame:
        """The wall time if something changed, as the sheet `what_if`.

        Args:
            changes: each as `--change` of `tracelens-ext what-if`; the usual ones by default.
            iteration: the N of a `ProfilerStep#N`, the window; the whole recording by default.
            device: the only device that is asked about.

        Raises:
            UsageError: a change, the iteration or the device is of nothing that the trace has.
        """
        from tracelens_ext.replay.changes import parse_change

        asked = [parse_change(text) for text in changes] or None
        return self.simulation(iteration, device).what_if(asked)

    def get_df_critical_path(
        self, iteration: int | None = None, device: int | None = None
    ) -> pd.DataFrame:
        """What the wall time is made of, segment by segment, as the sheet `critical_path`."""
        return self.simulation(iteration, device).critical_path.copy()

    def get_df_critical_path_summary(
        self, iteration: int | None = None, device: int | None = None
    ) -> pd.DataFrame:
        """The critical path by kind and category, as the sheet `critical_path_summary`."""
        return self.simulation(iteration, device).critical_path_summary()
