"""What is installed, read and kept: `tracelens-ext plugins`, `formats`, `cache`; and `demo`.

And `tracelens-ext rules`: the rules that take part, checked, and drafted for unknown kernels;
`tracelens-ext explain`: why a kernel, or an operation, has its category.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import typer

from tracelens_ext.categorize import UNCATEGORIZED, KernelCategorizer, load_pack
from tracelens_ext.categorize.categorizer import Explanation
from tracelens_ext.categorize.check import check_packs
from tracelens_ext.categorize.choices import offered_packs
from tracelens_ext.categorize.drafts import draft_rules, group_unknown, toml_pack
from tracelens_ext.categorize.matcher import BoundPack
from tracelens_ext.categorize.rules import OTHER_OP, Rule
from tracelens_ext.cli import options as shared
from tracelens_ext.cli.demo_recordings import copy_recording, is_demo_trace
from tracelens_ext.cli.load import analyze, show_problems
from tracelens_ext.cli.screen import NARROW, console, print_line, tell, write_text
from tracelens_ext.errors import OutputError, UsageError
from tracelens_ext.hooks import Plugin, PluginRegistry
from tracelens_ext.lazy import pd
from tracelens_ext.report.formats import json_safe
from tracelens_ext.report.terminal import frame_table
from tracelens_ext.settings import ReadingOptions

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
        told = [f"{label}: {', '.join(names)}" for label, names in lists.items() if names]
        for text in (*told, *(f"error: {problem}" for problem in status.problems)):
            typer.echo(f"    {text}")
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
    from tracelens_ext.categorize.choices import offered_packs, python_stages
    from tracelens_ext.readers.formats import offered_readers

    packs = offered_packs(registry)
    working = {found.plugin.name for found in packs}
    working |= {found.plugin.name for found in offered_readers(registry)}
    working |= {p.name for p in registry.plugins if any("sheets" in hook for hook in p.hooks)}
    for stage in python_stages(registry):
        with registry.guard(stage.name):
            stage.decide(_PROBE)
            working.add(stage.name)
    found = []
    for plugin in registry.plugins:
        own = [o.item for o in packs if o.plugin.name == plugin.name]
        begins = f"{plugin.name}: "
        names = tuple(f"{pack.name}*" if pack.selectable else pack.name for pack in own)
        problems = [p.removeprefix(begins) for p in registry.problems if p.startswith(begins)]
        found.append(PluginStatus(plugin, names, plugin.name in working, tuple(problems)))
    return found


def formats() -> None:
    """List the formats that are read, what each needs, and how to record it."""
    from tracelens_ext.readers.formats import offered_readers, suffixes_of

    for offered in offered_readers():
        reader = offered.item
        plugin = offered.plugin
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

    from tracelens_ext.cli.screen import Part, console, show_blocks
    from tracelens_ext.readers.cache.folder import OFF_VARIABLE, cache_is_off
    from tracelens_ext.readers.cache.store import TraceCache

    kept = TraceCache.from_environment()
    entries = kept.entries()
    size = sum(entry.size for entry in entries)
    lines = [
        f"Folder: {kept.folder}",
        f"Traces: {len(entries)}, {_megabytes(size)} of {_megabytes(kept.limit)}",
        *([f"Switched off by {OFF_VARIABLE}"] if cache_is_off() else []),
    ]
    rows = [
        {
            "trace": entry.path,
            "size_MB": entry.size / 1e6,
            "last used": f"{datetime.fromtimestamp(entry.used, UTC).astimezone():%Y-%m-%d %H:%M}",
            "state": "usable" if entry.usable else "outdated",
        }
        for entry in entries
    ]
    show_blocks([lines, Part("", pd.DataFrame(rows))], console())


@cache.command()
def clear() -> None:
    """Remove all that the cache holds."""
    from tracelens_ext.readers.cache.store import TraceCache

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
    written = str(out)
    command = f"report {quote(str(out))}"
    if ranks > 1:  # trace.json.gz is trace_rank0.json.gz and so on
        stem, dot, ending = out.name.partition(".json")
        *each, every = (
            out.with_name(f"{stem}_rank{rank}{dot}{ending}") for rank in [*range(ranks), "*"]
        )
        recordings = {f"nvidia_rank{rank}": path for rank, path in enumerate(each)}
        written = f"{each[0]} to {each[-1].name}"
        command = f"fleet {quote(str(every))} -o results"
    for path in recordings.values():
        if not force and (path.exists() or path.is_symlink()) and not is_demo_trace(path):
            remedy = "choose another name, or --force to overwrite"
            raise OutputError(f"{path}: exists and is not a demo trace; {remedy}")
    for name, path in recordings.items():
        copy_recording(name, path)
    size = sum(path.stat().st_size for path in recordings.values()) / 1e6
    told = f"wrote {written} ({size:.1f} MB, of a simulated {vendor} GPU)"
    typer.echo(f"{told}; next: tracelens-ext {command}")


_LONGEST = 200  # characters of a pattern

rules = typer.Typer(help="The rules that give kernels their categories.", no_args_is_help=True)


@rules.command("list")
def list_rules(
    category: str | None = None,
    pack: str | None = None,
    as_json: bool = False,
    *,
    options: shared.RuleOptions,
) -> None:
    """List the rules in the order in which they are tried.

    Options:
        category: Only rules of this category.
        pack: Only rules of this pack.
        as_json --json: Print JSON.
    """
    asked = KernelCategorizer.create(**options.arguments())
    every = [_row(bound, rule) for bound in asked.packs for rule in bound.pack.ordered()]
    wanted = {
        name: one for name, one in (("category", category), ("pack", pack)) if one is not None
    }
    rows = [row for row in every if wanted.items() <= row.items()]
    for name, one in wanted.items() if not rows else ():
        _refuse_unknown(one, {row[name] for row in every})
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        narrow = (screen := console()).width < NARROW
        screen.print(frame_table(pd.DataFrame(rows), columns=_FIRST if narrow else _SHOWN))
        if narrow:
            print_line(f"The other columns need {NARROW} columns of the terminal; --json has them.")
    for problem in asked.problems:
        print_line(f"plugin {problem}", error=True)


@rules.command("show")
def show(pack: str) -> None:
    """Print a pack as a rule file, to read or to start from: rules show gemm > my.toml.

    Operands:
        pack PACK: Its name, as in `rules list`.
    """
    packs = {bound.pack.name: bound.pack for bound in reversed(_installed_packs()[0])}
    _refuse_unknown(pack, set(packs), "no pack is called")
    source = packs[pack].source or ""
    is_file = source.endswith(".toml")
    text = Path(source).read_text("utf-8") if is_file else json_safe(toml_pack(packs[pack]))
    typer.echo(text, nl=False)


@rules.command("check")
def check(files: list[Path] | None = None, strict: bool = False) -> None:
    """Run all examples, find rules that can never win, and patterns that take too long.

    Operands:
        files: Rule packs to check; all installed ones when none are given.

    Options:
        strict: Exit with 1 for warnings too.
    """
    given = [BoundPack(load_pack(path), "rules") for path in files or ()]
    packs, problems = (given, []) if files else _installed_packs()
    told = [(each.severity, f"{each.place}: {each.problem}") for each in check_packs(packs)]
    told += [("error", f"plugin {problem}") for problem in problems]
    for one in told:
        typer.echo(": ".join(one))
    often = Counter(severity for severity, _ in told)
    errors = often["error"]
    warnings = often["warning"]
    rules = [rule for bound in packs for rule in bound.pack.rules]
    examples = sum(len(rule.examples) + len(rule.not_examples) for rule in rules)
    counts = f"{len(packs)} packs, {len(rules)} rules, {examples} examples"
    typer.echo(f"{counts}: {errors} errors, {warnings} warnings")
    if errors or (strict and warnings):
        raise typer.Exit(1)


@rules.command("suggest")
def suggest(
    trace: Path,
    output: Path | None = None,
    top: int = 20,
    rules: list[Path] | None = None,
    *,
    reading: ReadingOptions,
) -> None:
    """Draft rules for the kernels of a trace that no rule knows, the longest GPU time first.

    Operands:
        trace: The trace.

    Options:
        output -o: Write the draft here.
        top 1..: At most this many rules.
    """
    from tracelens_ext.analysis.timeline.overview import whole_graphs

    if output is not None and output.exists():
        raise OutputError(f"{output} exists already, perhaps with your edits; choose another name")
    analyzer = analyze(trace, shared.AnalysisOptions(rules=rules, reading=reading))
    show_problems(analyzer.problems)
    table = analyzer.get_df_kernel_summary()
    unknown = table[(table["kernel_category"] == UNCATEGORIZED) & (table["kind"] == "kernel")]
    if graphs := whole_graphs(analyzer.trace):
        unknown = unknown[~unknown["kernel_name"].isin(graphs)]
        for note in analyzer.trace.provenance.notes:
            tell(f"{trace}: {note}")
    columns = unknown[["kernel_name", "cpu_op", "total_time_ms"]]
    groups = group_unknown(columns.itertuples(index=False, name=None))[:top]
    draft = draft_rules(groups, trace.name)
    if output is None:
        typer.echo(json_safe(draft), nl=False)
    else:
        write_text(output, draft)
        print_line(f"{output}: {len(groups)} rules to edit")


_FIRST = ("rule", "category", "for")
_SHOWN = ("rule", "category", "origin", "vendor", "library", "cpu_op", "for")


def _row(bound: BoundPack, rule: Rule) -> dict[str, Any]:
    return {
        "rule": bound.pack.rule_id(rule),
        "category": rule.category,
        "origin": bound.origin,
        **{name: getattr(rule, name) for name in ("vendor", "library", "cpu_op")},
        "for": rule.about or rule.pattern,
        "pattern": rule.pattern,
        "pack": bound.pack.name,
        "kind": bound.pack.kind,
        "file": bound.pack.source,
    }


def _refuse_unknown(asked: str, known: set[str], what: str = "no rule is of") -> None:
    """Raise when nothing is called what was asked for."""
    from difflib import get_close_matches

    if asked not in known:
        near = get_close_matches(asked, known, n=3, cutoff=0.7)
        listed = f"similar: {', '.join(near)}" if near else f"known: {', '.join(sorted(known))}"
        raise UsageError(f"{what} {asked!r}; {listed}")


def _installed_packs() -> tuple[list[BoundPack], list[str]]:
    """Every pack that is installed, chosen or not, and the plugins that fail."""
    from tracelens_ext.hooks import load_registry

    registry = load_registry()
    taking_part = KernelCategorizer.create(registry=registry).packs
    offered = [each.item for each in offered_packs(registry)]
    to_choose = [BoundPack(pack, "categorizer") for pack in offered if pack.selectable]
    return [*taking_part, *to_choose], registry.problems


def explain(
    name: str | None = None,
    op: str | None = None,
    cpu_op: str | None = None,
    *,
    options: shared.RuleOptions,
) -> None:
    """Show the category of a kernel, the rule that decides it, and what else would match.

    With --op OPERATION the category of a CPU operation, as the sheets ops_… have it.

    Operands:
        name: The kernel's name, as the trace spells it.

    Options:
        op: Explain this CPU operation, not a kernel.
        cpu_op: The CPU operation that launched it.
    """
    from tracelens_ext.categorize.categorizer import explain as explain_name

    if (name is None) == (op is None) or (op is not None and cpu_op is not None):
        raise UsageError("explain: give the NAME of a kernel, or --op OPERATION")
    asked = KernelCategorizer.create(**options.arguments())
    explanation = explain_name(asked, name or op or "", cpu_op, "kernel" if op is None else "op")
    lines = _explained(explanation)
    if op is not None and explanation.category == OTHER_OP:
        told = "an operation that is `other` by its name is judged by the first kernel it launches"
        lines.append(told)
    for line in lines:
        print_line(line)
    for problem in asked.problems:
        print_line(f"plugin {problem}", error=True)


def _explained(explanation: Explanation) -> list[str]:
    """An explanation as lines of text."""
    winner = explanation.winner
    lines = [f"category  {explanation.category}"]
    if winner is None:
        lines.append("no rule matches this name")
    else:
        verdict = winner.verdict
        told = {"vendor": verdict.vendor, "library": verdict.library}
        told |= {"rule": f"{verdict.rule}  ({winner.place})", "for": winner.about}
        told |= {"pattern": winner.pattern, "cpu_op": winner.condition}
        whole = f"…  (whole: tracelens-ext rules show {verdict.pack})"
        for label, text in told.items():
            if text:
                is_long = len(text) > _LONGEST and label in ("pattern", "cpu_op")
                lines.append(f"{label:8}  {text[:_LONGEST] + whole if is_long else text}")
    titles = {
        True: "would have matched, but comes later:",
        False: "matches the name, but was launched by another operation:",
    }
    for holds, title in titles.items():
        others = [match for match in explanation.others if match.holds == holds]
        if others:
            lines += ["", title]
        for match in others:
            verdict = match.verdict
            needs = "" if holds else f", needs cpu_op {match.condition}"
            lines.append(f"  {verdict.category}  {verdict.rule}  ({match.place}){needs}")
    return lines
