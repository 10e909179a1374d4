"""Idle time after waits of the CPU belongs to the waits until the CPU is ahead again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.idle_programs import Program, wait_per_layer
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.idle_time.classification import classify_gaps

if TYPE_CHECKING:
    from tracelens_ext.trace.gpu_events import Scope


def idle_ms(program: Program) -> dict[str, float]:
    """Return the idle time of the first device by cause, ms, without causes that have none."""
    gpu_events = TreePerfAnalyzer(program.maker.document()).gpu_events
    by_cause = classify_gaps(gpu_events, "device").idle_by_cause_ms()[0]
    return {cause: ms for cause, ms in by_cause.items() if ms}


def launch_short_kernels(program: Program, *, kernels: int = 40) -> None:
    """Launch kernels that are shorter than their launches, so that the CPU stays behind."""
    for _ in range(kernels):
        program.launch(10, cost=50)


def launch_long_kernels(program: Program) -> None:
    """Launch kernels that are longer than their launches, so that the CPU gets ahead."""
    for _ in range(40):
        program.launch(250, cost=50)


def test_idle_time_until_the_cpu_is_ahead_again_belongs_to_the_wait() -> None:
    program = Program()
    launch_long_kernels(program)
    program.copy_and_wait()
    launch_short_kernels(program)
    launch_long_kernels(program)
    idle = idle_ms(program)
    # There are 40 gaps of 40 µs, during which the CPU launches.
    assert idle["synchronization"] == pytest.approx(1.6, rel=0.05)
    assert idle.get("host", 0) < 0.05


def test_no_more_idle_time_belongs_to_a_wait_than_kernels_ran_during_it() -> None:
    program = Program()
    program.launch(1_000)
    program.copy_and_wait()
    launch_short_kernels(program, kernels=80)
    launch_long_kernels(program)
    idle = idle_ms(program)
    assert idle["synchronization"] == pytest.approx(1.0, rel=0.05)
    assert idle["host"] + idle.get("launch overhead", 0) == pytest.approx(2.2, rel=0.1)


def test_idle_time_of_a_cpu_that_is_slower_than_the_gpu_belongs_to_no_wait() -> None:
    """From each wait to the next, the CPU needs 2 ms and the GPU 0.4 ms."""
    program = Program()
    for _ in range(10):
        program.copy_and_wait()
        launch_short_kernels(program)
    idle = idle_ms(program)
    assert idle.get("synchronization", 0) < 0.05 * idle["host"]


def test_idle_time_after_the_cpu_was_ahead_belongs_to_no_wait() -> None:
    program = Program()
    launch_long_kernels(program)
    program.copy_and_wait()
    launch_long_kernels(program)
    program.pause(20_000)
    launch_long_kernels(program)
    idle = idle_ms(program)
    assert idle["host"] > 10
    assert idle.get("synchronization", 0) < 0.1


def test_a_phase_of_the_cpu_directly_after_a_wait_belongs_to_the_wait() -> None:
    """Without the wait, it would have run at the same time as the 8 ms of GPU work."""
    program = Program()
    launch_long_kernels(program)
    program.copy_and_wait()
    program.pause(3_000)
    launch_long_kernels(program)
    idle = idle_ms(program)
    assert idle["synchronization"] == pytest.approx(3.0, rel=0.05)


def test_a_later_phase_of_the_cpu_belongs_to_no_wait() -> None:
    program = Program()
    launch_long_kernels(program)
    program.copy_and_wait()
    launch_short_kernels(program, kernels=5)
    program.pause(3_000)
    launch_long_kernels(program)
    idle = idle_ms(program)
    assert idle["host"] == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize("scope", ["device", "stream"])
def test_the_causes_add_up_to_the_idle_time(scope: Scope) -> None:
    gpu_events = TreePerfAnalyzer(wait_per_layer().document()).gpu_events
    classified = classify_gaps(gpu_events, scope)
    assert classified.within.duration.sum() == classified.gaps.duration.sum()
