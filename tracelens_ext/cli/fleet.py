"""`tracelens-ext fleet`: the traces of all ranks, on many processes or machines, and compared.

And `tracelens-ext ranks`: what its results say of the ranks: verdicts, then each call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import chosen_cache, progress_bars, show_problems
from tracelens_ext.cli.screen import Block, Part, show, tell
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Report
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from tracelens_ext.fleet import FleetResult

_TIMES = ("total_time", "busy_time", "computation_time", "exposed_comm_time", "idle_time")
_SHOWN = ("mean_ms", "std_ms", "min_ms", "max_ms", "max_rank", "max over mean (%)")
_FINDINGS = ("finding", "ranks", "mean_ms", "min_ms", "max_ms", "max_rank", "top_ranks")
_CATEGORIES = 10
_RANKS_LISTED = 10
_CALLS = (
    *("call", "collective", "wait_us", "in_sync_us", "last_rank", "iteration", "state"),
    *("process_group", "bus_bandwidth_gb_s", "matched_by", "reason", "ranks"),
)

#: What the command exits with when a trace failed; with --strict, when a rank is missing too.
FAILED = 1


def fleet(
    traces: list[str],
    out: str,
    scheduler: str | None = None,
    workers: int | None = None,
    attempts: int = 3,
    ranks_per_node: int | None = None,
    json: bool = False,
    top: int = 5,
    force: bool = False,
    unlinked_kernels: bool = True,
    quiet: bool = False,
    strict: bool = False,
    *,
    rules: shared.RuleOptions,
    reading: ReadingOptions,
) -> None:
    """Analyse the traces of all ranks; which ranks are slow, and whom collectives wait for.

    Operands:
        traces TRACES: Traces, one a rank: folders, patterns such as 'run/*.json.gz', or URLs of
            them (s3://, gs://, https:// …).

    Options:
        out -o FOLDER: Folder or URL. What an earlier run did stays.
        scheduler ADDRESS: Dask scheduler (tcp://host:8786).  [default: this machine]
        workers N 0..: Processes here; 0: only this one.  [default: one a core]
        attempts 1..: How often a trace that fails is tried.
        ranks_per_node 1..: To tell the nodes.  [default: by the devices]
        json: Print the tables as JSON.
        top 0..: Ranks and collectives to print.
        unlinked_kernels --include-unlinked-kernels/--exclude-unlinked-kernels: Count GPU events
            without a launch, or not.  [default: include]
        strict: Exit with 1 when ranks are missing too.
    """
    from tracelens_ext.fleet.cluster import require_fleet_extra

    require_fleet_extra()
    from tracelens_ext.fleet import run_fleet

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
            cache=chosen_cache(reading) is not None,
            reading=reading,
            force=force,
            progress=progress,
        )
    if json or not quiet:
        show(_report(result), _blocks(result, top), json=json)
    show_problems(result.problems)
    if result.failed:
        total = result.done + result.kept + result.failed
        listed = (
            f"{result.failed} of {total} traces failed, listed in {result.out}/failures.parquet"
        )
        first = "; the first" * (result.failed > 1)
        tell(f"{listed}{first}: {result.failures['message'].iloc[0]}")
    if strict and result.missing:
        lacking = "1 rank has" if result.missing == 1 else f"{result.missing:,} ranks have"
        tell(f"{lacking} no trace")
    if result.failed or (strict and result.missing):
        raise typer.Exit(FAILED)


@contextmanager
def _progress() -> Iterator[Callable[[int, int, int], None] | None]:
    """What to hand to `run_fleet` as `progress`; None if standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import MofNCompleteColumn

    bar = progress_bars(MofNCompleteColumn())
    task = bar.add_task("Analysing traces", total=None)

    def advance(done: int, failed: int, total: int) -> None:
        label = f"Analysing traces, {failed} failed" if failed else "Analysing traces"
        bar.update(task, description=label, completed=done + failed, total=total)

    with bar:
        yield advance


def _report(result: FleetResult) -> Report:
    facts: list[tuple[str, object]] = [
        ("Results", result.out),
        ("Traces analysed", result.done),
        ("Traces kept", result.kept),
        ("Traces failed", result.failed),
        ("Ranks missing", result.missing),
    ]
    failures, notes = result.failures, [*result.notes]
    if ranks := failures.loc[failures["stage"] == "missing", "rank"].tolist():
        listed = ", ".join(map(str, ranks[:_RANKS_LISTED]))
        more = f" and {len(ranks) - _RANKS_LISTED} more" if len(ranks) > _RANKS_LISTED else ""
        notes.insert(0, f"Missing: no trace is of rank{'s' * (len(ranks) > 1)} {listed}{more}.")
    sheets = {**result.tables, "failures": failures}
    return Report("GPU performance of a fleet", sheets, facts, notes)


def _blocks(result: FleetResult, top: int) -> Iterator[Block]:
    """What was done, the verdicts, the spread over ranks, the slowest ranks."""
    tables = result.tables
    yield _headline(result)
    if "verdicts" in tables:
        yield [""]
        yield from _verdicts(tables["verdicts"])
    if "ranks" not in tables:
        return
    timeline = tables["timeline_spread"].set_index("type")
    timeline = (timeline.reindex(list(_TIMES)) if len(timeline) else timeline).reset_index()
    findings, categories = tables["finding_spread"], tables["category_spread"].head(_CATEGORIES)
    yield Part("What would save time, over the ranks that have it", findings, _FINDINGS)
    yield Part("GPU timeline over the ranks", timeline, ("type", *_SHOWN))
    yield Part("GPU time by category over the ranks", categories, ("kernel_category", *_SHOWN))
    yield _slowest(tables["ranks"], tables.get("wait_origins"), top)


def _verdicts(verdicts: pd.DataFrame) -> Iterator[Block]:
    """Whose fault it is, in sentences."""
    if not len(verdicts):
        yield "No rank and no link is slow, and no call lacks a rank."
    shown = verdicts.astype(object)
    for row in shown.where(shown.notna(), "").to_dict("records"):
        known = [name for name in ("rank", "process_group", "iteration") if row[name] != ""]
        of = ", ".join(f"{name} {row[name]}" for name in known)
        cause = f" ({row['cause']})" if row["cause"] else ""
        yield f"{row['verdict']}: {of}{cause}: {row['evidence']}.".replace("_", " ", 1)


def _headline(result: FleetResult) -> list[str]:
    counts = {"kept from before": result.kept, "failed": result.failed}
    parts = [f"{count} {what}" for what, count in counts.items() if count]
    analysed = f"{_of(result.done, 'trace')} analysed"
    lines = [f"Results: {result.out}", ", ".join([analysed, *parts])]
    spreads = result.tables.get("timeline_spread")
    if spreads is not None and len(spreads):
        busy = spreads.set_index("type").to_dict("index")["busy_time"]
        spread = f" ± {busy['std_ms']:,.3f}" if busy["ranks"] > 1 else ""
        gpus = int(busy["ranks"])
        lines.append(f"GPU busy time: {busy['mean_ms']:,.3f}{spread} ms ({_of(gpus, 'GPU')})")
    elif "ranks" in result.tables:
        lines.append("No trace has any GPU work.")
    return lines


def _of(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _slowest(ranks: pd.DataFrame, origins: pd.DataFrame | None, top: int) -> Part:
    """The ranks that compute longer than the mean, or for which each other one waits longest."""
    computing = ranks["computation_time_ms"]
    behind = computing - computing.mean()
    if origins is not None:
        caused = ranks["rank"].map(origins.groupby("rank")["wait_ms"].sum()).fillna(0.0)
        behind = behind.clip(lower=caused / max(len(ranks) - 1, 1))
    ranks = ranks.loc[behind.sort_values(ascending=False, kind="stable").index]
    shown = ["rank", "computation_time_ms", "computation over mean (%)", "busy (%)"]
    if len(set(ranks["device"])) > 1:
        shown.insert(1, "device")
    of = f"{min(top, len(ranks))} of {_of(len(ranks), 'rank')}"
    title = f"Slowest {of}, by computation or others' waits"
    frame = ranks[shown].head(top).rename(columns={"computation over mean (%)": "over mean (%)"})
    return Part(title, frame)


def ranks(results: str, top: int = 20, json: bool = False) -> None:
    """Show which ranks and links are slow, and of each collective its transfer, wait and cause.

    Operands:
        results RESULTS: Folder of the results of `fleet`, or its URL.

    Options:
        top -t 0..: Calls to print, the longest waits first.
        json: Print the tables as JSON instead.
    """
    from tracelens_ext.fleet.cluster import require_fleet_extra

    require_fleet_extra()
    from tracelens_ext.fleet.store import ResultStore
    from tracelens_ext.fleet.together import TABLES

    store = ResultStore.at(results)
    tables = {name: store.get_table(name).to_pandas() for name in TABLES}
    calls = tables["collective_sync"].sort_values("wait_us", ascending=False, kind="stable")
    part = Part(f"{len(calls):,} calls, by wait", calls, _CALLS, top)
    blocks = [*_verdicts(tables["verdicts"]), part]
    show(Report("The ranks of a job", tables, [("Results", store.url)]), blocks, json=json)
