"""`tracelens-ext ranks`: shows slow ranks, slow links and hangs of a job."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from tracelens_ext.cli.screen import Block, Part, show, tell
from tracelens_ext.errors import TraceNotFoundError, UsageError
from tracelens_ext.hooks import Command
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Report
from tracelens_ext.text import counted

#: Traces beside dumps are analyzed in this process if all of them together are not larger.
_SMALL_BYTES = 20 * 10**6
_CALL_COLUMNS = (
    "call",
    "collective",
    "wait_us",
    "transfer_us",
    "last_rank",
    "iteration",
    "state",
    "process_group",
    "bus_bandwidth_gb_s",
    "matched_by",
    "reason",
    "ranks",
)
_STUCK_COLUMNS = (
    "state",
    "collective",
    "sequence",
    "process_group",
    "iteration",
    "entered_ranks",
    "completed_ranks",
    "missing_ranks",
    "sizes",
)
_PROGRESS_COLUMNS = (
    "rank",
    "process_group",
    "last_entered",
    "last_completed",
    "behind",
    "collective",
    "state",
    "frames",
)


def ranks(
    results: Annotated[
        list[str],
        typer.Argument(
            metavar="RESULTS",
            help=(
                "Results of `fleet` (a folder or URL), dumps of PyTorch's flight "
                "recorder (files, folders or patterns), or both."
            ),
        ),
    ],
    top: Annotated[
        int,
        typer.Option(
            "--top", "-t", min=0, help="Number of calls to print, longest waits first."
        ),
    ] = 20,
    json: Annotated[
        bool, typer.Option("--json", help="Print the tables as JSON instead.")
    ] = False,
) -> None:
    """Show slow ranks and links, and the transfer time, wait time and cause of each collective.

    For flight recorder dumps: which call hangs or differs, and which rank caused it.
    """
    sources = _sources(results)
    if sources.traces and not sources.dumps:
        file = sources.traces[0]
        problem = "is a trace, not a flight recorder dump"
        remedy = "compare the traces of several ranks with: tracelens-ext fleet"
        raise TraceNotFoundError(file, problem, remedy)
    if sources.dumps:
        _show_dumps(sources, top, json=json)
    else:
        _show_results(sources.results, top, json=json)


@dataclass
class _Sources:
    """The inputs that the arguments name."""

    dumps: list[Path] = field(default_factory=list)
    results: str = ""  #: folder with the results of a fleet; empty if there is none
    #: traces that are in a folder with dumps
    traces: list[Path] = field(default_factory=list)


def _sources(arguments: Sequence[str]) -> _Sources:
    """Find out which arguments are dumps and which are results of a fleet.

    Raises:
        UsageError: results of several fleets are named.
        TraceNotFoundError: a pattern matches nothing.
    """
    from tracelens_ext.trace_files import is_pattern, paths_matching

    sources = _Sources()
    for argument in arguments:
        paths = paths_matching(argument) if is_pattern(argument) else [Path(argument)]
        if not paths:
            raise TraceNotFoundError(argument, "no file matches", "check the pattern")
        are_files = [_add_files(sources, path) for path in paths]
        if any(are_files):
            continue
        _check_results(Path(argument))
        if sources.results:
            raise UsageError(
                f"{argument}: is a second folder of fleet results; give only one"
            )
        sources.results = argument
    return sources


def _add_files(sources: _Sources, path: Path) -> bool:
    """Add the dumps of a path, and the traces beside them; return False if it has no dumps."""
    from tracelens_ext.distributed.flight_recorder.dumps import dumps_in, may_be_dump
    from tracelens_ext.trace_files import is_trace_name, traces_in

    if path.is_dir():
        dumps = dumps_in(path)
        sources.dumps += dumps
        if dumps:
            traces = traces_in(path)
            sources.traces += [trace for trace in traces if trace not in dumps]
        return bool(dumps)
    if not path.is_file():
        return False
    if is_trace_name(path.name) and not may_be_dump(path):
        sources.traces.append(path)
    else:
        sources.dumps.append(path)  # the reader reports it if this is not a dump
    return True


def _check_results(folder: Path) -> None:
    """Check that a folder of this machine has results of a fleet; the error says what to do first.

    Raises:
        UsageError: it holds traces.
        TraceNotFoundError: it holds neither results, nor traces, nor dumps.
    """
    from tracelens_ext.distributed.storage import DONE
    from tracelens_ext.trace_files import traces_in

    has_results = (folder / DONE).exists() or (folder / "verdicts.parquet").exists()
    if has_results or not folder.is_dir():
        return
    traces = traces_in(folder)
    if traces:
        count = counted(len(traces), "trace")
        quoted = shlex.quote(str(folder))
        raise UsageError(
            f"{folder}: holds {count}, but no results of fleet; first run: "
            f"tracelens-ext fleet {quoted} -o results; then: tracelens-ext ranks "
            "results"
        )
    problem = "contains neither results of fleet nor dumps of PyTorch's flight recorder"
    remedy = "give the folder that fleet wrote, or the dumps (nccl_trace_rank_0 …)"
    raise TraceNotFoundError(folder, problem, remedy)


def _tables_of_results(results: str) -> tuple[dict[str, pd.DataFrame], str]:
    """Return the tables of a fleet, and the URL of the folder with its results."""
    from tracelens_ext.distributed.cluster import require_fleet_extra

    require_fleet_extra()
    from tracelens_ext.distributed.collective_analysis import TABLES
    from tracelens_ext.distributed.storage import ResultStore

    store = ResultStore.at(results)
    tables = {name: store.get_table(name).to_pandas() for name in TABLES}
    return tables, store.url


def _tables_of_traces(
    traces: Sequence[Path],
) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Analyze the traces beside dumps. Return their tables and notes; no tables if that failed."""
    from tracelens_ext.distributed.cluster import require_fleet_extra

    try:
        require_fleet_extra()
    except UsageError as error:
        return {}, [f"The traces next to the dumps are ignored: {error}."]
    from tracelens_ext.distributed import run_fleet

    size = sum(trace.stat().st_size for trace in traces)
    workers = 0 if size < _SMALL_BYTES else None
    with tempfile.TemporaryDirectory(prefix="tracelens-ext-") as folder:
        result = run_fleet(list(traces), folder, workers=workers, cache=True)
        notes = [
            f"A trace next to the dumps is ignored: {message}."
            for message in result.failures.dropna(subset=["trace"])["message"]
        ]
        if "verdicts" not in result.tables:
            return {}, notes
        tables, _ = _tables_of_results(folder)
    return tables, notes


