"""The commands and their names; a command is imported when it is called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from tracelens_ext.cli.command import Command

#: In the order of `--help`. A command has the name of its module in this package, and is the
#: function of that name in it, or else a Typer of several commands, `app`.
_NAMES = (
    "report",
    "compare",
    "iterations",
    "tree",
    "kernels",
    "gaps",
    "chart",
    "fleet",
    "demo",
    "explain",
    "nsys",
    "rules",
    "plugins",
    "cache",
)
_READ_NO_TRACES = frozenset({"demo", "explain"})
_CLASSES = {"chart": "ChartCommand"}  # of commands whose help says more than typer's
_SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}


class _Commands(Mapping[str, Any]):
    """Name → command as click has it; made when it is asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  # click's, or typer's own copy of it
        if name not in _NAMES:
            raise KeyError(name)
        if name not in self._made:
            self._made[name] = _made(name)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in _NAMES

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401  # as Mapping has it
        """As a mapping's; but what goes wrong in a command's own file is not taken for no such."""
        return self[name] if name in _NAMES else default

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)


def _made(name: str) -> Any:  # noqa: ANN401  # click's, or typer's own copy of it
    home = import_module(f"tracelens_ext.cli.{name}")
    alone = typer.Typer(**_SETTINGS)
    if not hasattr(home, name):
        for registered in home.app.registered_commands:
            registered.cls = Command
        alone.add_typer(home.app, name=name)
    else:
        function = getattr(home, name)
        if name not in _READ_NO_TRACES:
            from tracelens_ext.cli.reading import reads_traces

            function = reads_traces(function)
        alone.command(cls=getattr(home, _CLASSES.get(name, ""), Command))(function)
    return get_group(alone).commands[name]


class _Group(TyperGroup):
    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401  # whatever a group takes
        super().__init__(**attributes)
        self.commands = _Commands()  # type: ignore[assignment]  # nothing adds to it


app = typer.Typer(
    cls=_Group,
    help="Where did the GPU time go? Call tree, kernel categories and reports for GPU traces.",
    no_args_is_help=True,
    **_SETTINGS,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from tracelens_ext import __version__

        typer.echo(f"tracelens-ext {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass
