"""The reductions: what the parts of all ranks say together. Made anew on every run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.text import ms_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tracelens_ext.fleet.store import ResultStore

#: Reduction → the folder of parts, what makes a row, its time, and whether each GPU counts.
_SPREADS = {
    "timeline_spread": ("timeline", ("type",), "time ms", True),
    "category_spread": ("categories", ("kernel_category",), "total_time_ms", True),
    "op_spread": ("ops", ("name",), "total_direct_kernel_time_ms", False),
    "finding_spread": ("findings", ("finding",), "claimed_ms", False),
    "kernel_spread": ("kernels", ("kernel_category", "kernel_name"), "total_time_ms", False),
}
#: All reductions, in the order in which they are shown.
REDUCTIONS = (
    *("finding_spread", "ranks", "timeline_spread", "category_spread", "op_spread"),
    "kernel_spread",
)
_ROWS_TOGETHER = 100_000
#: Rows of the timeline that are columns of `ranks`.
_TIMES = (
    *("total_time", "busy_time", "computation_time", "exposed_comm_time", "exposed_memcpy_time"),
    *("idle_time", "total_comm_time", "total_memcpy_time"),
)


def reductions(
    store: ResultStore, done: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """The tables over all ranks by their names in `REDUCTIONS`, and notes."""
    tables: dict[str, pd.DataFrame] = {}
    for name, (folder, keys, value, per_device) in _SPREADS.items():
        columns = ["rank", *(["device"] if per_device else []), *keys, value]
        tables[name] = spread(
            _parts(store, done, folder, columns), keys, value, per_device=per_device
        )
    columns = ["trace", "rank", "device", "type", "time ms"]
    tables["ranks"] = _ranks(_parts(store, done, "timeline", columns))
    notes = _alone(tables["finding_spread"], len(done))
    return {name: tables[name] for name in REDUCTIONS}, notes


def _alone(spreads: pd.DataFrame, traces: int) -> list[str]:
    """Say which findings a single rank has, of several."""
    alone = spreads[spreads["ranks"] == 1] if traces > 1 else spreads[:0]
    told = [
        f"rank {rank} has {finding} ({ms_text(ms)})"
        for finding, rank, ms in zip(
            alone["finding"], alone["max_rank"], alone["max_ms"], strict=True
        )
    ]
    return [f"What no other rank has: {'; '.join(told)}."] if told else []


def _parts(
    store: ResultStore, done: Mapping[str, Mapping[str, Any]], folder: str, columns: Sequence[str]
) -> Iterator[pd.DataFrame]:
    """The parts of one table, some together, each with a number of its own in `part`."""
    import pyarrow as pa

    together: list[Any] = []
    for number, stem in enumerate(done):
        table = store.get_table(f"{folder}/{stem}", columns)
        numbers = pa.array([number] * len(table), type=pa.int64())
        together.append(table.append_column("part", numbers))
        if sum(map(len, together)) > _ROWS_TOGETHER:
            yield pa.concat_tables(together).to_pandas()
            together = []
    if together:
        yield pa.concat_tables(together).to_pandas()


def _ranks(timelines: Iterator[pd.DataFrame]) -> pd.DataFrame:
    """A row a rank and GPU: its timeline; the longest computation first."""
    frame = pd.concat(timelines, ignore_index=True)
    wide = frame.pivot_table(
        index=["trace", "rank", "device"], columns="type", values="time ms", aggfunc="first"
    )
    wide = wide.reindex(columns=list(_TIMES))
    result = wide.index.to_frame(index=False)
    for name in _TIMES:
        result[f"{name}_ms"] = wide[name].to_numpy(dtype="float64")
    total, computing = result["total_time_ms"], result["computation_time_ms"]
    result["busy (%)"] = 100.0 * result["busy_time_ms"] / total.where(total > 0)
    mean = computing.mean()
    result["computation over mean (%)"] = 100.0 * (computing - mean) / mean if mean else 0.0
    by = ["computation_time_ms", "rank", "device"]
    return result.sort_values(by, ascending=[False, True, True], ignore_index=True)


TOP = 5


def spread(
    parts: Iterable[pd.DataFrame], keys: Sequence[str], value: str, *, per_device: bool = True
) -> pd.DataFrame:
    """How a time (ms) differs between ranks, the longest mean first.

    Of each rank and key three numbers are held, and each distinct key once. Parts have `part` (a
    number for each trace), `rank`, `keys` and `value`, and `device` where each GPU of a rank counts
    by itself. Of equal ranks the lowest is named; ranks that lack a key do not count.
    """
    names, times = _coded(parts, list(keys), value, per_device=per_device)
    shortest = times.sort_values(["ms", "rank"], kind="stable")
    longest = times.sort_values(["ms", "rank"], ascending=[False, True], kind="stable")
    grouped, by_longest = (each.groupby("key", sort=False) for each in (shortest, longest))
    found = grouped.agg(
        ranks=("ms", "size"),
        mean_ms=("ms", "mean"),
        min_ms=("ms", "min"),
        max_ms=("ms", "max"),
        min_rank=("rank", "first"),
    )
    found["squares"] = grouped["ms"].var(ddof=0) * found["ranks"]
    found["max_rank"] = by_longest["rank"].first()
    top = by_longest.head(TOP)
    shown = [f"{rank} ({ms:.3f})" for rank, ms in zip(top["rank"], top["ms"], strict=True)]
    found["top_ranks"] = top.assign(shown=shown).groupby("key")["shown"].agg(", ".join)
    found = found.sort_values("mean_ms", ascending=False, kind="stable")
    mean, more = found["mean_ms"], found["max_ms"] - found["mean_ms"]
    # Of equal times the mean is not always the same to the last digit.
    found["max over mean (%)"] = (100.0 * more.clip(lower=0.0) / mean).where(mean > 0)
    others = found["ranks"] - 1
    found["std_ms"] = np.sqrt(found["squares"] / others.where(others > 0))
    columns = ["ranks", "mean_ms", "std_ms", "min_ms", "max_ms", "min_rank", "max_rank"]
    columns += ["max over mean (%)", "top_ranks"]
    return names.loc[found.index].join(found[columns]).reset_index(drop=True)


def _coded(
    parts: Iterable[pd.DataFrame], keys: list[str], value: str, *, per_device: bool
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The distinct keys, and `ms` by `key` (the number of its row in the former) and `rank`."""
    numbers: dict[tuple[object, ...], int] = {}
    times = []
    for part in parts:
        by = [*keys, "part", "rank", *(["device"] if per_device else [])]
        sums = part.groupby(by, sort=False, dropna=False)[value].sum().rename("ms").reset_index()
        here = sums.groupby(keys, sort=False, dropna=False).ngroup().to_numpy()
        distinct = sums[keys].drop_duplicates().itertuples(index=False, name=None)
        codes = [numbers.setdefault(key, len(numbers)) for key in distinct]
        code = np.array(codes, dtype=np.int64)[here]
        times.append(pd.DataFrame({"key": code, "rank": sums["rank"], "ms": sums["ms"]}))
    names = pd.DataFrame(list(numbers), columns=keys)
    return names, pd.concat(times, ignore_index=True)
