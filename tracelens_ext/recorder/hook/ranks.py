"""The rank of this process, and the number of processes of its job."""

from __future__ import annotations

import os
from typing import Any, Optional, Sequence

#: Environment variables of launchers with the rank; the first that is set counts.
_RANKS = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
#: Environment variables of launchers with the number of processes; the first that is set counts.
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")


def process_rank(torch: Any) -> Optional[int]:
    """Return the rank of this process; None if it is not known."""
    rank = _number(["RANK"])
    if rank is not None:
        return rank
    if _is_distributed(torch):
        return int(torch.distributed.get_rank())
    return _number(_RANKS)


def world_size(torch: Any) -> int:
    """Return the number of processes of the job; 0 if it is not known."""
    return group_size(torch) or _number(_SIZES) or 0


def group_size(torch: Any) -> int:
    """Return the number of processes of PyTorch's process group; 0 without a group."""
    if _is_distributed(torch):
        return int(torch.distributed.get_world_size())
    return 0


def _is_distributed(torch: Any) -> bool:
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available():
        return False
    return bool(distributed.is_initialized())


def _number(variables: Sequence[str]) -> Optional[int]:
    """Return the value of the first of these environment variables that is a number."""
    for variable in variables:
        value = os.environ.get(variable, "")
        if value.isdecimal():
            return int(value)
    return None
