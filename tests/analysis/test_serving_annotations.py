"""Annotations of serving engines: phase, requests, tokens and sums of lengths; hostile names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.serving_helpers import sums, vllm
from tracelens_ext.analysis.serving.annotations import (
    NO_REQUESTS,
    Batch,
    RequestGroup,
    parse_annotation,
)

_LENGTHS = st.tuples(st.integers(1, 9999), st.integers(0, 9999)).map(
    lambda p: (p[0], sum(p))
)
_REQUESTS = st.lists(_LENGTHS, max_size=4)


@given(context=_REQUESTS, generation=_REQUESTS)
def test_annotations_of_vllm_are_parsed_exactly(
    context: list[tuple[int, int]], generation: list[tuple[int, int]]
) -> None:
    batch = parse_annotation(vllm(context, generation))
    if not context and not generation:
        assert batch is None
        return
    assert batch is not None
    for group, requests in ((batch.context, context), (batch.generation, generation)):
        assert group == RequestGroup(len(requests), *sums(requests))
    phases = {(True, True): "mixed", (True, False): "prefill", (False, True): "decode"}
    assert batch.phase == phases[bool(context), bool(generation)]
    assert batch.has_lengths
    annotation_without_lengths = (
        f"execute_context_{len(context)}({sums(context)[0]})"
        f"_generation_{len(generation)}({sums(generation)[0]})"
    )
    batch_without_lengths = parse_annotation(annotation_without_lengths)
    assert batch_without_lengths is not None
    assert batch_without_lengths.phase == batch.phase
    assert batch_without_lengths.tokens == batch.tokens
    assert not batch_without_lengths.has_lengths


@pytest.mark.parametrize(
    ("name", "phase", "context", "generation"),
    [
        ("step[EXTEND bs=2 toks=700]", "prefill", RequestGroup(2, 700), NO_REQUESTS),
        ("step[DECODE bs=64]", "decode", NO_REQUESTS, RequestGroup(64, 64)),
        ("step[decode bs=64 toks=128]", "decode", NO_REQUESTS, RequestGroup(64, 128)),
        ("step[TARGET_VERIFY bs=4]", "decode", NO_REQUESTS, RequestGroup(4, 4)),
        (
            "step[MIXED bs=5 ext=100 dec=3]",
            "mixed",
            RequestGroup(2, 100),
            RequestGroup(3, 3),
        ),
        ("step[MIXED bs=5]", "mixed", RequestGroup(5, 0), NO_REQUESTS),
        (
            "step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]",
            "prefill",
            RequestGroup(2, 12, 20, 80, 120),
            NO_REQUESTS,
        ),
        (
            "step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]",
            "decode",
            NO_REQUESTS,
            RequestGroup(64, 128, 131072, 256, 262144),
        ),
        (
            "step[MIXED c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=2 g_sqsq=3 g_sqsk=4]",
            "mixed",
            RequestGroup(1, 5, 8, 25, 40),
            RequestGroup(1, 1, 2, 3, 4),
        ),
        (
            "step[MIXED bs=1 c=1 g=0 c_sq=3 c_sk=3 c_sqsq=9 c_sqsk=9 g_sq=0 g_sk=0 g_sqsk=0]",
            "prefill",
            RequestGroup(1, 3, 3, 9, 9),
            NO_REQUESTS,
        ),
        (
            "prefill[bs=2 tok=14721 ctx=[7803, 6918]]",
            "prefill",
            RequestGroup(2, 14721),
            NO_REQUESTS,
        ),
        (
            "prefill[bs=6 tok=17408 ctx=[4096, 4096, 4096]...+3 sqsq=59 sqsk=60 sk=17408 tbo=1]",
            "prefill",
            RequestGroup(6, 17408, 17408, 59, 60),
            NO_REQUESTS,
        ),
        (
            "decode[bs=117/128 tok=117 d=117]",
            "decode",
            NO_REQUESTS,
            RequestGroup(117, 117),
        ),
        ("eager_decode[bs=1 tok=1 p=0 d=1]", "decode", NO_REQUESTS, RequestGroup(1, 1)),
        (
            "decode[bs=32 tok=128 d=32 spec=3 sqsq=512 sqsk=262144 sk=65536]",
            "decode",
            NO_REQUESTS,
            RequestGroup(32, 128, 65536, 512, 262144),
        ),
        (
            "decode[bs=128 tok=384 p=2 d=126 sqsq=9 sqsk=10 sk=11]",
            "mixed",
            RequestGroup(2, 258, 11, 9, 10),
            RequestGroup(126, 126, 0, 0, 0),
        ),
        ("execute_diffusion_2_1024x768", "diffusion", NO_REQUESTS, NO_REQUESTS),
    ],
)
def test_annotations_of_all_engines_are_parsed(
    name: str, phase: str, context: RequestGroup, generation: RequestGroup
) -> None:
    assert parse_annotation(name) == Batch(phase, context, generation)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "ProfilerStep#3",
        "step[IDLE bs=0]",
        "prefill[]",
        "decode",
        "aten::decode[bs=1]",
        "execute_context_0(0)_generation_0(0)",
        "execute_model",
        "capture_32_FULL",
        f"execute_context_{'9' * 5000}(1)_generation_0(0)",
        f"step[EXTEND bs={'9' * 5000}]",
    ],
)
def test_other_names_are_no_steps(name: str) -> None:
    assert parse_annotation(name) is None
