"""How long the collectives of a trace wait for other ranks, from a table of `fleet`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_US, Int64Array, distributed_info
from tracelens_ext.trace.lookup import values_at

if TYPE_CHECKING:
    from tracelens_ext.simulation.dependency_graph import DependencyGraph

_WAIT_COLUMNS: Final = ["rank", "start_us", "wait_us"]


def read_collective_waits(path: Path) -> pd.DataFrame:
    """Read a `collective_waits.parquet`.

    Returns:
        The columns `rank`, `start_us` and `wait_us`, ordered by start. Calls for which one of the
        three is missing are left out.

    Raises:
        UsageError: the file is not such a table, or pyarrow is missing.
    """
    try:
        # The column `call` tells this table from others.
        table = pd.read_parquet(path, columns=["call"] + _WAIT_COLUMNS)
        waits = table[_WAIT_COLUMNS].astype(np.float64)
    except ImportError:
        raise UsageError(
            "--collective-waits needs pyarrow; run: pip install 'tracelens-ext[parquet]'"
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"--collective-waits {path}: is not a collective_waits table ({reason})"
        ) from None
    is_finite = np.isfinite(waits).all(axis=1)
    return pd.DataFrame(waits[is_finite]).sort_values("start_us")


def waiting_of_nodes(program: DependencyGraph, waits: pd.DataFrame) -> Int64Array:
    """Return how long each node waits for other ranks, ns, (n,).

    A collective of the trace waits as long as the call of its rank that starts at the same time,
    within a microsecond.

    Args:
        program: the n nodes.
        waits: the collective calls of all ranks, from `read_collective_waits`.

    Raises:
        UsageError: no call of the rank starts at the same time as a collective of the trace.
    """
    gpu_events = program.gpu_events
    is_collective = values_at(
        values=gpu_events.is_communication, index=program.event, missing=False
    )
    nodes = np.flatnonzero(is_collective)
    start = gpu_events.start[program.event[nodes]]
    rank = distributed_info(gpu_events.trace.metadata).get("rank")
    if not isinstance(rank, int):
        rank = _rank_by_start_times(waits, start)
    waits_of_rank = waits[waits["rank"] == rank]

    start_of_call = waits_of_rank["start_us"].to_numpy() * NS_PER_US
    wait_of_call = waits_of_rank["wait_us"].to_numpy() * NS_PER_US
    # The first call that does not start more than a microsecond before the collective.
    calls = np.searchsorted(start_of_call, start - NS_PER_US)
    distance = np.abs(values_at(start_of_call, calls, missing=np.inf) - start)
    is_matched = distance <= NS_PER_US
    if not is_matched.any():
        raise _no_matching_call(f"rank {rank}")
    matched_nodes = nodes[is_matched]
    wait_ns = np.rint(wait_of_call[calls[is_matched]]).astype(np.int64)
    waiting = np.zeros_like(program.duration)
    waiting[matched_nodes] = np.clip(wait_ns, 0, program.duration[matched_nodes])
    return waiting


def _rank_by_start_times(waits: pd.DataFrame, start: Int64Array) -> int:
    """Return the rank of a trace that does not say which rank it is.

    It is the rank with the most calls that start at the same time as a collective of the trace.

    Args:
        waits: the collective calls of all ranks.
        start: the start of each collective of the trace, ns, (c,).

    Raises:
        UsageError: no call starts at the same time as a collective of the trace.
    """
    starts_together = np.isin(np.rint(waits["start_us"]), np.rint(start / NS_PER_US))
    rank_of_call = waits["rank"].to_numpy(dtype=np.int64)[starts_together]
    ranks, call_counts = np.unique(rank_of_call, return_counts=True)
    if not len(ranks):
        raise _no_matching_call("any rank")
    return int(ranks[call_counts.argmax()])


def _no_matching_call(calling_rank: str) -> UsageError:
    """Return the error for a table without a call at the time of a collective of the trace."""
    reason = f"no call of {calling_rank} starts at the same time as a collective of the trace"
    return UsageError(f"--collective-waits: {reason}")
