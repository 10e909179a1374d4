"""`tracelens-ext rules`: lists and checks the rules, and drafts rules for unknown kernels."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelens_ext.cli.options import (
    AnalysisOptions,
    ReadingFlags,
    RuleOptions,
    UserRules,
)
from tracelens_ext.cli.screen import NARROW, console, print_line, tell, write_text
from tracelens_ext.errors import OutputError, UsageError
from tracelens_ext.hooks import Command
from tracelens_ext.lazy import pd

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracelens_ext.categorize.matcher import BoundPack
    from tracelens_ext.categorize.rules import Rule, RulePack

app = typer.Typer(
    help="The rules that assign categories to kernels.", no_args_is_help=True
)

_FIRST_COLUMNS = ("rule", "category", "for")
_COLUMNS = ("rule", "category", "origin", "vendor", "library", "cpu_op", "for")


@app.command("list")
def list_rules(
    category: Annotated[
        str | None, typer.Option(help="Only rules of this category.")
    ] = None,
    pack: Annotated[str | None, typer.Option(help="Only rules of this pack.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    *,
    options: RuleOptions,
) -> None:
    """List the rules in the order in which they are tried."""
    from tracelens_ext.categorize import KernelCategorizer

    categorizer = KernelCategorizer.create(**options.arguments())
    rows = [
        _row(bound, rule)
        for bound in categorizer.packs
        for rule in bound.pack.ordered()
    ]
    chosen = _chosen_rows(rows, category=category, pack=pack)
    if as_json:
        typer.echo(json.dumps(chosen, indent=2))
    else:
        _show_rules(chosen)
    for problem in categorizer.problems:
        print_line(f"plugin {problem}", error=True)


def _chosen_rows(
    rows: Sequence[dict[str, Any]], *, category: str | None, pack: str | None
) -> list[dict[str, Any]]:
    """Return the rules of a category and a pack.

    Raises:
        UsageError: there is no such category or pack.
    """
    wanted = {}
    if category is not None:
        wanted["category"] = category
    if pack is not None:
        wanted["pack"] = pack
    chosen = [row for row in rows if wanted.items() <= row.items()]
    if not chosen:
        for column, value in wanted.items():
            _refuse_unknown(value, {row[column] for row in rows}, "no rule belongs to")
    return chosen


def _show_rules(rows: Sequence[dict[str, Any]]) -> None:
    """Print rules as a table, with the columns that fit."""
    from tracelens_ext.report.terminal import frame_table

    screen = console()
    is_narrow = screen.width < NARROW
    columns = _FIRST_COLUMNS if is_narrow else _COLUMNS
    screen.print(frame_table(pd.DataFrame(rows), columns=columns))
    if is_narrow:
        print_line(
            f"The other columns need a terminal {NARROW} columns wide; --json prints "
            "them all."
        )


@app.command("show")
def show(
    pack: Annotated[
        str,
        typer.Argument(metavar="PACK", help="Name of the pack, as in `rules list`."),
    ],
) -> None:
    """Print a pack as a rule file, to read or to start from: rules show gemm > my.toml."""
    from tracelens_ext.categorize.drafts import toml_pack
    from tracelens_ext.report.formats import json_safe

    packs: dict[str, RulePack] = {}
    for bound in _installed_packs().packs:
        packs.setdefault(bound.pack.name, bound.pack)
    _refuse_unknown(pack, set(packs), "there is no pack called")
    source = packs[pack].source or ""
    if source.endswith(".toml"):
        text = Path(source).read_text("utf-8")
    else:
        text = json_safe(toml_pack(packs[pack]))
    typer.echo(text, nl=False)


@app.command("check")
def check(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Rule packs to check.  [default: all that are installed]"),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Also exit with 1 for warnings.")
    ] = False,
) -> None:
    """Run all examples; find rules that can never match and patterns that are too slow."""
    from tracelens_ext.categorize import load_pack
    from tracelens_ext.categorize.check import check_packs
    from tracelens_ext.categorize.matcher import BoundPack

    if files:
        installed = _InstalledPacks(
            packs=[BoundPack(load_pack(path), "rules") for path in files], problems=[]
        )
    else:
        installed = _installed_packs()
    severities = Counter[str]()
    for finding in check_packs(installed.packs):
        severities[finding.severity] += 1
        typer.echo(f"{finding.severity}: {finding.place}: {finding.problem}")
    for problem in installed.problems:
        severities["error"] += 1
        typer.echo(f"error: plugin {problem}")
    errors = severities["error"]
    warnings = severities["warning"]
    typer.echo(f"{_counts(installed.packs)}: {errors} errors, {warnings} warnings")
    if errors or (strict and warnings):
        raise typer.Exit(1)


def _counts(packs: Sequence[BoundPack]) -> str:
    """Return a sentence that says how much was checked."""
    rules = [rule for bound in packs for rule in bound.pack.rules]
    examples = sum(len(rule.examples) + len(rule.not_examples) for rule in rules)
    return f"{len(packs)} packs, {len(rules)} rules, {examples} examples"


@app.command("suggest")
def suggest(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="The trace.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file for the draft.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Maximum number of rules.")] = 20,
    rules: UserRules = None,
    *,
    reading: ReadingFlags,
) -> None:
    """Draft rules for the uncategorized kernels of a trace, longest GPU time first."""
    from tracelens_ext.analysis.timeline.overview import whole_graphs
    from tracelens_ext.categorize import UNCATEGORIZED
    from tracelens_ext.categorize.drafts import draft_rules, group_unknown
    from tracelens_ext.cli.load import analyze
    from tracelens_ext.cli.messages import show_problems
    from tracelens_ext.report.formats import json_safe

    if output is not None and output.exists():
        raise OutputError(
            f"{output}: already exists and may contain your edits; choose another name"
        )
    analyzer = analyze(trace, AnalysisOptions(rules=rules, reading=reading))
    show_problems(analyzer.problems)
    kernels = analyzer.get_df_kernel_summary()
    is_unknown = kernels["kernel_category"] == UNCATEGORIZED
    unknown = kernels[is_unknown & (kernels["kind"] == "kernel")]
    graphs = whole_graphs(analyzer.trace)
    if graphs:
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


def _row(bound: BoundPack, rule: Rule) -> dict[str, Any]:
    """Return the row of a rule."""
    return {
        "rule": bound.pack.rule_id(rule),
        "category": rule.category,
        "origin": bound.origin,
        "vendor": rule.vendor,
        "library": rule.library,
        "cpu_op": rule.cpu_op,
        "for": rule.about or rule.pattern,
        "pattern": rule.pattern,
        "pack": bound.pack.name,
        "kind": bound.pack.kind,
        "file": bound.pack.source,
    }


def _refuse_unknown(name: str, known_names: Iterable[str], refusal: str) -> None:
    """Raise an error that lists the known names if a name is not among them."""
    from difflib import get_close_matches

    names = sorted(known_names)
    if name in names:
        return
    similar = get_close_matches(name, names, n=3, cutoff=0.7)
    listed = f"known: {', '.join(names)}"
    if similar:
        listed = f"similar: {', '.join(similar)}"
    raise UsageError(f"{refusal} {name!r}; {listed}")


@dataclass(frozen=True)
class _InstalledPacks:
    """The installed rule packs, and the plugins that failed."""

    packs: list[BoundPack]
    problems: list[str]


def _installed_packs() -> _InstalledPacks:
    """Return all installed packs, including those that only an option selects."""
    from tracelens_ext.categorize import KernelCategorizer
    from tracelens_ext.categorize.choices import offered_packs
    from tracelens_ext.categorize.matcher import BoundPack
    from tracelens_ext.hooks import load_registry

    registry = load_registry()
    packs = list(KernelCategorizer.create(registry=registry).packs)
    packs += [
        BoundPack(offered.item, "categorizer")
        for offered in offered_packs(registry)
        if offered.item.selectable
    ]
    return _InstalledPacks(packs, registry.problems)


COMMAND = Command(
    name="rules",
    summary="List, check and draft category rules.",
    function=app,
    group="Manage",
    examples=(
        "rules list --category GEMM",
        "rules check my_rules.toml",
        "rules suggest trace.json.gz -o my_rules.toml",
    ),
)
