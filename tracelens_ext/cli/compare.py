"""`tracelens-ext compare`: what changed between traces, and whether a budget holds.

And `tracelens-ext fleet`: the traces of all ranks, on many processes or machines, and compared;
`tracelens-ext ranks`: what its results say of the ranks: verdicts, then each call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from tracelens_ext.categorize.kernel_names import short_name
from tracelens_ext.cli import load, screen
from tracelens_ext.cli import options as shared
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.report import Report
from tracelens_ext.report.writing import OutputFormat
from tracelens_ext.settings import ReadingOptions

if TYPE_CHECKING:
    from tracelens_ext.compare.comparison import Comparison
    from tracelens_ext.compare.measurement import Measurement
    from tracelens_ext.distributed import FleetResult

#: What the command exits with when a budget is crossed.
CROSSED = 3
_SAME_AMOUNT = 0.01
#: Tables in the order of the screen, and their titles.
_TITLES = {
    "history": "Against the median of those before",
    "findings": "Findings",
    "timeline": "GPU timeline",
    "phases": "GPU time by phase of serving, whole traces",
    "categories": "GPU time by category",
    "operations": "GPU time by CPU operation",
    "kernels": "GPU time by kernel",
    "places": "GPU time by place in the program",
    "roofline": "Time lost against the best case",
}
_LONG = frozenset({"history", "operations", "kernels", "places", "roofline"})


@dataclass(frozen=True)
class Comparing:
    """What is compared how, and where it goes.

    Options:
        output -o PATH: Excel file to write, or .json, .md.  [default: none]
        output_format --format: Format of the tables; json and markdown need no --output.
        html FILE: Write a page for browsers.
        fail_if BUDGET: Exit with 3 if this changed by more (repeatable): 'GEMM > +5%', 'total_time
            > 1.5ms', 'findings > 5%'.
        baseline FOLDER: Compare one trace with the median of the last traces or reports in this
            folder.
        last 3..: How many of them, at least 3.
        normalize: Also compare how much each trace loses against the roofline of its own device.
        top 0..: Operations and kernels to print.
    """

    output: str | None = None
    output_format: OutputFormat | None = None
    html: str | None = None
    fail_if: list[str] | None = None
    baseline: Path | None = None
    last: int = 5
    total: bool = False
    force: bool = False
    device_peaks: str | None = None
    normalize: Literal["roofline"] | None = None
    micro_idle_thresh_us: float | None = None
    top: int = 10
    quiet: bool = False

    def paths(self, traces: Sequence[str]) -> list[Path]:
        """What is compared, the baseline first."""
        from tracelens_ext.compare.finished_reports import history_in

        paths, problems = load.find_traces(traces, or_reports=True)
        if problems:
            raise problems[0]
        if self.baseline is not None:
            if len(paths) != 1:
                raise UsageError("--baseline compares one trace with a folder; name one")
            paths = [*history_in(self.baseline, self.last, paths[0]), *paths]
        if len(paths) < 2:
            raise UsageError("a comparison needs two traces at least; the first is the baseline")
        return paths

    def measured(self, paths: Sequence[Path], how: shared.AnalysisOptions) -> list[Measurement]:
        """Measure traces and reports, one after the other: only the measurements stay."""
        from tracelens_ext.compare.finished_reports import is_report, measure_report, with_reference
        from tracelens_ext.compare.measurement import TRACELENS
        from tracelens_ext.compare.report import measured_for_comparison

        shown = set[str]()
        limit = how.reading.max_bytes
        of_reports = {path: measure_report(path, limit) for path in paths if is_report(path)}
        if any(measured.report == TRACELENS for measured in of_reports.values()):
            how = replace(how, unlinked_kernels=False)  # as TraceLens: alike is compared

        def measured(path: Path) -> Measurement:
            if path in of_reports:
                return of_reports[path]
            analyzer = load.analyze(path, how)
            idle = self.micro_idle_thresh_us
            peaks = self.device_peaks
            found = measured_for_comparison(analyzer, idle, peaks)
            load.show_problems(analyzer.problems, shown)
            return with_reference(found, analyzer) if of_reports else found

        return list(map(measured, paths))


def compare(traces: list[str], *, asked: Comparing, analysis: shared.AnalysisOptions) -> None:
    """Compare traces or their reports with the first: what changed, by category and kernel.

    Operands:
        traces TRACE: Traces, folders of them, patterns; or finished reports of traces: workbooks
            (.xlsx), folders of CSV or Parquet tables.

    Options:
        unlinked_kernels --include-unlinked-kernels/--exclude-unlinked-kernels: Count GPU events
            without a launch, or not.  [default: include]
    """
    from tracelens_ext.analysis.memory.snapshot import is_snapshot
    from tracelens_ext.compare.budgets import check_budgets, parse_budget
    from tracelens_ext.compare.comparison import compare as compare_measurements
    from tracelens_ext.compare.history import history_report
    from tracelens_ext.compare.report import comparison_report
    from tracelens_ext.findings.engine import offered_detectors

    budgets = [parse_budget(text) for text in asked.fail_if or ()]
    form = asked.output_format
    force = asked.force
    printed = (
        form
        if asked.output is None and form in (OutputFormat.json, OutputFormat.markdown)
        else None
    )
    wanted = screen.Wanted(
        asked.output, None if printed else form, html=asked.html, no_workbook=True
    )
    places = wanted.for_comparison(Path(), several=False)
    wanted.check_extras()
    if all(map(is_snapshot, traces)):
        from tracelens_ext.cli.iterations import show_snapshots

        as_json = form is OutputFormat.json
        snapshots = [*map(Path, traces)]
        show_snapshots(snapshots, asked.top, analysis.reading, json=as_json)
        return
    paths = asked.paths(traces)
    history = asked.baseline is not None
    screen.check_outputs(places, paths, force=force)
    measured = asked.measured(paths, analysis)
    comparison = compare_measurements(measured, total=asked.total, history=history)
    if history:
        report = history_report(comparison)
    else:
        report = comparison_report(comparison, normalize=asked.normalize is not None)
    findings = [each.item.id for each in offered_detectors()] if budgets else []
    verdicts = check_budgets(budgets, comparison, findings)
    written = screen.write_outputs(report, places, paths, force=force)
    if printed:
        screen.print_report(report, printed)
    elif not asked.quiet:
        screen.show(report, comparison_blocks(comparison, report, asked.top))
    if any(each.unit != "mad" for each in budgets):
        _warn_of_amounts(comparison)
    quiet = asked.quiet or printed is not None
    screen.tell_written([] if quiet else written)
    for verdict in verdicts:  # crossed ones are always told
        if verdict.crossed:
            screen.tell(f"budget crossed: {verdict}")
        elif not quiet:
            screen.print_line(f"Budget holds: {verdict}")
    if any(verdict.crossed for verdict in verdicts):
        raise typer.Exit(CROSSED)


def _warn_of_amounts(comparison: Comparison) -> None:
    """Say on standard error that whole traces did not do the same work."""
    from tracelens_ext.compare.verdict import work_text

    verdicts = comparison.verdicts if comparison.basis == "trace" else []
    for letter, verdict in zip(comparison.letters[1:], verdicts, strict=False):
        if verdict.work_ratio is not None and abs(verdict.work_ratio - 1) > _SAME_AMOUNT:
            told = work_text(letter, verdict.work_ratio, comparison.letters[0])
            screen.tell(f"{told}: budgets on time compare different amounts")


def comparison_blocks(comparison: Comparison, report: Report, top: int) -> Iterator[screen.Block]:
    """The verdict, what was compared, and the tables."""
    from tracelens_ext.compare.notes import time_basis

    facts = dict(report.facts)
    yield str(facts["Verdict"])
    for letter in () if comparison.history else comparison.letters:
        role = f"{letter} (baseline)" if letter == comparison.letters[0] else letter
        line = f"{role}: {facts[role]}; devices: {facts[f'{letter} devices']};"
        yield f"{line} iterations: {facts[f'{letter} iterations']}"
    for name, title in _TITLES.items():
        if (frame := report.sheets.get(name)) is not None and len(frame):
            shown = _of_comparison(frame.head(top) if name in _LONG else frame)
            title += "" if name == "phases" else f", {time_basis(comparison)}"
            yield screen.Part(title, shown, keep=("difference_ms",))


def _of_comparison(frame: pd.DataFrame) -> pd.DataFrame:
    """Leave out what other columns tell; simplify kernel names, which come first."""
    # Of several traces there is room for the percentages alone.
    several = () if "difference_ms" in frame else ("difference_ms", "by_speed_ms")
    told = ("ratio", "_count", "_calls", "_kernels", "by_calls_ms", "backward", "only_in", *several)
    shown = frame[[c for c in frame if not str(c).endswith(told)]]
    if "path" in shown:
        sides = [c for c in shown if str(c).endswith("_operation")]
        words = shown[sides].fillna("").to_numpy().tolist()
        operation = [" → ".join(dict.fromkeys(filter(None, each))) for each in words]
        shown = shown.drop(columns=[*sides, "path"])
        shown.insert(0, "operation", operation)
        shown.insert(0, "path", frame["path"])
    if "kernel_name" not in shown:
        return shown
    names = [short_name(name) for name in shown["kernel_name"]]
    return shown.drop(columns="kernel_category", errors="ignore").assign(kernel_name=names)


_TIMES = ("total_time", "busy_time", "computation_time", "exposed_comm_time", "idle_time")
_SHOWN = ("mean_ms", "std_ms", "min_ms", "max_ms", "max_rank", "max over mean (%)")
_FINDINGS = ("finding", "ranks", "mean_ms", "min_ms", "max_ms", "max_rank", "top_ranks")
_LISTED = 10  # ranks, categories
_CALLS = (
    "call",
    "collective",
    "wait_us",
    "in_sync_us",
    "last_rank",
    "iteration",
    "state",
    "process_group",
    "bus_bandwidth_gb_s",
    "matched_by",
    "reason",
    "ranks",
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
            cache=load.chosen_cache(reading) is not None,
            reading=reading,
            force=force,
            progress=progress,
        )
    if json or not quiet:
        screen.show(_report(result), _fleet_blocks(result, top), json=json)
    load.show_problems(result.problems)
    if result.failed:
        counts = f"{result.failed} of {result.done + result.kept + result.failed} traces failed"
        first = "; the first" if result.failed > 1 else ""
        listed = f"{counts}, listed in {result.out}/failures.parquet{first}"
        screen.tell(f"{listed}: {result.failures['message'].iloc[0]}")
    if strict and result.missing:
        lacking = "1 rank has" if result.missing == 1 else f"{result.missing:,} ranks have"
        screen.tell(f"{lacking} no trace")
    if result.failed or (strict and result.missing):
        raise typer.Exit(FAILED)


@contextmanager
def _progress() -> Iterator[Callable[[int, int, int], None] | None]:
    """What to hand to `run_fleet` as `progress`; None if standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import MofNCompleteColumn

    bar = load.progress_bars(MofNCompleteColumn())
    task = bar.add_task("Analysing traces", total=None)

    def advance(done: int, failed: int, total: int) -> None:
        label = f"Analysing traces, {failed} failed" if failed else "Analysing traces"
        bar.update(task, description=label, completed=done + failed, total=total)

    with bar:
        yield advance


