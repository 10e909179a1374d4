"""The stages of a pipeline: which ranks pass micro-batches on to which.

Ranks that send to one another make a chain, or a ring where the last stage sends on to the next
chunk of the first. The first transfer of an iteration comes from the first stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracelens_ext.distributed.pipeline.extract import COMPUTATION, RECEIVE, SEND
from tracelens_ext.distributed.pipeline.partners import PIPELINE_GROUPS
from tracelens_ext.lazy import pd
from tracelens_ext.trace.intervals import covered

#: A stage computes at least so long between what it first receives and what it first sends.
_MIN_COMPUTATION_NS = 1_000
#: The shares of iterations that must look like a pipeline's.
_MIN_SHARE_OF_ITERATIONS = 0.5


@dataclass(frozen=True)
class Pipeline:
    """One replica of the model: a rank for each stage."""

    ranks: tuple[int, ...]  #: by stage; some may have no trace
    is_ring: bool  #: the last stage sends to the first, as interleaved schedules do

    def stage_of(self, rank: int) -> int:
        """Return the stage of a rank."""
        return self.ranks.index(rank)


def find_pipelines(
    calls: pd.DataFrame, activity_of: Callable[[Sequence[int]], pd.DataFrame]
) -> list[Pipeline]:
    """Return the pipelines of a job; none if its sends are for something else.

    Args:
        calls: of `match_transfers`.
        activity_of: returns `pipeline_activity` of some ranks, on the common clock.
    """
    pipelines = []
    for ranks in _components(calls):
        rows = calls[calls["rank"].isin(ranks)]
        order = _order(rows, ranks)
        if order is None:
            continue
        pipeline = _oriented(rows, order)
        if _is_pipeline(pipeline, rows, activity_of(ranks)):
            pipelines.append(pipeline)
    counts = Counter(len(pipeline.ranks) for pipeline in pipelines)
    if not counts:
        return []
    # Pieces of a pipeline of which ranks are missing are told from whole ones by their length.
    longest = max(counts)
    return [pipeline for pipeline in pipelines if len(pipeline.ranks) == longest]


def named_pipelines(
    stages: Sequence[Sequence[int]], calls: pd.DataFrame
) -> list[Pipeline]:
    """Return the pipelines whose stages are named.

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
        chain = sorted(
            (rank for rank in ranks if rank in stage_of_rank),
            key=lambda rank: stage_of_rank[rank],
        )
        covers_stages = [stage_of_rank[rank] for rank in chain] == list(
            range(len(stages))
        )
        if covers_stages and len(chain) > 1:
            rows = calls[calls["rank"].isin(chain)]
            ends = {chain[0], chain[-1]}
            is_wrapped = (
                rows["rank"].isin(ends) & rows["peer"].isin(ends) & (len(chain) > 2)
            )
            pipelines.append(
                Pipeline(ranks=tuple(chain), is_ring=bool(is_wrapped.any()))
            )
    return pipelines


def _components(calls: pd.DataFrame) -> list[list[int]]:
    """Return the ranks that are joined by transfers, each set ascending."""
    root: dict[int, int] = {}

    def find(rank: int) -> int:
        while root.setdefault(rank, rank) != rank:
            root[rank] = root[root[rank]]
            rank = root[rank]
        return rank

    links = calls[["source", "target"]].drop_duplicates()
    for source, target in zip(
        links["source"].tolist(), links["target"].tolist(), strict=True
    ):
        first = find(source)
        second = find(target)
        root[max(first, second)] = min(first, second)
    members: dict[int, list[int]] = {}
    for rank in sorted(root):
        members.setdefault(find(rank), []).append(rank)
    return [members[rank] for rank in sorted(members)]


@dataclass(frozen=True)
class _Order:
    """Ranks along a chain or a ring, in one of both directions."""

    ranks: list[int]
    is_ring: bool


def _order(calls: pd.DataFrame, ranks: Sequence[int]) -> _Order | None:
    """Return the ranks along their chain or ring; None if they are neither."""
    neighbors: dict[int, set[int]] = {rank: set() for rank in ranks}
    links = calls[["source", "target"]].drop_duplicates()
    for source, target in zip(
        links["source"].tolist(), links["target"].tolist(), strict=True
    ):
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
        following = sorted(neighbors[current].difference(order[-2:]))
        if not following:
            return None
        current = following[0]
        order.append(current)
    return _Order(order, is_ring)


