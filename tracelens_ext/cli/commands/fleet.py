"""`tracelens-ext fleet`: analyzes the traces of all ranks in parallel, and compares the ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli.options import (
    Force,
    Quiet,
    ReadingFlags,
    RuleOptions,
    UnlinkedKernels,
)
from tracelens_ext.cli.screen import Block, Part, Section, show, tell
from tracelens_ext.hooks import Command
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Report
from tracelens_ext.text import counted

if TYPE_CHECKING:
    from tracelens_ext.distributed import FleetResult

#: The exit code if a trace failed; with `--strict`, also if a rank is missing.
FAILED = 1
_TIMES = [
    "total_time",
    "busy_time",
    "computation_time",
    "exposed_comm_time",
    "idle_time",
]
_SPREAD_COLUMNS = (
    "mean_ms",
    "std_ms",
    "min_ms",
    "max_ms",
    "max_rank",
    "max_over_mean_percent",
)
_FINDING_COLUMNS = (
    "finding",
    "ranks",
    "mean_ms",
    "min_ms",
    "max_ms",
    "max_rank",
    "top_ranks",
)
_LISTED = 10  # ranks, categories


def fleet(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACES",
            help=(
                "One trace per rank: folders, patterns, or URLs (s3://, gs://, https:// …)."
            ),
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Output folder or URL; earlier results are reused.",
        ),
    ],
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Dask scheduler (tcp://host:8786).  [default: this machine]",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Local worker processes.  [default: one per core]",
        ),
    ] = None,
    attempts: Annotated[
        int, typer.Option(min=1, help="Attempts for each trace that fails.")
    ] = 3,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Ranks per node.  [default: inferred from the devices]",
        ),
    ] = None,
    pipeline_stages: Annotated[
        str | None,
        typer.Option(
            metavar="STAGES",
            help=("Stages, or ranks of each (0-3/4-7).  [default: inferred]"),
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the tables as JSON.")
    ] = False,
    top: Annotated[
        int, typer.Option(min=0, help="Number of ranks and collectives to print.")
    ] = 5,
    force: Force = False,
    unlinked_kernels: UnlinkedKernels = True,
    quiet: Quiet = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Also exit with 1 when ranks are missing.")
    ] = False,
    *,
    rules: RuleOptions,
    reading: ReadingFlags,
) -> None:
    """Analyze the traces of all ranks: which are slow, and which ones collectives wait for."""
    from tracelens_ext.cli.load import chosen_cache
    from tracelens_ext.cli.messages import show_problems
    from tracelens_ext.distributed.cluster import require_fleet_extra

    require_fleet_extra()
    from tracelens_ext.distributed import run_fleet

    if workers is None and scheduler is None:
        workers = reading.jobs
    with _progress() as progress:
        result = run_fleet(
            traces,
            out,
            scheduler=scheduler,
            workers=workers,
            attempts=attempts,
            **rules.arguments(),
            include_unlinked_kernels=unlinked_kernels,
            ranks_per_node=ranks_per_node,
            pipeline_stages=pipeline_stages,
            cache=chosen_cache(reading) is not None,
            reading=reading,
            force=force,
            progress=progress,
        )
    if json or not quiet:
        show(fleet_report(result), fleet_blocks(result, top), json=json)
    show_problems(result.problems)
    if result.failed:
        _tell_failures(result)
    is_incomplete = strict and result.missing > 0
    if is_incomplete:
        missing = (
            "1 rank has" if result.missing == 1 else f"{result.missing:,} ranks have"
        )
        tell(f"{missing} no trace")
    if result.failed or is_incomplete:
        raise typer.Exit(FAILED)


def _tell_failures(result: FleetResult) -> None:
    """Print on standard error how many traces failed, and why the first one did."""
    total = result.done + result.kept + result.failed
    first = "; the first" if result.failed > 1 else ""
    listed = f"listed in {result.out}/failures.parquet{first}"
    message = result.failures["message"].iloc[0]
    tell(f"{result.failed} of {total} traces failed, {listed}: {message}")


@contextmanager
def _progress() -> Iterator[Callable[[int, int, int], None] | None]:
    """Yield the `progress` for `run_fleet`; None if standard error is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import MofNCompleteColumn

    from tracelens_ext.cli.progress import progress_bars

    bar = progress_bars(MofNCompleteColumn())
    task = bar.add_task("Analysing traces", total=None)

    def advance(done: int, failed: int, total: int) -> None:
        label = f"Analyzing traces, {failed} failed" if failed else "Analysing traces"
        bar.update(task, description=label, completed=done + failed, total=total)

    with bar:
        yield advance


