"""The tools of the MCP server: the questions that an agent may ask about traces.

Each public method of `TraceTools` that `TOOLS` names is a tool. Its docstring and the names of its
arguments are what the agent reads. Each answer says which tool to call next.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np

from tracelens_ext.analysis.operations.merged_tree import merged_tree
from tracelens_ext.analysis.operations.tree_table import tree_rows
from tracelens_ext.analysis.timeline.overview import advice, overview
from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.categorize import KernelCategorizer
from tracelens_ext.categorize.categorizer import explain
from tracelens_ext.cli.finding_blocks import finding_documents
from tracelens_ext.cli.load import recording_notes
from tracelens_ext.cli.mcp_answers import (
    LONGEST_ANSWER,
    Answer,
    rows_of,
    table_answer,
    units_of,
)
from tracelens_ext.cli.mcp_traces import ServedTraces
from tracelens_ext.compare.comparison import compare
from tracelens_ext.compare.report import comparison_report, measured_for_comparison
from tracelens_ext.compatibility.earlier_names import (
    earlier_column_names,
    earlier_table,
)
from tracelens_ext.errors import UsageError
from tracelens_ext.export import database
from tracelens_ext.export.sql_query import query as query_events
from tracelens_ext.findings.engine import tell_claims
from tracelens_ext.findings.summary import summary_sentence
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.registry import find_table
from tracelens_ext.reproduce.script import refusal_sentences
from tracelens_ext.roofline.peaks import recognized_products
from tracelens_ext.simulation.scenarios import parse_change

#: A value in a table.
Plain = str | float | bool | None

#: The methods of `TraceTools` that are tools.
TOOLS = (
    "open_trace",
    "findings",
    "table",
    "explain_kernel",
    "tree",
    "compare",
    "what_if",
    "sql",
    "reproduce",
)
# What an agent may ask for at most.
_MOST_ROWS = 200
_MOST_DEPTH = 100
_MOST_CHANGES = 50
_MOST_OPERATIONS = 50
_SQL_SECONDS = 20
_MOST_SQL_VALUE_BYTES = 1_000_000
# How much of each list an answer holds.
_VERDICTS = 5
_LAUNCHERS = 20
_OTHER_RULES = 5
_COMPARED_ROWS = 15
_CRITICAL_PATH_ROWS = 20
#: How much of a long name an error message shows.
_NAME_SHOWN = 200
_NAMES_SHOWN = 5


class TraceTools:
    """The tools, as methods. Their argument `path` names one of the traces that are served."""

    def __init__(self, traces: ServedTraces) -> None:
        self._traces = traces

    def open_trace(self, path: str) -> Answer:
        """Read a trace: facts, what limits it, and which tables it has. Ask this first.

        `path` is relative to the folders of the server; '.', or a folder, lists its traces.
        """
        location = self._traces.find(path)
        if location.is_dir():
            traces = pd.DataFrame({"path": self._traces.listed(location)})
            return table_answer(
                frame=traces.head(_MOST_ROWS),
                row_count=len(traces),
                units={},
                next_call="open_trace(path) of one",
            )
        analyzer = self._traces.analyzer(path)
        findings = analyzer.findings()
        verdict = [summary_sentence(findings)]
        verdict.extend(finding.title for finding in findings.findings[:_VERDICTS])
        facts = overview(
            gpu_events=analyzer.gpu_events,
            covered=analyzer.coverage,
            products=recognized_products(analyzer.trace),
        )
        return {
            "facts": dict(facts),
            "recording": findings.recording_lines,
            "program": findings.program,
            "verdict": verdict,
            "notes": advice(analyzer.gpu_events, analyzer.coverage),
            "tables": _present_tables(analyzer),
            "next": (
                "findings(path): what would save the most time, with evidence and "
                "advice"
            ),
        }

    def findings(self, path: str, all: bool = False) -> Answer:  # noqa: A002  # agents see this name
        """What would save the most wall time, why, where, how sure, what to change; times in ms.

        `all` also gives what only informs.
        """
        findings = self._traces.analyzer(path).findings()
        chosen = [
            finding for finding in findings.findings if all or not finding.informs_only
        ]
        document = replace(findings, findings=chosen).as_dict()
        documents: Any = document["findings"]
        return {
            **document,
            "findings": finding_documents(chosen, documents),
            "left_out": len(findings.findings) - len(chosen),
            "units": {"…_ms": "ms", "…_percent": "%"},
            "next": (
                "table(path, name) for a name in `see`; what_if(path, ['finding:ID=0'])"
            ),
        }

    def with_notes(self, path: str, answer: Answer) -> Answer:
        """Add notes about what was dropped or could not be computed to an answer about a trace."""
        if self._traces.find(path).is_dir():
            return answer
        notes: Any = answer.get("notes", ())
        all_notes = list(notes)
        all_notes += recording_notes(self._traces.analyzer(path), for_json=True)
        if not all_notes:
            return answer
        return {**answer, "notes": list(dict.fromkeys(all_notes))}

    def table(
        self,
        path: str,
        name: str,
        columns: list[str] | None = None,
        where: dict[str, Plain] | None = None,
        sort: str | None = None,
        limit: int = 20,
    ) -> Answer:
        """Rows of a table that open_trace names, with the units of its columns.

        `where` is column → value, all of which a row must have; `sort` a column, `-column` for
        descending; `limit` at most 200.
        """
        _check_range("limit", limit, _MOST_ROWS)
        named_table = _table(self._traces.analyzer(path), name)
        frame = named_table.frame
        for column, value in (where or {}).items():
            _check_column(column, frame)
            frame = frame[_has_value(frame[column], value)]
        if sort is not None:
            frame = _sorted(frame, sort)
        if columns is not None:
            for column in columns:
                _check_column(column, frame)
            frame = frame[columns]
        next_call = (
            "sql(path, query) joins and aggregates tables; findings(path) says what "
            "to change"
        )
        if len(frame) > limit:
            next_call = (
                f"{len(frame) - limit:,} more rows; use where, sort, or limit (up to "
                f"{_MOST_ROWS})"
            )
        return table_answer(
            frame=frame.head(limit),
            row_count=len(frame),
            units=named_table.units,
            next_call=next_call,
        )

    def explain_kernel(self, path: str, name: str) -> Answer:
        """Which category a kernel has and why, its GPU time, and the operations that launch it.

        `name` is the kernel's as the trace or a table has it, or a part that only it has.
        """
        analyzer = self._traces.analyzer(path)
        kernels = _table(analyzer, "kernels")
        kernel = _only_kernel(kernels.frame, name)
        kernel_name = str(kernel["kernel_name"])
        pairs = analyzer.get_df_kernel_summary()
        pairs_of_kernel = pairs[pairs["kernel_name"] == kernel_name]
        launchers = pairs_of_kernel[
            ["cpu_op", "count", "total_time_ms", "% of GPU time"]
        ]
        main_operation = str(launchers["cpu_op"].iloc[0])
        categorizer = analyzer.categorizer or KernelCategorizer.create()
        explanation = explain(categorizer, kernel_name, main_operation)
        because = None
        if explanation.winner is not None:
            because = asdict(explanation.winner)
        launchers_answer = table_answer(
            frame=launchers.head(_LAUNCHERS),
            row_count=len(launchers),
            units=kernels.units,
            next_call=(
                "tree(path, node=cpu_op) shows where it runs; findings(path) says what "
                "to change"
            ),
        )
        other_rules = explanation.others[:_OTHER_RULES]
        return {
            **kernel,
            "because": because,
            "would_match_too": [asdict(match) for match in other_rules],
            **launchers_answer,
        }

    def tree(self, path: str, node: str | None = None, depth: int = 3) -> Answer:
        """The call tree with GPU time: the whole, or what is below the operations called `node`.

        `depth` is in levels; of more than 200 nodes those with the most GPU time are given.
        """
        _check_range("depth", depth, _MOST_DEPTH)
        pattern = None
        if node is not None:
            pattern = _pattern_of_node(node)
        tree = merged_tree(self._traces.analyzer(path).gpu_events, op=pattern)
        if node is not None and not len(tree):
            raise UsageError(
                f"no operation called {node!r} launches GPU work; see tree(path)"
            )
        is_kept = tree.kept(depth)
        # Nodes that are not kept come last in the order.
        sort_key = np.where(is_kept, -tree.busy_ns, 1)
        longest = np.argsort(sort_key, kind="stable")[:_MOST_ROWS]
        is_among_longest = np.zeros_like(is_kept)
        is_among_longest[longest] = True
        return table_answer(
            frame=tree_rows(tree, is_kept & is_among_longest),
            row_count=int(is_kept.sum()),
            units={"busy_time_ms": "ms"},
            next_call=(
                "tree(path, node, depth) with a name from this answer; "
                "explain_kernel(path, name) for a kernel"
            ),
        )

    def compare(self, path: str, other: str) -> Answer:
        """What changed from the first trace to the other: time, categories, operations, kernels.

        `A_` is the first trace; the largest changes come first; times are in ms.
        """
        analyzers = [self._traces.analyzer(name) for name in (path, other)]
        measurements = [measured_for_comparison(analyzer) for analyzer in analyzers]
        report = comparison_report(compare(measurements))
        tables = {
            name: rows_of(frame.head(_COMPARED_ROWS))
            for name, frame in report.sheets.items()
        }
        return {
            "facts": dict(report.facts),
            "notes": report.notes,
            "tables": tables,
            "units": {"…_ms": "ms", "…_percent": "%"},
            "next": "findings or table of each of the two traces, for the reasons",
        }

    def what_if(self, path: str, changes: list[str]) -> Answer:
        """The wall time in ms if something took longer or shorter, by a replay of the trace.

        A change is NAME=FACTOR; NAME is a category, kernels, kernel:REGEX, op:NAME, copies,
        communication, launch, gaps, host, host:NAME, or finding:ID (=0).
        """
        _check_range("the number of changes", len(changes), _MOST_CHANGES)
        parsed_changes = [parse_change(text) for text in changes]
        analyzer = self._traces.analyzer(path)
        simulation = analyzer.simulation()
        if any("finding:" in change for change in changes):
            tell_claims(simulation, analyzer.findings().findings)
        saved = earlier_table(simulation.what_if(parsed_changes), "what_if")
        critical_path = earlier_table(
            simulation.critical_path_summary().head(_CRITICAL_PATH_ROWS),
            "critical_path_summary",
        )
        return {
            **table_answer(
                frame=saved,
                row_count=len(saved),
                units=units_of(saved),
                next_call="findings(path): how to get there",
            ),
            "window": simulation.json_window(),
            "model": simulation.json_model(),
            "critical_path": rows_of(critical_path),
        }

    def sql(self, path: str, query: str) -> Answer:
        """Up to 200 rows of one SELECT about the events, or any table that open_trace names."""
        rows, are_more = query_events(
            self._traces.analyzer(path),
            query,
            timeout=_SQL_SECONDS,
            limit=_MOST_ROWS,
            max_value_bytes=_MOST_SQL_VALUE_BYTES,
        )
        next_call = "findings(path)"
        if are_more:
            next_call = "more rows exist; aggregate, or use where and limit"
        return {
            **table_answer(
                frame=rows,
                row_count=len(rows),
                units=units_of(rows),
                next_call=next_call,
            ),
            "more": are_more,
        }

    def reproduce(
        self,
        path: str,
        op: str | None = None,
        row: int | None = None,
        finding: str | None = None,
        top: int = 5,
    ) -> str:
        """A Python script that runs operations of the trace one by one; it needs PyTorch only.

        It has the `top` operations with the most GPU time, of those whose name matches the regular
        expression `op`, of row `row` of the table ops_unique_args, or behind the finding `finding`.
        """
        _check_range("top", top, _MOST_OPERATIONS)
        reproduction = self._traces.analyzer(path).reproduction(
            op, row=row, finding=finding, top=top
        )
        if not reproduction.count:
            reasons = "; ".join(refusal_sentences(reproduction.refusals))
            raise UsageError(f"no script can run these operations: {reasons}")
        if len(reproduction.script) > LONGEST_ANSWER:
            raise UsageError("the script is too long; request fewer operations (top)")
        return reproduction.script


def _present_tables(analyzer: TreePerfAnalyzer) -> dict[str, str]:
    """Return the description of each table that a trace has, by the name of the table."""
    options = ReportOptions()
    return {
        table.name: table.description
        for table in database.tables_of_report().values()
        if not table.why_absent(analyzer, options)
    }


class _NamedTable(NamedTuple):
    """A table as agents see it."""

    frame: pd.DataFrame
    units: dict[str, str]  #: the unit of each column


def _table(analyzer: TreePerfAnalyzer, name: str) -> _NamedTable:
    """Return a table of a trace.

    Raises:
        UsageError: there is no such table, or the trace has nothing for it.
    """
    table = find_table(name)
    frame = None
    if not table.why_absent(analyzer, ReportOptions()):
        frame = analyzer.table(name)
    if frame is None:
        raise UsageError(
            f"this trace has no data for the table {name}; open_trace lists the "
            "tables it has"
        )
    with_text_headers = frame.set_axis(list(map(str, frame.columns)), axis=1)
    units = table.units(frame)
    earlier_names = earlier_column_names(units, table.name)
    units_by_earlier_name = {
        earlier_names.get(column, column): unit for column, unit in units.items()
    }
    return _NamedTable(
        frame=earlier_table(with_text_headers, table.name), units=units_by_earlier_name
    )


def _has_value(cells: pd.Series, value: Plain) -> pd.Series:
    """Return True for each cell with a value, which may be written as text."""
    if value is None:
        return cells.isna()
    return (cells == value) | (cells.astype(str) == str(value))


def _sorted(frame: pd.DataFrame, sort: str) -> pd.DataFrame:
    """Sort rows by a column; `-column` is descending unless a column has that very name."""
    column = sort
    is_ascending = True
    if sort not in frame:
        column = sort.removeprefix("-")
        is_ascending = column == sort
    _check_column(column, frame)
    keys = frame[column]
    if not pd.api.types.is_numeric_dtype(keys):
        keys = keys.astype(str)
    order = keys.sort_values(ascending=is_ascending, kind="stable").index
    return frame.loc[order]


def _only_kernel(kernels: pd.DataFrame, name: str) -> Answer:
    """Return the row of the kernel with a name, or of the only one with a part of a name.

    Raises:
        UsageError: no kernel or several kernels match.
    """
    full_names = kernels["kernel_name"]
    matching = kernels[(full_names == name) | (kernels["kernel"] == name)]
    if not len(matching):
        matching = kernels[full_names.str.contains(name, regex=False)]
    if len(matching) != 1:
        raise _not_one_kernel(
            name=name,
            matching_names=matching["kernel_name"].tolist(),
            all_names=full_names.tolist(),
        )
    (kernel,) = rows_of(matching)
    return kernel


def _not_one_kernel(
    name: str, matching_names: Sequence[str], all_names: Sequence[str]
) -> UsageError:
    """Return the error that says which kernels match a name, or are called like it."""
    similar_names = matching_names
    if not matching_names:
        similar_names = get_close_matches(name, all_names, n=3, cutoff=0.4)
    examples = "; ".join(
        similar[:_NAME_SHOWN] for similar in similar_names[:_NAMES_SHOWN]
    )
    if matching_names:
        count = f"{len(matching_names)} kernels match {name!r}"
        return UsageError(f"{count}, such as {examples}; give more of the name")
    hint = "see open_trace"
    if similar_names:
        hint = f"the closest names: {examples}"
    return UsageError(f"there is no kernel {name[:_NAME_SHOWN]!r}; {hint}")


def _pattern_of_node(node: str) -> str:
    """Return the regular expression for operations with the name of a node of the tree.

    The tree merges steps into one node: `ProfilerStep#*` stands for `ProfilerStep#0` and so on.
    """
    any_number = re.escape(node).replace(re.escape("#*"), "#[0-9]+")
    return rf"\A(?:{any_number})\Z"


def _check_column(column: str, frame: pd.DataFrame) -> None:
    if column not in frame:
        raise UsageError(
            f"there is no column {column!r}; the columns are: "
            f"{', '.join(frame.columns)}"
        )


def _check_range(what: str, number: int, most: int) -> None:
    if not 1 <= number <= most:
        raise UsageError(f"{what} is {number}; expected 1 to {most}")
