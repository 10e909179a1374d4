"""A detector, the roofline or the simulation that fails leaves all others."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, NoReturn

import pytest

from tests.support.make_trace import short_demo
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.findings import engine
from tracelens_ext.findings.engine import find_findings, offered_detectors
from tracelens_ext.isolation import DEBUG_VARIABLE, PartFailures

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracelens_ext.findings.finding import Finding, Findings
    from tracelens_ext.findings.inspection import Detector, Inspection
    from tracelens_ext.hooks import Offered, PluginRegistry

IDS = [offered.item.id for offered in offered_detectors()]


@cache
def demo() -> TreePerfAnalyzer:
    return TreePerfAnalyzer(short_demo(), use_kernel_name_categories=True)


def fail(*_: object, **__: object) -> NoReturn:
    raise IndexError("no such event")


def attributed(findings: Findings) -> dict[str, float]:
    return {finding.id: finding.attributed_ms for finding in findings.findings}


def detect_with(
    monkeypatch: pytest.MonkeyPatch,
    changed: str,
    detect: Callable[[Callable[..., Finding | None], Inspection], Finding | None],
) -> tuple[Findings, list[str]]:
    """The findings of the demo when one detector does something else, and what failed."""

    def offered(registry: PluginRegistry | None = None) -> list[Offered[Detector]]:
        result = []
        for each in offered_detectors(registry):
            item = each.item
            if item.id == changed:
                item = replace(item, detect=partial(detect, item.detect))
            result.append(replace(each, item=item))
        return result

    monkeypatch.setattr(engine, "offered_detectors", offered)
    failures = PartFailures()
    analyzer = demo()
    findings = find_findings(
        analyzer.gpu_events,
        lambda: analyzer.launchers,
        analyzer.roofline,
        simulate=analyzer.simulation,
        failures=failures,
    )
    return findings, failures.messages


@pytest.mark.parametrize("ident", IDS)
def test_claims_of_a_detector_that_fails_are_undone(
    monkeypatch: pytest.MonkeyPatch, ident: str
) -> None:
    def fail_at_the_end(
        detect: Callable[..., Finding | None], inspection: Inspection
    ) -> Finding | None:
        detect(inspection)
        inspection.wall.claim_events(inspection.wall.free)
        raise IndexError("no such event")

    monkeypatch.delenv(DEBUG_VARIABLE, raising=False)
    without, nothing = detect_with(monkeypatch, ident, lambda *_: None)
    assert nothing == []
    findings, messages = detect_with(monkeypatch, ident, fail_at_the_end)
    assert attributed(findings) == attributed(without)
    assert findings.findings == without.findings
    assert messages == [
        (
            f"The finding {ident} could not be computed: IndexError: no such event; "
            "please report this"
        )
    ]


def test_without_a_simulation_savings_are_the_attributed_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(DEBUG_VARIABLE, raising=False)
    analyzer = TreePerfAnalyzer(short_demo(), use_kernel_name_categories=True)
    monkeypatch.setattr(TreePerfAnalyzer, "simulation", fail)
    findings = analyzer.findings()
    assert attributed(findings) == attributed(demo().findings())
    assert all(
        finding.saving_ms in (0.0, finding.attributed_ms)
        for finding in findings.findings
    )
    assert not any(finding.simulated for finding in findings.findings)
    assert findings.model == {}
    message = "The simulation could not be computed: IndexError: no such event; please report this"
    assert analyzer.failures.messages == [message]


def test_a_roofline_that_fails_is_reported_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(DEBUG_VARIABLE, raising=False)
    analyzer = TreePerfAnalyzer(short_demo(), use_kernel_name_categories=True)
    monkeypatch.setattr(TreePerfAnalyzer, "roofline", fail)
    findings = analyzer.findings()
    assert findings.findings
    message = "The roofline could not be computed: IndexError: no such event; please report this"
    assert analyzer.failures.messages == [message]


def test_developers_see_the_error_of_a_detector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(DEBUG_VARIABLE, "1")
    with pytest.raises(IndexError, match="no such event"):
        detect_with(monkeypatch, "host-bound", fail)
