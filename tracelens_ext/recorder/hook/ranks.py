"""Finds out the rank of this process, and the size of its job."""

from __future__ import annotations

import os
from typing import Any, Optional, Sequence

#: Environment variables of launchers; the first one that is set counts.
_RANKS = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")


def process_rank(torch: Any) -> Optional[int]:
    """Return the rank of this process; None if it is unknown."""
    rank = _number(["RANK"])
    if rank is not None:
        return rank
    if _is_distributed(torch):
        return int(torch.distributed.get_rank())
    return _number(_RANKS)


def world_size(torch: Any) -> int:
    """Return the number of processes of the job; 0 if it is unknown."""
    return group_size(torch) or _number(_SIZES) or 0


def group_size(torch: Any) -> int:
    """Return the number of processes in the process group; 0 if there is none."""
    if _is_distributed(torch):
        return int(torch.distributed.get_world_size())
    return 0


def _is_distributed(torch: Any) -> bool:
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available():
        return False
    return bool(distributed.is_initialized())


def _number(variables: Sequence[str]) -> Optional[int]:
    """Return the number in the first of these environment variables that has one."""
    for variable in variables:
        value = os.environ.get(variable, "")
        if value.isdecimal():
            return int(value)
    return None
