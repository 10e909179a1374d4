"""Finds the compiled decoder of reports."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

from tracelens_ext.readers.kineto import PURE_PYTHON


def compiled_decoder() -> ModuleType | None:
    """Return the compiled decoder; None if it was not built, or if the user wants pure Python."""
    if os.environ.get(PURE_PYTHON, "").strip() not in ("", "0"):
        return None
    try:
        return import_module("tracelens_ext.readers.nsys._native")
    except ImportError:
        return None