def fleet_report(result: FleetResult) -> Report:
    """Return a report of all tables."""
    facts = [
        ("Results", result.out),
        ("Traces analysed", result.done),
        ("Traces kept", result.kept),
        ("Traces failed", result.failed),
        ("Ranks missing", result.missing),
    ]
    failures = result.failures
    notes = list(result.notes)
    missing_ranks = failures.loc[failures["stage"] == "missing", "rank"].tolist()
    if missing_ranks:
        notes.insert(0, _missing_sentence(missing_ranks))
    sheets = {**result.tables, "failures": failures}
    return Report(
        title="GPU performance of a fleet", sheets=sheets, facts=facts, notes=notes
    )


def _missing_sentence(ranks: list[int]) -> str:
    plural = "s" if len(ranks) > 1 else ""
    listed = ", ".join(map(str, ranks[:_LISTED]))
    more = len(ranks[_LISTED:])
    ending = f" and {more} more" if more else ""
    return f"Missing: no trace is of rank{plural} {listed}{ending}."


def fleet_blocks(result: FleetResult, top: int) -> Iterator[Block]:
    """Yield the blocks: headline, verdicts, spread over ranks, slowest ranks."""
    from tracelens_ext.cli.pipeline_blocks import pipeline_blocks
    from tracelens_ext.cli.verdict_blocks import verdict_blocks

    tables = result.tables
    yield _headline(result)
    if "verdicts" in tables:
        yield [""]
        yield Section("verdicts", lambda _: verdict_blocks(tables["verdicts"]))
    if "pipeline_stages" in tables:
        yield from pipeline_blocks(tables["pipeline_stages"])
    if "ranks" not in tables:
        return
    yield Part(
        title="What would save time, across ranks",
        frame=tables["finding_across_ranks"],
        columns=_FINDING_COLUMNS,
    )
    timeline = tables["timeline_across_ranks"].set_index("type")
    if len(timeline):
        timeline = timeline.reindex(_TIMES)
    yield Part(
        title="GPU timeline across ranks",
        frame=timeline.reset_index(),
        columns=("type",) + _SPREAD_COLUMNS,
    )
    yield Part(
        title="GPU time by category across ranks",
        frame=tables["category_across_ranks"].head(_LISTED),
        columns=("kernel_category",) + _SPREAD_COLUMNS,
    )
    yield _slowest(
        ranks=tables["ranks"], origins=tables.get("wait_root_causes"), top=top
    )


def _headline(result: FleetResult) -> list[str]:
    """Return the lines about how many traces were analyzed, and how busy the GPUs were."""
    parts = [f"{counted(result.done, 'trace')} analyzed"]
    if result.kept:
        parts.append(f"{result.kept} reused from an earlier run")
    if result.failed:
        parts.append(f"{result.failed} failed")
    lines = [f"Results: {result.out}", ", ".join(parts)]
    spreads = result.tables.get("timeline_across_ranks")
    if spreads is not None and len(spreads):
        busy = spreads.set_index("type").to_dict("index")["busy_time"]
        spread = f" ± {busy['std_ms']:,.3f}" if busy["ranks"] > 1 else ""
        gpus = counted(int(busy["ranks"]), "GPU")
        lines.append(f"GPU busy time: {busy['mean_ms']:,.3f}{spread} ms ({gpus})")
    elif "ranks" in result.tables:
        lines.append("No trace contains GPU work.")
    return lines


def _slowest(ranks: pd.DataFrame, origins: pd.DataFrame | None, top: int) -> Part:
    """Return the ranks that compute longer than the mean, or that all other ranks wait for."""
    computing = ranks["computation_time_ms"]
    behind = computing - computing.mean()
    if origins is not None:
        caused = ranks["rank"].map(origins.groupby("rank")["wait_ms"].sum()).fillna(0.0)
        others = max(len(ranks) - 1, 1)
        behind = behind.clip(lower=caused / others)
    ranks = ranks.loc[behind.sort_values(ascending=False, kind="stable").index]
    ranks = ranks.rename(columns={"computation_over_mean_percent": "over_mean_percent"})
    columns = ["rank"]
    if ranks["device"].nunique() > 1:
        columns.append("device")
    columns += ["computation_time_ms", "over_mean_percent", "busy_percent"]
    slowest_ranks = ranks[columns].head(top)
    of_all = f"{len(slowest_ranks)} of {counted(len(ranks), 'rank')}"
    return Part(
        f"Slowest {of_all}, by computation or by the waits they cause", slowest_ranks
    )


COMMAND = Command(
    name="fleet",
    summary="Analyze the traces of all ranks: which are slow, and why.",
    function=fleet,
    group="Compare",
    examples=(
        "fleet 'run/*.json.gz' -o results",
        "fleet s3://bucket/run -o s3://bucket/results --workers 8",
        "fleet run/ -o results --scheduler tcp://host:8786 --strict",
    ),
)
