"""Idle time after waits of the CPU belongs to them until the CPU is ahead again."""

from __future__ import annotations

import pytest

from tests.support.idle_programs import Program, wait_per_layer
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.idle_time.classification import classify_gaps


def idle_ms(program: Program) -> dict[str, float]:
    """The idle time of the first device by cause, ms; what has none is left out."""
    work = TreePerfAnalyzer(program.maker.document()).gpu_events
    by_cause = classify_gaps(work, "device").idle_by_cause_ms()[0]
    return {cause: ms for cause, ms in by_cause.items() if ms}


def catching_up(program: Program, *, kernels: int = 40) -> None:
    """Launch kernels that are shorter than their launches."""
    for _ in range(kernels):
        program.launch(10, cost=50)


def getting_ahead(program: Program) -> None:
    """Launch kernels that are longer than their launches."""
    for _ in range(40):
        program.launch(250, cost=50)


def test_what_the_gpu_idles_until_the_cpu_is_ahead_belongs_to_the_wait() -> None:
    program = Program()
    getting_ahead(program)
    program.copy_and_wait()
    catching_up(program)
    getting_ahead(program)
    idle = idle_ms(program)
    # 40 gaps of 40 µs, in which the CPU launches.
    assert idle["synchronization"] == pytest.approx(1.6, rel=0.05)
    assert idle.get("host", 0) < 0.05


def test_a_wait_explains_no_more_than_kernels_ran_meanwhile() -> None:
    program = Program()
    program.launch(1_000)
    program.copy_and_wait()
    catching_up(program, kernels=80)
    getting_ahead(program)
    idle = idle_ms(program)
    assert idle["synchronization"] == pytest.approx(1.0, rel=0.05)
    assert idle["host"] + idle.get("launch overhead", 0) == pytest.approx(2.2, rel=0.1)


def test_the_cpus_own_lack_of_time_is_not_the_waits() -> None:
    """The CPU needs 2 ms from each wait to the next, and the GPU 0.4."""
    program = Program()
    for _ in range(10):
        program.copy_and_wait()
        catching_up(program)
    idle = idle_ms(program)
    assert idle.get("synchronization", 0) < 0.05 * idle["host"]


def test_once_the_cpu_is_ahead_idle_time_is_its_own() -> None:
    program = Program()
    getting_ahead(program)
    program.copy_and_wait()
    getting_ahead(program)
    program.pause(20_000)
    getting_ahead(program)
    idle = idle_ms(program)
    assert idle["host"] > 10
    assert idle.get("synchronization", 0) < 0.1


def test_a_phase_of_the_cpu_right_after_a_wait_is_the_waits() -> None:
    """It would have run beside the 8 ms of work that was waited for."""
    program = Program()
    getting_ahead(program)
    program.copy_and_wait()
    program.pause(3_000)
    getting_ahead(program)
    idle = idle_ms(program)
    assert idle["synchronization"] == pytest.approx(3.0, rel=0.05)


def test_a_later_phase_of_the_cpu_is_not_the_waits() -> None:
    program = Program()
    getting_ahead(program)
    program.copy_and_wait()
    catching_up(program, kernels=5)
    program.pause(3_000)
    getting_ahead(program)
    idle = idle_ms(program)
    assert idle["host"] == pytest.approx(3.0, rel=0.05)


def test_the_causes_sum_to_the_idle_time() -> None:
    work = TreePerfAnalyzer(wait_per_layer().document()).gpu_events
    for scope in ("device", "stream"):
        classified = classify_gaps(work, scope)
        assert classified.within.duration.sum() == classified.gaps.duration.sum()
