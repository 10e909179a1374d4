"""How times differ between ranks: tables over the parts of all traces, made anew on every run."""

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
    """What a table of differences between ranks is made of."""

    folder: str  #: of the parts
    keys: tuple[str, ...]  #: the columns that make a row
    value: str  #: the column of times, ms
    per_device: bool = False  #: each GPU of a rank counts by itself


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
#: Rows of parts that are read before they are added up.
_ROWS_AT_ONCE = 100_000
#: Ranks that `top_ranks` names.
_TOP_RANKS = 5
#: Rows of the timeline that are columns of `ranks`.
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
    """The tables over all ranks, and what to say about them."""

    #: by their names in `REDUCTIONS`, without those that fail
    tables: dict[str, pd.DataFrame]
    notes: list[str]


def reductions(store: ResultStore, done: Markers, failures: PartFailures) -> Reductions:
    """Return the tables over all ranks.

    Args:
        store: the folder of the parts.
        done: the traces whose parts count, at least one.
        failures: takes the tables that fail.
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
    """Return a note on the findings that a single rank has, if there are any."""
    of_one_rank = finding_across_ranks[finding_across_ranks["ranks"] == 1]
    texts = [
        f"rank {row.max_rank} has {row.finding} ({ms_text(row.max_ms)})"
        for row in table_rows(of_one_rank)
    ]
    if not texts:
        return []
    return [f"Left out because only one rank has it: {'; '.join(texts)}."]


def _spread_table(
    store: ResultStore, done: Markers, source: SpreadSource
) -> pd.DataFrame:
    """Return one of the tables of differences between ranks."""
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
    """Yield the parts of one table, several at once, with a number for each trace in `part`."""
    import pyarrow as pa

    waiting: list[Any] = []
    waiting_rows = 0
    for number, (stem, about) in enumerate(done.items()):
        if folder not in about["rows"]:
            continue  # this table of the trace failed
        table = store.get_table(f"{folder}/{stem}", columns)
        numbers = pa.array([number] * len(table), type=pa.int64())
        waiting.append(table.append_column("part", numbers))
        waiting_rows += len(table)
        if waiting_rows > _ROWS_AT_ONCE:
            yield pa.concat_tables(waiting).to_pandas()
            waiting = []
            waiting_rows = 0
    if waiting:
        yield pa.concat_tables(waiting).to_pandas()


def _rank_timelines(timelines: Iterator[pd.DataFrame]) -> pd.DataFrame:
    """Return a row for each rank and GPU: its timeline; the longest computation first."""
    parts = list(timelines)
    if not parts:
        empty = {"trace": "str", "rank": "int64", "device": "int64", "type": "str"}
        parts = [
            pd.DataFrame(columns=list(empty) + ["time ms"]).astype(
                {**empty, "time ms": "float64"}
            )
        ]
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
    """Return how a time differs between ranks, the longest mean first.

    Ranks that lack a row do not count. Of equally long times the lowest rank is named.

    Args:
        parts: tables with `part` (a number for each trace), `rank`, `keys` and `value`, and
            `device` if GPUs count by themselves.
        keys: the columns that make a row.
        value: the column of times, ms.
        per_device: each GPU of a rank counts by itself.
    """
    times, key_values = _times_by_key(
        parts=parts,
        keys=keys,
        value=value,
        per_device=per_device,
    )
    shortest_first = times.sort_values(["ms", "rank"], kind="stable").groupby(
        "key", sort=False
    )
    longest_first = times.sort_values(
        ["ms", "rank"], ascending=[False, True], kind="stable"
    )
    longest_first_of_key = longest_first.groupby("key", sort=False)
    table = pd.DataFrame(
        {
            "ranks": shortest_first["ms"].size(),
            "mean_ms": shortest_first["ms"].mean(),
            "min_ms": shortest_first["ms"].min(),
            "max_ms": shortest_first["ms"].max(),
        }
    )
    sum_of_squares = shortest_first["ms"].var(ddof=0) * table["ranks"]
    table["min_rank"] = shortest_first["rank"].first()
    table["max_rank"] = longest_first_of_key["rank"].first()
    top = longest_first_of_key.head(_TOP_RANKS)
    texts = [
        f"{rank} ({ms:.3f})" for rank, ms in zip(top["rank"], top["ms"], strict=True)
    ]
    table["top_ranks"] = top.assign(text=texts).groupby("key")["text"].agg(", ".join)
    mean = table["mean_ms"]
    # Of equal times the mean is not always the same to the last digit.
    over_mean = (table["max_ms"] - mean).clip(lower=0.0)
    table["max_over_mean_percent"] = (100.0 * over_mean / mean).where(mean > 0)
    other_ranks = table["ranks"] - 1
    table["std_ms"] = np.sqrt(sum_of_squares / other_ranks.where(other_ranks > 0))
    table = table.sort_values("mean_ms", ascending=False, kind="stable")
    rows = key_values.loc[table.index]
    return rows.join(table[_SPREAD_COLUMNS]).reset_index(drop=True)


class _KeyedTimes(NamedTuple):
    """Times by rank and by a number for each distinct key."""

    times: pd.DataFrame  #: `rank`, `key`, `ms`
    key_values: pd.DataFrame  #: the columns of each key; its index is the number


def _times_by_key(
    parts: Iterable[pd.DataFrame], keys: Sequence[str], value: str, *, per_device: bool
) -> _KeyedTimes:
    """Add up the times of each rank; parts are read one after the other, as they may be many."""
    key_columns = list(keys)
    columns = key_columns + ["part", "rank"]
    if per_device:
        columns.append("device")
    number_of_key: dict[tuple[object, ...], int] = {}
    types = {"rank": "int64", "ms": "float64", "key": "int64"}
    pieces = [pd.DataFrame(columns=list(types)).astype(types)]
    for part in parts:
        sums = part.groupby(columns, sort=False, dropna=False)[value].sum()
        times = sums.rename("ms").reset_index()
        index_in_part = (
            times.groupby(key_columns, sort=False, dropna=False).ngroup().to_numpy()
        )
        distinct = times[key_columns].drop_duplicates()
        numbers = [
            number_of_key.setdefault(key, len(number_of_key))
            for key in distinct.itertuples(index=False, name=None)
        ]
        key_of_time = np.array(numbers, dtype=np.int64)[index_in_part]
        pieces.append(times[["rank", "ms"]].assign(key=key_of_time))
    key_values = pd.DataFrame(list(number_of_key), columns=key_columns)
    with_rows = pieces[1:] or pieces
    return _KeyedTimes(pd.concat(with_rows, ignore_index=True), key_values)
