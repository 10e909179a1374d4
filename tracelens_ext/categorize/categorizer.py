"""The one categoriser: every category in every table, report and chart comes from here.

Order of precedence, the first answer wins: the user's rule files; the plugin or map the user
chose; other installed plugins; the built-in packs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import groupby

from tracelens_ext.categorize.maps import (
    CategorizerLike,
    choose,
    offered_packs,
    python_stages,
    user_maps,
)
from tracelens_ext.categorize.matcher import (
    BoundPack,
    Matcher,
    PythonStage,
    RuleTimeoutError,
    Source,
    Stage,
)
from tracelens_ext.categorize.rules import (
    OTHER_OP,
    UNKNOWN,
    Decisions,
    Kernel,
    PackKind,
    RulePack,
    RuleVerdict,
    load_pack,
)
from tracelens_ext.errors import UsageError
from tracelens_ext.hooks import PluginRegistry, default_registry
from tracelens_ext.hooks.registry import guarded, one_line
from tracelens_ext.lazy import pd
from tracelens_ext.text import UNCATEGORIZED

#: Files (or folders) of rules, or what was read of them.
Paths = Sequence["str | os.PathLike[str] | RulePack"]


class KernelCategorizer:
    """Gives kernels their categories. Made by `create`; does not change afterwards.

    Attributes:
        problems: what failed in plugins, each `NAME: error` in one line; a plugin that fails
            while kernels are categorised adds a line and is left out from then on.
    """

    def __init__(self, sources: Sequence[Source], problems: Iterable[str] = ()) -> None:
        self.problems: list[str] = list(problems)
        self._sources = list(sources)
        self._stages: dict[PackKind, list[Stage]] = {}

    @classmethod
    def create(
        cls,
        *,
        rules: Paths = (),
        categorizer: CategorizerLike | None = None,
        maps: Paths = (),
        without_packs: Sequence[str] = (),
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
            without_packs: the names of packs that take no part, though they would unasked.
            plugins: False to leave out what other distributions have installed.
            registry: the plugins to use instead of the installed ones.
            framework: what ran, such as `JAX`: its usual pack is asked without a `categorizer`.

        Raises RuleError where a rule file or map is invalid, UsageError where nothing is called
        `categorizer`, or as one of `without_packs`.
        """
        registry = registry or default_registry(plugins=plugins)
        for argument, value in (("rules", rules), ("maps", maps), ("without_packs", without_packs)):
            _refuse_text(argument, value)
        packs = [each if isinstance(each, RulePack) else load_pack(each) for each in rules]
        sources = [BoundPack(pack, "rules") for pack in packs]
        offered = offered_packs(registry)
        # The maps of the user come last: of two maps with one name theirs is taken.
        selectable = {o.item.name: o for o in offered if o.item.selectable}
        passed_over: list[str] = []
        selectable |= {o.item.name: o for o in user_maps(maps, registry, passed_over)}
        if categorizer is None and framework:
            usual = (o.item.name for o in offered if o.item.usual_for == framework)
            categorizer = next(usual, None)
        chosen = choose(categorizer, registry, offered, selectable, passed_over)
        taken: set[object] = {id(s.pack) for s in chosen if isinstance(s, BoundPack)}
        taken |= {s.name for s in chosen if isinstance(s, PythonStage) and not s.own_risk}
        unasked = [o for o in offered if not o.item.selectable]
        known = sorted({o.item.name for o in unasked})
        for name in without_packs:  # a pack that takes no part anyway is a mistake
            if name not in known:
                raise UsageError(f"no pack is called {name!r}; known: {', '.join(known)}")
        unasked = [o for o in unasked if o.item.name not in without_packs]
        rest = [o for o in unasked if id(o.item) not in taken]
        third: list[Source] = [BoundPack(o.item, "plugin") for o in rest if not o.plugin.own]
        functions = (f for f in python_stages(registry) if not f.selectable)
        third += [each for each in functions if each.name not in taken]
        own = [BoundPack(o.item, "builtin", limited=False) for o in rest if o.plugin.own]
        ordered = [*sources, *chosen, *sorted(third, key=_order), *sorted(own, key=_order)]
        return cls(ordered, registry.problems)

    def categorize(
        self, names: Collection[str], cpu_ops: Collection[str | None] | None = None
    ) -> Decisions:
        """Categorise kernels, each distinct one once: the decisions, in the order asked.

        `cpu_ops` are the operations that launched them, None where one is not known. Raises
        RuleError where a rule of the user takes too long on a name, UsageError where the two lists
        differ in length, or a function of the caller answers something else than a category a row.
        """
        _refuse_text("names", names)
        ops = [None] * len(names) if cpu_ops is None else cpu_ops
        if len(ops) != len(names):
            raise UsageError(f"expected as many cpu_ops as names ({len(names)}), got {len(ops)}")
        known_ops = (op if isinstance(op, str) else None for op in ops)
        verdicts = self._decide(list(zip(names, known_ops, strict=True)))
        return Decisions(*([getattr(v, key.name) for v in verdicts] for key in fields(RuleVerdict)))

    def categorize_ops(self, op_names: Collection[str]) -> list[str]:
        """A category for each CPU operation by the packs of kind `op`; `other` without a rule."""
        _refuse_text("op_names", op_names)
        verdicts = self._decide([(name, None) for name in op_names], kind="op")
        return [OTHER_OP if v is UNKNOWN else v.category for v in verdicts]

    def stages(self, kind: PackKind = "kernel") -> list[Stage]:
        """What kernels (or operations) pass through, in order."""
        if kind not in self._stages:
            stages = self._stages[kind] = list[Stage]()
            for _, neighbours in groupby(self._sources, type):
                sources = list(neighbours)
                packs = (s for s in sources if isinstance(s, BoundPack) and s.pack.kind == kind)
                rules = [rule for pack in packs for rule in pack.bound_rules()]
                stages += [Matcher(rules)] if rules else []
                if kind == "kernel":  # functions are asked about kernels only
                    stages += [s for s in sources if isinstance(s, PythonStage)]
        return self._stages[kind]

    @property
    def is_builtin(self) -> bool:
        """Whether it asks the built-in packs and nothing else."""
        builtin = builtin_categorizer()
        return self is builtin or self.packs == builtin.packs == self._sources

    @property
    def packs(self) -> list[BoundPack]:
        """The packs that take part, in order of precedence."""
        return [source for source in self._sources if isinstance(source, BoundPack)]

    def _decide(self, kernels: Sequence[Kernel], kind: PackKind = "kernel") -> list[RuleVerdict]:
        """The verdict for each kernel."""
        distinct = list(dict.fromkeys(kernels))
        verdicts = dict[Kernel, RuleVerdict]()
        try:
            for stage in self.stages(kind):
                pending = [kernel for kernel in distinct if kernel not in verdicts]
                if not pending:
                    break
                # Rules answer for what is still open, a Python categoriser sees every kernel.
                asked = pending if isinstance(stage, Matcher) else distinct
                for kernel, verdict in zip(asked, self._ask(stage, asked), strict=False):
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

    def _ask(self, stage: Stage, kernels: Sequence[Kernel]) -> Sequence[RuleVerdict | None]:
        """One stage's answers; none of a plugin that fails, which is left out from then on."""
        if isinstance(stage, Matcher) or stage.own_risk:
            return stage.decide(kernels)
        with guarded(stage.name, self.problems):
            return stage.decide(kernels)
        self._leave_out(stage)
        return []

    def matches(self, stage: Stage, name: str, cpu_op: str | None) -> Iterator[RuleMatch]:
        """What a stage has to say about one name."""
        if not isinstance(stage, Matcher):
            for verdict in filter(None, self._ask(stage, [(name, cpu_op)])):
                yield RuleMatch(verdict, f"Python categoriser {stage.name}")
            return
        for bound in stage.candidates(name):
            rule = bound.rule
            try:
                if not bound.finds(name):
                    continue
            except RuleTimeoutError as error:
                self._note(error)
                continue
            holds = bound.allows(cpu_op)
            # A rule about operations alone has nothing to do with a kernel of another one.
            if holds or not rule.takes_any_name:
                place = bound.pack.where(rule)
                yield RuleMatch(bound.verdict, place, rule.pattern, rule.about, rule.cpu_op, holds)

    def _leave_out(self, failed: RulePack | PythonStage) -> None:
        """Go on without what failed."""
        self._sources = [
            source
            for source in self._sources
            if (source.pack if isinstance(source, BoundPack) else source) is not failed
        ]
        self._stages.clear()


