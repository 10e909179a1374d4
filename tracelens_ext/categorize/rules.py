"""Rules, packs of them, and verdicts; and how packs are read from TOML.

Every error names the file, the rule, the field, and what was expected.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

from tracelens_ext.errors import RuleError
from tracelens_ext.lazy import pd
from tracelens_ext.text import UNCATEGORIZED

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

MOST_RULES: Final = 10_000
"""Rules that a pack may have."""
_MOST_CHARACTERS: Final = 100_000
_MOST_REPEATS: Final = 1_000_000
_REPEATS: Final = re.compile(r"\{([0-9]{1,12})")


def too_large(pattern: str) -> str | None:
    """Why a pattern would take minutes to compile, such as `((a{1000}){1000}){1000}`; else None."""
    if len(pattern) > _MOST_CHARACTERS:
        return f"has {len(pattern):,} characters; split it into rules of up to {_MOST_CHARACTERS:,}"
    repeats = math.prod(max(int(found), 1) for found in _REPEATS.findall(pattern))
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
    pattern: str  #: a regular expression, searched (not anchored) in the name, case-sensitive
    #: what the rule is for, in a few words, or None where its pattern says it
    about: str | None = None
    vendor: str | None = None  #: whose GPU the kernel runs on (`nvidia`, `amd`, `any`), or None
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
        """Whether the pattern says nothing about the name."""
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
    selectable: bool = False  #: when True, the pack takes part only when a user chooses it
    #: `kernel` packs look at kernel names, `op` packs at names of CPU operations
    kind: PackKind = "kernel"
    source: str | None = None  #: the file it came from, or None
    #: the framework, such as `JAX`, whose traces it is chosen for unless the user chooses another
    usual_for: str = ""

    def ordered(self) -> list[Rule]:
        """The rules in the order they are tried: higher priority first, then position."""
        return sorted(self.rules, key=lambda rule: -rule.priority)

    def rule_id(self, rule: Rule) -> str:
        """What reports call one of this pack's rules: its name, else `PACK:NUMBER`."""
        return rule.name or f"{self.name}:{rule.number}"

    def where(self, rule: Rule) -> str:
        """Where a human finds one of this pack's rules: `FILE: rule 3` for error messages."""
        label = f"rule {rule.number}" + (f" ({rule.name})" if rule.name else "")
        return f"{self.source or f'pack {self.name!r}'}: {label}"


Kernel = tuple[str, str | None]
"""A kernel's name and the operation that launched it."""


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """What a rule or a Python categoriser says about one kernel; see `Decisions`."""

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
        """A table in the order asked; None where a rule says nothing or no rule matched."""
        columns = {name: getattr(self, name) for name in ("vendor", "library", "rule", "pack")}
        return pd.DataFrame({"kernel_category": self.category, **columns}, dtype="object")


_TOP_KEYS: Final = ("pack", "rule")
_OF_ALL_RULES: Final = ("category", "library")  # that name none themselves
_PACK_KEYS: Final = ("name", *_OF_ALL_RULES, "priority", "selectable", "kind", "usual_for")
_RULE_KEYS: Final = (
    "category",
    "pattern",
    "about",
    "own_name",
    "unless",
    "vendor",
    "library",
    "cpu_op",
    "priority",
    "name",
    "examples",
    "not_examples",
)
_EXAMPLE_KEYS: Final = ("name", "cpu_op")
_TYPES: Final = {str: "a text", int: "a whole number", bool: "true or false"}
_KINDS: Final = {bool: "a boolean", int: "a number", float: "a number", str: "a text"}
#: Stand before the pattern of an own name. Mangled names of at:: are left to rules that know
#: those kernels: nothing ends their own name.
_START: Final = r"^(?!_ZN2at)(?:std::enable_if<.*?>::type )?"
_WITHIN: Final = r"(?:[\w: ]{0,120}(?:\(anonymous namespace\)|<unnamed>)::)?[^<(]{0,160}?"
_FLAGS: Final = re.compile(r"\(\?[A-Za-z]+\)")
_HOMES: Final = (("[pack]", _PACK_KEYS), ("a [[rule]]", _RULE_KEYS))


