"""`tracelens-ext explain NAME`: why a kernel, or an operation, has its category."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracelens_ext.cli import options as shared
from tracelens_ext.cli.screen import print_line

if TYPE_CHECKING:
    from tracelens_ext.categorize.categorizer import Explanation, Match


_LONGEST: Final = 200


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
    from tracelens_ext.categorize import KernelCategorizer
    from tracelens_ext.categorize.categorizer import explain as explain_name
    from tracelens_ext.categorize.rules import OTHER_OP
    from tracelens_ext.errors import UsageError

    if (name is None) == (op is None) or (op is not None and cpu_op is not None):
        raise UsageError("explain: give the NAME of a kernel, or --op OPERATION")
    asked = KernelCategorizer.create(**options.arguments())
    if name is not None:
        explanation = explain_name(asked, name, cpu_op)
    else:
        explanation = explain_name(asked, op or "", kind="op")
    for line in explanation_lines(explanation):
        print_line(line)
    if op is not None and explanation.category == OTHER_OP:
        print_line(
            "an operation that is `other` by its name is judged by the first kernel it launches"
        )
    for problem in asked.problems:
        print_line(f"plugin {problem}", error=True)


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
        lines += [f"for       {winner.about}"] if winner.about else []
        for label, pattern in (("pattern", winner.pattern), ("cpu_op", winner.condition)):
            if pattern is not None:
                whole = f"…  (whole: tracelens-ext rules show {winner.verdict.pack})"
                cut = pattern if len(pattern) <= _LONGEST else pattern[:_LONGEST] + whole
                lines.append(f"{label:8}  {cut}")
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
