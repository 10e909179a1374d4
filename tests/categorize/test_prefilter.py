"""The texts that a pattern needs: never wrong, whatever the pattern."""

from __future__ import annotations

import re
import sys

import pytest
import regex
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tracelens_ext.categorize.prefilter import Prefilter, fold, requirements

ALPHABET = "abKs_9"
# U+212A (Kelvin) matches k and U+017F (long s) matches s when case is ignored.
NAMES = st.text(alphabet=ALPHABET + "kSé:<(\n" + "\u212a\u017f", max_size=24)


def meets(pattern: str, name: str) -> bool:
    """Return True if the name has a text of each set, and is not kept from the pattern."""
    folded = fold(name)
    needs = requirements(pattern)
    has_all = all(any(fold(text) in folded for text in texts) for texts in needs)
    return has_all and list(Prefilter([pattern]).candidates(name)) == [0]


def atoms() -> st.SearchStrategy[str]:
    return st.one_of(
        st.text(alphabet=ALPHABET, min_size=1, max_size=4),
        st.sampled_from(
            [
                ".",
                "[ab]",
                "[^a_]",
                "[]a]",
                r"[\]b]",
                "[a[]",
                r"\d",
                r"\w",
                r"\b",
                "^",
                "$",
                r"\.",
                r"\(",
                ":",
                "é",
                r"\x61",
                r"\A",
                "(?i)",
                "(?s)",
                "(?:)",
                r"\s",
                "}",
                "]",
                r"\Z",
            ]
        ),
    )


def wrapped(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    opening = st.sampled_from(
        [
            "(",
            "(?:",
            "(?>",
            "(?P<n>",
            "(?=",
            "(?!",
            "(?<=",
            "(?<!",
            "(?i:",
            "(?s:",
            "(?-i:",
            "(?|",
        ]
    )
    quantifier = st.sampled_from(
        [
            "",
            "",
            "",
            "*",
            "+",
            "?",
            "{2}",
            "{0,2}",
            "{1,}",
            "{0}",
            "*?",
            "+?",
            "++",
            "{,2}",
            "{e<=1}",
        ]
    )
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        st.tuples(opening, inner, st.just(")"), quantifier).map("".join),
        st.tuples(inner, quantifier).map("".join),
    )


PATTERNS = st.recursive(atoms(), wrapped, max_leaves=10)


@settings(max_examples=2000, deadline=None)
@given(pattern=PATTERNS, name=NAMES)
def test_a_matching_name_contains_a_required_text(pattern: str, name: str) -> None:
    try:
        compiled = regex.compile(pattern)
    except regex.error:
        assume(False)
    if compiled.search(name, timeout=5) is None:
        return
    assert meets(pattern, name)


@settings(max_examples=500, deadline=None)
@given(pattern=PATTERNS, data=st.data())
def test_a_name_made_from_the_pattern_is_never_filtered_out(
    pattern: str, data: st.DataObject
) -> None:
    try:
        regex.compile(pattern)
        name = data.draw(st.from_regex(pattern.replace("(?|", "(?:")))
    except Exception:  # noqa: BLE001  # the two libraries know different syntax
        assume(False)
    if regex.search(pattern, name, timeout=5) is not None:
        assert meets(pattern, name)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("nvjet_", [{"nvjet_"}]),
        ("^void at::native::", [{"void at::native::"}]),
        (r"flash_(?:fwd|bwd)_kernel", [{"_kernel"}, {"flash_"}, {"fwd", "bwd"}]),
        (
            r"flash_\w+_(?:fwd|bwd)\d_kernel",
            [{"_kernel"}, {"flash_"}, {"fwd", "bwd"}, {"_"}],
        ),
        (r"(?:nccl|rccl)\w*", [{"nccl", "rccl"}]),
        (r"gemm(?!_bias)_kernel", [{"gemm_kernel"}]),
        (r"foo\(anonymous namespace\)", [{"foo(anonymous namespace)"}]),
        (r"ab+c", [{"ab"}, {"c"}]),
        (r"(?<![a-z])mla_", [{"mla_"}]),
        (r"a?bcd*", [{"bc"}]),
        (r"kernels?_x", [{"kernel"}, {"_x"}]),
        (r"(?:a|b.c)d", [{"d"}, {"a", "b"}]),
        (r"cat(?![a-z])|(?<!un)fill\b|^pad$", [{"cat", "fill", "pad"}]),
        (r"(?!(?:a[(|]|\(b)b)gemm(?=_|\()_x\|y", [{"gemm_x|y"}]),
        ("(?i)GeMM_", [{"GeMM_"}]),
        ("x*(?i:GEMM_)y?", [{"GEMM_"}]),
    ],
)
def test_requirements_of_patterns(pattern: str, expected: list[set[str]]) -> None:
    assert requirements(pattern) == expected


def test_every_letter_that_matches_an_ascii_letter_is_folded_to_it() -> None:
    letters = "".join(map(chr, [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]))
    for found in (
        re.findall("(?i)[a-z]", letters),
        regex.findall("(?i)[a-z]", letters),
    ):
        assert len(found) >= 54
        assert all(fold(letter) in "abcdefghijklmnopqrstuvwxyz" for letter in found)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        ".*",
        "a?",
        "abc|",
        "(?:abc)?",
        "(?x)a b c",
        "(?:abc){e<=1}",
        r"(a)\1",
        "[[:alpha:]]+",
        "straße",
        r"\x61\x62\x63",
        "(?|abc|abd)",
        "(" * 60 + "abc" + ")" * 60,
        r"\Lfoo",
        "(abc",
    ],
)
def test_patterns_without_requirements(pattern: str) -> None:
    assert requirements(pattern) == []
    assert list(Prefilter([pattern]).candidates("x")) == [0]
