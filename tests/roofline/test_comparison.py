"""The time lost of operations of several traces, side by side."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens_ext.compare.time_lost import compare_time_lost


def _lost(**ms: float) -> pd.DataFrame:
    names = [(name, "f32 [2]") for name in ms]
    index = pd.MultiIndex.from_tuples(names, names=["op_name", "shapes"])
    return pd.DataFrame(
        {"time_lost_ms": list(ms.values()), "roofline_ms": 2.0}, index=index
    )


def test_differences_are_sorted_by_size_and_a_missing_row_is_empty() -> None:
    frame = compare_time_lost(
        [_lost(mm=4.0, add=1.0), _lost(mm=3.5, silu=2.0)], ["A", "B"], [1, 1]
    )
    assert frame["op_name"].tolist() == ["silu", "add", "mm"]
    assert frame["difference_ms"].tolist() == [2.0, -1.0, -0.5]
    assert np.isnan(frame["A_time_lost_ms"][0])
    assert frame["shapes"].tolist() == ["f32 [2]"] * 3


def test_differences_of_several_traces_name_their_trace() -> None:
    frame = compare_time_lost(
        [_lost(mm=4.0), _lost(mm=3.0), _lost(mm=6.0)], ["A", "B", "C"], [1, 1, 1]
    )
    assert frame.filter(like="difference").to_dict("records") == [
        {"B_difference_ms": -1.0, "C_difference_ms": 2.0}
    ]


def test_losses_are_normalized_by_unit_and_by_best_case() -> None:
    """Twice the steps with twice the loss are equal, but not as shares of the same best case."""
    half = _lost(mm=4.0, add=1.0)
    whole = _lost(mm=8.0, add=2.0)
    frame = compare_time_lost([half, whole], ["A", "B"], [1, 2], normalize=True)
    assert frame["difference_ms"].tolist() == [0.0, 0.0]
    assert frame["difference_by_roofline"].tolist() == [2.0, 0.5]
    assert frame["A_lost_by_roofline"].tolist() == [2.0, 0.5]
