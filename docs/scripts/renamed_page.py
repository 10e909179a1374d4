"""`docs/renamed.md`, from the table of renamed names; run this to bring the page up to date."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from tracelens_ext.compatibility.renamed_names import RENAMED_NAMES, Kind, RenamedName

PAGE = Path(__file__).resolve().parents[1] / "renamed.md"

_HEAD = """# Renamed names

These names of version 0.1 have changed. `docs/scripts/renamed_page.py` writes this page.

The old names work for one release:

* **Output for programs.** If the environment variable `TRACELENS_EXT_NAMES` is `0.1`, then JSON,
  CSV, Parquet, the sheets of workbooks, SQL, MCP and the results of `fleet` have the old names of
  tables, columns, fields and values. Pages for browsers, Markdown and the terminal have the new
  ones. The data frames that Python methods return have the new names, too;
  `tracelens_ext.compatibility.earlier_names.earlier_table(frame, table)` renames one.
* **Options.** An old option still works, and one line on standard error names the new one.
* **Python names.** Old names of methods, arguments and attributes still work with a
  `DeprecationWarning` that names the new one.
* **Files.** Results of `fleet` and reports that were written with old names can be read.

Tables and columns that reproduce those of another tool, such as `gpu_timeline`, `ops_summary` and
`kernel_summary` of TraceLens, keep the names of that tool.
"""
_TITLES = {
    Kind.TABLE: "Tables",
    Kind.PART: "Parts of the results of `fleet`",
    Kind.COLUMN: "Columns",
    Kind.FIELD: "JSON fields",
    Kind.VALUE: "Values",
    Kind.OPTION: "Options",
    Kind.METHOD: "Methods of `TreePerfAnalyzer`",
    Kind.ARGUMENT: "Arguments of Python functions",
    Kind.ATTRIBUTE: "Attributes of Python classes",
    Kind.GROUP: "Groups of commands",
}
_WHERE = {
    Kind.COLUMN: "table",
    Kind.FIELD: "within",
    Kind.VALUE: "column or field",
    Kind.OPTION: "command",
    Kind.ATTRIBUTE: "class",
}


def page_text() -> str:
    """Return the page."""
    sections = groupby(RENAMED_NAMES, key=lambda renamed: renamed.kind)
    parts = [_HEAD]
    parts.extend("\n".join(_section(kind, names)) for kind, names in sections)
    return "\n".join(parts)


def _section(kind: Kind, names: Iterable[RenamedName]) -> Iterator[str]:
    """Yield the lines of a section."""
    yield f"## {_TITLES[kind]}"
    yield ""
    if kind is Kind.COLUMN:
        yield "`*` stands for any text, such as the letter of a trace or a category."
        yield ""
    head = ["old", "new"]
    if kind in _WHERE:
        head.append(_WHERE[kind])
    yield _row(head)
    yield _row(["---"] * len(head))
    for renamed in names:
        cells = [f"`{renamed.old}`", f"`{renamed.new}`"]
        if kind in _WHERE:
            cells.append(", ".join(f"`{name}`" for name in renamed.where) or "all")
        yield _row(cells)
    yield ""


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
