"""The table of what patterns require: what is looked up is what parsing says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracelens_ext.categorize import builtin_categorizer, categorize_kernels
from tracelens_ext.categorize import requirements as module
from tracelens_ext.categorize.literals import parse_requirements
from tracelens_ext.categorize.requirements import TABLE, Needed, requirements
from tracelens_ext.categorize.requirements_table import built_in_patterns, table_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OUT_OF_DATE = "out of date: run `make requirements`"
UNKNOWN = r"my_company::(?:fused|split)_\w+|(?i:MyOp)_"
WHOLE = TABLE.read_bytes()


def forget() -> None:
    module._table.cache_clear()
    requirements.cache_clear()


@pytest.fixture
def other_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the table is looked for instead; nothing is there yet."""
    path = tmp_path / "requirements.json"
    monkeypatch.setattr(module, "TABLE", path)
    forget()
    yield path
    monkeypatch.undo()
    forget()


def test_the_table_holds_the_patterns_of_the_packs_and_no_others() -> None:
    in_table = set(msgspec.json.decode(WHOLE))
    assert in_table == built_in_patterns(), f"{TABLE.name} is {OUT_OF_DATE}"


def test_what_is_looked_up_is_what_parsing_says() -> None:
    forget()
    wrong = [p for p in sorted(built_in_patterns()) if module._table()[p] != parse_requirements(p)]
    assert not wrong, f"{TABLE.name} is {OUT_OF_DATE}"


def test_the_file_is_what_would_be_written() -> None:
    lines = table_text(built_in_patterns()).splitlines()
    changed = set(lines) ^ set(TABLE.read_text(encoding="utf-8").splitlines())
    assert not changed, f"{TABLE.name} is {OUT_OF_DATE}"
    assert lines[1:-1] == sorted(lines[1:-1])
    assert len(lines) == len(built_in_patterns()) + 2


def test_patterns_of_the_packs_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pattern: str) -> None:
        raise AssertionError(pattern)

    forget()
    monkeypatch.setattr("tracelens_ext.categorize.literals.parse_requirements", refuse)
    assert len([requirements(pattern) for pattern in built_in_patterns()]) > 200
    with pytest.raises(AssertionError, match="my_company"):
        requirements(UNKNOWN)


def test_a_pattern_that_is_not_in_the_table_is_parsed() -> None:
    assert UNKNOWN not in module._table()
    assert requirements(UNKNOWN) == parse_requirements(UNKNOWN) != ()


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        WHOLE[: len(WHOLE) // 2],
        b"<<<<<<< ours\n" + WHOLE,
        WHOLE.replace(b"nvjet_", b"nvjet\xff", 1),
        b"[]",
        b'{"nvjet_": [["nvjet_"]]}',
        b'{"nvjet_": [[]]}',
        b'{"nvjet_": [[[]]]}',
        b'{"nvjet_": [[["nvjet_", 1]]]}',
        b'{"nvjet_": null}',
    ],
)
def test_a_damaged_table_changes_no_answer(other_table: Path, damaged: bytes) -> None:
    other_table.write_bytes(damaged)
    assert module._table() == {}
    assert requirements("nvjet_") == (frozenset([Needed("nvjet_")]),)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cut=st.integers(0, 400), put=st.binary(max_size=6), taken=st.integers(0, 6))
def test_no_damage_is_an_error(other_table: Path, cut: int, put: bytes, taken: int) -> None:
    sound = table_text(["nvjet_", UNKNOWN, "(?i)gemm"]).encode()
    other_table.write_bytes(sound[:cut] + put + sound[cut + taken :])
    forget()
    for pattern in ("neither_this_kernel", r"nor_that|\w*kernel"):  # not in it, however damaged
        assert requirements(pattern) == parse_requirements(pattern)


def test_without_a_table_kernels_get_the_same_categories(other_table: Path) -> None:
    packs = builtin_categorizer().packs
    names = [e.name for bound in packs for rule in bound.pack.rules for e in rule.examples]
    without = categorize_kernels(names)
    assert module._table() == {}
    other_table.write_bytes(WHOLE)
    forget()
    assert len(names) > 300
    assert module._table()
    assert categorize_kernels(names).equals(without)
