"""Categorization rules, packs of rules, and the verdicts of rules on kernels."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Literal

from tracelens_ext.lazy import pd

UNCATEGORIZED: Final = "Uncategorized"
"""The category of kernels that no rule matches."""

OTHER_OP: Final = "other"
"""The category of CPU operations that no rule matches."""

CATEGORIES: Final[tuple[str, ...]] = (
    "GEMM",
    "Flash Attention Forward",
    "Flash Attention Backward",
    "Convolution",
    "Communication",
    "Memory Ops",
    "Normalization",
    "Softmax",
    "Elementwise",
    "Reduction",
    "Embedding & Gather/Scatter",
    "Sort & TopK",
    "MoE Routing",
    "Quantization",
    "Optimizer",
    "RNG & Dropout",
    "Positional Encoding",
    "Pooling & Resampling",
    "Loss",
    "Recurrent & State Space",
    "FFT",
    "Sampling & Decoding",
    "Fused Elementwise (compiler-generated)",
    "Other",
    UNCATEGORIZED,
)
"""All built-in categories, in the order in which reports list them."""

PackKind = Literal["kernel", "op"]

MATCH_ALL: Final = frozenset({".*", "^.*", ".*$", "^.*$", ".+", "^.+$", "."})
"""Patterns that match every name. Maps end with one of them, the catch-all."""

#: The most characters of a pattern.
_MOST_CHARACTERS: Final = 100_000
#: The largest product of all repetition counts of a pattern.
_MOST_REPEATS: Final = 1_000_000
#: The count of a repetition, such as that of `a{1000}`.
_REPEATS: Final = re.compile(r"\{([0-9]{1,12})")


def too_large(pattern: str) -> str | None:
    """Return why a pattern would take minutes to compile; None if it would not.

    An example of such a pattern is `((a{1000}){1000}){1000}`.
    """
    if len(pattern) > _MOST_CHARACTERS:
        return f"has {len(pattern):,} characters; split it into rules of up to {_MOST_CHARACTERS:,}"
    repeats = math.prod(max(int(number), 1) for number in _REPEATS.findall(pattern))
    if repeats > _MOST_REPEATS:
        return f"repeats its parts {repeats:.0e} times; repeat them less"
    return None


@dataclass(frozen=True, slots=True)
class Example:
    """A kernel name as an example of a rule."""

    name: str
    #: the launching operation, if the rule has a condition on it
    cpu_op: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: kernels whose names contain the pattern have the category."""

    category: str  #: the category as reports show it
    #: a case-sensitive regular expression that the name must contain
    pattern: str
    #: a short description of the rule; None if the pattern is clear enough
    about: str | None = None
    #: the vendor of the GPU on which the kernel runs (`nvidia`, `amd`, `any`); None if unknown
    vendor: str | None = None
    #: the library of the kernel (`cublasLt`); None if unknown
    library: str | None = None
    #: a regular expression that the launching CPU operation must contain; None for any operation
    cpu_op: str | None = None
    #: rules of a pack with a higher priority are tried first, then by position
    priority: int = 0
    #: a name that reports show instead of the number; None for none
    name: str | None = None
    number: int = 1  #: the position in the pack as the author wrote it, from 1
    examples: tuple[Example, ...] = ()  #: kernels that the rule must categorize
    not_examples: tuple[Example, ...] = ()  #: names that the pattern must not match

    @property
    def takes_any_name(self) -> bool:
        """True if the pattern matches every name."""
        return self.pattern in MATCH_ALL

    @property
    def is_known(self) -> bool:
        """True if a match means that the kernel is known.

        It does not if the rule is the catch-all of a map, or if its category is `Uncategorized`.
        """
        has_condition = self.cpu_op is not None or not self.takes_any_name
        return has_condition and self.category != UNCATEGORIZED


@dataclass(frozen=True, slots=True)
class RulePack:
    """A set of rules from a file, a map or a plugin."""

    name: str  #: the name of the pack in reports, and for choosing it
    rules: tuple[Rule, ...]  #: the rules in the order in which they were written
    #: packs of one origin with a higher priority are tried first, then by name
    priority: int = 0
    #: True if the pack is used only when a user chooses it
    selectable: bool = False
    #: `kernel` for a pack that categorizes kernels, `op` for one that categorizes CPU operations
    kind: PackKind = "kernel"
    source: str | None = None  #: the file of the pack; None if it has none
    #: the framework, such as `JAX`, for whose traces the pack is chosen by default
    usual_for: str = ""

    def ordered(self) -> list[Rule]:
        """Return the rules in the order in which they are tried."""
        return sorted(self.rules, key=lambda rule: -rule.priority)

    def rule_id(self, rule: Rule) -> str:
        """Return the name of one of the pack's rules in reports: its name or `PACK:NUMBER`."""
        return rule.name or f"{self.name}:{rule.number}"

    def where(self, rule: Rule) -> str:
        """Return the location of one of the pack's rules in messages, such as `FILE: rule 3`."""
        label = f"rule {rule.number}"
        if rule.name:
            label += f" ({rule.name})"
        return f"{self.source or f'pack {self.name!r}'}: {label}"


Kernel = tuple[str, str | None]
"""The name of a kernel and the operation that launched it; None for an unknown operation."""


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """The verdict of a rule or a Python categorizer on one kernel; see `Decisions`."""

    category: str
    vendor: str | None = None
    library: str | None = None
    rule: str | None = None
    pack: str | None = None
    known: bool = True


UNKNOWN: Final = RuleVerdict(UNCATEGORIZED, known=False)


@dataclass(frozen=True, slots=True)
class Decisions:
    """The verdicts on kernels as parallel lists with an entry for each kernel."""

    category: list[str]  #: the category; `Uncategorized` if no rule matches
    vendor: list[str | None]  #: the vendor in the rule that decided, or None
    library: list[str | None]  #: the library in the rule that decided, or None
    rule: list[str | None]  #: the rule that decided (`gemm:12` or its name), or None
    pack: list[str | None]  #: the pack or plugin of that rule, or None
    #: False if the kernel is unknown: no rule matched, or only the catch-all of a map did
    known: list[bool]

    def __len__(self) -> int:
        return len(self.category)

    def to_frame(self) -> pd.DataFrame:
        """Return the decisions as a table with a row for each kernel; unknown cells are None."""
        columns = {
            "kernel_category": self.category,
            "vendor": self.vendor,
            "library": self.library,
            "rule": self.rule,
            "pack": self.pack,
        }
        return pd.DataFrame(columns, dtype="object")
