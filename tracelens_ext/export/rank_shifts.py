"""The labels of several ranks in one export, and how to shift their times to a common axis."""

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
    """The position of a trace on the time axis of an export."""

    label: str  #: the rank of the trace, such as `rank 3`; empty if there is only one trace
    shift_ns: int  #: the time that is added to all times of the trace
    clock_note: str  #: how exact the shift is, in words; empty for no note


class _Clock(NamedTuple):
    """The clock of a rank, as `fleet` measured it."""

    offset_us: float  #: how much the clock is ahead of the common time
    error_us: float  #: the largest error of the offset


def shifts(
    traces: Sequence[Trace], names: Sequence[str], clocks: Path | None
) -> list[TraceShift]:
    """Return the label and the shift of each trace.

    Args:
        traces: the traces, at least one.
        names: the names of their files.
        clocks: the `clocks.parquet` in the results of `fleet`; None to let each trace begin at 0.

    Raises:
        UsageError: the file of clocks cannot be read, or lacks the clock of a rank.
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
    """Return the rank of each trace, as `fleet` numbers them; the lowest if it has several."""
    hints = []
    for trace, name in zip(traces, names, strict=True):
        devices = np.unique(trace.device).tolist()
        hint = rank_hints(metadata=trace.metadata, url=name, devices=devices)
        hints.append(hint)
    return [ranks.first for ranks in assign_ranks(hints)]


def _read_clocks(path: Path) -> dict[int, _Clock]:
    """Read the clock of each rank from a `clocks.parquet` file."""
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
