"""Tables of what could be better: the roofline and the findings."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.tables.analyzed import Analyzed

if TYPE_CHECKING:
    import os

    from tracelens_ext.findings.finding import Findings
    from tracelens_ext.iterations.selection import Selection


class PotentialTables(Analyzed):
    """How good operations are, and what would save the most time."""

    # How good operations are. `device_peaks` is a file of peaks or the name of a known device, the
    # device that the trace names by default.

    def get_df_roofline(
        self,
        device_peaks: str | os.PathLike[str] | None = None,
        *,
        selection: Selection | None = None,
    ) -> pd.DataFrame:
        """What each operation had to compute and to move, and the time lost, as the sheet.

        Args:
            device_peaks: see `roofline.peaks.read_peaks`.
            selection: which GPU events are asked about, all by default.

        Raises:
            UsageError: the peaks cannot be read, or nothing is selected.
        """
        from tracelens_ext.roofline.table import roofline_table

        return roofline_table(self.roofline(device_peaks, selection))

    def get_df_performance_model(
        self, family: str, device_peaks: str | os.PathLike[str] | None = None
    ) -> pd.DataFrame:
        """The operations of a family, such as `GEMM`, with their parameters, as its sheet.

        Raises:
            UsageError: there is no such family, or the peaks cannot be read.
        """
        from tracelens_ext.roofline.families import family_table

        return family_table(self.roofline(device_peaks), family)

    def findings(self, device_peaks: str | os.PathLike[str] | None = None) -> Findings:
        """What would save the most wall time, how much, why, and what to do.

        It is found once for each choice of peaks, of which the slow operations are told.

        Raises:
            UsageError: the peaks cannot be read.
        """
        from tracelens_ext.findings.detect import find_findings

        key = None if device_peaks is None else str(device_peaks)
        if key not in self._findings:
            self._findings[key] = find_findings(
                self.work,
                lambda: self._launchers,
                lambda: self.roofline(device_peaks),
                simulate=self.simulation,
            )
        return self._findings[key]

    @cached_property
    def _findings(self) -> dict[str | None, Findings]:
        return {}

    def get_df_recording(self) -> pd.DataFrame:
        """How much of the wall time the recording lets anybody judge, as the sheet `recording`."""
        from tracelens_ext.recording.table import recording_table

        return recording_table(self.work)

    def get_df_findings(self, device_peaks: str | os.PathLike[str] | None = None) -> pd.DataFrame:
        """The same as a table, a row a finding, as the sheet `findings`."""
        from tracelens_ext.findings.table import findings_table

        return findings_table(self.findings(device_peaks))
