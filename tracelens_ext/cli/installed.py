"""What is installed, read and kept: `tracelens-ext plugins`, `formats`, `cache`; and `demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import typer

from tracelens_ext.demo import copy_recording, is_demo_trace
from tracelens_ext.errors import OutputError, UsageError
from tracelens_ext.hooks import Plugin, PluginRegistry
from tracelens_ext.lazy import pd

#: Two kernels, with the operations that launched them, on which to try Python categorisers.
_PROBE = (
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", None),
    ("Memset (Device)", "aten::zero_"),
)

plugins = typer.Typer(help="Installed plugins: what each brings, and what is wrong with it.")


@plugins.callback(invoke_without_command=True)
@plugins.command("list")
def list_plugins(context: typer.Context, strict: bool = False) -> None:
    """List the installed plugins, their hooks and rule packs, and their errors.

    Options:
        strict: Exit with 1 if a plugin has an error.
    """
    if context.invoked_subcommand is not None:
        return
    from tracelens_ext.hooks import NO_PLUGINS_VARIABLE, load_registry

    found = plugin_status(load_registry())
    for status in found:
        plugin = status.plugin
        state = "ok" if not status.problems else "partly ok" if status.works else "FAILED"
        typer.echo(f"{plugin.name}  {state}  {plugin.distribution}  ({plugin.module})")
        lists = {"hooks": plugin.hooks, "rule packs": status.packs}
        told = [(label, ", ".join(names)) for label, names in lists.items() if names]
        for label, text in [*told, *(("error", problem) for problem in status.problems)]:
            typer.echo(f"    {label}: {text}")
    typer.echo(
        "\n* takes part only when chosen with --categorizer. "
        f"{NO_PLUGINS_VARIABLE}=1 leaves out everything but tracelens-ext's own."
    )
    if strict and any(status.problems for status in found):
        raise typer.Exit(1)


@plugins.command("new")
def new(name: str, folder: Path = Path()) -> None:
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
    from tracelens_ext.categorize.maps import offered_packs, python_stages
    from tracelens_ext.readers.formats import offered_readers

    offered = offered_packs(registry)
    working = {found.plugin.name for found in offered}
    working |= {found.plugin.name for found in offered_readers(registry)}
    working |= {p.name for p in registry.plugins if any("sheets" in hook for hook in p.hooks)}
    for stage in python_stages(registry):
        with registry.guard(stage.name):
            stage.decide(_PROBE)
            working.add(stage.name)
    found = []
    for plugin in registry.plugins:
        own, begins = [o.item for o in offered if o.plugin.name == plugin.name], f"{plugin.name}: "
        packs = tuple(pack.name + "*" * pack.selectable for pack in own)
        problems = [p.removeprefix(begins) for p in registry.problems if p.startswith(begins)]
        found.append(PluginStatus(plugin, packs, plugin.name in working, tuple(problems)))
    return found


def formats() -> None:
    """List the formats that are read, what each needs, and how to record it."""
    from tracelens_ext.readers.formats import offered_readers, suffixes_of

    for offered in offered_readers():
        reader, plugin = offered.item, offered.plugin
        extra = getattr(reader, "extra", "")
        mark = "" if plugin.own else f"  (plugin {plugin.name})"
        typer.echo((getattr(reader, "name", "") or type(reader).__name__) + mark)
        for label, text in (
            ("files", ", ".join(f"*{suffix}" for suffix in suffixes_of(reader))),
            ("needs", f"pip install 'tracelens-ext[{extra}]'" if extra else ""),
            ("record", getattr(reader, "how_to_record", "")),
        ):
            if text:
                typer.echo(f"    {label + ':':8} {text}")


cache = typer.Typer(
    help="Look at the cache of parsed traces, or empty it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@cache.command()
def info() -> None:
    """Show where the cache is, how big, and which traces it holds."""
    from datetime import UTC, datetime

    from tracelens_ext.cache.folder import OFF_VARIABLE, cache_is_off
    from tracelens_ext.cache.store import TraceCache
    from tracelens_ext.cli.screen import Part, console, show_blocks

    kept = TraceCache.from_environment()
    entries = kept.entries()
    size = sum(entry.size for entry in entries)
    lines = [f"Folder: {kept.folder}"]
    lines += [f"Traces: {len(entries)}, {_megabytes(size)} of {_megabytes(kept.limit)}"]
    lines += [f"Switched off by {OFF_VARIABLE}"] if cache_is_off() else []
    used = [datetime.fromtimestamp(entry.used, UTC).astimezone() for entry in entries]
    frame = pd.DataFrame(
        {
            "trace": [entry.path for entry in entries],
            "size_MB": [entry.size / 1e6 for entry in entries],
            "last used": [each.strftime("%Y-%m-%d %H:%M") for each in used],
            "state": ["usable" if entry.usable else "outdated" for entry in entries],
        }
    )
    show_blocks([lines, Part("", frame)], console())


@cache.command()
def clear() -> None:
    """Remove all that the cache holds."""
    from tracelens_ext.cache.store import TraceCache

    count, size = TraceCache.from_environment().clear()
    typer.echo(f"Removed {count} trace{'' if count == 1 else 's'}, {_megabytes(size)}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def demo(
    out: Path = Path("demo_trace.json.gz"),
    vendor: Literal["nvidia", "amd"] = "nvidia",
    ranks: int = 1,
    force: bool = False,
) -> None:
    """Write a demo trace: a recording of a small training job; needs no GPU.

    Operands:
        out: File to write, .json or .json.gz.

    Options:
        vendor: Whose machine and kernel names.
        ranks N 1..4: Ranks of the NVIDIA job, a file each: NAME_rank0 …; the second is slow.
        force: Overwrite a file that is not a demo trace.
    """
    from shlex import quote

    if ranks > 1 and vendor != "nvidia":
        raise UsageError("several ranks are there of the NVIDIA job only; leave out --vendor")
    recordings: dict[str, Path] = {vendor: out}
    written, command = f"{out}", f"report {quote(str(out))}"
    if ranks > 1:  # trace.json.gz is trace_rank0.json.gz and so on
        stem, dot, ending = out.name.partition(".json")
        *each, all_ranks = (
            out.with_name(f"{stem}_rank{rank}{dot}{ending}") for rank in [*range(ranks), "*"]
        )
        recordings = {f"nvidia_rank{rank}": path for rank, path in enumerate(each)}
        written = f"{each[0]} to {each[-1].name}"
        command = f"fleet {quote(str(all_ranks))} -o results"
    for path in recordings.values():
        if not force and (path.exists() or path.is_symlink()) and not is_demo_trace(path):
            remedy = "choose another name, or --force to overwrite"
            raise OutputError(f"{path}: exists and is not a demo trace; {remedy}")
    for name, path in recordings.items():
        copy_recording(name, path)
    size = sum(path.stat().st_size for path in recordings.values()) / 1e6
    told = f"wrote {written} ({size:.1f} MB, of a simulated {vendor} GPU)"
    typer.echo(f"{told}; next: tracelens-ext {command}")
