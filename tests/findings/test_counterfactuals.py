"""A problem of a known cost is put into a trace: its finding grows by that, no other does."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.counterfactual_problems import PROBLEMS
from tests.support.counterfactuals import (
    Room,
    moments,
    moved,
    places,
    read,
    with_problem,
)
from tests.support.simulated_job import build_demo_trace
from tests.support.simulated_job.machine import read_data
from tracelens_ext import TreePerfAnalyzer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.support.counterfactuals import Document

SHARED = Path(__file__).resolve().parents[3] / "shared"
TRACES = {
    "Qwen on H100": "traces/nvidia/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "Qwen on MI300X": "traces/amd/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "five iterations": "traces/edge/ns_resolution.json.gz",
    "one of four ranks": "ranks/rank0.json.gz",
    "bert on H100": "traces/nvidia/gaunernst_bert-small-uncased__1016001.json.gz",
    "nsfw detection on MI300X": "traces/amd/Falconsai_nsfw_image_detection__1016002.json.gz",
    "timesformer on MI300X": "traces/amd/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
}
# By how much a finding may miss the cost: a model of a fused kernel says what some win.
_MISS = {"unfused-attention": 0.3, "memory-bound-chain": 0.3}
# The share of the cost, and of the wall time, that other findings may grow by.
_OTHERS = 0.15
_OTHERS_OF_ALL = 0.01


@cache
def trace(name: str) -> Document:
    return read(SHARED / TRACES[name])


def savings(document: Document) -> tuple[float, dict[str, float]]:
    """The wall time, and what each finding saves of it, by rank, in ms."""
    found = TreePerfAnalyzer(document, use_kernel_name_categories=True).findings()
    return found.total_ms, {finding.id: finding.saving_ms for finding in found.findings}


def claims(document: Document) -> tuple[float, dict[str, float]]:
    """The same of what they claim: work put in beside a host that stands still saves nothing."""
    found = TreePerfAnalyzer(document, use_kernel_name_categories=True).findings()
    ranked = sorted(found.findings, key=lambda finding: -finding.attributed_ms)
    return found.total_ms, {finding.id: finding.attributed_ms for finding in ranked}


@cache
def claims_before(name: str) -> tuple[float, dict[str, float]]:
    return claims(trace(name))


def check(
    ident: str,
    cost: float,
    before: tuple[float, Mapping[str, float]],
    after: tuple[float, Mapping[str, float]],
) -> None:
    total, savings_after = after
    grown = {
        each: savings_after.get(each, 0.0) - before[1].get(each, 0.0)
        for each in {**before[1], **savings_after}
    }
    assert grown.pop(ident, 0.0) == pytest.approx(cost, rel=_MISS.get(ident, 0.15)), (
        savings_after
    )
    allowed = max(_OTHERS * cost, _OTHERS_OF_ALL * total)
    assert {each: ms for each, ms in grown.items() if ms > allowed} == {}
    if cost > 1.15 * max(before[1].values(), default=0.0):
        assert next(iter(savings_after)) == ident


#: Each problem goes into the first two traces, and into one of the others in turn.
_IN = list(TRACES)
_PUT = sorted(  # by trace, so that one process reads it
    (name, ident)
    for at, ident in enumerate(PROBLEMS)
    for name in (*_IN[:2], _IN[2 + at % 5])
)


@pytest.mark.real_data
@pytest.mark.parametrize(("name", "ident"), _PUT)
def test_a_problem_put_into_a_real_trace(name: str, ident: str) -> None:
    """Where the GPU waits for the host, and where the host is ahead of the GPU."""
    document = trace(name)
    before = claims_before(name)
    found = [place for place in places(document) if not place.after_wait]
    late = [place for place in found if place.waits_for_host]
    ahead = [place for place in found if not place.waits_for_host]
    cost = 0.3 * before[0]
    for number, problem in enumerate(PROBLEMS[ident]):
        those = (late if number % 2 else ahead) or late or ahead
        place = those[len(those) // 2]
        if ident in _NEED_PEAKS and Room(document, place, cost).rates is None:
            continue  # nobody knows how good the kernels of this trace could be
        after = claims(with_problem(document, place, cost * 1e3, problem))
        assert after[0] == pytest.approx(before[0] + cost, rel=1e-3), "everything moved"
        check(ident, cost, before, after)


_NEED_PEAKS = {"unfused-attention", "slow-gemm", "memory-bound-chain"}
_NEED_PEAKS |= {"layout-conversion", "dtype-casts"}
_LONGER = {
    "one of four ranks": (
        "dataloader",
        "host-bound",
        "exposed-communication",
        "exposed-copy",
    ),
    "Qwen on H100": ("synchronization", "host-bound", "exposed-copy"),
}


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "ident"), [(n, i) for n, those in _LONGER.items() for i in those]
)
def test_what_a_real_trace_has_takes_longer(name: str, ident: str) -> None:
    document = trace(name)
    before = claims_before(name)
    cost = 0.3 * before[0]
    found = list(moments(document, ident))
    for at in {found[len(found) // 4], found[len(found) // 2]}:
        check(ident, cost, before, claims(moved(document, at, cost * 1e3)))


#: The demo's problem of copies is one of pageable memory.
_CALLED = {"exposed-copy": "pageable-copies"}


@cache
def demo_before(steps: int) -> tuple[float, dict[str, float]]:
    return savings(build_demo_trace(steps=steps))


_QUICK = ("dataloader",)


@pytest.mark.parametrize(
    "ident",
    [
        pytest.param(each, marks=() if each in _QUICK else pytest.mark.slow)
        for each in read_data("problems")
        if each != "recompute"
    ],
)
def test_a_problem_of_the_demo(ident: str) -> None:
    steps, cost = (6, 30.0) if ident == "slow-iterations" else (1, 15.0)
    after = savings(build_demo_trace(steps=steps, problems={ident: cost}))
    check(_CALLED.get(ident, ident), cost, demo_before(steps), after)


def test_what_the_demo_computes_twice_is_told_last() -> None:
    total, after = savings(build_demo_trace(steps=1, problems={"recompute": 15.0}))
    assert after["recompute"] == 0.0
    check("recompute", 0.0, demo_before(1), (total, after))


@pytest.mark.slow
def test_problems_of_the_demo_beside_each_other() -> None:
    """Each keeps about its cost: a wait is longer where there is more to wait for."""
    wanted = {ident: 20.0 + 2 * n for n, ident in enumerate(read_data("problems"))}
    for informs_or_gets_holes_of_others in ("recompute", "host-bound"):
        del wanted[informs_or_gets_holes_of_others]
    del wanted["slow-iterations"]  # takes more steps
    _, before = claims(build_demo_trace("amd", steps=1))
    total, after = claims(build_demo_trace("amd", steps=1, problems=wanted))
    assert sum(after.values()) <= total
    grown = {ident: after.get(ident, 0.0) - before.get(ident, 0.0) for ident in wanted}
    assert grown == pytest.approx(wanted, rel=0.3)
