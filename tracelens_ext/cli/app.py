"""The commands and their names; a command is imported when it is called."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from tracelens_ext.cli.command import Command

#: In the order of `--help`. A command has the name of its module in this package (with hyphens),
#: and is the function of that name in it, or else a Typer of several commands, `app`.
_NAMES = (
    "report",
    "findings",
    "what-if",
    "compare",
    "roofline",
    "phases",
    "memory",
    "iterations",
    "tree",
    "export",
    "sql",
    "mcp",
    "kernels",
    "gaps",
    "counters",
    "chart",
    "fleet",
    "ranks",
    "demo",
    "explain",
    "formats",
    "nsys",
    "rules",
    "plugins",
    "cache",
)
_READ_NO_TRACES = frozenset({"demo", "explain", "formats", "mcp", "ranks"})
_CLASSES = {"chart": "ChartCommand"}  # of commands whose help says more than typer's
_SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}


@cache
def _made(name: str) -> Any:  # noqa: ANN401  # click's, or typer's own copy of it
    function_name = name.replace("-", "_")
    home = import_module(f"tracelens_ext.cli.{function_name}")
    alone = typer.Typer(**_SETTINGS)
    if not hasattr(home, function_name):
        for registered in home.app.registered_commands:
            registered.cls = Command
        alone.add_typer(home.app, name=name)
    else:
        function = getattr(home, function_name)
        if name not in _READ_NO_TRACES:
            from tracelens_ext.cli.reading import reads_traces

            function = reads_traces(function)
        alone.command(name, cls=getattr(home, _CLASSES.get(name, ""), Command))(function)
    return get_group(alone).commands[name]


class _Group(TyperGroup):
    """All commands; what is wrong in the file of one does not keep the others from working."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401  # whatever a group takes
        super().__init__(**attributes)
        self.commands = dict.fromkeys(_NAMES)  # type: ignore[assignment]  # for suggestions

    def get_command(self, _: Any, name: str) -> Any:  # noqa: ANN401  # click's, or typer's own copy of it
        """The command, imported now; None if no command has that name."""
        return _made(name) if name in _NAMES else None

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  # likewise
        """Write what the commands that read traces have in common."""
        from tracelens_ext.cli.reading import OPTIONS

        super().format_epilog(ctx, formatter)
        options = [option for option in _made("kernels").params if option.name in OPTIONS]
        with formatter.section("Options of every command that reads traces"):
            formatter.write_dl([option.get_help_record(ctx) for option in options])


app = typer.Typer(
    cls=_Group,
    help="Where did the GPU time go? Call tree, kernel categories and reports for GPU traces.",
    no_args_is_help=True,
    **_SETTINGS,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from tracelens_ext import __version__
        from tracelens_ext.readers.kineto import compiled_reader

        reader = "Python" if compiled_reader() is None else "native"
        typer.echo(f"tracelens-ext {__version__}, {reader} reader")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass
