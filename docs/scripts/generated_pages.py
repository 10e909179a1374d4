"""What the documentation takes from the program itself when it is built, so that it is never stale.

`mkdocs.yml` names this file as a hook. A page holds markers, which are invisible where Markdown is
shown without a build:

* `<!-- commands -->`: every command with its arguments, options and examples;
* `<!-- formats -->`: what `tracelens-ext formats` prints;
* `<!-- in the repository -->` to `<!-- end -->`: a remark that the site does not need;
* `<!-- index of tables -->`: when each table is in a report, and the method that returns it;
* `<!-- columns: NAME -->`: the columns of a table;
* `<!-- other tables -->`: a section for each table whose columns the page does not have elsewhere.

Files outside `docs/` that readers want too, such as the change log, become pages of the site, and
links are rewritten to match.
"""

from __future__ import annotations

import contextlib
import html
import io
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tracelens_ext.cli.app import build_command, offered_commands
from tracelens_ext.cli.careful_command import help_record
from tracelens_ext.cli.commands.formats import formats
from tracelens_ext.cli.options import READING_NAMES
from tracelens_ext.hooks import Command, load_registry
from tracelens_ext.report.tables.registry import offered_tables

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

    from tracelens_ext.report.tables.table import Table

ROOT = Path(__file__).resolve().parents[2]

#: Files of the repository that are pages of the site too: path → path below `docs/`.
PAGES_FROM_ELSEWHERE = {
    "tracelens_ext/findings/findings.md": "reference/findings.md",
    "CHANGELOG.md": "reference/changelog.md",
    "SECURITY.md": "reference/security.md",
    "CONTRIBUTING.md": "background/contributing.md",
    "benchmarks/README.md": "background/speed.md",
}

COMMANDS_MARKER = "<!-- commands -->"
FORMATS_MARKER = "<!-- formats -->"
INDEX_MARKER = "<!-- index of tables -->"
OTHER_TABLES_MARKER = "<!-- other tables -->"
REPOSITORY_REMARK = re.compile(
    r"<!-- in the repository -->.*?<!-- end -->\n", re.DOTALL
)
COLUMNS_MARKER = re.compile(r"<!-- columns: (.+?) -->")

COLUMNS_HEAD = "| column | unit | meaning |\n|---|---|---|\n"
INDEX_HEAD = "| table | in a report when | method |\n|---|---|---|\n"
READING_SECTION = "Options for reading traces"

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_CODE_BLOCK = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def built_in_tables() -> list[Table]:
    """Return the tables of this distribution, in the order of the report."""
    return [offered.item for offered in offered_tables(load_registry(plugins=False))]


def built_in_commands() -> dict[str, Command]:
    """Return the commands of this distribution by name."""
    return offered_commands(load_registry(plugins=False))


def expanded(text: str, tables: Sequence[Table]) -> str:
    """Return the Markdown of a page with what its markers stand for.

    Raises:
        ValueError: a marker names a table that does not exist.
    """
    text = REPOSITORY_REMARK.sub("", text)
    if COMMANDS_MARKER in text:
        text = text.replace(COMMANDS_MARKER, commands_reference())
    if FORMATS_MARKER in text:
        text = text.replace(FORMATS_MARKER, formats_reference())
    text = text.replace(INDEX_MARKER, index_of_tables(tables))
    tables_by_name = {table.name: table for table in tables}
    described = COLUMNS_MARKER.findall(text)
    unknown = sorted(set(described) - set(tables_by_name))
    if unknown:
        raise ValueError(f"no table is called {', '.join(unknown)}; correct the marker")
    text = COLUMNS_MARKER.sub(lambda m: table_of_columns(tables_by_name[m[1]]), text)
    if OTHER_TABLES_MARKER in text:
        others = [table for table in tables if table.name not in described]
        sections = "\n".join(section_of_table(table) for table in others)
        text = text.replace(OTHER_TABLES_MARKER, sections)
    return text