def _show_results(results: str, top: int, *, json: bool) -> None:
    from tracelens_ext.cli.pipeline_blocks import pipeline_blocks
    from tracelens_ext.cli.verdict_blocks import verdict_blocks

    tables, url = _tables_of_results(results)
    blocks = list(verdict_blocks(tables["verdicts"]))
    blocks.extend(pipeline_blocks(tables["pipeline_stages"]))
    blocks.append(_calls_part(tables, top))
    report = Report(title="Ranks of a job", sheets=tables, facts=[("Results", url)])
    show(report, blocks, json=json)


def _calls_part(tables: dict[str, pd.DataFrame], top: int) -> Part:
    calls = tables["collective_calls"].sort_values(
        "wait_us", ascending=False, kind="stable"
    )
    return Part(
        title=f"{len(calls):,} calls, longest wait first",
        frame=calls,
        columns=_CALL_COLUMNS,
        rows=top,
    )


def _show_dumps(sources: _Sources, top: int, *, json: bool) -> None:
    from tracelens_ext.distributed.flight_recorder.job_tables import (
        dump_tables,
        joined_with_traces,
    )

    of_dumps = dump_tables(sources.dumps)
    for problem in of_dumps.problems:
        tell(str(problem))
    tables = of_dumps.tables
    notes = list(of_dumps.notes)
    read_count = len(sources.dumps) - len(of_dumps.problems)
    facts: list[tuple[str, object]] = [("Dumps", read_count)]
    if sources.results:
        of_traces, url = _tables_of_results(sources.results)
        tables = joined_with_traces(tables, of_traces)
        facts.append(("Results", url))
    elif sources.traces:
        of_traces, more_notes = _tables_of_traces(sources.traces)
        notes += more_notes
        if of_traces:
            tables = joined_with_traces(tables, of_traces)
            facts.append(("Traces", len(sources.traces)))
    report = Report(title="Ranks of a job", sheets=tables, facts=facts, notes=notes)
    show(report, _dump_blocks(tables, top), json=json)
    if of_dumps.problems:
        raise typer.Exit(1)


def _dump_blocks(tables: dict[str, pd.DataFrame], top: int) -> Iterator[Block]:
    """Yield the blocks: verdicts, the calls concerned, the progress of each rank, last calls."""
    from tracelens_ext.cli.verdict_blocks import verdict_blocks

    if len(tables["verdicts"]):
        yield from verdict_blocks(tables["verdicts"])
    else:
        yield "No hung calls, mismatched calls or missing ranks found."
    if len(tables["stuck_calls"]):
        yield Part(
            title="Calls that did not finish",
            frame=tables["stuck_calls"],
            columns=_STUCK_COLUMNS,
            rows=top,
        )
    progress = tables["rank_progress"]
    yield Part(
        title="Progress of each rank, furthest behind first",
        frame=progress,
        columns=_PROGRESS_COLUMNS,
        rows=top,
    )
    yield Part("Last calls of each rank", tables["last_calls"], rows=top)
    if "collective_calls" in tables:
        yield _calls_part(tables, top)


COMMAND = Command(
    name="ranks",
    summary="Show slow ranks and links, and each collective call.",
    function=ranks,
    group="Compare",
    examples=(
        "ranks results",
        "ranks results --json",
        "ranks '/tmp/nccl_trace_rank_*'",
    ),
)
