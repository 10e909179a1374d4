"""Rule packs from TOML: every error names the file, the rule, the field, and what was expected."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from tracelens_ext.categorize.rules import MOST_RULES, Example, PackKind, Rule, RulePack, too_large
from tracelens_ext.errors import RuleError

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
    source, name = os.fspath(path), Path(path).stem
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
    check = _Checker(source or f"pack {name!r}", check_patterns)
    check.known_keys(document, _TOP_KEYS, "")
    head = document.get("pack", {})
    if not isinstance(head, Mapping):
        check.fail("pack", "expected a table, written [pack]")
    check.known_keys(head, _PACK_KEYS, "[pack]: ")
    tables = document.get("rule")
    if isinstance(tables, Mapping):
        check.fail("rule", "expected an array of tables: write [[rule]] with two brackets")
    if not isinstance(tables, list) or not tables:
        check.fail("rule", "expected at least one rule, written [[rule]]")
    if len(tables) > MOST_RULES:
        check.fail("rule", f"expected at most {MOST_RULES:,} rules, got {len(tables):,}")
    kind = check.value(head, "kind", "[pack]: ") or "kernel"
    if kind not in ("kernel", "op"):
        check.fail("[pack]: kind", f"expected 'kernel' or 'op', got {kind!r}")
    known = {key: check.value(head, key, "[pack]: ") for key in _OF_ALL_RULES if key in head}
    return RulePack(
        name=check.value(head, "name", "[pack]: ") or name,
        rules=tuple(_rule(check, table, at, kind, known) for at, table in enumerate(tables, 1)),
        priority=check.value(head, "priority", "[pack]: ", int),
        selectable=check.value(head, "selectable", "[pack]: ", bool),
        kind=cast("PackKind", kind),
        source=source,
        usual_for=check.value(head, "usual_for", "[pack]: ") or "",
    )


def read_document(
    source: str,
    parse: Callable[[str], Any],
    wrong: type[Exception],
    words: tuple[str, str, str],
) -> Any:  # noqa: ANN401
    """The document in a text file; RuleError where `parse` raises `wrong`, or it is no file."""
    form, what, expected = words
    try:
        return parse(Path(source).read_text(encoding="utf-8"))
    except FileNotFoundError:
        problem = f"no such file; give the path of {expected}"
    except IsADirectoryError:
        problem = f"is a folder; give the path of {expected}"
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


def _rule(check: _Checker, table: object, number: int, kind: str, known: Mapping[str, Any]) -> Rule:
    """Validate one `[[rule]]` table of a pack of that kind, which has some keys itself."""
    where = f"rule {number}: "
    if not isinstance(table, Mapping):
        check.fail(where + "rule", f"expected a table, got {_kind_of(table)}")
    check.known_keys(table, _RULE_KEYS, where)
    table = {**known, **table}
    for required, instead in (("category", ""), ("pattern", "cpu_op")):
        if required not in table and instead not in table:
            check.fail(where + required, "missing; expected a text")
    if kind == "op" and "cpu_op" in table:
        check.fail(
            where + "cpu_op", 'not allowed in a pack of kind "op": its pattern is the condition'
        )
    pattern = check.any_of(table, "pattern", where) or "."  # by its operation alone
    unless = check.any_of(table, "unless", where)
    if check.value(table, "own_name", where, bool):
        passed_over = "" if unless is None else f"(?!{_WITHIN}(?:{unless}))"
        pattern = f"{_START}{passed_over}{_WITHIN}(?:{pattern})"
    elif unless is not None:
        check.fail(where + "unless", "is about the kernel's own name: set own_name = true")
    texts = ("category", "about", "vendor", "library", "name")
    return Rule(
        **{key: check.value(table, key, where) for key in texts},
        pattern=pattern,
        cpu_op=check.any_of(table, "cpu_op", where),
        priority=check.value(table, "priority", where, int),
        number=number,
        examples=_examples(check, table, "examples", where),
        not_examples=_examples(check, table, "not_examples", where),
    )


def _examples(
    check: _Checker, table: Mapping[str, Any], key: str, where: str
) -> tuple[Example, ...]:
    """The kernel names of `examples` or `not_examples`, each a text or a table with its op."""
    entries = table.get(key, [])
    if not isinstance(entries, list):
        check.fail(where + key, f"expected a list of kernel names, got {_kind_of(entries)}")
    found = []
    for position, entry in enumerate(entries, start=1):
        label = f"{where}{key}[{position}]"
        if isinstance(entry, str):
            found.append(Example(entry))
            continue
        if not isinstance(entry, Mapping) or "name" not in entry:
            wanted = 'expected a kernel name or {name = "...", cpu_op = "..."}, got '
            check.fail(label, wanted + _kind_of(entry))
        check.known_keys(entry, _EXAMPLE_KEYS, f"{label}: ")
        found.append(Example(*(check.value(entry, key, f"{label}: ") for key in _EXAMPLE_KEYS)))
    return tuple(found)


class _Checker:
    """Reads typed fields out of tables; every refusal names the document and the field."""

    def __init__(self, source: str, check_patterns: bool) -> None:
        self.source, self.check_patterns = source, check_patterns

    def fail(self, *said: str) -> NoReturn:
        raise RuleError(": ".join((self.source, *said)))

    def known_keys(self, table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        for key in table:
            if key not in known:
                from difflib import get_close_matches

                near = get_close_matches(str(key), known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                home = next((place for place, keys in _HOMES if key in keys), None)
                hint = hint if home is None else f"it belongs in {home}"
                self.fail(f"{where}unknown key {key!r}; {hint}")

    def value(self, table: Mapping[str, Any], key: str, where: str, kind: type = str) -> Any:  # noqa: ANN401
        """A value of that type; what is not there is None, 0 or False."""
        value = table.get(key)
        if value is None:
            return None if kind is str else kind()
        empty = isinstance(value, str) and not value.strip()
        if not isinstance(value, kind) or isinstance(value, bool) > (kind is bool) or empty:
            got = "an empty text" if empty and kind is str else _kind_of(value)
            self.fail(where + key, f"expected {_TYPES[kind]}, got {got}")
        return value

    def any_of(self, table: Mapping[str, Any], key: str, where: str) -> str | None:
        """A pattern, or a list of them as one pattern that finds what any of them finds."""
        given = table.get(key)
        if given is None:
            return None
        alone = not isinstance(given, list) or not given
        parts: list[Any] = [self.value(table, key, where)] if alone else given
        for part in parts:
            if not isinstance(part, str) or not part.strip():
                self.fail(where + key, f"expected a list of texts, got {_kind_of(part)} in it")
            if self.check_patterns:
                self.pattern(part, where + key)
            if len(parts) > 1 and _FLAGS.match(part):
                self.fail(where + key, f"in a list write the flags of {part!r} as (?i:...)")
        return "|".join(parts)

    def pattern(self, pattern: str, field: str) -> None:
        import regex

        if problem := too_large(pattern):
            self.fail(field, problem)
        try:
            regex.compile(pattern)
        except (regex.error, OverflowError, RecursionError) as error:
            self.fail(field, f"expected a regular expression, got {pattern!r}: {error}")


def _kind_of(value: object) -> str:
    """What TOML calls the type of a value, with the value when it is short."""
    kinds = ((bool, "a boolean"), (int, "a number"), (float, "a number"), (str, "a text"))
    for python_type, kind in kinds:
        if isinstance(value, python_type):
            return f"{kind} ({value!r})"
    if isinstance(value, Mapping):
        return "a table"
    return "a list" if isinstance(value, list) else type(value).__name__
