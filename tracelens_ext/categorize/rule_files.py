"""Reads rule packs from TOML files.

Every error message names the file, the rule, the field, and the expected value.
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
"""The most rules of a pack."""

_TOP_KEYS: Final = ("pack", "rule")
#: Fields of a pack that apply to all of its rules that do not have the field.
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
#: These come before the pattern of a rule with `own_name`. The own name of a kernel is the part
#: before its template arguments and parameters. Mangled names of at:: are excluded, because it is
#: not visible where their own name ends; other rules know these kernels.
_START: Final = r"^(?!_ZN2at)(?:std::enable_if<.*?>::type )?"
_WITHIN_OWN_NAME: Final = (
    r"(?:[\w: ]{0,120}(?:\(anonymous namespace\)|<unnamed>)::)?[^<(]{0,160}?"
)
#: Flags at the beginning of a pattern, such as `(?i)`.
_FLAGS: Final = re.compile(r"\(\?[A-Za-z]+\)")
#: The pattern of rules that depend on the operation only.
_ANY_NAME: Final = "."


class DocumentWords(NamedTuple):
    """The words with which messages describe a kind of document."""

    form: str  #: the format, such as `TOML`
    what: str  #: the contents, such as `rule pack`
    expected: str  #: the file that the user should give


def load_pack(path: str | os.PathLike[str], *, check_patterns: bool = True) -> RulePack:
    """Read a rule pack from a TOML file. Unless the file gives a name, it is named after the file.

    Args:
        path: the path of the file.
        check_patterns: compile the patterns to check them. This is not necessary for packs that the
            project's tests have checked.

    Raises:
        RuleError: the file cannot be read, is not TOML, or does not have the right format.
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
    """Create a rule pack from `{"pack": {...}, "rule": [{...}, ...]}`; `pack` is optional.

    Args:
        document: the tables.
        source: the name of the document in messages.
        name: the name of the pack if the document does not give one.
        check_patterns: compile the patterns to check them.

    Raises:
        RuleError: the document does not have the right format.
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
    """Read the document in a text file.

    Args:
        source: the path of the file.
        parse: a function that parses the text.
        wrong: the exception that `parse` raises for an invalid text.
        words: the words for the document in messages.

    Raises:
        RuleError: the file cannot be read, or does not contain such a document.
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
    except KeyError as error:
        # A key occurs twice; see `without_repetition`.
        problem = str(error.args[0])
    except RecursionError:
        problem = f"not a {words.what}: nested too deeply"
    except ValueError:
        # Python refuses to parse integers with thousands of digits.
        problem = f"not a {words.what}: it contains a number that is too long"
    except MemoryError:
        problem = "needs more memory than is available"
    raise RuleError(f"{source}: {problem}")


def _rule(fields: _Fields, number: int, kind: PackKind) -> Rule:
    """Return the rule in a table `[[rule]]`.

    Args:
        fields: the fields of the table.
        number: the position of the rule in the pack, from 1.
        kind: the kind of the pack.
    """
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
    """Return the pattern of a rule.

    With `own_name`, the pattern must occur in the kernel's own name, and `unless` must not.
    """
    pattern = fields.any_of("pattern") or _ANY_NAME
    unless = fields.any_of("unless")
    if not fields.value("own_name", bool):
        if unless is not None:
            fields.fail(
                "unless", "refers to the kernel's own name: set own_name = true"
            )
        return pattern
    exclusion = "" if unless is None else f"(?!{_WITHIN_OWN_NAME}(?:{unless}))"
    return f"{_START}{exclusion}{_WITHIN_OWN_NAME}(?:{pattern})"


@dataclass
class _Fields:
    """Reads the fields of a table and checks their types.

    Every error message names the document and the field. A table with an unknown key is an error.
    """

    table: Mapping[str, Any]
    known_keys: tuple[str, ...]
    source: str  #: the name of the document in messages
    where: str  #: the text before the name of a field in messages, such as `rule 3: `
    check_patterns: bool

    def __post_init__(self) -> None:
        for key in self.table:
            if key not in self.known_keys:
                hint = _hint_about(key, self.known_keys)
                raise RuleError(
                    f"{self.source}: {self.where}unknown key {key!r}; {hint}"
                )

    def fail(self, field: str, problem: str) -> NoReturn:
        """Raise the error about a field."""
        raise RuleError(f"{self.source}: {self.where}{field}: {problem}")

    def value(self, key: str, expected_type: type = str) -> Any:  # noqa: ANN401
        """Return the value of a field; None, 0 or False if the table does not have the field."""
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
        """Return a pattern, or a list of patterns joined by `|`; None without the field."""
        value = self.table.get(key)
        if value is None:
            return None
        patterns: list[Any] = [value]
        if isinstance(value, list) and value:
            patterns = value
        else:
            self.value(key)  # raises if the value is not a text
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
        """Return the examples in a list; each is a name, or a table with name and operation."""
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
    """Return where an unknown key belongs, or which key may have been meant."""
    if key in _PACK_KEYS:
        return "it belongs in [pack]"
    if key in _RULE_KEYS:
        return "it belongs in a [[rule]]"
    from difflib import get_close_matches

    similar_keys = get_close_matches(str(key), known_keys, n=1, cutoff=0.5)
    if similar_keys:
        return f"did you mean {similar_keys[0]!r}?"
    return f"known: {', '.join(known_keys)}"


def _found_type(value: object) -> str:
    """Return the type of a value in the terms of TOML, with the value itself if it is simple."""
    for python_type, name in _FOUND_TYPES.items():
        if isinstance(value, python_type):
            return f"{name} ({value!r})"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return type(value).__name__
