"""Rule packs from TOML: what is accepted, and how each mistake is named."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens_ext.categorize import Example, Rule, load_pack
from tracelens_ext.categorize.rule_files import parse_pack
from tracelens_ext.errors import RuleError

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = """
[pack]
name = "mine"
priority = 3
selectable = true
kind = "kernel"

[[rule]]
category = "My Fused Op"
pattern = 'my_company::fused_'
vendor = "nvidia"
library = "my_company"
cpu_op = 'my_company::'
priority = -1
name = "fused"
examples = ["plain", {name = "with_op", cpu_op = "aten::mm"}]
not_examples = ["other"]

[[rule]]
category = "Second"
pattern = "b"
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_field(tmp_path: Path) -> None:
    path = write(tmp_path, WHOLE)
    pack = load_pack(path)
    assert (pack.name, pack.priority, pack.selectable, pack.kind) == (
        "mine",
        3,
        True,
        "kernel",
    )
    assert pack.source == str(path)
    assert pack.rules[0] == Rule(
        "My Fused Op",
        "my_company::fused_",
        vendor="nvidia",
        library="my_company",
        cpu_op="my_company::",
        priority=-1,
        name="fused",
        number=1,
        examples=(Example("plain"), Example("with_op", "aten::mm")),
        not_examples=(Example("other"),),
    )
    assert [pack.rule_id(rule) for rule in pack.rules] == ["fused", "mine:2"]
    assert [rule.number for rule in pack.ordered()] == [2, 1]


def test_the_file_gives_the_name(tmp_path: Path) -> None:
    pack = load_pack(write(tmp_path, "[[rule]]\ncategory = 'A'\npattern = 'a'\n"))
    assert (pack.name, pack.priority, pack.selectable, pack.kind) == (
        "mine",
        0,
        False,
        "kernel",
    )


RULE = "[[rule]]\ncategory = 'A'\npattern = 'a'\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            RULE + "patern = 'b'",
            "rule 1: unknown key 'patern'; did you mean 'pattern'?",
        ),
        (
            RULE + RULE + "exampels = []",
            "rule 2: unknown key 'exampels'; did you mean 'examples'?",
        ),
        (RULE + "kind = 'op'", "rule 1: unknown key 'kind'; it belongs in [pack]"),
        ("kind = 'op'\n" + RULE, "unknown key 'kind'; it belongs in [pack]"),
        (
            "[pack]\npattern = 'x'\n" + RULE,
            "[pack]: unknown key 'pattern'; it belongs in a [[rule",
        ),
        (
            RULE + "zzz = 1",
            "rule 1: unknown key 'zzz'; known: category, pattern, about, ",
        ),
        ("[[rules]]\ncategory = 'A'", "unknown key 'rules'; did you mean 'rule'?"),
        ("[[rule]]\npattern = 'a'", "rule 1: category: missing; expected a string"),
        (
            RULE + "[[rule]]\ncategory = 'A'",
            "rule 2: pattern: missing; expected a string",
        ),
        (
            "[[rule]]\ncategory = 1\npattern = 'a'",
            "rule 1: category: expected a string, got a num",
        ),
        (
            "[[rule]]\ncategory = ''\npattern = 'a'",
            "rule 1: category: expected a string, got an em",
        ),
        (
            "[[rule]]\ncategory = 'A'\npattern = ''",
            "rule 1: pattern: expected a string, got an empty",
        ),
        (
            "[[rule]]\ncategory = 'A'\npattern = '(a'",
            "rule 1: pattern: expected a regular expres",
        ),
        (RULE + "cpu_op = '[a'", "rule 1: cpu_op: expected a regular expression"),
        (
            RULE + "priority = '1'",
            "rule 1: priority: expected an integer, got a string ('1')",
        ),
        (
            RULE + "priority = true",
            "rule 1: priority: expected an integer, got a boolean",
        ),
        (
            RULE + "priority = 1.5",
            "rule 1: priority: expected an integer, got a number (1.5)",
        ),
        (
            RULE + "examples = 'a'",
            "rule 1: examples: expected a list of kernel names, got a string",
        ),
        (
            RULE + "examples = [1]",
            "rule 1: examples[1]: expected a kernel name or {name",
        ),
        (
            RULE + "examples = ['a', {op = 'b'}]",
            "rule 1: examples[2]: expected a kernel name",
        ),
        (
            RULE + "examples = [{name = 'a', cpuop = 'b'}]",
            "rule 1: examples[1]: unknown key 'cpuop'",
        ),
        (
            RULE + "not_examples = {}",
            "rule 1: not_examples: expected a list of kernel names",
        ),
        (
            "[rule]\ncategory = 'A'\npattern = 'a'",
            "rule: expected an array of tables: write [[rule",
        ),
        ("rule = [1]", "rule 1: rule: expected a table, got a number (1)"),
        ("", "rule: expected at least one rule, written [[rule]]"),
        ("[pack]\nname = 'x'", "rule: expected at least one rule"),
        ("pack = 1\n" + RULE, "pack: expected a table, written [pack]"),
        (
            "[pack]\nselectable = 1\n" + RULE,
            "[pack]: selectable: expected true or false, got a nu",
        ),
        (
            "[pack]\nkind = 'kernels'\n" + RULE,
            "[pack]: kind: expected 'kernel' or 'op', got 'kern",
        ),
        (
            "[pack]\nnmae = 'x'\n" + RULE,
            "[pack]: unknown key 'nmae'; did you mean 'name'?",
        ),
        (
            "[pack]\nkind = 'op'\n" + RULE + "cpu_op = 'a'",
            "rule 1: cpu_op: not allowed in a pack",
        ),
        ("[[rule]\n", "not valid TOML: "),
        ("a = " + "[" * 100_000, "not a rule pack: nested too deeply"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(RuleError) as caught:
        load_pack(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="no such file"):
        load_pack(tmp_path / "absent.toml")
    with pytest.raises(RuleError, match="is a folder"):
        load_pack(tmp_path)
    path = tmp_path / "latin.toml"
    path.write_bytes(b"# caf\xe9\n")
    with pytest.raises(RuleError, match="not UTF-8 text"):
        load_pack(path)


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["category", "pattern", "examples", "cpu_op", "priority", "vendor", "x"]
)


