"""Records from within the program, with Python 3.8 or newer and PyTorch 2.0 or newer.

This folder is copied into the output folder, and its `sitecustomize.py` loads it there under
another name. Its modules only import the standard library and each other.
"""

from __future__ import annotations

from typing import Any

__all__ = ["install"]


def install(torch: Any, folder: str) -> None:
    """Begin to count the iterations of this process.

    Args:
        torch: the module `torch`, which has just been imported.
        folder: the folder of the hook, which was at the front of `PYTHONPATH`.
    """
    from .options import read_options
    from .process_file import ProcessFile
    from .recorder import Recorder

    recorder = Recorder(torch, read_options(folder), ProcessFile(folder))
    recorder.install()
