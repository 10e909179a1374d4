"""What is wrong in a job: ranks and links that are slow, ranks and calls that are missing."""

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

#: A slow rank costs this share of the time of all ranks, and this part of what the slowest costs.
_MIN_SHARE = 0.02
_MIN_PART_OF_LARGEST = 1 / 3
#: A rank is slow as a whole if its own work shows it in this share of its iterations.
_MIN_SHARE_OF_ITERATIONS = 0.75
#: A slow link takes so many times as long as others, in this share of so many calls.
_SLOW_LINK_FACTOR = 1.5
_MIN_SHARE_OF_CALLS = 0.8
_MIN_CALLS = 3
#: The missing ranks of a larger job are not listed.
_MAX_LISTED_RANKS = 100_000
#: A call hangs if it took so many times as long as the longest complete one of its group.
_HANG_FACTOR = 10.0


class VerdictKind(StrEnum):
    """What may be wrong."""

    SLOW_RANK = "slow_rank"
    MOVING_STRAGGLER = "moving_straggler"
    SLOW_LINK = "slow_link"
    MISSING_RANK = "missing_rank"
    LATE_START = "late_start"
    MISMATCH = "mismatch"
    HANG = "hang"
    LOST_CALL = "lost_call"
    UNEVEN_STAGE = "uneven_stage"
    SLOW_TRANSFER = "slow_transfer"
    TOO_FEW_MICRO_BATCHES = "too_few_micro_batches"


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
class Job:
    """What the verdicts are made of."""

    #: as in `collective_calls`, and `set`, `start`, `end` (ns, on the common clock)
    calls: pd.DataFrame
    kernels: pd.DataFrame  #: of the calls; `start`, `end` on the common clock
    #: a row for each rank and group: what was launched and never recorded
    stuck: pd.DataFrame
    origins: pd.DataFrame  #: as in `wait_root_causes`
    #: a row for each rank and iteration: `total` and activities, ns
    iterations: pd.DataFrame
    #: rank → what it shares with the ranks that it is compared with
    place_of_rank: Mapping[int, object]
    world_size: int | None  #: how many ranks the job had; None if no trace says
    failed_ranks: Sequence[int] = ()  #: ranks whose traces could not be read
    verdicts: list[Verdict] = field(default_factory=list)

    def __post_init__(self) -> None:
        number = _numbers(self.iterations["iteration"])
        #: the number of each rank's first iteration, and when it started its last call
        self.first_iteration = number.groupby(self.iterations["rank"]).min().dropna()
        self.last_start = self.kernels.groupby("rank")["start"].max()

    def communicates_after(self, rank: int, time: float) -> bool:
        """Tell whether a rank starts a call after an instant (ns, on the common clock)."""
        return bool(self.last_start.get(rank, -np.inf) > time)

    def with_traces(self, ranks: Iterable[int]) -> set[int]:
        """Return those of some ranks that have a trace."""
        return {rank for rank in ranks if rank in self.place_of_rank}


def find_verdicts(job: Job) -> pd.DataFrame:
    """Return all verdicts, and set the `state` of calls that hang."""
    _find_slow_ranks(job)
    _find_slow_links(job)
    _find_missing_ranks(job)
    _find_late_starts(job)
    _find_mismatches(job)
    hanging_ranks = _find_hangs(job)
    _find_lost_calls(job, hanging_ranks)
    return verdict_table(job.verdicts)


