"""The one categorizer: every category in every table, report and chart comes from here.

Order of precedence, the first answer wins: the user's rule files; the plugin or map the user
chose; other installed plugins; the built-in packs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from tracelens_ext.categorize.choices import (
    CategorizerLike,
    Choices,
    choose,
    offered_packs,
    python_stages,
    user_maps,
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
from tracelens_ext.compatibility.earlier_arguments import takes_old_arguments
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import Offered, PluginRegistry, default_registry
from tracelens_ext.hooks.registry import guarded, one_line
from tracelens_ext.lazy import pd

#: Files (or folders) of rules, or what was read of them.
Paths = Sequence["str | os.PathLike[str] | RulePack"]


class KernelCategorizer:
    """Gives kernels their categories. Made by `create`; does not change afterwards.

    Attributes:
        problems: what failed in plugins, each `NAME: error` in one line; a plugin that fails
            while kernels are categorized adds a line and is left out from then on.
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
        """Put together the rules of a run.

        Args:
            rules: TOML rule files of the user; they come first, in this order.
            categorizer: what is asked next: the name of a selectable pack (`jax`, `vllm:gpt-oss`),
                pack or plugin; a JSON file with a map; a mapping (`{"xmma_gemm": "gemm"}` or an
                engine/model map of one model); or a function of a table with `kernel_name` and
                `cpu_op`, a row a distinct pair, that answers a category (or None) a row.
            maps: folders with engine/model maps (`*.json`), besides the user's own.
            disabled_packs: the names of packs that take no part, though they would unasked.
            plugins: False to leave out what other distributions have installed.
            registry: the plugins to use instead of the installed ones.
            framework: what ran, such as `JAX`: its usual pack is asked without a `categorizer`.

        Raises:
            RuleError: a rule file or map is invalid.
            UsageError: nothing is called `categorizer`, or as one of `disabled_packs`.
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
            categorizer = _usual_pack(offered, framework)
        choices = _choices(maps, registry, offered)
        chosen = choose(categorizer, choices)
        unasked = _unasked_packs(offered, disabled_packs, chosen)
        sources: list[Source] = [BoundPack(pack, "rules") for pack in packs_of_user]
        sources += chosen
        sources += _sources_of_plugins(registry, unasked, chosen)
        sources += _builtin_sources(unasked)
        return cls(sources, registry.problems)

    def categorize(
        self, names: Collection[str], cpu_ops: Collection[str | None] | None = None
    ) -> Decisions:
        """Categorize kernels, each distinct one once: the decisions, in the order asked.

        Args:
            names: those of the kernels.
            cpu_ops: the operations that launched them, None where one is not known.

        Raises:
            RuleError: a rule of the user takes too long on a name.
            UsageError: the two lists differ in length, or a function of the caller answers
                something else than a category a row.
        """
        _refuse_text("names", names)
        operations = [None] * len(names) if cpu_ops is None else cpu_ops
        if len(operations) != len(names):
            got = len(operations)
            raise UsageError(
                f"expected as many cpu_ops as names ({len(names)}), got {got}"
            )
        texts_or_none = (
            operation if isinstance(operation, str) else None
            for operation in operations
        )
        verdicts = self._decide(list(zip(names, texts_or_none, strict=True)))
        return Decisions(
            category=[verdict.category for verdict in verdicts],
            vendor=[verdict.vendor for verdict in verdicts],
            library=[verdict.library for verdict in verdicts],
            rule=[verdict.rule for verdict in verdicts],
            pack=[verdict.pack for verdict in verdicts],
            known=[verdict.known for verdict in verdicts],
        )

    def categorize_ops(self, op_names: Collection[str]) -> list[str]:
        """Return a category for each CPU operation by the packs of kind `op`.

        `other` is that of an operation without a rule.
        """
        _refuse_text("op_names", op_names)
        names_without_op = [(name, None) for name in op_names]
        categories = []
        for verdict in self._decide(names_without_op, kind="op"):
            category = OTHER_OP if verdict is UNKNOWN else verdict.category
            categories.append(category)
        return categories

    def stages(self, kind: PackKind = "kernel") -> list[Stage]:
        """Return what kernels (or operations) pass through, in order."""
        if kind not in self._stages:
            stages: list[Stage] = []
            for _, neighbours in groupby(self._sources, type):
                stages += _stages_of_neighbours(list(neighbours), kind)
            self._stages[kind] = stages
        return self._stages[kind]

    @property
    def is_builtin(self) -> bool:
        """True if it asks the built-in packs and nothing else."""
        builtin = builtin_categorizer()
        return self is builtin or self.packs == builtin.packs == self._sources

    @property
    def packs(self) -> list[BoundPack]:
        """The packs that take part, in order of precedence."""
        return [source for source in self._sources if isinstance(source, BoundPack)]

    def _decide(
        self, kernels: Sequence[Kernel], kind: PackKind = "kernel"
    ) -> list[RuleVerdict]:
        """Return the verdict for each kernel."""
        distinct = list(dict.fromkeys(kernels))
        verdicts: dict[Kernel, RuleVerdict] = {}
        try:
            for stage in self.stages(kind):
                pending = [kernel for kernel in distinct if kernel not in verdicts]
                if not pending:
                    break
                # Rules answer for what is still open, a Python categorizer sees every kernel.
                undecided = pending if isinstance(stage, Matcher) else distinct
                for kernel, verdict in zip(
                    undecided, self._ask(stage, undecided), strict=False
                ):
                    if verdict is not None:
                        verdicts.setdefault(kernel, verdict)
        except RuleTimeoutError as error:
            self._note(error)
            self._leave_out(error.bound.pack)
            return self._decide(kernels, kind)
        return [verdicts.get(kernel, UNKNOWN) for kernel in kernels]

    def _note(self, error: RuleTimeoutError) -> None:
        """Go on where a plugin's rule takes too long; users can fix rules of their own."""
        if error.bound.origin != "plugin":
            raise error
        self.problems.append(f"{error.bound.pack.name}: {one_line(error)}")

    def _ask(
        self, stage: Stage, kernels: Sequence[Kernel]
    ) -> Sequence[RuleVerdict | None]:
        """Return one stage's answers; none of a plugin that fails, which is left out then."""
        if isinstance(stage, Matcher) or stage.own_risk:
            return stage.decide(kernels)
        with guarded(stage.name, self.problems):
            return stage.decide(kernels)
        self._leave_out(stage)
        return []

    def matches(
        self, stage: Stage, name: str, cpu_op: str | None
    ) -> Iterator[RuleMatch]:
        """Yield what a stage has to say about one name."""
        if not isinstance(stage, Matcher):
            for verdict in self._ask(stage, [(name, cpu_op)]):
                if verdict is not None:
                    yield RuleMatch(verdict, f"Python categoriser {stage.name}")
            return
        for bound in stage.candidates(name):
            try:
                finds_name = bound.finds(name)
            except RuleTimeoutError as error:
                self._note(error)
                continue
            if not finds_name:
                continue
            holds = bound.allows(cpu_op)
            # A rule about operations alone has nothing to do with a kernel of another one.
            if holds or not bound.rule.takes_any_name:
                yield _match(bound, holds=holds)

    def _leave_out(self, failed: RulePack | PythonStage) -> None:
        """Go on without what failed."""
        self._sources = [
            source for source in self._sources if _pack_or_stage(source) is not failed
        ]
        self._stages.clear()


