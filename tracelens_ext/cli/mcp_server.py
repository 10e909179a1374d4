"""What agents may ask, as tools of the Model Context Protocol over stdio; answers are short JSON.

Each answer says what to ask next.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens_ext.analysis.operations.merged_tree import merged_tree
from tracelens_ext.analysis.operations.tree_table import tree_rows
from tracelens_ext.analysis.timeline.overview import advice, overview
from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.categorize import KernelCategorizer
from tracelens_ext.categorize.categorizer import explain
from tracelens_ext.cli.finding_blocks import finding_documents
from tracelens_ext.cli.load import recording_notes
from tracelens_ext.compare.comparison import compare
from tracelens_ext.compare.report import comparison_report, measured_for_comparison
from tracelens_ext.compatibility.earlier_names import (
    earlier_column_names,
    earlier_table,
)
from tracelens_ext.errors import TracelensError, UsageError
from tracelens_ext.export import database
from tracelens_ext.export.sql_query import query as ask
from tracelens_ext.findings.engine import tell_claims
from tracelens_ext.findings.summary import summary_sentence
from tracelens_ext.lazy import pd
from tracelens_ext.report.formats import nested_json_text, plain_column, plain_headers
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.registry import find_table
from tracelens_ext.report.tables.units import unit_of
from tracelens_ext.reproduce.script import refusal_sentences
from tracelens_ext.roofline.peaks import recognized_products
from tracelens_ext.settings import ReadingOptions, is_below
from tracelens_ext.simulation.scenarios import parse_change
from tracelens_ext.trace_files import is_likely_trace, only_trace

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

Answer = dict[str, object]
Plain = str | float | bool | None

_ABSOLUTE = re.compile(r"[/\\~]|[A-Za-z]:")
_MOST_ROWS = 200
_MOST_DEPTH = 100
_MOST_CHANGES = 50
_MOST_OPERATIONS = 50
# in memory; looked at in a folder
_MOST_TRACES = 4
_MOST_FILES = 10_000
_SQL_SECONDS = 20
_SQL_BYTES = 1_000_000


class Questions:
    """The tools, as methods, about the traces below some folders (resolved)."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._read = functools.lru_cache(_MOST_TRACES)(self._opened)

    def open_trace(self, path: str) -> Answer:
        """Read a trace: facts, what limits it, and which tables it has. Ask this first.

        `path` is relative to the folders of the server; '.', or a folder, lists its traces.
        """
        location = self._find(path)
        if location.is_dir():
            names = pd.DataFrame({"path": self._listed(location)})
            return _answer(
                frame=names.head(_MOST_ROWS),
                total=len(names),
                units={},
                following="open_trace(path) of one",
            )
        analyzer = self._analyzer(path)
        options = ReportOptions()
        judged = analyzer.findings()
        sheets = database.tables_of_report().values()
        verdict = [summary_sentence(judged)]
        verdict.extend(finding.title for finding in judged.findings[:5])
        return {
            "facts": dict(
                overview(
                    gpu_events=analyzer.work,
                    covered=analyzer.coverage,
                    products=recognized_products(analyzer.trace),
                )
            ),
            "recording": judged.recording_lines,
            "program": judged.program,
            "verdict": verdict,
            "notes": advice(analyzer.work, analyzer.coverage),
            "tables": {
                s.name: s.description
                for s in sheets
                if not s.why_absent(analyzer, options)
            },
            "next": (
                "findings(path): what would save the most time, with evidence and "
                "advice"
            ),
        }

    def findings(self, path: str, all: bool = False) -> Answer:  # noqa: A002  # its name
        """What would save the most wall time, why, where, how sure, what to change; times in ms.

        `all` also gives what only informs.
        """
        every_finding = self._analyzer(path).findings()
        chosen = [
            finding
            for finding in every_finding.findings
            if all or not finding.informs_only
        ]
        document = replace(every_finding, findings=chosen).as_dict()
        documents: Any = document["findings"]
        return {
            **document,
            "findings": finding_documents(chosen, documents),
            "left_out": len(every_finding.findings) - len(chosen),
            "units": {"…_ms": "ms", "…_percent": "%"},
            "next": (
                "table(path, name) for a name in `see`; what_if(path, ['finding:ID=0'])"
            ),
        }

    def with_notes(self, path: str, answer: Answer) -> Answer:
        """Return an answer about a trace with what was dropped or could not be computed, if any."""
        if self._find(path).is_dir():
            return answer
        notes: Any = answer.get("notes", ())
        every_note = dict.fromkeys(
            list(notes) + recording_notes(self._analyzer(path), for_json=True)
        )
        if not every_note:
            return answer
        return {**answer, "notes": list(every_note)}

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
        _check("limit", limit, _MOST_ROWS)
        frame, units = _table(self._analyzer(path), name)
        for column, value in (where or {}).items():
            cells = frame[_known(column, frame)]
            same = (cells == value) | (cells.astype(str) == str(value))
            frame = frame[cells.isna() if value is None else same]
        if sort is not None:
            column = sort if sort in frame else sort.removeprefix("-")
            cells = frame[_known(column, frame)]
            keys = cells if pd.api.types.is_numeric_dtype(cells) else cells.astype(str)
            frame = frame.loc[
                keys.sort_values(ascending=column == sort, kind="stable").index
            ]
        if columns is not None:
            frame = frame[[_known(column, frame) for column in columns]]
        more = (
            "sql(path, query) joins and aggregates tables; findings(path) says what "
            "to change"
        )
        if len(frame) > limit:
            more = (
                f"{len(frame) - limit:,} more rows; use where, sort, or limit (up to "
                f"{_MOST_ROWS})"
            )
        return _answer(
            frame=frame.head(limit), total=len(frame), units=units, following=more
        )

    def explain_kernel(self, path: str, name: str) -> Answer:
        """Which category a kernel has and why, its GPU time, and the operations that launch it.

        `name` is the kernel's as the trace or a table has it, or a part that only it has.
        """
        analyzer = self._analyzer(path)
        kernels, units = _table(analyzer, "kernels")
        matching = kernels[
            (kernels["kernel_name"] == name) | (kernels["kernel"] == name)
        ]
        if not len(matching):
            matching = kernels[kernels["kernel_name"].str.contains(name, regex=False)]
        if len(matching) != 1:
            raise _not_one(
                name=name,
                similar_names=matching["kernel_name"].tolist(),
                there=kernels["kernel_name"].tolist(),
            )
        (kernel,) = _rows(matching)
        pairs = analyzer.get_df_kernel_summary()
        own_pairs = pairs[pairs["kernel_name"] == kernel["kernel_name"]]
        launched = own_pairs[["cpu_op", "count", "total_time_ms", "% of GPU time"]]
        full = str(kernel["kernel_name"])
        op = str(launched["cpu_op"].iloc[0])
        because = explain(analyzer.categorizer or KernelCategorizer.create(), full, op)
        following = (
            "tree(path, node=cpu_op) shows where it runs; findings(path) says what to "
            "change"
        )
        return {
            **kernel,
            "because": None if because.winner is None else asdict(because.winner),
            "would_match_too": [asdict(match) for match in because.others[:5]],
            **_answer(
                frame=launched.head(20),
                total=len(launched),
                units=units,
                following=following,
            ),
        }

    def tree(self, path: str, node: str | None = None, depth: int = 3) -> Answer:
        """The call tree with GPU time: the whole, or what is below the operations called `node`.

        `depth` is in levels; of more than 200 nodes those with the most GPU time are given.
        """
        _check("depth", depth, _MOST_DEPTH)
        op = None
        if node is not None:  # merged steps are called ProfilerStep#*
            op = rf"\A(?:{re.escape(node).replace(re.escape('#*'), '#[0-9]+')})\Z"
        tree = merged_tree(self._analyzer(path).work, op=op)
        if op is not None and not len(tree):
            raise UsageError(
                f"no operation called {node!r} launches GPU work; see tree(path)"
            )
        kept = tree.kept(depth)
        kept_first = np.where(kept, -tree.busy_ns, 1)
        longest = np.argsort(kept_first, kind="stable")[:_MOST_ROWS]
        is_among_longest = np.zeros_like(kept)
        is_among_longest[longest] = True
        rows = tree_rows(tree, kept & is_among_longest)
        units = {"busy_time_ms": "ms"}
        more = (
            "tree(path, node, depth) with a name from this answer; "
            "explain_kernel(path, name) for a kernel"
        )
        return _answer(frame=rows, total=int(kept.sum()), units=units, following=more)

    def compare(self, path: str, other: str) -> Answer:
        """What changed from the first trace to the other: time, categories, operations, kernels.

        `A_` is the first trace; the largest changes come first; times are in ms.
        """
        both = [self._analyzer(trace_path) for trace_path in (path, other)]
        report = comparison_report(
            compare([measured_for_comparison(trace_path) for trace_path in both])
        )
        return {
            "facts": dict(report.facts),
            "notes": report.notes,
            "tables": {
                name: _rows(frame.head(15)) for name, frame in report.sheets.items()
            },
            "units": {"…_ms": "ms", "…_percent": "%"},
            "next": "findings or table of each of the two traces, for the reasons",
        }

    def what_if(self, path: str, changes: list[str]) -> Answer:
        """The wall time in ms if something took longer or shorter, by a replay of the trace.

        A change is NAME=FACTOR; NAME is a category, kernels, kernel:REGEX, op:NAME, copies,
        communication, launch, gaps, host, host:NAME, or finding:ID (=0).
        """
        _check("the number of changes", len(changes), _MOST_CHANGES)
        parsed_changes = [parse_change(text) for text in changes]
        analyzer = self._analyzer(path)
        simulation = analyzer.simulation()
        if any("finding:" in change for change in changes):
            tell_claims(simulation, analyzer.findings().findings)
        frame = simulation.what_if(parsed_changes)
        frame = earlier_table(frame, "what_if")
        return {
            **_answer(
                frame=frame,
                total=len(frame),
                units=_units(frame),
                following="findings(path): how to get there",
            ),
            "window": simulation.window(),
            "model": simulation.model(),
            "critical_path": _rows(
                earlier_table(
                    simulation.critical_path_summary().head(20), "critical_path_summary"
                )
            ),
        }

    def sql(self, path: str, query: str) -> Answer:
        """Up to 200 rows of one SELECT about the events, or any table that open_trace names."""
        limits = {"limit": _MOST_ROWS, "max_value_bytes": _SQL_BYTES}
        rows, more = ask(self._analyzer(path), query, timeout=_SQL_SECONDS, **limits)
        note = (
            "more rows exist; aggregate, or use where and limit"
            if more
            else "findings(path)"
        )
        return {
            **_answer(frame=rows, total=len(rows), units=_units(rows), following=note),
            "more": more,
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
        _check("top", top, _MOST_OPERATIONS)
        reproduction = self._analyzer(path).reproduction(
            op, row=row, finding=finding, top=top
        )
        if not reproduction.count:
            reasons = "; ".join(refusal_sentences(reproduction.refusals))
            raise UsageError(f"no script can run these operations: {reasons}")
        if len(reproduction.script) > LONGEST:
            raise UsageError("the script is too long; request fewer operations (top)")
        return reproduction.script

    def _find(self, path: str) -> Path:
        """The trace, or the folder, that a relative path names; never one behind a link out."""
        if "\0" in path or _ABSOLUTE.match(path) or ".." in re.split(r"[/\\]", path):
            remedy = (
                "only paths relative to the server's folders are allowed, without .. "
                "and ~"
            )
            raise UsageError(f"{path!r}: {remedy}")
        for folder in self._folders:
            file = folder / path
            try:
                for _ in range(2):  # of a folder with one trace also that
                    if not is_below(file, self._folders):
                        raise UsageError(f"{path!r}: is outside the server's folders")
                    file = only_trace(file.resolve())
                if file.exists():
                    return file
            except (
                OSError,
                RuntimeError,
                ValueError,
            ):  # too long, or links in a circle
                continue
        raise UsageError(f"{path}: no such file; open_trace('.') lists the traces")

    def _listed(self, folder: Path) -> list[str]:
        """The traces in a folder and below it, by the paths that name them."""
        root = next(root for root in self._folders if is_below(folder, [root]))
        seen = islice(folder.rglob("*"), _MOST_FILES)
        files = [path for path in seen if is_likely_trace(path)]
        inside = [file for file in files if is_below(file, self._folders)]
        return sorted(file.relative_to(root).as_posix() for file in inside)

    def _analyzer(self, path: str) -> TreePerfAnalyzer:
        """A trace, read once for as long as its file stays as it is."""
        state = (file := self._find(path)).stat()
        return self._read(file, state.st_mtime_ns, state.st_size)

    def _opened(self, path: Path, *_: int) -> TreePerfAnalyzer:
        reading = ReadingOptions(folders=self._folders)
        return TreePerfAnalyzer(
            path, use_kernel_name_categories=True, cache=False, reading=reading
        )


def _table(
    analyzer: TreePerfAnalyzer, name: str
) -> tuple[pd.DataFrame, dict[str, str]]:
    table = find_table(name)
    if (
        table.why_absent(analyzer, ReportOptions())
        or (frame := analyzer.table(name)) is None
    ):
        raise UsageError(
            f"this trace has no data for the table {name}; open_trace lists the "
            "tables it has"
        )
    named = frame.set_axis(list(map(str, frame.columns)), axis=1)
    units = table.units(frame)
    earlier_names = earlier_column_names(units, table.name)
    units_of_names = {
        earlier_names.get(column, column): unit for column, unit in units.items()
    }
    return earlier_table(named, table.name), units_of_names


def _rows(frame: pd.DataFrame) -> list[Answer]:
    headers = plain_headers(frame)
    columns = (plain_column(column) for _, column in frame.items())
    return [dict(zip(headers, row, strict=True)) for row in zip(*columns, strict=True)]


def _answer(
    frame: pd.DataFrame, total: int, units: Mapping[str, str], following: str
) -> Answer:
    """Rows of a table, how many there are in all, the units of the columns, what to ask next."""
    named = {name: units[name] for name in map(str, frame.columns) if units.get(name)}
    return {"rows": _rows(frame), "total": total, "units": named, "next": following}


def _units(frame: pd.DataFrame) -> dict[str, str]:
    return {name: unit_of(name).symbol for name in map(str, frame.columns)}


def _known(column: str, frame: pd.DataFrame) -> str:
    if column not in frame:
        raise UsageError(
            f"there is no column {column!r}; the columns are: "
            f"{', '.join(frame.columns)}"
        )
    return column


def _check(what: str, number: int, most: int) -> None:
    if not 1 <= number <= most:
        raise UsageError(f"{what} is {number}; expected 1 to {most}")


def _not_one(
    name: str, similar_names: Sequence[str], there: Sequence[str]
) -> UsageError:
    near = similar_names or get_close_matches(name, there, n=3, cutoff=0.4)
    some = "; ".join(similar[:200] for similar in near[:5])
    if similar_names:
        many = f"{len(similar_names)} kernels match {name!r}"
        return UsageError(f"{many}, such as {some}; give more of the name")
    hint = f"the closest names: {some}" if near else "see open_trace"
    return UsageError(f"there is no kernel {name[:200]!r}; {hint}")


# characters of an answer, and of an error
LONGEST = 60_000
_LONGEST_LINE = 2000
#: Characters of a text and entries of a list that stay, until the answer is short enough.
_CUTS = ((4000, 200), (1000, 100), (400, 50), (200, 25), (100, 12), (60, 6))
_TOOLS = (
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
#: What the types of arguments are called.
_MEANT = {
    "str": "a string",
    "int": "an integer",
    "bool": "true or false",
    "list[str]": "a list of strings",
    "dict[str, Plain]": "an object that maps columns to a string, number, boolean or null",
}
_INSTRUCTIONS = (
    "Where did the GPU time of a trace go, and what would save the most? Call "
    "open_trace('.') to list the traces, then open_trace(path), then findings(path). "
    "Every answer names useful next calls."
)


def make_server(folders: Sequence[Path]) -> MCPServer[Any]:
    """The server of the traces below some folders."""
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import CallToolResult, TextContent
    except ImportError:
        message = (
            "this command needs version 2 of the package mcp; run: pip install "
            "'tracelens-ext[mcp]'"
        )
        raise UsageError(message) from None

    class Server(MCPServer[Any]):
        """Errors are the program's one line."""

        async def call_tool(
            self,
            name: str,
            arguments: dict[str, Any],
            context: Any = None,  # noqa: ANN401
        ) -> Any:  # noqa: ANN401
            try:
                _check_names(name, arguments)
                return await super().call_tool(name, arguments, context)
            except (TracelensError, ToolError) as error:
                line = _line(name, error.__cause__ or error)
            return CallToolResult(
                content=[TextContent(type="text", text=line)], is_error=True
            )

    if none := [folder for folder in folders if not folder.is_dir()]:
        raise UsageError(
            f"{none[0]}: is not a folder; give folders that contain traces"
        )
    questions = Questions([folder.resolve() for folder in folders])
    server = Server("tracelens-ext", instructions=_INSTRUCTIONS, log_level="ERROR")
    one_at_a_time = threading.Lock()

    def as_text(tool: Callable[..., Answer | str]) -> Callable[..., str]:
        @functools.wraps(tool)
        def call(**arguments: Any) -> str:  # noqa: ANN401  # the tool's own
            with one_at_a_time:
                answer = tool(**arguments)
                if isinstance(answer, str):
                    return answer
                return answer_text(questions.with_notes(arguments["path"], answer))

        return call

    for name in _TOOLS:
        tool = getattr(questions, name)
        about = f"{tool.__doc__}\n{database.SCHEMA}" if name == "sql" else tool.__doc__
        server.add_tool(
            as_text(tool), name=name, description=about, structured_output=False
        )
    return server


def _arguments(tool: str) -> dict[str, str]:
    """What a tool takes, and what each must be."""
    _, *taken = inspect.signature(getattr(Questions, tool)).parameters.values()
    return {
        parameter.name: _MEANT[str(parameter.annotation).removesuffix(" | None")]
        for parameter in taken
    }


def _check_names(tool: str, arguments: Mapping[str, object]) -> None:
    if tool not in _TOOLS:
        raise UsageError(
            f"there is no tool {tool[:200]!r}; the tools are: {', '.join(_TOOLS)}"
        )
    if unknown := sorted(set(arguments) - set(_arguments(tool))):
        taken = ", ".join(_arguments(tool))
        raise UsageError(
            f"{tool} has no argument {unknown[0][:200]!r}; it takes {taken}"
        )


def _line(tool: str, error: BaseException) -> str:
    """What was wrong, in one line; of a fault of the program no more than that there was one."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        first = error.errors()[0]
        meant = _arguments(tool)
        name = str(first["loc"][0])
        verb = "contains" if len(first["loc"]) > 1 else "is"
        wrong = (
            "is missing"
            if first["type"] == "missing"
            else f"{verb} {first['input']!r:.200}"
        )
        message = f"{tool}: the argument {name} {wrong}; expected {meant[name]}"
    elif isinstance(error, TracelensError):
        message = str(error)
    elif isinstance(error, MemoryError):
        message = "there is not enough memory for this; use a smaller trace"
    else:
        logging.getLogger(__name__).error("%s failed", tool, exc_info=error)
        message = (
            f"{tool}: internal error: {type(error).__name__}; this is a bug: please "
            "report it"
        )
    return " ".join(message.split())[:_LONGEST_LINE]


def answer_text(answer: Answer) -> str:
    """An answer as JSON; of one that is too long the beginnings of texts and lists, saying so."""
    text = nested_json_text(answer, indent=None)
    for characters, entries in _CUTS:
        if len(text) <= LONGEST:
            return text
        kept = {
            name: _cut(value, characters, entries) for name, value in answer.items()
        }
        limits = (
            f"to {characters:,} characters per string and {entries} entries per list"
        )
        kept["cut"] = (
            f"{limits}; request less (columns, where, limit, depth) to see the rest"
        )
        text = nested_json_text(kept, indent=None)
    if len(text) > LONGEST:
        raise UsageError("the answer is too long; request fewer columns or rows")
    return text


def _cut(value: object, characters: int, entries: int) -> object:
    if isinstance(value, str):
        return value if len(value) <= characters else f"{value[:characters]}…"
    if isinstance(value, Mapping):
        some = list(value.items())[:entries]
        return {
            name[:characters]: _cut(part, characters, entries) for name, part in some
        }
    if isinstance(value, list | tuple):
        return [_cut(part, characters, entries) for part in value[:entries]]
    return value
