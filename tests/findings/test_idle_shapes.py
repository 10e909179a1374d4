"""Idle time by its shape: who waits in short gaps, long ones, pauses that recur, or at the end."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.idle_programs import Program
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.idle_time.shapes import Shape
from tracelens_ext.findings.attribution import folded_labels
from tracelens_ext.findings.finding import Finding


def host_bound(program: Program) -> Finding:
    findings = TreePerfAnalyzer(program.maker.document()).findings().findings
    (found,) = (finding for finding in findings if finding.id == "host-bound")
    return found


def busy(program: Program, kernels: int = 30) -> None:
    """Launch kernels that run one after the other."""
    for _ in range(kernels):
        program.launch(500, cost=20)
    program.cpu = program.gpu


def test_short_gaps_come_from_slow_launches() -> None:
    program = Program()
    for _ in range(400):
        program.launch(20, cost=50)
    finding = host_bound(program)
    assert finding.title.startswith("CPU launches too slowly: ")


def test_a_few_long_gaps_are_phases_of_the_cpu_with_what_runs_in_them() -> None:
    program = Program()
    for length in (40_000, 12_000, 90_000):
        busy(program)
        program.pause(length, "preprocess.py(7): tokenize")
    busy(program)
    finding = host_bound(program)
    lengths = "3 gaps of 12.0 to 90.0 ms in preprocess.py(7): tokenize: "
    assert finding.title.startswith(f"GPU waits for the CPU, mostly in {lengths}")
    assert "graph" not in finding.advice
    assert "compile" not in finding.advice
    longest = [each for each in finding.evidence if each.what.startswith("long gap")]
    assert [each.value for each in longest] == pytest.approx([90, 40, 12], rel=0.01)
    assert all("preprocess.py(7): tokenize" in each.what for each in longest)


def test_pauses_that_recur_come_first_with_their_period() -> None:
    program = Program()
    for number in range(10):
        busy(program, kernels=200)
        program.pause(45_000 + 1_000 * number)
        program.launch(30, name="first_of_batch")
    busy(program)
    finding = host_bound(program)
    pauses = "10 pauses of 45.0 to 54.0 ms, every 149."
    assert finding.title.startswith(f"GPU waits for the CPU, 100 % of it in {pauses}")
    assert "before first_of_batch" in finding.title
    assert "long gap at 100.0 ms, nothing recorded" not in finding.title


def test_pauses_between_iterations_have_a_title_of_their_own() -> None:
    program = Program()
    for step in range(6):
        begin = program.cpu
        busy(program)
        program.pause(3_000)
        program.maker.annotation(
            f"ProfilerStep#{step}", begin, program.cpu - begin - 2_000
        )
    busy(program)
    assert "pauses of 3.0 ms between iterations" in host_bound(program).title


def test_the_end_of_a_recording_is_no_part_of_the_loop() -> None:
    program = Program()
    busy(program, kernels=200)
    program.pause(30_000)
    program.launch(5, name="copy_of_result")
    finding = host_bound(program)
    assert "at the end of the recording, in 1 gap of 30.0 ms" in finding.title
    assert finding.confidence == "low"


def test_shapes_sum_to_the_idle_time() -> None:
    program = Program()
    for _ in range(6):
        busy(program)
        program.pause(5_000)
        for _ in range(20):
            program.launch(20, cost=50)
    analyzer = TreePerfAnalyzer(program.maker.document())
    shapes = analyzer.get_df_gap_shapes()
    summary = analyzer.get_df_gap_summary(["device"])
    assert shapes["idle_time_ms"].sum() == pytest.approx(summary["idle_time_ms"].sum())
    by_shape = shapes.set_index("shape")["count"]
    assert by_shape[Shape.PERIODIC.value] == 6
    assert by_shape[Shape.SHORT.value] > 90


def test_ranges_that_differ_in_a_number_are_one_place() -> None:
    labels = [
        "layer_1_weights",
        "layer_2_weights",
        "layer_30_weights",
        "conv2d",
        "conv3d",
    ]
    code, folded = folded_labels(np.array([0, 1, 2, 3, 4, -1]), labels)
    assert folded == ["layer_#_weights", "conv2d", "conv3d"]
    assert code.tolist() == [0, 0, 0, 1, 2, -1]


def test_without_cpu_work_in_gaps_the_advice_is_to_record_more() -> None:
    program = Program()
    for _ in range(3):
        busy(program)
        program.pause(40_000)
    busy(program)
    advice = host_bound(program).advice
    assert advice.startswith("Find out what the CPU does in these gaps")
    assert "with_stack=True) records it" in advice


def test_advice_uses_the_programs_ranges_in_gaps() -> None:
    program = Program()
    for _ in range(3):
        busy(program)
        program.maker.annotation("load weights", program.cpu - 50, 40_100)
        program.pause(40_000)
    busy(program)
    assert host_bound(program).advice.startswith("Move the CPU work")


def test_a_range_around_the_whole_program_is_no_cause_of_gaps() -> None:
    program = Program()
    for _ in range(3):
        busy(program)
        program.pause(4_000)
    busy(program)
    program.maker.annotation("main loop", 0, program.cpu)
    assert host_bound(program).advice.startswith("Find out what the CPU does")


def test_calls_during_gaps_of_early_launches_are_no_places() -> None:
    program = Program()
    for number in range(400):
        program.launch(20, cost=1)
        program.gpu += 6
        if number == 399:
            program.maker.call("cudaDeviceSynchronize", program.cpu, program.gpu)
    finding = host_bound(program)
    assert finding.title.startswith("Short gaps between kernels")
    assert "calls" not in finding.where


@pytest.mark.parametrize("is_recorded", [False, True])
def test_python_code_that_is_not_recorded_comes_with_the_way_to_record_it(
    *, is_recorded: bool
) -> None:
    program = Program()
    for _ in range(400):
        program.launch(20, cost=10)
        program.pause(60, "sample.py(5): next_token" if is_recorded else "")
    finding = host_bound(program)
    assert finding.title.startswith("GPU waits for Python code")
    is_told = "with_stack=True) shows which code" in finding.confidence_reason
    assert is_told != is_recorded
