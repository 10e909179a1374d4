"""Runs a fleet: analyzes every trace, collects the failures, and compares the ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

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

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["ATTEMPTS", "FleetResult", "run_fleet"]

#: How often a trace that fails is tried by default.
ATTEMPTS = 3
#: URLs of files in the memory of this process begin with this.
_IN_MEMORY = "memory://"

#: A function that is called with the numbers of traces done, traces failed and all traces.
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

    Results of earlier runs are reused. A trace is analyzed again only if the trace, the program, or
    an option that affects the results has changed.

    Worker processes import the main module of the script that starts them. Therefore the script
    must call this function inside `if __name__ == "__main__":`.

    Args:
        inputs: traces, folders of traces, patterns, or URLs of any of these that fsspec opens.
        out: the folder of the results, as a path or URL.
        scheduler: the address of a Dask scheduler; None to start workers on this machine.
        workers: the number of worker processes on this machine; 0 to use only this process. The
            default is the number of cores, or fewer if the traces would not fit into memory.
        attempts: how often a trace that fails is tried.
        rules: TOML files of categorization rules that take precedence over all others.
        categorizer: the name of a categorizer, such as `"jax"` or `"vllm:gpt-oss"`, or a JSON file
            with a map.
        maps: folders of engine/model maps that `categorizer` may name.
        disabled_packs: names of rule packs that are not used.
        include_unlinked_kernels: count GPU events whose launch is not in the trace in the
            timelines.
        ranks_per_node: the number of ranks of each node; None to tell it by the devices, if
            possible.
        pipeline_stages: the number of stages of a pipeline, each with consecutive ranks, such as
            `"4"`, or the ranks of each stage, such as `"0-3/4-7"`; None to find the stages by
            sends and receives.
        cache: look for files in the user's cache of traces, and keep them there.
        verify_cache: compare whole files with those in the cache.
        reading: further options of reading traces.
        force: use a folder even if it contains files that tracelens-ext did not write, and
            overwrite them.
        pause_s: the pause before the second attempt at a URL; it doubles with each further one.
        progress: called with (done, failed, total) whenever a trace is done or has failed.

    Returns:
        The reductions, which are also written to `out`, and the failures.

    Raises:
        UsageError: an argument is invalid, or two arguments exclude each other.
        RuleError: the rules are invalid.
        TraceNotFoundError: no argument names a trace.
        OutputError: the results cannot be written.
        ClusterError: the scheduler cannot be reached, or is lost; finished results are kept.
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
    worker_count = _worker_count(sources, store, workers)
    reading = replace(reading, verify_cache=verify_cache or reading.verify_cache)
    if worker_count or scheduler is not None:
        # The workers already read several traces at the same time.
        reading = replace(reading, jobs=1)
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
    plan = _plan(sources, store, options)
    run = FleetRun(
        store=store,
        jobs=list(plan.jobs),
        markers=plan.markers,
        not_found=not_found,
        ranks_per_node=ranks_per_node,
        stage_names=stage_names,
    )
    return _run_plan(
        plan=plan,
        run=run,
        scheduler=scheduler,
        worker_count=worker_count,
        attempts=attempts,
        progress=progress,
    )


def _run_plan(
    plan: _Plan,
    run: FleetRun,
    scheduler: str | None,
    worker_count: int,
    attempts: int,
    progress: ProgressCallback | None,
) -> FleetResult:
    """Do the remaining jobs of a plan, compare the ranks, and return the result.

    Args:
        plan: the jobs.
        run: collects the finished jobs.
        scheduler: the address of a Dask scheduler; None to start workers on this machine.
        worker_count: the number of worker processes on this machine; 0 for none.
        attempts: how often a trace that fails is tried.
        progress: called with (done, failed, total) whenever a trace is done or has failed.
    """
    clients: AbstractContextManager[Client | None] = nullcontext()
    if plan.remaining:
        process_count = min(worker_count, len(plan.remaining))
        clients = workers_of(scheduler, process_count)
    with clients as client:
        report_progress = _FleetProgress(progress, kept=plan.kept, total=len(plan.jobs))
        if client is not None:
            finished_jobs = run_jobs(
                client=client,
                jobs=plan.remaining,
                attempts=attempts,
                is_remote=scheduler is not None,
            )
            for finished in finished_jobs:
                run.add(finished)
                report_progress.add(finished)
        return finish(client, run)


def _written_names() -> list[str]:
    """Return the names of all files and folders that a fleet writes in its output folder."""
    tables = ("traces", "failures") + REDUCTIONS + COLLECTIVE_TABLES
    files = [f"{stored_name(table)}.parquet" for table in tables]
    return files + list(PART_TABLES) + [PAGE, DONE]


class _Plan(NamedTuple):
    """The jobs of a fleet, divided into those that are done and those that remain."""

    jobs: list[TraceJob]  #: one for each trace
    remaining: list[TraceJob]  #: the jobs that no earlier run has done
    markers: dict[str, dict[str, object]]  #: stem → marker that an earlier run wrote

    @property
    def kept(self) -> int:
        """The number of traces that an earlier run has analyzed."""
        return len(self.jobs) - len(self.remaining)


def _plan(
    sources: Sequence[FleetInput], store: ResultStore, options: JobOptions
) -> _Plan:
    """Return the jobs of all traces, and which of them are still to be done."""
    key = options.key
    markers = store.markers()
    merged_stems = {stem for stem, about in markers.items() if MERGED_RANKS in about}
    jobs: list[TraceJob] = []
    for index, source in enumerate(sources):
        job = TraceJob(
            source=source,
            index=index,
            store=store,
            options=options,
            key=key,
        )
        jobs += _jobs_of_ranks(job, markers) or [job]
    remaining = [job for job in jobs if not job.is_done(markers.get(job.source.stem))]
    for stem in merged_stems:
        # A file with several ranks has no parts itself; each of its ranks has parts.
        del markers[stem]
    return _Plan(
        jobs=jobs,
        remaining=remaining,
        markers=markers,
    )


def _jobs_of_ranks(
    job: TraceJob, markers: Mapping[str, Mapping[str, object]]
) -> list[TraceJob]:
    """Return the jobs of the ranks that a file contains, if an earlier run has done all of them.

    The list is empty if the file contains one rank only, or if it is not known which ranks it has.
    """
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
    """Counts the traces that are done or have failed, and reports the counts."""

    def __init__(
        self, callback: ProgressCallback | None, *, kept: int, total: int
    ) -> None:
        self._callback = callback
        self._done = kept
        self._failed = 0
        self._total = total
        self._report()

    def add(self, finished: FinishedJob) -> None:
        """Count a trace that is done or has failed, and report it."""
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
    """Return the number of worker processes on this machine.

    Raises:
        UsageError: the number is negative, or files are in the memory of this process, where other
            processes cannot read them.
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