def formats_reference() -> str:
    """Return what `tracelens-ext formats` prints, as a block of text."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        formats()
    return f"```text\n{printed.getvalue()}```"


# Tables.


def index_of_tables(tables: Sequence[Table]) -> str:
    """Return when each table is in a report, and the method that returns it."""
    rows = []
    for table in tables:
        conditions = [condition.words for condition in table.requires]
        if table.enabled_by == "tables":
            conditions.append(f'`tables="{table.name}"`')
        elif table.enabled_by:
            conditions.append(f"`{table.enabled_by}=True`")
        link = f"[`{table.name}`](#{table.name.lower()})"
        rows.append(_row(link, "; ".join(conditions), f"`{table.call}`"))
    return INDEX_HEAD + "".join(rows)


def section_of_table(table: Table) -> str:
    """Return the section about a table: what it shows, and its columns."""
    return f"## `{table.name}`\n\n{table.description}.\n\n{table_of_columns(table)}"


def table_of_columns(table: Table) -> str:
    """Return the columns of a table; neighbors with one meaning share a row."""
    rows: list[tuple[list[str], str, str]] = []
    for column in table.columns:
        name = f"`{column.name}`"
        if rows and rows[-1][1:] == (column.shown_unit, column.meaning):
            rows[-1][0].append(name)
        else:
            rows.append(([name], column.shown_unit, column.meaning))
    return COLUMNS_HEAD + "".join(
        _row(", ".join(names), unit, meaning) for names, unit, meaning in rows
    )


def _row(*cells: str) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells) + "\n"


# Commands.


def commands_reference() -> str:
    """Return a section for each command, by the groups of `--help`, and the shared options."""
    commands = built_in_commands()
    groups = list(dict.fromkeys(command.group for command in commands.values()))
    parts = []
    for group in groups:
        parts.append(f"## {group}\n")
        for command in commands.values():
            if command.group == group:
                parts.extend(_sections_of_command(command))
    parts.append(f"## {READING_SECTION}\n")
    parts.append("Every command that reads traces has these.\n")
    parts.append(_table_of_options(_reading_parameters()))
    return "\n".join(parts)


def _sections_of_command(command: Command) -> Iterator[str]:
    made = build_command(command)
    yield from _section_of(made, f"tracelens-ext {command.name}", level=3)
    for name, part in getattr(made, "commands", {}).items():
        yield from _section_of(part, f"tracelens-ext {command.name} {name}", level=4)


def _section_of(made: Any, name: str, level: int) -> Iterator[str]:  # noqa: ANN401  # click's
    """Yield the parts of the section about a command or about one command of a group."""
    context = typer.Context(made, info_name=name)
    yield f"{'#' * level} `{name.removeprefix('tracelens-ext ')}`\n"
    yield from _paragraphs(made.help or "")
    usage = " ".join(made.collect_usage_pieces(context))
    yield f"```text\n{name} {usage}\n```\n"
    arguments = []
    options = []
    reads_traces = False
    for parameter in made.get_params(context):
        if parameter.name in READING_NAMES:
            reads_traces = True
        elif parameter.param_type_name == "argument":
            arguments.append(parameter)
        else:
            options.append(parameter)
    for heading, parameters in (("argument", arguments), ("option", options)):
        yield _table_of_options([(made, each) for each in parameters], heading)
    if reads_traces:
        anchor = READING_SECTION.lower().replace(" ", "-")
        yield f"It also has the [{READING_SECTION.lower()}](#{anchor}).\n"
    if getattr(made, "help_sections", None):
        for title, rows in made.help_sections().items():
            yield f"**{escaped(title)}**\n"
            head = "| name | meaning |\n|---|---|\n"
            body = [_row(f"`{key}`", escaped(value)) for key, value in rows]
            yield head + "".join(body)
    yield from _paragraphs(made.epilog or "")


def _reading_parameters() -> list[tuple[Any, Any]]:
    """Return the options about reading, each with a command that has it."""
    found: dict[str, tuple[Any, Any]] = {}
    for command in built_in_commands().values():
        made = build_command(command)
        for parameter in made.params:
            if parameter.name in READING_NAMES:
                found.setdefault(parameter.name, (made, parameter))
    return list(found.values())


def _table_of_options(
    parameters: Sequence[tuple[Any, Any]], heading: str = "option"
) -> str:
    """Return the table of arguments or options; empty if there are none that are shown."""
    rows = []
    for command, parameter in parameters:
        record = help_record(parameter, typer.Context(command))
        if record is not None:
            rows.append(_row(f"`{record[0]}`", escaped(record[1])))
    if not rows:
        return ""
    return f"| {heading} | meaning |\n|---|---|\n" + "".join(rows)


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text; those that click leaves as they are become code."""
    for paragraph in text.split("\n\n"):
        first, _, rest = paragraph.strip("\n").partition("\n")
        if first == "\b":
            title, _, lines = rest.partition("\n")
            language = "console" if title == "Examples:" else "text"
            prompt = "$ " if language == "console" else ""
            stripped = [f"{prompt}{line.strip()}" for line in lines.splitlines()]
            code = "\n".join(stripped)
            yield f"{title}\n\n```{language}\n{code}\n```\n"
        elif paragraph.strip():
            yield f"{escaped(' '.join(paragraph.split()))}\n"


def escaped(text: str) -> str:
    """Return a text of the program as Markdown that shows it verbatim, but keeps code spans."""
    parts = re.split(r"(`[^`]+`)", text)
    for position in range(0, len(parts), 2):
        plain = html.escape(parts[position], quote=False)
        parts[position] = re.sub(r"([\\*_\[\]|])", r"\\\1", plain)
    return "".join(parts)


# Hooks of mkdocs.


def with_links_of_site(text: str, source: str) -> str:
    """Return the Markdown of a file with links that lead to pages of the site.

    A link to a file that is not a page of the site, such as one of the program, becomes plain text.

    Args:
        text: the Markdown.
        source: the path of its file in the repository.
    """
    page = _path_on_site(source)
    parts = _CODE_BLOCK.split(text)
    for position in range(0, len(parts), 2):
        parts[position] = _LINK.sub(
            lambda match: _link_of_site(match, source, page or ""), parts[position]
        )
    return "".join(parts)


def _link_of_site(match: re.Match[str], source: str, page: str) -> str:
    label, target, anchor = match.groups()
    if ":" in target:
        return match[0]
    in_repository = posixpath.normpath(
        posixpath.join(posixpath.dirname(source), target)
    )
    on_site = _path_on_site(in_repository)
    if on_site is None:
        return label
    path = posixpath.relpath(on_site, posixpath.dirname(page) or ".")
    return f"[{label}]({path}{anchor or ''})"


def _path_on_site(path: str) -> str | None:
    """Return the path below `docs/` of a file of the repository; None if it is not a page."""
    if path in PAGES_FROM_ELSEWHERE:
        return PAGES_FROM_ELSEWHERE[path]
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages whose files are not below `docs/`."""
    from mkdocs.structure.files import File

    for path, page in PAGES_FROM_ELSEWHERE.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        content = with_links_of_site(text, path)
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Expand the markers of a page, and lead its links to pages of the site."""
    del config, files
    if page.file.src_uri in PAGES_FROM_ELSEWHERE.values():
        return markdown
    text = expanded(markdown, built_in_tables())
    return with_links_of_site(text, f"docs/{page.file.src_uri}")
