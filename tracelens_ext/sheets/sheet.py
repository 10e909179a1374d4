"""What a sheet of the report is, and which sheets there are."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens_ext.hooks import Offered, PluginAnswerError, PluginRegistry, default_registry
from tracelens_ext.lazy import pd
from tracelens_ext.report.units import unit_of
from tracelens_ext.sheets.options import ReportOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.report.charts import Chart


@dataclass(frozen=True)
class Column:
    """A column of a sheet: its name, what it holds, and its unit (or what is counted)."""

    name: str
    meaning: str
    unit: str

    def matches(self, name: str) -> bool:
        """Whether a column of a table is this one."""
        return bool(re.fullmatch(re.escape(self.name).replace("CATEGORY", ".+"), name))


@dataclass(frozen=True)
class Condition:
    """What a trace must have for a sheet to be there.

    Attributes:
        words: what it is: `the trace has GPU events`.
        holds: whether a trace has it.
    """

    words: str
    holds: Callable[[TreePerfAnalyzer, ReportOptions], bool]


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


@dataclass(frozen=True)
class Sheet:
    """A sheet of the report.

    Attributes:
        name: its name, at most 31 characters.
        shows: what it shows, a clause for the index.
        columns: the columns that its table can have, in words: a line a column, `NAME: meaning`,
            or `NAME [unit]: meaning` where the name does not tell the unit; names with one meaning
            are joined by a comma and a blank; a line that is indented further goes on with the one
            before. `CATEGORY` in a name stands for any category. `param: ` begins a name.
        table: makes the table; None if there is nothing to show.
        when: what the trace must have.
        asked_by: the field of `ReportOptions` that switches the sheet on or off; empty if it is
            always wanted.
        options: further fields of `ReportOptions` that change the table.
        charts: what to draw of the table. A chart whose columns the table lacks is left out.
        notes: what the reader should know, a sentence each, given the tables of the report.
        on_every_page: whether a page for browsers has the table even if it is not asked for.
        method: the call on `TreePerfAnalyzer` that gives the same numbers, if there is one.
        answer: the heading under which the first sheet of a workbook, and the terminal, show its
            first rows; empty if they do not.
        answer_when: what the trace must have for that, if anything.
        answer_if_empty: makes the heading if the table has no rows; empty for none.
        answer_columns: the columns that are shown there, where the table has them.
        answer_links: that of them which names the sheets to look at next.
    """

    name: str
    shows: str
    columns: str
    table: Callable[[TreePerfAnalyzer, ReportOptions], pd.DataFrame | None]
    when: Sequence[Condition] = (GPU_EVENTS,)
    asked_by: str = ""
    options: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    notes: Callable[
        [TreePerfAnalyzer, ReportOptions, Mapping[str, pd.DataFrame]], Iterable[str]
    ] = lambda *_: ()
    on_every_page: bool = False
    method: str = ""
    answer: str = ""
    answer_when: Condition | None = None
    answer_if_empty: Callable[[TreePerfAnalyzer, ReportOptions], str] = lambda *_: ""
    answer_columns: Sequence[str] = ()
    answer_links: str = ""

    def described_columns(self) -> list[Column]:
        """The columns, one by one.

        Raises:
            PluginAnswerError: a line is none of those that `columns` can have.
        """
        described = []
        for line in re.sub(r"\n +", " ", inspect.cleandoc(self.columns)).splitlines():
            found = re.fullmatch(r"((?:.*param: )?.+?)(?: \[(.+?)\])?: (.+)", line)
            if found is None:
                raise PluginAnswerError(f"sheet {self.name!r}: {line!r} describes no column")
            names, unit, meaning = found.groups()
            described += [
                Column(name, meaning, unit or unit_of(name).symbol) for name in names.split(", ")
            ]
        return described

    def units(self, table: pd.DataFrame) -> dict[str, str]:
        """The unit of each column of its table, by name; empty for none."""
        described = self.described_columns()
        return {
            name: next((column.unit for column in described if column.matches(name)), "")
            for name in map(str, table.columns)
        }

    def is_asked_for(self, options: ReportOptions) -> bool:
        """Whether the options ask for it."""
        return not self.asked_by or bool(getattr(options, self.asked_by))

    def why_absent(self, analyzer: TreePerfAnalyzer, options: ReportOptions) -> str:
        """The first thing that the trace lacks for this sheet, in words; empty for nothing."""
        return next((c.words for c in self.when if not c.holds(analyzer, options)), "")


def offered_sheets(registry: PluginRegistry | None = None) -> list[Offered[Sheet]]:
    """The sheets of this distribution, then those of plugins, each name once.

    Args:
        registry: the plugins to ask instead of the installed ones.
    """
    registry = registry or default_registry()
    offered = registry.offers("tracelens_sheets", _check)
    offered.sort(key=lambda each: not each.plugin.own)
    names: set[str] = set()
    result = []
    for each in offered:
        with registry.guard(each.plugin.name):
            if (name := each.item.name.lower()) in names:
                raise PluginAnswerError(f"sheet {each.item.name!r}: the report has one already")
            names.add(name)
            result.append(each)
    return result


def _check(item: object) -> None:
    if not isinstance(item, Sheet):
        kind = type(item).__name__
        raise PluginAnswerError(f"tracelens_sheets: expected Sheet objects, got {kind}")
    item.described_columns()
    known = ("", *ReportOptions.__dataclass_fields__)
    if wrong := [name for name in (item.asked_by, *item.options) if name not in known]:
        raise PluginAnswerError(f"sheet {item.name!r}: there is no option {wrong[0]!r}")
    for chart in item.charts:
        if chart.sheet != item.name:
            raise PluginAnswerError(f"sheet {item.name!r}: its chart is of {chart.sheet!r}")
