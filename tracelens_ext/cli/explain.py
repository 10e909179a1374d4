"""`tracelens-ext explain NAME`: why a kernel has its category."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.messages import say

if TYPE_CHECKING:
    from tracelens_ext.categorize.explain import Explanation, Match


def explain(
    name: Annotated[str, typer.Argument(help="The kernel's name, as the trace spells it.")],
    cpu_op: Annotated[
        str | None, typer.Option("--cpu-op", help="The CPU operation that launched it.")
    ] = None,
    rules: shared.Rules = None,
    categorizer: shared.Categorizer = None,
    maps: shared.Maps = None,
) -> None:
    """Show the category of a kernel, the rule that decides it, and what else would match."""
    from tracelens_ext.categorize import KernelCategorizer
    from tracelens_ext.categorize.explain import explain as explain_kernel

    asked = KernelCategorizer.create(rules=rules or (), categorizer=categorizer, maps=maps or ())
    for line in explanation_lines(explain_kernel(asked, name, cpu_op)):
        say(line)
    for problem in asked.problems:
        say(f"plugin {problem}", error=True)


def explanation_lines(explanation: Explanation) -> list[str]:
    """An explanation as lines of text."""
    winner = explanation.winner
    if winner is None:
        lines = [f"category  {explanation.category}", "no rule matches this name"]
    else:
        lines = [f"category  {explanation.category}"]
        lines += [f"vendor    {winner.verdict.vendor}"] if winner.verdict.vendor else []
        lines += [f"library   {winner.verdict.library}"] if winner.verdict.library else []
        lines += [f"rule      {winner.verdict.rule}  ({winner.place})"]
        lines += [f"pattern   {winner.pattern}"] if winner.pattern is not None else []
        lines += [f"cpu_op    {winner.condition}"] if winner.condition else []
    held = [match for match in explanation.others if match.holds]
    failed = [match for match in explanation.others if not match.holds]
    if held:
        lines += ["", "would have matched, but comes later:"]
        lines += [f"  {_short(match)}" for match in held]
    if failed:
        lines += ["", "matches the name, but was launched by another operation:"]
        lines += [f"  {_short(match)}, needs cpu_op {match.condition}" for match in failed]
    return lines


def _short(match: Match) -> str:
    return f"{match.verdict.category}  {match.verdict.rule}  ({match.place})"
