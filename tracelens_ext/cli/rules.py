"""`tracelens-ext rules`: the rules that take part, checked, and drafted for unknown kernels.

And `tracelens-ext explain`: why a kernel, or an operation, has its category.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from tracelens_ext.categorize import UNCATEGORIZED, KernelCategorizer, load_pack
from tracelens_ext.categorize.categorizer import Explanation
from tracelens_ext.categorize.check import check_packs, draft_rules, group_unknown, toml_pack
from tracelens_ext.categorize.maps import offered_packs
from tracelens_ext.categorize.matcher import BoundPack
from tracelens_ext.categorize.rules import OTHER_OP, Rule
from tracelens_ext.cli import options as shared
from tracelens_ext.cli.load import analyze, show_problems
from tracelens_ext.cli.outputs import write_text
from tracelens_ext.cli.screen import NARROW, console, print_line, tell
from tracelens_ext.errors import OutputError, UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.report.formats import json_safe
from tracelens_ext.report.terminal import frame_table
from tracelens_ext.settings import ReadingOptions

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
    wanted = {"category": category, "pack": pack}
    rows = [row for row in every if all(w in (None, row[name]) for name, w in wanted.items())]
    for name, one in wanted.items() if not rows else ():
        _refuse_unknown(one, {row[name] for row in every})
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        screen = console()
        narrow = screen.width < NARROW
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
    packs, _ = _installed_packs()
    found = next((bound.pack for bound in packs if bound.pack.name == pack), None)
    if found is None:
        _refuse_unknown(pack, {bound.pack.name for bound in packs}, "no pack is called")
    elif (found.source or "").endswith(".toml"):
        typer.echo(Path(found.source or "").read_text(encoding="utf-8"), nl=False)
    else:
        typer.echo(json_safe(toml_pack(found)), nl=False)


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
    for severity, text in told:
        typer.echo(f"{severity}: {text}")
    errors, warnings = (sum(s == kind for s, _ in told) for kind in ("error", "warning"))
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
    from tracelens_ext.timeline.overview import whole_graphs

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
        "vendor": rule.vendor,
        "library": rule.library,
        "cpu_op": rule.cpu_op,
        "for": rule.about or rule.pattern,
        "pattern": rule.pattern,
        "pack": bound.pack.name,
        "kind": bound.pack.kind,
        "file": bound.pack.source,
    }


def _refuse_unknown(asked: str | None, known: set[str], what: str = "no rule is of") -> None:
    """Raise when nothing is called what was asked for."""
    from difflib import get_close_matches

    if asked is not None and asked not in known:
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
    for line in _lines(explanation):
        print_line(line)
    if op is not None and explanation.category == OTHER_OP:
        print_line(
            "an operation that is `other` by its name is judged by the first kernel it launches"
        )
    for problem in asked.problems:
        print_line(f"plugin {problem}", error=True)


def _lines(explanation: Explanation) -> list[str]:
    """An explanation as lines of text."""
    winner, lines = explanation.winner, [f"category  {explanation.category}"]
    if winner is None:
        lines.append("no rule matches this name")
    else:
        told = {
            "vendor": winner.verdict.vendor,
            "library": winner.verdict.library,
            "rule": f"{winner.verdict.rule}  ({winner.place})",
            "for": winner.about,
            "pattern": winner.pattern,
            "cpu_op": winner.condition,
        }
        whole = f"…  (whole: tracelens-ext rules show {winner.verdict.pack})"
        for label, text in told.items():
            if text:
                is_long = len(text) > _LONGEST and label in ("pattern", "cpu_op")
                lines.append(f"{label:8}  {text[:_LONGEST] + whole if is_long else text}")
    for holds, title in (
        (True, "would have matched, but comes later:"),
        (False, "matches the name, but was launched by another operation:"),
    ):
        others = [match for match in explanation.others if match.holds == holds]
        lines += ["", title] if others else []
        for match in others:
            needs = "" if holds else f", needs cpu_op {match.condition}"
            lines.append(
                f"  {match.verdict.category}  {match.verdict.rule}  ({match.place}){needs}"
            )
    return lines
