"""Layers of generated steps: their number, places and times, and which of them are odd."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.serving_helpers import LAYER, Engine
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.analysis.serving.repeating_blocks import Block, repeating_block

ATTENTION = 3


def layers_in(*parts: list[int]) -> list[Block]:
    """Return the layers in a sequence of kernels, which consists of these parts."""
    codes = np.array([code for part in parts for code in part])
    return repeating_block(codes, codes == ATTENTION)


def lengths(blocks: list[Block]) -> list[int]:
    return [block.length for block in blocks]


@given(
    before_attention=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    after_attention=st.lists(st.integers(4, 6), min_size=1, max_size=5),
    layer_count=st.integers(2, 20),
    prologue=st.lists(st.integers(10, 19), max_size=4, unique=True),
    epilogue=st.lists(st.integers(20, 29), max_size=4, unique=True),
)
def test_equal_layers_are_found_between_other_kernels(
    before_attention: list[int],
    after_attention: list[int],
    layer_count: int,
    prologue: list[int],
    epilogue: list[int],
) -> None:
    """A layer has a single attention, so no part of a layer repeats like the layer."""
    layer = [*before_attention, ATTENTION, *after_attention]
    expected = []
    begin = len(prologue)
    for _ in range(layer_count):
        expected.append(Block(begin, begin + len(layer)))
        begin += len(layer)
    assert layers_in(prologue, layer * layer_count, epilogue) == expected


def test_layers_of_two_alternating_kinds_are_found() -> None:
    """As in gpt-oss."""
    wide = [0, 1, 3, 7, 2, 4, 5]
    short = [0, 1, 3, 2, 4, 5]
    assert lengths(layers_in([10], (wide + short) * 3, [11])) == [7, 6] * 3


def test_a_different_first_layer_is_a_layer() -> None:
    """As in DeepSeek, whose first layers are dense."""
    dense = [0, 1, 3, 2, 4, 5]
    experts = [0, 1, 3, 2, 6, 8, 9]
    assert lengths(layers_in([10], dense, experts * 5, [11])) == [6] + [7] * 5


@pytest.mark.parametrize(
    "kernels", [[1, 2, 3, 4], [], [1, 2, 5, 6, 7, 8, 9, 1]], ids=str
)
def test_kernels_without_a_repeating_block_have_no_layers(kernels: list[int]) -> None:
    assert layers_in(kernels) == []


def test_times_of_layers_are_statistics_over_the_steps() -> None:
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
    busy = sum(range(3, 3 + len(LAYER)))  # the kernels of a layer take 3, 4, 5, … µs
    assert decode["min_busy_time_us"].tolist() == [busy] * 6
    assert decode["busy_time_us"].tolist() == [2 * busy] * 6
    assert decode["std_busy_time_us"].tolist() == pytest.approx([np.sqrt(2) * busy] * 6)
    assert set(frame["odd"]) == {""}
    kernels = analyzer.get_df_layer_kernels()
    assert kernels[kernels["phase"] == "prefill"]["kernel_name"].tolist() == list(LAYER)
    assert kernels.groupby("phase")["% of layer"].sum().tolist() == pytest.approx(
        [100, 100]
    )
    assert set(kernels["layers"]) == {6}


def test_a_layer_with_a_slow_kernel_is_odd() -> None:
    engine = Engine(layers=8)
    engine.step("step[DECODE bs=2]")
    kernels = [event for event in engine.maker.events if event["cat"] == "kernel"]
    attentions = [event for event in kernels if event["name"] == "flash_attn_fwd"]
    slow = attentions[2]
    slow["dur"] += 50
    for event in kernels:
        if event["ts"] > slow["ts"]:
            event["ts"] += 50
    frame = TreePerfAnalyzer(engine.document()).get_df_layers()
    assert frame["odd"].tolist() == ["", "", "time", *[""] * 5]


def test_layers_leave_out_steps_that_run_other_kernels() -> None:
    engine = Engine(layers=4)
    engine.step("step[DECODE bs=2]")
    engine.step("step[DECODE bs=2]")
    engine.layers = 3
    engine.step("step[DECODE bs=2]")
    frame = TreePerfAnalyzer(engine.document()).get_df_layers()
    assert (len(frame), set(frame["steps"])) == (4, {2})
