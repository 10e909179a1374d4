"""What a worker does: read one trace, write its parts, and say how it went. It never raises."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tracelens_ext import errors
from tracelens_ext.analysis.collectives import collective_calls
from tracelens_ext.analysis.timeline.timeline import gpu_timeline
from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.categorize import KernelCategorizer, RulePack, load_maps, load_pack
from tracelens_ext.categorize.maps import map_in_file
from tracelens_ext.distributed import storage as places
from tracelens_ext.distributed.extract import communication_about, rank_tables
from tracelens_ext.hooks import default_registry
from tracelens_ext.hooks.registry import one_line
from tracelens_ext.lazy import pd
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, VERSION, ReadingOptions
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import group_durations, number_groups, percent, sums, texts

#: Raised when the parts, or what they mean, change: what was done before is then done again.
LAYOUT = 3
_COPY_BYTES = 1 << 22


@dataclass(frozen=True)
class JobOptions:
    """How every trace of a fleet is analysed."""

    #: the arguments of an analyzer about rules; see `portable_rules`
    rules: Mapping[str, Any] = field(default_factory=dict)
    unlinked_kernels: bool = True  #: whether GPU events without a launch count in the timeline
    reading: ReadingOptions = DEFAULT_READING_OPTIONS  #: how traces are read
    cache: bool = False  #: whether the user's cache of traces is used (of files, not of URLs)
    #: how long the second attempt at a URL waits; the next ones, twice as long each
    pause_s: float = 1.0

    @property
    def key(self) -> str:
        """A hash of all that changes the result: what was done with another is done again."""
        plugins = sorted((p.name, p.distribution) for p in default_registry().plugins)
        reading = (self.reading.salvage, self.reading.max_bytes)
        parts = [LAYOUT, VERSION, self.rules, self.unlinked_kernels, reading, plugins]
        return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


def portable_rules(
    rules: Sequence[str | os.PathLike[str]],
    categorizer: str | os.PathLike[str] | None,
    maps: Sequence[str | os.PathLike[str]],
    without_packs: Sequence[str] = (),
) -> dict[str, Any]:
    """What a user's categories are made of, read, as a worker elsewhere has none of the files."""
    if categorizer is not None and not isinstance(categorizer, str | os.PathLike):
        told = "categorizer: a fleet takes a name or a JSON file, no function or map"
        raise errors.UsageError(told)
    given: dict[str, Any] = {"rules": rules, "categorizer": categorizer, "maps": maps}
    KernelCategorizer.create(**given, without_packs=without_packs)
    chosen = None if categorizer is None else os.fspath(categorizer)

    def named(pack: RulePack) -> RulePack:
        """Where the files lie changes nothing."""
        return replace(pack, source=Path(pack.source or "").name)

    is_file = chosen is not None and chosen.lower().endswith(".json")
    return {
        "rules": [named(load_pack(each)) for each in rules],
        "maps": [named(pack) for place in maps for pack in load_maps(place, passed_over=[])],
        "categorizer": named(map_in_file(chosen)) if chosen and is_file else chosen,
        "without_packs": list(without_packs),
    }


@dataclass(frozen=True)
class TraceJob:
    """One trace to be done."""

    source: places.FleetInput  #: the trace
    place: int  #: its place among all traces by name, its rank if neither it nor its name says one
    store: places.ResultStore  #: where its parts go
    options: JobOptions  #: how it is analysed
    key: str  #: `options.key`, made where the fleet is started

    def is_done(self, mark: Mapping[str, Any] | None) -> bool:
        """Whether a marker says that this very job was done."""
        if mark is None or self.source.identity is None:
            return False
        here = mark.get("by_place") is False or mark.get("place") == self.place
        asked = self.key, self.source.identity, self.source.name
        return here and (mark.get("key"), mark.get("identity"), mark.get("trace")) == asked


@dataclass(frozen=True)
class JobOutcome:
    """How a job went."""

    #: what is noted of the trace, as JSON; None when it failed
    about: dict[str, Any] | None = None
    stage: str = ""  #: where it failed: `open`, `read`, `analyse`, `write` or `worker`
    message: str = ""  #: why, one line
    final: bool = False  #: whether another attempt would fail too
    problems: tuple[str, ...] = ()  #: what had to be left out, a sentence each


def run_job(job: TraceJob, attempt: int = 1) -> JobOutcome:
    """Do a job."""
    source = job.source
    options = job.options
    stage = "open"
    if attempt > 1 and source.is_remote:
        time.sleep(options.pause_s * 2 ** (attempt - 2))
    started = time.perf_counter()
    try:
        with _on_this_machine(source) as path:
            stage = "read"
            how = {"use_kernel_name_categories": True, "reading": options.reading, **options.rules}
            how["include_unlinked_kernels"] = options.unlinked_kernels
            how["cache"] = options.cache and not source.is_remote
            analyzer = TreePerfAnalyzer(path, **how)
            stage = "analyse"
            about, tables = _results(job, analyzer)
        stage = "write"
        marker = f"{places.DONE}/{source.stem}.json"
        job.store.remove(marker)  # its parts no longer count
        for name, frame in tables.items():
            job.store.put_table(f"{name}/{source.stem}", frame)
        about["seconds"] = round(time.perf_counter() - started, 3)
        job.store.put(marker, json.dumps(about, indent=1).encode())
    except Exception as error:  # noqa: BLE001  # one trace's trouble must not stop the others
        return _failure(stage, source, error)
    return JobOutcome(about, problems=tuple(analyzer.problems))


