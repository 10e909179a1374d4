"""Finds what is wrong in a job: slow ranks and links, missing ranks, hanging and lost calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from tracelens_ext.distributed.calls import CallState
from tracelens_ext.distributed.process_groups import numbers_in
from tracelens_ext.distributed.rank_activity import OWN_ACTIVITIES
from tracelens_ext.distributed.table_rows import table_rows
from tracelens_ext.distributed.wait_root_causes import WaitCause
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_MS

#: The waits that a slow rank causes are at least this share of the time of all ranks, ...
_MIN_SHARE = 0.02
#: ... and at least this part of the waits that the slowest rank causes.
_MIN_PART_OF_LARGEST = 1 / 3
#: A rank is slow as a whole if its own work takes longer in at least this share of its iterations.
_MIN_SHARE_OF_ITERATIONS = 0.75
#: Transfers over a slow link take at least this many times as long as those over other links, ...
_SLOW_LINK_FACTOR = 1.5
#: ... in at least this share of its calls. Links with fewer calls are not judged.
_MIN_SHARE_OF_CALLS = 0.8
_MIN_CALLS = 3
#: The missing ranks of larger jobs are not listed.
_MAX_LISTED_RANKS = 100_000
#: A call hangs if it took at least this many times as long as the longest complete call of the
#: same ranks.
_HANG_FACTOR = 10.0


class VerdictKind(StrEnum):
    """The problems that verdicts are about."""

    #: others wait for the rank, which works longer in most iterations
    SLOW_RANK = "slow_rank"
    #: others wait for the rank in a single iteration
    MOVING_STRAGGLER = "moving_straggler"
    #: transfers between some ranks take longer than between others
    SLOW_LINK = "slow_link"
    MISSING_RANK = "missing_rank"  #: there is no trace or dump of the rank
    LATE_START = "late_start"  #: the recording of the rank begins in a later iteration
    MISMATCH = "mismatch"  #: the rank does not make a call as the others do
    HANG = "hang"  #: others wait for a call that the rank never entered
    LOST_CALL = "lost_call"  #: a call of the rank is missing in its trace
    #: a pipeline stage computes longer or shorter than the others
    UNEVEN_STAGE = "uneven_stage"
    SLOW_TRANSFER = "slow_transfer"  #: transfers between pipeline stages are slow
    TOO_FEW_MICRO_BATCHES = "too_few_micro_batches"  #: the pipeline's bubble is large


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A row of the table `verdicts`."""

    verdict: VerdictKind
    rank: int | None = None
    process_group: str | None = None
    iteration: str | None = None
    cause: str | None = None
    ms: float | None = None
    evidence: str


_COLUMNS = ["verdict", "rank", "process_group", "iteration", "cause", "ms", "evidence"]
_COLUMN_TYPES = {**dict.fromkeys(_COLUMNS, "str"), "rank": "Int64", "ms": "float64"}


@dataclass
class JobData:
    """The data of a job on which verdicts rest, and the verdicts that were found so far.

    All times are ns on the common clock.
    """

    #: a row for each call with its state, sizes and ranks, `rank_set`, `start` and `end`
    calls: pd.DataFrame
    kernels: pd.DataFrame  #: a row for each kernel of the calls, with `start` and `end`
    #: a row for each rank and group whose last launched call was never recorded
    stuck: pd.DataFrame
    root_causes: pd.DataFrame  #: the table `wait_root_causes`
    #: a row for each rank and iteration: `total` and the time of each of `OWN_ACTIVITIES`
    iterations: pd.DataFrame
    #: rank → its place; only ranks with equal places do the same work and are compared
    place_of_rank: Mapping[int, object]
    #: the number of ranks of the job; None if no trace records it
    world_size: int | None
    failed_ranks: Sequence[int] = ()  #: ranks whose traces could not be read
    verdicts: list[Verdict] = field(default_factory=list)

    def __post_init__(self) -> None:
        number = _iteration_numbers(self.iterations["iteration"])
        #: rank → the number of its first iteration
        self.first_iteration = number.groupby(self.iterations["rank"]).min().dropna()
        #: rank → the start of its last kernel
        self.last_start = self.kernels.groupby("rank")["start"].max()

    def communicates_after(self, rank: int, time: float) -> bool:
        """Tell whether a kernel of a rank's calls starts after an instant."""
        return bool(self.last_start.get(rank, -np.inf) > time)

    def with_traces(self, ranks: Iterable[int]) -> set[int]:
        """Return the given ranks without those that have no trace."""
        return {rank for rank in ranks if rank in self.place_of_rank}


