"""Choose the events of a trace that are exported."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.iterations.iterations import find_iterations
from tracelens_ext.errors import UsageError
from tracelens_ext.trace import GPU_KINDS, BoolArray, EventKind, Int64Array
from tracelens_ext.trace.gpu_events import GpuEvents

_TIME = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s)")
_NS_PER_UNIT = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_FLOW_KINDS = (EventKind.FLOW_START, EventKind.FLOW_END)
#: The most iterations that a message names.
_MOST_NAMED_ITERATIONS = 20


class Window(NamedTuple):
    """A period of a trace, in ns since its first event."""

    start: int
    end: int


#: A window that contains all events of any trace.
WHOLE_TIME = Window(start=-(1 << 62), end=1 << 62)


@dataclass(frozen=True)
class Choice:
    """The conditions that exported events meet."""

    #: start and end of the window, ns; events that overlap it are exported as a whole
    window: tuple[int, int] | None = None
    #: number of the iteration to export, together with the GPU work that it launched
    iteration: int | None = None
    #: devices of GPU events; None for all devices
    devices: frozenset[int] | None = None
    #: streams of GPU events; None for all streams
    streams: frozenset[int] | None = None
    min_ns: int = 0  #: the shortest duration of GPU and CPU events
    host: bool = True  #: False to leave out CPU events
    stacks: bool = False  #: True to export Python frames


def parse_window(text: str) -> Window:
    """Return the window of a text such as `1200ms-1300ms`.

    Raises:
        UsageError: the text is not a window.
    """
    times = [_parse_time(part.strip()) for part in text.split("-")]
    if len(times) == 2:
        start, end = times
        if start is not None and end is not None and start < end:
            return Window(start, end)
    expected = "write START-END with units, such as 1200ms-1300ms"
    raise UsageError(f"--window {text!r} is not a valid window; {expected}")


def _parse_time(text: str) -> int | None:
    """Return a time such as `1200ms` in ns; None if the text is not a time."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    number, unit = match.groups()
    ns_per_unit = _NS_PER_UNIT[unit]
    return round(float(number) * ns_per_unit)


class ChosenEvents(NamedTuple):
    """The events of a trace that are exported."""

    rows: Int64Array  #: rows of the events, ascending
    left_out: Counter[str]  #: reason → number of events that are left out for it


class _Selection:
    """Events that remain after some are left out, counted by the first reason that applies."""

    def __init__(self, is_kept: BoolArray) -> None:
        self.is_kept = is_kept
        self.left_out: Counter[str] = Counter()

    def leave_out(self, selected: BoolArray, reason: str) -> None:
        """Leave out those of the selected events that are not left out yet."""
        removed = selected & self.is_kept
        count = int(removed.sum())
        if not count:
            return
        self.left_out[reason] += count
        self.is_kept[removed] = False


def choose(gpu_events: GpuEvents, choice: Choice) -> ChosenEvents:
    """Return the events to export, and how many are left out for which reason.

    Flow events do not count. They are never exported because the export writes its own.
    """
    trace = gpu_events.trace
    recorded = trace.recorded
    kind = trace.kind[:recorded]
    duration = trace.dur[:recorded]
    selection = _Selection(~np.isin(kind, _FLOW_KINDS))
    window = window_of(gpu_events, choice)
    if window is not None:
        start = trace.ts[:recorded]
        end = trace.end[:recorded]
        is_outside = (start >= window.end) | (end <= window.start)
        selection.leave_out(is_outside, "outside of the window")
    if choice.devices is not None:
        is_other = _gpu_events_outside(
            gpu_events=gpu_events, number_of_event=trace.device, chosen=choice.devices
        )
        selection.leave_out(is_other, "on other devices")
    if choice.streams is not None:
        is_other = _gpu_events_outside(
            gpu_events=gpu_events, number_of_event=trace.stream, chosen=choice.streams
        )
        selection.leave_out(is_other, "on other streams")
    if not choice.host:
        gpu_kinds = GPU_KINDS + (EventKind.GPU_ANNOTATION,)
        selection.leave_out(~np.isin(kind, gpu_kinds), "on the CPU (--no-host)")
    if not choice.stacks:
        selection.leave_out(
            kind == EventKind.PYTHON_FUNCTION, "Python frames (--stacks)"
        )
    if choice.min_ns:
        is_short = (kind != EventKind.INSTANT) & (duration < choice.min_ns)
        selection.leave_out(is_short, "shorter than --min-us")
    return ChosenEvents(
        rows=np.flatnonzero(selection.is_kept), left_out=selection.left_out
    )


def _gpu_events_outside(
    gpu_events: GpuEvents, number_of_event: Int64Array, chosen: frozenset[int]
) -> BoolArray:
    """Return True for each GPU event whose device or stream is not chosen, (n,)."""
    is_other = np.zeros(gpu_events.trace.recorded, dtype=bool)
    is_chosen = np.isin(number_of_event, list(chosen))
    is_other[gpu_events.rows] = ~is_chosen
    return is_other


def window_of(gpu_events: GpuEvents, choice: Choice) -> Window | None:
    """Return the window that is exported; None for the whole trace.

    The window of an iteration lasts until its end, or until the end of the last GPU event that it
    launched.

    Raises:
        UsageError: the trace has no iteration with the chosen number.
    """
    number = choice.iteration
    if number is None:
        return None if choice.window is None else Window(*choice.window)
    iterations = find_iterations(gpu_events.tree)
    has_number = [iteration == number for iteration in iterations.number]
    indices = np.flatnonzero(has_number)
    if not len(indices):
        names = dict.fromkeys(iterations.number[:_MOST_NAMED_ITERATIONS])
        known_names = ", ".join(map(str, names)) or "none"
        raise UsageError(
            f"--iteration {number}: there is no iteration with that number; the trace "
            f"has {known_names}"
        )
    # Several processes may run the iteration at the same time. An iteration with the same number
    # that starts after the first one has ended is another one.
    starts_in_time = iterations.start[indices] < iterations.end[indices[0]]
    indices = indices[starts_in_time]
    launched_end = gpu_events.end[np.isin(iterations.of_gpu, indices)]
    last_end = np.concatenate((iterations.end[indices], launched_end)).max()
    return Window(start=int(iterations.start[indices].min()), end=int(last_end))
