"""Combines the process groups of a job: tables about its calls, waits, clocks and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from tracelens_ext.distributed.calls import CallsOfGroup
from tracelens_ext.distributed.clocks import fit_clocks
from tracelens_ext.distributed.matching import PAIR, MatchedBy
from tracelens_ext.distributed.process_groups import numbers_in
from tracelens_ext.distributed.rank_activity import OWN_ACTIVITIES
from tracelens_ext.distributed.verdicts import JobData, find_verdicts
from tracelens_ext.distributed.wait_root_causes import (
    find_root_causes,
    without_root_causes,
)
from tracelens_ext.isolation import PartFailures
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US, Int64Array

#: The columns of kernels that are needed in addition to those of the ranks' activities.
_KERNEL_COLUMNS = [
    "rank",
    "device",
    "call_in_group",
    "start",
    "dur",
    "end",
    "base",
    "signature",
    "has_wait",
    "matched_by",
    "Process Group Name",
    "iteration",
    "src",
    "dst",
    "In msg nelems",
    "Out msg nelems",
]
#: Internal name of a column → its name in `collective_calls`.
_RENAMED_CALL_COLUMNS = {
    "algorithm": "algorithm_bandwidth_gb_s",
    "bus": "bus_bandwidth_gb_s",
}
#: Internal name of a time in ns → name of the column with the time in µs.
_MICROSECOND_COLUMNS = {
    "transfer": "transfer_us",
    "wait": "wait_us",
    "start": "start_us",
    "dur": "duration_us",
}
#: The columns of `collective_calls`.
CALL_COLUMNS = [
    "call",
    "collective",
    "process_group",
    "description",
    "ranks",
    "group_size",
    "iteration",
    "sequence",
    "matched_by",
    "state",
    "missing_ranks",
    "dtype",
    "bytes",
    "transfer_us",
    "wait_us",
    "last_rank",
    "algorithm_bandwidth_gb_s",
    "bus_bandwidth_gb_s",
    "span",
    "reason",
]
#: The columns of `collective_waits`.
WAIT_COLUMNS = [
    "call",
    "rank",
    "start_us",
    "duration_us",
    "wait_us",
    "cause",
    "caused_by_call",
    "caused_by_rank",
]
#: Bits for each rank in the number of a rank set, which consists of a group and two ranks.
_RANK_BITS = 21


class CallSpan(StrEnum):
    """Whether the ranks of a call are in the same node."""

    UNKNOWN = ""
    NODE = "node"  #: all ranks are in one node
    ACROSS = "across"  #: the ranks are in several nodes


@dataclass(frozen=True)
class JobSettings:
    """Properties of the whole job."""

    #: the number of ranks of the job; None if no trace records it
    world_size: int | None
    failed_ranks: Sequence[int] = ()  #: ranks whose traces could not be read
    ranks_per_node: int | None = None  #: None to tell the nodes by the devices
    #: the stage of each rank of a pipeline; empty without one
    stage_of_rank: Mapping[int, int] = field(default_factory=dict)


class _JobCalls(NamedTuple):
    """The calls of all process groups, as in `CallsOfGroup`."""

    calls: pd.DataFrame
    kernels: pd.DataFrame
    stuck: pd.DataFrame


def job_tables(
    groups: Sequence[CallsOfGroup],
    iterations: pd.DataFrame,
    communication: Sequence[Mapping[str, Any]],
    settings: JobSettings,
    failures: PartFailures,
) -> dict[str, pd.DataFrame]:
    """Return the tables about all ranks, without those whose computation fails.

    Args:
        groups: the calls of each process group, at least one group.
        iterations: `rank_iterations` of all ranks.
        communication: the `communication` in the marker of each trace.
        settings: properties of the job.
        failures: receives a message for each table that fails.
    """
    calls, kernels, stuck = _join_groups(groups)
    all_ranks = {rank for about in communication for rank in about["ranks"]}
    ranks = np.array(sorted(all_ranks), dtype=np.int64)
    tables: dict[str, pd.DataFrame] = {}
    offset_us = pd.Series(0.0, index=ranks)
    with failures.isolate("The table clocks"):
        clocks = _fit_clocks_of_ranks(kernels, ranks)
        offset_us = clocks.offset_us
        tables["clocks"] = clocks.table
    kernels = _with_waits(kernels, calls)
    root_causes = without_root_causes(kernels)
    with failures.isolate("The table wait_root_causes"):
        last_rank = calls["last_rank"].fillna(NONE).to_numpy(np.int64)
        root_causes = find_root_causes(kernels, last_rank)
        tables["wait_root_causes"] = root_causes.table
    kernels = root_causes.kernels
    with failures.isolate("The table collective_waits"):
        tables["collective_waits"] = _wait_table(kernels)
    _put_on_one_clock(
        kernels=kernels,
        stuck=stuck,
        offset=(offset_us * NS_PER_US).round(),
    )
    calls = calls.join(kernels.groupby("call")[["start", "end"]].max(), on="call")
    calls["span"] = _span(
        calls=calls,
        kernels=kernels,
        ranks_per_node=settings.ranks_per_node,
    )
    with failures.isolate("The table verdicts"):
        job = JobData(
            calls=calls,
            kernels=kernels,
            stuck=stuck,
            root_causes=root_causes.table,
            iterations=iterations,
            place_of_rank=_places(
                calls=calls,
                communication=communication,
                stage_of_rank=settings.stage_of_rank,
            ),
            world_size=settings.world_size,
            failed_ranks=settings.failed_ranks,
        )
        tables["verdicts"] = find_verdicts(job)
    with failures.isolate("The table collective_calls"):
        tables["collective_calls"] = _call_table(calls)
    with failures.isolate("The table collective_groups"):
        tables["collective_groups"] = _group_table(calls)
    return tables


class _ClocksOfRanks(NamedTuple):
    """The clocks of the ranks of a job."""

    table: pd.DataFrame  #: the table `clocks`
    offset_us: pd.Series  #: the offset of each clock, by rank


def _fit_clocks_of_ranks(kernels: pd.DataFrame, ranks: Int64Array) -> _ClocksOfRanks:
    """Return the clocks of the ranks, from the kernels of calls that have a wait."""
    complete = kernels[kernels["has_wait"]]
    table = fit_clocks(complete, ranks)
    offset_us = table.set_index("rank")["offset_us"]
    # Calls without a group are matched less reliably. The offsets may rest on them, but the
    # table shows only offsets that rest on calls of known groups.
    is_named = complete["matched_by"] != MatchedBy.UNNAMED
    if not is_named.all():
        table = fit_clocks(complete[is_named], ranks)
    return _ClocksOfRanks(table=table, offset_us=offset_us)


def _wait_table(kernels: pd.DataFrame) -> pd.DataFrame:
    """Return the table `collective_waits`, ordered by call and rank."""
    ordered = kernels.sort_values(["call", "rank"], kind="stable", ignore_index=True)
    return _in_microseconds(ordered)[WAIT_COLUMNS]


def _with_waits(kernels: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """Return the kernels with the wait time of each, ns; NaN if it is not known."""
    transfer = calls["transfer"].to_numpy()[kernels["call"]]
    wait = (kernels["dur"] - transfer).where(kernels["has_wait"])
    return kernels.assign(wait=wait)


def _put_on_one_clock(
    kernels: pd.DataFrame, stuck: pd.DataFrame, offset: pd.Series
) -> None:
    """Convert times in place from each rank's own clock to the common clock.

    Args:
        kernels: `start` counts from the first event of the trace, `end` from the clock's zero.
        stuck: `launch` counts from the first event of the trace.
        offset: rank → how far its clock is ahead of the common clock, ns.
    """
    kernel_offset = kernels["rank"].map(offset)
    kernels["start"] += kernels["base"]
    kernels["start"] -= kernel_offset
    kernels["end"] -= kernel_offset
    stuck["launch"] += stuck["base"] - stuck["rank"].map(offset)


def _in_microseconds(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with additional columns of its times in µs."""
    columns = {
        microseconds: frame[name] / NS_PER_US
        for name, microseconds in _MICROSECOND_COLUMNS.items()
        if name in frame
    }
    return frame.assign(**columns)


