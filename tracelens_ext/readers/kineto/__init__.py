"""The JSON of PyTorch's profiler."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

#: Set it to have Python read, also where the compiled reader was built.
PURE_PYTHON = "TRACELENS_EXT_PURE_PYTHON"


def compiled_reader() -> ModuleType | None:
    """The compiled reader; None where it was not built or is not wanted."""
    if os.environ.get(PURE_PYTHON, "").strip() not in ("", "0"):
        return None
    try:
        return import_module("tracelens_ext.readers.kineto._native")
    except ImportError:
        return None
