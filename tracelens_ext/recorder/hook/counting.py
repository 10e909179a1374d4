"""Counting of iterations, which end when the optimizer that steps least often has stepped."""

from __future__ import annotations

import time
import weakref
from typing import Any, Dict, List, Optional, Sequence, Set

#: An optimizer counts as unused if it has not stepped during this many steps of another one.
_PATIENCE = 8
#: An optimizer that has always been slow may pause this many times as long as its longest pause.
_PAUSES = 2


#: Number of first iterations that do not count for the typical duration, because they also allocate
#: memory, compile, and so on.
_UNTYPICAL_ITERATIONS = 2


class _Use:
    """The steps of one optimizer; pauses are measured in steps of the fastest optimizer."""

    def __init__(self, optimizer: Any, count: int, fastest_count: int) -> None:
        self.optimizer = weakref.ref(optimizer)
        #: number of iterations according to the steps of this optimizer
        self.count = count
        #: number of steps of the fastest optimizer when this one stepped last
        self.fastest_count_at_step = fastest_count
        self.longest_pause = 0  #: the longest pause between two steps of this optimizer

    def is_unused(self, fastest_count: int) -> bool:
        """Return True if iterations no longer need to wait for the optimizer."""
        if self.optimizer() is None:
            return True
        pause = fastest_count - self.fastest_count_at_step
        return pause >= max(_PATIENCE, _PAUSES * self.longest_pause)


class OptimizerSteps:
    """Counts the iterations of a loop with any number of optimizers.

    An iteration ends when every optimizer in use has stepped at least once more. The critic of a
    GAN, for example, may step five times per iteration. An optimizer that was created but has not
    stepped is waited for during eight steps of another one.
    """

    def __init__(self) -> None:
        self.number = 0  #: number of iterations that have ended
        #: number of steps of the optimizer that steps most often
        self._fastest_count = 0
        self._uses: Dict[int, _Use] = {}  #: the optimizers in use, by identity
        self._pending: Set[int] = (
            set()
        )  #: those that have yet to step in this iteration

    def add(self, optimizer: Any) -> None:
        """Wait for the steps of a new optimizer, too."""
        key = id(optimizer)
        self._uses[key] = self._new_use(optimizer)
        self._pending.add(key)

    def _new_use(self, optimizer: Any) -> _Use:
        return _Use(optimizer, count=self.number, fastest_count=self._fastest_count)

    def forget(self, optimizer: Any) -> None:
        """Stop waiting for an optimizer, because it steps in another thread."""
        self._uses.pop(id(optimizer), None)
        self._pending.discard(id(optimizer))

    def has_stepped(self, optimizer: Any) -> None:
        """Count a step of an optimizer."""
        key = id(optimizer)
        use = self._uses.get(key)
        if use is None or use.optimizer() is not optimizer:
            # Another optimizer had this identity, but no longer exists.
            use = self._new_use(optimizer)
            self._uses[key] = use
        use.count += 1
        self._fastest_count = max(self._fastest_count, use.count)
        pause = self._fastest_count - use.fastest_count_at_step
        use.longest_pause = max(use.longest_pause, pause)
        use.fastest_count_at_step = self._fastest_count
        self._pending.discard(key)

    def end_iteration_if_complete(self) -> bool:
        """Begin the next iteration if all optimizers in use have stepped; return whether it did."""
        for key in list(self._pending):
            if self._uses[key].is_unused(self._fastest_count):
                del self._uses[key]
                self._pending.discard(key)
        if self._pending or not self._uses:
            return False
        self.number = min(use.count for use in self._uses.values())
        self._pending = {
            key for key, use in self._uses.items() if use.count <= self.number
        }
        return True


class ThreadSteps:
    """The iterations of one thread and their durations."""

    def __init__(self) -> None:
        self.number = 0  #: number of iterations that have ended
        self.optimizers = OptimizerSteps()
        #: identities of the optimizers whose step is running, the outermost first
        self.stepping: List[int] = []
        self._ended_at: List[float] = []  #: when each iteration ended, s

    def end_iteration(self, number: Optional[int] = None) -> None:
        """Count an iteration that has just ended.

        Args:
            number: The number of iterations that have ended; by default, one more than before.
        """
        self.number = self.number + 1 if number is None else number
        self._ended_at.append(time.perf_counter())

    def typical_duration_ms(self) -> Optional[float]:
        """Return the `typical_duration_ms` of the iterations so far."""
        return typical_duration_ms(self._ended_at)


def typical_duration_ms(ended_at: Sequence[float]) -> Optional[float]:
    """Return the median duration of iterations in ms, without the first two.

    Args:
        ended_at: when each iteration ended, s.

    Returns:
        The median; None for fewer than three iterations.
    """
    # The end of the second iteration is the start of the third, the first one that counts.
    borders = ended_at[_UNTYPICAL_ITERATIONS - 1 :]
    durations_s = [
        borders[index] - borders[index - 1] for index in range(1, len(borders))
    ]
    if not durations_s:
        return None
    return 1000 * sorted(durations_s)[len(durations_s) // 2]
