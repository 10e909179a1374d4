"""Rules, packs of them, and verdicts."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Literal

from tracelens_ext.lazy import pd

UNCATEGORIZED: Final = "Uncategorized"
"""What no rule knows."""

OTHER_OP: Final = "other"
"""The category of a CPU operation that no rule knows."""

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
"""Every built-in category in the order reports list them; the last is what no rule knows."""

PackKind = Literal["kernel", "op"]

MATCH_ALL: Final = frozenset({".*", "^.*", ".*$", "^.*$", ".+", "^.+$", "."})
"""The ways people write the last line of a map, the one that takes whatever is left."""

_MOST_CHARACTERS: Final = 100_000
_MOST_REPEATS: Final = 1_000_000
_REPEATS: Final = re.compile(r"\{([0-9]{1,12})")


def too_large(pattern: str) -> str | None:
    """Return why a pattern would take minutes to compile, such as `((a{1000}){1000}){1000}`.

    None for a pattern that would not.
    """
    if len(pattern) > _MOST_CHARACTERS:
        return f"has {len(pattern):,} characters; split it into rules of up to {_MOST_CHARACTERS:,}"
    repeats = math.prod(max(int(number), 1) for number in _REPEATS.findall(pattern))
    if repeats > _MOST_REPEATS:
        return f"repeats its parts {repeats:.0e} times; repeat them less"
    return None


@dataclass(frozen=True, slots=True)
class Example:
    """A real kernel name, and the CPU operation that launched it where the rule asks for one."""

    name: str
    cpu_op: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of knowledge: names that this pattern finds belong to this category."""

    category: str  #: what the kernel does, in the words reports show
    #: a regular expression, searched (not anchored) in the name, case-sensitive
    pattern: str
    #: what the rule is for, in a few words, or None where its pattern says it
    about: str | None = None
    #: whose GPU the kernel runs on (`nvidia`, `amd`, `any`), or None
    vendor: str | None = None
    library: str | None = None  #: where the kernel comes from (`cublasLt`), or None
    #: a regular expression that the launching CPU operation must contain, or None
    cpu_op: str | None = None
    priority: int = 0  #: within the pack, higher first, then position
    name: str | None = None  #: what to call the rule instead of its number, or None
    number: int = 1  #: the position in the pack, from 1, as the author wrote it
    examples: tuple[Example, ...] = ()  #: names the rule must get
    not_examples: tuple[Example, ...] = ()  #: names its pattern must not find

    @property
    def takes_any_name(self) -> bool:
        """True if the pattern says nothing about the name."""
        return self.pattern in MATCH_ALL

    @property
    def is_known(self) -> bool:
        """False when a match says nothing: a map's catch-all, or a rule for the unknown itself."""
        judges = self.cpu_op is not None or not self.takes_any_name
        return judges and self.category != UNCATEGORIZED


@dataclass(frozen=True, slots=True)
class RulePack:
    """Rules that belong together: a file, a map, or a list made by a plugin."""

    name: str  #: what users select it by and reports call it
    rules: tuple[Rule, ...]  #: in the order they were written
    priority: int = 0  #: between packs of one origin, higher first, then by name
    #: when True, the pack takes part only when a user chooses it
    selectable: bool = False
    #: `kernel` packs look at kernel names, `op` packs at names of CPU operations
    kind: PackKind = "kernel"
    source: str | None = None  #: the file it came from, or None
    #: the framework, such as `JAX`, whose traces it is chosen for unless the user chooses another
    usual_for: str = ""

    def ordered(self) -> list[Rule]:
        """Return the rules in the order they are tried: higher priority first, then position."""
        return sorted(self.rules, key=lambda rule: -rule.priority)

    def rule_id(self, rule: Rule) -> str:
        """Return what reports call one of this pack's rules: its name, else `PACK:NUMBER`."""
        return rule.name or f"{self.name}:{rule.number}"

    def where(self, rule: Rule) -> str:
        """Return where a human finds one of this pack's rules: `FILE: rule 3` in messages."""
        label = f"rule {rule.number}"
        if rule.name:
            label += f" ({rule.name})"
        return f"{self.source or f'pack {self.name!r}'}: {label}"


Kernel = tuple[str, str | None]
"""A kernel's name and the operation that launched it."""


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """What a rule or a Python categorizer says about one kernel; see `Decisions`."""

    category: str
    vendor: str | None = None
    library: str | None = None
    rule: str | None = None
    pack: str | None = None
    known: bool = True


UNKNOWN: Final = RuleVerdict(UNCATEGORIZED, known=False)


@dataclass(frozen=True, slots=True)
class Decisions:
    """Parallel lists, one entry a kernel asked about."""

    category: list[str]  #: `Uncategorized` where no rule matched
    vendor: list[str | None]  #: whose GPU the winning rule says, or None
    library: list[str | None]  #: which library the winning rule says, or None
    rule: list[str | None]  #: the winning rule (`gemm:12`, or its name), or None
    pack: list[str | None]  #: the pack or plugin of the winning rule, or None
    #: False where nothing is known: no rule matched, or only a map's catch-all did
    known: list[bool]

    def __len__(self) -> int:
        return len(self.category)

    def to_frame(self) -> pd.DataFrame:
        """Return a table in the order asked; None where a rule says nothing or none matched."""
        columns = {
            "kernel_category": self.category,
            "vendor": self.vendor,
            "library": self.library,
            "rule": self.rule,
            "pack": self.pack,
        }
        return pd.DataFrame(columns, dtype="object")
