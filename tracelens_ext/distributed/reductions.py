"""Computes the tables that compare the times of the ranks, from the parts of all traces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tracelens_ext.distributed.storage import Markers, ResultStore
from tracelens_ext.distributed.table_rows import table_rows
from tracelens_ext.isolation import PartFailures
from tracelens_ext.lazy import pd
from tracelens_ext.text import ms_text


@dataclass(frozen=True)
class SpreadSource:
    """The columns of the parts from which a table of differences between ranks is computed."""

    folder: str  #: the table whose parts are read
    keys: tuple[str, ...]  #: the columns whose distinct values become rows
    value: str  #: the column with the times, ms
    per_device: bool = False  #: True to compare the GPUs of a rank one by one


#: Table → the columns from which it is computed.
SPREADS = {
    "finding_across_ranks": SpreadSource(
        folder="findings",
        keys=("finding",),
        value="attributed_ms",
    ),
    "timeline_across_ranks": SpreadSource(
        folder="timeline",
        keys=("type",),
        value="time ms",
        per_device=True,
    ),
    "category_across_ranks": SpreadSource(
        folder="categories",
        keys=("kernel_category",),
        value="total_time_ms",
        per_device=True,
    ),
    "op_across_ranks": SpreadSource(
        folder="ops",
        keys=("name",),
        value="total_direct_kernel_time_ms",
    ),
    "kernel_across_ranks": SpreadSource(
        folder="kernels",
        keys=("kernel_category", "kernel_name"),
        value="total_time_ms",
    ),
}
#: All reductions, in the order in which they are shown.
REDUCTIONS = (
    "finding_across_ranks",
    "ranks",
    "timeline_across_ranks",
    "category_across_ranks",
    "op_across_ranks",
    "kernel_across_ranks",
)
#: Parts are processed together until they have this many rows, which bounds the memory.
_ROWS_AT_ONCE = 100_000
#: How many ranks the column `top_ranks` names.
_TOP_RANKS = 5
#: Rows of the GPU timeline that become columns of the table `ranks`.
_TIMELINE_ROWS = [
    "total_time",
    "busy_time",
    "computation_time",
    "exposed_comm_time",
    "exposed_memcpy_time",
    "idle_time",
    "total_comm_time",
    "total_memcpy_time",
]
_RANK_KEYS = ["trace", "rank", "device"]
_SPREAD_COLUMNS = [
    "ranks",
    "mean_ms",
    "std_ms",
    "min_ms",
    "max_ms",
    "min_rank",
    "max_rank",
    "max_over_mean_percent",
    "top_ranks",
]


class Reductions(NamedTuple):
    """The tables that compare the ranks, and notes on them."""

    #: the tables by their names in `REDUCTIONS`, without those whose computation failed
    tables: dict[str, pd.DataFrame]
    notes: list[str]  #: remarks for the user, one sentence each


def reductions(store: ResultStore, done: Markers, failures: PartFailures) -> Reductions:
    """Return the tables that compare the ranks.

    Args:
        store: the folder with the parts.
        done: stem of each trace that was analyzed → its marker; at least one.
        failures: receives a message for each table that fails.
    """
    tables = {}
    notes = []
    for name in REDUCTIONS:
        with failures.isolate(f"The table {name}"):
            if name == "ranks":
                columns = _RANK_KEYS + ["type", "time ms"]
                tables[name] = _rank_timelines(
                    _parts(
                        store=store,
                        done=done,
                        folder="timeline",
                        columns=columns,
                    )
                )
            else:
                tables[name] = _spread_table(
                    store=store,
                    done=done,
                    source=SPREADS[name],
                )
    if "finding_across_ranks" in tables and len(done) > 1:
        notes = _notes_on_findings(tables["finding_across_ranks"])
    return Reductions(tables, notes)


def _notes_on_findings(finding_across_ranks: pd.DataFrame) -> list[str]:
    """Return a note that lists the findings of single ranks; empty if there are none."""
    is_of_one_rank = finding_across_ranks["ranks"] == 1
    texts = [
        f"rank {row.max_rank} has {row.finding} ({ms_text(row.max_ms)})"
        for row in table_rows(finding_across_ranks[is_of_one_rank])
    ]
    if not texts:
        return []
    return [f"Left out because only one rank has it: {'; '.join(texts)}."]


def _spread_table(
    store: ResultStore, done: Markers, source: SpreadSource
) -> pd.DataFrame:
    """Return the table of differences between ranks that `source` describes."""
    columns = ["rank"] + list(source.keys) + [source.value]
    if source.per_device:
        columns.append("device")
    parts = _parts(
        store=store,
        done=done,
        folder=source.folder,
        columns=columns,
    )
    return spread(
        parts=parts,
        keys=source.keys,
        value=source.value,
        per_device=source.per_device,
    )


def _parts(
    store: ResultStore, done: Markers, folder: str, columns: Sequence[str]
) -> Iterator[pd.DataFrame]:
    """Yield the parts of one table, about 100,000 rows at a time.

    The additional column `part` contains the index of the trace in `done`.
    """
    import pyarrow as pa

    batch: list[Any] = []
    batch_rows = 0
    for trace_index, (stem, about) in enumerate(done.items()):
        if folder not in about["rows"]:
            continue  # the computation of this table failed for the trace
        table = store.get_table(f"{folder}/{stem}", columns)
        part_column = pa.array([trace_index] * len(table), type=pa.int64())
        batch.append(table.append_column("part", part_column))
        batch_rows += len(table)
        if batch_rows > _ROWS_AT_ONCE:
            yield pa.concat_tables(batch).to_pandas()
            batch = []
            batch_rows = 0
    if batch:
        yield pa.concat_tables(batch).to_pandas()


def _rank_timelines(timelines: Iterator[pd.DataFrame]) -> pd.DataFrame:
    """Return the table `ranks`: the timeline of each rank and GPU, longest computation first."""
    parts = list(timelines)
    if not parts:
        types = {
            "trace": "str",
            "rank": "int64",
            "device": "int64",
            "type": "str",
            "time ms": "float64",
        }
        parts = [pd.DataFrame(columns=list(types)).astype(types)]
    rows = pd.concat(parts, ignore_index=True)
    by_type = rows.pivot_table(
        index=_RANK_KEYS, columns="type", values="time ms", aggfunc="first"
    )
    by_type = (
        by_type.reindex(columns=_TIMELINE_ROWS).astype("float64").add_suffix("_ms")
    )
    ranks = by_type.rename_axis(columns=None).reset_index()
    total = ranks["total_time_ms"]
    computation = ranks["computation_time_ms"]
    mean_computation = computation.mean()
    ranks["busy_percent"] = 100.0 * ranks["busy_time_ms"] / total.where(total > 0)
    ranks["computation_over_mean_percent"] = 0.0
    if mean_computation:
        difference = computation - mean_computation
        ranks["computation_over_mean_percent"] = 100.0 * difference / mean_computation
    order = ["computation_time_ms", "rank", "device"]
    return ranks.sort_values(order, ascending=[False, True, True], ignore_index=True)


def spread(
    parts: Iterable[pd.DataFrame],
    keys: Sequence[str],
    value: str,
    *,
    per_device: bool = True,
) -> pd.DataFrame:
    """Return how a time differs between ranks, a row for each key, longest mean first.

    Ranks without a time for a key are not part of its statistics. If several ranks have the same
    time, the lowest rank is named.

    Args:
        parts: tables with `part` (the index of the trace), `rank`, `keys` and `value`, and with
            `device` if GPUs are compared one by one.
        keys: the columns whose distinct values become rows.
        value: the column with the times, ms.
        per_device: True to compare the GPUs of a rank one by one; False to add them up.
    """
    times, key_values = _times_by_key(
        parts=parts,
        keys=keys,
        value=value,
        per_device=per_device,
    )
    longest_first = times.sort_values(
        ["ms", "rank"], ascending=[False, True], kind="stable"
    )
    table = _statistics_of_keys(times, longest_first)
    table["top_ranks"] = _top_ranks(longest_first)
    table = table.sort_values("mean_ms", ascending=False, kind="stable")
    rows = key_values.loc[table.index]
    return rows.join(table[_SPREAD_COLUMNS]).reset_index(drop=True)


def _statistics_of_keys(
    times: pd.DataFrame, longest_first: pd.DataFrame
) -> pd.DataFrame:
    """Return statistics of the times of each key: all of `_SPREAD_COLUMNS` but `top_ranks`.

    Args:
        times: `key`, `rank` and `ms`.
        longest_first: the same rows, the longest time first; of equal times, the lowest rank first.
    """
    shortest_first = times.sort_values(["ms", "rank"], kind="stable")
    times_of_key = shortest_first.groupby("key", sort=False)
    table = pd.DataFrame(
        {
            "ranks": times_of_key["ms"].size(),
            "mean_ms": times_of_key["ms"].mean(),
            "min_ms": times_of_key["ms"].min(),
            "max_ms": times_of_key["ms"].max(),
        }
    )
    sum_of_squares = times_of_key["ms"].var(ddof=0) * table["ranks"]
    table["min_rank"] = times_of_key["rank"].first()
    table["max_rank"] = longest_first.groupby("key", sort=False)["rank"].first()
    mean = table["mean_ms"]
    # The mean of equal times may differ from them in the last digit, which must not become a
    # negative difference.
    over_mean = (table["max_ms"] - mean).clip(lower=0.0)
    table["max_over_mean_percent"] = (100.0 * over_mean / mean).where(mean > 0)
    # The standard deviation of a sample; NaN for a single rank.
    degrees_of_freedom = table["ranks"] - 1
    variance = sum_of_squares / degrees_of_freedom.where(degrees_of_freedom > 0)
    table["std_ms"] = np.sqrt(variance)
    return table


def _top_ranks(longest_first: pd.DataFrame) -> pd.Series:
    """Return the ranks with the longest times of each key as a text, such as `3 (0.250)`."""
    top = longest_first.groupby("key", sort=False).head(_TOP_RANKS)
    texts = [
        f"{rank} ({ms:.3f})" for rank, ms in zip(top["rank"], top["ms"], strict=True)
    ]
    return top.assign(text=texts).groupby("key")["text"].agg(", ".join)


class _KeyedTimes(NamedTuple):
    """The times of ranks, with a number for each distinct key."""

    times: pd.DataFrame  #: `rank`, `key` (its number) and `ms`
    key_values: pd.DataFrame  #: the key columns; the index is the number of the key


def _times_by_key(
    parts: Iterable[pd.DataFrame], keys: Sequence[str], value: str, *, per_device: bool
) -> _KeyedTimes:
    """Add up the times of each rank and key, one part after the other to bound the memory."""
    key_columns = list(keys)
    columns = key_columns + ["part", "rank"]
    if per_device:
        columns.append("device")
    number_of_key: dict[tuple[object, ...], int] = {}
    types = {"rank": "int64", "ms": "float64", "key": "int64"}
    no_times = pd.DataFrame(columns=list(types)).astype(types)
    times_of_parts = []
    for part in parts:
        sums = part.groupby(columns, sort=False, dropna=False)[value].sum()
        times = sums.rename("ms").reset_index()
        # Keys are numbered within the part first, and these numbers are then translated to
        # numbers that are valid for all parts.
        groups = times.groupby(key_columns, sort=False, dropna=False)
        number_in_part = groups.ngroup().to_numpy()
        keys_of_part = times[key_columns].drop_duplicates()
        number_in_all = [
            number_of_key.setdefault(key, len(number_of_key))
            for key in keys_of_part.itertuples(index=False, name=None)
        ]
        key_of_time = np.array(number_in_all, dtype=np.int64)[number_in_part]
        times_of_parts.append(times[["rank", "ms"]].assign(key=key_of_time))
    key_values = pd.DataFrame(list(number_of_key), columns=key_columns)
    all_times = pd.concat(times_of_parts or [no_times], ignore_index=True)
    return _KeyedTimes(all_times, key_values)
