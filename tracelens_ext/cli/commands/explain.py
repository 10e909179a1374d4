"""`tracelens-ext explain`: explains the category of a kernel or operation, or a finding."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tracelens_ext.cli.options import RuleOptions
from tracelens_ext.cli.screen import WIDEST_TEXT, print_line, screen_width
from tracelens_ext.compatibility.earlier_names import new_finding_id
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import Command

if TYPE_CHECKING:
    from tracelens_ext.categorize.categorizer import Explanation

#: The first argument if the second is the id of a finding.
_FINDING = "finding"
_LONGEST = 200  # characters of a pattern


def explain(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of the kernel, as spelled in the trace; or the word finding."
        ),
    ] = None,
    identifier: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="After finding: which one, e.g. host-bound."),
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

    With finding ID: what a finding means, when it does not apply, and what to do about it.
    """
    if name == _FINDING and op is None and cpu_op is None:
        _explain_finding(identifier)
        return
    if identifier is not None:
        raise UsageError("explain: give one NAME, or finding and its ID")
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


def _explain_finding(identifier: str | None) -> None:
    """Print the text about a finding; without an id, the ids."""
    from tracelens_ext.findings.explanations import explanations
    from tracelens_ext.report.simple_markdown import lines_of

    texts = explanations()
    if identifier is None:
        print_line("Findings; explain one with: tracelens-ext explain finding ID")
        for known in sorted(texts):
            print_line(f"  {known}")
        return
    text = texts.get(new_finding_id(identifier))
    if text is None:
        nearest = get_close_matches(identifier, texts, 1)
        hint = (
            f"did you mean {nearest[0]!r}?"
            if nearest
            else "see the list: explain finding"
        )
        raise UsageError(f"there is no text about a finding {identifier!r}; {hint}")
    for line in [new_finding_id(identifier), "", *lines_of(text, _text_width())]:
        print_line(line)


def _text_width() -> int:
    return min(screen_width(), WIDEST_TEXT)


def _lines(explanation: Explanation) -> Iterator[str]:
    """Yield the lines of an explanation."""
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
    """Yield the lines about the rule that decides."""
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
    summary="Explain the category of a kernel, or a finding.",
    function=explain,
    group="Diagnose",
    examples=(
        "explain ampere_sgemm_128x64_tn",
        "explain finding host-bound",
        "explain --op aten::linear",
        "explain my_kernel --rules my_rules.toml",
    ),
)
