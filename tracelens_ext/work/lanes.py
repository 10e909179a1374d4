"""Lanes: the streams of a trace, or its devices, each idle or busy as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from tracelens_ext.intervals import covered
from tracelens_ext.trace import NONE
from tracelens_ext.work.grouping import number_groups
from tracelens_ext.work.memoize import once_for_each

if TYPE_CHECKING:
    from tracelens_ext.trace import Int64Array, IntArray
    from tracelens_ext.work.gpu_work import GpuWork

Scope = Literal["stream", "device"]


@dataclass(frozen=True, eq=False)
class Lanes:
    """What is idle or busy as a whole: the streams of a trace, or its devices, p of them."""

    scope: Scope  #: which of the two
    process: list[int | str]  #: the process of each as the trace spells it, p of them
    device: Int64Array  #: its number, `NONE` where the trace does not say, (p,)
    stream: Int64Array  #: likewise; `NONE` for a whole device, (p,)
    of_gpu: Int64Array  #: the lane of each GPU event, (g,)

    def __len__(self) -> int:
        return len(self.process)

    @property
    def device_labels(self) -> list[int | str]:
        """What the devices are called: by their number, with the process where two have one."""
        numbers: list[int] = self.device.tolist()
        return [
            number if numbers.count(number) == 1 else f"{number} of process {process}"
            for number, process in zip(numbers, self.process, strict=True)
        ]


@once_for_each
def find_lanes(work: GpuWork, scope: Scope) -> Lanes:
    """The streams, or the devices, on which GPU events ran.

    Args:
        work: the GPU events.
        scope: `stream`, or `device` for all streams of a device taken together.
    """
    trace = work.trace
    process = trace.process_of_thread[trace.thread[work.rows]]
    keys: list[IntArray] = [process, trace.device]
    if scope == "stream":
        keys.append(trace.stream)
    elif trace.conventions.gpu_by_process:
        keys = [trace.device]  # two processes may share one
    first, number = number_groups(keys)
    return Lanes(
        scope=scope,
        process=[trace.threads[i][0] for i in trace.thread[work.rows[first]].tolist()],
        device=trace.device[first],
        stream=trace.stream[first] if scope == "stream" else np.full(len(first), NONE),
        of_gpu=number,
    )


def busy_within(work: GpuWork, device: IntArray, start: Int64Array, end: Int64Array) -> Int64Array:
    """How long a device (an index into the lanes) is busy in each stretch of time, ns, (k,)."""
    of_gpu = find_lanes(work, "device").of_gpu
    busy = np.zeros(len(device), dtype=np.int64)
    for number in np.unique(device).tolist():
        mine, here = of_gpu == number, device == number
        busy[here] = covered(work.start[mine], work.end[mine], start[here], end[here])
    return busy
