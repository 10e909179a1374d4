"""Exports of random jobs lose no event, and a track that fails takes no other with it."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings

from tests.support.make_trace import TraceMaker
from tests.support.random_traces import job_shapes, trace_of
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.export.choice import Choice
from tracelens_ext.export.perfetto import ExportSummary, Source, perfetto_json
from tracelens_ext.export.spans import spans_of
from tracelens_ext.isolation import DEBUG_VARIABLE

if TYPE_CHECKING:
    from tests.support.make_trace import Document
    from tests.support.random_traces import JobShape

#: Jobs with events; a trace without any is refused.
JOBS = job_shapes().filter(lambda shape: shape.launches > 0)


def exported(
    analyzer: TreePerfAnalyzer, *, with_findings: bool
) -> tuple[Any, ExportSummary]:
    """The export of a trace as a document, and what is told of it."""
    spans = spans_of(analyzer, with_findings=with_findings)
    source = Source(analyzer.gpu_events, spans=spans, failures=analyzer.failures)
    summary = ExportSummary()
    text = "".join(perfetto_json([source], Choice(stacks=True), summary))
    return json.loads(text), summary


def analyzed(document: Document) -> TreePerfAnalyzer:
    return TreePerfAnalyzer(document, use_kernel_name_categories=True)


def event_counts(analyzer: TreePerfAnalyzer) -> Counter[Any]:
    """The events of a trace, each as name, kind, start and duration."""
    trace = analyzer.trace
    columns = (trace.name, trace.kind, trace.ts, trace.dur)
    rows = zip(*(column[: trace.recorded].tolist() for column in columns), strict=True)
    return Counter((trace.names[name], kind, ts, dur) for name, kind, ts, dur in rows)


@given(JOBS)
@settings(max_examples=25)
def test_what_is_read_back_has_every_event(shape: JobShape) -> None:
    analyzer = analyzed(trace_of(shape))
    document, summary = exported(analyzer, with_findings=False)
    assert summary.failures == []
    assert summary.written == analyzer.trace.recorded
    read_back = analyzed(document)
    written = event_counts(analyzer)
    assert not written - event_counts(read_back)
    assert len(read_back.gpu_events) == len(analyzer.gpu_events)
    assert read_back.gpu_events.duration.sum() == analyzer.gpu_events.duration.sum()
    linked = analyzer.gpu_events.tree.linked.sum()
    assert read_back.gpu_events.tree.linked.sum() == linked


@given(JOBS)
@settings(max_examples=10)
def test_every_random_job_has_its_tracks(shape: JobShape) -> None:
    _, summary = exported(analyzed(trace_of(shape)), with_findings=True)
    assert summary.failures == []


def a_job() -> Document:
    maker = TraceMaker()
    for step in range(2):
        start = 1000 * step
        maker.annotation(f"ProfilerStep#{step}", start, 990)
        maker.launched(
            "gemm_kernel", start + 100, 300, correlation=step + 1, at=start + 10
        )
    return maker.document()


@pytest.mark.parametrize(
    ("function", "part", "lane"),
    [
        ("spans._iteration_spans", "The track iterations", "iterations"),
        ("spans._recording_spans", "The track recording", "recording"),
        ("spans._finding_spans", "The track findings", "findings"),
        ("spans._critical_path_spans", "The track critical path", "critical path"),
        ("counters._busy_counters", "The counters of busy time", "GPU busy (%)"),
        ("counters._queue_counters", "The counter queue length", "queue length"),
        ("counters._copy_counters", "The counter copy GB/s", "copy GB/s"),
        ("counters._memory_counters", "The counter allocated GiB", "allocated GiB"),
    ],
)
def test_a_track_that_fails_is_left_out_and_named(
    function: str, part: str, lane: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise IndexError("no such row")

    def drawn(document: Any) -> list[str]:
        return [
            json.dumps({**event, "pid": 0, "tid": 0}, sort_keys=True)
            for event in document["traceEvents"]
            if event["ph"] != "M" and lane not in (event.get("cat"), event["name"])
        ]

    whole, _ = exported(analyzed(a_job()), with_findings=True)
    monkeypatch.delenv(DEBUG_VARIABLE)
    monkeypatch.setattr(f"tracelens_ext.export.{function}", broken)
    document, summary = exported(analyzed(a_job()), with_findings=True)
    assert part in summary.text()
    assert (
        "could not be computed: IndexError: no such row; please report this"
        in summary.text()
    )
    expected = [
        event
        for event in drawn(whole)
        if lane != "GPU busy (%)" or "exposed" not in event
    ]
    assert drawn(document) == expected


def test_a_path_without_launches_by_name_is_exported() -> None:
    maker = TraceMaker()
    maker.op("aten::mm", 0, 50)
    maker.kernel("gemm_kernel", 100, 50)
    _, summary = exported(analyzed(maker.document()), with_findings=True)
    assert summary.failures == []
