"""Where waits are removed, the CPU runs ahead; gaps inside graph launches can be removed."""

from __future__ import annotations

import pytest

from tests.support.idle_programs import Program, wait_per_layer
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.errors import UsageError
from tracelens_ext.simulation.scenarios import parse_change
from tracelens_ext.simulation.simulation import Simulation


def saved_ms(maker: TraceMaker, change: str) -> float:
    simulation = Simulation(TreePerfAnalyzer(maker.document()).gpu_events)
    table = simulation.what_if([parse_change(change)])
    return float(table["saved_ms"].iloc[0])


def test_without_waits_the_cpu_runs_ahead_through_all_that_follows() -> None:
    """After each wait the GPU idles for 1.5 ms, which the CPU would have used before."""
    saved = saved_ms(wait_per_layer(devices=1), "waits=0")
    assert saved == pytest.approx(11 * 1.5, rel=0.15)


def test_without_waits_there_is_nothing_to_remove() -> None:
    program = Program()
    for _ in range(50):
        program.launch(200)
    assert saved_ms(program.maker, "waits=0") == 0.0


def test_waits_are_removed_entirely_or_not_at_all() -> None:
    with pytest.raises(UsageError, match="waits=0"):
        saved_ms(wait_per_layer(layers=2, devices=1), "waits=0.5")


def test_gaps_inside_a_graph_launch_have_a_saving() -> None:
    maker = TraceMaker()
    start = 100.0
    maker.call("cudaGraphLaunch", 0, 50, correlation=1)
    for number in range(200):
        maker.kernel(f"kernel_{number % 3}", start, 10, correlation=1)
        start += 14
    findings = TreePerfAnalyzer(maker.document()).findings().findings
    (finding,) = (each for each in findings if each.id == "host-bound")
    assert finding.title.startswith("Short gaps between kernels inside graph launches")
    assert finding.confidence == "low"
    assert finding.saving_ms == pytest.approx(0.8, rel=0.05)
    assert "Fuse kernels" in finding.advice
