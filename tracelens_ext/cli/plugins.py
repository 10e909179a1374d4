"""`tracelens-ext plugins`: what is installed, what fails, and the skeleton of a new one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from tracelens_ext.hooks import Plugin, PluginRegistry

_PROBE: Final = (
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", None),
    ("Memset (Device)", "aten::zero_"),
)
"""Two kernels, with the operations that launched them, on which to try Python categorisers."""

app = typer.Typer(help="Installed plugins: what each brings, and what is wrong with it.")


@app.callback(invoke_without_command=True)
def show(context: typer.Context, strict: bool = False) -> None:
    """List the installed plugins, their hooks and rule packs, and their errors.

    Options:
        strict: Exit with 1 if a plugin has an error.
    """
    if context.invoked_subcommand is None:
        list_plugins(strict)


@app.command("list")
def list_plugins(strict: bool = False) -> None:
    """List the installed plugins, their hooks and rule packs, and their errors.

    Options:
        strict: Exit with 1 if a plugin has an error.
    """
    from tracelens_ext.hooks import NO_PLUGINS_VARIABLE, load_registry

    found = plugin_status(load_registry())
    for status in found:
        plugin = status.plugin
        state = "ok" if not status.problems else "partly ok" if status.works else "FAILED"
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
    if strict and any(status.problems for status in found):
        raise typer.Exit(1)


@app.command("new")
def new(
    name: str,
    folder: Path = Path(),
) -> None:
    """Write the skeleton of a plugin distribution, with its test.

    Operands:
        name: The new distribution, such as my-company-kernels.

    Options:
        folder FOLDER: Where to make its folder.  [default: .]
    """
    from tracelens_ext.categorize.scaffold import write_plugin

    for path in write_plugin(name, folder):
        typer.echo(path)
    typer.echo(f"\nNext: cd {folder / name} && pip install -e '.[test]' && pytest")


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """A plugin and how it fares."""

    plugin: Plugin  #: the plugin
    packs: tuple[str, ...]  #: the names of its rule packs, those to choose marked with `*`
    works: bool  #: whether some of it works: a pack, a reader, a hook that did not fail
    problems: tuple[str, ...]  #: what is wrong with it, a line each; empty when nothing is


def plugin_status(registry: PluginRegistry) -> list[PluginStatus]:
    """Call every hook that can be called without a trace, and say how each plugin fares.

    Python categorisers are tried on two kernels. Report sheets need a trace and are not tried.
    """
    from tracelens_ext.categorize.maps import offered_packs, python_hooks, python_stage
    from tracelens_ext.readers.formats import offered_readers

    offered = offered_packs(registry)
    working = {found.plugin.name for found in offered}
    working |= {found.plugin.name for found in offered_readers(registry)}
    working |= {p.name for p in registry.plugins if any("sheets" in hook for hook in p.hooks)}
    for hook in python_hooks(registry):
        with registry.guard(hook.plugin.name):
            python_stage(hook).decide(_PROBE)
            working.add(hook.plugin.name)
    return [
        PluginStatus(
            plugin,
            tuple(
                o.item.name + ("*" if o.item.selectable else "")
                for o in offered
                if o.plugin.name == plugin.name
            ),
            plugin.name in working,
            tuple(
                problem.removeprefix(f"{plugin.name}: ")
                for problem in registry.problems
                if problem.startswith(f"{plugin.name}: ")
            ),
        )
        for plugin in registry.plugins
    ]
