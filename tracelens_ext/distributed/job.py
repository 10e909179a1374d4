"""The job of a worker: reads one trace, writes its parts, and returns how it went.

A job never raises; errors are part of its outcome.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tracelens_ext import errors
from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.distributed.inputs import FleetInput, file_system
from tracelens_ext.distributed.job_options import JobOptions
from tracelens_ext.distributed.process_groups import (
    communication_about,
    configured_groups,
)
from tracelens_ext.distributed.rank_numbers import (
    RankHints,
    RankSource,
    TraceRanks,
    assign_ranks,
    rank_hints,
    world_size_of,
)
from tracelens_ext.distributed.storage import ResultStore
from tracelens_ext.distributed.trace_tables import trace_tables
from tracelens_ext.hooks.registry import one_line
from tracelens_ext.lazy import pd
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.cache.store import TraceCache, open_cache
from tracelens_ext.trace import NS_PER_MS, Trace
from tracelens_ext.trace.merged_ranks import find_merged_ranks
from tracelens_ext.trace.rank_traces import trace_of_rank

_COPY_BYTES = 1 << 22
#: The key under which the marker of a file with several ranks lists the ranks.
MERGED_RANKS = "merged_ranks"


class Stage(StrEnum):
    """The stages of a job, one of which is named if the job fails."""

    OPEN = "open"
    READ = "read"
    ANALYZE = "analyse"  #: kept as tables of earlier versions have it
    WRITE = "write"
    WORKER = "worker"  #: the worker process died


@dataclass(frozen=True)
class TraceJob:
    """The job of analyzing one trace."""

    source: FleetInput  #: the trace
    index: int  #: the index of the trace among all traces, sorted by name
    store: ResultStore  #: the folder to which the parts are written
    options: JobOptions  #: how the trace is analyzed
    key: str  #: `options.key`, computed by the process that starts the fleet

    def of_rank(self, rank: int) -> TraceJob:
        """Return the job of one rank of a file that contains several ranks."""
        return replace(self, source=self.source.of_rank(rank))

    def is_done(self, marker: Mapping[str, Any] | None) -> bool:
        """Tell whether a marker shows that the job was done, with the same trace and options."""
        if marker is None or self.source.identity is None:
            return False
        return (
            marker.get("key") == self.key
            and marker.get("identity") == self.source.identity
            and marker.get("trace") == self.source.name
        )


@dataclass(frozen=True)
class JobOutcome:
    """The outcome of a job: the content of its marker, or an error."""

    #: the content of the trace's marker, as JSON; None if the job failed
    about: dict[str, Any] | None = None
    stage: str = ""  #: the `Stage` that failed
    message: str = ""  #: the error, one line
    final: bool = False  #: True if another attempt would fail, too
    problems: tuple[str, ...] = ()  #: results that had to be left out, a sentence each
    #: rank → content of its marker, for a file that contains several ranks
    abouts_of_ranks: Mapping[int, dict[str, Any]] = field(default_factory=dict)


class _TraceResults(NamedTuple):
    """The results that a job writes."""

    about: dict[str, Any]  #: the content of the marker, as JSON
    tables: dict[str, pd.DataFrame]


@dataclass
class _JobProgress:
    """The stage that a job has reached, and what it has produced so far."""

    stage: Stage = Stage.OPEN
    problems: list[str] = field(default_factory=list)
    abouts_of_ranks: dict[int, dict[str, Any]] = field(default_factory=dict)


def run_job(job: TraceJob, attempt: int = 1) -> JobOutcome:
    """Do a job and return its outcome.

    Args:
        job: the job.
        attempt: the number of this attempt, from 1. Further attempts at a URL begin with a pause.
    """
    if attempt > 1 and job.source.is_remote:
        time.sleep(job.options.pause_s * 2 ** (attempt - 2))
    progress = _JobProgress()
    try:
        about = _analyze_and_write(job, progress)
    except Exception as error:  # noqa: BLE001  # one trace's trouble must not stop the others
        return _failure(stage=progress.stage, source=job.source, error=error)
    return JobOutcome(
        about,
        problems=tuple(progress.problems),
        abouts_of_ranks=progress.abouts_of_ranks,
    )


def _analyze_and_write(job: TraceJob, progress: _JobProgress) -> dict[str, Any]:
    """Write the parts of a trace and its marker; return the content of the marker.

    A file that contains several ranks is treated as several traces. Each rank gets parts and a
    marker of its own, and the marker of the file lists the ranks.
    """
    started = time.perf_counter()
    with _on_this_machine(job.source) as path:
        progress.stage = Stage.READ
        cache = open_cache(
            job.options.cache and not job.source.is_remote, job.options.reading
        )
        trace = read_trace(path, cache=cache or False, reading=job.options.reading)
        ranks = find_merged_ranks(trace)
        if not ranks:
            return _analyze_trace(
                job=job, trace=trace, cache=cache, progress=progress, started=started
            )
        for rank in ranks:
            about = _analyze_trace(
                job=job.of_rank(rank.number),
                trace=trace_of_rank(trace, rank),
                cache=None,
                progress=progress,
                started=started,
            )
            progress.abouts_of_ranks[rank.number] = about
            started = time.perf_counter()
    about = {
        "key": job.key,
        "trace": job.source.name,
        "identity": dict(job.source.identity) if job.source.identity else None,
        MERGED_RANKS: [rank.number for rank in ranks],
    }
    job.store.put_marker(job.source.stem, about)
    return about


def _analyze_trace(
    job: TraceJob,
    trace: Trace,
    cache: TraceCache | None,
    progress: _JobProgress,
    started: float,
) -> dict[str, Any]:
    """Analyze a trace, write its parts and its marker; return the content of the marker."""
    options = job.options
    progress.stage = Stage.READ
    analyzer = TreePerfAnalyzer(
        trace,
        use_kernel_name_categories=True,
        reading=options.reading,
        include_unlinked_kernels=options.unlinked_kernels,
        cache=cache or False,
        **options.rules,
    )
    progress.stage = Stage.ANALYZE
    about, tables = _results(job, analyzer)
    progress.stage = Stage.WRITE
    stem = job.source.stem
    job.store.remove_marker(stem)
    for name, frame in tables.items():
        job.store.put_table(f"{name}/{stem}", frame)
    about["seconds"] = round(time.perf_counter() - started, 3)
    job.store.put_marker(stem, about)
    failures = about["failures"]
    progress.problems += [
        problem for problem in analyzer.problems if problem not in failures
    ]
    return about


def _results(job: TraceJob, analyzer: TreePerfAnalyzer) -> _TraceResults:
    """Return the content of a trace's marker, and its tables."""
    trace = analyzer.trace
    gpu_events = analyzer.gpu_events
    source = job.source
    devices = np.unique(trace.device).tolist()
    hints = rank_hints(metadata=trace.metadata, url=source.url, devices=devices)
    # A worker does not know the other traces. If the rank depends on them, `renumber_ranks`
    # corrects it later.
    ranks = assign_ranks([hints], lowest_rank=job.index)[0]
    tables = trace_tables(
        analyzer=analyzer,
        name=source.name,
        ranks=ranks,
    )
    world_size = world_size_of(trace.metadata)
    groups = configured_groups(trace.metadata)
    about: dict[str, Any] = {
        "key": job.key,
        "trace": source.name,
        "url": source.url,
        "identity": dict(source.identity) if source.identity else None,
        **ranks_as_json(hints, ranks),
        "world_size": world_size,
        "communication": communication_about(
            configured=groups, tables=tables, ranks=ranks.numbers, world_size=world_size
        ),
        # These are needed again only if the rank is corrected later.
        "configured_groups": groups if ranks.source is RankSource.ORDER else {},
        "format": trace.provenance.format,
        "events": trace.recorded,
        "gpu_events": len(gpu_events),
        "dropped": sum(trace.provenance.dropped.values()),
        "gpu_time_ms": float(gpu_events.duration.sum()) / NS_PER_MS,
        "notes": list(trace.provenance.notes),
        "failures": list(analyzer.failures.messages),
        "rows": {name: len(frame) for name, frame in tables.items()},
    }
    return _TraceResults(about, tables)