@settings(max_examples=300)
@given(
    document=st.dictionaries(st.sampled_from(["rule", "pack", "x"]), JSON_LIKE)
    | st.fixed_dictionaries(
        {"rule": st.lists(st.dictionaries(KEYS, JSON_LIKE), max_size=3)}
    )
)
def test_any_document_is_a_pack_or_a_rule_error(
    document: dict[str, object],
) -> None:
    try:
        pack = parse_pack(document)
    except RuleError as error:
        assert "\n" not in str(error)
    else:
        assert pack.rules


def test_a_list_of_patterns_matches_if_one_of_them_does() -> None:
    (rule,) = parse_pack(
        {
            "rule": [
                {"category": "A", "pattern": ["^foo", "bar$"], "cpu_op": ["mm", "add"]}
            ]
        }
    ).rules
    assert (rule.pattern, rule.cpu_op) == ("^foo|bar$", "mm|add")
    for wrong, problem in (
        (["a", 5], "rule 1: pattern: expected a list of strings, got a number"),
        (["a", "("], "rule 1: pattern: expected a regular expression, got '('"),
        (["a", "(?i)b"], "rule 1: pattern: in a list, write the flags of"),
        ([], "rule 1: pattern: expected a string, got a list"),
    ):
        with pytest.raises(RuleError, match=re.escape(problem)):
            parse_pack({"rule": [{"category": "A", "pattern": wrong}]})


def test_the_own_name_of_a_kernel_ends_before_its_arguments() -> None:
    table = {
        "category": "A",
        "pattern": "softmax",
        "own_name": True,
        "unless": ["copy", "moe"],
    }
    (rule,) = parse_pack({"rule": [table]}).rules
    found = [
        bool(regex.search(rule.pattern, name))
        for name in (
            "void lib::softmax_warp<float>(float*)",
            "void (anonymous namespace)::softmax(int)",
            "void lib::add<lib::softmax>(float*)",
            "softmax_copy",
            "void moe::softmax<int>(int)",
        )
    ]
    assert found == [True, True, False, False, False]
    with pytest.raises(RuleError, match="unless: refers to the kernel's own name"):
        parse_pack({"rule": [{"category": "A", "pattern": "a", "unless": "b"}]})


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (
            "pattern = '" + "|".join(f"k{n:06}" for n in range(300_000)) + "'",
            "2,399,999 characters",
        ),
        (
            "pattern = '(((a{1000}){1000}){1000}){1000}'",
            "repeats its parts 1e+12 times",
        ),
        (
            "pattern = 'a'\npriority = " + "1" * 5000,
            "contains a number that is too long",
        ),
    ],
    ids=["alternation", "repeats", "digits"],
)
def test_patterns_that_take_minutes_to_compile_are_refused(
    tmp_path: Path, rule: str, problem: str
) -> None:
    path = tmp_path / "my.toml"
    path.write_text(f"[[rule]]\ncategory = 'X'\n{rule}\n")
    with pytest.raises(RuleError) as caught:
        load_pack(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_pack_of_too_many_rules_is_refused() -> None:
    rules = [{"category": "X", "pattern": "a"}] * 10_001
    with pytest.raises(RuleError, match="at most 10,000 rules, got 10,001"):
        parse_pack({"rule": rules})


def test_fields_of_a_pack_apply_to_all_of_its_rules(tmp_path: Path) -> None:
    head = "[pack]\ncategory = 'A'\nlibrary = 'mine'\n"
    rules = "[[rule]]\npattern = 'a'\n[[rule]]\ncategory = 'B'\nlibrary = 'b'\ncpu_op = 'b'\n"
    first, second = load_pack(write(tmp_path, head + rules)).rules
    assert (first.category, first.library, first.pattern) == ("A", "mine", "a")
    assert (second.category, second.library, second.takes_any_name) == ("B", "b", True)