def load_pack(path: str | os.PathLike[str], *, check_patterns: bool = True) -> RulePack:
    """Read one rule pack from a TOML file; it is named after the file unless that says otherwise.

    Patterns are compiled now to check them; packs that the project's own checks have vetted skip
    that. Raises RuleError where the file cannot be read, is not TOML, or breaks the format.
    """
    source = os.fspath(path)
    name = Path(path).stem
    words = "TOML", "rule pack", "a TOML file with [[rule]] tables"
    document = read_document(source, tomllib.loads, tomllib.TOMLDecodeError, words)
    return parse_pack(document, source=source, name=name, check_patterns=check_patterns)


def parse_pack(
    document: Mapping[str, Any],
    *,
    source: str | None = None,
    name: str = "rules",
    check_patterns: bool = True,
) -> RulePack:
    """Make a rule pack of `{"pack": {...}, "rule": [{...}, ...]}`; `pack` is optional.

    Error messages call the document `source`; `name` is the pack's when the document gives none.
    """
    called = source or f"pack {name!r}"
    whole = _Fields(document, _TOP_KEYS, called, "", check_patterns)
    if not isinstance(document.get("pack", {}), Mapping):
        whole.fail("pack", "expected a table, written [pack]")
    head = _Fields(document.get("pack", {}), _PACK_KEYS, called, "[pack]: ", check_patterns)
    tables = document.get("rule")
    if isinstance(tables, Mapping):
        whole.fail("rule", "expected an array of tables: write [[rule]] with two brackets")
    if not isinstance(tables, list) or not tables:
        whole.fail("rule", "expected at least one rule, written [[rule]]")
    if len(tables) > MOST_RULES:
        whole.fail("rule", f"expected at most {MOST_RULES:,} rules, got {len(tables):,}")
    kind: PackKind = head.value("kind") or "kernel"
    if kind not in ("kernel", "op"):
        head.fail("kind", f"expected 'kernel' or 'op', got {kind!r}")
    known = {key: head.value(key) for key in _OF_ALL_RULES if key in head.table}
    rules = []
    for number, table in enumerate(tables, 1):
        where = f"rule {number}: "
        if not isinstance(table, Mapping):
            whole.fail(f"{where}rule", f"expected a table, got {_kind_of(table)}")
        fields = _Fields({**known, **table}, _RULE_KEYS, called, where, check_patterns)
        rules.append(_rule(fields, number, kind))
    return RulePack(
        name=head.value("name") or name,
        rules=tuple(rules),
        priority=head.value("priority", int),
        selectable=head.value("selectable", bool),
        kind=kind,
        source=source,
        usual_for=head.value("usual_for") or "",
    )


def read_document(
    source: str, parse: Callable[[str], Any], wrong: type[Exception], words: tuple[str, str, str]
) -> Any:  # noqa: ANN401
    """The document in a text file; RuleError where `parse` raises `wrong`, or it is no file."""
    form, what, expected = words
    try:
        return parse(Path(source).read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError) as error:
        place = "is a folder" if isinstance(error, IsADirectoryError) else "no such file"
        problem = f"{place}; give the path of {expected}"
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 text (byte {error.start}); save it as UTF-8"
    except wrong as error:
        problem = f"not valid {form}: {error}"
    except KeyError as error:  # a key that occurs twice
        problem = str(error.args[0])
    except RecursionError:
        problem = f"not a {what}: nested too deeply"
    except ValueError:  # Python refuses integers of thousands of digits
        problem = f"not a {what}: it holds a number that is too long"
    except MemoryError:
        problem = "takes more memory than there is"
    raise RuleError(f"{source}: {problem}")


