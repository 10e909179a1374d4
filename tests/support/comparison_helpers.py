"""Small training traces for the tests of comparing, and how they are written and measured."""

from __future__ import annotations

import importlib.util
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.compare.comparison import measure

if TYPE_CHECKING:
    from pathlib import Path

    from tracelens_ext.compare.comparison import Measurement

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_cublas"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"
STEP_US = 200

needs_html = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("jinja2", "plotly")),
    reason="jinja2 and plotly are not installed (the extra `html`)",
)


def training(
    steps: int = 2,
    *,
    first: int = 5,
    gemm_us: int = 40,
    all_reduce_us: int = 30,
    skip_after: int | None = None,
    device: int = 0,
    annotated: bool = True,
) -> TraceMaker:
    """Steps of 200 µs: a GEMM 50 µs after the start of each, then an all-reduce on its own.

    Args:
        steps: how many.
        first: number of the first.
        gemm_us: how long each GEMM takes.
        all_reduce_us: how long each all-reduce takes, 0 for none.
        skip_after: after so many steps the recording leaves five out.
        device: the GPU.
        annotated: whether there are `ProfilerStep#N`.
    """
    maker = TraceMaker()
    number = first
    start = 1000
    for at in range(steps):
        if at == skip_after:
            number = number + 5
            start = start + 5 * STEP_US
        if annotated:
            maker.annotation(f"ProfilerStep#{number}", start, STEP_US - 10)
        maker.op("aten::mm", start + 10, 20)
        maker.call("cudaLaunchKernel", start + 12, 5, correlation=10 * at + 1)
        maker.kernel(GEMM, start + 50, gemm_us, correlation=10 * at + 1, device=device)
        if all_reduce_us:
            maker.op("nccl:all_reduce", start + 30, 20)
            maker.call("cudaLaunchKernel", start + 32, 5, correlation=10 * at + 2)
            begin = start + 50 + gemm_us
            maker.kernel(
                ALL_REDUCE,
                begin,
                all_reduce_us,
                correlation=10 * at + 2,
                device=device,
                stream=9,
            )
        number = number + 1
        start = start + STEP_US
    return maker


def measured(maker: TraceMaker, **options: Any) -> Measurement:
    """What a comparison knows of a trace."""
    analyzer = TreePerfAnalyzer(
        maker.document(), use_kernel_name_categories=True, **options
    )
    return measure(analyzer.work)


def write(path: Path, maker: TraceMaker) -> Path:
    """A trace as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(maker.document()), encoding="utf-8")
    return path
