"""Builds the report of a trace: all its tables, facts, charts and notes."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tracelens_ext.analysis.coverage.report_tables import recording_lines
from tracelens_ext.analysis.timeline import overview
from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.categorize import CategorizerLike
from tracelens_ext.compatibility.earlier_arguments import takes_old_arguments
from tracelens_ext.compatibility.earlier_names import earlier_tables
from tracelens_ext.compatibility.tracelens import knows_tracelens
from tracelens_ext.findings.explanations import explanation_of
from tracelens_ext.findings.summary import first_sentences, summary_sentence
from tracelens_ext.hooks import (
    Offered,
    PluginAnswerError,
    PluginRegistry,
    default_registry,
)
from tracelens_ext.hooks.registry import call_within, time_limit
from tracelens_ext.lazy import pd
from tracelens_ext.report import writing
from tracelens_ext.report.report import Answer, Report
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.options import ReportOptions, takes_report_options
from tracelens_ext.report.tables.registry import check_names, offered_tables
from tracelens_ext.report.tables.row_command import RowCommand
from tracelens_ext.report.tables.table import ONLY_BY_NAME, Table
from tracelens_ext.report.tables.units import FIRST_FACTS
from tracelens_ext.roofline.peaks import recognized_products
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions

Result = TypeVar("Result")
_Fact = tuple[str, object]


@takes_old_arguments
@knows_tracelens
@takes_report_options
@writing.fast_pandas()
def build_perf_report(
    analyzer: TreePerfAnalyzer,
    report_options: ReportOptions | None = None,
    *,
    for_page: bool = False,
    **options: Any,  # noqa: ANN401
) -> Report:
    """Build the report of an analyzed trace; without GPU events, of its CPU operations.

    A table, chart or text that cannot be computed is left out, and a note says so.

    Args:
        analyzer: the analyzer of the trace.
        report_options: all options at once.
        for_page: whether an HTML page will be written. It shows the iterations even if their tables
            were not requested.
        options: fields of `ReportOptions`.

    Raises:
        UsageError: an option makes no sense.
    """
    chosen = report_options or ReportOptions(**options)
    registry = default_registry()
    builder = _ReportBuilder(
        analyzer, chosen, registry, offered_tables(registry), for_page
    )
    return builder.build()


@dataclass
class _ReportBuilder:
    """Makes the parts of a report, so that one that fails does not affect the others."""

    analyzer: TreePerfAnalyzer
    options: ReportOptions
    registry: PluginRegistry
    offered: Sequence[Offered[Table]]
    for_page: bool
    #: all tables, including those that only an HTML page has
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    page_tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    charts: list[Chart] = field(default_factory=list)
    #: name of a table → why the trace has nothing for it (not why it failed)
    absence: dict[str, str] = field(default_factory=dict)
    #: the names of the tables and commands that the evidence of findings cites
    cited: frozenset[str] = frozenset()

    def build(self) -> Report:
        """Return the report."""
        declared = {offered.item.name: offered.item for offered in self.offered}
        check_names(self.options.named_tables, declared)
        with self.analyzer.failures.isolate("The findings"):
            self.cited = self.analyzer.cited_tables(self.options.device_peaks)
        if not self._asks_for_simulation():
            self.analyzer.forget_replay()
        self._make_tables()
        facts = self._facts()
        answers = self._answers()
        notes = self._notes()
        return Report(
            "GPU performance report",
            self.tables,
            facts,
            notes,
            descriptions={name: table.description for name, table in declared.items()},
            charts=self.charts,
            page_sheets=self.page_tables,
            units=self._units(declared),
            answers=answers,
            row_commands=self._row_commands(),
            explanations=self._explanations(),
        )

    def _explanations(self) -> dict[str, str]:
        """Return an explanation of each finding in the report, by its id."""
        table = self.tables.get("findings")
        if table is None:
            return {}
        return {name: explanation_of(name) for name in table["finding"].tolist()}

    def _asks_for_simulation(self) -> bool:
        """Return whether a table needs the simulation, apart from the findings."""
        return any(
            offered.item.is_enabled(self.options)
            for offered in self.offered
            if offered.item.enabled_by == "what_if"
        )

    def _make_tables(self) -> None:
        for offered in self.offered:
            table = offered.item
            wanted = self._is_wanted(table)
            if not wanted and not (self.for_page and table.on_every_page):
                continue
            frame = self._ask(offered, f"The table {table.name}", self._frame_of)
            if frame is None:
                continue
            if wanted:
                self.tables[table.name] = frame
            else:
                self.page_tables[table.name] = frame
            self.charts += self._fitting_charts(offered, frame)
        if len(self.analyzer.gpu_events):
            self.tables |= plugin_tables(self.analyzer, self.tables, self.registry)

    def _is_wanted(self, table: Table) -> bool:
        """Return whether a table belongs to the report, provided that the trace has data for it."""
        if table.is_enabled(self.options):
            return True
        # A table that is optional is included when evidence of findings cites it. Evidence may also
        # cite a command, `gaps`, or a table that an option switched off.
        is_optional = table.enabled_by != ONLY_BY_NAME and not table.is_enabled(
            ReportOptions()
        )
        return is_optional and table.name in self.cited

    def _frame_of(self, table: Table) -> pd.DataFrame | None:
        """Build a declared table; None if the trace has nothing for it."""
        reason = table.why_absent(self.analyzer, self.options)
        frame = None if reason else table.build_with(self.analyzer, self.options)
        if frame is None:
            self.absence[table.name] = reason or "there is something to show"
            return None
        if not isinstance(frame, pd.DataFrame):
            kind = type(frame).__name__
            raise PluginAnswerError(
                f"sheet {table.name!r}: expected a DataFrame, got {kind}"
            )
        return frame

    def _fitting_charts(
        self, offered: Offered[Table], frame: pd.DataFrame
    ) -> list[Chart]:
        """Return the charts of a table that have something to draw."""
        fitting = []
        for chart in offered.item.charts:
            fits = partial(_fits, chart, frame)
            if self._ask(offered, chart.part, fits):
                fitting.append(chart)
        return fitting

    def _facts(self) -> list[_Fact]:
        facts: list[_Fact] = []
        overview_facts: list[_Fact] = []
        failures = self.analyzer.failures
        with failures.isolate("The overview"):
            overview_facts = overview.overview(
                self.analyzer.gpu_events,
                self.analyzer.coverage,
                recognized_products(self.analyzer.trace),
            )
        facts += overview_facts[:1]
        with failures.isolate("The summary of the recording"):
            lines = recording_lines(self.analyzer.gpu_events)
            facts += zip(FIRST_FACTS, lines, strict=False)
        with failures.isolate("The summary of the findings"):
            verdict = self._verdict()
            if verdict:
                facts.append((FIRST_FACTS[-1], verdict))
        facts += overview_facts[1:]
        facts.append(("Sheets left out", self._left_out()))
        return facts

    def _verdict(self) -> str:
        """Return the summary of the findings; if there are none, what their heading leaves out."""
        if "findings" not in self.tables:
            return ""
        findings = self.analyzer.findings(self.options.device_peaks)
        sentences = first_sentences(findings)
        if not self.cited:
            heading = summary_sentence(findings)
            sentences = [sentence for sentence in sentences if sentence != heading]
        return " ".join(sentences)

    def _left_out(self) -> str:
        """Note which requested tables are missing, and what the trace lacks for them."""
        names_by_reason: defaultdict[str, list[str]] = defaultdict(list)
        for offered in self.offered:
            table = offered.item
            was_tried = table.name in self.absence and table.is_enabled(self.options)
            if was_tried and offered.plugin.own:
                names_by_reason[self.absence[table.name]].append(table.name)
        parts = [
            f"{', '.join(names)} (only if {reason})"
            for reason, names in names_by_reason.items()
        ]
        return "; ".join(parts) or "none"

    def _answers(self) -> list[Answer]:
        answers = []
        for offered in self.offered:
            name = offered.item.name
            if name in self.tables:
                part = f"The first rows of the table {name}"
                answer = self._ask(offered, part, self._answer_of)
                if answer is not None:
                    answers.append(answer)
        return answers

    def _answer_of(self, table: Table) -> Answer | None:
        """Return the part of a table that a workbook shows on its first sheet; None for none."""
        view = table.answer
        if view is None:
            return None
        condition = view.condition
        if condition is not None and not condition.holds(self.analyzer, self.options):
            return None
        frame = self.tables[table.name]
        title = view.title
        if not len(frame):
            title = view.title_if_empty(self.analyzer, self.options)
        if not title:
            return None
        columns = [column for column in view.columns if column in frame]
        return Answer(
            title,
            table.name,
            columns,
            links=view.link_column,
            choose_rows=view.choose_rows,
        )

    def _notes(self) -> list[str]:
        notes: list[str] = []
        with self.analyzer.failures.isolate("The advice about the recording"):
            notes += overview.advice(self.analyzer.gpu_events, self.analyzer.coverage)
        for offered in self.offered:
            part = f"The notes on the table {offered.item.name}"
            notes += self._ask(offered, part, self._notes_of) or []
        for problem in self.analyzer.problems:
            notes.append(f"{problem[0].upper()}{problem[1:]}")
        return notes

    def _notes_of(self, table: Table) -> list[str]:
        return list(table.notes(self.analyzer, self.options, self.tables))

    def _units(self, declared: Mapping[str, Table]) -> dict[str, dict[str, str]]:
        """Return the unit of each column of each declared table."""
        frames = {**self.page_tables, **self.tables}
        return {
            name: declared[name].units(frame)
            for name, frame in frames.items()
            if name in declared
        }

    def _row_commands(self) -> dict[str, RowCommand]:
        """Return the command for the rows of each table that has one."""
        commands = {}
        for offered in self.offered:
            name = offered.item.name
            if name not in self.tables:
                continue
            command = self._ask(
                offered, f"The command for the rows of {name}", self._row_command_of
            )
            if command is not None:
                commands[name] = command
        return commands

    def _row_command_of(self, table: Table) -> RowCommand | None:
        return table.row_command(self.analyzer, self.options)

    def _ask(
        self, offered: Offered[Table], part: str, function: Callable[[Table], Result]
    ) -> Result | None:
        """Call a function that a table declares; return None if it fails, which is recorded.

        A function of a plugin has a time limit, and its failure is reported as the plugin's.
        """
        if offered.plugin.own:
            with self.analyzer.failures.isolate(part):
                return function(offered.item)
            return None
        with self.registry.guard(offered.plugin.name):
            answer: Result = call_within(time_limit(), partial(function, offered.item))
            return answer
        return None


def _fits(chart: Chart, frame: pd.DataFrame, _table: Table) -> bool:
    return chart.fits(frame)


def plugin_tables(
    analyzer: object, taken: Iterable[str] = (), registry: PluginRegistry | None = None
) -> dict[str, pd.DataFrame]:
    """Return the tables that plugins add to a report.

    Args:
        analyzer: the analyzer, which plugins receive.
        taken: names that plugins cannot use, regardless of case.
        registry: the registry of the plugins; by default that of this process.
    """
    registry = registry or default_registry()
    tables: dict[str, pd.DataFrame] = {}
    names = {name.lower() for name in taken}
    for hook in registry.hooks("tracelens_report_sheets"):
        with registry.guard(hook.plugin.name):
            answer = hook.call(analyzer=analyzer)
            if not isinstance(answer, Mapping):
                raise PluginAnswerError(_unexpected(type(answer).__name__))
            for name, table in answer.items():
                with registry.guard(hook.plugin.name):
                    if not isinstance(name, str) or not isinstance(table, pd.DataFrame):
                        raise PluginAnswerError(
                            _unexpected(f"{name!r} → {type(table).__name__}")
                        )
                    if name.lower() in names:
                        raise PluginAnswerError(
                            f"sheet {name!r}: the report already has one"
                        )
                    names.add(name.lower())
                    tables[name] = table
    return tables


def _unexpected(answer: str) -> str:
    return f"tracelens_report_sheets: expected sheet name → DataFrame, got {answer}"


@takes_old_arguments
@knows_tracelens
@takes_report_options
@writing.fast_pandas()
def generate_perf_report_pytorch(  # `TreePerfAnalyzer` describes its parameters
    profile_json_path: str | os.PathLike[str],
    output_xlsx_path: str | os.PathLike[str] | None = None,
    output_csvs_dir: str | os.PathLike[str] | None = None,
    *,
    use_kernel_name_categories: bool = False,
    include_unlinked_kernels: bool = True,
    rules: Sequence[str | os.PathLike[str]] = (),
    categorizer: CategorizerLike | None = None,
    maps: Sequence[str | os.PathLike[str]] = (),
    disabled_packs: Sequence[str] = (),
    allow_truncated: bool = False,
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
    gpu_arch_json_path: str | os.PathLike[str] | None = None,
    tracelens_sheets: bool = True,
    **options: Any,  # noqa: ANN401
) -> dict[str, pd.DataFrame]:
    """Analyze a PyTorch profiler trace and write the report.

    Args:
        profile_json_path: the trace, `.json` or `.json.gz`.
        output_xlsx_path: the Excel file; if no output is given, `NAME_perf_report.xlsx` next to the
            trace.
        output_csvs_dir: the folder for CSV files, one for each sheet.
        use_kernel_name_categories: whether kernels get a category, which adds the column
            `kernel_category` and the sheets `kernels_by_category` and `kernel_categories`. This
            and the next six parameters are those of `TreePerfAnalyzer`.
        include_unlinked_kernels: whether GPU events without a launch in the trace count.
        rules: TOML files of your own rules.
        categorizer: what to ask before the installed plugins and built-in packs.
        maps: folders of engine/model maps.
        disabled_packs: names of packs that are switched off.
        allow_truncated: whether a truncated or damaged file is analyzed up to the damage.
        reading: further options for reading.
        gpu_arch_json_path: TraceLens's description of a GPU; the same as `device_peaks`.
        tracelens_sheets: whether sheets that TraceLens has as well look exactly as there.
        options: fields of `ReportOptions`.

    Returns:
        Table name → table.

    Raises:
        TraceError: the trace cannot be analyzed.
        UsageError: an option makes no sense.
        OutputError: the report cannot be written, or would replace the trace. Existing files stay.
    """
    if gpu_arch_json_path is not None:
        options.setdefault("device_peaks", str(gpu_arch_json_path))
    chosen = ReportOptions(tracelens_sheets=tracelens_sheets, **options)
    places: dict[Path, writing.OutputFormat] = {}
    if output_csvs_dir is not None:
        places[Path(output_csvs_dir)] = writing.OutputFormat.csv
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
        disabled_packs=disabled_packs,
        allow_truncated=allow_truncated,
        reading=reading,
    )
    report = build_perf_report(analyzer, chosen)
    writing.write_report(report, places, inputs, force=True)
    return earlier_tables(report.sheets)


def default_report_path(trace_path: str | os.PathLike[str]) -> Path:
    """Return the default path of a report: `NAME_perf_report.xlsx` next to the trace."""
    name = Path(trace_path).name.removesuffix(".gz").removesuffix(".json")
    return Path(trace_path).with_name(f"{name}_perf_report.xlsx")
