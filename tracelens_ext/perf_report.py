"""The report of a trace: the tables of all sheets that it has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tracelens_ext.analysis.coverage.report_tables import recording_lines
from tracelens_ext.analysis.timeline import overview
from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.categorize import CategorizerLike
from tracelens_ext.compatibility.tracelens import knows_tracelens
from tracelens_ext.findings.summary import summary_sentence
from tracelens_ext.hooks import Offered, PluginAnswerError, PluginRegistry, default_registry
from tracelens_ext.hooks.registry import call_within, time_limit
from tracelens_ext.lazy import pd
from tracelens_ext.report import report as reports
from tracelens_ext.report import writing
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.options import ReportOptions, takes_report_options
from tracelens_ext.report.tables.registry import check_names, offered_tables
from tracelens_ext.report.tables.table import Table
from tracelens_ext.report.tables.units import FIRST_FACTS
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions

T = TypeVar("T")
_Tables = Mapping[str, "pd.DataFrame"]


@knows_tracelens
@takes_report_options
@writing.fast_pandas()
def build_perf_report(
    analyzer: TreePerfAnalyzer,
    report_options: ReportOptions | None = None,
    *,
    for_page: bool = False,
    **options: Any,  # noqa: ANN401
) -> reports.Report:
    """The tables of an analyzed trace; those of its CPU ops if it has no GPU events.

    Args:
        analyzer: of the trace.
        report_options: all options at once.
        for_page: whether a page for browsers will be written, which has the iterations of a trace
            even if nobody asked for their tables.
        options: fields of `ReportOptions`.

    Raises:
        UsageError: an option makes no sense.
    """
    chosen = report_options or ReportOptions(**options)
    registry = default_registry()
    offers = offered_tables(registry)
    sheets = {offered.item.name: offered.item for offered in offers}
    check_names(chosen.named_tables, sheets)
    cited = analyzer.cited_tables(chosen.device_peaks)
    if not any(t.is_asked_for(chosen) for t in sheets.values() if t.asked_by == "what_if"):
        analyzer.forget_replay()
    tables = dict[str, pd.DataFrame]()
    page_tables = dict[str, pd.DataFrame]()
    charts: list[Chart] = []
    for offered in offers:
        sheet = offered.item
        # Evidence may name a command, `gaps`; and what is usual was switched off.
        optional = sheet.asked_by != "tables" and not sheet.is_asked_for(ReportOptions())
        asked = sheet.is_asked_for(chosen) or (optional and sheet.name in cited)
        if asked or (for_page and sheet.on_every_page):
            made = _within_limits(registry, offered, partial(_made, analyzer, chosen))
            if made is not None:
                (tables if asked else page_tables)[sheet.name] = made[0]
                charts += made[1]
    if len(analyzer.gpu_events):
        tables |= plugin_tables(analyzer, tables, registry)
    notes = overview.advice(analyzer.gpu_events, analyzer.coverage)
    for offered in offers:
        told = _within_limits(registry, offered, lambda s: [*s.notes(analyzer, chosen, tables)])
        notes += told or ()
    notes += [f"{problem[0].upper()}{problem[1:]}" for problem in analyzer.problems]
    left_out = [o.item for o in offers if o.plugin.own and o.item.name not in tables]
    first, *others = overview.overview(analyzer.gpu_events, analyzer.coverage)
    facts: list[tuple[str, object]] = [
        first,
        *zip(FIRST_FACTS, recording_lines(analyzer.gpu_events), strict=False),
    ]
    if cited:
        facts.append((FIRST_FACTS[-1], summary_sentence(analyzer.findings(chosen.device_peaks))))
    facts += [*others, ("Sheets left out", _absent(left_out, analyzer, chosen))]
    return reports.Report(
        "GPU performance report",
        tables,
        facts,
        notes,
        descriptions={name: sheet.shows for name, sheet in sheets.items()},
        charts=charts,
        page_sheets=page_tables,
        units={n: sheets[n].units(t) for n, t in {**page_tables, **tables}.items() if n in sheets},
        answers=[*_answers(analyzer, chosen, tables, sheets.values())],
    )


def _answers(
    analyzer: TreePerfAnalyzer, options: ReportOptions, tables: _Tables, sheets: Iterable[Table]
) -> Iterator[reports.Answer]:
    for sheet in sheets:
        when = sheet.answer_when
        table = tables.get(sheet.name)
        if table is None or (when is not None and not when.holds(analyzer, options)):
            continue
        if title := sheet.answer if len(table) else sheet.answer_if_empty(analyzer, options):
            columns = [column for column in sheet.answer_columns if column in table]
            yield reports.Answer(title, sheet.name, columns, sheet.answer_links)


def _within_limits(
    registry: PluginRegistry, offered: Offered[Table], ask: Callable[[Table], T]
) -> T | None:
    """What a sheet answers; None if it is a plugin's and fails, which is then a problem."""
    if offered.plugin.own:
        return ask(offered.item)
    with registry.guard(offered.plugin.name):
        answer: T = call_within(time_limit(), partial(ask, offered.item))
        return answer
    return None


