"""The stages that kernels pass through: blocks of rules, and Python functions between them.

Each stage answers for the kernels that the stages before it left open.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracelens_ext.categorize.matcher import BoundRule, Matcher, Origin
from tracelens_ext.categorize.rules import UNCATEGORIZED, Verdict
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.text import encodable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracelens_ext.categorize.rules import Kernel, PackKind, RulePack


@dataclass(frozen=True)
class PythonStage:
    """A Python categoriser: a plugin's, or a function the caller passed."""

    name: str  #: the plugin, or the function's own name
    call: Callable[[pd.DataFrame], Any]  #: given the table of kernels, answers a column
    #: True for a function the caller passed: its errors are raised, not noted
    own_risk: bool = False
    priority: int = 0  #: among plugins

    def decide(self, kernels: Sequence[Kernel]) -> list[Verdict | None]:
        """The function's verdict for each kernel; None where it has no opinion.

        Raises:
            UsageError: the answer has the wrong length or is not made of texts.
        """
        table = pd.DataFrame(
            {
                "kernel_name": pd.Series([name for name, _ in kernels], dtype="object"),
                "cpu_op": pd.Series([cpu_op for _, cpu_op in kernels], dtype="object"),
            }
        )
        wanted = (
            "it is called once, with a table whose columns are kernel_name and cpu_op, and answers"
            " a category or None for each row; give a function f of one name as"
            " lambda table: [f(name) for name in table.kernel_name]"
        )
        try:
            answer = self.call(table)
        except Exception as error:
            if self.own_risk:
                error.add_note(f"categorizer {self.name}: {wanted}")
            raise
        if isinstance(answer, (str, bytes)) or not hasattr(answer, "__len__"):
            raise UsageError(
                f"categorizer {self.name}: expected a column of {len(kernels)} categories, "
                f"got {type(answer).__name__}; {wanted}"
            )
        if len(answer) != len(kernels):
            raise UsageError(
                f"categorizer {self.name}: expected {len(kernels)} categories, one a row of the "
                f"table, got {len(answer)}; {wanted}"
            )
        verdicts = [self._verdict(category) for category in list(answer)]
        if self.own_risk and verdicts and not any(verdicts):
            warnings.warn(
                f"categorizer {self.name}: has no category for any of {len(kernels)} kernels;"
                f" {wanted}",
                UserWarning,
                stacklevel=2,
            )
        return verdicts

    def _verdict(self, category: object) -> Verdict | None:
        if isinstance(category, str) and category:
            known = category != UNCATEGORIZED
            return Verdict(encodable(category), rule=self.name, pack=self.name, known=known)
        if category == "" or _says_nothing(category):
            return None
        raise UsageError(
            f"categorizer {self.name}: expected categories as texts or None, got {category!r}"
        )


@dataclass(frozen=True)
class BoundPack:
    """A rule pack that takes part in a run."""

    pack: RulePack  #: the pack
    origin: Origin  #: where it came from
    limited: bool = True  #: search its patterns under a time limit; False for vetted packs

    @property
    def name(self) -> str:
        """The pack's name."""
        return self.pack.name

    @property
    def priority(self) -> int:
        """The pack's priority among those of its origin."""
        return self.pack.priority

    def bound_rules(self) -> list[BoundRule]:
        """The pack's rules, in the order they are tried."""
        return [
            BoundRule(rule, self.pack, self.origin, self.limited) for rule in self.pack.ordered()
        ]


Source = BoundPack | PythonStage
Stage = Matcher | PythonStage


def build_stages(sources: Iterable[Source], kind: PackKind) -> list[Stage]:
    """Join neighbouring rule packs of one kind, so that names are indexed once for all of them.

    Sources come in order of precedence; functions are asked about kernels only.
    """
    stages: list[Stage] = []
    rules: list[BoundRule] = []
    for source in sources:
        if isinstance(source, BoundPack):
            rules += source.bound_rules() if source.pack.kind == kind else []
        elif kind == "kernel":
            stages += [Matcher(rules)] if rules else []
            stages.append(source)
            rules = []
    stages += [Matcher(rules)] if rules else []
    return stages


def _says_nothing(value: Any) -> bool:  # noqa: ANN401
    """Whether a value is one of the ways in which a column has no entry: None, NaN, NaT, NA."""
    return value is None or (pd.api.types.is_scalar(value) and bool(pd.isna(value)))
