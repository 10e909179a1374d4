"""The place of a finding has a third of it at least, and is in the title from a half on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.idle_programs import Program
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.findings.finding import Finding, Place
from tracelens_ext.findings.summary import largest_place, where_text
from tracelens_ext.findings.title_place import with_places_in_titles


@pytest.fixture(scope="module")
def slow_launches() -> TreePerfAnalyzer:
    program = Program()
    for step in range(10):
        begin = program.cpu
        for _ in range(20):
            program.launch(10, cost=60)
        program.maker.annotation(f"ProfilerStep#{step}", begin, program.cpu - begin)
    return TreePerfAnalyzer(program.maker.document())


def first(analyzer: TreePerfAnalyzer) -> Finding:
    return analyzer.findings().findings[0]


def with_places(finding: Finding, *shares: float) -> Finding:
    places = [
        Place(f"place {number}", share * finding.attributed_ms, 10)
        for number, share in enumerate(shares)
    ]
    return replace(finding, title="Title", where={"operations": places})


def test_the_title_names_the_largest_place_and_its_time_per_step(
    slow_launches: TreePerfAnalyzer,
) -> None:
    title = first(slow_launches).title
    assert "mostly in aten::mm" in title
    assert title.endswith("ms per step")


@pytest.mark.parametrize(
    ("share", "in_title", "named"),
    [(0.6, True, True), (0.4, False, True), (0.3, False, False)],
)
def test_a_small_place_is_not_named(
    slow_launches: TreePerfAnalyzer, share: float, *, in_title: bool, named: bool
) -> None:
    finding = with_places(first(slow_launches), share, 0.1)
    (titled,) = with_places_in_titles(slow_launches.gpu_events, [finding])
    assert ("place 0" in titled.title) is in_title
    assert bool(largest_place(finding)) is named
    if named:
        assert largest_place(finding) == f"place 0 ({100 * share:.0f} %)"
        assert f"{100 * share:.0f} % of it" in where_text(finding)
    else:
        assert "place 0" not in where_text(finding)
