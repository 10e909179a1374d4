"""What records within the program: standard library only, for Python 3.8 and PyTorch 2.0 and newer.

The folder is copied beside the recordings and loaded there by its `sitecustomize.py` under another
name, so its modules import nothing but each other.
"""

from __future__ import annotations

from typing import Any

__all__ = ["install"]


def install(torch: Any, folder: str) -> None:
    """Begin to count the iterations of this process.

    Args:
        torch: PyTorch, which has just been imported.
        folder: The folder that was in front of `PYTHONPATH`.
    """
    from .options import read_options
    from .process_file import ProcessFile
    from .recorder import Recorder

    recorder = Recorder(torch, read_options(folder), ProcessFile(folder))
    recorder.install()
