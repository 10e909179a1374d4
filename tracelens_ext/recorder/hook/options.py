"""What to record; the program that reports wrote it into a file."""

from __future__ import annotations

import json
import os
from typing import List, NamedTuple, Optional

FILE_NAME = "options.json"


class Options(NamedTuple):
    """What to record of a process."""

    skip: int  #: iterations before the profiler is prepared
    warmup: int  #: iterations between that and the recording
    steps: int  #: iterations that are recorded
    steps_by: str  #: `auto`, `optimizer`, `forward` or `time`
    after_s: float  #: by time: when the recording begins, after PyTorch was imported
    for_s: float  #: by time: how long the recording takes, seconds
    ranks: Optional[List[int]]  #: the ranks that are recorded; None for all
    stacks: bool  #: record Python frames
    memory: bool  #: record memory allocations
    memory_snapshot: bool  #: write a snapshot of the GPU memory

    @property
    def is_by_time(self) -> bool:
        """True if a period of time is recorded instead of iterations."""
        return self.steps_by == "time"


def read_options(folder: str) -> Options:
    """Return the options that were written into a folder."""
    with open(os.path.join(folder, FILE_NAME), encoding="utf-8") as file:
        return Options(**json.load(file))