def _report(result: FleetResult) -> Report:
    facts = {
        "Results": result.out,
        "Traces analysed": result.done,
        "Traces kept": result.kept,
        "Traces failed": result.failed,
        "Ranks missing": result.missing,
    }
    failures = result.failures
    notes = [*result.notes]
    if ranks := failures.loc[failures["stage"] == "missing", "rank"].tolist():
        listed = ", ".join(map(str, ranks[:_LISTED]))
        rest = len(ranks[_LISTED:])
        more = f" and {rest} more" if rest else ""
        notes.insert(0, f"Missing: no trace is of rank{'s' * (len(ranks) > 1)} {listed}{more}.")
    sheets = {**result.tables, "failures": failures}
    return Report("GPU performance of a fleet", sheets, [*facts.items()], notes)


def _fleet_blocks(result: FleetResult, top: int) -> Iterator[screen.Block]:
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
    findings = tables["finding_spread"]
    categories = tables["category_spread"].head(_LISTED)
    yield screen.Part("What would save time, over the ranks that have it", findings, _FINDINGS)
    yield screen.Part("GPU timeline over the ranks", timeline, ("type", *_SHOWN))
    yield screen.Part(
        "GPU time by category over the ranks", categories, ("kernel_category", *_SHOWN)
    )
    yield _slowest(tables["ranks"], tables.get("wait_origins"), top)


