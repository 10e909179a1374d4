"""Recordings that come with the program, to try everything without a GPU.

They were written by a simulator of a training job (`tests/support/simulated_job`): they have the
structure of traces of PyTorch's profiler, and NVIDIA's or AMD's kernel names. One of the four ranks
has a slower GPU, and the others wait for it in their collectives. In `nvidia_fixed` the same job no
longer waits for its data loader.
"""

from __future__ import annotations

import gzip
import os
import zlib
from importlib.resources import files
from pathlib import Path

from tracelens_ext.errors import UsageError
from tracelens_ext.report.atomic_files import written_beside

#: The number of ranks of the NVIDIA job.
RANKS = 4

_MARKER = b'"tracelens_ext_demo":'
_LOOK_BYTES = 16384


def copy_recording(name: str, target: Path) -> None:
    """Write a demo recording, such as ``nvidia``, ``nvidia_fixed`` or ``nvidia_rank0``.

    It is JSON, compressed if the name of the file ends in ``.json.gz``.

    Raises:
        UsageError: the name of the file ends in neither ``.json`` nor ``.json.gz``.
    """
    if not target.name.endswith((".json", ".json.gz")):
        raise UsageError(
            f"{target}: a trace's name ends in .json or .json.gz; choose such a name"
        )
    recorded = files(__name__).joinpath(f"{name}.json.gz").read_bytes()
    with written_beside(target) as beside:
        beside.write_bytes(
            recorded if target.suffix == ".gz" else gzip.decompress(recorded)
        )


def is_demo_trace(path: str | os.PathLike[str]) -> bool:
    """Return True if a file is a demo trace, which may be overwritten without asking."""
    if not Path(path).is_file():
        return False
    opener = gzip.open if str(path).endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            beginning = file.read(_LOOK_BYTES)
    except (OSError, EOFError, zlib.error):
        return False
    return _MARKER in beginning