def _join_groups(groups: Sequence[CallsOfGroup]) -> _JobCalls:
    """Join the calls of all groups, and number them.

    The new column `call` numbers the calls of the job. `rank_set` is a number that calls of the
    same group and the same ranks share.
    """
    activities = [
        f"{name}_{suffix}" for suffix in ("start", "end") for name in OWN_ACTIVITIES
    ]
    kernel_columns = _KERNEL_COLUMNS + activities
    calls = _joined([group.calls for group in groups])
    kernels = _joined([group.kernels[kernel_columns] for group in groups])
    stuck = _joined([group.stuck for group in groups])
    calls["call"] = calls.index
    number_of_call = calls[["group", "call_in_group", "call"]]
    kernels = kernels.merge(number_of_call, "left", ["group", "call_in_group"])
    amounts = kernels[["In msg nelems", "Out msg nelems"]]
    kernels["elements"] = amounts.max(axis=1)
    for frame in (calls, kernels, stuck):
        frame["rank_set"] = _numbers_of_sets(frame)
    kernels = kernels.rename(columns={"Process Group Name": "process_group"})
    return _JobCalls(
        calls=calls,
        kernels=kernels,
        stuck=stuck,
    )


def _numbers_of_sets(frame: pd.DataFrame) -> pd.Series:
    """Return a number for each set of ranks: a whole group, or a source and a destination in it."""
    group = frame["group"].astype("int64")
    source = frame["src"].astype("int64") + 1
    destination = frame["dst"].astype("int64") + 1
    most_ranks = 2**_RANK_BITS
    number: pd.Series = group * most_ranks
    number += source
    number *= most_ranks
    return number + destination