def _results(job: TraceJob, analyzer: TreePerfAnalyzer) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is noted of a trace, and its tables."""
    trace = analyzer.trace
    work = analyzer.work
    source = job.source
    rank, rank_from = places.rank_of(trace.metadata, source.url, job.place)
    tables = trace_tables(analyzer, source.name, rank, job.place)
    world = places.world_size_of(trace.metadata)
    read = trace.provenance
    about: dict[str, Any] = {"key": job.key, "trace": source.name, "url": source.url}
    about["identity"] = dict(source.identity) if source.identity else None
    about |= {"rank": rank, "rank_from": rank_from, "place": job.place}
    about["by_place"] = rank_from == places.ORDER or tables["overlap"]["rank"].nunique() > 1
    about["world_size"] = world
    about["communication"] = communication_about(trace.metadata, tables, world)
    about |= {"format": read.format, "events": trace.recorded, "gpu_events": len(work)}
    about["dropped"] = sum(read.dropped.values())
    about |= {"gpu_time_ms": float(work.duration.sum()) / 1e6, "notes": list(read.notes)}
    return about | {"rows": {name: len(frame) for name, frame in tables.items()}}, tables


def _failure(stage: str, source: places.FleetInput, error: Exception) -> JobOutcome:
    """What went wrong at a stage, and whether it would go wrong again."""
    final = isinstance(error, errors.TracelensError) and not isinstance(error, errors.OutputError)
    said = _one_line(error)
    if stage == "open":
        # fsspec says of any web server that does not answer that it has no such file.
        web = source.url.startswith("http") and isinstance(error, FileNotFoundError)
        final |= isinstance(error, FileNotFoundError | PermissionError) and not web
        said = _one_line(error.__cause__) if isinstance(error.__cause__, OSError) else said
        said = f"{source.name}: cannot be opened ({said}); check the URL"
    elif stage == "read" and isinstance(error, errors.TraceError):
        final = not (isinstance(error, errors.TraceCutOffError) and source.is_remote)  # on its way
        said = _one_line(errors.TraceError(source.name, error.problem, error.remedy))
    return JobOutcome(stage=stage, message=said, final=final)


@contextmanager
def _on_this_machine(source: places.FleetInput) -> Iterator[Path]:
    """A path at which a trace can be read; what is far away is copied here first."""
    if not source.is_remote:
        yield Path(source.url)
        return
    from distributed import get_worker

    place = None
    with suppress(ValueError):  # a Dask worker's own folder goes with it, even if it is killed
        place = get_worker().local_directory
    own: dict[str, Any] = {"prefix": "tracelens-ext-", "dir": place}
    with tempfile.TemporaryDirectory(**own, ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / (source.base_name or "trace.json")
        files, path = places.file_system(source.url)
        with files.open(path, "rb") as far, copy.open("wb") as near:
            shutil.copyfileobj(far, near, _COPY_BYTES)
        yield copy


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return one_line(error)


#: The folders of parts.
TABLES = (
    "timeline",
    "categories",
    "kernels",
    "ops",
    "collectives",
    "collective_calls",
    "findings",
    "rank_calls",
    "rank_iterations",
    "overlap",
)
#: What has no type of its own in a table without rows: a column has one type in all parts.
_TEXTS = (
    "type",
    "kind",
    "cpu_op",
    "name",
    "Categories",
    "kernel_category",
    "kernel_name",
    "collective",
    "Collective name",
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
    "dtype",
    "iteration",
)
_TYPES = dict.fromkeys(_TEXTS, "str") | {"time ms": "float64", "percent": "float64"}


def trace_tables(
    analyzer: TreePerfAnalyzer, name: str, rank: int, place: int
) -> dict[str, pd.DataFrame]:
    """The tables of a trace by their names in `TABLES`, with `trace`, `rank`, `device` first."""
    work = analyzer.work
    timeline = gpu_timeline(work)
    if "device" not in timeline:
        device = work.trace.device[work.counted][:1]
        timeline.insert(0, "device", np.repeat(device, len(timeline)))
    tables = {
        "timeline": timeline,
        "categories": categories(work),
        "kernels": analyzer.get_df_kernel_summary(),
        "ops": analyzer.get_df_kernel_launchers_summary(),
        "collectives": analyzer.get_df_collectives(),
        "collective_calls": collective_calls(work),
        "findings": analyzer.get_df_findings(),
    }
    keyed = {table: _keyed(frame, work, name, rank) for table, frame in tables.items()}
    return keyed | rank_tables(work, rank, place)


def categories(work: GpuEvents) -> pd.DataFrame:
    """GPU time by device and category, the longest first."""
    found = work.needed_categories
    device = work.trace.device
    groups = group_durations([device, found.code], work.duration)
    _, number = number_groups([device])
    whole = sums(number, work.duration, int(number.max(initial=-1)) + 1)[number[groups.first]]
    columns = {"device": groups.keys[0], "kernel_category": texts(groups.keys[1], found.labels)}
    columns |= groups.figures("count", "total_time_ms")
    return pd.DataFrame({**columns, "% of GPU time": percent(groups.total, whole)})


def _keyed(frame: pd.DataFrame, work: GpuEvents, name: str, rank: int) -> pd.DataFrame:
    """A table with the columns that tell traces apart, first."""
    frame = frame.astype({column: kind for column, kind in _TYPES.items() if column in frame})
    if "device" not in frame:
        devices = np.unique(work.trace.device).tolist()
        only = devices[0] if len(devices) == 1 else pd.NA
        frame.insert(0, "device", pd.Series(only, frame.index, "Int64"))
    frame.insert(0, "rank", rank)
    frame.insert(0, "trace", pd.Series(name, frame.index, "str"))
    return frame
