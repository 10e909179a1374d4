"""Worker processes that take part in reading small traces too, and what they did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.readers.kineto import workers
from tracelens_ext.readers.kineto.slice_worker import READY

if TYPE_CHECKING:
    import pytest


def wait_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have readers wait until the workers that they start are there."""
    start = workers.SliceWorkers.start

    def start_and_wait(self: workers.SliceWorkers, count: int) -> None:
        start(self, count)
        for worker in self._workers:
            worker.ready = worker._receive(len(READY)) == READY
            worker.alive = worker.ready

    monkeypatch.setattr(workers.SliceWorkers, "start", start_and_wait)


def note_slices(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """What becomes of each slice that is given to a worker: its events, or None; grows."""
    counts: list[int | None] = []
    take = workers.SliceWorkers.take

    def noted(self: workers.SliceWorkers) -> int | None:
        counts.append(take(self))
        return counts[-1]

    monkeypatch.setattr(workers.SliceWorkers, "take", noted)
    return counts
