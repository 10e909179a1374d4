"""Run a fleet: every trace to its parts, every failure to its list, all parts to the reductions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import NamedTuple

from tracelens_ext.compatibility.earlier_arguments import takes_old_arguments
from tracelens_ext.distributed.cluster import (
    FinishedJob,
    default_workers,
    require_fleet_extra,
    run_jobs,
    workers_of,
)
from tracelens_ext.distributed.collective_analysis import PAGE
from tracelens_ext.distributed.collective_analysis import TABLES as COLLECTIVE_TABLES
from tracelens_ext.distributed.inputs import FleetInput, find_inputs
from tracelens_ext.distributed.job import MERGED_RANKS, TraceJob
from tracelens_ext.distributed.job_options import JobOptions, portable_rules
from tracelens_ext.distributed.pipeline.stage_names import StageNames
from tracelens_ext.distributed.reductions import REDUCTIONS
from tracelens_ext.distributed.results import FleetResult, FleetRun, finish
from tracelens_ext.distributed.storage import DONE, ResultStore, stored_name
from tracelens_ext.distributed.trace_tables import TABLES as PART_TABLES
from tracelens_ext.errors import UsageError
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions

__all__ = ["ATTEMPTS", "FleetResult", "run_fleet"]

ATTEMPTS = 3
#: URLs of files in the memory of this process.
_IN_MEMORY = "memory://"

#: What is called with the numbers of traces done, failed, and in all.
ProgressCallback = Callable[[int, int, int], None]


@takes_old_arguments
def run_fleet(
    inputs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    attempts: int = ATTEMPTS,
    rules: Sequence[str | os.PathLike[str]] = (),
    categorizer: str | os.PathLike[str] | None = None,
    maps: Sequence[str | os.PathLike[str]] = (),
    disabled_packs: Sequence[str] = (),
    include_unlinked_kernels: bool = True,
    ranks_per_node: int | None = None,
    pipeline_stages: str | None = None,
    cache: bool = False,
    verify_cache: bool = False,
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
    force: bool = False,
    pause_s: float = 1.0,
    progress: ProgressCallback | None = None,
) -> FleetResult:
    """Analyze many traces and compare their ranks.

    What a run has done the next one does not do again: a trace is read again only when it, the
    program, or an option that matters has changed.

    Worker processes import the main module of a script that starts them; such a script needs
    `if __name__ == "__main__":` around what it does.

    Args:
        inputs: traces, folders of them, patterns, or URLs of any of these that fsspec opens.
        out: the folder of the results, or a URL of one.
        scheduler: the address of a Dask scheduler; workers of this machine by default.
        workers: processes of this machine, as many as there are cores by default; 0 for none but
            this one.
        attempts: how often a trace that fails is tried.
        rules: TOML files of categorization rules that win over all others.
        categorizer: `"jax"`, `"vllm:gpt-oss"` …, or a JSON file with a map.
        maps: folders of engine/model maps that `categorizer` may name.
        disabled_packs: names of rule packs that take no part.
        include_unlinked_kernels: count GPU events whose launch is not in the trace in the
            timelines.
        ranks_per_node: how many ranks a node has; None to see the nodes in the devices, where that
            is possible.
        pipeline_stages: the number of stages of a pipeline, each of consecutive ranks, such as
            `"4"`, or the ranks of each stage, such as `"0-3/4-7"`; None to find them by sends and
            receives.
        cache: look for files, and keep them, in the user's cache of traces.
        verify_cache: compare whole files with those in the cache.
        reading: what else can be chosen about reading.
        force: use a folder, and replace files in it, that tracelens-ext did not make.
        pause_s: how long the second attempt at a URL waits; each further one waits twice as long.
        progress: called with (done, failed, total) whenever a trace is over.

    Returns:
        The reductions, which are also written, and what failed.

    Raises:
        UsageError: something in the arguments does not exist, or does not go together.
        RuleError: the rules are invalid.
        TraceNotFoundError: no argument names a trace.
        OutputError: the results cannot be written.
        ClusterError: the scheduler cannot be reached, or is lost; what is done is kept.
    """
    require_fleet_extra()
    sources, not_found = find_inputs([os.fspath(argument) for argument in inputs])
    store = ResultStore.at(os.fspath(out))
    if scheduler is not None and workers is not None:
        raise UsageError(
            "workers are local processes, but a scheduler has its own workers: give "
            "only one of them"
        )
    if attempts < 1:
        raise UsageError(f"attempts is {attempts}; give at least 1")
    if not sources:
        if not_found:
            raise not_found[0]
        raise UsageError(
            "fleet needs a trace; give files, a folder, a pattern or a URL"
        )
    stage_names = None
    if pipeline_stages is not None:
        stage_names = StageNames.of_text(pipeline_stages)
    worker_count = _worker_count(
        sources=sources,
        store=store,
        workers=workers,
    )
    reading = replace(reading, verify_cache=verify_cache or reading.verify_cache)
    if worker_count or scheduler is not None:
        reading = replace(reading, jobs=1)  # the traces are what is read side by side
    options = JobOptions(
        rules=portable_rules(
            rules=rules,
            categorizer=categorizer,
            maps=maps,
            disabled_packs=disabled_packs,
        ),
        unlinked_kernels=include_unlinked_kernels,
        reading=reading,
        cache=cache,
        pause_s=pause_s,
    )
    store.claim(_written_names(), force=force)
    plan = _plan(
        sources=sources,
        store=store,
        options=options,
    )
    run = FleetRun(
        store=store,
        jobs=list(plan.jobs),
        markers=plan.markers,
        not_found=not_found,
        ranks_per_node=ranks_per_node,
        stage_names=stage_names,
    )
    process_count = min(worker_count, len(plan.remaining))
    with (
        workers_of(scheduler, process_count)
        if plan.remaining
        else nullcontext() as client
    ):
        report_progress = _FleetProgress(progress, kept=plan.kept, total=len(plan.jobs))
        if client is not None:
            for finished in run_jobs(
                client=client,
                jobs=plan.remaining,
                attempts=attempts,
                is_remote=scheduler is not None,
            ):
                run.add(finished)
                report_progress.add(finished)
        return finish(client, run)


def _written_names() -> list[str]:
    """Return the names of all that a fleet writes in the folder of its results."""
    tables = ("traces", "failures") + REDUCTIONS + COLLECTIVE_TABLES
    files = [f"{stored_name(table)}.parquet" for table in tables]
    return files + list(PART_TABLES) + [PAGE, DONE]


class _Plan(NamedTuple):
    """What is to be done."""

    jobs: list[TraceJob]  #: one for each trace
    remaining: list[TraceJob]  #: those that no earlier run did
    markers: dict[str, dict[str, object]]  #: what is noted of earlier runs

    @property
    def kept(self) -> int:
        """How many traces were done before."""
        return len(self.jobs) - len(self.remaining)


def _plan(
    sources: Sequence[FleetInput], store: ResultStore, options: JobOptions
) -> _Plan:
    """Return the jobs, and which of them are still to be done."""
    key = options.key
    markers = store.markers()
    merged = {stem for stem, about in markers.items() if MERGED_RANKS in about}
    jobs: list[TraceJob] = []
    for place, source in enumerate(sources):
        job = TraceJob(
            source=source,
            place=place,
            store=store,
            options=options,
            key=key,
        )
        jobs += _jobs_of_ranks(job, markers) or [job]
    remaining = [job for job in jobs if not job.is_done(markers.get(job.source.stem))]
    for stem in merged:
        del markers[stem]  # their parts are those of their ranks
    return _Plan(
        jobs=jobs,
        remaining=remaining,
        markers=markers,
    )


def _jobs_of_ranks(
    job: TraceJob, markers: Mapping[str, Mapping[str, object]]
) -> list[TraceJob]:
    """Return a job for each rank that was merged into a file, if an earlier run did them all."""
    about = markers.get(job.source.stem)
    if not job.is_done(about) or about is None:
        return []
    ranks = about.get(MERGED_RANKS)
    if not isinstance(ranks, list):
        return []
    jobs = [job.of_rank(rank) for rank in ranks]
    if not all(part.is_done(markers.get(part.source.stem)) for part in jobs):
        return []
    return jobs


class _FleetProgress:
    """Counts the traces that are over, and reports them."""

    def __init__(
        self, callback: ProgressCallback | None, *, kept: int, total: int
    ) -> None:
        self._callback = callback
        self._done = kept
        self._failed = 0
        self._total = total
        self._report()

    def add(self, finished: FinishedJob) -> None:
        """Count a trace."""
        if finished.outcome.about is None:
            self._failed += 1
        else:
            self._done += 1
        self._report()

    def _report(self) -> None:
        if self._callback is not None:
            self._callback(self._done, self._failed, self._total)


def _worker_count(
    sources: Sequence[FleetInput], store: ResultStore, workers: int | None
) -> int:
    """Return how many processes work.

    Raises:
        UsageError: it is negative, or other processes cannot see what they would have to read.
    """
    count = default_workers(sources) if workers is None else workers
    if count < 0:
        raise UsageError(
            f"workers is {count}; give 0 to use only this process, or more"
        )
    for url in (store.url,) + tuple(source.url for source in sources):
        if count and url.startswith(_IN_MEMORY):
            raise UsageError(f"{url}: is in the memory of this process; use 0 workers")
    return count
