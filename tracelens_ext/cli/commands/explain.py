"""`tracelens-ext explain`: why a kernel, or an operation, has its category."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tracelens_ext.cli.options import RuleOptions
from tracelens_ext.cli.screen import print_line
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import Command

if TYPE_CHECKING:
    from tracelens_ext.categorize.categorizer import Explanation

_LONGEST = 200  # characters of a pattern


def explain(
    name: Annotated[
        str | None, typer.Argument(help="Name of the kernel, as spelled in the trace.")
    ] = None,
    op: Annotated[
        str | None, typer.Option(help="Explain this CPU operation instead of a kernel.")
    ] = None,
    cpu_op: Annotated[
        str | None, typer.Option(help="CPU operation that launched the kernel.")
    ] = None,
    *,
    options: RuleOptions,
) -> None:
    """Show the category of a kernel, the rule that decides it, and what else would match.

    With --op OPERATION: the category of a CPU operation, as in the sheets ops_….
    """
    from tracelens_ext.categorize import KernelCategorizer
    from tracelens_ext.categorize.categorizer import explain as explain_name
    from tracelens_ext.categorize.rules import OTHER_OP

    names_one_of_both = (name is None) != (op is None)
    if not names_one_of_both or (op is not None and cpu_op is not None):
        raise UsageError("explain: give the NAME of a kernel, or --op OPERATION")
    categorizer = KernelCategorizer.create(**options.arguments())
    kind: Literal["kernel", "op"] = "kernel" if op is None else "op"
    explanation = explain_name(
        categorizer=categorizer, name=name or op or "", cpu_op=cpu_op, kind=kind
    )
    for line in _lines(explanation):
        print_line(line)
    if op is not None and explanation.category == OTHER_OP:
        print_line(
            "an operation whose name gives `other` takes the category of the first "
            "kernel it launches"
        )
    for problem in categorizer.problems:
        print_line(f"plugin {problem}", error=True)


def _lines(explanation: Explanation) -> Iterator[str]:
    """Yield an explanation as lines of text."""
    yield f"category  {explanation.category}"
    yield from _winner_lines(explanation)
    late = [match for match in explanation.others if match.holds]
    if late:
        yield ""
        yield "also match, but have lower precedence:"
        for match in late:
            yield f"  {match.verdict.category}  {match.verdict.rule}  ({match.place})"
    unfit = [match for match in explanation.others if not match.holds]
    if unfit:
        yield ""
        yield "match the name, but require another launching operation:"
        for match in unfit:
            line = f"  {match.verdict.category}  {match.verdict.rule}  ({match.place})"
            yield f"{line}, needs cpu_op {match.condition}"


def _winner_lines(explanation: Explanation) -> Iterator[str]:
    """Yield all about the rule that decides, a line each."""
    winner = explanation.winner
    if winner is None:
        yield "no rule matches this name"
        return
    verdict = winner.verdict
    facts = {
        "vendor": verdict.vendor,
        "library": verdict.library,
        "rule": f"{verdict.rule}  ({winner.place})",
        "for": winner.about,
        "pattern": winner.pattern,
        "cpu_op": winner.condition,
    }
    for label, text in facts.items():
        if not text:
            continue
        if len(text) > _LONGEST and label in ("pattern", "cpu_op"):
            whole = f"(whole pack: tracelens-ext rules show {verdict.pack})"
            text = f"{text[:_LONGEST]}…  {whole}"
        yield f"{label:8}  {text}"


COMMAND = Command(
    name="explain",
    summary="Show which rule decides the category of a kernel.",
    function=explain,
    group="Diagnose",
    examples=(
        "explain ampere_sgemm_128x64_tn",
        "explain --op aten::linear",
        "explain my_kernel --rules my_rules.toml",
    ),
)
