"""Matches the calls of all ranks, and writes the tables and the page about the whole job.

Every run computes all of this again, because each additional rank can change it. Each process
group is one task for a Dask worker. Another task then combines the results of all groups.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from tracelens_ext.distributed.aggregate import JobSettings, job_tables
from tracelens_ext.distributed.calls import CallsOfGroup, calls_of_group, unnamed_calls
from tracelens_ext.distributed.html_page import write_page
from tracelens_ext.distributed.pipeline.extract import (
    ACTIVITY,
    CALLS,
    PIPELINE_TABLES,
    has_unknown_exchanges,
    has_unknown_partners,
)
from tracelens_ext.distributed.pipeline.stage_names import StageNames
from tracelens_ext.distributed.pipeline.tables import (
    STAGES_TABLE,
    PipelineJob,
    analyze_pipelines,
)
from tracelens_ext.distributed.pipeline.verdicts import find_pipeline_verdicts
from tracelens_ext.distributed.storage import Markers, ResultStore
from tracelens_ext.distributed.verdicts import verdict_table
from tracelens_ext.isolation import PartFailures
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from distributed import Client

#: The tables whose size depends on the number of ranks or iterations, not on the number of calls.
_SMALL_TABLES = (
    "verdicts",
    STAGES_TABLE,
    "collective_groups",
    "wait_root_causes",
    "clocks",
    "overlap",
)
#: All tables, in the order in which they are shown. Those that grow with the calls come last.
TABLES = _SMALL_TABLES + ("collective_calls", "collective_waits")
#: The file name of the page about all ranks.
PAGE = "ranks.html"


class PageLink(NamedTuple):
    """A link on the page about all ranks."""

    label: str
    address: str


class RankTables(NamedTuple):
    """The result of matching the calls of all ranks."""

    tables: dict[str, pd.DataFrame]  #: the small tables of `TABLES`
    failures: list[str]  #: a sentence for each part that could not be computed


@dataclass(frozen=True)
class _GroupTask:
    """The task of matching the calls of one process group."""

    store: ResultStore
    key: str  #: the key of the group; empty for kernels whose group is not known
    stems: Sequence[str]  #: stems of the traces that contain calls of the group
    is_only_group: bool  #: True if all communication of the job may belong to one group
    rank_count: int  #: the number of ranks of the job

    def run(self) -> CallsOfGroup:
        """Match the calls of the group."""
        frames = []
        for stem in self.stems:
            calls = self.store.get_table(f"rank_calls/{stem}").to_pandas()
            frames.append(calls[calls["key"] == self.key])
        rows = pd.concat(frames, ignore_index=True)
        # Several traces of the same rank may contain the same kernel.
        rows = rows.drop_duplicates(["rank", "launch", "start", "dur", "kernel_name"])
        if self.key:
            return calls_of_group(rows)
        return unnamed_calls(
            rows, is_only_group=self.is_only_group, rank_count=self.rank_count
        )


@dataclass(frozen=True)
class _GroupOutcome:
    """The result of a `_GroupTask`."""

    calls: CallsOfGroup | None  #: None if the matching failed
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _JobTask:
    """The task of combining the calls of all process groups."""

    store: ResultStore
    communication: Markers  #: stem of a trace → the `communication` in its marker
    #: table → the stems of the traces that have a part of the table
    stems_of_table: Mapping[str, Sequence[str]]
    settings: JobSettings
    links: Sequence[PageLink]
    stage_names: StageNames | None  #: the stages of a pipeline; None to find them

    def run(self, groups: Sequence[_GroupOutcome]) -> RankTables:
        """Write the tables and the page over all ranks, and return the smaller tables."""
        failures = PartFailures()
        for group in groups:
            failures.messages.extend(group.failures)
        matched_groups = [group.calls for group in groups if group.calls is not None]
        tables = {}
        overlap = self._all_parts("overlap")
        if overlap is not None:
            tables["overlap"] = overlap
        iterations = self._all_parts("rank_iterations")
        pipelines = PipelineJob()
        with failures.isolate(f"The table {STAGES_TABLE}"):
            pipelines = self._pipelines(failures)
        if matched_groups and iterations is not None:
            tables_of_calls = job_tables(
                groups=matched_groups,
                iterations=iterations,
                communication=list(self.communication.values()),
                settings=replace(self.settings, stage_of_rank=pipelines.stage_of_rank),
                failures=failures,
            )
            tables.update(tables_of_calls)
        _add_pipelines(
            tables=tables,
            pipelines=pipelines,
            failures=failures,
        )
        for name, frame in tables.items():
            self.store.put_table(name, frame)
        has_html = find_spec("jinja2") is not None and find_spec("plotly") is not None
        if has_html and self.store.is_local and "verdicts" in tables:
            with failures.isolate("The page of all ranks"):
                page = Path(self.store.path_of(PAGE))
                write_page(
                    path=page,
                    tables=tables,
                    links=self.links,
                    failures=failures,
                    pipelines=pipelines,
                )
        small_tables = {name: tables[name] for name in _SMALL_TABLES if name in tables}
        return RankTables(small_tables, failures.messages)

    def _pipelines(self, failures: PartFailures) -> PipelineJob:
        """Return the pipelines of the job; note a failure if stages cannot be found."""
        calls = self._all_parts(CALLS)
        pipelines = PipelineJob()
        if calls is not None and len(calls):
            keys = ["rank", "launch", "start", "end", "direction", "peer"]
            calls = calls.drop_duplicates(keys)
            stages: Sequence[Sequence[int]] = ()
            if self.stage_names is not None:
                stages = self.stage_names.stages(self._ranks())
            if stages or self.stage_names is None:
                pipelines = analyze_pipelines(
                    calls=calls,
                    activity_of=self._activity_of,
                    stages=stages,
                )
        if not pipelines.iterations:
            reason = self._why_without_stages(calls)
            if reason:
                failures.messages.append(reason)
        return pipelines

    def _why_without_stages(self, calls: pd.DataFrame | None) -> str:
        """Return why no stages were found; empty if the job does not seem to have any.

        Args:
            calls: `pipeline_calls` of all ranks; None if no trace has that table.
        """
        if calls is not None and has_unknown_exchanges(calls):
            return (
                "If the job has a pipeline, its stages cannot be found: the traces do not "
                "record what their SendRecv kernels exchange. Recent versions of PyTorch "
                "record it if CPU activity is profiled too"
            )
        if self.stage_names is not None:
            return (
                "No sends and receives connect the given pipeline stages; check "
                "--pipeline-stages, or leave it out"
            )
        if calls is not None and has_unknown_partners(calls):
            return (
                "If the job has a pipeline, its stages cannot be found: the traces do not "
                "record which ranks send to each other. Name the stages with --pipeline-stages"
            )
        return ""

    def _activity_of(self, ranks: Sequence[int]) -> pd.DataFrame:
        """Return the rows of `pipeline_activity` of some ranks."""
        wanted_ranks = set(ranks)
        frames = []
        for stem in self.stems_of_table[ACTIVITY]:
            if wanted_ranks.intersection(self.communication[stem]["ranks"]):
                frame = self.store.get_table(f"{ACTIVITY}/{stem}").to_pandas()
                frames.append(frame[frame["rank"].isin(wanted_ranks)])
        non_empty = [frame for frame in frames if len(frame)]
        joined: pd.DataFrame = pd.concat(non_empty or frames, ignore_index=True)
        # Several traces of the same rank may contain the same activity.
        return joined.drop_duplicates()

    def _ranks(self) -> list[int]:
        """Return the ranks of the job that are known, ascending."""
        ranks = set(range(self.settings.world_size or 0))
        for about in self.communication.values():
            ranks.update(about["ranks"])
        return sorted(ranks)

    def _all_parts(self, table: str) -> pd.DataFrame | None:
        """Return a table with the rows of all traces; None if no trace has the table."""
        frames = [
            self.store.get_table(f"{table}/{stem}").to_pandas()
            for stem in self.stems_of_table[table]
        ]
        if not frames:
            return None
        non_empty = [frame for frame in frames if len(frame)]
        joined: pd.DataFrame = pd.concat(non_empty or frames[:1], ignore_index=True)
        return joined


def _add_pipelines(
    tables: dict[str, pd.DataFrame], pipelines: PipelineJob, failures: PartFailures
) -> None:
    """Add the table of pipeline stages to the tables, and pipeline verdicts to `verdicts`."""
    tables[STAGES_TABLE] = pipelines.table()
    with failures.isolate("The verdicts on the pipeline"):
        verdicts = verdict_table(find_pipeline_verdicts(pipelines))
        if len(verdicts):
            earlier_verdicts = tables.get("verdicts", verdicts[:0])
            non_empty = [table for table in (earlier_verdicts, verdicts) if len(table)]
            tables["verdicts"] = pd.concat(non_empty, ignore_index=True)


def match_ranks(
    client: Client | None,
    store: ResultStore,
    done: Markers,
    failed_ranks: Sequence[int],
    ranks_per_node: int | None,
    stage_names: StageNames | None = None,
) -> RankTables:
    """Match the calls of all ranks; write the tables that `TABLES` names, and the page.

    If the workers are lost meanwhile, this process does their work.

    Args:
        client: a Dask client whose workers do the work; None to do it in this process.
        store: the folder of the results.
        done: stem of each trace that was analyzed → its marker.
        failed_ranks: ranks whose traces could not be read.
        ranks_per_node: the number of ranks of each node; None to tell it by the devices.
        stage_names: the stages of a pipeline; None to find them.
    """
    communication = {stem: about["communication"] for stem, about in done.items()}
    recorded_world_sizes = [about["world_size"] or 0 for about in done.values()]
    world_size = max(recorded_world_sizes, default=0) or None
    job_task = _JobTask(
        store=store,
        communication=communication,
        stems_of_table={
            table: [stem for stem, about in done.items() if table in about["rows"]]
            for table in ("overlap", "rank_iterations", *PIPELINE_TABLES)
        },
        settings=JobSettings(
            world_size=world_size,
            failed_ranks=failed_ranks,
            ranks_per_node=ranks_per_node,
        ),
        links=_report_links(store, done),
        stage_names=stage_names,
    )
    group_tasks = _group_tasks(store, communication)
    if client is not None:
        from distributed import CancelledError
        from distributed.scheduler import KilledWorker

        try:
            futures = [
                client.submit(_run_group, task, pure=False) for task in group_tasks
            ]
            job_future = client.submit(_run_job, job_task, futures, pure=False)
            tables: RankTables = job_future.result()
        except (KilledWorker, CancelledError, OSError):
            pass  # The workers are gone. This process does their work below.
        else:
            return tables
    outcomes = [_run_group(task) for task in group_tasks]
    return _run_job(job_task, outcomes)


def _run_group(task: _GroupTask) -> _GroupOutcome:
    """Match the calls of one group. It is a function so that a Dask worker can run it."""
    failures = PartFailures()
    with failures.isolate("The matching of a process group's calls"):
        return _GroupOutcome(task.run())
    return _GroupOutcome(None, failures.messages)


def _run_job(task: _JobTask, groups: Sequence[_GroupOutcome]) -> RankTables:
    """Combine all groups. It is a function so that a Dask worker can run it."""
    return task.run(groups)


def _group_tasks(store: ResultStore, communication: Markers) -> list[_GroupTask]:
    """Return a task for each process group of the job."""
    stems_of_group: dict[str, list[str]] = {}
    rank_set_digests: set[str] = set()
    rank_count = 0
    for stem, about in communication.items():
        for key in about["groups"]:
            stems_of_group.setdefault(key, []).append(stem)
        rank_set_digests.update(about["sets"])
        rank_count += len(about["ranks"])
    is_only_group = len(rank_set_digests) < 2
    return [
        _GroupTask(
            store=store,
            key=key,
            stems=stems_of_group[key],
            is_only_group=is_only_group,
            rank_count=rank_count,
        )
        for key in sorted(stems_of_group)
    ]


class _ReportPage(NamedTuple):
    """The file in which the page of a trace's report may be."""

    ranks: tuple[int, ...]  #: the ranks of the trace
    name: str  #: the file name of the page
    path: Path  #: the path of the page if it is in the folder of the trace


