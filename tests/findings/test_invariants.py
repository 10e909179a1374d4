"""What holds of the findings of every trace: attributed time, savings, devices."""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.make_trace import short_demo
from tests.support.random_traces import JobShape, job_shapes, trace_of
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.idle_time.causes import CAUSES
from tracelens_ext.analysis.idle_time.classification import classify_gaps
from tracelens_ext.findings.summary import findings_table
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.trace import NONE

if TYPE_CHECKING:
    from tests.support.make_trace import Document
    from tracelens_ext.findings.finding import Findings

GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
ROUNDING_MS = 1e-6


def findings_of(document: Document) -> tuple[TreePerfAnalyzer, Findings]:
    analyzer = TreePerfAnalyzer(document, use_kernel_name_categories=True)
    return analyzer, analyzer.findings()


def gpu_events(document: Document) -> list[dict[str, Any]]:
    return [
        event for event in document["traceEvents"] if event.get("cat") in GPU_CATEGORIES
    ]


def attributed_by_device(findings: Findings) -> dict[int, dict[str, float]]:
    """The attributed time of each finding by device, ms."""
    result: dict[int, dict[str, float]] = defaultdict(dict)
    for finding in findings.findings:
        devices: Any = finding.as_dict()["devices"]
        for part in devices:
            if part["attributed_ms"]:
                result[part["device"]][finding.id] = part["attributed_ms"]
    return dict(result)


@st.composite
def documents(draw: st.DrawFn) -> Document:
    """Random traces, some with clocks that differ and kernels that last over later ones."""
    document = trace_of(draw(job_shapes().filter(lambda shape: shape.launches > 0)))
    offset = draw(st.sampled_from([0, 0, -30, 30, 200]))
    stretched = draw(st.sampled_from([1, 1, 5, 40]))
    for number, event in enumerate(gpu_events(document)):
        event["ts"] = max(0, event["ts"] + offset)
        if number % 7 == 3:
            event["dur"] *= stretched
    return document


@settings(max_examples=15, deadline=None)
@given(documents())
def test_each_moment_of_a_device_is_attributed_once_and_no_saving_is_negative(
    document: Document,
) -> None:
    _, findings = findings_of(document)
    assert findings.explained_ms <= findings.analyzed_ms + ROUNDING_MS
    spans = defaultdict(list)
    for finding in findings.findings:
        assert finding.saving_ms >= 0
        assert (finding.saving_together_ms or 0) >= 0
        if finding.claim is not None:
            intervals = finding.claim.intervals
            for device, start, end in zip(
                intervals.device_index, intervals.start, intervals.end, strict=True
            ):
                spans[int(device)].append((int(start), int(end)))
    for of_device in spans.values():
        of_device.sort()
        for (_, end), (next_start, _) in pairwise(of_device):
            assert end <= next_start


def causes_of_idle_time(findings: Findings, analyzer: TreePerfAnalyzer) -> set[str]:
    """The causes that `gaps` gives to the idle time of all findings."""
    intervals = classify_gaps(analyzer.gpu_events, "device").intervals
    found: set[str] = set()
    for finding in findings.findings:
        if finding.claim is None:
            continue
        idle = finding.claim.intervals.chosen(finding.claim.intervals.gap != NONE)
        for start, end, device in zip(
            idle.start, idle.end, idle.device_index, strict=True
        ):
            overlaps = (intervals.track == device) & (intervals.start < end)
            overlaps &= intervals.end > start
            found |= {CAUSES[code] for code in np.unique(intervals.cause[overlaps])}
    return found


@settings(max_examples=15, deadline=None)
@given(documents())
def test_no_finding_claims_idle_time_of_unknown_cause_or_that_is_not_analyzed(
    document: Document,
) -> None:
    analyzer, findings = findings_of(document)
    causes = causes_of_idle_time(findings, analyzer)
    assert not causes & {"unknown", "not_recorded", "warm_up", "edge"}


def test_the_findings_of_the_demo_agree_with_gaps_on_all_screens() -> None:
    analyzer, findings = findings_of(short_demo())
    assert causes_of_idle_time(findings, analyzer) <= {
        "host",
        "synchronization",
        "launch overhead",
        "dependency",
    }
    listed = [finding.id for finding in findings.worthwhile]
    report = build_perf_report(analyzer)
    assert report.sheets["findings"]["finding"].tolist() == listed
    assert findings_table(findings)["finding"].tolist() == listed


@settings(max_examples=10, deadline=None)
@given(documents())
def test_the_simulation_answers_and_what_it_removes_never_takes_longer(
    document: Document,
) -> None:
    analyzer, _ = findings_of(document)
    simulation = analyzer.simulation()
    table = simulation.what_if()
    assert (table["saved_ms"] >= 0).all()
    path = simulation.critical_path_table
    assert path["duration_us"].sum() * 1e3 == pytest.approx(
        simulation.replayed.wall, abs=2
    )
    simulation.critical_path_summary()


@settings(max_examples=8, deadline=None)
@given(
    job_shapes(max_devices=4).filter(lambda shape: shape.launches > 0),
    st.permutations(range(4)),
)
def test_findings_follow_the_devices_when_these_get_other_numbers(
    shape: JobShape, numbers: list[int]
) -> None:
    document = trace_of(shape)
    renumbered = deepcopy(document)
    for event in gpu_events(renumbered):
        number = numbers[event["args"]["device"]]
        event["pid"] = number
        event["args"]["device"] = number
    for properties in renumbered["deviceProperties"]:
        properties["id"] = numbers[properties["id"]]
    expected = attributed_by_device(findings_of(document)[1])
    result = attributed_by_device(findings_of(renumbered)[1])
    assert result == {numbers[device]: times for device, times in expected.items()}


@settings(max_examples=8, deadline=None)
@given(job_shapes(max_devices=4).filter(lambda shape: shape.launches > 0))
def test_a_device_without_work_changes_nothing(shape: JobShape) -> None:
    document = trace_of(shape)
    with_idle_device = deepcopy(document)
    with_idle_device["deviceProperties"].append(
        {"id": 63, "name": "NVIDIA H100 80GB HBM3"}
    )
    expected = attributed_by_device(findings_of(document)[1])
    assert attributed_by_device(findings_of(with_idle_device)[1]) == expected
