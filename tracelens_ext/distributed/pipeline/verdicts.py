"""What makes a pipeline slow: an uneven stage, slow transfers, or too few micro-batches.

Each saving is simulated: the average iteration as recorded, against the same iteration without the
problem. Stages and links come first. Too few micro-batches are a verdict where stages and links
cost little, or much less than the schedule does after they are repaired.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracelens_ext.distributed.pipeline.averages import (
    AverageIteration,
    average_iteration,
)
from tracelens_ext.distributed.pipeline.schedules import ScheduleKind
from tracelens_ext.distributed.pipeline.tables import PipelineJob
from tracelens_ext.distributed.verdicts import Verdict, VerdictKind
from tracelens_ext.trace import NS_PER_MS, Float64Array

#: A stage is uneven if its computation differs by this share from the median of the other stages.
_MIN_DEVIATION = 0.08
#: A link is slow if its messages take this many times as long as the median of the other links.
_SLOW_LINK_FACTOR = 1.5
#: All transfers are slow if one takes this share of a forward pass, or if an iteration without
#: transfers would be shorter by this share, or, if that cannot be simulated, if stages spend this
#: share of an iteration on them.
_SLOW_SHARE_OF_PASS = 0.13
_SLOW_SAVING = 0.15
_SLOW_SHARE_OF_ITERATION = 0.10
#: A saving below this share of an iteration is not worth a verdict.
_MIN_SAVING = 0.02
_MIN_LINK_SAVING = 0.003
#: With four times as many micro-batches as stages, the bubble is small (Huang et al., GPipe, 2019,
#: section 2.3).
_ENOUGH_MICRO_BATCHES = 4
#: Beside another problem, too few micro-batches are a verdict if more of them, after the other
#: problem is solved, save this share of an iteration and this many times as much as the solution.
_MIN_SECOND_SAVING = 0.20
_MIN_SECOND_FACTOR = 2.0
#: The size of a message that takes much longer than its latency.
_MIN_BYTES_FOR_BANDWIDTH = 1_000_000
_MAX_NAMED_RANKS = 4
_PLAIN_SCHEDULES = (
    ScheduleKind.ONE_FORWARD_ONE_BACKWARD,
    ScheduleKind.GPIPE,
    ScheduleKind.INTERLEAVED,
)


@dataclass(frozen=True)
class _Saving:
    """What a change would save."""

    share: float  #: of the iteration
    ms: float  #: of an iteration
    error_percent: float  #: of the simulation of what was recorded


class _Problem(NamedTuple):
    """A problem, and the iteration without it."""

    verdict: Verdict
    saving: _Saving | None  #: None if the schedule cannot be simulated
    repaired: AverageIteration


def find_pipeline_verdicts(job: PipelineJob) -> list[Verdict]:
    """Return the verdicts on the pipeline of a job; none where it has no pipeline."""
    average = average_iteration(job)
    return [] if average is None else verdicts_on(average)


def verdicts_on(average: AverageIteration) -> list[Verdict]:
    """Return the verdicts on the average iteration of a pipeline, stages and links first."""
    problems = []
    repaired = average
    stage_problem = _uneven_stage(average) or _slow_stage(average)
    if stage_problem is not None:
        problems.append(stage_problem)
        repaired = repaired.with_computation(stage_problem.repaired.computation)
    transfer_problem = _slow_link(average) or _slow_transfers(average)
    if transfer_problem is not None:
        problems.append(transfer_problem)
        repaired = repaired.with_transfer(transfer_problem.repaired.transfer)
    schedule_problem = _too_few_micro_batches(average)
    if schedule_problem is not None and _is_worth_telling(repaired, problems):
        problems.append(schedule_problem)
    return [problem.verdict for problem in problems]


def _is_worth_telling(repaired: AverageIteration, problems: list[_Problem]) -> bool:
    """Tell whether more micro-batches matter beside other problems.

    Args:
        repaired: the iteration without the other problems.
        problems: the problems of stages and links.
    """
    if any(problem.saving is None for problem in problems):
        return False
    other_shares = [
        problem.saving.share for problem in problems if problem.saving is not None
    ]
    largest = max(other_shares, default=0.0)
    if largest < _MIN_SAVING:
        return True
    after_repair = _saving(repaired, _with_enough_micro_batches(repaired))
    needed = max(_MIN_SECOND_SAVING, _MIN_SECOND_FACTOR * largest)
    return after_repair is not None and after_repair.share >= needed


def _saving(average: AverageIteration, changed: AverageIteration) -> _Saving | None:
    """Return what a change saves; None for a schedule that cannot be simulated."""
    if not average.schedule.can_be_simulated:
        return None
    recorded = average.simulated_window()
    share = 1.0 - changed.simulated_window() / recorded
    return _Saving(
        share=share,
        ms=share * average.window / NS_PER_MS,
        error_percent=100.0 * (recorded / average.window - 1.0),
    )


def _medians_of_others(values: Float64Array) -> Float64Array:
    """Return for each value the median of all others, (n,)."""
    return np.array(
        [np.median(np.delete(values, index)) for index in range(len(values))]
    )


# Stages.


class _Deviation(NamedTuple):
    """The stage whose computation differs most from that of the other stages."""

    stage: int
    usual: float  #: the median of the other stages, ns
    share: float  #: how much more or less it computes, as a share of `usual`


def _largest_deviation(computation: Float64Array) -> _Deviation:
    """Return the stage that computes most unlike the others; of two stages the longer one."""
    usual = _medians_of_others(computation)
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


def _uneven_stage(average: AverageIteration) -> _Problem | None:
    """Return the problem of a stage whose work should be spread over all stages."""
    computation = average.computation
    deviation = _largest_deviation(computation)
    if abs(deviation.share) < _MIN_DEVIATION:
        return None
    even = average.with_computation(np.full_like(computation, computation.mean()))
    saving = _saving(average, even)
    if saving is not None and saving.share < _MIN_SAVING:
        return None
    change = "spreading the same work evenly over the stages"
    verdict = _stage_verdict(
        average=average,
        deviation=deviation,
        saving=saving,
        advice=_saving_text(saving, change),
    )
    return _Problem(
        verdict=verdict,
        saving=saving,
        repaired=even,
    )


def _slow_stage(average: AverageIteration) -> _Problem | None:
    """Return the problem of a stage that computes longer, where moving its work does not help.

    With few micro-batches, each stage waits most of the time, and the work of one stage takes as
    long on the others.
    """
    deviation = _largest_deviation(average.computation)
    if deviation.share < _MIN_DEVIATION:
        return None
    computation = average.computation.copy()
    computation[deviation.stage] = deviation.usual
    as_fast = average.with_computation(computation)
    saving = _saving(average, as_fast)
    if saving is None or saving.share < _MIN_SAVING:
        return None
    advice = (
        f"{_saving_text(saving, 'a stage as fast as the others')}; with"
        f" {average.schedule.micro_batches} micro-batches, moving its work to other stages would"
        " save little"
    )
    verdict = _stage_verdict(
        average=average,
        deviation=deviation,
        saving=saving,
        advice=advice,
    )
    return _Problem(
        verdict=verdict,
        saving=saving,
        repaired=as_fast,
    )


def _stage_verdict(
    average: AverageIteration,
    deviation: _Deviation,
    saving: _Saving | None,
    advice: str,
) -> Verdict:
    """Return the verdict on one stage."""
    stage = deviation.stage
    computation_ms = average.computation[stage] / NS_PER_MS
    evidence = (
        f"stage {stage} ({_ranks_text(average, stage)}) computes {computation_ms:,.3f} "
        "ms per iteration; the median of the other stages is "
        f"{deviation.usual / NS_PER_MS:,.3f} ms ({100 * deviation.share:+.1f} %); "
        f"{advice}"
    )
    return Verdict(
        verdict=VerdictKind.UNEVEN_STAGE,
        rank=average.ranks_of_stage[stage][0],
        cause="computation",
        ms=_ms_of(saving),
        evidence=evidence,
    )


# Links.


def _slow_link(average: AverageIteration) -> _Problem | None:
    """Return the problem of a link that is slower than the others.

    Links are compared by the time for the same number of bytes, if the trace has that.
    """
    transfer = average.transfer
    if len(transfer) < 2:
        return None
    size = _relative_sizes(average.message_bytes)
    usual = _medians_of_others(transfer / size) * size
    factor = transfer / np.maximum(usual, 1.0)
    link = int(np.argmax(factor))
    if factor[link] < _SLOW_LINK_FACTOR:
        return None
    as_fast = transfer.copy()
    as_fast[link] = usual[link]
    repaired = average.with_transfer(as_fast)
    saving = _saving(average, repaired)
    if saving is not None and saving.share < _MIN_LINK_SAVING:
        return None
    next_stage = (link + 1) % average.schedule.stages
    evidence = (
        f"a transfer between stage {link} ({_ranks_text(average, link)}) and stage {next_stage}"
        f" ({_ranks_text(average, next_stage)}) takes {transfer[link] / NS_PER_MS:,.3f} ms,"
        f" {factor[link]:.1f} times as long as between other stages"
        f" ({usual[link] / NS_PER_MS:,.3f} ms);"
        f" {_saving_text(saving, 'a link as fast as the others')}"
    )
    verdict = Verdict(
        verdict=VerdictKind.SLOW_TRANSFER,
        rank=average.ranks_of_stage[link][0],
        cause="slow_transfer",
        ms=_ms_of(saving),
        evidence=evidence,
    )
    return _Problem(
        verdict=verdict,
        saving=saving,
        repaired=repaired,
    )


def _relative_sizes(message_bytes: Float64Array) -> Float64Array:
    """Return how large the messages of each link are, as a multiple of the median, (n,).

    The time of small messages does not depend on their size, and neither is known if the trace
    lacks the sizes: all are 1 then.
    """
    is_large = message_bytes >= _MIN_BYTES_FOR_BANDWIDTH
    if not is_large.all():
        return np.ones_like(message_bytes)
    sizes: Float64Array = message_bytes / np.median(message_bytes)
    return sizes


def _slow_transfers(average: AverageIteration) -> _Problem | None:
    """Return the problem of transfers that cost much of an iteration on all links."""
    none = average.with_transfer(np.zeros_like(average.transfer))
    saving = _saving(average, none)
    if not _are_slow(average, saving):
        return None
    message_ms = float(np.median(average.transfer)) / NS_PER_MS
    evidence = (
        f"stages spend {100 * average.transfer_share:.1f} % of an iteration on transfers that no"
        f" computation hides (median {message_ms:,.3f} ms each{_bandwidth_text(average)});"
        f" {_saving_text(saving, 'hiding all transfers behind computation')}"
    )
    verdict = Verdict(
        verdict=VerdictKind.SLOW_TRANSFER,
        cause="slow_transfer",
        ms=_ms_of(saving),
        evidence=evidence,
    )
    return _Problem(
        verdict=verdict,
        saving=saving,
        repaired=none,
    )


def _are_slow(average: AverageIteration, saving: _Saving | None) -> bool:
    """Tell whether transfers are long beside the computation, and cost much of an iteration."""
    if saving is None:
        return average.transfer_share >= _SLOW_SHARE_OF_ITERATION
    if saving.share < _MIN_SAVING:
        return False
    share_of_pass = np.median(average.transfer) / max(average.pass_length, 1.0)
    is_long = share_of_pass >= _SLOW_SHARE_OF_PASS
    return bool(is_long or saving.share >= _SLOW_SAVING)


def _bandwidth_text(average: AverageIteration) -> str:
    """Return the bandwidth of the median link in words; empty if its messages tell none."""
    message_bytes = float(np.median(average.message_bytes))
    duration = float(np.median(average.transfer))
    is_large = message_bytes >= _MIN_BYTES_FOR_BANDWIDTH
    if not is_large or duration <= 0:
        return ""
    return f", {message_bytes / duration:,.1f} GB/s"  # a byte per ns is a GB/s


# The schedule.


def _too_few_micro_batches(average: AverageIteration) -> _Problem | None:
    """Return the problem of a pipeline with too many stages for its micro-batches."""
    schedule = average.schedule
    if schedule.kind not in _PLAIN_SCHEDULES or average.bubble_share < _MIN_SAVING:
        return None
    more = _with_enough_micro_batches(average)
    if more.schedule.micro_batches <= schedule.micro_batches:
        return None
    saving = _saving(average, more)
    if saving is not None and saving.share < _MIN_SAVING:
        return None
    change = f"the same batch in {more.schedule.micro_batches} micro-batches"
    evidence = (
        f"{schedule.micro_batches} micro-batches on {schedule.stages} stages ({schedule.kind}): the"
        f" bubble is {100 * average.bubble_share:.1f} % of an iteration, ideally"
        f" {schedule.ideal_bubble_percent:.1f} %; {_saving_text(saving, change)}"
    )
    verdict = Verdict(
        verdict=VerdictKind.TOO_FEW_MICRO_BATCHES,
        cause="schedule",
        ms=_ms_of(saving),
        evidence=evidence,
    )
    return _Problem(
        verdict=verdict,
        saving=saving,
        repaired=more,
    )


def _with_enough_micro_batches(average: AverageIteration) -> AverageIteration:
    """Return the same batch with enough micro-batches for the stages, if it has fewer.

    The micro-batches of all chunks of an interleaved schedule count. There must be a multiple of
    the number of stages in such a schedule.
    """
    schedule = average.schedule
    enough = _ENOUGH_MICRO_BATCHES * schedule.stages
    wanted = math.ceil(enough / schedule.chunks)
    if schedule.chunks > 1:
        wanted = schedule.stages * math.ceil(wanted / schedule.stages)
    if schedule.micro_batches >= wanted:
        return average
    return average.with_micro_batches(wanted)


# Words.


def _ranks_text(average: AverageIteration, stage: int) -> str:
    """Return the ranks of a stage in words."""
    ranks = average.ranks_of_stage[stage]
    named = ranks[:_MAX_NAMED_RANKS]
    unnamed_count = len(ranks) - len(named)
    text = ", ".join(map(str, named))
    if len(ranks) == 1:
        return f"rank {text}"
    if unnamed_count:
        text = f"{text} and {unnamed_count} more"
    return f"ranks {text}"


def _saving_text(saving: _Saving | None, change: str) -> str:
    """Return what a change would save in words."""
    if saving is None:
        return "the saving is unknown because the schedule is not recognized"
    return (
        f"{change} would save {saving.ms:,.3f} ms per iteration "
        f"({100 * saving.share:.1f} %; simulated, error {saving.error_percent:+.1f} %)"
    )


def _ms_of(saving: _Saving | None) -> float | None:
    """Return a saving in ms per iteration; None if it is not known."""
    return None if saving is None else saving.ms
