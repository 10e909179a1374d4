"""The typical duration of iterations, with which recorded ones are compared."""

from __future__ import annotations

from itertools import accumulate

from tracelens_ext.recorder.hook.counting import typical_duration_ms


def test_only_the_first_two_iterations_are_left_out() -> None:
    durations_s = [90, 80, 3, 1, 2]
    assert typical_duration_ms(list(accumulate(durations_s))) == 2000


def test_the_third_iteration_is_the_first_that_counts() -> None:
    assert typical_duration_ms([9, 17]) is None
    assert typical_duration_ms([9, 17, 18]) == 1000
