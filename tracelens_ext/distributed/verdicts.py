"""Whose fault it is: ranks and links that are slow, ranks and calls that are missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracelens_ext.distributed.extract import OWN, numbers_in
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_MS

_COLUMNS = ["verdict", "rank", "process_group", "iteration", "cause", "ms", "evidence"]
_TYPES = dict.fromkeys(_COLUMNS, "str") | {"rank": "Int64", "ms": "float64"}
#: A slow rank costs this share of the time of all, and a third of what the slowest costs.
_SHARE = 0.02
_OF_LARGEST = 1 / 3
_OFTEN = 0.75
#: A slow link takes so many times as long as others, in this share of so many calls.
_SLOWER = 1.5
_MOSTLY = 0.8
_CALLS = 3
_MOST_RANKS = 100_000  #: missing ones of more are not listed
_HANGS = 10.0  #: times the longest complete call of its group


@dataclass
class Job:
    """What the verdicts are made of."""

    #: as in `collective_sync`, and `set`, `start`, `end` (ns, on the common clock)
    calls: pd.DataFrame
    kernels: pd.DataFrame  #: of them; `start`, `end` on the common clock
    stuck: pd.DataFrame  #: a row a rank and group: what it launched and was never recorded
    origins: pd.DataFrame  #: as in `wait_origins`
    iterations: pd.DataFrame  #: a row a rank and iteration: `total` and `OWN`, ns
    place: Mapping[int, object]  #: rank → what it shares with the ranks that it is compared with
    world: int | None  #: how many ranks the job had; None if no trace says
    failed: Sequence[int] = ()  #: ranks whose traces could not be read
    rows: list[dict[str, object]] = field(default_factory=list)

    def say(self, verdict: str, evidence: str, **more: object) -> None:
        """Add a verdict."""
        self.rows.append({"verdict": verdict, "evidence": evidence} | more)

    def __post_init__(self) -> None:
        step = pd.to_numeric(self.iterations["iteration"], errors="coerce")
        #: the first iteration of each rank, and the start of its last call
        self.first = step.groupby(self.iterations["rank"]).min().dropna()
        self.last = self.kernels.groupby("rank")["start"].max()

    def goes_on(self, rank: int, after: float) -> bool:
        """Whether a rank communicates after a moment."""
        return bool(self.last.get(rank, -np.inf) > after)


def find_verdicts(job: Job) -> pd.DataFrame:
    """All verdicts; sets the `state` of calls that hang."""
    _slow_ranks(job)
    _slow_links(job)
    _late_and_missing(job)
    _mismatches(job)
    _lost_calls(job, _hangs(job))
    return pd.DataFrame(job.rows, columns=_COLUMNS).astype(_TYPES)


def _each(rows: pd.DataFrame) -> Iterable[Any]:
    return rows.itertuples()


def _slow_ranks(job: Job) -> None:
    own = job.origins[job.origins["cause"].isin(OWN)]
    keys = ["rank", "iteration"]
    caused = own.groupby(keys)["wait_ms"].sum().rename("caused") * NS_PER_MS
    steps = job.iterations.astype(dict.fromkeys(("total", *OWN), "float64"))
    whole = steps.drop(columns="iteration").groupby("rank").sum()
    whole = whole.assign(caused=caused.groupby("rank").sum(), iteration="").reset_index()
    every = _judged(job, whole)
    each = _judged(job, steps.merge(caused.reset_index(), "left", keys))
    often = every["rank"].map(each.groupby("rank")["shows"].mean()) >= _OFTEN
    slow = every[every["slow"] & often]
    moving = each[each["slow"] & ~each["rank"].isin(slow["rank"])]
    for verdict, rows in (("slow_rank", slow), ("moving_straggler", moving)):
        for row in _each(rows):
            step = row.iteration or None
            ms = row.excess / NS_PER_MS
            evidence = (
                f"others waited {ms:,.3f} ms more for it than for the median rank of its place"
            )
            evidence += f" ({100 * row.excess / row.time:.1f} % of the time of all ranks); it spent"
            evidence += f" {row.longer / NS_PER_MS:,.3f} ms more in {row.cause} than they"
            job.say(verdict, evidence, rank=row.rank, iteration=step, cause=row.cause, ms=ms)


def _judged(job: Job, found: pd.DataFrame) -> pd.DataFrame:
    """Whether each rank made others wait, and whether its own work shows why, by iteration."""
    found = found.fillna({"caused": 0.0})
    values = [*OWN, "caused"]
    place = found["rank"].map(lambda rank: str(job.place.get(rank, "")))
    of_place = found.groupby([place.rename("place"), "iteration"])
    # A rank that is alone in its place is its own median.
    more = found[values] - of_place[values].transform("median")
    own = more[[*OWN]]
    excess = more["caused"]
    of_step = found["iteration"]
    time = found["total"].groupby(of_step).transform("sum")
    longest = np.maximum(own[[*OWN[1:]]].sum(axis=1), own[[*OWN[:2]]].max(axis=1))
    shows = (longest >= _SHARE * found["total"]) & (longest > 0)
    enough = np.maximum(_SHARE * time, _OF_LARGEST * excess.groupby(of_step).transform("max"))
    cause = own.idxmax(axis=1) if len(own) else ""
    slow = (excess >= enough) & (excess > 0)
    result = found[["rank", "iteration"]].assign(time=time, excess=excess, longer=own.max(axis=1))
    return result.assign(cause=cause, shows=shows, slow=shows & slow)


def _slow_links(job: Job) -> None:
    calls = job.calls[job.calls["in_sync"].notna() & (job.calls["bytes"] > 0)]
    usual = pd.Series(np.nan, index=calls.index)
    for _, like in calls.groupby(["collective", "bytes", "group_size", "span"], sort=False):
        time = like["in_sync"].to_numpy()
        of = like["set"].to_numpy()
        for number in np.unique(of) if (of != of[0]).any() else ():
            usual[like.index[of == number]] = np.median(time[of != number])
    calls = calls.assign(usual=usual)[usual.notna()]
    for _, mine in calls.groupby("set", sort=True):
        times = mine["in_sync"] / mine["usual"]
        if len(mine) < _CALLS or (times >= _SLOWER).mean() < _MOSTLY:
            continue
        ms = (mine["in_sync"] - mine["usual"]).sum() / NS_PER_MS
        first = mine.iloc[0]
        evidence = f"{(times >= _SLOWER).sum()} of {len(mine)} calls of ranks {first['ranks']} took"
        evidence += f" at least {_SLOWER} times as long as the median of other groups' of the same"
        evidence += f" kind and size ({times.median():.2f} times in the middle), {ms:,.3f} ms more"
        group = first["process_group"]
        job.say("slow_link", evidence, process_group=group, cause="slow_transfer", ms=ms)


def _late_and_missing(job: Job) -> None:
    world = job.world or 0
    listed = {*range(world if world <= _MOST_RANKS else 0)}
    for rank in sorted(listed - {*job.place, *job.failed}):
        job.say("missing_rank", f"the job had {world} ranks; no trace is of rank {rank}", rank=rank)
    for rank, step in job.first[job.first > job.first.min()].items():
        evidence = f"its first iteration is {step:.0f}, that of others {job.first.min():.0f}"
        job.say("late_start", evidence, rank=rank, iteration=f"{step:.0f}")


def _mismatches(job: Job) -> None:
    for call in _each(job.calls[job.calls["state"] == "mismatch"]):
        mine = job.kernels[job.kernels["call"] == call.call]
        counted = mine["sizes"].value_counts()
        odd = mine["sizes"] != counted.index[0]
        if counted.iloc[0] == counted.iloc[-1]:  # which differs from its own other calls?
            keys = ["set", "collective", "dtype", "sequence"]
            same = (job.calls[keys] == [getattr(call, key) for key in keys]).all(axis=1)
            alike = job.calls.loc[same & (job.calls["call"] != call.call), "call"]
            theirs = job.kernels[job.kernels["call"].isin(alike)]
            usual = set(zip(theirs["rank"], theirs["sizes"], strict=True))
            odd = [each not in usual for each in zip(mine["rank"], mine["sizes"], strict=True)]
        for row in _each(mine[odd]):
            others = mine.loc[mine["sizes"] != row.sizes, "elements"].iloc[0]
            evidence = f"rank {row.rank} has {row.elements:,.0f} elements in a {call.collective}"
            evidence += f" in which others have {others:,.0f}"
            of = {"process_group": call.process_group, "iteration": call.iteration}
            job.say("mismatch", evidence, rank=row.rank, **of)


def _hangs(job: Job) -> set[int]:
    """Say which ranks never entered a call in which others wait, and mark it."""
    calls = job.calls
    kernels = job.kernels
    halted = {*job.stuck["rank"]}
    found: list[tuple[Any, ...]] = []
    longest = kernels[kernels["complete"]].groupby("set")["dur"].max()
    final = calls["end"] >= calls.groupby("set")["end"].transform("max")
    for row in _each(calls[final & (calls["state"] == "incomplete")]):
        mine = kernels[kernels["call"] == row.call]
        least = mine["dur"].min()
        usual = longest.get(row.set, np.nan)
        absent = [r for r in numbers_in(row.missing_ranks) if not job.goes_on(r, row.end)]
        if least >= _HANGS * usual and {*absent} & {*job.place}:
            halted |= {*mine["rank"]}
            calls.loc[row.Index, ["state", "reason"]] = ["hang", "it never ended"]
            words = f"the others' kernels ran {least / NS_PER_MS:,.3f} ms, that of a complete call"
            words += f" at most {usual / NS_PER_MS:,.3f} ms"
            found.append((row.start, row.process_group, row.iteration, absent, words))
    step = pd.to_numeric(kernels["iteration"], errors="coerce").groupby(kernels["rank"]).max()
    for _, part in job.stuck.groupby("set", sort=False):
        last = pd.to_numeric(part["iteration"], errors="coerce").max()
        one = part.iloc[0]
        absent = [r for r in numbers_in(one["members"]) if not step.get(r, -np.inf) > last]
        words = f"{len(part)} ranks launched it, and no kernel of it was recorded"
        group = one["Process Group Name"]
        iteration = one["iteration"]
        found.append((part["launch"].min(), group, iteration, absent, words))
    said: set[int] = set()
    for _, group, iteration, absent, words in sorted(found, key=lambda each: each[0]):
        for rank in sorted(({*absent} & {*job.place}) - halted - said):
            said.add(rank)
            evidence = f"it never entered the last call of its group: {words}"
            job.say("hang", evidence, rank=rank, process_group=group, iteration=iteration)
    return said


def _lost_calls(job: Job, hung: set[int]) -> None:
    for row in _each(job.calls[job.calls["state"] == "incomplete"]):
        step = pd.to_numeric(row.iteration, errors="coerce")
        missing = [r for r in numbers_in(row.missing_ranks) if r in job.last.index]
        lost = [r for r in missing if not job.first.get(r, -np.inf) > step]
        if len(lost) == 1 and lost[0] not in hung and job.goes_on(lost[0], row.end):
            evidence = f"a {row.collective} has {row.n} of {row.group_size:.0f} ranks, and rank"
            evidence += f" {lost[0]} goes on communicating"
            of = {"process_group": row.process_group, "iteration": row.iteration}
            job.say("lost_call", evidence, rank=lost[0], **of)
