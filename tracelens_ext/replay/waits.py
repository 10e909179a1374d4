"""How long collectives waited for other ranks, as a job of several ranks tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_US

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_ext.trace import Int64Array
    from tracelens_ext.work.gpu_work import GpuWork

_NUMBERS: Final = ("rank", "start_us", "wait_us")


def read_waits(path: Path) -> pd.DataFrame:
    """Read a `collective_waits.parquet`.

    Raises:
        UsageError: it is none, or pyarrow is not installed.
    """
    try:
        table = pd.read_parquet(path, columns=["call", *_NUMBERS])
        numbers = table[[*_NUMBERS]].astype(np.float64)
    except ImportError:
        raise UsageError("--waits needs pyarrow; install tracelens-ext[parquet]") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"--waits {path}: no table of collective_waits ({reason})") from None
    return numbers[np.isfinite(numbers).all(axis=1)]


def waiting(work: GpuWork, event: Int64Array, waits: pd.DataFrame) -> Int64Array:
    """How long each node waits for other ranks by a table of all ranks' calls, ns."""
    rank = _rank_of(work, waits)
    mine = waits[waits["rank"] == rank].sort_values("start_us")
    start = np.rint(mine["start_us"].to_numpy(np.float64) * NS_PER_US)
    result = np.zeros(len(event), dtype=np.int64)
    asked = np.flatnonzero((event != NONE) & work.is_communication[event])
    begun = work.start[event[asked]]
    at = np.searchsorted(start, begun - NS_PER_US) if len(start) else asked
    found = at < len(start)
    found[found] = np.abs(start[at[found]] - begun[found]) <= NS_PER_US
    if not found.any():
        raise UsageError(f"--waits: no collective of rank {rank} starts when one of the trace does")
    ns = np.rint(mine["wait_us"].to_numpy(np.float64)[at[found]] * NS_PER_US).astype(np.int64)
    result[asked[found]] = np.clip(ns, 0, work.duration[event[asked[found]]])
    return result


def _rank_of(work: GpuWork, waits: pd.DataFrame) -> int:
    """The rank of a trace: as it says, else the one whose calls start when the trace's do."""
    told = work.trace.metadata.get("distributedInfo")
    if isinstance(told, dict) and isinstance(told.get("rank"), int):
        return int(told["rank"])
    begun = np.rint(work.start[work.is_communication] / NS_PER_US)
    fits = np.isin(np.rint(waits["start_us"].to_numpy(np.float64)), begun)
    of_rank = waits.loc[fits, "rank"]
    return int(of_rank.mode().iloc[0]) if len(of_rank) else 0
