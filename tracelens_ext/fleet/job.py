"""What a worker does: read one trace, write its parts, and say how it went. It never raises."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens_ext.errors import (
    OutputError,
    TraceCutOffError,
    TraceError,
    TracelensError,
)
from tracelens_ext.fleet.inputs import FleetInput, base_name, file_system
from tracelens_ext.fleet.portable_rules import PortableRules, worker_folder
from tracelens_ext.fleet.ranks import ORDER, rank_of, world_size_of
from tracelens_ext.settings import AS_USUAL, ReadingOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.fleet.store import ResultStore

#: Raised when the parts, or what they mean, change: what was done before is then done again.
LAYOUT = 3
_COPY_BYTES = 1 << 22


@dataclass(frozen=True)
class JobOptions:
    """How every trace of a fleet is analysed."""

    #: the user's rules, categorizer and maps
    rules: PortableRules = field(default_factory=PortableRules)
    unlinked_kernels: bool = True  #: whether GPU events without a launch count in the timeline
    reading: ReadingOptions = AS_USUAL  #: how traces are read
    cache: bool = False  #: whether the user's cache of traces is used (of files, not of URLs)
    #: how long the second attempt at a URL waits; the next ones, twice as long each
    pause_s: float = 1.0

    @property
    def key(self) -> str:
        """A hash of all that changes the result: what was done with another is done again."""
        from tracelens_ext import __version__
        from tracelens_ext.hooks import default_registry

        plugins = sorted((p.name, p.distribution) for p in default_registry().plugins)
        reading = (self.reading.salvage, self.reading.max_bytes)
        parts = [LAYOUT, __version__, self.rules.digest, self.unlinked_kernels, reading, plugins]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True)
class TraceJob:
    """One trace to be done."""

    source: FleetInput  #: the trace
    place: int  #: its place among all traces by name, its rank if neither it nor its name says one
    store: ResultStore  #: where its parts go
    options: JobOptions  #: how it is analysed
    key: str  #: `options.key`, made where the fleet is started

    def is_done(self, mark: Mapping[str, Any] | None) -> bool:
        """Whether a marker says that this very job was done."""
        if mark is None or self.source.identity is None:
            return False
        return (
            mark.get("key") == self.key
            and mark.get("identity") == self.source.identity
            and mark.get("trace") == self.source.name
            and (mark.get("by_place") is False or mark.get("place") == self.place)
        )


@dataclass(frozen=True)
class Outcome:
    """How a job went."""

    stem: str  #: of the trace
    #: what is noted of the trace, as JSON; None when it failed
    about: dict[str, Any] | None = None
    stage: str = ""  #: where it failed: `open`, `read`, `analyse`, `write` or `worker`
    message: str = ""  #: why, one line
    final: bool = False  #: whether another attempt would fail too
    problems: tuple[str, ...] = ()  #: what plugins did wrong


class _StageError(Exception):
    """Something went wrong at a stage."""

    def __init__(self, stage: str, error: Exception, *, final: bool) -> None:
        super().__init__(_one_line(error))
        self.stage, self.final = stage, final


def run_job(job: TraceJob, attempt: int = 1) -> Outcome:
    """Do a job."""
    stem = job.source.stem
    if attempt > 1 and job.source.is_remote:
        time.sleep(job.options.pause_s * 2 ** (attempt - 2))
    try:
        about, problems = _do(job)
    except _StageError as error:
        return Outcome(stem, stage=error.stage, message=str(error), final=error.final)
    return Outcome(stem, about, problems=problems)


def _do(job: TraceJob) -> tuple[dict[str, Any], tuple[str, ...]]:
    started = time.perf_counter()
    with _on_this_machine(job.source) as path:
        analyzer = _analyzer(job, path)
        with _stage("analyse"):
            about, tables = _results(job, analyzer)
    with _stage("write"):
        job.store.unmark(job.source.stem)
        for name, frame in tables.items():
            job.store.put_table(f"{name}/{job.source.stem}", frame)
        about["seconds"] = round(time.perf_counter() - started, 3)
        job.store.mark(job.source.stem, about)
    return about, tuple(analyzer.problems)


def _analyzer(job: TraceJob, path: Path) -> TreePerfAnalyzer:
    from tracelens_ext.analyzer import TreePerfAnalyzer

    try:
        return TreePerfAnalyzer(
            path,
            use_kernel_name_categories=True,
            include_unlinked_kernels=job.options.unlinked_kernels,
            cache=job.options.cache and not job.source.is_remote,
            reading=job.options.reading,
            **job.options.rules.options(),
        )
    except TraceError as error:
        cut_off = isinstance(error, TraceCutOffError) and job.source.is_remote  # in the transfer
        shown = TraceError(job.source.name, error.problem, error.remedy)
        raise _StageError("read", shown, final=not cut_off) from None
    except Exception as error:  # one trace's trouble, whatever it is, must not stop the others
        raise _StageError("read", error, final=isinstance(error, TracelensError)) from error


def _results(job: TraceJob, analyzer: TreePerfAnalyzer) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is noted of a trace, and its tables."""
    from tracelens_ext.fleet.rows import trace_tables
    from tracelens_ext.ranks.part import communication_about

    trace, work = analyzer.trace, analyzer.work
    rank, rank_from = rank_of(trace.metadata, job.source.url, job.place)
    tables = trace_tables(analyzer, job.source.name, rank, job.place)
    about = {
        "key": job.key,
        "trace": job.source.name,
        "url": job.source.url,
        "identity": dict(job.source.identity) if job.source.identity else None,
        "rank": rank,
        "rank_from": rank_from,
        "place": job.place,
        "by_place": rank_from == ORDER or tables["overlap"]["rank"].nunique() > 1,
        "world_size": (world := world_size_of(trace.metadata)),
        "communication": communication_about(trace.metadata, tables, world),
        "format": trace.provenance.format,
        "events": trace.recorded,
        "gpu_events": len(work),
        "dropped": sum(trace.provenance.dropped.values()),
        "gpu_time_ms": int(work.duration.sum()) / 1e6,
        "notes": list(trace.provenance.notes),
        "rows": {name: len(frame) for name, frame in tables.items()},
    }
    return about, tables