def _verdicts(verdicts: pd.DataFrame) -> Iterator[screen.Block]:
    """Whose fault it is, in sentences."""
    if not len(verdicts):
        yield "No rank and no link is slow, and no call lacks a rank."
    shown = verdicts.astype(object)
    for row in shown.where(shown.notna(), "").to_dict("records"):
        names = ("rank", "process_group", "iteration")
        of = ", ".join(f"{name} {row[name]}" for name in names if row[name] != "")
        cause = f" ({row['cause']})" if row["cause"] else ""
        yield f"{row['verdict']}: {of}{cause}: {row['evidence']}.".replace("_", " ", 1)


def _headline(result: FleetResult) -> list[str]:
    counts = {"kept from before": result.kept, "failed": result.failed}
    parts = [f"{_of(result.done, 'trace')} analysed"]
    parts += [f"{count} {what}" for what, count in counts.items() if count]
    lines = [f"Results: {result.out}", ", ".join(parts)]
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


def _slowest(ranks: pd.DataFrame, origins: pd.DataFrame | None, top: int) -> screen.Part:
    """The ranks that compute longer than the mean, or for which each other one waits longest."""
    computing = ranks["computation_time_ms"]
    behind = computing - computing.mean()
    if origins is not None:
        caused = ranks["rank"].map(origins.groupby("rank")["wait_ms"].sum()).fillna(0.0)
        behind = behind.clip(lower=caused / max(len(ranks) - 1, 1))
    ranks = ranks.loc[behind.sort_values(ascending=False, kind="stable").index]
    ranks = ranks.rename(columns={"computation over mean (%)": "over mean (%)"})
    device = ["device"] if ranks["device"].nunique() > 1 else []
    shown = ["rank", *device, "computation_time_ms", "over mean (%)", "busy (%)"]
    of = f"{min(top, len(ranks))} of {_of(len(ranks), 'rank')}"
    return screen.Part(f"Slowest {of}, by computation or others' waits", ranks[shown].head(top))


def ranks(results: str, top: int = 20, json: bool = False) -> None:
    """Show which ranks and links are slow, and of each collective its transfer, wait and cause.

    Operands:
        results RESULTS: Folder of the results of `fleet`, or its URL.

    Options:
        top -t 0..: Calls to print, the longest waits first.
        json: Print the tables as JSON instead.
    """
    from tracelens_ext.distributed.cluster import require_fleet_extra

    require_fleet_extra()
    from tracelens_ext.distributed.collective_analysis import TABLES
    from tracelens_ext.distributed.storage import ResultStore

    store = ResultStore.at(results)
    tables = {name: store.get_table(name).to_pandas() for name in TABLES}
    calls = tables["collective_sync"].sort_values("wait_us", ascending=False, kind="stable")
    part = screen.Part(f"{len(calls):,} calls, by wait", calls, _CALLS, top)
    blocks = [*_verdicts(tables["verdicts"]), part]
    screen.show(Report("The ranks of a job", tables, [("Results", store.url)]), blocks, json=json)
