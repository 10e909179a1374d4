"""Time lost of operations, side by side."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens_ext.compare.roofline import compare_time_lost


def _lost(**ms: float) -> pd.Series:
    index = pd.MultiIndex.from_tuples([(name, "f32 [2]") for name in ms])
    return pd.Series(list(ms.values()), index=index)


def test_the_largest_difference_comes_first_and_what_one_trace_lacks_is_empty() -> None:
    frame = compare_time_lost([_lost(mm=4.0, add=1.0), _lost(mm=3.5, silu=2.0)], ["A", "B"])
    assert frame["op_name"].tolist() == ["silu", "add", "mm"]
    assert frame["difference_ms"].tolist() == [2.0, -1.0, -0.5]
    assert np.isnan(frame["A_time_lost_ms"][0])
    assert frame["shapes"].tolist() == ["f32 [2]"] * 3


def test_differences_of_several_traces_name_their_trace() -> None:
    frame = compare_time_lost([_lost(mm=4.0), _lost(mm=3.0), _lost(mm=6.0)], ["A", "B", "C"])
    assert frame.filter(like="difference").to_dict("records") == [
        {"B_difference_ms": -1.0, "C_difference_ms": 2.0}
    ]
