"""What a table is: its name, its columns and charts, when it is there, and what makes it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MethodType
from typing import TYPE_CHECKING

from tracelens_ext.hooks import PluginAnswerError
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.short_names import with_short_names
from tracelens_ext.report.tables.units import unit_of

if TYPE_CHECKING:
    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.report.tables.charts import Chart


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, what it holds, and its unit (or what is counted)."""

    name: str
    meaning: str
    unit: str

    def matches(self, name: str) -> bool:
        """Whether a column of a table is this one."""
        return bool(re.fullmatch(re.escape(self.name).replace("CATEGORY", ".+"), name))


@dataclass(frozen=True)
class Condition:
    """What a trace must have for a table to be there."""

    words: str  #: what it is: `the trace has GPU events`
    holds: Callable[[TreePerfAnalyzer, ReportOptions], bool]  #: whether a trace has it


GPU_EVENTS = Condition("the trace has GPU events", lambda analyzer, _: len(analyzer.work) > 0)
NO_GPU_EVENTS = Condition(
    "the trace has no GPU events", lambda analyzer, _: len(analyzer.work) == 0
)
CATEGORIES = Condition(
    "categories are on", lambda analyzer, _: analyzer.work.categories is not None
)


def cited_sheets(analyzer: TreePerfAnalyzer, options: ReportOptions) -> set[str]:
    """The sheets, and commands, that the evidence of the trace's findings names."""
    if not len(analyzer.work):
        return set()
    found = analyzer.findings(options.device_peaks).findings
    return {each.see for finding in found for each in finding.evidence}


@dataclass(frozen=True, eq=False)
class Table:
    """A table, declared once: for reports, commands, `TreePerfAnalyzer` and `docs/tables.md`."""

    name: str  #: its name, at most 31 characters
    shows: str  #: what it shows, a clause for the index
    #: the columns that it can have, in words: a line a column, `NAME: meaning`, or `NAME [unit]:
    #: meaning` where the name does not tell the unit; names with one meaning are joined by a comma
    #: and a blank; a line that is indented further goes on with the one before. `CATEGORY` in a
    #: name stands for any category. `param: ` begins a name
    columns: str
    #: makes it of an analyzer, or, if its first parameter is `work`, of the analyzer's GPU events;
    #: None if there is nothing to show. Its parameters with defaults are those of the method; a
    #: report sets those that are named as fields of `ReportOptions`. A second parameter without
    #: default gets all `ReportOptions`
    table: Callable[..., pd.DataFrame | None]
    when: Sequence[Condition] = (GPU_EVENTS,)  #: what the trace must have
    #: the field of `ReportOptions` that switches it on or off; empty if it is always wanted.
    #: `tables` if a report has it only when `--tables` names it
    asked_by: str = ""
    #: fields of `ReportOptions` that change the table, if `table` takes them all
    options: Sequence[str] = ()
    #: what to draw of the table. A chart whose columns the table lacks is left out
    charts: Sequence[Chart] = ()
    #: what the reader should know, a sentence each, given the tables of the report
    notes: Callable[
        [TreePerfAnalyzer, ReportOptions, Mapping[str, pd.DataFrame]], Iterable[str]
    ] = lambda *_: ()
    #: whether a page for browsers has the table even if it is not asked for
    on_every_page: bool = False
    #: the call on `TreePerfAnalyzer` that gives it; `get_df_NAME()` if that is empty
    method: str = ""
    #: the heading under which the first sheet of a workbook, and the terminal, show its first rows;
    #: empty if they do not
    answer: str = ""
    answer_when: Condition | None = None  #: what the trace must have for that, if anything
    #: makes the heading if the table has no rows; empty for none
    answer_if_empty: Callable[[TreePerfAnalyzer, ReportOptions], str] = lambda *_: ""
    #: the columns that are shown there, where the table has them
    answer_columns: Sequence[str] = ()
    answer_links: str = ""  #: that of them which names the sheets to look at next
    #: the title, and perhaps the columns, with which a command shows it: `TITLE: COLUMN, COLUMN`
    screen: str = ""
    short_names: str = ""  #: the column of kernel names that a report puts short ones beside

    @property
    def call(self) -> str:
        """The call on `TreePerfAnalyzer` that gives it."""
        return self.method or f"get_df_{self.name}()"

    def of(self, analyzer: TreePerfAnalyzer) -> Callable[..., pd.DataFrame | None]:
        """What makes it of an analyzer's trace."""
        of_work = next(iter(inspect.signature(self.table).parameters)) == "work"
        return MethodType(self.table, analyzer.work if of_work else analyzer)

    def make(self, analyzer: TreePerfAnalyzer, options: ReportOptions) -> pd.DataFrame | None:
        """The table, as the options want it."""
        named = self.named_options()
        make = self.of(analyzer)
        own = {name: getattr(options, name) for name in named or ()}
        table = make(options) if named is None else make(**own)
        short = self.short_names
        return with_short_names(table, short) if short and table is not None else table

    def named_options(self) -> list[str] | None:
        """The fields of `ReportOptions` that `table` takes one by one; None if it takes all."""
        parameters = inspect.signature(self.table).parameters.values()
        wanted = [p for p in parameters if p.default is p.empty]
        if len(wanted) > 1 or wanted[0].kind is wanted[0].VAR_POSITIONAL:
            return None
        return [p.name for p in parameters if p.name in ReportOptions.__dataclass_fields__]

    @cache  # noqa: B019  # tables live as long as the process
    def described_columns(self) -> list[Column]:
        """The columns, one by one."""
        described = []
        for line in re.sub(r"\n +", " ", inspect.cleandoc(self.columns)).splitlines():
            found = re.fullmatch(r"((?:.*param: )?.+?)(?: \[(.+?)\])?: (.+)", line)
            if found is None:
                raise PluginAnswerError(f"sheet {self.name!r}: {line!r} describes no column")
            names, unit, meaning = found.groups()
            described += [Column(n, meaning, unit or unit_of(n).symbol) for n in names.split(", ")]
        return described

    def units(self, table: pd.DataFrame) -> dict[str, str]:
        """The unit of each column of its table, by name; empty for none."""
        names = map(str, table.columns)
        described = self.described_columns()
        return {n: next((c.unit for c in described if c.matches(n)), "") for n in names}

    def is_asked_for(self, options: ReportOptions) -> bool:
        """Whether the options ask for it."""
        if not self.asked_by or options.names(self.name):
            return True
        return self.asked_by != "tables" and bool(getattr(options, self.asked_by))

    def why_absent(self, analyzer: TreePerfAnalyzer, options: ReportOptions) -> str:
        """The first thing that the trace lacks for this sheet, in words; empty for nothing."""
        return next((c.words for c in self.when if not c.holds(analyzer, options)), "")
