"""The window of a trace that is simulated."""

from __future__ import annotations

from typing import NamedTuple


class Window(NamedTuple):
    """The interval of a trace that is simulated, ns since the first event of the trace."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """The length of the window, ns."""
        return self.end - self.start
