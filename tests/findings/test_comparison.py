"""What is new, gone, better and worse between traces and reports, and budgets on it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.comparison_helpers import measured, training, write
from tests.support.make_trace import TraceMaker
from tracelens_ext.cli import run
from tracelens_ext.compare.budgets import check_budgets, parse_budget
from tracelens_ext.compare.comparison import Comparison, compare
from tracelens_ext.compare.finding_changes import compare_findings
from tracelens_ext.compare.finished_reports import measure_report
from tracelens_ext.errors import TracelensError, UsageError

if TYPE_CHECKING:
    from tracelens_ext.compare.measurement import Saving

GONE: Saving = (20.0, 10.0)


def comparing(*findings: dict[str, Saving] | None) -> Comparison:
    """A comparison of traces with these findings."""
    one = measured(training(2))
    return compare([replace(one, findings=each) for each in findings])


def crossed(budget: str, comparison: Comparison) -> bool:
    (verdict,) = check_budgets(
        [parse_budget(budget)], comparison, ["dataloader", "allocator"]
    )
    return verdict.crossed


def idle(ms: int) -> TraceMaker:
    """Kernels of 1 ms with gaps of so many ms in which the host does something else."""
    maker = TraceMaker()
    for at in range(5):
        start = (1000 + 1000 * ms) * at + 10_000
        maker.op("aten::mm", start - 900, 910)
        maker.launched("gemm", start, 1000, correlation=at + 1, at=start - 5)
    return maker


def test_findings_are_new_gone_better_worse_or_as_before() -> None:
    before = {"allocator": GONE, "dataloader": (4.0, 2.0), "host-bound": (9.0, 5.0)}
    after = {
        "slow-gemm": (6.0, 3.0),
        "dataloader": (40.0, 20.0),
        "host-bound": (9.0, 4.5),
    }
    found = compare_findings(comparing(before, after))
    assert found is not None
    assert found[["finding", "change", "difference_ms"]].to_numpy().tolist() == [
        ["dataloader", "worse", 18.0],
        ["allocator", "gone", -10.0],
        ["slow-gemm", "new", 3.0],
        ["host-bound", "as before", 0.0],
    ]
    assert (found["A_attributed_ms"][1], found["B_attributed_ms"][1]) == (10.0, 0.0), (
        "of each of two iterations"
    )
    back = compare_findings(comparing(after, before))
    assert back is not None
    assert back["change"].tolist() == ["better", "new", "gone", "as before"]


def test_several_traces_have_columns_each() -> None:
    found = compare_findings(comparing({}, {"allocator": GONE}, {}))
    assert found is not None
    assert found["B_change"].tolist() == ["new"]
    assert found["C_change"].tolist() == [""]
    assert found["C_difference_ms"].tolist() == [0.0]


def test_traces_without_findings_have_an_empty_table() -> None:
    found = compare_findings(comparing({}, {}))
    assert found is not None
    assert len(found) == 0


@pytest.mark.parametrize(
    ("budget", "is_crossed"),
    [
        ("findings > 5%", True),
        ("findings > 7%", False),  # 10 % → 17 %: exactly 7 % of the wall time
        ("findings > 6.9ms", True),
        ("Findings > 7ms", False),
        ("allocator < -5%", True),
        ("dataloader > 16.9%", True),
        ("dataloader > 17%", False),
        ("host-bound > 0%", None),
    ],
)
def test_budgets_on_findings_are_of_the_wall_time(
    budget: str, is_crossed: bool | None
) -> None:
    comparison = comparing({"allocator": GONE}, {"dataloader": (34.0, 17.0)})
    if is_crossed is None:
        with pytest.raises(
            UsageError, match="there is no timeline row, category or finding called"
        ):
            crossed(budget, comparison)
    else:
        assert crossed(budget, comparison) is is_crossed


def test_a_verdict_on_a_share_says_so() -> None:
    (verdict,) = check_budgets(
        [parse_budget("findings > 5%")],
        comparing({"allocator": GONE}, {"allocator": (40.0, 20.0)}),
    )
    assert (verdict.before, verdict.after) == (Fraction(10), Fraction(20))
    assert str(verdict) == (
        "B: findings 10.00 → 20.00 % of the wall time (+10.00); the budget is findings > +5 %"
    )


def test_findings_of_a_report_without_them_cannot_be_checked() -> None:
    comparison = comparing({"allocator": GONE}, None)
    assert compare_findings(comparison) is None
    with pytest.raises(TracelensError, match=r"B .* is a report without findings"):
        crossed("findings > 5%", comparison)


@pytest.mark.slow
def test_finished_reports_are_compared_as_their_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("a.json"), idle(1))
    write(Path("b.json"), idle(3))
    assert run(["report", "a.json", "-o", "a.xlsx", "--csv-dir", "a", "-q"]) == 0
    assert run(["report", "b.json", "-o", "b.xlsx", "--csv-dir", "b", "-q"]) == 0
    fails = ["--fail-if", "findings > 5%", "--fail-if", "host-bound < 0%"]
    capsys.readouterr()
    said = []
    for before, after in [("a.json", "b.json"), ("a.xlsx", "b"), ("a", "b.xlsx")]:
        assert run(["compare", before, after, *fails]) == 3
        shown = capsys.readouterr()
        (crossed_line,) = shown.err.splitlines()
        assert (
            "budget exceeded: B: findings 44.44 → 70.59 % of the wall time"
            in crossed_line
        )
        said.append(shown.out.split("GPU time by")[0].split("Findings")[1])
    assert said[0] == said[1] == said[2]
    assert run(["compare", "b.xlsx", "a.json", "--fail-if", "findings > 5%"]) == 0
    for same in ("a.xlsx", "a"):
        found = measure_report(Path(same)).findings
        assert found is not None
        assert found["host-bound"] == pytest.approx((4.0, 400 / 9))


def test_a_report_of_odd_findings_is_named(tmp_path: Path) -> None:
    (tmp_path / "gpu_timeline.csv").write_text(
        "type,time ms\ntotal_time,1\n", encoding="utf-8"
    )
    findings = tmp_path / "findings.csv"
    findings.write_text(
        "finding,saving_ms,% of wall time\nx,much,1\n", encoding="utf-8"
    )
    with pytest.raises(TracelensError, match="row 2 of the sheet findings has 'much'"):
        measure_report(tmp_path)
    findings.write_text("finding,advice\nx,y\n", encoding="utf-8")
    assert measure_report(tmp_path).findings is None
