"""The stages of a pipeline: which ranks pass micro-batches on, and in which order.

Ranks that send to one another form a chain. They form a ring if the stages are interleaved: the
last stage sends to the next chunk of the first stage. The first transfer of an iteration comes from
the first stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tracelens_ext.distributed.pipeline.activity import COMPUTATION
from tracelens_ext.distributed.pipeline.intervals import Intervals
from tracelens_ext.distributed.pipeline.partners import PIPELINE_GROUPS
from tracelens_ext.distributed.pipeline.sends_and_receives import RECEIVE, SEND
from tracelens_ext.distributed.table_rows import table_rows
from tracelens_ext.lazy import pd

#: A stage computes at least this long after its first receive and before its first send.
_MIN_COMPUTATION_NS = 1_000
#: Ranks are a pipeline if at least this share of their iterations looks like one.
_MIN_SHARE_OF_ITERATIONS = 0.5


@dataclass(frozen=True)
class Pipeline:
    """One replica of the model: a rank for each stage."""

    ranks: tuple[int, ...]  #: in the order of the stages; some may have no trace
    #: true if the last stage sends to the first, as in interleaved schedules
    is_ring: bool

    def stage_of(self, rank: int) -> int:
        """Return the stage of a rank."""
        return self.ranks.index(rank)


def find_pipelines(
    calls: pd.DataFrame, activity_of: Callable[[Sequence[int]], pd.DataFrame]
) -> list[Pipeline]:
    """Return the pipelines of a job; an empty list if its sends have another purpose.

    Args:
        calls: of `match_transfers`.
        activity_of: a function that returns `pipeline_activity` of some ranks, on the common clock.
    """
    pipelines = []
    for ranks in _components(calls):
        rows = calls[calls["rank"].isin(ranks)]
        order = _order(rows, ranks)
        if order is None:
            continue
        pipeline = _oriented(rows, order)
        if _is_pipeline(
            pipeline=pipeline,
            calls=rows,
            activity=activity_of(ranks),
        ):
            pipelines.append(pipeline)
    # If traces are missing, a pipeline may fall into pieces, which are shorter than whole ones.
    longest = max((len(pipeline.ranks) for pipeline in pipelines), default=0)
    return [pipeline for pipeline in pipelines if len(pipeline.ranks) == longest]


def named_pipelines(
    stages: Sequence[Sequence[int]], calls: pd.DataFrame
) -> list[Pipeline]:
    """Return the pipelines with a rank in each of the named stages.

    Args:
        stages: the ranks of each stage.
        calls: of `match_transfers`.
    """
    stage_of_rank = {}
    for stage, ranks in enumerate(stages):
        for rank in ranks:
            stage_of_rank[rank] = stage
    pipelines = []
    for ranks in _components(calls):
        chain = [rank for rank in ranks if rank in stage_of_rank]
        chain.sort(key=stage_of_rank.__getitem__)
        stages_of_chain = [stage_of_rank[rank] for rank in chain]
        is_complete = stages_of_chain == list(range(len(stages)))
        if is_complete and len(chain) > 1:
            is_ring = _wraps_around(calls, chain)
            pipelines.append(Pipeline(tuple(chain), is_ring))
    return pipelines


def _wraps_around(calls: pd.DataFrame, chain: Sequence[int]) -> bool:
    """Tell whether the last rank of a chain exchanges data with the first; false for two ranks."""
    if len(chain) < 3:
        return False
    ends = [chain[0], chain[-1]]
    is_between_ends = calls["rank"].isin(ends) & calls["peer"].isin(ends)
    return bool(is_between_ends.any())


class _Link(NamedTuple):
    """A rank that sends, and the rank that it sends to."""

    source: int
    target: int


def _links(calls: pd.DataFrame) -> Iterator[_Link]:
    """Yield the source and target of each transfer, in the order of the calls."""
    for row in table_rows(calls[["source", "target"]]):
        yield _Link(int(row.source), int(row.target))


def _components(calls: pd.DataFrame) -> list[list[int]]:
    """Return the sets of ranks that transfers join, directly or over others; each set ascending.

    The ranks of a set lead to its lowest rank, its root, over the links of `parent`.
    """
    parent: dict[int, int] = {}

    def root_of(rank: int) -> int:
        while parent.setdefault(rank, rank) != rank:
            parent[rank] = parent[parent[rank]]  # shortens the way for later calls
            rank = parent[rank]
        return rank

    for source, target in set(_links(calls)):
        source_root = root_of(source)
        target_root = root_of(target)
        parent[max(source_root, target_root)] = min(source_root, target_root)
    ranks_of_root: dict[int, list[int]] = {}
    for rank in sorted(parent):
        ranks_of_root.setdefault(root_of(rank), []).append(rank)
    return [ranks_of_root[root] for root in sorted(ranks_of_root)]


@dataclass(frozen=True)
class _Order:
    """Ranks along a chain or a ring; the direction of the pipeline is not known yet."""

    ranks: list[int]
    is_ring: bool


def _order(calls: pd.DataFrame, ranks: Sequence[int]) -> _Order | None:
    """Return the ranks in the order of their chain or ring; None if they form neither."""
    neighbors: dict[int, set[int]] = {rank: set() for rank in ranks}
    for source, target in set(_links(calls)):
        neighbors[source].add(target)
        neighbors[target].add(source)
    ends = [rank for rank in ranks if len(neighbors[rank]) == 1]
    has_branches = any(len(others) > 2 for others in neighbors.values())
    if has_branches or len(ends) not in (0, 2):
        return None
    is_ring = not ends
    current = ranks[0] if is_ring else ends[0]
    order = [current]
    while len(order) < len(ranks):
        following = neighbors[current].difference(order[-2:])
        if not following:
            return None
        current = min(following)
        order.append(current)
    return _Order(order, is_ring)


def _oriented(calls: pd.DataFrame, order: _Order) -> Pipeline:
    """Return the pipeline in the direction of its first transfers."""
    first_links = list(_links(_first_transfers(calls)))
    if order.is_ring:
        ranks = _ring_in_direction(order.ranks, first_links)
    else:
        ranks = _chain_in_direction(order.ranks, first_links)
    return Pipeline(tuple(ranks), order.is_ring)


def _ring_in_direction(ranks: list[int], first_links: Sequence[_Link]) -> list[int]:
    """Return the ranks of a ring, beginning with the most frequent link of first transfers."""
    count_of_link = Counter(first_links)
    highest_count = max(count_of_link.values())
    source, target = min(
        link for link in first_links if count_of_link[link] == highest_count
    )
    position = ranks.index(source)
    from_source = ranks[position:] + ranks[:position]
    if from_source[1] == target:
        return from_source
    backward = from_source[:0:-1]
    return [source] + backward


def _chain_in_direction(ranks: list[int], first_links: Sequence[_Link]) -> list[int]:
    """Return the ranks of a chain in the direction of most of the first transfers."""
    forward_count = 0
    for source, target in first_links:
        if ranks.index(target) > ranks.index(source):
            forward_count += 1
    backward_count = len(first_links) - forward_count
    reversed_ranks = ranks[::-1]
    if forward_count == backward_count:
        return min(ranks, reversed_ranks)
    return ranks if forward_count > backward_count else reversed_ranks


def _first_transfers(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the earliest transfer of each iteration."""
    ordered = calls.sort_values(["part_begin", "end"], kind="stable")
    return ordered.drop_duplicates("iteration")


