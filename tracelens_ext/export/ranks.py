"""Several ranks on one axis: by the clocks that `fleet` found, else each from 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens_ext.errors import UsageError
from tracelens_ext.fleet.ranks import rank_of
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracelens_ext.trace import Trace

_COLUMNS = {"rank", "offset_us", "error_us"}


def shifts(
    traces: Sequence[Trace], names: Sequence[str], clocks: Path | None
) -> list[tuple[str, int, str]]:
    """What to call each trace, what to add to its times in ns, and how well that is known.

    Args:
        traces: of one rank each.
        names: of their files.
        clocks: the table `clocks` of a fleet; None where clocks are not known.

    Raises:
        UsageError: the file has no such table, or lacks a rank.
    """
    ranks = [
        rank_of(trace.metadata, name, at)[0]
        for at, (trace, name) in enumerate(zip(traces, names, strict=True))
    ]
    if clocks is None:
        alone = len(traces) == 1
        note = "" if alone else "from 0: clocks not compared"
        return [("" if alone else f"rank {rank}", 0, note) for rank in ranks]
    known = _read(clocks)
    if missing := [rank for rank in ranks if rank not in known]:
        raise UsageError(f"{clocks}: has no rank {missing[0]}; export the ranks of that fleet")
    starts = [
        trace.base_ns - round(known[rank][0] * 1000)
        for trace, rank in zip(traces, ranks, strict=True)
    ]
    return [
        (f"rank {rank}", start - min(starts), f"clock ± {known[rank][1]:.1f} µs")
        for rank, start in zip(ranks, starts, strict=True)
    ]


def _read(path: Path) -> dict[int, tuple[float, float]]:
    """Rank → offset and error, µs."""
    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(f"{path}: is no clocks.parquet of fleet ({error})") from None
    if not set(frame.columns) >= _COLUMNS:
        raise UsageError(f"{path}: is no clocks.parquet of fleet; it lacks rank or offset_us")
    frame = frame.dropna(subset=["offset_us"])
    values = zip(frame["rank"], frame["offset_us"], frame["error_us"], strict=True)
    return {int(rank): (float(offset), float(error)) for rank, offset, error in values}