def _pack_or_stage(source: Source) -> RulePack | PythonStage:
    if isinstance(source, BoundPack):
        return source.pack
    return source


def _stages_of_neighbours(sources: Sequence[Source], kind: PackKind) -> list[Stage]:
    """Return the stages of sources of one type: packs make one, functions one each."""
    rules: list[BoundRule] = []
    functions: list[Stage] = []
    for source in sources:
        if isinstance(source, PythonStage):
            functions.append(source)
        elif source.pack.kind == kind:
            rules += source.bound_rules()
    if rules:
        return [Matcher(rules)]
    if kind == "kernel":  # functions are asked about kernels only
        return functions
    return []


def _usual_pack(offered: Sequence[Offered[RulePack]], framework: str) -> str | None:
    """Return the name of the pack that traces of a framework get without a choice."""
    for offer in offered:
        pack = offer.item
        if pack.usual_for == framework:
            return pack.name
    return None


def _choices(
    maps: Paths, registry: PluginRegistry, offered: Sequence[Offered[RulePack]]
) -> Choices:
    """Return what a user can choose from; of two maps with one name the user's is taken."""
    passed_over: list[str] = []
    selectable = {offer.item.name: offer for offer in offered if offer.item.selectable}
    for offer in user_maps(maps, registry, passed_over):
        selectable[offer.item.name] = offer
    return Choices(
        registry=registry,
        offered=offered,
        selectable=selectable,
        passed_over=passed_over,
    )


