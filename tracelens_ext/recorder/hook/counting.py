"""Decides when an iteration ends: after the optimizer that steps least often has stepped."""

from __future__ import annotations

import time
import weakref
from typing import Any, Dict, List, Optional, Set

#: An optimizer without a step during this many steps of another one is not in use.
_PATIENCE = 8
#: If an optimizer steps rarely, a pause is too long from this multiple of its longest pause on.
_PAUSES = 2


class _Use:
    """How often an optimizer has stepped."""

    def __init__(self, optimizer: Any, count: int, fastest: int) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.count = (
            count  #: iterations of the loop, judged by the steps of this optimizer
        )
        #: number of steps of the fastest optimizer when this one stepped last
        self.fastest_then = fastest
        #: the most steps of the fastest optimizer between two steps of this one
        self.longest_pause = 0

    def is_unused(self, fastest: int) -> bool:
        """Return whether iterations should not wait for this optimizer."""
        if self.optimizer() is None:
            return True
        pause = fastest - self.fastest_then
        return pause >= max(_PATIENCE, _PAUSES * self.longest_pause)


class OptimizerSteps:
    """Counts the iterations of a loop with any number of optimizers.

    An iteration ends when every optimizer in use has made another step. The critic of a GAN, for
    example, may make five steps in an iteration. An optimizer that never makes a step delays the
    first iteration until another one has made eight steps.
    """

    def __init__(self) -> None:
        self.number = 0  #: number of iterations that have ended
        self._fastest = 0  #: number of steps of the optimizer that steps most often
        self._uses: Dict[int, _Use] = {}
        #: optimizers that have not stepped yet in this iteration
        self._behind: Set[int] = set()

    def add(self, optimizer: Any) -> None:
        """Wait for the steps of a new optimizer."""
        key = id(optimizer)
        self._uses[key] = _Use(
            optimizer=optimizer, count=self.number, fastest=self._fastest
        )
        self._behind.add(key)

    def forget(self, optimizer: Any) -> None:
        """Stop waiting for an optimizer, as it steps in another thread."""
        self._uses.pop(id(optimizer), None)
        self._behind.discard(id(optimizer))

    def has_stepped(self, optimizer: Any) -> None:
        """Count a step of an optimizer."""
        key = id(optimizer)
        use = self._uses.get(key)
        if use is None or use.optimizer() is not optimizer:
            use = _Use(optimizer=optimizer, count=self.number, fastest=self._fastest)
            self._uses[key] = use
        use.count += 1
        self._fastest = max(self._fastest, use.count)
        pause = self._fastest - use.fastest_then
        use.longest_pause = max(use.longest_pause, pause)
        use.fastest_then = self._fastest
        self._behind.discard(key)

    def iteration_has_ended(self) -> bool:
        """Return whether all optimizers have stepped; if so, the next iteration begins."""
        for key in list(self._behind):
            if self._uses[key].is_unused(self._fastest):
                del self._uses[key]
                self._behind.discard(key)
        if self._behind or not self._uses:
            return False
        self.number = min(use.count for use in self._uses.values())
        self._behind = {
            key for key, use in self._uses.items() if use.count <= self.number
        }
        return True


class ThreadSteps:
    """The iterations of one thread, and their durations."""

    def __init__(self) -> None:
        self.number = 0  #: number of iterations that have ended
        self.optimizers = OptimizerSteps()
        #: optimizers whose steps are running, the outermost first
        self.stepping: List[int] = []
        self._ended_at: List[float] = []

    def end_iteration(self, number: Optional[int] = None) -> None:
        """Count an iteration that has ended now."""
        self.number = self.number + 1 if number is None else number
        self._ended_at.append(time.perf_counter())

    def typical_duration_ms(self) -> Optional[float]:
        """Return the median duration of the iterations so far; None for fewer than two.

        The first two are left out, as they also allocate memory, compile kernels, and so on.
        """
        ended_at = self._ended_at[2:]
        durations = [end - ended_at[place] for place, end in enumerate(ended_at[1:])]
        if not durations:
            return None
        return 1000 * sorted(durations)[len(durations) // 2]
