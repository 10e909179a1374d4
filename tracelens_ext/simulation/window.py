"""The window of a trace that is simulated."""

from __future__ import annotations

from typing import NamedTuple


class Window(NamedTuple):
    """From when to when a trace is simulated, ns since its first event."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """How long the window is, ns."""
        return self.end - self.start