def _rule(fields: _Fields, number: int, kind: str) -> Rule:
    """Validate one `[[rule]]` table of a pack of that kind."""
    for required, instead in (("category", ""), ("pattern", "cpu_op")):
        if required not in fields.table and instead not in fields.table:
            fields.fail(required, "missing; expected a text")
    if kind == "op" and "cpu_op" in fields.table:
        fields.fail("cpu_op", 'not allowed in a pack of kind "op": its pattern is the condition')
    pattern = fields.any_of("pattern") or "."  # by its operation alone
    unless = fields.any_of("unless")
    if fields.value("own_name", bool):
        passed_over = "" if unless is None else f"(?!{_WITHIN}(?:{unless}))"
        pattern = f"{_START}{passed_over}{_WITHIN}(?:{pattern})"
    elif unless is not None:
        fields.fail("unless", "is about the kernel's own name: set own_name = true")
    return Rule(
        **{key: fields.value(key) for key in ("category", "about", "vendor", "library", "name")},
        pattern=pattern,
        cpu_op=fields.any_of("cpu_op"),
        priority=fields.value("priority", int),
        number=number,
        examples=fields.examples("examples"),
        not_examples=fields.examples("not_examples"),
    )


@dataclass
class _Fields:
    """Reads typed fields out of a table; every refusal names the document and the field."""

    table: Mapping[str, Any]
    known: tuple[str, ...]
    source: str
    where: str
    check_patterns: bool

    def __post_init__(self) -> None:
        if unknown := [key for key in self.table if key not in self.known]:
            from difflib import get_close_matches

            near = get_close_matches(str(unknown[0]), self.known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(self.known)}"
            home = next((f"it belongs in {at}" for at, keys in _HOMES if unknown[0] in keys), hint)
            raise RuleError(f"{self.source}: {self.where}unknown key {unknown[0]!r}; {home}")

    def fail(self, field: str, said: str) -> NoReturn:
        raise RuleError(f"{self.source}: {self.where}{field}: {said}")

    def value(self, key: str, kind: type = str) -> Any:  # noqa: ANN401
        """A value of that type; what is not there is None, 0 or False."""
        value = self.table.get(key)
        if value is None:
            return None if kind is str else kind()
        empty = isinstance(value, str) and not value.strip()
        if not isinstance(value, kind) or isinstance(value, bool) > (kind is bool) or empty:
            got = "an empty text" if empty and kind is str else _kind_of(value)
            self.fail(key, f"expected {_TYPES[kind]}, got {got}")
        return value

    def any_of(self, key: str) -> str | None:
        """A pattern, or a list of them as one pattern that finds what any of them finds."""
        given = self.table.get(key)
        if given is None:
            return None
        parts: list[Any] = given if isinstance(given, list) and given else [self.value(key)]
        for part in parts:
            if not isinstance(part, str) or not part.strip():
                self.fail(key, f"expected a list of texts, got {_kind_of(part)} in it")
            if self.check_patterns:
                self._compile(part, key)
            if len(parts) > 1 and _FLAGS.match(part):
                self.fail(key, f"in a list write the flags of {part!r} as (?i:...)")
        return "|".join(parts)

    def _compile(self, pattern: str, key: str) -> None:
        import regex

        if problem := too_large(pattern):
            self.fail(key, problem)
        try:
            regex.compile(pattern)
        except (regex.error, OverflowError, RecursionError) as error:
            self.fail(key, f"expected a regular expression, got {pattern!r}: {error}")

    def examples(self, key: str) -> tuple[Example, ...]:
        """The kernel names of a list, each a text or a table with its operation."""
        entries = self.table.get(key, [])
        if not isinstance(entries, list):
            self.fail(key, f"expected a list of kernel names, got {_kind_of(entries)}")
        found = []
        for position, entry in enumerate(entries, start=1):
            if isinstance(entry, str):
                found.append(Example(entry))
                continue
            label = f"{key}[{position}]"
            if not isinstance(entry, Mapping) or "name" not in entry:
                wanted = 'expected a kernel name or {name = "...", cpu_op = "..."}, got '
                self.fail(label, wanted + _kind_of(entry))
            where = f"{self.where}{label}: "
            fields = replace(self, table=entry, known=_EXAMPLE_KEYS, where=where)
            found.append(Example(*map(fields.value, _EXAMPLE_KEYS)))
        return tuple(found)


def _kind_of(value: object) -> str:
    """What TOML calls the type of a value, with the value when it is short."""
    for python_type, kind in _KINDS.items():
        if isinstance(value, python_type):
            return f"{kind} ({value!r})"
    if isinstance(value, Mapping):
        return "a table"
    return "a list" if isinstance(value, list) else type(value).__name__