def _report_links(store: ResultStore, done: Markers) -> list[PageLink]:
    """Return links to the report pages that exist, next to the results or next to their traces."""
    if not store.is_local:
        return []
    folder = Path(store.path_of(PAGE)).resolve().parent
    pages = [_report_page(about) for about in done.values()]
    count_of_name = Counter(page.name for page in pages)
    links = []
    for page in sorted(pages):
        candidates = [page.path]
        # If several traces have the same name, a page of this name in the folder of the
        # results may belong to any of them.
        if count_of_name[page.name] == 1:
            candidates.insert(0, folder / page.name)
        for candidate in candidates:
            if candidate.is_file():
                relative = os.path.relpath(candidate, folder).replace(os.sep, "/")
                links.append(PageLink(_report_label(page.ranks), quote(relative)))
                break
    return links


def _report_page(about: Mapping[str, Any]) -> _ReportPage:
    """Return where the page of a trace's report is if it was written with default options."""
    from tracelens_ext.perf_report import default_report_path

    path = default_report_path(Path(about["url"])).with_suffix(".html").resolve()
    ranks = sorted(about["rank_of_device"].values()) or [about["rank"]]
    return _ReportPage(
        ranks=tuple(ranks),
        name=path.name,
        path=path,
    )


def _report_label(ranks: Sequence[int]) -> str:
    """Return the label of the link to a trace's report."""
    if len(ranks) == 1:
        return f"Report of rank {ranks[0]}"
    return f"Report of ranks {', '.join(map(str, ranks))}"
