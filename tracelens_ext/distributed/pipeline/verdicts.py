"""What makes a pipeline slow: an uneven stage, slow transfers, or too few micro-batches.

Each saving is simulated: the schedule with the recorded computation of each stage and the recorded
transfers, against the same with the fault removed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tracelens_ext.distributed.pipeline.schedules import (
    Schedule,
    ScheduleKind,
    simulated_window,
)
from tracelens_ext.distributed.pipeline.tables import PipelineIteration, PipelineJob
from tracelens_ext.distributed.pipeline.times import StageTimes, TimeKind
from tracelens_ext.distributed.verdicts import Verdict, VerdictKind
from tracelens_ext.lazy import pd
from tracelens_ext.trace import NS_PER_MS, Float64Array

#: A stage is uneven if it computes so much more or less than the median of the others.
_MIN_DEVIATION = 0.08
#: A link is slow if its transfers take so many times as long as the median of the other links'.
_SLOW_LINK_FACTOR = 1.5
#: All transfers are slow if stages spend this share of an iteration on them, or if an iteration
#: without them would be shorter by it.
_MAX_TRANSFER_SHARE = 0.06
#: What is less than this share of an iteration is not worth a verdict.
_MIN_SAVING = 0.02
_MIN_LINK_SAVING = 0.003
#: With four times as many micro-batches as stages, the bubble is small (Huang et al., GPipe, 2019,
#: section 2.3).
_ENOUGH_MICRO_BATCHES = 4
_MAX_NAMED_RANKS = 4


@dataclass(frozen=True)
class _PipelineMeans:
    """A pipeline in the mean of its replicas and iterations, ns."""

    schedule: Schedule
    window: float
    computation: Float64Array  #: of each stage, (p,)
    transfer: Float64Array  #: of one, between each stage and the next, (p - 1,) or (p,)
    transfer_share: float  #: of an iteration, the mean of the stages
    bubble_share: float
    ranks_of_stage: Sequence[Sequence[int]]
    iteration_count: int

    def simulated(self) -> float:
        """Return how long an iteration lasts by simulation, ns."""
        return simulated_window(
            schedule=self.schedule,
            computation=self.computation,
            transfer=self.transfer,
        )


@dataclass(frozen=True)
class _Saving:
    """What a change would save."""

    share: float  #: of the iteration
    ms: float  #: of an iteration
    error_percent: float  #: of the simulation of what was recorded


def find_pipeline_verdicts(job: PipelineJob) -> list[Verdict]:
    """Return the verdicts on the pipeline of a job; none where it has no pipeline.

    Too few micro-batches are a verdict only where no change to the stages or links saves much: the
    bubble is then that of the schedule itself.
    """
    means = _means(job)
    if means is None:
        return []
    verdicts = [_uneven_stage(means), _slow_transfer(means)]
    if not any(_saves_much(means, verdict) for verdict in verdicts):
        verdicts.append(_too_few_micro_batches(means))
    if verdicts[0] is None:
        verdicts.insert(0, _slow_stage(means))
    return [verdict for verdict in verdicts if verdict is not None]


def _saves_much(means: _PipelineMeans, verdict: Verdict | None) -> bool:
    """Tell whether there is a verdict whose saving is large, or not known."""
    if verdict is None:
        return False
    if verdict.ms is None:
        return True
    return verdict.ms >= _MIN_SAVING * means.window / NS_PER_MS


# The means.


def _means(job: PipelineJob) -> _PipelineMeans | None:
    """Return the means of the iterations with the most frequent schedule."""
    if not job.iterations:
        return None
    schedules = pd.Series([iteration.schedule for iteration in job.iterations])
    schedule = schedules.value_counts(sort=True).index[0]
    alike = [
        iteration for iteration in job.iterations if iteration.schedule == schedule
    ]
    rows = [_stage_row(times) for iteration in alike for times in iteration.times]
    frame = pd.DataFrame(rows)
    by_stage = frame.groupby("stage").mean().reindex(range(schedule.stages))
    computation = by_stage["computation"].to_numpy(np.float64)
    if np.isnan(computation).any():
        return None  # some stages have no traces
    window = float(frame["window"].mean())
    if window <= 0:
        return None
    return _PipelineMeans(
        schedule=schedule,
        window=window,
        computation=computation,
        transfer=_link_transfers(alike),
        transfer_share=float(by_stage["transfer"].mean()) / window,
        bubble_share=float(by_stage["bubble"].mean()) / window,
        ranks_of_stage=_ranks_of_stages(alike, schedule.stages),
        iteration_count=len({iteration.iteration for iteration in alike}),
    )


def _stage_row(times: StageTimes) -> dict[str, float]:
    """Return the times of a rank in an iteration that the means are made of."""
    return {
        "stage": times.stage,
        "window": times.window,
        "computation": times.time(TimeKind.COMPUTATION),
        "transfer": times.time(TimeKind.TRANSFER),
        "bubble": times.bubble,
    }


def _ranks_of_stages(
    iterations: Sequence[PipelineIteration], stages: int
) -> list[list[int]]:
    """Return the ranks of each stage."""
    ranks: list[set[int]] = [set() for _ in range(stages)]
    for iteration in iterations:
        for stage, rank in enumerate(iteration.pipeline.ranks):
            ranks[stage].add(rank)
    return [sorted(members) for members in ranks]


def _link_transfers(iterations: Sequence[PipelineIteration]) -> Float64Array:
    """Return the median transfer between each stage and the next, both ways, ns."""
    stages = iterations[0].schedule.stages
    is_ring = iterations[0].pipeline.is_ring
    parts = [_link_durations(iteration) for iteration in iterations]
    durations = pd.concat(parts, ignore_index=True)
    median = durations.groupby("link")["duration"].median()
    link_count = stages if is_ring else stages - 1
    of_links = median.reindex(range(link_count))
    transfer: Float64Array = of_links.fillna(of_links.median()).to_numpy(np.float64)
    return transfer


def _link_durations(iteration: PipelineIteration) -> pd.DataFrame:
    """Return a row for each call: its `link`, which is its earlier stage, and `duration`, ns."""
    calls = iteration.calls
    ranks = iteration.pipeline.ranks
    stage_of_rank = {rank: stage for stage, rank in enumerate(ranks)}
    source = calls["source"].map(stage_of_rank)
    target = calls["target"].map(stage_of_rank)
    earlier = source.clip(upper=target)
    wraps_around = (source - target).abs() > 1
    # A batch ends with its last transfer: only that is known to take until the end.
    is_known = calls["is_decisive"] & calls["other_start"].notna()
    duration = calls["part_end"] - calls["part_begin"]
    return pd.DataFrame(
        {
            "link": earlier.mask(wraps_around, len(ranks) - 1),
            "duration": duration.where(is_known),
        }
    )


# The verdicts.


def _saving(means: _PipelineMeans, changed: _PipelineMeans) -> _Saving | None:
    """Return what a change saves; None for a schedule that cannot be simulated."""
    if not means.schedule.can_be_simulated:
        return None
    recorded = means.simulated()
    share = 1.0 - changed.simulated() / recorded
    return _Saving(
        share=share,
        ms=share * means.window / NS_PER_MS,
        error_percent=100.0 * (recorded / means.window - 1.0),
    )


def _others_median(values: Float64Array) -> Float64Array:
    """Return for each value the median of all others, (n,)."""
    return np.array(
        [np.median(np.delete(values, index)) for index in range(len(values))]
    )


class _Deviation(NamedTuple):
    """The stage that computes most unlike the others."""

    stage: int
    usual: float  #: the median of the other stages, ns
    share: float  #: how much more or less it computes, as a share of that


def _largest_deviation(computation: Float64Array) -> _Deviation:
    """Return the stage that computes most unlike the others; of two the longer one."""
    usual = _others_median(computation)
    deviation = computation / np.maximum(usual, 1.0) - 1.0
    distance = deviation
    if len(computation) > 2:
        distance = np.abs(deviation)
    stage = int(np.argmax(distance))
    return _Deviation(
        stage=stage,
        usual=float(usual[stage]),
        share=float(deviation[stage]),
    )


def _uneven_stage(means: _PipelineMeans) -> Verdict | None:
    """Return the verdict on a stage whose work had better be spread over all stages."""
    computation = means.computation
    deviation = _largest_deviation(computation)
    if abs(deviation.share) < _MIN_DEVIATION:
        return None
    even = np.full_like(computation, computation.mean())
    saving = _saving(means, replace(means, computation=even))
    if saving is not None and saving.share < _MIN_SAVING:
        return None
    change = "spreading the same work evenly over the stages"
    advice = _saving_text(saving, change)
    return _stage_verdict(
        means=means,
        deviation=deviation,
        saving=saving,
        advice=advice,
    )


def _slow_stage(means: _PipelineMeans) -> Verdict | None:
    """Return the verdict on a stage that computes longer, where moving its work does not help.

    With few micro-batches, each stage waits most of the time, and the work of one is no shorter on
    the others.
    """
    deviation = _largest_deviation(means.computation)
    if deviation.share < _MIN_DEVIATION:
        return None
    usual = means.computation.copy()
    usual[deviation.stage] = deviation.usual
    saving = _saving(means, replace(means, computation=usual))
    if saving is None or saving.share < _MIN_SAVING:
        return None
    advice = (
        f"{_saving_text(saving, 'a stage as fast as the others')}; with"
        f" {means.schedule.micro_batches} micro-batches, moving its work to other stages would save"
        " little"
    )
    return _stage_verdict(
        means=means,
        deviation=deviation,
        saving=saving,
        advice=advice,
    )


def _stage_verdict(
    means: _PipelineMeans, deviation: _Deviation, saving: _Saving | None, advice: str
) -> Verdict:
    """Return the verdict on one stage."""
    stage = deviation.stage
    computation_ms = means.computation[stage] / NS_PER_MS
    evidence = (
        f"stage {stage} ({_ranks_text(means, stage)}) computes {computation_ms:,.3f} "
        "ms per iteration; the median of the other stages is "
        f"{deviation.usual / NS_PER_MS:,.3f} ms ({100 * deviation.share:+.1f} %); "
        f"{advice}"
    )
    return Verdict(
        verdict=VerdictKind.UNEVEN_STAGE,
        rank=means.ranks_of_stage[stage][0],
        cause="computation",
        ms=saving.ms if saving is not None else None,
        evidence=evidence,
    )


def _slow_transfer(means: _PipelineMeans) -> Verdict | None:
    """Return the verdict on a link that is slower than the others, or on all of them."""
    transfer = means.transfer
    if len(transfer) > 1:
        usual = _others_median(transfer)
        factor = transfer / np.maximum(usual, 1.0)
        link = int(np.argmax(factor))
        if factor[link] >= _SLOW_LINK_FACTOR:
            even = transfer.copy()
            even[link] = usual[link]
            saving = _saving(means, replace(means, transfer=even))
            if saving is None or saving.share >= _MIN_LINK_SAVING:
                return _slow_link(
                    means=means,
                    link=link,
                    usual=usual[link],
                    saving=saving,
                )
    saving = _saving(means, replace(means, transfer=np.zeros_like(transfer)))
    if not _are_transfers_slow(means, saving):
        return None
    evidence = (
        f"stages spend {100 * means.transfer_share:.1f} % of an iteration on transfers that no"
        f" computation hides (median {np.median(transfer) / NS_PER_MS:,.3f} ms each);"
        f" {_saving_text(saving, 'hiding all transfers behind computation')}"
    )
    return Verdict(
        verdict=VerdictKind.SLOW_TRANSFER,
        cause="slow_transfer",
        ms=saving.ms if saving is not None else None,
        evidence=evidence,
    )


def _are_transfers_slow(means: _PipelineMeans, saving: _Saving | None) -> bool:
    """Tell whether transfers cost much of an iteration, by their time or by simulation."""
    is_share_large = means.transfer_share >= _MAX_TRANSFER_SHARE
    if saving is None:
        return is_share_large
    if saving.share < _MIN_SAVING:
        return False
    return is_share_large or saving.share >= _MAX_TRANSFER_SHARE


def _slow_link(
    means: _PipelineMeans, link: int, usual: float, saving: _Saving | None
) -> Verdict:
    """Return the verdict on one link."""
    transfer = means.transfer[link]
    next_stage = (link + 1) % means.schedule.stages
    evidence = (
        f"a transfer between stage {link} ({_ranks_text(means, link)}) and stage {next_stage}"
        f" ({_ranks_text(means, next_stage)}) takes {transfer / NS_PER_MS:,.3f} ms,"
        f" {transfer / max(usual, 1.0):.1f} times as long as between other stages"
        f" ({usual / NS_PER_MS:,.3f} ms);"
        f" {_saving_text(saving, 'a link as fast as the others')}"
    )
    return Verdict(
        verdict=VerdictKind.SLOW_TRANSFER,
        rank=means.ranks_of_stage[link][0],
        cause="slow_transfer",
        ms=saving.ms if saving is not None else None,
        evidence=evidence,
    )


def _too_few_micro_batches(means: _PipelineMeans) -> Verdict | None:
    """Return the verdict on a pipeline that is too long for its micro-batches."""
    schedule = means.schedule
    enough = _ENOUGH_MICRO_BATCHES * schedule.stages
    is_plain = schedule.kind in (
        ScheduleKind.ONE_FORWARD_ONE_BACKWARD,
        ScheduleKind.GPIPE,
        ScheduleKind.INTERLEAVED,
    )
    has_enough = schedule.micro_batches * schedule.chunks >= enough
    if not is_plain or has_enough or means.bubble_share < _MIN_SAVING:
        return None
    # Interleaving stays as it is: the micro-batches of all chunks count.
    wanted = math.ceil(enough / schedule.chunks)
    if schedule.chunks > 1:
        wanted = schedule.stages * math.ceil(wanted / schedule.stages)
    more = replace(schedule, micro_batches=wanted)
    smaller = means.transfer * schedule.micro_batches / wanted
    saving = _saving(means, replace(means, schedule=more, transfer=smaller))
    evidence = (
        f"{schedule.micro_batches} micro-batches on {schedule.stages} stages ({schedule.kind}): the"
        f" bubble is {100 * means.bubble_share:.1f} % of an iteration, ideally"
        f" {schedule.ideal_bubble_percent:.1f} %;"
        f" {_saving_text(saving, f'the same batch in {wanted} micro-batches')}"
    )
    return Verdict(
        verdict=VerdictKind.TOO_FEW_MICRO_BATCHES,
        cause="schedule",
        ms=saving.ms if saving is not None else None,
        evidence=evidence,
    )


def _ranks_text(means: _PipelineMeans, stage: int) -> str:
    """Return the ranks of a stage in words."""
    ranks = means.ranks_of_stage[stage]
    named = ranks[:_MAX_NAMED_RANKS]
    others = len(ranks) - len(named)
    text = ", ".join(map(str, named))
    if len(ranks) == 1:
        return f"rank {text}"
    if others:
        text = f"{text} and {others} more"
    return f"ranks {text}"


def _saving_text(saving: _Saving | None, change: str) -> str:
    """Return what a change would save in words."""
    if saving is None:
        return "the saving is unknown because the schedule is not recognized"
    return (
        f"{change} would save {saving.ms:,.3f} ms per iteration "
        f"({100 * saving.share:.1f} %; simulated, error {saving.error_percent:+.1f} %)"
    )
