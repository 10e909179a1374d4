"""The counters of an export: numbers that change over time, such as how busy a GPU is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from tracelens_ext.analysis.memory.events import read_memory_events
from tracelens_ext.analysis.timeline.counters import copies, queue_levels
from tracelens_ext.export.choice import Window
from tracelens_ext.isolation import PartFailures
from tracelens_ext.lazy import pd
from tracelens_ext.trace import Float64Array, Int64Array, IntArray
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.intervals import covered

#: The most points of a counter. More would make viewers slow without showing more.
_MAX_POINTS = 20_000
#: The number of periods over which busy time is averaged.
_BINS = 2_000
_BYTES_PER_GIB = 2**30


class _Counter(NamedTuple):
    """A level over time, which changes c times."""

    name: str  #: the name of the counter
    key: str  #: the name of the level within a counter of several levels
    process: int  #: number of the process of the export that shows the counter
    time: Int64Array  #: time of each change, ns since the trace's first event, (c,)
    level: IntArray | Float64Array  #: the level after each change, (c,)


@dataclass(frozen=True)
class CounterTarget:
    """Where the counters of a trace are drawn."""

    #: device → number of its process in the export; other devices get no counters
    process_of_device: Mapping[int, int]
    own_process: int  #: number of the process for counters without a GPU
    shift_ns: int  #: the time that is added to all times
    window: Window  #: the exported time; the counters show nothing outside of it


def counter_events(
    gpu_events: GpuEvents, target: CounterTarget, failures: PartFailures
) -> Iterator[str]:
    """Yield the events of a trace's counters as JSON texts; counters that fail are left out.

    Args:
        gpu_events: the GPU events of the trace.
        target: where the counters are drawn.
        failures: records the counters that fail.
    """
    if not len(gpu_events):
        return
    sources: dict[str, Callable[[], Iterator[_Counter]]] = {
        "The counters of busy time": lambda: _busy_counters(gpu_events, target),
        "The counter queue length": lambda: _queue_counters(gpu_events, target),
        "The counter copy GB/s": lambda: _copy_counters(gpu_events, target),
        "The counter allocated GiB": lambda: _memory_counters(gpu_events, target),
    }
    for part, counters in sources.items():
        events: list[str] = []
        with failures.isolate(part):
            for counter in counters():
                events.extend(_points(counter, target))
        yield from events


def us_text(ns: int) -> str:
    """Return a time in ns as text in µs with three decimals, which is exact."""
    sign = "-" if ns < 0 else ""
    microseconds, nanoseconds = divmod(abs(ns), 1000)
    return f"{sign}{microseconds}.{nanoseconds:03d}"


def _points(counter: _Counter, target: CounterTarget) -> Iterator[str]:
    """Yield the changes of a counter in the window as JSON texts.

    If there are too many, each point stands for several changes and has the highest of their
    levels.
    """
    order = np.argsort(counter.time, kind="stable")
    first, last = np.searchsorted(counter.time[order], target.window).tolist()
    # The change before the window sets the level at its start.
    order = order[max(first - 1, 0) : last]
    time = counter.time[order]
    level = counter.level[order]
    if len(time) > _MAX_POINTS:
        spaced = np.linspace(0, len(time), _MAX_POINTS, endpoint=False)
        first_of_point = spaced.astype(np.int64)
        time = time[first_of_point]
        # The maximum from each first change to the next first change.
        level = np.maximum.reduceat(level, first_of_point)
    # Of several levels at the same instant, the last one is drawn.
    is_last_at_instant = np.ones(len(time), dtype=bool)
    is_last_at_instant[:-1] = np.diff(time) > 0
    times = (time[is_last_at_instant] + target.shift_ns).tolist()
    levels = level[is_last_at_instant].tolist()
    name = json.dumps(counter.name)
    key = json.dumps(counter.key)
    head = f'{{"ph": "C", "name": {name}, "pid": {counter.process}, "tid": 0'
    for instant, value in zip(times, levels, strict=True):
        yield f'{head}, "ts": {us_text(instant)}, "args": {{{key}: {round(value, 3)}}}}}'


def _busy_counters(gpu_events: GpuEvents, target: CounterTarget) -> Iterator[_Counter]:
    """Yield the busy share of each GPU, and the share of exposed communication, over time."""
    for device, process in target.process_of_device.items():
        is_on_device = gpu_events.trace.device == device
        start = gpu_events.start[is_on_device]
        end = gpu_events.end[is_on_device]
        edges = np.linspace(start.min(), end.max(), _BINS + 1).astype(np.int64)
        edges = np.unique(edges)
        if len(edges) < 2:
            continue
        is_communication = gpu_events.is_communication[is_on_device]
        other_start = start[~is_communication]
        other_end = end[~is_communication]
        bin_start = edges[:-1]
        bin_end = edges[1:]
        busy_ns = covered(
            start=start, end=end, window_start=bin_start, window_end=bin_end
        )
        exposed_ns = busy_ns - covered(
            start=other_start, end=other_end, window_start=bin_start, window_end=bin_end
        )
        for name, ns in (
            ("GPU busy (%)", busy_ns),
            ("exposed communication (%)", exposed_ns),
        ):
            if not ns.any():
                continue
            percent = 100.0 * ns / (bin_end - bin_start)
            percent = np.append(percent, 0.0)  # behind the last bin
            is_change = np.diff(percent, prepend=-1.0) != 0
            yield _Counter(
                name=name,
                key="value",
                process=process,
                time=edges[is_change],
                level=percent[is_change],
            )


def _queue_counters(gpu_events: GpuEvents, target: CounterTarget) -> Iterator[_Counter]:
    """Yield the number of GPU events that are launched and have not started, by stream."""
    levels = queue_levels(gpu_events)
    for (device, stream), rows in _by_device_and(levels, "stream", target):
        time = rows["time_ns"].to_numpy()
        level = rows["level"].to_numpy()
        process = target.process_of_device[device]
        yield _Counter(
            name="queue length",
            key=f"stream {stream}",
            process=process,
            time=time,
            level=level,
        )


def _copy_counters(gpu_events: GpuEvents, target: CounterTarget) -> Iterator[_Counter]:
    """Yield the bandwidth of copies by direction; it is 0 from the end of a copy on."""
    for (device, direction), rows in _by_device_and(
        frame=copies(gpu_events), column="direction", target=target
    ):
        # Two changes for each copy: to its bandwidth at its start, and to 0 at its end.
        time = rows[["start_ns", "end_ns"]].to_numpy().ravel()
        with_zero = rows.assign(level_after=0.0)
        level = with_zero[["gb_per_s", "level_after"]].to_numpy().ravel()
        yield _Counter(
            name="copy GB/s",
            key=str(direction),
            process=target.process_of_device[device],
            time=time,
            level=level,
        )


class _DeviceAndValue(NamedTuple):
    """The device of a counter, and the stream or the direction of copies."""

    device: int
    value: object


def _by_device_and(
    frame: pd.DataFrame, column: str, target: CounterTarget
) -> Iterator[tuple[_DeviceAndValue, pd.DataFrame]]:
    """Yield the rows of each device and value of a column, for devices that are drawn."""
    for keys, rows in frame.groupby(["device", column], sort=False):
        device, value = cast("tuple[int, object]", keys)
        if device in target.process_of_device:
            yield _DeviceAndValue(device, value), rows


def _memory_counters(
    gpu_events: GpuEvents, target: CounterTarget
) -> Iterator[_Counter]:
    """Yield the amount of allocated memory on each device and on the host."""
    memory = read_memory_events(gpu_events.trace)
    for index, device in enumerate(memory.devices.tolist()):
        is_of_device = memory.device_index == index
        process = target.own_process
        if device in target.process_of_device:
            process = target.process_of_device[device]
        key = f"device {device}" if device >= 0 else "host"
        level = memory.level[is_of_device] / _BYTES_PER_GIB
        yield _Counter(
            name="allocated GiB",
            key=key,
            process=process,
            time=memory.time[is_of_device],
            level=level,
        )
