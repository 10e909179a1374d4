"""Patterns for the names of runtime and driver calls, by what the calls do.

CUDA and HIP name their calls alike. The other names are of Level Zero (`ze…`) and SYCL's unified
runtime (`ur…`, formerly `pi…`) for Intel's GPUs, and of the runtimes of MTIA and of HPUs (`syn…`).
"""

from __future__ import annotations

import re
from typing import Final

_CUDA: Final = r"(?:cuda|hip|cu)"

#: Calls that start a kernel. `…LaunchHostFunc` starts none.
LAUNCHES_KERNEL: Final = re.compile(
    rf"{_CUDA}\w*?Launch(?:\w*Kernel|ByPtr|Grid|$)"
    r"|(?:ur|pi)EnqueueKernelLaunch"
    r"|zeCommandListAppendLaunch\w*Kernel"
    r"|mtiaLaunchKernel"
    r"|synLaunch"
)
#: Calls that start a copy, or do it themselves.
COPIES: Final = re.compile(
    rf"{_CUDA}Memcpy"
    r"|urEnqueue(?:USMMemcpy|Mem\w*Copy)"
    r"|pi(?:ext)?(?:USM)?Enqueue(?:Memcpy|Mem\w*Copy)"
    r"|zeCommandListAppendMemoryCopy"
    r"|mtiaMemcpy|enqueueCommand memcpy"
)
#: Calls that begin or end the capture of a stream; the first group is `Begin` or `End`.
CAPTURES: Final = re.compile(rf"{_CUDA}Stream(Begin|End)Capture")

#: Calls that return when all work of a device is done.
WAITS_FOR_DEVICE: Final = re.compile(
    rf"{_CUDA}(?:Device|Ctx|Thread)Synchronize|synDeviceSynchronize|synchronize$"
)
#: Calls that return when all work of a stream or queue is done.
WAITS_FOR_STREAM: Final = re.compile(
    rf"{_CUDA}StreamSynchronize"
    r"|(?:ur|pi)QueueFinish"
    r"|ze(?:CommandQueue|Fence|CommandListHost|FenceHost)Synchronize"
    r"|synStreamSynchronize"
    r"|synchronizeStream"
)
#: Calls that return when the device has reached an event.
WAITS_FOR_EVENT: Final = re.compile(
    rf"{_CUDA}EventSynchronize|urEventWait|piEventsWait|zeEventHostSynchronize|synEventSynchronize"
)
#: Calls that return when a copy is done. Calls with `Async` in their names return at once.
WAITS_FOR_COPY: Final = re.compile(rf"{_CUDA}Memcpy(?!.*Async)")
#: Calls that make a stream wait for an event.
STREAM_WAITS_FOR_EVENT: Final = re.compile(
    rf"{_CUDA}StreamWaitEvent|synStreamWaitEvent|enqueueCommand waitOnEvent"
)
#: Calls that make a stream wait for a number in memory.
STREAM_WAITS_FOR_VALUE: Final = re.compile(rf"{_CUDA}StreamWaitValue")
#: Calls that record an event on a stream.
RECORDS_EVENT: Final = re.compile(rf"{_CUDA}EventRecord|synEventRecord|recordEvent")

#: Categories of the trace events that tell for which stream or event a call waited.
SYNC_CATEGORIES: Final = ("cuda_sync", "xpu_sync")


def any_of(*patterns: re.Pattern[str]) -> re.Pattern[str]:
    """Return a pattern that matches what any of the patterns matches."""
    return re.compile("|".join(f"(?:{pattern.pattern})" for pattern in patterns))