@contextmanager
def _stage(name: str) -> Iterator[None]:
    """Say of whatever goes wrong at which stage it did."""
    try:
        yield
    except Exception as error:  # one trace's trouble, whatever it is, must not stop the others
        wrong = isinstance(error, TracelensError) and not isinstance(error, OutputError)
        raise _StageError(name, error, final=wrong) from error


@contextmanager
def _on_this_machine(source: FleetInput) -> Iterator[Path]:
    """A path at which a trace can be read; what is far away is copied here first."""
    if not source.is_remote:
        yield Path(source.url)
        return
    with tempfile.TemporaryDirectory(
        prefix="tracelens-ext-", dir=worker_folder(), ignore_cleanup_errors=True
    ) as folder:
        copy = Path(folder) / (base_name(source.url) or "trace.json")
        try:
            files, path = file_system(source.url)
            with files.open(path, "rb") as far, copy.open("wb") as near:
                shutil.copyfileobj(far, near, _COPY_BYTES)
        except Exception as error:
            # fsspec says of any web server that does not answer that it has no such file.
            web = source.url.startswith("http") and isinstance(error, FileNotFoundError)
            lasting = FileNotFoundError | PermissionError | TracelensError
            never = isinstance(error, lasting) and not web
            reason = _one_line(error.__cause__ if isinstance(error.__cause__, OSError) else error)
            shown = TraceError(
                source.name,
                f"cannot be opened ({reason})",
                "check the URL",
            )
            raise _StageError("open", shown, final=never) from error
        yield copy


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, TracelensError):
        return text
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
