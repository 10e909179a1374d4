"""What is recorded while a profiler is at work."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

#: What the profiler that is at work records; None if none is.
events: list[dict[str, Any]] | None = None


def _event(category: str, name: str, started: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "ts": started * 1e6,
        "dur": (time.perf_counter() - started) * 1e6,
    }


def operation(name: str) -> None:
    """Do something that takes a moment."""
    started = time.perf_counter()
    time.sleep(0.0002)
    if events is not None:
        events.append(_event("cpu_op", name, started))


class record_function:  # noqa: N801  # as PyTorch calls it
    running: list[record_function] = []  # noqa: RUF012

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        self.started = time.perf_counter()
        self.running.append(self)

    def __exit__(self, *_error: object) -> None:
        self.running.remove(self)
        self.end()

    def end(self) -> None:
        if events is not None:
            events.append(_event("user_annotation", self.name, self.started))


class profile:  # noqa: N801
    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
