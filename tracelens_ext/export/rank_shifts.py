"""What the traces of several ranks are called in one export, and how their times fit together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tracelens_ext.distributed.rank_numbers import assign_ranks, rank_hints
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_US, Trace

_CLOCK_COLUMNS = ["rank", "offset_us", "error_us"]


class TraceShift(NamedTuple):
    """Where a trace is on the time axis of an export."""

    label: str  #: its rank in words; empty if there is only one trace
    shift_ns: int  #: what is added to its times
    clock_note: str  #: how well that is known, in words; empty to say nothing


class _Clock(NamedTuple):
    """What `fleet` found of a rank's clock."""

    offset_us: float
    error_us: float


def shifts(
    traces: Sequence[Trace], names: Sequence[str], clocks: Path | None
) -> list[TraceShift]:
    """Return where each trace is on the time axis.

    Args:
        traces: at least one.
        names: the names of their files.
        clocks: the `clocks.parquet` of a fleet; None to let each begin at 0.

    Raises:
        UsageError: the file of clocks is none, or lacks a rank.
    """
    ranks = _ranks(traces, names)
    if clocks is None:
        if len(traces) == 1:
            return [TraceShift(label="", shift_ns=0, clock_note="")]
        return [
            TraceShift(
                label=f"rank {rank}",
                shift_ns=0,
                clock_note="from 0: clocks are not aligned",
            )
            for rank in ranks
        ]
    clock_of_rank = _read_clocks(clocks)
    starts = []
    for trace, rank in zip(traces, ranks, strict=True):
        if rank not in clock_of_rank:
            raise UsageError(
                f"{clocks}: has no rank {rank}; export the ranks of that fleet"
            )
        offset_ns = round(clock_of_rank[rank].offset_us * NS_PER_US)
        starts.append(trace.base_ns - offset_ns)
    first_start = min(starts)
    return [
        TraceShift(
            label=f"rank {rank}",
            shift_ns=start - first_start,
            clock_note=f"clock ± {clock_of_rank[rank].error_us:.1f} µs",
        )
        for rank, start in zip(ranks, starts, strict=True)
    ]


def _ranks(traces: Sequence[Trace], names: Sequence[str]) -> list[int]:
    """Return the rank of each trace, as a fleet of them has it; the lowest of several."""
    hints = []
    for trace, name in zip(traces, names, strict=True):
        devices = np.unique(trace.device).tolist()
        hint = rank_hints(metadata=trace.metadata, url=name, devices=devices)
        hints.append(hint)
    return [ranks.first for ranks in assign_ranks(hints)]


def _read_clocks(path: Path) -> dict[int, _Clock]:
    """Return what a fleet found of each rank's clock."""
    try:
        table = pd.read_parquet(path)
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(
            f"{path}: is not a clocks.parquet of fleet ({error})"
        ) from None
    if not set(_CLOCK_COLUMNS) <= set(table.columns):
        raise UsageError(
            f"{path}: is not a clocks.parquet of fleet; it has no rank or offset_us"
        )
    known_rows = table.dropna(subset=["offset_us"])
    clocks = {}
    for rank, offset_us, error_us in known_rows[_CLOCK_COLUMNS].itertuples(
        index=False, name=None
    ):
        clocks[int(rank)] = _Clock(offset_us=float(offset_us), error_us=float(error_us))
    return clocks
