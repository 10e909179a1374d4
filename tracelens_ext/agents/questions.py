"""The questions that an agent may ask; an answer is one text of JSON and says what to ask next."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import asdict
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.agents.answers import answer_text, table_answer
from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.errors import UsageError
from tracelens_ext.export.database import table_of_report, tables_of_report
from tracelens_ext.lazy import pd
from tracelens_ext.report.units import unit_of
from tracelens_ext.settings import reading_with
from tracelens_ext.trace import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tracelens_ext.agents.folders import Folders

Plain = str | float | bool | None

_MOST_ROWS, _MOST_DEPTH, _MOST_CHANGES = 200, 100, 50
_MOST_TRACES = 4  # in memory
_SQL_SECONDS, _SQL_BYTES = 20, 1_000_000
_SHARE = "% of GPU time"


class Questions:
    """The tools, as methods.

    Args:
        folders: whose traces may be asked about.
    """

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._read: OrderedDict[tuple[Path, int, int], TreePerfAnalyzer] = OrderedDict()

    def open_trace(self, path: str) -> str:
        """Read a trace: facts, what limits it, and which tables it has. Ask this first.

        `path` is relative to the folders of the server; '.', or a folder, lists its traces.
        """
        from tracelens_ext.findings.table import summary_sentence
        from tracelens_ext.sheets.options import ReportOptions
        from tracelens_ext.timeline.overview import advice, overview

        if (found := self._folders.find(path)).is_dir():
            named = self._folders.listed(found)
            frame = pd.DataFrame({"path": named[:_MOST_ROWS]})
            return answer_text(table_answer(frame, len(named), {}, "open_trace(path) of one"))
        analyzer, options = self._analyzer(path), ReportOptions()
        judged = analyzer.findings()
        sheets = tables_of_report().values()
        there = {s.name: s.shows for s in sheets if not s.why_absent(analyzer, options)}
        return answer_text(
            {
                "facts": dict(overview(analyzer.work, analyzer.coverage)),
                "recording": judged.recording_lines,
                "program": judged.program,
                "verdict": [summary_sentence(judged), *(f.title for f in judged.findings[:5])],
                "notes": advice(analyzer.work, analyzer.coverage),
                "tables": there,
                "next": "findings(path): what would save the most, with evidence and advice",
            }
        )

    def findings(self, path: str, all: bool = False) -> str:  # noqa: A002  # its name
        """What would save the most wall time, why, where, how sure, what to change; times in ms.

        `all` also gives what only informs and the places of all sizes.
        """
        found = self._analyzer(path).findings()
        document = found.as_dict()
        if not all:
            saving = [each for each in document["findings"] if each["claimed_ms"]]  # type: ignore[attr-defined]
            document["left_out"] = len(found.findings) - len(saving)
            document["findings"] = [
                {**each, "where": {kind: at[:5] for kind, at in each["where"].items()}}
                for each in saving
            ]
        asked = "table(path, name) for a name in `see`; what_if(path, ['finding:ID=0']) to check"
        return answer_text({**document, "units": {"…_ms": "ms", "…_percent": "%"}, "next": asked})

    def table(
        self,
        path: str,
        name: str,
        columns: list[str] | None = None,
        where: dict[str, Plain] | None = None,
        sort: str | None = None,
        limit: int = 20,
    ) -> str:
        """Rows of a table that open_trace names, with the units of its columns.

        `where` is column → value, all of which a row must have; `sort` a column, `-column` for
        descending; `limit` at most 200.
        """
        _check("limit", limit, _MOST_ROWS)
        frame, units = _table(self._analyzer(path), name)
        frame = frame.set_axis([str(column) for column in frame.columns], axis=1)
        for column, value in (where or {}).items():
            cells = frame[_known(column, frame)]
            equal = (
                cells.isna()
                if value is None
                else (cells == value) | (cells.astype(str) == str(value))
            )
            frame = frame[equal]
        if sort is not None:
            column = sort if sort in frame else sort.removeprefix("-")
            cells = frame[_known(column, frame)]
            keys = cells if pd.api.types.is_numeric_dtype(cells) else cells.astype(str)
            frame = frame.loc[keys.sort_values(ascending=column == sort, kind="stable").index]
        if columns is not None:
            frame = frame[[_known(column, frame) for column in columns]]
        more = "sql(path, query) joins and sums tables; findings(path) says what to change"
        if len(frame) > limit:
            more = f"{len(frame) - limit:,} more rows: where, sort, or limit up to {_MOST_ROWS}"
        return answer_text(table_answer(frame.head(limit), len(frame), units, more))

    def explain_kernel(self, path: str, name: str) -> str:
        """Which category a kernel has and why, its GPU time, and the operations that launch it.

        `name` is the kernel's as the trace or a table has it, or a part that only it has.
        """
        from tracelens_ext.categorize.explain import explain
        from tracelens_ext.kernel_names import short_name

        analyzer = self._analyzer(path)
        work, trace = analyzer.work, analyzer.trace
        names = {trace.names[code]: code for code in np.unique(work.name).tolist()}
        part = re.compile(".*".join(map(re.escape, name.split("…"))), re.DOTALL)
        same = [each for each in names if part.search(each) or part.fullmatch(short_name(each))]
        same = [name] if name in names else same
        if len(same) != 1:
            raise UsageError(_not_one("kernel", name, same, names))
        mine = work.name == names[same[0]]
        duration, total = work.end - work.start, max(int((work.end - work.start).sum()), 1)
        code, labels = work.tree.cpu_op_label_of_gpu
        operations = pd.DataFrame(
            {"operation": [labels[each] for each in code[mine].tolist()], "ns": duration[mine]}
        )
        launched = operations.groupby("operation")["ns"].agg(count="size", ns="sum").reset_index()
        launched = launched.sort_values("ns", ascending=False, kind="stable")
        launched["gpu_time_ms"] = launched.pop("ns") / NS_PER_MS
        assert analyzer.categorizer is not None  # noqa: S101  # categories are on
        because = explain(analyzer.categorizer, same[0], str(launched["operation"].iloc[0]) or None)
        share = 100.0 * int(duration[mine].sum()) / total
        return answer_text(
            {
                "name": same[0],
                "category": because.category,
                "because": None if because.winner is None else asdict(because.winner),
                "would_match_too": [asdict(match) for match in because.others[:5]],
                "gpu_time_ms": int(duration[mine].sum()) / NS_PER_MS,
                _SHARE: share,
                "count": int(mine.sum()),
                **table_answer(
                    launched.head(20),
                    len(launched),
                    {"count": "GPU events", "gpu_time_ms": "ms"},
                    "tree(path, node=operation) for where it is; findings(path) for what to change",
                ),
            }
        )

    def tree(self, path: str, node: str | None = None, depth: int = 3) -> str:
        """The call tree with GPU time: the whole, or what is below the operations called `node`.

        `depth` is in levels; of more than 200 nodes those with the most GPU time are given.
        """
        from tracelens_ext.operations.tree_table import merged_tree, tree_rows

        _check("depth", depth, _MOST_DEPTH)
        op = None
        if node is not None:  # merged steps are called ProfilerStep#*
            op = rf"\A(?:{re.escape(node).replace(re.escape('#*'), '#[0-9]+')})\Z"
        tree = merged_tree(self._analyzer(path).work, op=op)
        if op is not None and not len(tree):
            raise UsageError(f"no operation is called {node!r} and has GPU work; see tree(path)")
        kept = tree.kept(depth)
        largest = np.argsort(np.where(kept, -tree.busy_ns, 1), kind="stable")[:_MOST_ROWS]
        some = np.zeros_like(kept)
        some[largest] = True
        units = {"busy_time_ms": "ms", "% of GPU busy time": "%"}
        following = "tree(path, node, depth) of a name here; explain_kernel(path, name) of a kernel"
        rows = tree_rows(tree, kept & some)
        return answer_text(table_answer(rows, int(kept.sum()), units, following))

    def compare(self, path: str, other: str) -> str:
        """What changed from the first trace to the other: time, categories, operations, kernels.

        `A_` is the first trace; the largest changes come first; times are in ms.
        """
        from tracelens_ext.compare.comparison import compare, measure
        from tracelens_ext.compare.findings import with_findings
        from tracelens_ext.compare.report import comparison_report

        both = [self._analyzer(each) for each in (path, other)]
        measured = [with_findings(measure(each.work), each.findings()) for each in both]
        report = comparison_report(compare(measured, per_iteration=None))
        tables = {
            name: table_answer(frame.head(15), len(frame), _units(frame.columns), "")
            for name, frame in report.sheets.items()
        }
        for each in tables.values():
            del each["next"]
        following = "findings or table of the one trace and of the other, for why"
        facts = {"facts": dict(report.facts), "notes": report.notes}
        return answer_text({**facts, "tables": tables, "next": following})

    def what_if(self, path: str, changes: list[str]) -> str:
        """The wall time in ms if something took longer or shorter, by a replay of the trace.

        A change is NAME=FACTOR; NAME is a category, kernels, kernel:REGEX, op:NAME, copies,
        communication, launch, gaps, host, host:NAME, or finding:ID (=0).
        """
        from tracelens_ext.findings.detect import tell_claims
        from tracelens_ext.replay.changes import parse_change

        _check("the number of changes", len(changes), _MOST_CHANGES)
        asked = [parse_change(text) for text in changes]
        analyzer = self._analyzer(path)
        simulation = analyzer.simulation()
        if any("finding:" in each for each in changes):
            tell_claims(simulation, analyzer.findings().findings)
        frame = simulation.what_if(asked)
        following = "findings(path): how to get there"
        answer = table_answer(frame, len(frame), _units(frame.columns), following)
        path_table = simulation.critical_path_summary().head(20)
        about = {"window": simulation.window(), "model": simulation.model()}
        return answer_text({**answer, **about, "critical_path": path_table.to_dict("records")})

    def sql(self, path: str, query: str) -> str:
        """Up to 200 rows of one SELECT about the events, or any table that open_trace names."""
        from tracelens_ext.export.query import query as ask

        rows, more = ask(
            self._analyzer(path), query, limit=_MOST_ROWS, timeout=_SQL_SECONDS, longest=_SQL_BYTES
        )
        said = "there are more rows: sum, or use where and limit" if more else "findings(path)"
        answer = table_answer(rows, len(rows), _units(rows.columns), said)
        return answer_text({**answer, "more": more})

    def _analyzer(self, path: str) -> TreePerfAnalyzer:
        """A trace, read once for as long as its file stays as it is."""
        found = self._folders.find(path)
        if found.is_dir():
            raise UsageError(f"{path!r} is a folder; open_trace of it lists its traces")
        state = found.stat()
        key = (found, state.st_mtime_ns, state.st_size)
        if key not in self._read:
            # Reports of Nsight Systems would have to be converted, which writes.
            with reading_with(folders=self._folders.roots, nsys="(not here)"):
                analyzer = TreePerfAnalyzer(found, use_kernel_name_categories=True, cache=False)
            self._read[key] = analyzer
            if len(self._read) > _MOST_TRACES:
                self._read.popitem(last=False)
        self._read.move_to_end(key)
        return self._read[key]


def _table(analyzer: TreePerfAnalyzer, name: str) -> tuple[pd.DataFrame, dict[str, str]]:
    """A table of the report and the units of its columns."""
    sheets = tables_of_report()
    if name not in sheets:
        raise UsageError(_not_one("table", name, (), sheets))
    frame = table_of_report(analyzer, sheets[name])
    if frame is None:
        raise UsageError(f"this trace has nothing for the table {name}; open_trace names others")
    return frame, sheets[name].units(frame)


def _units(columns: Iterable[object]) -> dict[str, str]:
    return {name: unit_of(name).symbol for name in map(str, columns)}


def _known(column: str, frame: pd.DataFrame) -> str:
    if column not in frame:
        raise UsageError(f"there is no column {column!r}; there are: {', '.join(frame.columns)}")
    return column


def _check(what: str, number: int, most: int) -> None:
    if not 1 <= number <= most:
        raise UsageError(f"{what} is {number}; expected 1 to {most}")


def _not_one(kind: str, name: str, found: Sequence[str], there: Iterable[str]) -> str:
    if found:
        some = "; ".join(each[:200] for each in found[:5])
        return f"{len(found)} {kind}s are called {name!r}, such as {some}; say more of the name"
    near = get_close_matches(name, list(there), n=3, cutoff=0.4)
    said = f"the nearest: {'; '.join(each[:200] for each in near)}" if near else "see open_trace"
    return f"there is no {kind} {name[:200]!r}; {said}"
