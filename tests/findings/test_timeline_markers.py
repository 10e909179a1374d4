"""Findings on the time axis."""

from __future__ import annotations

import pytest

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer


def host_bound(launches: int) -> TreePerfAnalyzer:
    """Return a trace in which each kernel of 10 µs waits for its launch, 100 µs apart."""
    maker = TraceMaker()
    for number in range(launches):
        start = 100 * number
        maker.op("aten::mul", start, 95)
        maker.launched("k", start + 50, 10, correlation=number + 1, at=start + 40)
    return TreePerfAnalyzer(maker.document(), use_kernel_name_categories=True)


@pytest.mark.parametrize(("launches", "most_rows"), [(50, 60), (1000, 600)])
def test_many_stretches_are_shown_as_bins_with_their_share(
    launches: int, most_rows: int
) -> None:
    analyzer = host_bound(launches)
    markers = analyzer.table("timeline_markers")
    assert markers is not None
    (finding,) = {f for f in markers["finding"] if f == "host-bound"}
    rows = markers[markers["finding"] == finding]
    assert 1 < len(rows) <= most_rows
    claim = next(f for f in analyzer.findings() if f.id == finding).claim
    assert claim is not None
    starts, ends, *_ = claim.intervals
    covered_ms = (rows["end_ms"] - rows["start_ms"]) * rows["covered_percent"] / 100
    assert covered_ms.sum() == pytest.approx((ends - starts).sum() / 1e6, rel=1e-6)
