"""The options for recording, which the reporting program wrote into a file."""

from __future__ import annotations

import json
import os
from typing import List, NamedTuple, Optional

FILE_NAME = "options.json"


class Options(NamedTuple):
    """What to record of a process."""

    skip: int  #: number of iterations before the profiler is prepared
    warmup: int  #: number of iterations between the preparation and the recording
    steps: int  #: number of iterations to record
    steps_by: str  #: `auto`, `optimizer`, `forward` or `time`
    after_s: float  #: with `time`: start of the recording, after PyTorch was imported
    for_s: float  #: with `time`: length of the recording
    ranks: Optional[List[int]]  #: ranks that record; None for all
    stacks: bool  #: record Python frames
    memory: bool  #: record memory allocations
    memory_snapshot: bool  #: write a snapshot of the GPU's memory

    @property
    def is_by_time(self) -> bool:
        """True if a period of time is recorded instead of iterations."""
        return self.steps_by == "time"


def read_options(folder: str) -> Options:
    """Return the options in the folder of the hook."""
    with open(os.path.join(folder, FILE_NAME), encoding="utf-8") as file:
        return Options(**json.load(file))
