"""The reference, which is generated when the site is built, has all that the program has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import typer

from docs.scripts.generated_pages import (
    PAGES_FROM_ELSEWHERE,
    ROOT,
    built_in_commands,
    built_in_tables,
    escaped,
    expanded,
    with_links_of_site,
)
from tests.support.docs_helpers import DOCS, page_text
from tracelens_ext.cli.app import build_command

if TYPE_CHECKING:
    from collections.abc import Iterator


def sections(text: str) -> dict[str, str]:
    """The sections of a page by the code in their headings."""
    parts = re.split(r"(?m)^#+ `(.+)`\n", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def all_commands() -> Iterator[tuple[str, Any]]:
    for command in built_in_commands().values():
        made = build_command(command)
        yield command.name, made
        for name, part in getattr(made, "commands", {}).items():
            yield f"{command.name} {name}", part


COMMANDS_PAGE = expanded(page_text("commands.md"), built_in_tables())
TABLES_PAGE = expanded(page_text("tables.md"), built_in_tables())


@pytest.mark.parametrize(("name", "command"), list(all_commands()))
def test_every_command_and_option_is_in_the_reference(name: str, command: Any) -> None:
    section = sections(COMMANDS_PAGE)[name]
    shared = COMMANDS_PAGE.partition("## Options for reading traces\n")[2]
    for parameter in command.get_params(typer.Context(command)):
        if parameter.param_type_name == "option" and not parameter.hidden:
            for option in parameter.opts + parameter.secondary_opts:
                pattern = rf"(?m)^\| `[^`]*(?<![\w-]){re.escape(option)}(?![\w-])"
                is_shared = "options for reading traces" in section
                assert re.search(pattern, section) or (
                    is_shared and re.search(pattern, shared)
                ), option


def test_every_table_and_column_is_in_the_reference() -> None:
    section_of_name = sections(TABLES_PAGE)
    for table in built_in_tables():
        section = section_of_name[table.name]
        assert f"[`{table.name}`](#{table.name.lower()})" in TABLES_PAGE
        for column in table.columns:
            assert f"`{column.name}`" in section, (table.name, column.name)
            assert column.meaning in section, (table.name, column.name)


def test_a_marker_of_a_table_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match="no table is called absent"):
        expanded("<!-- columns: absent -->", built_in_tables())


def test_a_text_of_the_program_is_shown_verbatim() -> None:
    assert escaped("a <b> | [c] *d* `e_f`") == r"a &lt;b&gt; \| \[c\] \*d\* `e_f`"


def test_links_lead_to_pages_of_the_site_and_never_to_files_of_the_program() -> None:
    text = "[a](docs/how-to/sql.md#x) [b](tests/conftest.py) [c](#here) [d](https://e)"
    assert with_links_of_site(text, "CHANGELOG.md") == (
        "[a](../how-to/sql.md#x) b [c](#here) [d](https://e)"
    )


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    listed = re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(listed) == sorted(pages | set(PAGES_FROM_ELSEWHERE.values()))
