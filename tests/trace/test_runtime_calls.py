"""Calls of all runtimes by their names; and a program on another accelerator waits as on a GPU."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.trace import runtime_calls as calls

DOES = {
    calls.LAUNCHES_KERNEL: [
        "cudaLaunchKernel",
        "hipExtModuleLaunchKernel",
        "urEnqueueKernelLaunch",
        "zeCommandListAppendLaunchCooperativeKernel",
        "mtiaLaunchKernel",
        "synLaunch",
    ],
    calls.COPIES: [
        "cudaMemcpyAsync",
        "urEnqueueUSMMemcpy",
        "zeCommandListAppendMemoryCopy",
        "mtiaMemcpyAsync",
        "enqueueCommand memcpyHtoDAsync",
    ],
    calls.WAITS_FOR_DEVICE: [
        "cudaDeviceSynchronize",
        "cuCtxSynchronize",
        "synchronize",
    ],
    calls.WAITS_FOR_STREAM: [
        "hipStreamSynchronize",
        "urQueueFinish",
        "zeCommandQueueSynchronize",
        "synchronizeStream",
    ],
    calls.WAITS_FOR_EVENT: [
        "cudaEventSynchronize",
        "urEventWait",
        "zeEventHostSynchronize",
    ],
    calls.WAITS_FOR_COPY: ["cudaMemcpy"],
    calls.STREAM_WAITS_FOR_EVENT: ["cudaStreamWaitEvent", "enqueueCommand waitOnEvent"],
    calls.RECORDS_EVENT: ["cudaEventRecord", "recordEvent"],
}
NAMES = [name for names in DOES.values() for name in names]


@pytest.mark.parametrize(
    "name", [*NAMES, "cudaLaunchHostFunc", "cudaMalloc", "urContextCreate"]
)
def test_what_a_call_does(name: str) -> None:
    matching = [pattern for pattern in DOES if pattern.match(name)]
    expected = [pattern for pattern, names in DOES.items() if name in names]
    if name == "cudaMemcpy":
        expected.insert(0, calls.COPIES)
    assert matching == expected


def test_any_of_several_patterns() -> None:
    either = calls.any_of(re.compile("a|b"), re.compile("cd"))
    assert [bool(either.fullmatch(text)) for text in ("a", "b", "cd", "ad", "d")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def waiting(words: dict[str, str]) -> TraceMaker:
    """A program that waits for each of its kernels, in the words of an accelerator."""
    maker = TraceMaker()
    for step in range(4):
        start = 1000 * step
        launch = 2 * step + 1
        wait = 2 * step + 2
        maker.op("aten::mm", start, 30)
        category = words["category"]
        maker.call(words["launch"], start + 5, 6, correlation=launch, category=category)
        maker.kernel("gemm", start + 20, 500, correlation=launch)
        maker.op("aten::item", start + 40, 600)
        maker.call(words["wait"], start + 45, 590, correlation=wait, category=category)
    return maker


CUDA = {
    "category": "cuda_runtime",
    "launch": "cudaLaunchKernel",
    "wait": "cudaStreamSynchronize",
}
OTHERS = {
    "XPU": {
        "category": "xpu_runtime",
        "launch": "urEnqueueKernelLaunch",
        "wait": "urQueueFinish",
    },
    "HPU": {
        "category": "hpu_op",
        "launch": "synLaunch",
        "wait": "synStreamSynchronize",
    },
    "MTIA": {
        "category": "mtia_runtime",
        "launch": "mtiaLaunchKernel",
        "wait": "synchronizeStream",
    },
}


def answers(words: dict[str, str]) -> list[Any]:
    analyzer = TreePerfAnalyzer(waiting(words).document())
    tables = [analyzer.get_df_gap_summary(), analyzer.get_df_kernels()]
    return [table.round(6).to_dict("list") for table in tables]


@pytest.mark.parametrize("accelerator", OTHERS)
def test_waits_on_another_accelerator_are_waits(accelerator: str) -> None:
    assert answers(OTHERS[accelerator]) == answers(CUDA)