def _oriented(calls: pd.DataFrame, order: _Order) -> Pipeline:
    """Return the pipeline in the direction of its first transfers."""
    first = _first_transfers(calls)
    sources = first["source"].tolist()
    targets = first["target"].tolist()
    place = {rank: index for index, rank in enumerate(order.ranks)}
    count = len(order.ranks)
    if order.is_ring:
        votes = Counter(zip(sources, targets, strict=True))
        source, target = max(votes, key=lambda link: (votes[link], -link[0]))
        is_ascending = (place[target] - place[source]) % count == 1
        step = 1 if is_ascending else -1
        ranks = [
            order.ranks[(place[source] + step * index) % count]
            for index in range(count)
        ]
        return Pipeline(tuple(ranks), is_ring=True)
    forward = 0
    for source, target in zip(sources, targets, strict=True):
        forward += 1 if place[target] > place[source] else -1
    ranks = list(order.ranks)
    is_reversed = forward < 0 or (forward == 0 and ranks[0] > ranks[-1])
    if is_reversed:
        ranks.reverse()
    return Pipeline(tuple(ranks), is_ring=False)


def _first_transfers(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the earliest transfer of each iteration."""
    ordered = calls.sort_values(["part_begin", "end"], kind="stable")
    return ordered.drop_duplicates("iteration")


def _is_pipeline(
    pipeline: Pipeline, calls: pd.DataFrame, activity: pd.DataFrame
) -> bool:
    """Tell whether micro-batches pass along the ranks.

    Ring attention and other exchanges of neighbors send and receive at the same time, on all ranks
    alike; a pipeline passes the first micro-batch from stage to stage, and computes in between.
    """
    looks_right = []
    for iteration, rows in calls.groupby("iteration", sort=True):
        in_iteration = activity["iteration"] == iteration
        is_computation = activity["kind"] == COMPUTATION
        computation = activity[in_iteration & is_computation]
        looks_right.append(_is_filled_in_order(pipeline, rows, computation))
    is_regular = np.mean(looks_right) >= _MIN_SHARE_OF_ITERATIONS
    return bool(is_regular and _has_purpose(pipeline, calls))


def _has_purpose(pipeline: Pipeline, calls: pd.DataFrame) -> bool:
    """Tell a pipeline from ranks that only pass data on: it sends gradients back, or says so."""
    links: Mapping[tuple[int, int], int] = Counter(
        zip(calls["source"].tolist(), calls["target"].tolist(), strict=True)
    )
    pairs = list(zip(pipeline.ranks, pipeline.ranks[1:], strict=False))
    if all(links.get((later, earlier), 0) for earlier, later in pairs):
        return True
    names = calls["description"] + " " + calls["group_name"]
    return bool(names.str.contains(PIPELINE_GROUPS).any())


def _is_filled_in_order(
    pipeline: Pipeline, calls: pd.DataFrame, computation: pd.DataFrame
) -> bool:
    """Tell whether each stage, but the first, receives, computes and then sends."""
    previous_end: float = -np.inf
    for stage, rank in enumerate(pipeline.ranks):
        rows = calls[calls["rank"] == rank]
        if not stage or not len(rows):
            continue
        from_previous = rows[
            (rows["direction"] == RECEIVE) & (rows["peer"] == pipeline.ranks[stage - 1])
        ]
        sends = rows[rows["direction"] == SEND]
        if not len(from_previous):
            return False
        first_end = int(from_previous["end"].min())
        if first_end <= previous_end:
            return False
        previous_end = first_end
        if not len(sends):
            continue
        first_send = sends["start"].min()
        own = computation[computation["rank"] == rank]
        computed = covered(
            start=own["start"].to_numpy(np.int64),
            end=own["end"].to_numpy(np.int64),
            window_start=np.array([first_end], dtype=np.int64),
            window_end=np.array([first_send], dtype=np.int64),
        )
        if first_send < first_end or computed[0] < _MIN_COMPUTATION_NS:
            return False
    return True
