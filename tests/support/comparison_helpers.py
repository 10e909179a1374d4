"""Small training traces for tests of comparisons, and functions that write and measure them."""

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
    """A trace of steps of 200 µs, each with a GEMM after 50 µs that an all-reduce follows.

    Args:
        steps: the number of steps.
        first: the number of the first step.
        gemm_us: the duration of each GEMM.
        all_reduce_us: the duration of each all-reduce; 0 for none.
        skip_after: after this many steps, five steps are not recorded; None to record all.
        device: the GPU.
        annotated: True to annotate the steps as `ProfilerStep#N`.
    """
    maker = TraceMaker()
    number = first
    start = 1000
    for step in range(steps):
        if step == skip_after:
            number += 5
            start += 5 * STEP_US
        if annotated:
            maker.annotation(f"ProfilerStep#{number}", start, STEP_US - 10)
        maker.op("aten::mm", start + 10, 20)
        correlation = 10 * step + 1
        maker.call("cudaLaunchKernel", start + 12, 5, correlation=correlation)
        maker.kernel(GEMM, start + 50, gemm_us, correlation=correlation, device=device)
        if all_reduce_us:
            maker.op("nccl:all_reduce", start + 30, 20)
            maker.call("cudaLaunchKernel", start + 32, 5, correlation=correlation + 1)
            maker.kernel(
                ALL_REDUCE,
                start + 50 + gemm_us,
                all_reduce_us,
                correlation=correlation + 1,
                device=device,
                stream=9,
            )
        number += 1
        start += STEP_US
    return maker


def measured(maker: TraceMaker, **options: Any) -> Measurement:
    """Measure a trace for a comparison."""
    analyzer = TreePerfAnalyzer(
        maker.document(), use_kernel_name_categories=True, **options
    )
    return measure(analyzer.gpu_events)


def write(path: Path, maker: TraceMaker) -> Path:
    """Write a trace to a file; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(maker.document()), encoding="utf-8")
    return path
