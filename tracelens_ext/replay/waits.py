"""How long collectives waited for other ranks, as a job of several ranks tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_US

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_ext.replay.program import Program
    from tracelens_ext.trace import Int64Array

_NUMBERS: Final = ["rank", "start_us", "wait_us"]


def read_waits(path: Path) -> pd.DataFrame:
    """Read a `collective_waits.parquet`.

    Raises:
        UsageError: it is none, or pyarrow is not installed.
    """
    try:
        table = pd.read_parquet(path, columns=["call", *_NUMBERS])[_NUMBERS].astype(np.float64)
    except ImportError:
        raise UsageError("--waits needs pyarrow; install tracelens-ext[parquet]") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"--waits {path}: no table of collective_waits ({reason})") from None
    return pd.DataFrame(table[np.isfinite(table).all(axis=1)]).sort_values("start_us")


def waiting_of(program: Program, waits: pd.DataFrame) -> Int64Array:
    """How long each node waits for other ranks by a table of the calls of all, ns, (n,).

    The rank is the one that the trace says, else the one whose calls start when the trace's do.

    Raises:
        UsageError: no call starts when a collective of the trace does.
    """
    work = program.work
    mine = np.flatnonzero((program.event != NONE) & work.is_communication[program.event])
    begun = work.start[program.event[mine]]
    told = work.trace.metadata.get("distributedInfo")
    rank = told.get("rank") if isinstance(told, dict) else None
    if not isinstance(rank, int):
        fits = np.isin(np.rint(waits["start_us"]), np.rint(begun / NS_PER_US))
        rank = int(waits.loc[fits, "rank"].mode().head(1).sum())
    waits = waits[waits["rank"] == rank]
    start = np.append(waits["start_us"].to_numpy() * NS_PER_US, np.inf)
    at = np.searchsorted(start, begun - NS_PER_US)
    found = np.abs(start[at] - begun) <= NS_PER_US
    if not found.any():
        raise UsageError(
            f"--waits: no call of rank {rank} starts when a collective of the trace does"
        )
    result = np.zeros_like(program.duration)
    ns = np.rint(waits["wait_us"].to_numpy()[at[found]] * NS_PER_US).astype(np.int64)
    result[mine[found]] = np.clip(ns, 0, program.duration[mine[found]])
    return result
