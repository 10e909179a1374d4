"""What calls of runtimes and drivers do, by their names.

CUDA and HIP call things alike. The others are Level Zero (`ze…`), the unified runtime of SYCL
(`ur…`, before that `pi…`) for Intel's GPUs, and the runtimes of MTIA and of HPUs (`syn…`).
"""

from __future__ import annotations

import re
from typing import Final

_CUDA: Final = r"(?:cuda|hip|cu)"

#: Start a kernel; `…LaunchHostFunc` starts none.
LAUNCHES_KERNEL: Final = re.compile(
    rf"{_CUDA}\w*?Launch(?:\w*Kernel|ByPtr|Grid|$)"
    r"|(?:ur|pi)EnqueueKernelLaunch"
    r"|zeCommandListAppendLaunch\w*Kernel"
    r"|mtiaLaunchKernel"
    r"|synLaunch"
)
#: Start a copy, or make one.
COPIES: Final = re.compile(
    rf"{_CUDA}Memcpy"
    r"|urEnqueue(?:USMMemcpy|Mem\w*Copy)"
    r"|pi(?:ext)?(?:USM)?Enqueue(?:Memcpy|Mem\w*Copy)"
    r"|zeCommandListAppendMemoryCopy"
    r"|mtiaMemcpy|enqueueCommand memcpy"
)
#: Begin, or end, the capture of a stream, as the first group says.
CAPTURES: Final = re.compile(rf"{_CUDA}Stream(Begin|End)Capture")

#: Return when all work of a device is done.
WAITS_FOR_DEVICE: Final = re.compile(
    rf"{_CUDA}(?:Device|Ctx|Thread)Synchronize|synDeviceSynchronize|synchronize$"
)
#: Return when all work of a stream, or of a queue, is done.
WAITS_FOR_STREAM: Final = re.compile(
    rf"{_CUDA}StreamSynchronize"
    r"|(?:ur|pi)QueueFinish"
    r"|ze(?:CommandQueue|Fence|CommandListHost|FenceHost)Synchronize"
    r"|synStreamSynchronize"
    r"|synchronizeStream"
)
#: Return when an event has happened on the device.
WAITS_FOR_EVENT: Final = re.compile(
    rf"{_CUDA}EventSynchronize|urEventWait|piEventsWait|zeEventHostSynchronize|synEventSynchronize"
)
#: Return when the copy is done; those that are called asynchronous return at once.
WAITS_FOR_COPY: Final = re.compile(rf"{_CUDA}Memcpy(?!.*Async)")
#: Let a stream wait for an event.
STREAM_WAITS_FOR_EVENT: Final = re.compile(
    rf"{_CUDA}StreamWaitEvent|synStreamWaitEvent|enqueueCommand waitOnEvent"
)
#: Let a stream wait for a number in memory.
STREAM_WAITS_FOR_VALUE: Final = re.compile(rf"{_CUDA}StreamWaitValue")
#: Record an event on a stream.
RECORDS_EVENT: Final = re.compile(rf"{_CUDA}EventRecord|synEventRecord|recordEvent")

#: Categories of the events that say which stream or event a call waited for.
SYNC_CATEGORIES: Final = ("cuda_sync", "xpu_sync")


def any_of(*patterns: re.Pattern[str]) -> re.Pattern[str]:
    """Return a pattern that matches what any of the patterns matches."""
    return re.compile("|".join(f"(?:{pattern.pattern})" for pattern in patterns))
