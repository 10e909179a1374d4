"""A stand-in for PyTorch: what the recorder touches, in the shape that PyTorch has it.

Its profiler writes what was called into a trace. Environment variables make it fail or crash.
"""

from __future__ import annotations

import os
import sys
import threading
from types import SimpleNamespace
from typing import Any

__version__ = "2.99.0"


class _Autograd:
    """The part of the profiler that is written in C++."""

    enabled_thread: int | None = None

    def _profiler_enabled(self) -> bool:
        return self.enabled_thread == threading.get_ident()

    def _disable_profiler(self) -> None:
        self.enabled_thread = None


class _ExperimentalConfig:
    def __init__(self, *, profile_all_threads: bool = False) -> None:
        self.profile_all_threads = profile_all_threads


_C = SimpleNamespace(
    _autograd=_Autograd(),
    _profiler=SimpleNamespace(_ExperimentalConfig=_ExperimentalConfig),
)
cuda = SimpleNamespace(is_initialized=lambda: False)
compiler = SimpleNamespace(is_compiling=lambda: False)

from torch import autograd, distributed, nn, optim, profiler, utils  # noqa: E402

if os.environ.get("STAND_IN_IMPORT_FAILS") and "torch.broken" not in sys.modules:
    sys.modules["torch.broken"] = Any  # type: ignore[assignment]
    raise ImportError("the first import fails")

__all__ = [
    "autograd",
    "compiler",
    "cuda",
    "distributed",
    "nn",
    "optim",
    "profiler",
    "utils",
]
