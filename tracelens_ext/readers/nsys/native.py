"""The compiled decoder of reports, where it was built and is wanted."""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType

from tracelens_ext.readers.kineto import PURE_PYTHON


def compiled_decoder() -> ModuleType | None:
    """The compiled decoder; None where it was not built or is not wanted."""
    if os.environ.get(PURE_PYTHON, "").strip() not in ("", "0"):
        return None
    try:
        return import_module("tracelens_ext.readers.nsys._native")
    except ImportError:
        return None
