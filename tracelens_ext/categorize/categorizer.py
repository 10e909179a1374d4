"""The categorizer, which assigns every category in every table, report and chart.

The first rule that matches decides. Rules are tried in this order: the user's rule files, the
plugin or map that the user chose, other installed plugins, and the built-in packs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from tracelens_ext.categorize.choices import (
    CategorizerLike,
    choose,
    offered_packs,
)
from tracelens_ext.categorize.matcher import (
    BoundPack,
    BoundRule,
    Matcher,
    PythonStage,
    RuleTimeoutError,
    Source,
    Stage,
)
from tracelens_ext.categorize.rule_files import load_pack
from tracelens_ext.categorize.rules import (
    OTHER_OP,
    UNCATEGORIZED,
    UNKNOWN,
    Decisions,
    Kernel,
    PackKind,
    RulePack,
    RuleVerdict,
)
from tracelens_ext.categorize.sources import (
    Paths,
    builtin_sources,
    plugin_sources,
    used_by_default,
    user_choices,
    usual_pack,
)
from tracelens_ext.compatibility.earlier_arguments import takes_old_arguments
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import PluginRegistry, default_registry
from tracelens_ext.hooks.registry import guarded, one_line
from tracelens_ext.lazy import pd


class KernelCategorizer:
    """Assigns categories to kernels. `create` makes one.

    A categorizer does not change afterwards, except that a plugin that fails is no longer used.

    Attributes:
        problems: a line `NAME: error` for each plugin that failed.
    """

    def __init__(self, sources: Sequence[Source], problems: Iterable[str] = ()) -> None:
        self.problems: list[str] = list(problems)
        self._sources = list(sources)
        self._stages: dict[PackKind, list[Stage]] = {}

    @classmethod
    @takes_old_arguments
    def create(
        cls,
        *,
        rules: Paths = (),
        categorizer: CategorizerLike | None = None,
        maps: Paths = (),
        disabled_packs: Sequence[str] = (),
        plugins: bool = True,
        registry: PluginRegistry | None = None,
        framework: str = "",
    ) -> KernelCategorizer:
        """Create a categorizer from the rules of a run.

        Args:
            rules: TOML rule files of the user, which are tried first, in this order.
            categorizer: what is tried next: the name of a selectable pack (`jax`, `vllm:gpt-oss`),
                another pack or a plugin; a JSON file with a map; a mapping (`{"xmma_gemm": "gemm"}`
                or an engine/model map of one model); or a function. The function is called with a
                table of distinct kernels with the columns `kernel_name` and `cpu_op`, and returns a
                category or None for each row.
            maps: folders with engine/model maps (`*.json`), in addition to the user's own folder.
            disabled_packs: names of packs that are not used, although they are used by default.
            plugins: False to use no plugins of other distributions.
            registry: the plugins to use instead of the installed ones.
            framework: the framework that recorded the trace, such as `JAX`. The usual pack of the
                framework is used if there is no `categorizer`.

        Raises:
            RuleError: a rule file or map is invalid.
            UsageError: there is no categorizer or pack with the given name.
        """
        registry = registry or default_registry(plugins=plugins)
        _refuse_text("rules", rules)
        _refuse_text("maps", maps)
        _refuse_text("disabled_packs", disabled_packs)
        packs_of_user = [
            pack if isinstance(pack, RulePack) else load_pack(pack) for pack in rules
        ]
        offered = offered_packs(registry)
        if categorizer is None and framework:
            categorizer = usual_pack(offered, framework)
        choices = user_choices(maps, registry, offered)
        chosen = choose(categorizer, choices)
        default_packs = used_by_default(offered, disabled_packs, chosen)
        sources: list[Source] = [BoundPack(pack, "rules") for pack in packs_of_user]
        sources += chosen
        sources += plugin_sources(registry, default_packs, chosen)
        sources += builtin_sources(default_packs)
        return cls(sources, registry.problems)

    def categorize(
        self, names: Collection[str], cpu_ops: Collection[str | None] | None = None
    ) -> Decisions:
        """Categorize kernels; return the decisions in the order of the names.

        Each distinct kernel is categorized only once.

        Args:
            names: the names of the kernels.
            cpu_ops: the operations that launched the kernels, None for unknown ones.

        Raises:
            RuleError: a rule of the user takes too long on a name.
            UsageError: the two lists differ in length, or a function of the caller does not return
                a category for each row.
        """
        _refuse_text("names", names)
        operations = [None] * len(names) if cpu_ops is None else cpu_ops
        if len(operations) != len(names):
            raise UsageError(
                f"expected as many cpu_ops as names ({len(names)}), got {len(operations)}"
            )
        # Operations of a table column may be NaN instead of None.
        known_operations = (
            operation if isinstance(operation, str) else None
            for operation in operations
        )
        verdicts = self._decide(list(zip(names, known_operations, strict=True)))
        return Decisions(
            category=[verdict.category for verdict in verdicts],
            vendor=[verdict.vendor for verdict in verdicts],
            library=[verdict.library for verdict in verdicts],
            rule=[verdict.rule for verdict in verdicts],
            pack=[verdict.pack for verdict in verdicts],
            known=[verdict.known for verdict in verdicts],
        )

    def categorize_ops(self, op_names: Collection[str]) -> list[str]:
        """Return the category of each CPU operation, by the packs of kind `op`.

        Operations that match no rule have the category `other`.
        """
        _refuse_text("op_names", op_names)
        names_without_op = [(name, None) for name in op_names]
        categories = []
        for verdict in self._decide(names_without_op, kind="op"):
            category = OTHER_OP if verdict is UNKNOWN else verdict.category
            categories.append(category)
        return categories

    def stages(self, kind: PackKind = "kernel") -> list[Stage]:
        """Return the stages that decide about kernels, or about operations, in order."""
        if kind not in self._stages:
            stages: list[Stage] = []
            for _, neighbors in groupby(self._sources, type):
                stages += _stages_of_neighbors(list(neighbors), kind)
            self._stages[kind] = stages
        return self._stages[kind]

    @property
    def is_builtin(self) -> bool:
        """True if the categorizer uses the built-in packs only."""
        builtin = builtin_categorizer()
        return self is builtin or self.packs == builtin.packs == self._sources

    @property
    def packs(self) -> list[BoundPack]:
        """The packs that are used, in order of precedence."""
        return [source for source in self._sources if isinstance(source, BoundPack)]

    def _decide(
        self, kernels: Sequence[Kernel], kind: PackKind = "kernel"
    ) -> list[RuleVerdict]:
        """Return the verdict on each kernel."""
        distinct_kernels = list(dict.fromkeys(kernels))
        verdicts: dict[Kernel, RuleVerdict] = {}
        try:
            for stage in self.stages(kind):
                undecided = [
                    kernel for kernel in distinct_kernels if kernel not in verdicts
                ]
                if not undecided:
                    break
                # Rules get only the undecided kernels, but a function gets all distinct kernels.
                asked_kernels = (
                    undecided if isinstance(stage, Matcher) else distinct_kernels
                )
                stage_verdicts = self._verdicts_of_stage(stage, asked_kernels)
                for kernel, verdict in zip(asked_kernels, stage_verdicts, strict=False):
                    if verdict is not None:
                        verdicts.setdefault(kernel, verdict)
        except RuleTimeoutError as error:
            self._note_timeout(error)
            self._stop_using(error.bound.pack)
            return self._decide(kernels, kind)
        return [verdicts.get(kernel, UNKNOWN) for kernel in kernels]

    def _note_timeout(self, error: RuleTimeoutError) -> None:
        """Note that a rule of a plugin takes too long.

        Raises:
            RuleTimeoutError: the rule is not one of a plugin, so that the user can fix it.
        """
        if error.bound.origin != "plugin":
            raise error
        self.problems.append(f"{error.bound.pack.name}: {one_line(error)}")

    def _verdicts_of_stage(
        self, stage: Stage, kernels: Sequence[Kernel]
    ) -> Sequence[RuleVerdict | None]:
        """Return the verdicts of a stage on kernels.

        If a plugin fails, the result is empty and the plugin is no longer used.
        """
        if isinstance(stage, Matcher) or stage.raises_errors:
            return stage.decide(kernels)
        with guarded(stage.name, self.problems):
            return stage.decide(kernels)
        self._stop_using(stage)
        return []

    def matches(
        self, stage: Stage, name: str, cpu_op: str | None
    ) -> Iterator[RuleMatch]:
        """Yield the rules of a stage that match a kernel, or the verdict of a function."""
        if not isinstance(stage, Matcher):
            for verdict in self._verdicts_of_stage(stage, [(name, cpu_op)]):
                if verdict is not None:
                    yield RuleMatch(verdict, f"Python categorizer {stage.name}")
            return
        for bound in stage.candidates(name):
            try:
                finds_name = bound.finds(name)
            except RuleTimeoutError as error:
                self._note_timeout(error)
                continue
            if not finds_name:
                continue
            holds = bound.allows(cpu_op)
            # A rule that only depends on the operation does not match kernels of other operations.
            if holds or not bound.rule.takes_any_name:
                yield _match(bound, holds=holds)

    def _stop_using(self, failed: RulePack | PythonStage) -> None:
        """Remove a pack or a function that failed."""
        self._sources = [
            source for source in self._sources if _pack_or_stage(source) is not failed
        ]
        self._stages.clear()


def _pack_or_stage(source: Source) -> RulePack | PythonStage:
    if isinstance(source, BoundPack):
        return source.pack
    return source


def _stages_of_neighbors(sources: Sequence[Source], kind: PackKind) -> list[Stage]:
    """Return the stages of sources of one type: a single one for all packs, one per function."""
    rules: list[BoundRule] = []
    functions: list[Stage] = []
    for source in sources:
        if isinstance(source, PythonStage):
            functions.append(source)
        elif source.pack.kind == kind:
            rules += source.bound_rules()
    if rules:
        return [Matcher(rules)]
    # Functions categorize kernels, not operations.
    return functions if kind == "kernel" else []


@lru_cache(maxsize=1)
def builtin_categorizer() -> KernelCategorizer:
    """Return the categorizer that uses only the packs of this distribution."""
    return KernelCategorizer.create(plugins=False)


def categorize_kernels(
    names: Collection[str],
    cpu_ops: Collection[str | None] | None = None,
    categorizer: CategorizerLike | KernelCategorizer | None = None,
) -> pd.DataFrame:
    """Categorize kernels by their names, and by the operations that launched them if known.

    Args:
        names: kernel names as a trace contains them (demangled or mangled, from any profiler).
        cpu_ops: the CPU operation that launched each kernel, None if it is not known.
        categorizer: what to try before the installed plugins and the built-in packs: a name
            (`"jax"`, `"vllm:gpt-oss"`), a substring or engine/model map, a function of the table
            of distinct kernels, or a `KernelCategorizer`.

    Returns:
        A row for each name, in the order of the names: `kernel_category` (`Uncategorized` if no
        rule matches), `vendor`, `library`, `rule` and `pack` (None if not known).

    Raises:
        RuleError: a map is invalid, or one of its patterns takes too long.
        UsageError: there is no categorizer of the given name, or the lists differ in length.

    Example:
        >>> categorize_kernels(["nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT"]).kernel_category.item()
        'GEMM'
    """
    if not isinstance(categorizer, KernelCategorizer):
        categorizer = KernelCategorizer.create(categorizer=categorizer)
    decisions = categorizer.categorize(names, cpu_ops)
    return decisions.to_frame()


def _refuse_text(argument: str, value: object) -> None:
    """Refuse a single text in place of a list: Python would take it for a list of letters.

    Raises:
        UsageError: the value is a text.
    """
    if isinstance(value, (str, bytes, os.PathLike)):
        raise UsageError(f"{argument}: expected a list, got the single value {value!r}")


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """A rule that matches a kernel, or a Python categorizer that has a category for it."""

    verdict: RuleVerdict  #: the verdict on the kernel
    place: str  #: the file and number of the rule, or the name of the plugin
    #: the pattern of the rule; None for a Python categorizer
    pattern: str | None = None
    about: str | None = None  #: the description in the rule; None if there is none
    #: the condition of the rule on the launching operation; None if there is none
    condition: str | None = None
    holds: bool = True  #: True if the launching operation fulfills the condition


def _match(bound: BoundRule, *, holds: bool) -> RuleMatch:
    rule = bound.rule
    return RuleMatch(
        verdict=bound.verdict,
        place=bound.pack.where(rule),
        pattern=rule.pattern,
        about=rule.about,
        condition=rule.cpu_op,
        holds=holds,
    )


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reason why a kernel or an operation has its category."""

    category: str
    winner: RuleMatch | None  #: the match that decided; None if nothing matched
    #: the other matches of the name, in order of precedence
    others: tuple[RuleMatch, ...]


def explain(
    categorizer: KernelCategorizer,
    name: str,
    cpu_op: str | None = None,
    kind: PackKind = "kernel",
) -> Explanation:
    """Return which rule decides the category of a kernel or operation, and which others match."""
    stages = list(categorizer.stages(kind))
    matches = [
        match for stage in stages for match in categorizer.matches(stage, name, cpu_op)
    ]
    winner = next((match for match in matches if match.holds), None)
    if winner is not None:
        category = winner.verdict.category
    elif kind == "kernel":
        category = UNCATEGORIZED
    else:
        category = OTHER_OP
    others = tuple(match for match in matches if match is not winner)
    return Explanation(category=category, winner=winner, others=others)
