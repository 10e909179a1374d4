"""What every command does with its arguments beyond what typer does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from tracelens_ext.cli.screen import screen_width

if TYPE_CHECKING:
    from collections.abc import Sequence


_WIDEST = 120  # columns of a help text
_MAY_BE_EMPTY = "--title"
#: typer's names of types → what people write.
_WRITTEN = {"int": "N", "int range": "N", "float": "NUMBER", "float range": "NUMBER"}
_WRITTEN |= {"path": "FILE", "file": "FILE", "directory": "FOLDER", "list[Path]": "FILE"}
_WRITTEN |= {"str": "NAME", "list[str]": "NAME"}


def help_record(parameter: Any, ctx: Any) -> tuple[str, str] | None:  # noqa: ANN401  # click's, or typer's own copy of it
    """The row of a parameter in a help text, types as people write them."""
    if not (record := parameter.get_help_record(ctx)):
        return None
    if parameter.param_type_name == "argument":
        return record[0].partition(" <")[0].upper(), record[1]
    written = re.sub(r"<([^<>]*)>", lambda found: _WRITTEN.get(found[1], found[1]), record[0])
    return written, record[1]


class CarefulCommand(TyperCommand):
    """A command whose options do not swallow the option that follows.

    In `report TRACE --html --output x.xlsx` the value of `--html` was forgotten; typer takes
    `--output` for it. A value that begins like an option is given as `--html=--output`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  # click's, or typer's own copy of it
        """Refuse an option whose value is the name of another, or empty; parse the rest as usual.

        An empty value is a variable of the shell that is not set; as a path it would be the
        current folder.
        """
        found, empty = _without_value(self.get_params(ctx), args)
        if found:
            ctx.fail(f"Option {found!r} requires an argument.")
        if empty:
            ctx.fail(f"Option {empty!r} has an empty value; give one, or leave the option out.")
        return super().parse_args(ctx, args)

    def get_help(self, ctx: Any) -> str:  # noqa: ANN401  # click's, or typer's own copy of it
        """The help text, as wide as the terminal."""
        ctx.terminal_width = min(screen_width(), _WIDEST) - 2
        return super().get_help(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401  # likewise
        """The usage without brackets that say nothing."""
        pieces = super().collect_usage_pieces(ctx)
        return [re.sub(r"[{}]", "", piece).upper() for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  # likewise
        """Write the arguments, the command's own options, and the names of those about reading."""
        from tracelens_ext.cli.options import READING

        shared = []
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for each in self.get_params(ctx):
            if not (record := help_record(each, ctx)):
                continue
            if each.name in READING:
                shared.append(record[0])
            else:
                kind = "Arguments" if each.param_type_name == "argument" else "Options"
                sections[kind].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if shared:
            with formatter.section("Options about reading, which 'tracelens-ext --help' explains"):
                formatter.write_text(", ".join(shared))


def _without_value(parameters: Sequence[Any], args: Sequence[str]) -> tuple[str, str]:
    """The first option that takes a value and is followed by an option or nothing; if any.

    And the first that is followed by an empty text, which means something as a title only.
    """
    values: dict[str, int] = {}  # name of an option → how many values it takes
    empty = ""
    for each in parameters:
        if each.param_type_name == "option":
            takes_none = each.is_flag or each.count
            for name in (*each.opts, *each.secondary_opts):
                values[name] = 0 if takes_none else each.nargs
    left = list(args[::-1])
    while left:
        arg = left.pop()
        if arg == "--":
            break
        name, awaited = _awaited(arg, values)
        if arg.endswith("=") and arg[:-1] in values:
            left.append("")
            name, awaited = arg[:-1], 1
        if len(left) < awaited:
            return name, ""
        for _ in range(awaited):
            value = left.pop()
            if value in values or value.startswith("--"):
                return name, ""
            if not value and name != _MAY_BE_EMPTY:
                empty = empty or name
    return "", empty


def _awaited(arg: str, values: dict[str, int]) -> tuple[str, int]:
    """The option that the next arguments are values of, and how many of them."""
    if arg in values or arg.startswith("--"):
        return arg, values.get(arg, 0)
    if arg.startswith("-"):  # flags in one word, perhaps an option at its end: -vt
        for at, letter in enumerate(arg[1:], start=2):
            name = f"-{letter}"
            if values.get(name):
                return name, values[name] if at == len(arg) else values[name] - 1
    return arg, 0
