"""All process groups of a job together: the tables about its calls, waits, clocks and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from tracelens_ext.distributed.calls import GroupCalls
from tracelens_ext.distributed.clocks import fit_clocks
from tracelens_ext.distributed.extract import OWN_ACTIVITIES, numbers_in
from tracelens_ext.distributed.matching import PAIR, MatchedBy
from tracelens_ext.distributed.verdicts import Job, find_verdicts
from tracelens_ext.distributed.wait_root_causes import find_origins, without_origins
from tracelens_ext.isolation import PartFailures
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US

#: The columns of kernels that are needed besides those of their activities.
_KERNEL_COLUMNS = [
    "rank",
    "device",
    "no",
    "start",
    "dur",
    "end",
    "base",
    "sizes",
    "complete",
    "matched_by",
    "Process Group Name",
    "iteration",
    "src",
    "dst",
    "In msg nelems",
    "Out msg nelems",
]
#: The columns of `collective_calls` whose values are already there under another name.
_RENAMED_CALL_COLUMNS = {
    "algorithm": "algorithm_bandwidth_gb_s",
    "bus": "bus_bandwidth_gb_s",
}
#: Times in ns, and what they are called in µs.
_MICROSECOND_COLUMNS = {
    "in_sync": "transfer_us",
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
#: A number for a process group and two ranks of it has so many bits for each rank.
_RANK_BITS = 21


class CallSpan(StrEnum):
    """Where the ranks of a call are."""

    UNKNOWN = ""
    NODE = "node"  #: in one node
    ACROSS = "across"  #: in several nodes


@dataclass(frozen=True)
class JobSettings:
    """What is known of a job as a whole."""

    world_size: int | None  #: how many ranks it had; None if no trace says
    failed_ranks: Sequence[int] = ()  #: ranks whose traces could not be read
    ranks_per_node: int | None = None  #: None to tell nodes by the devices
    #: the stage of each rank of a pipeline; empty without one
    stage_of_rank: Mapping[int, int] = field(default_factory=dict)


class _JobCalls(NamedTuple):
    """The calls of all process groups."""

    calls: pd.DataFrame
    kernels: pd.DataFrame
    stuck: pd.DataFrame


def job_tables(
    groups: Sequence[GroupCalls],
    iterations: pd.DataFrame,
    communication: Sequence[Mapping[str, Any]],
    settings: JobSettings,
    failures: PartFailures,
) -> dict[str, pd.DataFrame]:
    """Return the tables over all ranks, without those that fail.

    Args:
        groups: the calls of each process group, at least one.
        iterations: `rank_iterations` of all ranks.
        communication: what is noted of the communication of each trace.
        settings: what is known of the job.
        failures: takes the tables that fail.
    """
    calls, kernels, stuck = _numbered(groups)
    all_ranks = {rank for about in communication for rank in about["ranks"]}
    ranks = np.array(sorted(all_ranks), dtype=np.int64)
    tables: dict[str, pd.DataFrame] = {}
    offset_us = pd.Series(0.0, index=ranks)
    with failures.isolate("The table clocks"):
        complete = kernels[kernels["complete"]]
        clocks = fit_clocks(complete, ranks)
        offset_us = clocks.set_index("rank")["offset_us"]
        # The table shows what rests on matched groups only.
        is_named = complete["matched_by"] != MatchedBy.UNNAMED
        tables["clocks"] = (
            clocks if is_named.all() else fit_clocks(complete[is_named], ranks)
        )
    kernels = _with_waits(kernels, calls)
    origins = without_origins(kernels)
    with failures.isolate("The table wait_root_causes"):
        origins = find_origins(
            kernels, calls["last_rank"].fillna(NONE).to_numpy(np.int64)
        )
        tables["wait_root_causes"] = origins.table
    kernels = origins.kernels
    with failures.isolate("The table collective_waits"):
        ordered = kernels.sort_values(
            ["call", "rank"], kind="stable", ignore_index=True
        )
        tables["collective_waits"] = _in_microseconds(ordered)[WAIT_COLUMNS]
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
        job = Job(
            calls=calls,
            kernels=kernels,
            stuck=stuck,
            origins=origins.table,
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


def _with_waits(kernels: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """Return the kernels with how long each waited, ns; NaN where that is not known."""
    transfer = calls["in_sync"].to_numpy()[kernels["call"]]
    wait = (kernels["dur"] - transfer).where(kernels["complete"])
    return kernels.assign(wait=wait)


def _put_on_one_clock(
    kernels: pd.DataFrame, stuck: pd.DataFrame, offset: pd.Series
) -> None:
    """Change times in place from each rank's own clock to the common one; `offset` by rank, ns."""
    kernel_offset = kernels["rank"].map(offset)
    kernels["start"] += kernels["base"]
    kernels["start"] -= kernel_offset
    kernels["end"] -= kernel_offset
    stuck["launch"] += stuck["base"] - stuck["rank"].map(offset)


