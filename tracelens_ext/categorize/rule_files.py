"""How rule packs are read from TOML.

Every error names the file, the rule, the field, and what was expected.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from tracelens_ext.categorize.rules import Example, PackKind, Rule, RulePack, too_large
from tracelens_ext.errors import RuleError

MOST_RULES: Final = 10_000
"""Rules that a pack may have."""

_TOP_KEYS: Final = ("pack", "rule")
#: What a pack says of those of its rules that do not say it themselves.
_KEYS_FOR_ALL_RULES: Final = ("category", "library")
_PACK_KEYS: Final = (
    "name",
    "category",
    "library",
    "priority",
    "selectable",
    "kind",
    "usual_for",
)
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
_EXPECTED_TYPES: Final = {
    str: "a string",
    int: "an integer",
    bool: "true or false",
}
_FOUND_TYPES: Final = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
}
#: Stand before the pattern of an own name. Mangled names of at:: are left to rules that know
#: those kernels: nothing ends their own name.
_START: Final = r"^(?!_ZN2at)(?:std::enable_if<.*?>::type )?"
_WITHIN: Final = (
    r"(?:[\w: ]{0,120}(?:\(anonymous namespace\)|<unnamed>)::)?[^<(]{0,160}?"
)
_FLAGS: Final = re.compile(r"\(\?[A-Za-z]+\)")
_ANY_NAME: Final = "."


class DocumentWords(NamedTuple):
    """What messages call a kind of document."""

    form: str  #: such as `TOML`
    what: str  #: such as `rule pack`
    expected: str  #: what to give the path of


def load_pack(path: str | os.PathLike[str], *, check_patterns: bool = True) -> RulePack:
    """Read one rule pack from a TOML file; it is named after the file unless that says otherwise.

    Args:
        path: that of the file.
        check_patterns: compile the patterns now to check them; packs that the project's own checks
            have vetted skip that.

    Raises:
        RuleError: the file cannot be read, is not TOML, or breaks the format.
    """
    source = os.fspath(path)
    words = DocumentWords(
        form="TOML", what="rule pack", expected="a TOML file with [[rule]] tables"
    )
    document = read_document(
        source=source, parse=tomllib.loads, wrong=tomllib.TOMLDecodeError, words=words
    )
    name = Path(path).stem
    return parse_pack(document, source=source, name=name, check_patterns=check_patterns)


def parse_pack(
    document: Mapping[str, Any],
    *,
    source: str | None = None,
    name: str = "rules",
    check_patterns: bool = True,
) -> RulePack:
    """Make a rule pack of `{"pack": {...}, "rule": [{...}, ...]}`; `pack` is optional.

    Args:
        document: the tables.
        source: what messages call the document.
        name: that of the pack when the document gives none.
        check_patterns: compile the patterns now to check them.

    Raises:
        RuleError: the document breaks the format.
    """
    label = source or f"pack {name!r}"
    whole = _Fields(
        table=document,
        known_keys=_TOP_KEYS,
        source=label,
        where="",
        check_patterns=check_patterns,
    )
    head = _head(whole)
    kind: PackKind = head.value("kind") or "kernel"
    if kind not in ("kernel", "op"):
        head.fail("kind", f"expected 'kernel' or 'op', got {kind!r}")
    defaults = {
        key: head.value(key) for key in _KEYS_FOR_ALL_RULES if key in head.table
    }
    rules = []
    for number, table in enumerate(_rule_tables(whole), start=1):
        where = f"rule {number}: "
        if not isinstance(table, Mapping):
            whole.fail(f"{where}rule", f"expected a table, got {_found_type(table)}")
        fields = _Fields(
            table={**defaults, **table},
            known_keys=_RULE_KEYS,
            source=label,
            where=where,
            check_patterns=check_patterns,
        )
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


def _head(whole: _Fields) -> _Fields:
    """Return the fields of the table `[pack]`."""
    table = whole.table.get("pack", {})
    if not isinstance(table, Mapping):
        whole.fail("pack", "expected a table, written [pack]")
    return replace(whole, table=table, known_keys=_PACK_KEYS, where="[pack]: ")


def _rule_tables(whole: _Fields) -> list[Any]:
    """Return the tables `[[rule]]`."""
    tables = whole.table.get("rule")
    if isinstance(tables, Mapping):
        whole.fail(
            "rule", "expected an array of tables: write [[rule]] with two brackets"
        )
    if not isinstance(tables, list) or not tables:
        whole.fail("rule", "expected at least one rule, written [[rule]]")
    if len(tables) > MOST_RULES:
        whole.fail(
            "rule", f"expected at most {MOST_RULES:,} rules, got {len(tables):,}"
        )
    return tables


def read_document(
    source: str,
    parse: Callable[[str], Any],
    wrong: type[Exception],
    words: DocumentWords,
) -> Any:  # noqa: ANN401
    """Return the document in a text file.

    Args:
        source: the path.
        parse: makes a document of the text.
        wrong: what `parse` raises of a text that is none.
        words: what messages call the document.

    Raises:
        RuleError: the file cannot be read, or is no such document.
    """
    try:
        return parse(Path(source).read_text(encoding="utf-8"))
    except FileNotFoundError:
        problem = f"no such file; give the path of {words.expected}"
    except IsADirectoryError:
        problem = f"is a folder; give the path of {words.expected}"
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 text (byte {error.start}); save it as UTF-8"
    except wrong as error:
        problem = f"not valid {words.form}: {error}"
    except KeyError as error:  # a key that occurs twice
        problem = str(error.args[0])
    except RecursionError:
        problem = f"not a {words.what}: nested too deeply"
    except ValueError:  # Python refuses integers of thousands of digits
        problem = f"not a {words.what}: it contains a number that is too long"
    except MemoryError:
        problem = "needs more memory than is available"
    raise RuleError(f"{source}: {problem}")


def _rule(fields: _Fields, number: int, kind: PackKind) -> Rule:
    """Return the rule of one `[[rule]]` table of a pack of that kind."""
    if "category" not in fields.table:
        fields.fail("category", "missing; expected a string")
    if "pattern" not in fields.table and "cpu_op" not in fields.table:
        fields.fail("pattern", "missing; expected a string")
    if kind == "op" and "cpu_op" in fields.table:
        fields.fail(
            "cpu_op", 'not allowed in a pack of kind "op": its pattern is the condition'
        )
    pattern = _pattern(fields)
    return Rule(
        category=fields.value("category"),
        about=fields.value("about"),
        vendor=fields.value("vendor"),
        library=fields.value("library"),
        name=fields.value("name"),
        pattern=pattern,
        cpu_op=fields.any_of("cpu_op"),
        priority=fields.value("priority", int),
        number=number,
        examples=fields.examples("examples"),
        not_examples=fields.examples("not_examples"),
    )


def _pattern(fields: _Fields) -> str:
    """Return the pattern of a rule; one about the own name of a kernel is anchored at its start."""
    pattern = fields.any_of("pattern") or _ANY_NAME  # by its operation alone
    unless = fields.any_of("unless")
    if not fields.value("own_name", bool):
        if unless is not None:
            fields.fail(
                "unless", "refers to the kernel's own name: set own_name = true"
            )
        return pattern
    passed_over = "" if unless is None else f"(?!{_WITHIN}(?:{unless}))"
    return f"{_START}{passed_over}{_WITHIN}(?:{pattern})"


@dataclass
class _Fields:
    """Reads typed fields out of a table; every refusal names the document and the field."""

    table: Mapping[str, Any]
    known_keys: tuple[str, ...]
    source: str
    where: str  #: what stands before the name of a field in messages
    check_patterns: bool

    def __post_init__(self) -> None:
        for key in self.table:
            if key not in self.known_keys:
                hint = _hint_about(key, self.known_keys)
                raise RuleError(
                    f"{self.source}: {self.where}unknown key {key!r}; {hint}"
                )

    def fail(self, field: str, problem: str) -> NoReturn:
        raise RuleError(f"{self.source}: {self.where}{field}: {problem}")

    def value(self, key: str, expected_type: type = str) -> Any:  # noqa: ANN401
        """Return a value of that type; what is not there is None, 0 or False."""
        value = self.table.get(key)
        if value is None:
            return None if expected_type is str else expected_type()
        expected = f"expected {_EXPECTED_TYPES[expected_type]}"
        if isinstance(value, str) and not value.strip():
            found_type = (
                "an empty string" if expected_type is str else _found_type(value)
            )
            self.fail(key, f"{expected}, got {found_type}")
        is_flag_for_number = isinstance(value, bool) and expected_type is not bool
        if not isinstance(value, expected_type) or is_flag_for_number:
            self.fail(key, f"{expected}, got {_found_type(value)}")
        return value

    def any_of(self, key: str) -> str | None:
        """Return a pattern, or a list of them as one pattern that finds what any of them finds."""
        given = self.table.get(key)
        if given is None:
            return None
        patterns: list[Any] = [given]
        if isinstance(given, list) and given:
            patterns = given
        else:
            self.value(key)
        for pattern in patterns:
            if not isinstance(pattern, str) or not pattern.strip():
                self.fail(
                    key, f"expected a list of strings, got {_found_type(pattern)} in it"
                )
            if self.check_patterns:
                self._check_pattern(pattern, key)
            if len(patterns) > 1 and _FLAGS.match(pattern):
                self.fail(key, f"in a list, write the flags of {pattern!r} as (?i:...)")
        return "|".join(patterns)

    def _check_pattern(self, pattern: str, key: str) -> None:
        import regex

        problem = too_large(pattern)
        if problem is not None:
            self.fail(key, problem)
        try:
            regex.compile(pattern)
        except (regex.error, OverflowError, RecursionError) as error:
            self.fail(key, f"expected a regular expression, got {pattern!r}: {error}")

    def examples(self, key: str) -> tuple[Example, ...]:
        """Return the kernel names of a list, each a text or a table with its operation."""
        entries = self.table.get(key, [])
        if not isinstance(entries, list):
            self.fail(
                key, f"expected a list of kernel names, got {_found_type(entries)}"
            )
        examples = []
        for position, entry in enumerate(entries, start=1):
            if isinstance(entry, str):
                examples.append(Example(entry))
                continue
            label = f"{key}[{position}]"
            if not isinstance(entry, Mapping) or "name" not in entry:
                expected = 'expected a kernel name or {name = "...", cpu_op = "..."}'
                self.fail(label, f"{expected}, got {_found_type(entry)}")
            where = f"{self.where}{label}: "
            fields = replace(self, table=entry, known_keys=_EXAMPLE_KEYS, where=where)
            examples.append(
                Example(name=fields.value("name"), cpu_op=fields.value("cpu_op"))
            )
        return tuple(examples)


def _hint_about(key: str, known_keys: tuple[str, ...]) -> str:
    """Say where an unknown key belongs, or what may have been meant."""
    if key in _PACK_KEYS:
        return "it belongs in [pack]"
    if key in _RULE_KEYS:
        return "it belongs in a [[rule]]"
    from difflib import get_close_matches

    near = get_close_matches(str(key), known_keys, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(known_keys)}"


def _found_type(value: object) -> str:
    """Return what TOML calls the type of a value, with the value when it is short."""
    for python_type, name in _FOUND_TYPES.items():
        if isinstance(value, python_type):
            return f"{name} ({value!r})"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return type(value).__name__