def _joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all groups with a column `group`, the index of the group."""
    joined = pd.concat(frames, keys=range(len(frames)), names=["group"])
    return joined.reset_index("group").reset_index(drop=True)


def _span(
    calls: pd.DataFrame, kernels: pd.DataFrame, ranks_per_node: int | None
) -> pd.Series:
    """Return the `CallSpan` of each call.

    Args:
        calls: `ranks` of each call.
        kernels: `rank` and `device` of each kernel.
        ranks_per_node: the number of ranks of each node; None to tell it by the devices.
    """
    if ranks_per_node is None:
        ranks_per_node = _ranks_per_node(kernels)
    if ranks_per_node is None:
        return pd.Series(CallSpan.UNKNOWN.value, calls.index, "str")
    span_of_ranks = {}
    for ranks_text in calls["ranks"].unique():
        nodes = {rank // ranks_per_node for rank in numbers_in(ranks_text)}
        if not nodes:
            span_of_ranks[ranks_text] = CallSpan.UNKNOWN.value
        elif len(nodes) == 1:
            span_of_ranks[ranks_text] = CallSpan.NODE.value
        else:
            span_of_ranks[ranks_text] = CallSpan.ACROSS.value
    return calls["ranks"].map(span_of_ranks)


def _ranks_per_node(kernels: pd.DataFrame) -> int | None:
    """Return how many ranks a node has by the devices of the ranks; None if that cannot be told.

    If the ranks 0 to 3 use the devices 0 to 3 and the ranks 4 to 7 again use the devices 0 to 3,
    then a node has four ranks. If all ranks use device 0, each of them may see one device only.
    """
    device_of_rank = kernels.groupby("rank")["device"].first()
    most_devices = int(device_of_rank.max()) + 1
    if most_devices <= 1:
        return None
    is_counted_by_node = (device_of_rank.index % most_devices == device_of_rank).all()
    return most_devices if is_counted_by_node else None


class _Place(NamedTuple):
    """What ranks that do the same work have in common."""

    stage: int | None  #: the stage of a pipeline; None if the job has none
    #: the index of the rank in each group for sends and receives, and the size of the group
    positions: tuple[tuple[int, int], ...]


def _places(
    calls: pd.DataFrame,
    communication: Sequence[Mapping[str, Any]],
    stage_of_rank: Mapping[int, int],
) -> dict[int, _Place]:
    """Return the place of each rank.

    Ranks with equal places do the same work and can be compared. Ranks with different places may
    be different stages of a pipeline, which wait for one another by design.
    """
    keys_of_pairs = set(calls.loc[calls["collective"] == PAIR, "key"])
    keys_of_calls = set(calls["key"])
    has_unnamed = bool((calls["matched_by"] == MatchedBy.UNNAMED).any())
    place_of_rank: dict[int, _Place] = {}
    for about in communication:
        positions = []
        for key, (index, size, is_whole_job) in about["positions"].items():
            may_be_unnamed = (
                has_unnamed and key not in keys_of_calls and not is_whole_job
            )
            if key in keys_of_pairs or may_be_unnamed:
                positions.append((index, size))
        positions.sort()
        for rank in about["ranks"]:
            place_of_rank[rank] = _Place(
                stage=stage_of_rank.get(rank),
                positions=tuple(positions),
            )
    return place_of_rank


def _call_table(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the table `collective_calls`, ordered by start."""
    ordered = calls.sort_values(["start", "call"], kind="stable", ignore_index=True)
    table = _in_microseconds(ordered).rename(columns=_RENAMED_CALL_COLUMNS)
    return table[CALL_COLUMNS].astype({"group_size": "Int64", "bytes": "Int64"})


def _group_table(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the table `collective_groups`: transfer and wait by process group and collective."""
    calls_with_times = calls[calls["transfer"].notna()]
    groups = calls_with_times.groupby(["key", "collective"], sort=True)
    transfer_ms = groups["transfer"].sum() / NS_PER_MS
    wait_ms = groups["wait"].sum() / NS_PER_MS
    bound = np.select(
        [
            transfer_ms >= 2 * wait_ms,
            wait_ms >= 2 * transfer_ms,
        ],
        ["transfer", "wait"],
        "mixed",
    )
    columns = {
        "process_group": groups["process_group"].first(),
        "calls": groups.size(),
        "transfer_ms": transfer_ms,
        "wait_ms": wait_ms,
        "bound": pd.array(bound, dtype="str"),
    }
    table = pd.DataFrame(columns).reset_index()
    order = ["process_group", "collective", "calls", "transfer_ms", "wait_ms", "bound"]
    return table[order]
