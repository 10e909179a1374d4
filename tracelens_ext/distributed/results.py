"""Completes a fleet: writes the lists of traces and failures, and the tables over all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tracelens_ext.distributed.cluster import FinishedJob
from tracelens_ext.distributed.collective_analysis import TABLES as COLLECTIVE_TABLES
from tracelens_ext.distributed.collective_analysis import match_ranks
from tracelens_ext.distributed.inputs import FleetInput
from tracelens_ext.distributed.job import TraceJob, ranks_in_marker
from tracelens_ext.distributed.pipeline.stage_names import StageNames
from tracelens_ext.distributed.rank_numbers import (
    RankSource,
    missing_ranks,
    rank_in_name,
)
from tracelens_ext.distributed.reductions import REDUCTIONS, reductions
from tracelens_ext.distributed.renumbering import renumber_ranks
from tracelens_ext.distributed.storage import Markers, ResultStore
from tracelens_ext.errors import TraceNotFoundError
from tracelens_ext.isolation import PartFailures
from tracelens_ext.lazy import pd
from tracelens_ext.text import counted

if TYPE_CHECKING:
    from distributed import Client

#: The missing ranks of larger jobs are not listed.
_MAX_LISTED_MISSING = 100_000
#: A note names at most this many ranks or traces.
_MAX_NAMED_RANKS = 5
#: The columns of the table `traces`.
_TRACE_COLUMNS = {
    "trace": "str",
    "rank": "Int64",
    "rank_from": "str",
    "world_size": "Int64",
    "state": "str",
    "attempts": "Int64",
    "events": "Int64",
    "gpu_events": "Int64",
    "events_dropped": "Int64",
    "gpu_time_ms": "float64",
    "seconds": "float64",
    "format": "str",
    "parts": "str",
}
#: The columns of the table `failures`.
_FAILURE_COLUMNS = {
    "trace": "str",
    "rank": "Int64",
    "stage": "str",
    "message": "str",
    "attempts": "int64",
}


@dataclass(frozen=True)
class FleetResult:
    """The results of a fleet."""

    out: str  #: the folder of the results, as an absolute path or URL
    #: the reductions by name, and `traces`; see `docs/how-to/many-ranks.md`.
    tables: Mapping[str, pd.DataFrame]
    #: a row for each trace or rank that is not in the tables: `trace`, `rank`, `stage`, `message`,
    #: `attempts`
    failures: pd.DataFrame
    done: int  #: number of traces that this run analyzed
    kept: int  #: number of traces whose results an earlier run has written
    failed: int  #: number of traces that could not be analyzed, and of arguments without a trace
    missing: int  #: number of ranks that have no trace
    notes: Sequence[str] = ()  #: remarks for the user, one sentence each
    problems: Sequence[str] = ()  #: results that had to be left out, one sentence each


@dataclass
class FleetRun:
    """A run of a fleet, and the jobs that have finished so far."""

    store: ResultStore
    jobs: list[TraceJob]  #: one for each trace, in the order of their names
    markers: Markers  #: stem → marker that an earlier run wrote
    not_found: Sequence[TraceNotFoundError]  #: arguments that name no trace
    ranks_per_node: int | None
    #: the stages of a pipeline; None to find them
    stage_names: StageNames | None = None
    #: stem → job of this run that is done or has failed
    finished: dict[str, FinishedJob] = field(default_factory=dict)

    def add(self, finished: FinishedJob) -> None:
        """Add a finished job. The job of a file with several ranks becomes one job per rank."""
        outcome = finished.outcome
        if not outcome.abouts_of_ranks or outcome.about is None:
            self.finished[finished.job.source.stem] = finished
            return
        jobs_of_ranks = []
        for rank, about in outcome.abouts_of_ranks.items():
            job = finished.job.of_rank(rank)
            outcome_of_rank = replace(outcome, about=about, abouts_of_ranks={})
            self.finished[job.source.stem] = finished._replace(
                job=job, outcome=outcome_of_rank
            )
            jobs_of_ranks.append(job)
        index = self.jobs.index(finished.job)
        self.jobs[index : index + 1] = jobs_of_ranks

    def abouts(self) -> dict[str, Mapping[str, Any] | None]:
        """Return stem → content of the marker of each trace; None for traces that failed."""
        abouts: dict[str, Mapping[str, Any] | None] = {}
        for job in self.jobs:
            stem = job.source.stem
            if stem in self.finished:
                abouts[stem] = self.finished[stem].outcome.about
            else:
                abouts[stem] = self.markers[stem]
        return abouts

    @property
    def problems(self) -> list[str]:
        """The results that the jobs had to leave out, one sentence each, without duplicates."""
        problems: list[str] = []
        for finished in self.finished.values():
            problems.extend(finished.outcome.problems)
        return list(dict.fromkeys(problems))


def finish(client: Client | None, run: FleetRun) -> FleetResult:
    """Write the lists of traces and failures, and the tables over all ranks.

    Args:
        client: a Dask client whose workers do the work; None to do it in this process.
        run: the run, with all of its jobs finished.
    """
    store = run.store
    sources = {job.source.stem: job.source for job in run.jobs}
    rank_of_stem = {stem: rank_in_name(source.url) for stem, source in sources.items()}
    done = renumber_ranks(
        client=client,
        store=store,
        abouts=run.abouts(),
        rank_in_name=rank_of_stem,
    )
    failed_sources = [source for stem, source in sources.items() if stem not in done]
    failed_ranks = [rank_of_stem[source.stem] for source in failed_sources]
    known_failed_ranks = [rank for rank in failed_ranks if rank is not None]
    world = _world_of_job(done, known_failed_ranks)
    failures = _failure_table(
        run=run,
        failed_sources=failed_sources,
        missing_ranks=world.missing_ranks,
    )
    traces = _trace_table(run, done)
    store.put_table("traces", traces)
    store.put_table("failures", failures)
    part_failures = PartFailures()
    tables: dict[str, pd.DataFrame] = {}
    finding_notes: list[str] = []
    if done:
        tables, finding_notes = reductions(
            store=store,
            done=done,
            failures=part_failures,
        )
    _replace_stored_tables(store, tables)
    if done:
        matched = match_ranks(
            client=client,
            store=store,
            done=done,
            failed_ranks=known_failed_ranks,
            ranks_per_node=run.ranks_per_node,
            stage_names=run.stage_names,
        )
        tables = {**matched.tables, **tables}
        part_failures.messages.extend(matched.failures)
    kept = len(run.jobs) - len(run.finished)
    notes = [
        *_rank_notes(done),
        *world.notes,
        *finding_notes,
        *_notes_on_unused_data(run, done),
        *_notes_on_failed_parts(done),
        *(f"{message}." for message in part_failures.messages),
    ]
    return FleetResult(
        out=store.url,
        tables={**tables, "traces": traces},
        failures=failures,
        done=len(done) - kept,
        kept=kept,
        failed=len(failed_sources) + len(run.not_found),
        missing=world.missing_count,
        notes=notes,
        problems=run.problems,
    )


def _replace_stored_tables(
    store: ResultStore, tables: Mapping[str, pd.DataFrame]
) -> None:
    """Write the tables over all ranks, and remove those that an earlier run has left."""
    for name in REDUCTIONS + COLLECTIVE_TABLES:
        if name in tables:
            store.put_table(name, tables[name])
        else:
            store.remove_table(name)


def _failure_table(
    run: FleetRun, failed_sources: Sequence[FleetInput], missing_ranks: Sequence[int]
) -> pd.DataFrame:
    """Return the table `failures`.

    It lists the traces that failed, the arguments without a trace, and the missing ranks.
    """
    rows: list[dict[str, object]] = []
    for source in failed_sources:
        finished = run.finished[source.stem]
        rows.append(
            {
                "trace": source.name,
                "rank": rank_in_name(source.url),
                "stage": finished.outcome.stage,
                "message": finished.outcome.message,
                "attempts": finished.attempts,
            }
        )
    for error in run.not_found:
        message = f"{error.path}: {error.problem}"
        rows.append(
            {"trace": error.path, "stage": "find", "message": message, "attempts": 1}
        )
    for rank in missing_ranks:
        message = f"rank {rank}: the inputs contain no trace of it"
        rows.append(
            {"rank": rank, "stage": "missing", "message": message, "attempts": 0}
        )
    return pd.DataFrame(rows, columns=list(_FAILURE_COLUMNS)).astype(_FAILURE_COLUMNS)


def _trace_table(run: FleetRun, done: Markers) -> pd.DataFrame:
    """Return the table `traces`: a row for each trace, also for those that failed."""
    rows = []
    for job in run.jobs:
        source = job.source
        about = done.get(source.stem)
        finished = run.finished.get(source.stem)
        row: dict[str, object] = {"rank": rank_in_name(source.url)}
        if about is None:
            row["state"] = "failed"
        else:
            row.update(about)
            row["state"] = "kept" if finished is None else "done"
            row["parts"] = f"{source.stem}.parquet"
            row["events_dropped"] = about["dropped"]
        row["trace"] = source.name
        row["attempts"] = 0 if finished is None else finished.attempts
        rows.append(row)
    return pd.DataFrame(rows, columns=list(_TRACE_COLUMNS)).astype(_TRACE_COLUMNS)


class _World(NamedTuple):
    """The ranks of a job that have no trace."""

    missing_ranks: list[int]  #: empty for very large jobs
    missing_count: int  #: the number of missing ranks, also if they are not listed
    notes: list[str]  #: remarks on the size of the job


def _world_of_job(done: Markers, failed_ranks: Sequence[int]) -> _World:
    """Compare the ranks that have traces with the number of ranks that the traces record."""
    world_sizes = {
        about["world_size"] for about in done.values() if about["world_size"]
    }
    if not world_sizes:
        return _World(
            missing_ranks=[],
            missing_count=0,
            notes=[],
        )
    world_size = max(world_sizes)
    notes = []
    if len(world_sizes) > 1:
        listed = ", ".join(map(str, sorted(world_sizes)))
        notes.append(f"The traces come from jobs of different sizes ({listed} ranks).")
    present_ranks = set(failed_ranks)
    for about in done.values():
        if about["rank_from"] != RankSource.ORDER:
            present_ranks.add(about["rank"])
    present_ranks = {rank for rank in present_ranks if rank < world_size}
    missing_count = world_size - len(present_ranks)
    if world_size > _MAX_LISTED_MISSING:
        notes.append(
            f"Missing ranks are not listed, because the job has {world_size:,} of them."
        )
        return _World(
            missing_ranks=[],
            missing_count=missing_count,
            notes=notes,
        )
    return _World(
        missing_ranks=missing_ranks(present_ranks, world_size),
        missing_count=missing_count,
        notes=notes,
    )


def _rank_notes(done: Markers) -> Iterator[str]:
    """Yield notes on ranks that the traces do not record, and on ranks with several traces."""
    count_of_source = Counter(about["rank_from"] for about in done.values())
    for source, words in (
        (RankSource.NAME, "from the file names"),
        (RankSource.ORDER, "from their order"),
    ):
        count = count_of_source[source]
        if count:
            traces = "1 trace does" if count == 1 else f"{count} traces do"
            yield f"{traces} not record the rank; it is taken {words}."
    yield from _notes_on_several_devices(done)
    count_of_rank = Counter(about["rank"] for about in done.values())
    repeated_ranks = sorted(rank for rank, count in count_of_rank.items() if count > 1)
    if repeated_ranks:
        listed = ", ".join(map(str, repeated_ranks[:_MAX_NAMED_RANKS]))
        if len(repeated_ranks) > _MAX_NAMED_RANKS:
            listed = f"{listed} and {len(repeated_ranks) - _MAX_NAMED_RANKS} more"
        yield f"Several traces have the same rank: {listed}."


def _notes_on_several_devices(done: Markers) -> Iterator[str]:
    """Yield a note on the traces in which each GPU counts as a rank."""
    texts = []
    for about in done.values():
        ranks = ranks_in_marker(about).numbers
        if len(ranks) > 1:
            texts.append(
                f"those of {about['trace']} are ranks {ranks[0]} to {ranks[-1]}"
            )
    if not texts:
        return
    listed = "; ".join(texts[:_MAX_NAMED_RANKS])
    if len(texts) > _MAX_NAMED_RANKS:
        listed = f"{listed}; and {len(texts) - _MAX_NAMED_RANKS} more traces"
    yield (
        "Each GPU of a trace that does not record its rank counts as a rank: "
        f"{listed}. Findings, operations and kernels cover all GPUs of a trace, under "
        "its lowest rank."
    )


def _notes_on_unused_data(run: FleetRun, done: Markers) -> Iterator[str]:
    """Yield notes on dropped events, and on parts in the folder of traces that were not given."""
    dropped_counts = [about["dropped"] for about in done.values() if about["dropped"]]
    if dropped_counts:
        events = counted(sum(dropped_counts), "event")
        traces = counted(len(dropped_counts), "trace")
        yield f"{events} of {traces} could not be used."
    stems = {job.source.stem for job in run.jobs}
    unused_count = sum(stem not in stems for stem in run.markers)
    if unused_count:
        traces = f"{unused_count} traces that are"
        if unused_count == 1:
            traces = "1 trace that is"
        yield (
            f"Parts of {traces} not among the inputs are ignored; they stay in the "
            "folder."
        )


def _notes_on_failed_parts(done: Markers) -> Iterator[str]:
    """Yield a note on each result of a trace that could not be computed."""
    for about in done.values():
        for message in about["failures"]:
            yield f"{about['trace']}: {message}."
