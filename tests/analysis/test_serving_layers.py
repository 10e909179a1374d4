"""Layers of generated steps, exactly: how many, where, how long, which are odd."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.serving_helpers import LAYER, Engine
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.serving.layers import Block, repeating_block

ATTENTION = 3


def block(*parts: list[int]) -> list[Block]:
    codes = np.array([code for part in parts for code in part])
    return repeating_block(codes, codes == ATTENTION)


@given(
    layer=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    rest=st.lists(st.integers(4, 6), min_size=1, max_size=5),
    layers=st.integers(2, 20),
    prologue=st.lists(st.integers(10, 19), max_size=4, unique=True),
    epilogue=st.lists(st.integers(20, 29), max_size=4, unique=True),
)
def test_equal_layers_are_found_wherever_they_stand(
    layer: list[int],
    rest: list[int],
    layers: int,
    prologue: list[int],
    epilogue: list[int],
) -> None:
    """Each has one attention, so that no part of it repeats as it does."""
    whole = [*layer, ATTENTION, *rest]
    first = len(prologue)
    expected = [
        (first + i * len(whole), first + (i + 1) * len(whole)) for i in range(layers)
    ]
    assert block(prologue, whole * layers, epilogue) == expected


def test_layers_that_differ_a_little_are_layers() -> None:
    # as of gpt-oss: every other is wide
    wide = [0, 1, 3, 7, 2, 4, 5]
    short = [0, 1, 3, 2, 4, 5]
    found = block([10], (wide + short) * 3, [11])
    assert [b - a for a, b in found] == [7, 6] * 3
    # the first as of DeepSeek
    dense = [0, 1, 3, 2, 4, 5]
    experts = [0, 1, 3, 2, 6, 8, 9]
    found = block([10], dense, experts * 5, [11])
    assert [b - a for a, b in found] == [6] + [7] * 5


def test_what_does_not_repeat_has_no_layers() -> None:
    assert block([1, 2, 3, 4]) == []
    assert block([]) == []
    assert block([1, 2, 5, 6, 7, 8, 9, 1]) == []  # a kernel at both ends is no layer


def test_times_of_layers_over_steps() -> None:
    engine = Engine(layers=6)
    for scale in (1, 3):
        engine.step("step[DECODE bs=2]", scale=scale)
    engine.step("step[EXTEND bs=1 toks=9]")
    analyzer = TreePerfAnalyzer(engine.document())
    frame = analyzer.get_df_layers()
    decode = frame[frame["phase"] == "decode"]
    assert decode["layer"].tolist() == list(range(6))
    assert set(decode["kernels"]) == {len(LAYER)}
    assert set(decode["steps"]) == {2}
    busy = sum(range(3, 3 + len(LAYER)))  # whichever kernel of a layer is the first
    assert decode["min_busy_time_us"].tolist() == [busy] * 6
    assert decode["busy_time_us"].tolist() == [2 * busy] * 6
    assert decode["std_busy_time_us"].tolist() == pytest.approx([np.sqrt(2) * busy] * 6)
    assert set(frame["odd"]) == {""}
    kernels = analyzer.get_df_layer_kernels()
    assert kernels[kernels["phase"] == "prefill"]["kernel_name"].tolist() == list(LAYER)
    assert kernels.groupby("phase")["% of layer"].sum().tolist() == pytest.approx(
        [100, 100]
    )
    (kind,) = set(kernels["layers"])
    assert kind == 6


def test_odd_layers_are_named() -> None:
    engine = Engine(layers=8)
    engine.step("step[DECODE bs=2]")
    slow = [e for e in engine.maker.events if e["name"] == "flash_attn_fwd"][2]
    later = [
        e for e in engine.maker.events if e["cat"] == "kernel" and e["ts"] > slow["ts"]
    ]
    slow["dur"] += 50
    for event in later:
        event["ts"] += 50
    frame = TreePerfAnalyzer(engine.document()).get_df_layers()
    assert frame["odd"].tolist() == ["", "", "time", *[""] * 5]


def test_steps_that_run_other_kernels_are_left_out() -> None:
    engine = Engine(layers=4)
    engine.step("step[DECODE bs=2]")
    engine.step("step[DECODE bs=2]")
    engine.layers = 3
    engine.step("step[DECODE bs=2]")
    frame = TreePerfAnalyzer(engine.document()).get_df_layers()
    assert (len(frame), set(frame["steps"])) == (4, {2})
