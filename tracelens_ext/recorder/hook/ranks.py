"""Which process of a job this is."""

from __future__ import annotations

import os
from typing import Any, Optional, Sequence

#: Variables of launchers, in the order in which they are believed.
_RANKS = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")


def process_rank(torch: Any) -> Optional[int]:
    """Return the rank of this process; None if nothing says it."""
    rank = _number(["RANK"])
    if rank is not None:
        return rank
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available():
        if distributed.is_initialized():
            return int(distributed.get_rank())
    return _number(_RANKS)


def world_size(torch: Any) -> int:
    """Return how many processes the job has; 0 if nothing says it."""
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available():
        if distributed.is_initialized():
            return int(distributed.get_world_size())
    return _number(_SIZES) or 0


def _number(variables: Sequence[str]) -> Optional[int]:
    """Return the first of some environment variables that is a number."""
    for variable in variables:
        value = os.environ.get(variable, "")
        if value.isdecimal():
            return int(value)
    return None
