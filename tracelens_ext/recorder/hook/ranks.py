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
    if _is_distributed(torch):
        return int(torch.distributed.get_rank())
    return _number(_RANKS)


def world_size(torch: Any) -> int:
    """Return how many processes the job has; 0 if nothing says it."""
    return group_size(torch) or _number(_SIZES) or 0


def group_size(torch: Any) -> int:
    """Return how many processes the process group has; 0 without one."""
    if _is_distributed(torch):
        return int(torch.distributed.get_world_size())
    return 0


def _is_distributed(torch: Any) -> bool:
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available():
        return False
    return bool(distributed.is_initialized())


def _number(variables: Sequence[str]) -> Optional[int]:
    """Return the first of some environment variables that is a number."""
    for variable in variables:
        value = os.environ.get(variable, "")
        if value.isdecimal():
            return int(value)
    return None
