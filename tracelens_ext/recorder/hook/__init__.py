"""The hook, which runs within the recorded program.

This folder is copied to the recordings, and `sitecustomize.py` loads the copy under another name.
Its modules therefore import only the standard library and each other. They support Python 3.8 and
PyTorch 2.0, and newer versions.
"""

from __future__ import annotations

from typing import Any

__all__ = ["install"]


def install(torch: Any, folder: str) -> None:
    """Start counting the iterations of this process.

    Args:
        torch: PyTorch, which has just been imported.
        folder: The folder of the hook, which was in front of `PYTHONPATH`.
    """
    from .options import read_options
    from .process_file import ProcessFile
    from .recorder import Recorder

    recorder = Recorder(torch, read_options(folder), ProcessFile(folder))
    recorder.install()
