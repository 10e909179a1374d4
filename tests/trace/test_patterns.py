"""Expressions of users: what is refused, and that no search goes on without end."""

from __future__ import annotations

import re

import pytest

from tracelens_ext.categorize import matcher
from tracelens_ext.categorize.user_patterns import user_pattern
from tracelens_ext.errors import UsageError

HARD = "a" * 60 + "!"


def test_an_expression_that_python_cannot_finish_is_answered() -> None:
    pattern = user_pattern("(a+)+$", "annotation")
    assert pattern is not None
    assert not pattern.search("a" * 40 + "!")


def test_an_expression_without_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "_SEARCH_SECONDS", 0.01)
    pattern = user_pattern(r"^(?:a|a|aa)+$", "--op")
    assert pattern is not None
    with pytest.raises(
        UsageError, match=r"--op '.*' takes too long on 'aaa.*!'; make repeated"
    ):
        pattern.search(HARD)


def test_many_quick_searches_have_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "_FIRST_SECONDS", 0.0)
    monkeypatch.setattr(matcher, "_SECONDS_PER_SEARCH", 0.0)
    pattern = user_pattern("a", "annotation")
    assert pattern is not None
    with pytest.raises(UsageError, match="takes too long"):
        pattern.search("a")


def test_a_compiled_expression_keeps_its_flags() -> None:
    pattern = user_pattern(
        re.compile("^EVAL . x", re.IGNORECASE | re.VERBOSE), "annotation"
    )
    assert pattern is not None
    assert pattern.search("evalzx")
    assert user_pattern(pattern, "annotation") is pattern
    assert user_pattern(None, "annotation") is None