def _in_microseconds(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with its times in µs too."""
    columns = {
        microseconds: frame[name] / NS_PER_US
        for name, microseconds in _MICROSECOND_COLUMNS.items()
        if name in frame
    }
    return frame.assign(**columns)


def _numbered(groups: Sequence[GroupCalls]) -> _JobCalls:
    """Join the groups; add `call`, a number, and `set`, a number for calls of the same ranks."""
    activities = [
        f"{name}_{suffix}" for suffix in ("start", "end") for name in OWN_ACTIVITIES
    ]
    kernel_columns = _KERNEL_COLUMNS + activities
    calls = _joined([group.calls for group in groups])
    kernels = _joined([group.kernels[kernel_columns] for group in groups])
    stuck = _joined([group.stuck for group in groups])
    calls["call"] = calls.index
    number_of_call = calls[["group", "no", "call"]]
    kernels = kernels.merge(number_of_call, "left", ["group", "no"])
    amounts = kernels[["In msg nelems", "Out msg nelems"]]
    kernels["elements"] = amounts.max(axis=1)
    for frame in (calls, kernels, stuck):
        frame["set"] = _numbers_of_sets(frame)
    kernels = kernels.rename(columns={"Process Group Name": "process_group"})
    return _JobCalls(
        calls=calls,
        kernels=kernels,
        stuck=stuck,
    )


def _numbers_of_sets(frame: pd.DataFrame) -> pd.Series:
    """Return a number for each set of ranks: a group, or a source and destination in it."""
    group = frame["group"].astype("int64")
    source = frame["src"].astype("int64") + 1
    destination = frame["dst"].astype("int64") + 1
    most_ranks = 2**_RANK_BITS
    number: pd.Series = group * most_ranks
    number += source
    number *= most_ranks
    return number + destination


def _joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all groups, with the number of their `group`."""
    joined = pd.concat(frames, keys=range(len(frames)), names=["group"])
    return joined.reset_index("group").reset_index(drop=True)


def _span(
    calls: pd.DataFrame, kernels: pd.DataFrame, ranks_per_node: int | None
) -> pd.Series:
    """Return whether each call stays in a node, a `CallSpan`, as far as nodes are known."""
    per_node = ranks_per_node
    if per_node is None:
        # Ranks are counted node by node if each one's device is its place in the node.
        device = kernels.groupby("rank")["device"].first()
        per_node = int(device.max()) + 1
        is_counted_by_node = (
            (device.index % per_node == device).all() if per_node > 1 else False
        )
        if not is_counted_by_node:
            return pd.Series(CallSpan.UNKNOWN.value, calls.index, "str")
    span_of_ranks = {}
    for text in calls["ranks"].unique():
        nodes = {rank // per_node for rank in numbers_in(text)}
        if not nodes:
            span_of_ranks[text] = CallSpan.UNKNOWN.value
        elif len(nodes) == 1:
            span_of_ranks[text] = CallSpan.NODE.value
        else:
            span_of_ranks[text] = CallSpan.ACROSS.value
    return calls["ranks"].map(span_of_ranks)


class _Place(NamedTuple):
    """What ranks that do the same work have in common."""

    stage: int | None  #: of a pipeline
    #: its index in each group in which it sends and receives, and the size of the group
    positions: tuple[tuple[int, int], ...]


def _places(
    calls: pd.DataFrame,
    communication: Sequence[Mapping[str, Any]],
    stage_of_rank: Mapping[int, int],
) -> dict[int, _Place]:
    """Return the place of each rank.

    Ranks with equal places do the same work: stages of a pipeline wait for one another by design.
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
    """Return the table `collective_calls`, in the order of start."""
    ordered = calls.sort_values(["start", "call"], kind="stable", ignore_index=True)
    table = _in_microseconds(ordered).rename(columns=_RENAMED_CALL_COLUMNS)
    return table[CALL_COLUMNS].astype({"group_size": "Int64", "bytes": "Int64"})


def _group_table(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the table `collective_groups`: transfer and wait by process group and collective."""
    known = calls[calls["in_sync"].notna()]
    groups = known.groupby(["key", "collective"], sort=True)
    transfer_ms = groups["in_sync"].sum() / NS_PER_MS
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
