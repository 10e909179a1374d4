"""Reads the JSON of PyTorch's profiler (Kineto)."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

#: Name of the environment variable that, if it is set, disables the compiled readers.
PURE_PYTHON = "TRACELENS_EXT_PURE_PYTHON"


def compiled_reader() -> ModuleType | None:
    """Return the compiled reader; None if it was not built, or if the user wants pure Python."""
    if os.environ.get(PURE_PYTHON, "").strip() not in ("", "0"):
        return None
    try:
        return import_module("tracelens_ext.readers.kineto._native")
    except ImportError:
        return None
