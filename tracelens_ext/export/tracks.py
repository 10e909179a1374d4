"""The processes and threads of an export: a rank is a host process and one process a GPU."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.trace import GPU_KINDS, NONE, Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens_ext.trace import Int64Array, IntArray
    from tracelens_ext.work.gpu_work import GpuWork


@dataclass
class Tracks:
    """Numbers for processes and threads, all different, and the events that name them."""

    events: list[str] = field(default_factory=list)  #: the metadata events so far, as JSON texts
    #: [pid, tid, process, thread] of each lane, the last two as the trace spells them
    recorded: list[list[int | str]] = field(default_factory=list)
    _count: int = 0

    def process(self, name: str) -> int:
        """A new process."""
        self._count += 1
        self._name("process", self._count, 0, name)
        return self._count

    def lanes(self, pid: int, name: str, count: int) -> list[int]:
        """New threads of a process: of a track and its further lanes."""
        first, self._count = self._count + 1, self._count + count
        for lane in range(count):
            self._name("thread", pid, first + lane, f"{name} +{lane}" if lane else name)
        return list(range(first, first + count))

    def _name(self, what: str, pid: int, tid: int, name: str) -> None:
        for key, value in (("name", {"name": name}), ("sort_index", {"sort_index": tid or pid})):
            event = {"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": f"{what}_{key}"}
            self.events.append(json.dumps(event | {"args": value}))


@dataclass(frozen=True, eq=False)
class Placed:
    """Where the exported events of a trace are drawn, m of them."""

    pid: Int64Array  #: of each, (m,)
    tid: Int64Array
    lane: Int64Array  #: 0 for the first of its track, (m,)
    gpu: dict[int, tuple[int, dict[int, int]]]  #: device → (pid, stream → tid of its first lane)


def place(tracks: Tracks, work: GpuWork, rows: Int64Array, label: str, error: str) -> Placed:
    """Number the processes and threads of a trace, after those that `tracks` has."""
    trace = work.trace
    device = np.full(len(trace), NONE, dtype=np.int64)
    stream = device.copy()
    device[work.rows], stream[work.rows] = trace.device, trace.stream
    is_gpu = np.isin(trace.kind[rows], GPU_KINDS)
    keys = np.stack((is_gpu, trace.thread[rows], device[rows], stream[rows]))
    distinct, track = np.unique(keys, axis=1, return_inverse=True)
    track = track.reshape(-1)
    lane = fit_lanes(track, trace.ts[rows], trace.end_of(rows))
    lanes = np.zeros(distinct.shape[1], dtype=np.int64)
    np.maximum.at(lanes, track, lane + 1)
    pids: dict[object, int] = {}
    gpu: dict[int, tuple[int, dict[int, int]]] = {}
    pid_of, tid_of = np.zeros_like(lanes), np.zeros_like(lanes)
    for at, (on_gpu, thread, gpu_number, number) in enumerate(distinct.T.tolist()):
        process, name = trace.threads[thread]
        own = gpu_number if on_gpu else process
        if (bool(on_gpu), own) not in pids:
            words = _gpu_name(trace, gpu_number) if on_gpu else _process_name(trace, process)
            parts = (label, words, error)
            pids[bool(on_gpu), own] = tracks.process(" · ".join(part for part in parts if part))
        pid = pids[bool(on_gpu), own]
        if on_gpu:
            shown = f"stream {number}" if number != NONE else str(name)
        else:
            shown = trace.thread_names.get((process, name)) or f"thread {name}"
        tids = tracks.lanes(pid, shown, int(lanes[at]))
        tracks.recorded += [[pid, tid, process, name] for tid in tids]
        pid_of[at], tid_of[at] = pid, tids[0]
        if on_gpu:
            gpu.setdefault(gpu_number, (pid, {}))[1].setdefault(number, tids[0])
    return Placed(pid_of[track], tid_of[track] + lane, lane, gpu)


def _gpu_name(trace: Trace, device: int) -> str:
    names: Iterator[str] = (each.name for each in trace.devices if each.ordinal == device)
    name = next(names, "")
    return f"GPU {device}" + (f" ({name})" if name else "") if device != NONE else "GPU"


def _process_name(trace: Trace, process: int | str) -> str:
    name = trace.process_names.get(process, "")
    return f"{name} ({process})" if name and name != str(process) else f"process {process}"


def us_text(ns: int) -> str:
    """Ns as µs with three decimals, exact."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


#: Lanes of a track that are asked one by one; of what further ones hold, nothing is nested.
_MOST_ASKED = 64


def fit_lanes(track: IntArray, start: Int64Array, end: Int64Array) -> Int64Array:
    """The lane of each event on its track: the first that takes it, by start, longest first.

    A lane takes an event that lies within the one that is open there, or begins after its end.
    """
    lane = np.zeros(len(track), dtype=np.int64)
    order = np.lexsort((-end, start, track))
    for events in np.split(order, np.flatnonzero(np.diff(track[order])) + 1):
        if (start[events[1:]] < np.maximum.accumulate(end[events])[:-1]).any():
            lane[events] = _lanes_of_track(start[events].tolist(), end[events].tolist())
    return lane


def _lanes_of_track(starts: list[int], ends: list[int]) -> list[int]:
    open_in: list[list[int]] = []  # of each lane the ends of what is open, outermost first
    further: list[tuple[int, int]] = []  # (end, lane) of each lane beyond, a heap
    result = []
    for start, end in zip(starts, ends, strict=True):
        lane = 0
        while lane < len(open_in):
            stack = open_in[lane]
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or end <= stack[-1]:
                break
            lane += 1
        else:
            if lane == _MOST_ASKED:
                free = further and further[0][0] <= start
                lane = heappop(further)[1] if free else _MOST_ASKED + len(further)
                heappush(further, (end, lane))
                result.append(lane)
                continue
            open_in.append([])
        open_in[lane].append(end)
        result.append(lane)
    return result