def ranks_as_json(hints: RankHints, ranks: TraceRanks) -> dict[str, Any]:
    """Return the members of a marker about the ranks of a trace."""
    return {
        "rank": ranks.first,
        "rank_from": str(ranks.source),
        "rank_of_device": {
            str(device): rank for device, rank in ranks.of_device.items()
        },
        "rank_hints": {
            "recorded": hints.recorded,
            "in_name": hints.in_name,
            "separate_devices": list(hints.separate_devices),
        },
    }


def ranks_in_marker(about: Mapping[str, Any]) -> TraceRanks:
    """Return the ranks of a trace that its marker contains."""
    of_device = {int(device): rank for device, rank in about["rank_of_device"].items()}
    return TraceRanks(
        first=about["rank"], source=RankSource(about["rank_from"]), of_device=of_device
    )


def hints_in_marker(about: Mapping[str, Any]) -> RankHints:
    """Return the hints at the rank of a trace that its marker contains."""
    hints = about["rank_hints"]
    return RankHints(
        recorded=hints["recorded"],
        in_name=hints["in_name"],
        separate_devices=tuple(hints["separate_devices"]),
    )


def _failure(stage: Stage, source: FleetInput, error: Exception) -> JobOutcome:
    """Return the outcome of a job that failed at a stage, and whether it would fail again."""
    is_expected = isinstance(error, errors.TracelensError)
    is_final = is_expected and not isinstance(error, errors.OutputError)
    message = _one_line(error)
    if stage is Stage.OPEN:
        is_final = is_final or _is_final_open_error(source, error)
        cause = error.__cause__
        detail = _one_line(cause) if isinstance(cause, OSError) else message
        message = f"{source.name}: cannot be opened ({detail}); check the URL"
    elif stage is Stage.READ and isinstance(error, errors.TraceError):
        may_be_cut_off_by_download = (
            isinstance(error, errors.TraceCutOffError) and source.is_remote
        )
        is_final = not may_be_cut_off_by_download
        message = _one_line(
            errors.TraceError(
                path=source.name, problem=error.problem, remedy=error.remedy
            )
        )
    return JobOutcome(stage=str(stage), message=message, final=is_final)


