"""`tracelens-ext plugins`: what is installed, what fails, and the skeleton of a new one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Installed plugins: what each brings, and what is wrong with it.")


@app.callback(invoke_without_command=True)
def show(context: typer.Context) -> None:
    """List the installed plugins, their hooks and rule packs, and their errors."""
    if context.invoked_subcommand is None:
        list_plugins()


@app.command("list")
def list_plugins() -> None:
    """List the installed plugins, their hooks and rule packs, and their errors."""
    from tracelens_ext.categorize.registry import NO_PLUGINS_VARIABLE, load_registry
    from tracelens_ext.categorize.status import plugin_status

    for status in plugin_status(load_registry()):
        plugin = status.plugin
        state = "FAILED" if status.problems else "ok"
        typer.echo(f"{plugin.name}  {state}  {plugin.distribution}  ({plugin.module})")
        if plugin.hooks:
            typer.echo(f"    hooks: {', '.join(plugin.hooks)}")
        if status.packs:
            typer.echo(f"    rule packs: {', '.join(status.packs)}")
        for problem in status.problems:
            typer.echo(f"    error: {problem}")
    typer.echo(
        "\n* takes part only when chosen with --categorizer. "
        f"{NO_PLUGINS_VARIABLE}=1 leaves out everything but tracelens-ext's own."
    )


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(help="The new distribution, such as my-company-kernels.")],
    folder: Annotated[Path, typer.Option("--folder", help="Where to make its folder.")] = Path(),
) -> None:
    """Write the skeleton of a plugin distribution, with its test."""
    from tracelens_ext.categorize.scaffold import write_plugin

    for path in write_plugin(name, folder):
        typer.echo(path)
    typer.echo(f"\nNext: cd {folder / name} && pip install -e '.[test]' && pytest")
