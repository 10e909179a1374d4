"""Why a kernel or operation has its category: which rule won, which others would have matched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens_ext.categorize.matcher import BoundRule, Matcher, RuleTimeoutError
from tracelens_ext.categorize.rules import OTHER_OP, UNCATEGORIZED
from tracelens_ext.hooks.guard import guarded, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens_ext.categorize.categorizer import KernelCategorizer
    from tracelens_ext.categorize.rules import PackKind, Verdict
    from tracelens_ext.categorize.stages import PythonStage, Stage


@dataclass(frozen=True, slots=True)
class Match:
    """A rule, or a Python categoriser, that has something to say about a kernel."""

    verdict: Verdict  #: what it says
    place: str  #: the file and rule, or the plugin
    pattern: str | None = None  #: the rule's pattern, or None for Python
    about: str | None = None  #: what the rule says it is for, or None
    condition: str | None = None  #: the rule's condition on the launching operation, or None
    holds: bool = True  #: whether the launching operation fulfils the condition


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a kernel, or an operation, has its category."""

    name: str  #: of the kernel or operation
    cpu_op: str | None  #: the operation that launched the kernel, or None
    category: str
    winner: Match | None  #: what decided, or None when nothing matched
    others: tuple[Match, ...]  #: what else matches the name, in order of precedence


def explain(
    categorizer: KernelCategorizer,
    name: str,
    cpu_op: str | None = None,
    kind: PackKind = "kernel",
) -> Explanation:
    """Say which rule gives a kernel or operation its category, and what else would match."""
    matches = [
        match
        for stage in categorizer.stages(kind)
        for match in _stage_matches(stage, name, cpu_op, categorizer.problems)
    ]
    winner = next((match for match in matches if match.holds), None)
    unknown = UNCATEGORIZED if kind == "kernel" else OTHER_OP
    category = unknown if winner is None else winner.verdict.category
    others = tuple(match for match in matches if match is not winner)
    return Explanation(name, cpu_op, category, winner, others)


def _stage_matches(
    stage: Stage, kernel_name: str, cpu_op: str | None, problems: list[str]
) -> Iterator[Match]:
    if isinstance(stage, Matcher):
        for bound in stage.candidates(kernel_name):
            if not _finds(bound, kernel_name, problems):
                continue
            holds = bound.allows(cpu_op)
            # A rule about operations alone has nothing to do with a kernel of another one.
            if holds or not bound.rule.takes_any_name:
                yield Match(
                    bound.verdict,
                    bound.pack.where(bound.rule),
                    bound.rule.pattern,
                    bound.rule.about,
                    bound.rule.cpu_op,
                    holds,
                )
    else:
        verdict = _python_verdict(stage, kernel_name, cpu_op, problems)
        if verdict is not None:
            yield Match(verdict, f"Python categoriser {stage.name}")


def _finds(bound: BoundRule, kernel_name: str, problems: list[str]) -> bool:
    try:
        return bound.finds(kernel_name)
    except RuleTimeoutError as error:
        if bound.origin != "plugin":
            raise
        problems.append(f"{bound.pack.name}: {one_line(error)}")
        return False


def _python_verdict(
    stage: PythonStage, kernel_name: str, cpu_op: str | None, problems: list[str]
) -> Verdict | None:
    if stage.own_risk:
        return stage.decide([(kernel_name, cpu_op)])[0]
    with guarded(stage.name, problems):
        return stage.decide([(kernel_name, cpu_op)])[0]
    return None