def find_verdicts(job: JobData) -> pd.DataFrame:
    """Return the table `verdicts`, and set the `state` and `reason` of calls that hang in place."""
    _find_slow_ranks(job)
    _find_slow_links(job)
    _find_missing_ranks(job)
    _find_late_starts(job)
    _find_mismatches(job)
    hanging_ranks = _find_hangs(job)
    _find_lost_calls(job, hanging_ranks)
    return verdict_table(job.verdicts)


def verdict_table(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """Return verdicts as the table `verdicts`."""
    rows = [asdict(verdict) for verdict in verdicts]
    return pd.DataFrame(rows, columns=_COLUMNS).astype(_COLUMN_TYPES)


def _iteration_numbers(iterations: pd.Series) -> pd.Series:
    """Return the names of iterations as numbers, NaN for names that are not numbers."""
    numbers: pd.Series = pd.to_numeric(iterations, errors="coerce")
    return numbers


# Slow ranks.


def _find_slow_ranks(job: JobData) -> None:
    """Find ranks that others wait for, in most iterations or in single ones."""
    waits_by_own_work = job.root_causes[job.root_causes["cause"].isin(OWN_ACTIVITIES)]
    waits_of_ranks = waits_by_own_work.groupby(["rank", "iteration"])["wait_ms"]
    caused_wait = waits_of_ranks.sum().rename("caused_wait") * NS_PER_MS
    time_columns = ("total",) + OWN_ACTIVITIES
    iterations = job.iterations.astype(dict.fromkeys(time_columns, "float64"))
    whole_ranks = iterations.drop(columns="iteration").groupby("rank").sum()
    whole_ranks = whole_ranks.assign(
        caused_wait=caused_wait.groupby("rank").sum(), iteration=""
    )
    ranks = _compared_with_median(job, whole_ranks.reset_index())
    iterations = iterations.merge(
        caused_wait.reset_index(), "left", ["rank", "iteration"]
    )
    iterations = _compared_with_median(job, iterations)
    share_of_iterations = iterations.groupby("rank")["works_longer"].mean()
    is_regular = ranks["rank"].map(share_of_iterations) >= _MIN_SHARE_OF_ITERATIONS
    slow_ranks = ranks[ranks["is_slow"] & is_regular]
    for row in table_rows(slow_ranks):
        job.verdicts.append(_slow_rank_verdict(VerdictKind.SLOW_RANK, row))
    is_of_slow_rank = iterations["rank"].isin(slow_ranks["rank"])
    slow_iterations = iterations[iterations["is_slow"] & ~is_of_slow_rank]
    for row in table_rows(slow_iterations):
        job.verdicts.append(_slow_rank_verdict(VerdictKind.MOVING_STRAGGLER, row))


def _slow_rank_verdict(kind: VerdictKind, row: Any) -> Verdict:  # noqa: ANN401
    """Return the verdict on a slow rank; `row` is one of `_compared_with_median`."""
    excess_ms = row.excess_wait / NS_PER_MS
    longer_ms = row.longer / NS_PER_MS
    excess_percent = 100 * row.excess_wait / row.time_of_all
    evidence = (
        f"others waited {excess_ms:,.3f} ms more for it than for the median "
        f"rank in the same position ({excess_percent:.1f} % of the time of "
        f"all ranks); it spent {longer_ms:,.3f} ms more than they did in "
        f"{row.cause}"
    )
    return Verdict(
        verdict=kind,
        rank=row.rank,
        iteration=row.iteration or None,
        cause=row.cause,
        ms=excess_ms,
        evidence=evidence,
    )


def _compared_with_median(job: JobData, rows: pd.DataFrame) -> pd.DataFrame:
    """Compare each rank with the median rank of its place, iteration by iteration.

    Args:
        job: the job with the places of its ranks.
        rows: `rank`, `iteration`, `total`, the time of each of `OWN_ACTIVITIES`, and `caused_wait`,
            the time that other ranks waited because of the rank's own work, ns.

    Returns:
        A row for each row of `rows`, with these columns:

        - `rank`, `iteration`.
        - `time_of_all`: the `total` of all ranks in the iteration, ns.
        - `excess_wait`: `caused_wait` minus that of the median rank, ns.
        - `cause`: the activity on which the rank spent the most additional time.
        - `longer`: the additional time of that activity, ns.
        - `works_longer`: the rank's own work takes longer, by at least 2 % of its `total`.
        - `is_slow`: the rank works longer, and other ranks wait for it.
    """
    rows = rows.fillna({"caused_wait": 0.0})
    activities = list(OWN_ACTIVITIES)
    place = rows["rank"].map(lambda rank: str(job.place_of_rank.get(rank, "")))
    places = rows.groupby([place.rename("place"), "iteration"])
    # A rank that is alone in its place is its own median, so all its differences are 0.
    compared_columns = activities + ["caused_wait"]
    difference = rows[compared_columns] - places[compared_columns].transform("median")
    longer_activities = difference[activities]
    excess_wait = difference["caused_wait"]
    iteration = rows["iteration"]
    time_of_all = rows["total"].groupby(iteration).transform("sum")
    # A rank works longer if it computes longer, loads data longer, or spends more time on all
    # activities without kernels together. Time that only moves between data loading, CPU work
    # and idling does not count.
    without_kernels = ["data_loader", "host", "idle"]
    longer_without_kernels = longer_activities[without_kernels].sum(axis=1)
    longest_work = longer_activities[["computation", "data_loader"]].max(axis=1)
    longer_work = np.maximum(longer_without_kernels, longest_work)
    works_longer = (longer_work >= _MIN_SHARE * rows["total"]) & (longer_work > 0)
    largest_excess = excess_wait.groupby(iteration).transform("max")
    min_excess = np.maximum(
        _MIN_SHARE * time_of_all, _MIN_PART_OF_LARGEST * largest_excess
    )
    makes_others_wait = (excess_wait >= min_excess) & (excess_wait > 0)
    return rows[["rank", "iteration"]].assign(
        time_of_all=time_of_all,
        excess_wait=excess_wait,
        longer=longer_activities.max(axis=1),
        cause=longer_activities.idxmax(axis=1) if len(longer_activities) else "",
        works_longer=works_longer,
        is_slow=works_longer & makes_others_wait,
    )


# Slow links.


def _find_slow_links(job: JobData) -> None:
    """Find sets of ranks whose transfers take longer than those of other sets of ranks."""
    calls = job.calls[job.calls["transfer"].notna() & (job.calls["bytes"] > 0)]
    usual = _median_transfer_of_others(calls)
    calls = calls.assign(usual=usual)[usual.notna()]
    for _, calls_of_set in calls.groupby("rank_set", sort=True):
        factor = calls_of_set["transfer"] / calls_of_set["usual"]
        is_slow = factor >= _SLOW_LINK_FACTOR
        if len(calls_of_set) < _MIN_CALLS or is_slow.mean() < _MIN_SHARE_OF_CALLS:
            continue
        lost_ms = (calls_of_set["transfer"] - calls_of_set["usual"]).sum() / NS_PER_MS
        first = calls_of_set.iloc[0]
        evidence = (
            f"{is_slow.sum()} of {len(calls_of_set)} calls of ranks {first['ranks']} "
            f"took at least {_SLOW_LINK_FACTOR} times as long as the median of other "
            f"groups with the same kind and size (median {factor.median():.2f} "
            f"times), {lost_ms:,.3f} ms more in total"
        )
        verdict = Verdict(
            verdict=VerdictKind.SLOW_LINK,
            process_group=first["process_group"],
            cause=WaitCause.SLOW_TRANSFER.text,
            ms=lost_ms,
            evidence=evidence,
        )
        job.verdicts.append(verdict)


def _median_transfer_of_others(calls: pd.DataFrame) -> pd.Series:
    """Return the median transfer time of equal calls of other sets of ranks, ns, (n,).

    Calls are equal if they have the same collective, bytes, group size and span. The median is NaN
    if no other set of ranks makes an equal call.
    """
    usual = pd.Series(np.nan, index=calls.index)
    keys = ["collective", "bytes", "group_size", "span"]
    for _, equal_calls in calls.groupby(keys, sort=False):
        transfer = equal_calls["transfer"].to_numpy()
        set_number = equal_calls["rank_set"].to_numpy()
        sets = np.unique(set_number)
        if len(sets) < 2:
            continue
        for number in sets:
            is_of_set = set_number == number
            usual[equal_calls.index[is_of_set]] = np.median(transfer[~is_of_set])
    return usual


# Missing ranks, late ranks, calls with different sizes.


def _find_missing_ranks(job: JobData) -> None:
    """Find ranks of the job that have no trace."""
    world_size = job.world_size or 0
    if world_size > _MAX_LISTED_RANKS:
        return
    ranks_with_traces = set(job.place_of_rank) | set(job.failed_ranks)
    for rank in range(world_size):
        if rank not in ranks_with_traces:
            evidence = (
                f"the job had {world_size} ranks, but there is no trace of rank {rank}"
            )
            verdict = Verdict(
                verdict=VerdictKind.MISSING_RANK, rank=rank, evidence=evidence
            )
            job.verdicts.append(verdict)


def _find_late_starts(job: JobData) -> None:
    """Find ranks whose recording begins in a later iteration than that of other ranks."""
    earliest = job.first_iteration.min()
    late = job.first_iteration[job.first_iteration > earliest]
    for rank, iteration in late.items():
        verdict = Verdict(
            verdict=VerdictKind.LATE_START,
            rank=rank,
            iteration=f"{iteration:.0f}",
            evidence=f"its first iteration is {iteration:.0f}; that of others is "
            f"{earliest:.0f}",
        )
        job.verdicts.append(verdict)


def _find_mismatches(job: JobData) -> None:
    """Find ranks that call a collective with a different size than the other ranks."""
    for call in table_rows(job.calls[job.calls["state"] == CallState.MISMATCH]):
        kernels = job.kernels[job.kernels["call"] == call.call]
        has_unusual_size = _has_unusual_size(
            job=job,
            call=call,
            kernels=kernels,
        )
        for kernel in table_rows(kernels[has_unusual_size]):
            differs = kernels["signature"] != kernel.signature
            elements_of_others = kernels.loc[differs, "elements"].iloc[0]
            evidence = (
                f"rank {kernel.rank} has {kernel.elements:,.0f} elements in a "
                f"{call.collective} in which others have {elements_of_others:,.0f}"
            )
            verdict = Verdict(
                verdict=VerdictKind.MISMATCH,
                rank=kernel.rank,
                process_group=call.process_group,
                iteration=call.iteration,
                evidence=evidence,
            )
            job.verdicts.append(verdict)


def _has_unusual_size(job: JobData, call: Any, kernels: pd.DataFrame) -> pd.Series:  # noqa: ANN401
    """Return which kernels of a call have an unusual size, (n,).

    The usual size is that of most ranks. If there is no majority, the usual size of a rank is the
    one that it has in the same call of other iterations.
    """
    count_of_signature = kernels["signature"].value_counts()
    has_majority = count_of_signature.iloc[0] != count_of_signature.iloc[-1]
    if has_majority:
        differs: pd.Series = kernels["signature"] != count_of_signature.index[0]
        return differs
    keys = ["rank_set", "collective", "dtype", "sequence"]
    is_same_call = (job.calls[keys] == [getattr(call, key) for key in keys]).all(axis=1)
    is_other_iteration = job.calls["call"] != call.call
    other_calls = job.calls.loc[is_same_call & is_other_iteration, "call"]
    other_kernels = job.kernels[job.kernels["call"].isin(other_calls)]
    usual_sizes = set(
        zip(other_kernels["rank"], other_kernels["signature"], strict=True)
    )
    is_unusual = [
        rank_and_size not in usual_sizes
        for rank_and_size in zip(kernels["rank"], kernels["signature"], strict=True)
    ]
    return pd.Series(is_unusual, kernels.index, dtype=bool)


# Hangs and lost calls.


class _Hang(NamedTuple):
    """A call that never ended or never began."""

    start: float  #: ns, on the common clock
    process_group: str
    iteration: str
    absent_ranks: list[int]  #: the ranks that never entered the call
    observation: str  #: what shows the hang, as the end of a sentence


def _find_hangs(job: JobData) -> set[int]:
    """Add verdicts on ranks that never entered a call in which others wait; return these ranks.

    Absent ranks that wait in a call themselves are not to blame.
    """
    endless_calls = _find_endless_calls(job)
    hangs = endless_calls.hangs + _calls_never_recorded(job)
    waiting_ranks = endless_calls.waiting_ranks | set(job.stuck["rank"].tolist())
    hanging_ranks: set[int] = set()
    for hang in sorted(hangs, key=lambda hang: hang.start):
        absent_ranks = job.with_traces(hang.absent_ranks)
        for rank in sorted(absent_ranks - waiting_ranks - hanging_ranks):
            hanging_ranks.add(rank)
            verdict = Verdict(
                verdict=VerdictKind.HANG,
                rank=rank,
                process_group=hang.process_group,
                iteration=hang.iteration,
                evidence="it never entered the last call of its group: "
                f"{hang.observation}",
            )
            job.verdicts.append(verdict)
    return hanging_ranks


class _EndlessCalls(NamedTuple):
    """Calls that were recorded and never ended."""

    hangs: list[_Hang]
    waiting_ranks: set[int]  #: the ranks that wait in these calls


def _find_endless_calls(job: JobData) -> _EndlessCalls:
    """Find incomplete calls, the last ones of their ranks, that take far too long.

    The `state` and the `reason` of these calls are set in place.
    """
    calls = job.calls
    complete = job.kernels[job.kernels["has_wait"]]
    longest_of_set = complete.groupby("rank_set")["dur"].max()
    is_last = calls["end"] >= calls.groupby("rank_set")["end"].transform("max")
    is_incomplete = calls["state"] == CallState.INCOMPLETE
    hangs = []
    waiting_ranks: set[int] = set()
    for call in table_rows(calls[is_last & is_incomplete]):
        kernels = job.kernels[job.kernels["call"] == call.call]
        shortest = kernels["dur"].min()
        longest_complete = longest_of_set.get(call.rank_set, np.nan)
        absent_ranks = [
            rank
            for rank in numbers_in(call.missing_ranks)
            if not job.communicates_after(rank, call.end)
        ]
        takes_too_long = shortest >= _HANG_FACTOR * longest_complete
        if not takes_too_long or not job.with_traces(absent_ranks):
            continue
        waiting_ranks.update(kernels["rank"].tolist())
        calls.loc[call.Index, ["state", "reason"]] = [
            CallState.HANG.value,
            "it never finished",
        ]
        observation = (
            f"the others' kernels ran {shortest / NS_PER_MS:,.3f} ms; those of a "
            f"complete call run at most {longest_complete / NS_PER_MS:,.3f} ms"
        )
        hangs.append(
            _Hang(
                start=call.start,
                process_group=call.process_group,
                iteration=call.iteration,
                absent_ranks=absent_ranks,
                observation=observation,
            )
        )
    return _EndlessCalls(hangs, waiting_ranks)


def _calls_never_recorded(job: JobData) -> list[_Hang]:
    """Find calls that ranks launched at the end of the recording and that never ran."""
    iteration = _iteration_numbers(job.kernels["iteration"])
    last_iteration = iteration.groupby(job.kernels["rank"]).max()
    hangs = []
    for _, stuck in job.stuck.groupby("rank_set", sort=False):
        stuck_iteration = _iteration_numbers(stuck["iteration"]).max()
        first = stuck.iloc[0]
        # A rank that communicates in a later iteration did not hang in this one.
        absent_ranks = [
            rank
            for rank in numbers_in(first["members"])
            if not last_iteration.get(rank, -np.inf) > stuck_iteration
        ]
        hang = _Hang(
            start=stuck["launch"].min(),
            process_group=first["Process Group Name"],
            iteration=first["iteration"],
            absent_ranks=absent_ranks,
            observation=f"{len(stuck)} ranks launched it, but no kernel of it was "
            "recorded",
        )
        hangs.append(hang)
    return hangs


def _find_lost_calls(job: JobData, hanging_ranks: set[int]) -> None:
    """Find calls that only one rank lacks although it communicates after them.

    Ranks whose recording begins in a later iteration do not count.
    """
    incomplete_calls = job.calls[job.calls["state"] == CallState.INCOMPLETE]
    for call in table_rows(incomplete_calls):
        iteration = pd.to_numeric(call.iteration, errors="coerce")
        ranks_without_call = [
            rank
            for rank in numbers_in(call.missing_ranks)
            if rank in job.last_start.index
            and not job.first_iteration.get(rank, -np.inf) > iteration
        ]
        if len(ranks_without_call) != 1:
            continue
        rank = ranks_without_call[0]
        if rank in hanging_ranks or not job.communicates_after(rank, call.end):
            continue
        evidence = (
            f"only {call.kernel_count} of {call.group_size:.0f} ranks took part in a "
            f"{call.collective}, and rank {rank} went on communicating"
        )
        verdict = Verdict(
            verdict=VerdictKind.LOST_CALL,
            rank=rank,
            process_group=call.process_group,
            iteration=call.iteration,
            evidence=evidence,
        )
        job.verdicts.append(verdict)
