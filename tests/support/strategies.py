"""Hypothesis strategies: traces that are right, traces that are not, and rule packs."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from tests.support.make_trace import LAYOUTS, Document, TraceMaker
from tests.support.trace_mutations import mutate

if TYPE_CHECKING:
    from collections.abc import Callable

    Draw = Callable[[st.SearchStrategy[Any]], Any]

_NAMES = (
    "sgemm_nn",
    "void at::native::vectorized_elementwise_kernel<4>",
    "flash_fwd_kernel",
    "ncclDevKernel_AllReduce_Sum",
    "",
    "é\u202e",
    "=1+1",
    "a[/b]",
    '}, {"ph": "X"',
    "\x1b[31m",
)
_OPS = ("aten::mm", "aten::add_", "aten::copy_", "autograd::engine", "my::op", "")
_TIMES = st.integers(0, 10_000) | st.integers(0, 10**7).map(lambda ns: ns / 1000)
_LENGTHS = st.integers(0, 500) | st.sampled_from([0, 0.001, 1.5])


@st.composite
def traces(draw: Draw) -> Document:
    """A trace as a profiler would write it: ops that nest, launches, GPU work, graphs, iterations.

    Correlation ids are unique among launches, and GPU work comes after its launch; some work has
    no launch, and some launches no work.
    """
    maker = TraceMaker(process=draw(st.sampled_from([100, "python"])))
    if draw(st.booleans()):
        maker.process_name(maker.process, "python")
    clock: float = draw(_TIMES)
    for correlation in range(1, draw(st.integers(1, 8))):
        length = 20 + draw(_LENGTHS)
        thread = draw(st.sampled_from([1, 2]))
        if draw(st.booleans()):
            maker.annotation(f"ProfilerStep#{correlation}", clock, length + 2)
        maker.op(draw(st.sampled_from(_OPS)), clock, length, thread=thread)
        if draw(st.booleans()):
            maker.op(draw(st.sampled_from(_OPS)), clock + 1, length - 2, thread=thread)
        graph = draw(st.booleans())
        api = "cudaGraphLaunch" if graph else "cudaLaunchKernel"
        if draw(st.integers(0, 5)):
            maker.call(api, clock + 3, 2, correlation=correlation, thread=thread)
        for _ in range(draw(st.integers(0, 3 if graph else 1))):
            _gpu_work(draw, maker, clock + 6, correlation)
        clock += length + draw(_LENGTHS)
    maker.kernel(draw(st.sampled_from(_NAMES)), clock, 5)
    return maker.document(deviceProperties=[{"id": 0, "name": "GPU"}])


def _gpu_work(draw: Draw, maker: TraceMaker, start: float, correlation: int) -> None:
    kind = draw(st.sampled_from(["kernel", "kernel", "gpu_memcpy", "gpu_memset"]))
    maker.gpu(
        kind,
        draw(st.sampled_from(_NAMES)),
        start + draw(_LENGTHS),
        draw(_LENGTHS),
        correlation=correlation,
        stream=draw(st.sampled_from([7, 20])),
        device=draw(st.sampled_from([0, 0, 1])),
    )


@st.composite
def trace_files(draw: Draw) -> bytes:
    """A right trace as a file, in one of the layouts."""
    layout = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))]
    return layout(draw(traces())).encode()


@st.composite
def damaged_files(draw: Draw) -> bytes:
    """A trace as a file, with a few things wrong."""
    seed = draw(st.integers(0, 2**32))
    return mutate(draw(trace_files()), random.Random(seed), times=4)


_PATTERNS = st.sampled_from(
    ["gemm", "a|b", "^void ", "(", "[", "(a+)+$", "", ".*", "(?i)X", "\\"]
)
_TEXTS = st.sampled_from(
    ["GEMM", "My Op", "", " ", "x" * 300, "é", "a\nb", "Uncategorized"]
)
_ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, 1, True, [], [1], {}, {"a": 1}, 1.5]
)
_RULES: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "category": _TEXTS | _ODD,
        "pattern": _PATTERNS | _ODD,
        "vendor": _TEXTS | _ODD,
        "library": _TEXTS,
        "cpu_op": _PATTERNS | _ODD,
        "priority": st.integers(-5, 5) | _ODD,
        "examples": st.lists(st.sampled_from(["gemm", "a", "void x"]), max_size=3)
        | _ODD,
        "not_examples": st.lists(st.sampled_from(["gemm", "q"]), max_size=2) | _ODD,
        "no_such_field": _ODD,
    },
)
#: Rule packs as TOML gives them; most are wrong somewhere.
rule_packs: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "name": _TEXTS | _ODD,
        "priority": st.integers(-5, 5) | _ODD,
        "selectable": st.booleans() | _ODD,
        "rule": st.lists(_RULES | _ODD, max_size=4) | _ODD,
        "no_such_table": _ODD,
    },
)
