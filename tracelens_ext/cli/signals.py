"""Being told to stop: Ctrl-C, a closed terminal, `kill`. What was begun is undone on the way out.

Each raises `KeyboardInterrupt` in the main thread, so that everything half written is removed by
the `finally` that knows of it. A second Ctrl-C does not disturb that; a third ends the program at
once.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

#: Exit codes are 128 and the number of the signal, as shells have it.
_BASE_EXIT_CODE = 128
_PATIENCE = 3


class Stopping:
    """The signals that end a run, and which of them came.

    Attributes:
        signal_number: the first that came; 0 before.
    """

    def __init__(self) -> None:
        self.signal_number = 0
        self._times = 0
        self._process = os.getpid()

    def listen(self) -> None:
        """Take over the signals; those that are ignored (as under `nohup`) stay so."""
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is None:  # Windows has no SIGHUP
                continue
            with contextlib.suppress(ValueError, OSError):  # not in the main thread
                if signal.getsignal(number) != signal.SIG_IGN:
                    signal.signal(number, self._heard)

    def exit_code(self) -> int:
        """What the program exits with after an interrupt."""
        return _BASE_EXIT_CODE + (self.signal_number or signal.SIGINT)

    def message(self) -> str:
        """What happened, in a word."""
        return "terminated" if self.signal_number == signal.SIGTERM else "interrupted"

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a worker that inherited this: it just ends
            os._exit(_BASE_EXIT_CODE + number)
        self._times += 1
        if self._times >= _PATIENCE:
            os._exit(_BASE_EXIT_CODE + number)
        if self._times == 1:
            self.signal_number = number
            raise KeyboardInterrupt
