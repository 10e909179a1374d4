"""The program: the commands that plugins offer, our own too; imported when they are called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from tracelens_ext.cli.options import READING, CarefulCommand, help_record, with_options
from tracelens_ext.hooks import Command, PluginAnswerError, PluginRegistry, default_registry
from tracelens_ext.hooks.registry import one_line

_GROUPS = ("Look", "Explain", "Compare", "Extend")
_EXAMPLES = ("trace.json.gz", "report trace.json.gz --html report.html", "kernels --help")
_PATH = re.compile(r"[./\\*?]")  #: in what is no name of a command
_SETTINGS: dict[str, Any] = {
    "context_settings": {"help_option_names": ["-h", "--help"]},
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}


def _check(item: object) -> None:
    if not isinstance(item, Command):
        kind = type(item).__name__
        raise PluginAnswerError(f"tracelens_commands: expected Command objects, got {kind}")
    if item.group not in _GROUPS:
        groups = ", ".join(_GROUPS)
        raise PluginAnswerError(f"command {item.name!r}: the group is one of {groups}")


def offered_commands(registry: PluginRegistry | None = None) -> dict[str, Command]:
    """The commands by name, our own first."""
    registry = registry or default_registry()
    offered = registry.offers("tracelens_commands", _check)
    offered.sort(key=lambda each: (not each.plugin.own, each.plugin.name != "commands"))
    commands: dict[str, Command] = {}
    for each in offered:
        with registry.guard(each.plugin.name):
            if commands.setdefault(each.item.name, each.item) is not each.item:
                raise PluginAnswerError(f"command {each.item.name!r}: there is one already")
    return commands


@cache
def _made(command: Command) -> Any:  # noqa: ANN401  # click's, or typer's own copy of it
    module, _, name = command.function.partition(":")
    try:
        home = import_module(module)
        function = getattr(home, name)
    except (ImportError, AttributeError) as error:
        if module.startswith("tracelens_ext."):
            raise
        raise PluginAnswerError(f"command {command.name!r}: {one_line(error)}") from error
    alone = typer.Typer(**_SETTINGS)
    if isinstance(function, typer.Typer):
        for registered in (*function.registered_commands, function.registered_callback):
            if registered is not None and registered.callback is not None:
                registered.callback = with_options(registered.callback)
        for registered in function.registered_commands:
            registered.cls = CarefulCommand
        alone.add_typer(function, name=command.name)
    else:
        function = with_options(function)
        kind = getattr(home, "COMMAND_CLASS", CarefulCommand)
        alone.command(command.name, cls=kind)(function)
    made = get_group(alone).commands[command.name]
    for each in (made, *getattr(made, "commands", {}).values()):
        each.epilog = _told(command.examples)
        each.short_help = (each.help or "").split("\n\n")[0]  # click cuts it at the width
    return made


def _told(examples: Sequence[str]) -> str:
    """The end of a help text."""
    lines = [f"  tracelens-ext {each}" for each in examples]
    return "\n".join(["\b", "Examples:", *lines]) if lines else ""


class _Group(TyperGroup):
    """All commands; what is wrong in the file of one does not keep the others from working."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401  # whatever a group takes
        super().__init__(**attributes)
        self.offered = offered_commands()
        self.commands = dict.fromkeys(self.offered)  # type: ignore[assignment]  # for suggestions

    def get_command(self, _: Any, name: str) -> Any:  # noqa: ANN401  # click's, or typer's own copy of it
        """The command, imported now; None if no command has that name."""
        return _made(self.offered[name]) if name in self.offered else None

    def get_params(self, ctx: Any) -> Any:  # noqa: ANN401  # likewise
        """The options; help lists those about completion in a line at its end."""
        params: list[Any] = super().get_params(ctx)
        for each in params:
            each.hidden = each.hidden or each.name.endswith("_completion")
        return params

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401  # likewise
        """The command; where a trace is named instead, what its report shows, and no file of it."""
        if args[0] not in self.offered and (_PATH.search(args[0]) or Path(args[0]).exists()):
            args = ["report", "--no-workbook", *args]
        return super().resolve_command(ctx, args)

    def format_commands(self, _: Any, formatter: Any) -> None:  # noqa: ANN401  # likewise
        """Write the commands by group, a line each."""
        width = max(map(len, self.offered))
        for group in _GROUPS:
            with formatter.section(group):
                for each in self.offered.values():
                    if each.group == group:
                        formatter.write(f"  {each.name:{width}}  {each.summary}\n")

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  # likewise
        """Write what the commands that read traces have in common."""
        options = self.get_command(ctx, "kernels").params
        shown = [help_record(option, ctx) for option in options if option.name in READING]
        with formatter.section("Options of every command that reads traces"):
            formatter.write_dl(shown)
        with formatter.section("Shell completion"):
            formatter.write_text("tracelens-ext --install-completion, or --show-completion")
        super().format_epilog(ctx, formatter)


app = typer.Typer(
    cls=_Group,
    epilog=_told(_EXAMPLES),
    help="Where did the GPU time go? Call tree, kernel categories and reports for GPU traces.",
    no_args_is_help=True,
    **_SETTINGS | {"add_completion": True},
)


def report_options() -> list[str]:
    """The names of the options of `report`."""
    command = _made(offered_commands()["report"])
    return [name for each in command.params for name in each.opts]


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
