"""Times that only the other events show to be wrong: dropped and counted, whatever the format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.make_trace import TraceMaker
from tests.support.nsys_export_maker import ExportMaker
from tests.support.rocprof_maker import RunMaker
from tracelens_ext.analysis.timeline.overview import dominant_event
from tracelens_ext.cli import run
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.formats import read_document

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracelens_ext.trace import Trace

    Form = Callable[[Path, list[tuple[int, int]]], Trace]

YEAR = 365 * 86_400 * 10**9
UPTIME = 90_754_858_086_907
NO_TIME = "no time collected (start and end are 0)"
YEARS = "a start time (ts) years away from the others"


def kineto(_folder: Path, times: list[tuple[int, int]]) -> Trace:
    maker = TraceMaker()
    for start, end in times:
        maker.kernel("k", start / 1000, (end - start) / 1000)
    return read_document(maker.document())


def rocpd(folder: Path, times: list[tuple[int, int]]) -> Trace:
    maker = RunMaker()
    for number, (start, end) in enumerate(times):
        maker.kernel("k", start, end - start, correlation=number)
    return read_trace(maker.write_rocpd(folder / "run.db"))


def nsys(folder: Path, times: list[tuple[int, int]]) -> Trace:
    maker = ExportMaker()
    for start, end in times:
        maker.kernel("k", start, end - start)
    return read_trace(maker.write(folder / "run.sqlite"))


@pytest.mark.parametrize("form", [kineto, rocpd, nsys])
@pytest.mark.parametrize(
    ("time", "reason"),
    [
        ((0, 0), NO_TIME),
        ((0, UPTIME), NO_TIME),
        ((UPTIME + 9 * YEAR, UPTIME + 9 * YEAR + 5), YEARS),
        ((UPTIME, UPTIME - 1_000_000), "no usable duration (dur)"),
    ],
    ids=["zero", "only an end", "years ahead", "backward"],
)
def test_one_is_dropped_and_the_others_are_as_without(
    form: Form, time: tuple[int, int], reason: str, tmp_path: Path
) -> None:
    times = [(UPTIME + i * 1_000, UPTIME + i * 1_000 + 500) for i in range(12)]
    (tmp_path / "whole").mkdir()
    trace = form(tmp_path, [*times[:5], time, *times[5:]])
    whole = form(tmp_path / "whole", times)
    assert trace.provenance.dropped == {reason: 1}
    assert trace.provenance.present == whole.provenance.present + 1
    assert trace.ts.tolist() == whole.ts.tolist()
    assert trace.span_ns == whole.span_ns == 11_500


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(1, 10**6)), min_size=1, max_size=9
    )
)
def test_a_trace_that_begins_at_zero_is_whole(spans: list[tuple[int, int]]) -> None:
    maker = TraceMaker()
    for start, duration in [(0, 1), *spans]:
        maker.kernel("k", start, duration)
    assert len(read_document(maker.document())) == len(spans) + 1


def test_an_event_that_sets_most_of_the_span_is_named_on_the_first_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maker = TraceMaker()
    for i in range(12):
        maker.kernel("k", i * 10, 5)
    assert not dominant_event(read_document(maker.document()))
    maker.kernel("late", 10**9, 5)
    told = "late: without it 0.115 of 1,000,000.005 ms"
    path = tmp_path / "a.json"
    path.write_text(json.dumps(maker.document()))
    assert run(["report", str(path), "-o", str(tmp_path / "r.xlsx")]) == 0
    assert f"Set by one event: {told}" in capsys.readouterr().out.replace("\n", " ")
