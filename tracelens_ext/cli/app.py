"""The program: the commands that plugins offer, our own too."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from tracelens_ext.cli.careful_command import CarefulCommand, help_record
from tracelens_ext.cli.options import READING_NAMES, with_option_groups
from tracelens_ext.compatibility.earlier_arguments import warn_of_old_name
from tracelens_ext.compatibility.renamed_names import Kind, new_names
from tracelens_ext.hooks import (
    Command,
    Offered,
    PluginAnswerError,
    PluginRegistry,
    default_registry,
)
from tracelens_ext.hooks.registry import one_line

_GROUPS = ("Inspect", "Diagnose", "Compare", "Manage")
_OLD_GROUPS = new_names(Kind.GROUP)
_EXAMPLES = (
    "trace.json.gz",
    "report trace.json.gz --html report.html",
    "kernels --help",
)
#: Signs in what is no name of a command.
_PATH_SIGN = re.compile(r"[./\\*?]")
_SETTINGS: dict[str, Any] = {
    "context_settings": {"help_option_names": ["-h", "--help"]},
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}


def _check(item: object) -> None:
    """Refuse what a plugin offers as a command and is none."""
    if not isinstance(item, Command):
        kind = type(item).__name__
        raise PluginAnswerError(
            f"tracelens_commands: expected Command objects, got {kind}"
        )
    if item.group in _OLD_GROUPS:
        return
    if item.group not in _GROUPS:
        groups = ", ".join(_GROUPS)
        raise PluginAnswerError(f"command {item.name!r}: the group is one of {groups}")


def _is_a_strangers(offered: Offered[Command]) -> bool:
    return not offered.plugin.own


def offered_commands(registry: PluginRegistry | None = None) -> dict[str, Command]:
    """Return the commands by name, our own first."""
    registry = registry or default_registry()
    commands: dict[str, Command] = {}
    for offered in sorted(
        registry.offers("tracelens_commands", _check), key=_is_a_strangers
    ):
        command = offered.item
        with registry.guard(offered.plugin.name):
            if command.name in commands:
                raise PluginAnswerError(
                    f"command {command.name!r}: there is one already"
                )
            commands[command.name] = _in_current_group(command)
    return commands


def _in_current_group(command: Command) -> Command:
    """Return a command whose group has the name of now."""
    group = _OLD_GROUPS.get(command.group)
    if group is None:
        return command
    warn_of_old_name(f"the group {command.group} of the command {command.name}", group)
    return replace(command, group=group)


def _implementation(command: Command) -> Callable[..., None] | typer.Typer:
    """Return the function of a command, or its `typer.Typer`; imported now if it is named."""
    if not isinstance(command.function, str):
        return command.function  # type: ignore[no-any-return]
    module, _, name = command.function.partition(":")
    try:
        return getattr(import_module(module), name)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise PluginAnswerError(
            f"command {command.name!r}: {one_line(error)}"
        ) from error


@cache
def made_command(command: Command) -> Any:  # noqa: ANN401  # click's, or typer's own copy of it
    """Return a command, or a group of them, as click has it."""
    implementation = _implementation(command)
    alone = typer.Typer(**_SETTINGS)
    if isinstance(implementation, typer.Typer):
        _prepare_group(implementation)
        alone.add_typer(implementation, name=command.name)
    else:
        function = with_option_groups(implementation)
        alone.command(command.name, cls=CarefulCommand)(function)
    made: Any = get_group(alone).commands[command.name]
    # without docstrings, as under `python -OO`
    made.help = made.help or command.summary
    made.help_sections = command.help_sections
    if command.runs_program:
        made.allow_interspersed_args = False
    parts = [made]
    parts.extend(getattr(made, "commands", {}).values())
    for part in parts:
        # click keeps the help option that a command is first asked for, by whomever
        part.get_help_option(typer.Context(part, **_SETTINGS["context_settings"]))
        part.epilog = _examples_text(command.examples)
        # click cuts it at the width
        part.short_help = (part.help or "").split("\n\n")[0]
    return made


def _prepare_group(group: typer.Typer) -> None:
    """Give the commands of a group their options, and careful parsing."""
    callback = group.registered_callback
    if callback is not None and callback.callback is not None:
        callback.callback = with_option_groups(callback.callback)
    for registered in group.registered_commands:
        registered.cls = CarefulCommand
        if registered.callback is not None:
            registered.callback = with_option_groups(registered.callback)


def _examples_text(examples: Sequence[str]) -> str:
    """Return the end of a help text."""
    if not examples:
        return ""
    lines = ["\b", "Examples:"]
    lines += [f"  tracelens-ext {example}" for example in examples]
    return "\n".join(lines)


class _Group(TyperGroup):
    """All commands; what is wrong in the file of one does not keep the others from working."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401  # whatever a group takes
        super().__init__(**attributes)
        self.offered = offered_commands()
        self.commands = dict.fromkeys(self.offered)  # type: ignore[assignment]  # for suggestions

    def get_command(self, _: Any, name: str) -> Any:  # noqa: ANN401  # click's, or typer's own copy of it
        """Return the command, made now; None if no command has that name."""
        if name not in self.offered:
            return None
        return made_command(self.offered[name])

    def get_params(self, ctx: Any) -> Any:  # noqa: ANN401  # likewise
        """Return the options; help lists those about completion in a line at its end."""
        parameters: list[Any] = super().get_params(ctx)
        for parameter in parameters:
            if parameter.name.endswith("_completion"):
                parameter.hidden = True
        return parameters

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401  # likewise
        """Return the command; for a trace what its report shows, without a file of it."""
        first = args[0]
        if first not in self.offered and (
            _PATH_SIGN.search(first) or Path(first).exists()
        ):
            args = ["report", "--no-workbook"] + args
        return super().resolve_command(ctx, args)

    def format_commands(self, _: Any, formatter: Any) -> None:  # noqa: ANN401  # likewise
        """Write the commands by group, a line each."""
        width = max(map(len, self.offered))
        for group in _GROUPS:
            with formatter.section(group):
                for command in self.offered.values():
                    if command.group != group:
                        continue
                    line = f"  {command.name:{width}}  {command.summary}\n"
                    formatter.write(line)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  # likewise
        """Write what the commands that read traces have in common."""
        records = [
            help_record(option, ctx)
            for option in self.get_command(ctx, "kernels").params
            if option.name in READING_NAMES
        ]
        with formatter.section("Options of every command that reads traces"):
            formatter.write_dl(records)
        with formatter.section("Shell completion"):
            formatter.write_text(
                "tracelens-ext --install-completion, or --show-completion"
            )
        super().format_epilog(ctx, formatter)


app = typer.Typer(
    cls=_Group,
    epilog=_examples_text(_EXAMPLES),
    help="Find out where the GPU time in a trace went and what would save the most of "
    "it.",
    no_args_is_help=True,
    **_SETTINGS | {"add_completion": True},
)


def report_options() -> list[str]:
    """Return the names of the options of `report`."""
    command = made_command(offered_commands()["report"])
    return [name for parameter in command.params for name in parameter.opts]


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
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    pass
