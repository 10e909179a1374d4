"""Whose fault it is: ranks and links that are slow, ranks and calls that are missing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.ranks.matching import PAIR
from tracelens_ext.ranks.part import OWN
from tracelens_ext.trace import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COLUMNS = ("verdict", "rank", "process_group", "iteration", "cause", "ms", "evidence")
#: A slow rank costs this share of the time of all, and a third of what the slowest costs.
_SHARE, _OF_LARGEST, _OFTEN = 0.02, 1 / 3, 0.75
#: A slow link takes so many times as long as others, in this share of so many calls.
_SLOWER, _MOSTLY, _CALLS = 1.5, 0.8, 3
_HANGS = 10.0  #: times the longest complete call of its group


@dataclass
class Job:
    """What the verdicts are made of.

    Attributes:
        calls: as in `collective_sync`, and `set`, `start`, `end` (ns, on the common clock).
        kernels: of them; `start`, `end` on the common clock.
        stuck: a row a rank and group, the call that it launched and that was never recorded.
        origins: as in `wait_origins`.
        iterations: a row a rank and iteration: `total` and `OWN`, ns.
        place: rank → what it shares with the ranks that it is compared with.
        world: how many ranks the job had; None if no trace says.
        failed: ranks whose traces could not be read.
    """

    calls: pd.DataFrame
    kernels: pd.DataFrame
    stuck: pd.DataFrame
    origins: pd.DataFrame
    iterations: pd.DataFrame
    place: Mapping[int, object]
    world: int | None
    failed: Sequence[int] = ()
    rows: list[dict[str, object]] = field(default_factory=list)

    def say(self, verdict: str, evidence: str, **more: object) -> None:
        """Add a verdict."""
        self.rows.append({"verdict": verdict, "evidence": evidence} | more)


def find_verdicts(job: Job) -> pd.DataFrame:
    """All verdicts; sets the `state` of calls that hang."""
    _slow_ranks(job)
    _slow_links(job)
    _late_and_missing(job)
    _mismatches(job)
    hung = _hangs(job)
    _lost_calls(job, hung)
    frame = pd.DataFrame(job.rows, columns=list(COLUMNS))
    texts = dict.fromkeys(("verdict", "process_group", "iteration", "cause", "evidence"), "str")
    return frame.astype(texts | {"rank": "Int64", "ms": "float64"})


def _excess(values: pd.DataFrame, place: pd.Series) -> pd.DataFrame:
    """How much more each rank has than the median of its place; nothing for a rank that is alone.

    Args:
        values: a row a rank (and iteration), the place beside it in `place`.
    """
    keys = [place, values.index.get_level_values("iteration")]
    groups = values.groupby(keys, sort=False)
    there = groups[values.columns[0]].transform("size") > 1
    return (values - groups.transform("median")).where(there, 0.0)


def _slow_ranks(job: Job) -> None:
    steps = job.iterations.set_index(["rank", "iteration"])
    own = job.origins[job.origins["cause"].isin(OWN)]
    if not len(steps) or not len(own):
        return
    caused = own.groupby(["rank", "iteration"])["wait_ms"].sum() * NS_PER_MS
    found = steps[["total", *OWN]].astype("float64")
    found["caused"] = caused.reindex(found.index).fillna(0.0)
    outside = caused[~caused.index.isin(found.index)].groupby("rank").sum()
    whole = found.groupby("rank").sum()
    whole["caused"] += outside.reindex(whole.index).fillna(0.0)
    whole = whole.assign(iteration="").set_index("iteration", append=True)
    every, each = _judged(job, whole), _judged(job, found)
    often = each["busy"].groupby("rank").mean().reindex(every.index.get_level_values("rank"))
    slow = every[every["caused_it"] & every["busy"] & (often.to_numpy() >= _OFTEN)]
    ranks = slow.index.get_level_values("rank")
    for (rank, _), row in slow.iterrows():
        job.say(
            "slow_rank",
            _slow_words(row, "the recording"),
            rank=rank,
            cause=row["cause"],
            ms=row["excess"] / NS_PER_MS,
        )
    moving = each[each["caused_it"] & each["busy"]]
    moving = moving[~moving.index.get_level_values("rank").isin(ranks)]
    for (rank, iteration), row in moving.iterrows():
        job.say(
            "moving_straggler",
            _slow_words(row, f"iteration {iteration}"),
            rank=rank,
            iteration=iteration,
            cause=row["cause"],
            ms=row["excess"] / NS_PER_MS,
        )


def _judged(job: Job, found: pd.DataFrame) -> pd.DataFrame:
    """Whether each rank made others wait, and whether its own work shows why."""
    ranks = found.index.get_level_values("rank").to_series(index=found.index)
    place = ranks.map(lambda rank: str(job.place.get(rank, "")))
    more = _excess(found[[*OWN, "caused"]], place)
    iteration = found.index.get_level_values("iteration")
    time = found["total"].groupby(iteration).transform("sum")
    largest = more["caused"].groupby(iteration).transform("max")
    kinds = more[list(OWN)]
    longest = pd.concat(
        [kinds["computation"], kinds["data_loader"], kinds[list(OWN[1:])].sum(axis=1)], axis=1
    ).max(axis=1)
    result = pd.DataFrame({"excess": more["caused"], "time": time, "longer": kinds.max(axis=1)})
    result["cause"] = kinds.idxmax(axis=1)
    result["caused_it"] = (
        (more["caused"] >= _SHARE * time)
        & (more["caused"] >= _OF_LARGEST * largest)
        & (more["caused"] > 0)
    )
    result["busy"] = (longest >= _SHARE * found["total"]) & (longest > 0)
    return result


def _slow_words(row: pd.Series, when: str) -> str:
    spent = {
        "computation": "its kernels took",
        "data_loader": "its data loader took",
        "host": "its host took",
        "idle": "it was idle",
    }[row["cause"]]
    return (
        f"in {when} others waited {row['excess'] / NS_PER_MS:,.3f} ms more for it than for the"
        f" median rank of its place ({100 * row['excess'] / row['time']:.1f} % of the time of all"
        f" ranks); {spent} {row['longer'] / NS_PER_MS:,.3f} ms longer than theirs"
    )


def _slow_links(job: Job) -> None:
    calls = job.calls[job.calls["in_sync"].notna() & (job.calls["bytes"] > 0)]
    keys = ["collective", "bytes", "group_size", "span"]
    usual = pd.Series(np.nan, index=calls.index)
    for _, like in calls.groupby(keys, sort=False, dropna=False):
        if like["set"].nunique() > 1:
            time, of = like["in_sync"].to_numpy(), like["set"].to_numpy()
            order = np.argsort(time, kind="stable")
            for number in np.unique(of).tolist():
                usual[like.index[of == number]] = _median(time[order][of[order] != number])
    calls = calls.assign(usual=usual)[usual.notna()]
    calls["slow"] = calls["in_sync"] >= _SLOWER * calls["usual"]
    calls["more"] = calls["in_sync"] - calls["usual"]
    for _, mine in calls.groupby("set", sort=True):
        if len(mine) < _CALLS or mine["slow"].mean() < _MOSTLY:
            continue
        ms, times = mine["more"].sum() / NS_PER_MS, (mine["in_sync"] / mine["usual"]).median()
        job.say(
            "slow_link",
            f"{int(mine['slow'].sum())} of {len(mine)} calls of ranks {mine['ranks'].iloc[0]} took"
            f" at least {_SLOWER} times as long as those of other groups of the same kind and size"
            f" (the median {times:.2f} times), together {ms:,.3f} ms more",
            process_group=mine["process_group"].iloc[0],
            cause="slow_transfer",
            ms=ms,
        )


def _median(ordered: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """The median of numbers in their order."""
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _first_iterations(job: Job) -> pd.Series:
    number = pd.to_numeric(job.iterations["iteration"], errors="coerce")
    return number.groupby(job.iterations["rank"]).min().dropna()


def _late_and_missing(job: Job) -> None:
    there = {*job.place, *job.failed}
    if job.world is not None and job.world <= 100_000:
        for rank in sorted({*range(job.world)} - there):
            job.say(
                "missing_rank",
                f"the job had {job.world} ranks; no trace is of rank {rank}",
                rank=rank,
            )
    first = _first_iterations(job)
    for rank, number in first[first > first.min()].items():
        job.say(
            "late_start",
            f"its first iteration is {number:.0f}, that of others {first.min():.0f}",
            rank=rank,
            iteration=f"{number:.0f}",
        )


def _mismatches(job: Job) -> None:
    wrong = job.calls[job.calls["state"] == "mismatch"]
    if not len(wrong):
        return
    keys = ["set", "collective", "dtype", "sequence"]
    kernels = job.kernels.merge(
        job.calls[["call", "state", *keys[1:]]], on="call", suffixes=("_", "")
    )
    for call in wrong.itertuples():
        mine = kernels[kernels["call"] == call.call]
        counted = mine["sizes"].value_counts()
        odd = mine[mine["sizes"] != counted.index[0]]
        if len(counted) == 2 and counted.iloc[0] == counted.iloc[1]:
            same = (kernels[keys] == mine[keys].iloc[0]).all(axis=1)
            usual = kernels[same & (kernels["call"] != call.call)].groupby("rank")["sizes"].agg(set)
            odd = mine[
                [
                    r in usual.index and s not in usual[r]
                    for r, s in zip(mine["rank"], mine["sizes"], strict=True)
                ]
            ]
        for row in odd.itertuples():
            sizes = f"{row._asdict()['elements']:,.0f}"
            others = mine.loc[mine["rank"] != row.rank, "elements"].iloc[0]
            job.say(
                "mismatch",
                f"rank {row.rank} has {sizes} elements in a {call.collective} in"
                f" which others have {others:,.0f}",
                rank=row.rank,
                process_group=call.process_group,
                iteration=call.iteration,
            )


def _hangs(job: Job) -> set[int]:
    """Say which ranks never entered a call that others wait in; mark the calls. Answers the calls."""
    calls, kernels = job.calls, job.kernels
    last = kernels.groupby("rank")["start"].max()
    longest = (
        calls[calls["in_sync"].notna()]
        .merge(kernels.groupby("call")["dur"].max().rename("dur"), left_on="call", right_index=True)
        .groupby("set")["dur"]
        .max()
    )
    final = calls.groupby("set")["end"].max()
    found: list[tuple[float, str, str, list[int], int, str]] = []
    halted: set[int] = set()
    open_ = calls[(calls["state"] == "incomplete") & (calls["missing_ranks"] != "")]
    for row in open_[open_["end"] >= open_["set"].map(final)].itertuples():
        missing = [int(r) for r in re.findall(r"\d+", row.missing_ranks)]
        least = kernels.loc[kernels["call"] == row.call, "dur"].min()
        usual = longest.get(row.set, np.nan)
        absent = [r for r in missing if r in job.place and not last.get(r, -np.inf) > row.end]
        if not least >= _HANGS * usual or not absent:
            continue
        words = f"the others' kernels ran {least / NS_PER_MS:,.3f} ms, {least / usual:,.0f} times"
        words += " as long as the longest complete call"
        halted |= {*kernels.loc[kernels["call"] == row.call, "rank"]}
        found.append((row.start, row.process_group, row.iteration, absent, row.call, words))
    step = pd.to_numeric(kernels["iteration"], errors="coerce").groupby(kernels["rank"]).max()
    for _, part in job.stuck.groupby("set", sort=False):
        inside = {*part["rank"]}
        halted |= inside
        members = {int(r) for r in re.findall(r"\d+", part["members"].iloc[0])}
        number = pd.to_numeric(part["iteration"], errors="coerce").max()
        absent = sorted(
            r for r in members - inside if r in job.place and not step.get(r, -np.inf) > number
        )
        words = f"{len(inside)} ranks launched it, and no kernel of it was recorded"
        found.append(
            (
                part["launch"].min(),
                part["Process Group Name"].iloc[0],
                part["iteration"].iloc[0],
                absent,
                -1,
                words,
            )
        )
    said: set[int] = set()
    for _, group, iteration, absent, call, words in sorted(found, key=lambda each: each[0]):
        if call >= 0:
            calls.loc[calls["call"] == call, ["state", "reason"]] = ["hang", "it never ended"]
        for rank in sorted({*absent} - halted - said):
            said.add(rank)
            job.say(
                "hang",
                f"rank {rank} never entered the last call of its group: {words}",
                rank=rank,
                process_group=group,
                iteration=iteration,
            )
    return said


def _lost_calls(job: Job, hung: set[int]) -> None:
    last = job.kernels.groupby("rank")["start"].max()
    first = _first_iterations(job)
    for row in job.calls[job.calls["state"] == "incomplete"].itertuples():
        missing = [int(r) for r in re.findall(r"\d+", row.missing_ranks)]
        number = pd.to_numeric(row.iteration, errors="coerce")
        lost = [r for r in missing if r in last.index and not first.get(r, -np.inf) > number]
        unknown = [r for r in missing if r not in lost]
        if len(lost) != 1 or lost[0] in hung or not last[lost[0]] > row.end:
            continue
        if any(r in job.place and r not in first.index for r in unknown):
            continue
        what = "a pair's call" if row.collective == PAIR else f"a call of {row.collective}"
        job.say(
            "lost_call",
            f"{what} has {row.n} of {row.group_size:.0f} ranks; the calls after it"
            f" have rank {lost[0]} again",
            rank=lost[0],
            process_group=row.process_group,
            iteration=row.iteration,
        )