def _is_final_open_error(source: FleetInput, error: Exception) -> bool:
    """Tell whether further attempts to open a trace would fail, too."""
    if isinstance(error, FileNotFoundError) and source.url.startswith("http"):
        # fsspec raises this error also if the web server does not respond.
        return False
    return isinstance(error, FileNotFoundError | PermissionError)


@contextmanager
def _on_this_machine(source: FleetInput) -> Iterator[Path]:
    """Yield a local path of a trace; a remote trace is copied to a temporary folder first."""
    if not source.is_remote:
        yield Path(source.url)
        return
    with tempfile.TemporaryDirectory(
        prefix="tracelens-ext-", dir=_worker_folder(), ignore_cleanup_errors=True
    ) as folder:
        copy = Path(folder) / (source.base_name or "trace.json")
        remote = file_system(source.url)
        with (
            remote.files.open(remote.path, "rb") as original,
            copy.open("wb") as target,
        ):
            shutil.copyfileobj(original, target, _COPY_BYTES)
        yield copy


def _worker_folder() -> str | None:
    """Return the folder of the Dask worker, which is removed even if the worker is killed."""
    from distributed import get_worker

    with suppress(ValueError):  # raised if this process is not a worker
        folder: str = get_worker().local_directory
        return folder
    return None


def _one_line(error: BaseException) -> str:
    """Return the message of an error in one line, with the file that an OSError names."""
    if isinstance(error, OSError) and error.strerror:
        if error.filename:
            return f"{error.strerror}: {error.filename}"
        return error.strerror
    return one_line(error)