def _unasked_packs(
    offered: Sequence[Offered[RulePack]],
    disabled_packs: Sequence[str],
    chosen: Sequence[Source],
) -> list[Offered[RulePack]]:
    """Return the packs that take part though nobody chose them.

    Raises:
        UsageError: there is no such pack as one of `disabled_packs`.
    """
    unasked = [offer for offer in offered if not offer.item.selectable]
    known_names = sorted({offer.item.name for offer in unasked})
    for name in disabled_packs:  # a pack that takes no part anyway is a mistake
        if name not in known_names:
            raise UsageError(
                f"there is no pack called {name!r}; known: {', '.join(known_names)}"
            )
    chosen_packs = {
        id(source.pack) for source in chosen if isinstance(source, BoundPack)
    }
    return [
        offer
        for offer in unasked
        if offer.item.name not in disabled_packs and id(offer.item) not in chosen_packs
    ]


def _sources_of_plugins(
    registry: PluginRegistry,
    unasked: Sequence[Offered[RulePack]],
    chosen: Sequence[Source],
) -> list[Source]:
    """Return the packs and functions of other people's plugins that were not chosen."""
    chosen_functions = {
        source.name
        for source in chosen
        if isinstance(source, PythonStage) and not source.own_risk
    }
    sources: list[Source] = [
        BoundPack(offer.item, "plugin") for offer in unasked if not offer.plugin.own
    ]
    sources += [
        function
        for function in python_stages(registry)
        if not function.selectable and function.name not in chosen_functions
    ]
    return sorted(sources, key=_precedence)


def _builtin_sources(unasked: Sequence[Offered[RulePack]]) -> list[Source]:
    sources: list[Source] = [
        BoundPack(offer.item, "builtin", limited=False)
        for offer in unasked
        if offer.plugin.own
    ]
    return sorted(sources, key=_precedence)


def _precedence(source: Source) -> tuple[int, str, bool]:
    """Higher priority first, then the name; of one name, the Python function first."""
    return -source.priority, source.name, isinstance(source, BoundPack)


@lru_cache(maxsize=1)
def builtin_categorizer() -> KernelCategorizer:
    """Return the categorizer of this distribution's packs alone, whatever else is installed."""
    return KernelCategorizer.create(plugins=False)


def categorize_kernels(
    names: Collection[str],
    cpu_ops: Collection[str | None] | None = None,
    categorizer: CategorizerLike | KernelCategorizer | None = None,
) -> pd.DataFrame:
    """Categorize kernels by name, and by the launching operation where it is known.

    Args:
        names: kernel names as a trace spells them (demangled, mangled, from any profiler).
        cpu_ops: for each, the CPU operation that launched it, None where it is not known.
        categorizer: what to ask before the installed plugins and built-in packs: a name
            (`"jax"`, `"vllm:gpt-oss"`), a substring or engine/model map, a function of the table
            of distinct kernels, or a `KernelCategorizer`.

    Returns:
        One row a name, in the order asked: `kernel_category` (`Uncategorized` when no rule
        knows the kernel), `vendor`, `library`, `rule` and `pack` (None where not known).

    Raises:
        RuleError: a map is invalid, or one of its patterns takes too long.
        UsageError: nothing is called `categorizer`, or the lists differ in length.

    Example:
        >>> categorize_kernels(["nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT"]).kernel_category.item()
        'GEMM'
    """
    if not isinstance(categorizer, KernelCategorizer):
        categorizer = KernelCategorizer.create(categorizer=categorizer)
    decisions = categorizer.categorize(names, cpu_ops)
    return decisions.to_frame()


def _refuse_text(argument: str, value: object) -> None:
    """Refuse a lone text: it is a sequence of letters to Python, and never what is meant."""
    if isinstance(value, (str, bytes, os.PathLike)):
        raise UsageError(f"{argument}: expected a list, got the single value {value!r}")


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """A rule, or a Python categorizer, that has something to say about a kernel."""

    verdict: RuleVerdict  #: what it says
    place: str  #: the file and rule, or the plugin
    pattern: str | None = None  #: the rule's pattern, or None for Python
    about: str | None = None  #: what the rule says it is for, or None
    #: the rule's condition on the launching operation, or None
    condition: str | None = None
    holds: bool = True  #: True if the launching operation fulfils the condition


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
    """Why a kernel, or an operation, has its category."""

    category: str
    winner: RuleMatch | None  #: what decided, or None when nothing matched
    others: tuple[RuleMatch, ...]  #: what else matches the name, in order of precedence


def explain(
    categorizer: KernelCategorizer,
    name: str,
    cpu_op: str | None = None,
    kind: PackKind = "kernel",
) -> Explanation:
    """Say which rule gives a kernel or operation its category, and what else would match."""
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