def verdict_table(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """Return the table `verdicts`."""
    rows = [asdict(verdict) for verdict in verdicts]
    return pd.DataFrame(rows, columns=_COLUMNS).astype(_COLUMN_TYPES)


def _numbers(iterations: pd.Series) -> pd.Series:
    """Return the numbers of iterations, NaN for those that have none."""
    numbers: pd.Series = pd.to_numeric(iterations, errors="coerce")
    return numbers


# Slow ranks.


def _find_slow_ranks(job: Job) -> None:
    """Find ranks that others wait for, as a whole or in single iterations."""
    by_own_work = job.origins[job.origins["cause"].isin(OWN_ACTIVITIES)]
    caused = (
        by_own_work.groupby(["rank", "iteration"])["wait_ms"].sum().rename("caused")
    )
    caused *= NS_PER_MS
    iterations = job.iterations.astype(
        dict.fromkeys(("total",) + OWN_ACTIVITIES, "float64")
    )
    of_rank = iterations.drop(columns="iteration").groupby("rank").sum()
    of_rank = of_rank.assign(
        caused=caused.groupby("rank").sum(), iteration=""
    ).reset_index()
    ranks = _judged(job, of_rank)
    iterations = iterations.merge(caused.reset_index(), "left", ["rank", "iteration"])
    iterations = _judged(job, iterations)
    share_of_iterations = iterations.groupby("rank")["shows"].mean()
    is_regular = ranks["rank"].map(share_of_iterations) >= _MIN_SHARE_OF_ITERATIONS
    slow = ranks[ranks["slow"] & is_regular]
    is_slow_anyway = iterations["rank"].isin(slow["rank"])
    moving = iterations[iterations["slow"] & ~is_slow_anyway]
    for kind, rows in (
        (VerdictKind.SLOW_RANK, slow),
        (VerdictKind.MOVING_STRAGGLER, moving),
    ):
        for row in table_rows(rows):
            excess_ms = row.excess / NS_PER_MS
            longer_ms = row.longer / NS_PER_MS
            excess_percent = 100 * row.excess / row.time
            evidence = (
                f"others waited {excess_ms:,.3f} ms more for it than for the median "
                f"rank in the same position ({excess_percent:.1f} % of the time of "
                f"all ranks); it spent {longer_ms:,.3f} ms more than they did in "
                f"{row.cause}"
            )
            verdict = Verdict(
                verdict=kind,
                rank=row.rank,
                iteration=row.iteration or None,
                cause=row.cause,
                ms=excess_ms,
                evidence=evidence,
            )
            job.verdicts.append(verdict)


def _judged(job: Job, rows: pd.DataFrame) -> pd.DataFrame:
    """Return how each rank differs from the median rank of its place, by iteration.

    Args:
        job: tells the places.
        rows: `rank`, `iteration`, `total`, the time of each activity, and `caused`, how long others
            waited for it, ns.

    Returns:
        `rank`, `iteration`, `time` of all ranks, the `excess` of what others waited, the `cause`
        and how much `longer` the rank took with it, whether its own work `shows` that it is slow,
        and whether it is `slow`.
    """
    rows = rows.fillna({"caused": 0.0})
    activities = list(OWN_ACTIVITIES)
    place = rows["rank"].map(lambda rank: str(job.place_of_rank.get(rank, "")))
    of_place = rows.groupby([place.rename("place"), "iteration"])
    # A rank that is alone in its place is its own median.
    values = activities + ["caused"]
    more = rows[values] - of_place[values].transform("median")
    own_more = more[activities]
    excess = more["caused"]
    iteration = rows["iteration"]
    time_of_all = rows["total"].groupby(iteration).transform("sum")
    # Time without kernels shows it in any of its forms, or computation or data loading alone.
    without_kernels = own_more[activities[1:]].sum(axis=1)
    longest_work = own_more[activities[:2]].max(axis=1)
    evident = np.maximum(without_kernels, longest_work)
    shows = (evident >= _MIN_SHARE * rows["total"]) & (evident > 0)
    largest_excess = excess.groupby(iteration).transform("max")
    enough = np.maximum(_MIN_SHARE * time_of_all, _MIN_PART_OF_LARGEST * largest_excess)
    makes_others_wait = (excess >= enough) & (excess > 0)
    return rows[["rank", "iteration"]].assign(
        time=time_of_all,
        excess=excess,
        longer=own_more.max(axis=1),
        cause=own_more.idxmax(axis=1) if len(own_more) else "",
        shows=shows,
        slow=shows & makes_others_wait,
    )


# Slow links.


def _find_slow_links(job: Job) -> None:
    """Find ranks whose transfers take longer than those of other groups of the same kind."""
    calls = job.calls[job.calls["in_sync"].notna() & (job.calls["bytes"] > 0)]
    usual = _usual_transfer(calls)
    calls = calls.assign(usual=usual)[usual.notna()]
    for _, calls_of_set in calls.groupby("set", sort=True):
        factor = calls_of_set["in_sync"] / calls_of_set["usual"]
        is_slow = factor >= _SLOW_LINK_FACTOR
        if len(calls_of_set) < _MIN_CALLS or is_slow.mean() < _MIN_SHARE_OF_CALLS:
            continue
        lost_ms = (calls_of_set["in_sync"] - calls_of_set["usual"]).sum() / NS_PER_MS
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


def _usual_transfer(calls: pd.DataFrame) -> pd.Series:
    """Return the median transfer of equal calls of other ranks, ns; NaN if there are none."""
    usual = pd.Series(np.nan, index=calls.index)
    keys = ["collective", "bytes", "group_size", "span"]
    for _, equal_calls in calls.groupby(keys, sort=False):
        transfer = equal_calls["in_sync"].to_numpy()
        set_number = equal_calls["set"].to_numpy()
        sets = np.unique(set_number)
        if len(sets) < 2:
            continue
        for number in sets:
            is_of_set = set_number == number
            usual[equal_calls.index[is_of_set]] = np.median(transfer[~is_of_set])
    return usual


# Missing ranks, late ranks, sizes.


def _find_missing_ranks(job: Job) -> None:
    """Find ranks of the job that no trace is of."""
    world_size = job.world_size or 0
    if world_size > _MAX_LISTED_RANKS:
        return
    known = set(job.place_of_rank) | set(job.failed_ranks)
    for rank in range(world_size):
        if rank not in known:
            evidence = (
                f"the job had {world_size} ranks, but there is no trace of rank {rank}"
            )
            verdict = Verdict(
                verdict=VerdictKind.MISSING_RANK, rank=rank, evidence=evidence
            )
            job.verdicts.append(verdict)


def _find_late_starts(job: Job) -> None:
    """Find ranks whose recording begins in a later iteration than that of others."""
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


def _find_mismatches(job: Job) -> None:
    """Find ranks that call a collective with another size than the others."""
    for call in table_rows(job.calls[job.calls["state"] == CallState.MISMATCH]):
        kernels = job.kernels[job.kernels["call"] == call.call]
        for kernel in table_rows(
            kernels[
                _is_odd(
                    job=job,
                    call=call,
                    kernels=kernels,
                )
            ]
        ):
            has_other_size = kernels["sizes"] != kernel.sizes
            others_elements = kernels.loc[has_other_size, "elements"].iloc[0]
            evidence = (
                f"rank {kernel.rank} has {kernel.elements:,.0f} elements in a "
                f"{call.collective} in which others have {others_elements:,.0f}"
            )
            verdict = Verdict(
                verdict=VerdictKind.MISMATCH,
                rank=kernel.rank,
                process_group=call.process_group,
                iteration=call.iteration,
                evidence=evidence,
            )
            job.verdicts.append(verdict)


def _is_odd(job: Job, call: Any, kernels: pd.DataFrame) -> pd.Series:  # noqa: ANN401
    """Return which kernels of a call have another size than most."""
    count_of_size = kernels["sizes"].value_counts()
    has_majority = count_of_size.iloc[0] != count_of_size.iloc[-1]
    if has_majority:
        has_other_size: pd.Series = kernels["sizes"] != count_of_size.index[0]
        return has_other_size
    # Without one, a rank is odd that has another size than in the same call of other iterations.
    keys = ["set", "collective", "dtype", "sequence"]
    is_same_call = (job.calls[keys] == [getattr(call, key) for key in keys]).all(axis=1)
    is_other = job.calls["call"] != call.call
    other_calls = job.calls.loc[is_same_call & is_other, "call"]
    other_kernels = job.kernels[job.kernels["call"].isin(other_calls)]
    usual = set(zip(other_kernels["rank"], other_kernels["sizes"], strict=True))
    is_odd = [
        rank_and_size not in usual
        for rank_and_size in zip(kernels["rank"], kernels["sizes"], strict=True)
    ]
    return pd.Series(is_odd, kernels.index, dtype=bool)


# Hangs and lost calls.


class _Hang(NamedTuple):
    """A call that never ended, or never began."""

    start: float  #: ns, on the common clock
    process_group: str
    iteration: str
    absent_ranks: list[int]  #: those that never entered it
    words: str


def _find_hangs(job: Job) -> set[int]:
    """Find the ranks that never entered a call in which others wait; return them."""
    hangs, halted_ranks = _endless_calls(job)
    hangs += _calls_never_recorded(job)
    halted_ranks.update(job.stuck["rank"].tolist())
    reported: set[int] = set()
    for hang in sorted(hangs, key=lambda hang: hang.start):
        absent = job.with_traces(hang.absent_ranks)
        for rank in sorted(absent - halted_ranks - reported):
            reported.add(rank)
            verdict = Verdict(
                verdict=VerdictKind.HANG,
                rank=rank,
                process_group=hang.process_group,
                iteration=hang.iteration,
                evidence=f"it never entered the last call of its group: {hang.words}",
            )
            job.verdicts.append(verdict)
    return reported


class _EndlessCalls(NamedTuple):
    """Calls that were recorded and never ended."""

    hangs: list[_Hang]
    halted_ranks: set[int]  #: those that wait in them


def _endless_calls(job: Job) -> _EndlessCalls:
    """Find incomplete calls, the last of their group, that take far too long; mark them."""
    calls = job.calls
    complete = job.kernels[job.kernels["complete"]]
    longest_of_set = complete.groupby("set")["dur"].max()
    is_last = calls["end"] >= calls.groupby("set")["end"].transform("max")
    is_incomplete = calls["state"] == CallState.INCOMPLETE
    hangs = []
    halted_ranks: set[int] = set()
    for call in table_rows(calls[is_last & is_incomplete]):
        kernels = job.kernels[job.kernels["call"] == call.call]
        shortest = kernels["dur"].min()
        longest_complete = longest_of_set.get(call.set, np.nan)
        absent = [
            rank
            for rank in numbers_in(call.missing_ranks)
            if not job.communicates_after(rank, call.end)
        ]
        takes_too_long = shortest >= _HANG_FACTOR * longest_complete
        if not takes_too_long or not job.with_traces(absent):
            continue
        halted_ranks.update(kernels["rank"].tolist())
        calls.loc[call.Index, ["state", "reason"]] = [
            CallState.HANG.value,
            "it never finished",
        ]
        words = (
            f"the others' kernels ran {shortest / NS_PER_MS:,.3f} ms; those of a "
            f"complete call run at most {longest_complete / NS_PER_MS:,.3f} ms"
        )
        hangs.append(
            _Hang(
                start=call.start,
                process_group=call.process_group,
                iteration=call.iteration,
                absent_ranks=absent,
                words=words,
            )
        )
    return _EndlessCalls(hangs, halted_ranks)


def _calls_never_recorded(job: Job) -> list[_Hang]:
    """Find calls that ranks launched at the end of the recording and that never ran."""
    iteration = _numbers(job.kernels["iteration"])
    last_iteration = iteration.groupby(job.kernels["rank"]).max()
    hangs = []
    for _, stuck in job.stuck.groupby("set", sort=False):
        stuck_iteration = _numbers(stuck["iteration"]).max()
        first = stuck.iloc[0]
        absent = [
            rank
            for rank in numbers_in(first["members"])
            if not last_iteration.get(rank, -np.inf) > stuck_iteration
        ]
        hang = _Hang(
            start=stuck["launch"].min(),
            process_group=first["Process Group Name"],
            iteration=first["iteration"],
            absent_ranks=absent,
            words=f"{len(stuck)} ranks launched it, but no kernel of it was recorded",
        )
        hangs.append(hang)
    return hangs


def _find_lost_calls(job: Job, hanging_ranks: set[int]) -> None:
    """Find calls that a single rank does not have, though it goes on communicating."""
    for call in table_rows(job.calls[job.calls["state"] == CallState.INCOMPLETE]):
        iteration = pd.to_numeric(call.iteration, errors="coerce")
        lost = [
            rank
            for rank in numbers_in(call.missing_ranks)
            if rank in job.last_start.index
            and not job.first_iteration.get(rank, -np.inf) > iteration
        ]
        if len(lost) != 1:
            continue
        rank = lost[0]
        if rank in hanging_ranks or not job.communicates_after(rank, call.end):
            continue
        evidence = (
            f"only {call.n} of {call.group_size:.0f} ranks took part in a "
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
