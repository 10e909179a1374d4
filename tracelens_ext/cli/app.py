"""The program and its commands, all of which plugins offer, the built-in ones as well."""

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

#: The headings under which `--help` lists the commands, in this order.
_HEADINGS = ("Inspect", "Diagnose", "Compare", "Manage")
#: Earlier name of a heading → its current name.
_RENAMED_HEADINGS = new_names(Kind.GROUP)
_EXAMPLES = (
    "trace.json.gz",
    "report trace.json.gz --html report.html",
    "kernels --help",
)
#: Characters that occur in paths and patterns of paths, but not in names of commands.
_PATH_CHARACTER = re.compile(r"[./\\*?]")
_SETTINGS: dict[str, Any] = {
    "context_settings": {"help_option_names": ["-h", "--help"]},
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}


def offered_commands(registry: PluginRegistry | None = None) -> dict[str, Command]:
    """Return all commands by name, the built-in ones first.

    A command of a plugin that cannot be used is left out, and the registry notes why.
    """
    registry = registry or default_registry()
    offers = registry.offers("tracelens_commands", _check_command)
    commands: dict[str, Command] = {}
    for offered in sorted(offers, key=_is_of_other_plugin):
        command = offered.item
        with registry.guard(offered.plugin.name):
            if command.name in commands:
                raise PluginAnswerError(
                    f"command {command.name!r}: there is one already"
                )
            commands[command.name] = _with_current_heading(command)
    return commands


def _check_command(item: object) -> None:
    """Check that what a plugin offers as a command can be used as one.

    Raises:
        PluginAnswerError: it is not a `Command`, or there is no heading of its name.
    """
    if not isinstance(item, Command):
        kind = type(item).__name__
        raise PluginAnswerError(
            f"tracelens_commands: expected Command objects, got {kind}"
        )
    if item.group not in _HEADINGS and item.group not in _RENAMED_HEADINGS:
        headings = ", ".join(_HEADINGS)
        raise PluginAnswerError(
            f"command {item.name!r}: the group is one of {headings}"
        )


def _is_of_other_plugin(offered: Offered[Command]) -> bool:
    """Return False for a built-in command, so that those come first when sorted."""
    return not offered.plugin.own


def _with_current_heading(command: Command) -> Command:
    """Replace the earlier name of a heading, and warn of it."""
    heading = _RENAMED_HEADINGS.get(command.group)
    if heading is None:
        return command
    warn_of_old_name(
        f"the group {command.group} of the command {command.name}", heading
    )
    return replace(command, group=heading)


@cache
def build_command(command: Command) -> Any:  # noqa: ANN401  # of click, or of typer's copy
    """Build the click command, or the click group with subcommands, that runs a command."""
    implementation = _implementation(command)
    container = typer.Typer(**_SETTINGS)
    if isinstance(implementation, typer.Typer):
        _prepare_subcommands(implementation)
        container.add_typer(implementation, name=command.name)
    else:
        function = with_option_groups(implementation)
        container.command(command.name, cls=CarefulCommand)(function)
    built: Any = get_group(container).commands[command.name]
    # There is no docstring to take the help from under `python -OO`.
    built.help = built.help or command.summary
    built.help_sections = command.help_sections
    if command.runs_program:
        built.allow_interspersed_args = False
    subcommands = getattr(built, "commands", {}).values()
    for part in [built] + list(subcommands):
        _complete_help(part, command)
    return built


def _implementation(command: Command) -> Callable[..., None] | typer.Typer:
    """Return the function of a command, or its `typer.Typer`; import it if only its name is given.

    Raises:
        PluginAnswerError: it cannot be imported.
    """
    if not isinstance(command.function, str):
        return command.function  # type: ignore[no-any-return]
    module, _, name = command.function.partition(":")
    try:
        return getattr(import_module(module), name)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise PluginAnswerError(
            f"command {command.name!r}: {one_line(error)}"
        ) from error


def _prepare_subcommands(commands: typer.Typer) -> None:
    """Give subcommands the options that they share with others, and careful parsing."""
    callback = commands.registered_callback
    if callback is not None and callback.callback is not None:
        callback.callback = with_option_groups(callback.callback)
    for registered in commands.registered_commands:
        registered.cls = CarefulCommand
        if registered.callback is not None:
            registered.callback = with_option_groups(registered.callback)


def _complete_help(built: Any, command: Command) -> None:  # noqa: ANN401  # of click, or of typer's copy
    """Complete what `--help` shows of a click command or subcommand."""
    # click keeps the help option from the first call, which need not be one with these settings.
    built.get_help_option(typer.Context(built, **_SETTINGS["context_settings"]))
    built.epilog = _examples_text(command.examples)
    # Without a short help, click would cut the first paragraph at the width of the list.
    built.short_help = (built.help or "").split("\n\n")[0]


def _examples_text(examples: Sequence[str]) -> str:
    """Return the section of a help text that shows examples; empty without any."""
    if not examples:
        return ""
    keep_line_breaks = "\b"  # for click
    lines = [keep_line_breaks, "Examples:"]
    lines += [f"  tracelens-ext {example}" for example in examples]
    return "\n".join(lines)


class _Program(TyperGroup):
    """The program with all its commands.

    A command is built when it is needed: an error in the file of one leaves the others working, and
    `--help` imports none of them.
    """

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401  # whatever a group takes
        super().__init__(**attributes)
        self.offered = offered_commands()
        # click suggests names from these keys when a name is misspelled.
        self.commands = dict.fromkeys(self.offered)  # type: ignore[assignment]

    def get_command(self, _: Any, name: str) -> Any:  # noqa: ANN401  # of click, or of typer's copy
        """Return a command, built now, or None if no command has that name."""
        if name not in self.offered:
            return None
        return build_command(self.offered[name])

    def get_params(self, ctx: Any) -> Any:  # noqa: ANN401  # of click, or of typer's copy
        """Return the options; those for shell completion are hidden, as the epilog names them."""
        parameters: list[Any] = super().get_params(ctx)
        for parameter in parameters:
            if parameter.name.endswith("_completion"):
                parameter.hidden = True
        return parameters

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401  # of click, or of typer's copy
        """Find the command that arguments name; a path stands for `report --no-workbook PATH`."""
        first = args[0]
        if first not in self.offered and _looks_like_path(first):
            args = ["report", "--no-workbook"] + args
        return super().resolve_command(ctx, args)

    def format_commands(self, _: Any, formatter: Any) -> None:  # noqa: ANN401  # of click, or of typer's copy
        """Write the commands by heading, one line each."""
        width = max(map(len, self.offered))
        for heading in _HEADINGS:
            with formatter.section(heading):
                for command in self.offered.values():
                    if command.group == heading:
                        line = f"  {command.name:{width}}  {command.summary}\n"
                        formatter.write(line)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  # of click, or of typer's copy
        """Write the options that all commands share that read traces, and the examples."""
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


def _looks_like_path(argument: str) -> bool:
    return bool(_PATH_CHARACTER.search(argument)) or Path(argument).exists()


app = typer.Typer(
    cls=_Program,
    epilog=_examples_text(_EXAMPLES),
    help="Find out where the GPU time in a trace went and what would save the most of "
    "it.",
    no_args_is_help=True,
    **_SETTINGS | {"add_completion": True},
)


def report_options() -> list[str]:
    """Return the names of the options of `report`."""
    command = build_command(offered_commands()["report"])
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
