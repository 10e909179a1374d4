"""The results of a fleet: lists of its traces and failures, tables over all ranks, and notes."""

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

#: The missing ranks of a larger world are not listed.
_MAX_LISTED_MISSING = 100_000
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
    """What became of a fleet."""

    out: str  #: the folder of the results, as an absolute path or URL
    #: the reductions by name, and `traces`; see `docs/how-to/many-ranks.md`.
    tables: Mapping[str, pd.DataFrame]
    #: a row for each trace or rank that is not in the tables: `trace`, `rank`, `stage`, `message`,
    #: `attempts`
    failures: pd.DataFrame
    done: int  #: traces analyzed in this run
    kept: int  #: traces whose results were there already
    failed: int  #: traces that could not be analyzed, and arguments that name none
    missing: int  #: ranks of which there is no trace
    notes: Sequence[str] = ()  #: what the reader should know, a sentence each
    problems: Sequence[str] = ()  #: what the workers had to leave out, a sentence each


@dataclass
class FleetRun:
    """A fleet whose traces are done or have failed."""

    store: ResultStore
    jobs: list[TraceJob]  #: one for each trace, in the order of their names
    markers: Markers  #: what is noted of earlier runs, by stem
    not_found: Sequence[TraceNotFoundError]  #: arguments that name no trace
    ranks_per_node: int | None
    stage_names: StageNames | None = None  #: of a pipeline; None to find its stages
    #: of this run, by stem
    finished: dict[str, FinishedJob] = field(default_factory=dict)

    def add(self, finished: FinishedJob) -> None:
        """Note a job that is over; of a file with several ranks as one for each of them."""
        outcome = finished.outcome
        if not outcome.abouts_of_ranks or outcome.about is None:
            self.finished[finished.job.source.stem] = finished
            return
        place = self.jobs.index(finished.job)
        jobs_of_ranks = []
        for rank, about in outcome.abouts_of_ranks.items():
            job = finished.job.of_rank(rank)
            of_rank = replace(outcome, about=about, abouts_of_ranks={})
            self.finished[job.source.stem] = finished._replace(job=job, outcome=of_rank)
            jobs_of_ranks.append(job)
        self.jobs[place : place + 1] = jobs_of_ranks

    def abouts(self) -> dict[str, Mapping[str, Any] | None]:
        """Return what is noted of each trace; None for those that failed."""
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
        """What the workers had to leave out, each once."""
        problems: list[str] = []
        for finished in self.finished.values():
            problems.extend(finished.outcome.problems)
        return list(dict.fromkeys(problems))


def finish(client: Client | None, run: FleetRun) -> FleetResult:
    """Write the lists of traces and failures, and the tables over all ranks.

    Args:
        client: whose workers do it; None for this process.
        run: the traces.
    """
    store = run.store
    sources = {job.source.stem: job.source for job in run.jobs}
    names = {stem: rank_in_name(source.url) for stem, source in sources.items()}
    done = renumber_ranks(
        client=client,
        store=store,
        abouts=run.abouts(),
        rank_in_name=names,
    )
    broken = [source for stem, source in sources.items() if stem not in done]
    failed_ranks = [names[source.stem] for source in broken]
    known_failed_ranks = [rank for rank in failed_ranks if rank is not None]
    world = _world(done, known_failed_ranks)
    failures = _failure_table(
        run=run,
        broken=broken,
        missing=world.missing,
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
    for name in REDUCTIONS + COLLECTIVE_TABLES:
        if name in tables:
            store.put_table(name, tables[name])
        else:
            store.remove_table(name)
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
        *_notes_on_what_is_left_out(run, done),
        *_notes_on_failed_parts(done),
        *(f"{message}." for message in part_failures.messages),
    ]
    return FleetResult(
        out=store.url,
        tables={**tables, "traces": traces},
        failures=failures,
        done=len(done) - kept,
        kept=kept,
        failed=len(broken) + len(run.not_found),
        missing=world.missing_count,
        notes=notes,
        problems=run.problems,
    )


def _failure_table(
    run: FleetRun, broken: Sequence[FleetInput], missing: Sequence[int]
) -> pd.DataFrame:
    """Return the table `failures`: traces, arguments and ranks that are in no other table."""
    rows: list[dict[str, object]] = []
    for source in broken:
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
    for rank in missing:
        message = f"rank {rank}: the inputs contain no trace of it"
        rows.append(
            {"rank": rank, "stage": "missing", "message": message, "attempts": 0}
        )
    return pd.DataFrame(rows, columns=list(_FAILURE_COLUMNS)).astype(_FAILURE_COLUMNS)


def _trace_table(run: FleetRun, done: Markers) -> pd.DataFrame:
    """Return the table `traces`: a row for each trace, whatever became of it."""
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
    """The ranks that a job had and that have no trace."""

    missing: list[int]
    missing_count: int  #: more than are in `missing` if that is not listed
    notes: list[str]  #: what is odd about the size of the world


def _world(done: Markers, failed_ranks: Sequence[int]) -> _World:
    """Compare the ranks that have traces with the size of the world, as far as traces tell it."""
    sizes = {about["world_size"] for about in done.values() if about["world_size"]}
    if not sizes:
        return _World(
            missing=[],
            missing_count=0,
            notes=[],
        )
    largest = max(sizes)
    notes = []
    if len(sizes) > 1:
        listed = ", ".join(map(str, sorted(sizes)))
        notes.append(f"The traces come from jobs of different sizes ({listed} ranks).")
    present = set(failed_ranks)
    for about in done.values():
        if about["rank_from"] != RankSource.ORDER:
            present.add(about["rank"])
    present = {rank for rank in present if rank < largest}
    missing_count = largest - len(present)
    if largest > _MAX_LISTED_MISSING:
        notes.append(
            f"Missing ranks are not listed, because the job has {largest:,} of them."
        )
        return _World(
            missing=[],
            missing_count=missing_count,
            notes=notes,
        )
    return _World(
        missing=missing_ranks(present, largest),
        missing_count=missing_count,
        notes=notes,
    )


def _rank_notes(done: Markers) -> Iterator[str]:
    """Yield notes on ranks that are guesses, and on those of which several traces are."""
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
    shared = sorted(rank for rank, count in count_of_rank.items() if count > 1)
    if shared:
        listed = ", ".join(map(str, shared[:_MAX_NAMED_RANKS]))
        if len(shared) > _MAX_NAMED_RANKS:
            listed = f"{listed} and {len(shared) - _MAX_NAMED_RANKS} more"
        yield f"Several traces have the same rank: {listed}."


def _notes_on_several_devices(done: Markers) -> Iterator[str]:
    """Yield a note on traces each of whose GPUs is a rank."""
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


def _notes_on_what_is_left_out(run: FleetRun, done: Markers) -> Iterator[str]:
    """Yield how many events are dropped, and of how many traces parts are not used."""
    dropped = [about["dropped"] for about in done.values() if about["dropped"]]
    if dropped:
        events = counted(sum(dropped), "event")
        traces = counted(len(dropped), "trace")
        yield f"{events} of {traces} could not be used."
    stems = {job.source.stem for job in run.jobs}
    others = sum(stem not in stems for stem in run.markers)
    if others:
        traces = "1 trace that is" if others == 1 else f"{others} traces that are"
        yield (
            f"Parts of {traces} not among the inputs are ignored; they stay in the "
            "folder."
        )


def _notes_on_failed_parts(done: Markers) -> Iterator[str]:
    """Yield what of each trace could not be computed."""
    for about in done.values():
        for message in about["failures"]:
            yield f"{about['trace']}: {message}."