def _is_pipeline(
    pipeline: Pipeline, calls: pd.DataFrame, activity: pd.DataFrame
) -> bool:
    """Tell whether ranks pass micro-batches on.

    In a pipeline, the first micro-batch goes from stage to stage, and each stage computes before it
    sends. In ring attention and other exchanges of neighbors, all ranks send and receive at once.
    """
    looks_right = []
    for iteration, rows in calls.groupby("iteration", sort=True):
        in_iteration = activity["iteration"] == iteration
        is_computation = activity["kind"] == COMPUTATION
        computation = activity[in_iteration & is_computation]
        looks_right.append(
            _is_filled_in_order(
                pipeline=pipeline,
                calls=rows,
                computation=computation,
            )
        )
    is_regular = np.mean(looks_right) >= _MIN_SHARE_OF_ITERATIONS
    return bool(is_regular and _has_purpose(pipeline, calls))


def _has_purpose(pipeline: Pipeline, calls: pd.DataFrame) -> bool:
    """Tell whether ranks send gradients back, or whether a process group is named a pipeline.

    Ranks that only pass data on do neither.
    """
    links = set(_links(calls))
    gradients = [_Link(later, earlier) for earlier, later in pairwise(pipeline.ranks)]
    if links.issuperset(gradients):
        return True
    names = calls["description"] + " " + calls["group_name"]
    return bool(names.str.contains(PIPELINE_GROUPS).any())


def _is_filled_in_order(
    pipeline: Pipeline, calls: pd.DataFrame, computation: pd.DataFrame
) -> bool:
    """Tell whether each stage except the first one receives, then computes, and then sends.

    Each stage must also receive later than the stage before it. Stages without a trace are skipped.
    """
    previous_end: float = -np.inf
    for earlier, rank in pairwise(pipeline.ranks):
        calls_of_rank = calls[calls["rank"] == rank]
        if not len(calls_of_rank):
            continue
        direction = calls_of_rank["direction"]
        is_from_previous = calls_of_rank["peer"] == earlier
        receives = calls_of_rank[is_from_previous & (direction == RECEIVE)]
        sends = calls_of_rank[direction == SEND]
        if not len(receives):
            return False
        first_end = int(receives["end"].min())
        if first_end <= previous_end:
            return False
        previous_end = first_end
        if not len(sends):
            continue
        first_send = int(sends["start"].min())
        own = Intervals.of_rows(computation[computation["rank"] == rank])
        in_between = own.clipped(first_end, first_send)
        if first_send < first_end or in_between.length < _MIN_COMPUTATION_NS:
            return False
    return True
