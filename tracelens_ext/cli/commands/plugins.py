"""`tracelens-ext plugins`: lists the installed plugins, or writes the skeleton of a new one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.hooks import Command

if TYPE_CHECKING:
    from tracelens_ext.cli.plugin_status import PluginStatus

app = typer.Typer(help="List installed plugins, or create a new one.")


@app.callback(invoke_without_command=True)
@app.command("list")
def list_plugins(
    context: typer.Context,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if a plugin has an error.")
    ] = False,
) -> None:
    """List the installed plugins, their hooks and rule packs, and their errors."""
    if context.invoked_subcommand is not None:
        return
    from tracelens_ext.cli.plugin_status import plugin_status
    from tracelens_ext.hooks import NO_PLUGINS_VARIABLE, load_registry

    statuses = plugin_status(load_registry())
    for status in statuses:
        for line in _lines(status):
            typer.echo(line)
    typer.echo(
        f"* used only when chosen with --categorizer. Set {NO_PLUGINS_VARIABLE}=1 to "
        "ignore all plugins that are not part of tracelens-ext."
    )
    if strict and any(status.problems for status in statuses):
        raise typer.Exit(1)


def _lines(status: PluginStatus) -> Iterator[str]:
    """Yield the lines about a plugin."""
    plugin = status.plugin
    state = "ok"
    if status.problems and status.works:
        state = "partly ok"
    elif status.problems:
        state = "FAILED"
    yield f"{plugin.name}  {state}  {plugin.distribution}  ({plugin.module})"
    if plugin.hooks:
        hooks = ", ".join(plugin.hooks)
        yield f"    hooks: {hooks}"
    if status.packs:
        packs = ", ".join(status.packs)
        yield f"    rule packs: {packs}"
    for problem in status.problems:
        yield f"    error: {problem}"


@app.command("new")
def new(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of the new distribution, such as my-company-kernels."
        ),
    ],
    folder: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Folder in which to create it.  [default: .]",
            show_default=False,
        ),
    ] = Path(),
) -> None:
    """Write the skeleton of a plugin distribution, with its test."""
    from tracelens_ext.categorize.scaffold import write_plugin

    for path in write_plugin(name, folder):
        typer.echo(path)
    typer.echo(f"\nNext: cd {folder / name} && pip install -e '.[test]' && pytest")


COMMAND = Command(
    name="plugins",
    summary="Show installed plugins and their errors.",
    function=app,
    group="Manage",
    examples=("plugins", "plugins list --strict", "plugins new my-company-kernels"),
)
