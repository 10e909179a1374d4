"""`run_fleet`: every trace to its parts, every failure to its list, all parts to the reductions."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracelens_ext.distributed import storage as places
from tracelens_ext.distributed.cluster import (
    default_workers,
    require_fleet_extra,
    run_jobs,
    workers_of,
)
from tracelens_ext.distributed.html_page import PAGE, REDUCTIONS, ranks_together, reductions
from tracelens_ext.distributed.html_page import TABLES as TOGETHER
from tracelens_ext.distributed.job import TABLES, JobOptions, JobOutcome, TraceJob, portable_rules
from tracelens_ext.errors import TraceNotFoundError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions

if TYPE_CHECKING:
    from distributed import Client

Outcomes = Mapping[str, tuple[JobOutcome, int]]

ATTEMPTS = 3
_MOST_MISSING_LISTED = 100_000
_TRACE_COLUMNS = [
    "trace",
    "rank",
    "rank_from",
    "world_size",
    "state",
    "attempts",
    "events",
    "gpu_events",
    "events_dropped",
    "gpu_time_ms",
    "seconds",
    "format",
    "parts",
]
_FAILURES = {"trace": "str", "rank": "Int64", "stage": "str", "message": "str", "attempts": "int64"}


@dataclass(frozen=True)
class FleetResult:
    """What became of a fleet."""

    out: str  #: the folder of the results, as an absolute path or URL
    #: the reductions by name, and `traces`; see `docs/fleet.md`.
    tables: Mapping[str, pd.DataFrame]
    #: a row a trace or rank that is not in the tables: `trace`, `rank`, `stage`, `message`,
    #: `attempts`
    failures: pd.DataFrame
    done: int  #: traces analysed in this run
    kept: int  #: traces whose results were there already
    failed: int  #: traces that could not be analysed, and arguments that name none
    missing: int  #: ranks of which there is no trace
    notes: Sequence[str] = ()  #: what the reader should know, a sentence each
    problems: Sequence[str] = ()  #: what the workers had to leave out, a sentence each


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
    without_packs: Sequence[str] = (),
    include_unlinked_kernels: bool = True,
    ranks_per_node: int | None = None,
    cache: bool = False,
    verify_cache: bool = False,
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
    force: bool = False,
    pause_s: float = 1.0,
    progress: Callable[[int, int, int], None] | None = None,
) -> FleetResult:
    """Analyse many traces and compare their ranks.

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
        rules: TOML files of categorisation rules that win over all others.
        categorizer: `"jax"`, `"vllm:gpt-oss"` …, or a JSON file with a map.
        maps: folders of engine/model maps that `categorizer` may name.
        without_packs: names of rule packs that take no part.
        include_unlinked_kernels: whether GPU events whose launch is not in the trace count in the
            timelines.
        ranks_per_node: to tell the nodes; None to see them in the devices, where that is possible.
        cache: whether files are looked for, and kept, in the user's cache of traces.
        verify_cache: whether the cache compares whole files.
        reading: what else can be chosen about reading.
        force: whether a folder is used, and files in it are replaced, that tracelens-ext did not
            make.
        pause_s: how long the second attempt at a URL waits; the next ones, twice as long each.
        progress: called with (done, failed, total) whenever a trace is over.

    Returns:
        The reductions, which are also written, and what failed.

    Raises:
        UsageError: something asked for does not exist, or does not go together.
        RuleError: the rules are no good.
        TraceNotFoundError: nothing names a trace.
        OutputError: the results cannot be written.
        ClusterError: the scheduler cannot be reached, or is lost; what is done is kept.
    """
    require_fleet_extra()
    sources, not_found = places.find_inputs([os.fspath(item) for item in inputs])
    store = places.ResultStore.at(os.fspath(out))
    if scheduler is not None and workers is not None:
        raise UsageError("workers are of this machine; a scheduler has its own: give one of them")
    if attempts < 1:
        raise UsageError(f"{attempts} attempts are none; give at least 1")
    if not sources:
        told = "a fleet needs a trace; name files, a folder, a pattern or a URL"
        raise not_found[0] if not_found else UsageError(told)
    workers = _processes(sources, store, workers)
    reading = replace(reading, verify_cache=verify_cache or reading.verify_cache)
    if workers or scheduler is not None:
        reading = replace(reading, jobs=1)  # the traces are what is done side by side
    portable = portable_rules(rules, categorizer, maps, without_packs)
    options = JobOptions(portable, include_unlinked_kernels, reading, cache, pause_s)
    names = [f"{name}.parquet" for name in ("traces", "failures", *REDUCTIONS, *TOGETHER)]
    store.claim([*names, *TABLES, PAGE, ".done"], force=force)
    key = options.key
    marks = store.marks()
    jobs = [TraceJob(source, at, store, options, key) for at, source in enumerate(sources)]
    todo = [job for job in jobs if not job.is_done(marks.get(job.source.stem))]
    outcomes: dict[str, tuple[JobOutcome, int]] = {}
    failed = 0
    kept = len(jobs) - len(todo)
    tell = progress or (lambda *_: None)
    with workers_of(scheduler, min(workers, len(todo))) if todo else nullcontext() as client:
        tell(kept, 0, len(jobs))
        for job, outcome, tried in run_jobs(client, todo, attempts, in_order=scheduler is None):
            outcomes[job.source.stem] = outcome, tried
            failed += outcome.about is None
            tell(kept + len(outcomes) - failed, failed, len(jobs))
        return _finish(client, store, jobs, marks, outcomes, not_found, ranks_per_node)


def _finish(
    client: Client | None,
    store: places.ResultStore,
    jobs: Sequence[TraceJob],
    marks: places.Done,
    outcomes: Outcomes,
    not_found: Sequence[TraceNotFoundError],
    ranks_per_node: int | None,
) -> FleetResult:
    """Write the list of traces, that of failures, and the reductions."""
    fresh = {stem: each.about for stem, (each, _) in outcomes.items()}
    abouts = {job.source.stem: {**marks, **fresh}[job.source.stem] for job in jobs}
    done = {stem: about for stem, about in abouts.items() if about is not None}
    lacking = [job.source for job in jobs if job.source.stem not in done]
    broken = [(source, places.rank_in_name(source.url)) for source in lacking]
    failed = [rank for _, rank in broken if rank is not None]
    ranks, missing, world_notes = _missing(done, failed)
    rows: list[tuple[object, ...]] = []
    for source, rank in broken:
        outcome, tried = outcomes[source.stem]
        rows.append((source.name, rank, outcome.stage, outcome.message, tried))
    rows += [(each.path, None, "find", f"{each.path}: {each.problem}", 1) for each in not_found]
    told = "no trace of it is among the inputs"
    rows += [(None, rank, "missing", f"rank {rank}: {told}", 0) for rank in ranks]
    failures = pd.DataFrame(rows, columns=[*_FAILURES])
    traces = _traces(jobs, done, outcomes)
    store.put_table("traces", traces)
    store.put_table("failures", failures := failures.astype(_FAILURES))
    tables, notes = reductions(store, done) if done else ({}, [])
    for name in (*REDUCTIONS, *TOGETHER):
        if name in tables:
            store.put_table(name, tables[name])
        else:
            store.remove(f"{name}.parquet")
    if done:
        tables = ranks_together(client, store, done, failed, ranks_per_node) | tables
    kept = len(jobs) - len(outcomes)
    unusable = len(broken) + len(not_found)
    counts = len(done) - kept, kept, unusable, missing
    notes = [*_rank_notes(done), *world_notes, *notes, *_left_out(done, abouts, marks)]
    problems = list(dict.fromkeys(p for each, _ in outcomes.values() for p in each.problems))
    tables = tables | {"traces": traces}
    return FleetResult(store.url, tables, failures, *counts, notes, problems)


def _processes(
    sources: Sequence[places.FleetInput], store: places.ResultStore, workers: int | None
) -> int:
    """How many processes work; refuses what they cannot do."""
    count = default_workers(sources) if workers is None else workers
    if count < 0:
        raise UsageError(f"{count} workers are too few; give 0 for this process alone")
    here = [url for url in (store.url, *(s.url for s in sources)) if url.startswith("memory://")]
    if here and count:
        raise UsageError(f"{here[0]}: is in the memory of this process; needs 0 workers")
    return count


def _traces(jobs: Sequence[TraceJob], done: places.Done, outcomes: Outcomes) -> pd.DataFrame:
    """A row a trace, whatever became of it."""
    rows = []
    for source in (job.source for job in jobs):
        about = done.get(source.stem, {})
        (_, tried) = outcomes.get(source.stem, (None, 0))
        state = "failed" if not about else "done" if tried else "kept"
        own = {"trace": source.name, "state": state, "attempts": tried}
        own["parts"] = f"{source.stem}.parquet" if about else None
        own["events_dropped"] = about.get("dropped")
        rows.append({"rank": places.rank_in_name(source.url), **about, **own})
    whole = ("rank", "world_size", "events", "gpu_events", "events_dropped", "attempts")
    types = dict.fromkeys(_TRACE_COLUMNS, "str") | dict.fromkeys(whole, "Int64")
    types |= dict.fromkeys(("gpu_time_ms", "seconds"), "float64")
    return pd.DataFrame(rows, columns=_TRACE_COLUMNS).astype(types)


def _missing(done: places.Done, failed: Sequence[int]) -> tuple[list[int], int, list[str]]:
    """The ranks without a trace, how many they are, and what is odd about the size of the world."""
    sizes = Counter(about["world_size"] for about in done.values() if about["world_size"])
    if not sizes:
        return [], 0, []
    listed = ", ".join(map(str, sorted(sizes)))
    largest = max(sizes)
    notes = [f"The traces are of jobs of different sizes ({listed} ranks)."] * (len(sizes) > 1)
    ranks = [about["rank"] for about in done.values() if about["rank_from"] != places.ORDER]
    there = {rank for rank in [*ranks, *failed] if rank < largest}
    if largest > _MOST_MISSING_LISTED:
        notes.append(f"Ranks missing from a world of {largest:,} are not listed.")
        return [], largest - len(there), notes
    return places.missing_ranks(there, largest), largest - len(there), notes


def _rank_notes(done: places.Done) -> Iterator[str]:
    """Say which ranks are guesses, and which several traces claim."""
    known = Counter(about["rank_from"] for about in done.values())
    for kind, words in (("name", "from the names of their files"), ("order", "by their order")):
        if known[kind]:
            traces = f"{known[kind]} trace{'s do' if known[kind] > 1 else ' does'}"
            yield f"{traces} not say the rank; it is taken {words}."
    often = Counter(about["rank"] for about in done.values())
    if shared := sorted(rank for rank, count in often.items() if count > 1):
        more = f" and {len(shared) - 5} more" if len(shared) > 5 else ""
        listed = ", ".join(map(str, shared[:5]))
        yield f"Several traces are of the same rank: {listed}{more}."


def _left_out(done: places.Done, named: Container[str], marks: Iterable[str]) -> Iterator[str]:
    """Say how many events could not be used, and of how many traces parts are not used."""
    if dropped := [about["dropped"] for about in done.values() if about["dropped"]]:
        traces = f"{len(dropped)} trace{'s' * (len(dropped) > 1)}"
        yield f"{sum(dropped):,} events of {traces} could not be used and are dropped."
    if others := sum(stem not in named for stem in marks):
        traces = "1 trace that is" if others == 1 else f"{others} traces that are"
        told = "not among the inputs are left out; they stay in the folder"
        yield f"Parts of {traces} {told}."