def _made(
    analyzer: TreePerfAnalyzer, options: ReportOptions, sheet: Table
) -> tuple[pd.DataFrame, list[Chart]] | None:
    """The table of a sheet and what can be drawn of it; None if the report has no such sheet."""
    table = None if sheet.why_absent(analyzer, options) else sheet.make(analyzer, options)
    if table is None:
        return None
    if not isinstance(table, pd.DataFrame):
        kind = type(table).__name__
        raise PluginAnswerError(f"sheet {sheet.name!r}: expected a DataFrame, got {kind}")
    return table, [chart for chart in sheet.charts if chart.fits(table)]


def _absent(left_out: Iterable[Table], analyzer: TreePerfAnalyzer, options: ReportOptions) -> str:
    """The sheets that are asked for and not there, and what the trace lacks for them."""
    names: dict[str, str] = {}
    for sheet in left_out:
        if sheet.is_asked_for(options):
            why = sheet.why_absent(analyzer, options) or "there is something to show"
            names[why] = f"{names[why]}, {sheet.name}" if why in names else sheet.name
    return "; ".join(f"{which} (only if {why})" for why, which in names.items()) or "none"


def plugin_tables(
    analyzer: object, taken: Iterable[str] = (), registry: PluginRegistry | None = None
) -> dict[str, pd.DataFrame]:
    """The tables that plugins add of an analyzer, but of `taken` names in any case of letters."""
    registry = registry or default_registry()
    sheets = dict[str, pd.DataFrame]()
    names = {name.lower() for name in taken}
    wanted = "tracelens_report_sheets: expected sheet name → DataFrame, got"
    for hook in registry.hooks("tracelens_report_sheets"):
        with registry.guard(hook.plugin.name):
            answer = hook.call(analyzer=analyzer)
            if not isinstance(answer, Mapping):
                raise PluginAnswerError(f"{wanted} {type(answer).__name__}")
            for name, table in answer.items():
                with registry.guard(hook.plugin.name):
                    if not isinstance(name, str) or not isinstance(table, pd.DataFrame):
                        raise PluginAnswerError(f"{wanted} {name!r} → {type(table).__name__}")
                    if name.lower() in names:
                        raise PluginAnswerError(f"sheet {name!r}: the report has one already")
                    names.add(name.lower())
                    sheets[name] = table
    return sheets


@knows_tracelens
@takes_report_options
@writing.fast_pandas()
def generate_perf_report_pytorch(  # noqa: D417  # those of the analyzer are described there
    profile_json_path: str | os.PathLike[str],
    output_xlsx_path: str | os.PathLike[str] | None = None,
    output_csvs_dir: str | os.PathLike[str] | None = None,
    *,
    use_kernel_name_categories: bool = False,
    include_unlinked_kernels: bool = True,
    rules: Sequence[str | os.PathLike[str]] = (),
    categorizer: CategorizerLike | None = None,
    maps: Sequence[str | os.PathLike[str]] = (),
    without_packs: Sequence[str] = (),
    salvage: bool = False,
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
    gpu_arch_json_path: str | os.PathLike[str] | None = None,
    tracelens_sheets: bool = True,
    **options: Any,  # noqa: ANN401
) -> dict[str, pd.DataFrame]:
    """Analyse a PyTorch profiler trace and write the report.

    Args:
        profile_json_path: the trace, `.json` or `.json.gz`.
        output_xlsx_path: the Excel file; without any output `NAME_perf_report.xlsx` by the trace.
        output_csvs_dir: the folder to write a CSV file a sheet to.
        use_kernel_name_categories, include_unlinked_kernels, rules, categorizer, maps,
            without_packs, salvage, reading: as of `TreePerfAnalyzer`; categories add the column
            `kernel_category` and the sheets `kernels_by_category` and `kernel_categories`.
        gpu_arch_json_path: TraceLens's description of a GPU; the same as `device_peaks`.
        tracelens_sheets: whether the sheets that TraceLens has too are as there, or for reading.
        options: fields of `ReportOptions`.

    Returns:
        Table name → table.

    Raises:
        TraceError: the trace cannot be analysed.
        UsageError: an option makes no sense.
        OutputError: the report cannot be written, or is the trace; what was there is untouched.
    """
    if gpu_arch_json_path is not None:
        options.setdefault("device_peaks", str(gpu_arch_json_path))
    chosen = ReportOptions(tracelens_sheets=tracelens_sheets, **options)
    places = {} if output_csvs_dir is None else {Path(output_csvs_dir): writing.OutputFormat.csv}
    if output_xlsx_path is not None or not places:
        workbook = Path(output_xlsx_path or default_report_path(profile_json_path))
        places[workbook] = writing.OutputFormat.xlsx
    inputs = [Path(profile_json_path)]
    writing.check_places(places, inputs, force=True)
    analyzer = TreePerfAnalyzer(
        profile_json_path,
        use_kernel_name_categories=use_kernel_name_categories,
        include_unlinked_kernels=include_unlinked_kernels,
        rules=rules,
        categorizer=categorizer,
        maps=maps,
        without_packs=without_packs,
        salvage=salvage,
        reading=reading,
    )
    report = build_perf_report(analyzer, chosen)
    writing.write_report(report, places, inputs, force=True)
    return dict(report.sheets)


def default_report_path(trace_path: str | os.PathLike[str]) -> Path:
    """`NAME_perf_report.xlsx` beside the trace."""
    name = Path(trace_path).name.removesuffix(".gz").removesuffix(".json")
    return Path(trace_path).with_name(f"{name}_perf_report.xlsx")