@lru_cache(maxsize=1)
def builtin_categorizer() -> KernelCategorizer:
    """The categoriser of this distribution's packs alone, whatever else is installed or chosen."""
    return KernelCategorizer.create(plugins=False)


def categorize_kernels(
    names: Collection[str],
    cpu_ops: Collection[str | None] | None = None,
    categorizer: CategorizerLike | KernelCategorizer | None = None,
) -> pd.DataFrame:
    """Categorise kernels by name, and by the launching operation where it is known.

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
        >>> categorize_kernels(["nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT"])["kernel_category"][0]
        'GEMM'
    """
    if not isinstance(categorizer, KernelCategorizer):
        categorizer = KernelCategorizer.create(categorizer=categorizer)
    return categorizer.categorize(names, cpu_ops).to_frame()


def _order(source: Source) -> tuple[int, str, bool]:
    """Higher priority first, then the name; of one name, the Python function first."""
    return -source.priority, source.name, isinstance(source, BoundPack)


def _refuse_text(argument: str, value: object) -> None:
    """A lone text is a sequence of letters to Python, and never what the caller means."""
    if isinstance(value, (str, bytes, os.PathLike)):
        raise UsageError(f"{argument}: expected a list, got the single value {value!r}")


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """A rule, or a Python categoriser, that has something to say about a kernel."""

    verdict: RuleVerdict  #: what it says
    place: str  #: the file and rule, or the plugin
    pattern: str | None = None  #: the rule's pattern, or None for Python
    about: str | None = None  #: what the rule says it is for, or None
    condition: str | None = None  #: the rule's condition on the launching operation, or None
    holds: bool = True  #: whether the launching operation fulfils the condition


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a kernel, or an operation, has its category."""

    category: str
    winner: RuleMatch | None  #: what decided, or None when nothing matched
    others: tuple[RuleMatch, ...]  #: what else matches the name, in order of precedence


def explain(
    categorizer: KernelCategorizer, name: str, cpu_op: str | None = None, kind: PackKind = "kernel"
) -> Explanation:
    """Say which rule gives a kernel or operation its category, and what else would match."""
    stages = list(categorizer.stages(kind))
    matches = [match for stage in stages for match in categorizer.matches(stage, name, cpu_op)]
    winner = next((match for match in matches if match.holds), None)
    unknown = UNCATEGORIZED if kind == "kernel" else OTHER_OP
    others = tuple(match for match in matches if match is not winner)
    return Explanation(winner.verdict.category if winner else unknown, winner, others)
