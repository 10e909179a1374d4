"""Where an export draws, and what besides events: levels over time, spans in lanes of our own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import cast

import numpy as np

from tracelens_ext.analysis.coverage.coverage import recording_of
from tracelens_ext.analysis.iterations.selection import find_iterations
from tracelens_ext.analysis.memory.events import read_memory_events
from tracelens_ext.analysis.timeline.timeline import copies, queue_levels
from tracelens_ext.analyzer import TreePerfAnalyzer
from tracelens_ext.lazy import pd
from tracelens_ext.trace import GPU_KINDS, NONE, NS_PER_US, Float64Array, Int64Array, IntArray
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks
from tracelens_ext.trace.intervals import covered


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
        first = self._count + 1
        self._count = self._count + count
        for lane in range(count):
            self._name("thread", pid, first + lane, f"{name} +{lane}" if lane else name)
        return list(range(first, first + count))

    def _name(self, what: str, pid: int, tid: int, name: str) -> None:
        for key, value in (("name", {"name": name}), ("sort_index", {"sort_index": tid or pid})):
            event = {"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": f"{what}_{key}"}
            self.events.append(json.dumps(event | {"args": value}))


#: device → the process of its GPU work, and stream → the first thread of that
OfGpus = dict[int, tuple[int, dict[int, int]]]
Placed = tuple[Int64Array, Int64Array, Int64Array, OfGpus]


def place(tracks: Tracks, work: GpuEvents, rows: Int64Array, label: str, error: str) -> Placed:
    """Where m events of a trace are drawn, in processes and threads after those of `tracks`.

    Process, thread and lane of each, (m,), the first lane of a track is 0; and those of GPUs.
    """
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
    gpu: OfGpus = {}
    pid_of = np.zeros_like(lanes)
    tid_of = np.zeros_like(lanes)
    for at, (on_gpu, thread, gpu_number, number) in enumerate(distinct.T.tolist()):
        process, name = trace.threads[thread]
        key = (bool(on_gpu), gpu_number if on_gpu else process)
        if on_gpu:
            words = f"GPU {gpu_number}" if gpu_number != NONE else "GPU"
            known = [each.name for each in trace.devices if each.ordinal == gpu_number != NONE]
            words += f" ({known[0]})" if known and known[0] else ""
            shown = f"stream {number}" if number != NONE else str(name)
        else:
            told = trace.process_names.get(process, "")
            words = (
                f"{told} ({process})" if told not in ("", str(process)) else f"process {process}"
            )
            shown = trace.thread_names.get((process, name)) or f"thread {name}"
        if key not in pids:
            pids[key] = tracks.process(" · ".join(filter(None, (label, words, error))))
        pid_of[at], tids = pids[key], tracks.lanes(pids[key], shown, int(lanes[at]))
        tid_of[at] = tids[0]
        tracks.recorded += [[pids[key], tid, process, name] for tid in tids]
        if on_gpu:
            gpu.setdefault(gpu_number, (pids[key], {}))[1].setdefault(number, tids[0])
    return pid_of[track], tid_of[track] + lane, lane, gpu


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


Levels = IntArray | Float64Array

_MOST_POINTS = 20_000
_BINS = 2_000
_GIB = 2**30


def counter_events(
    work: GpuEvents, gpu: OfGpus, ours: int, shift: int, window: tuple[int, int]
) -> Iterator[str]:
    """The counters of a trace, as JSON texts.

    `gpu`: device → (its process, …), others have none; `ours`: the process of what belongs to no
    GPU; `shift`: ns that are added to all times; `window`: other levels are left out.
    """
    if not len(work):
        return

    def points(name: str, key: str, pid: int, time: Int64Array, level: Levels) -> Iterator[str]:
        """A counter; of too many points the highest of each stretch of them."""
        order = np.argsort(time, kind="stable")
        first, last = np.searchsorted(time[order], window)
        order = order[max(int(first) - 1, 0) : int(last)]  # also the level at its start
        time = time[order]
        level = level[order]
        if len(time) > _MOST_POINTS:
            firsts = np.linspace(0, len(time), _MOST_POINTS, endpoint=False).astype(np.int64)
            time = time[firsts]
            level = np.maximum.reduceat(level, firsts)
        # The last of the levels at one instant is what stays.
        stays = np.append(np.diff(time) > 0, True)[: len(time)]
        head = f'{{"ph": "C", "name": {json.dumps(name)}, "pid": {pid}, "tid": 0, "ts": '
        quoted = json.dumps(key)
        for at, value in zip((time[stays] + shift).tolist(), level[stays].tolist(), strict=True):
            yield f'{head}{us_text(at)}, "args": {{{quoted}: {round(value, 3)}}}}}'

    for device, (pid, _) in gpu.items():
        for name, time, share in _shares(work, device):
            yield from points(name, "value", pid, time, share)
    queues = queue_levels(work)
    queues["key"] = "stream " + queues["stream"].astype(str)
    for pid, key, rows in _series(queues, "key", gpu):
        times = rows["time_ns"].to_numpy()
        levels = rows["level"].to_numpy()
        yield from points("queue length", key, pid, times, levels)
    for pid, key, rows in _series(copies(work), "direction", gpu):
        ends = rows[["start_ns", "end_ns"]].to_numpy().ravel()
        speed = rows.assign(after=0.0)[["gb_per_s", "after"]].to_numpy().ravel()
        yield from points("copy GB/s", key, pid, ends, speed)
    memory = read_memory_events(work.trace)
    for at, device in enumerate(memory.devices.tolist()):
        which = memory.place == at
        pid = gpu[device][0] if device in gpu else ours
        name = f"device {device}" if device >= 0 else "host"
        levels = memory.level[which] / _GIB
        yield from points("allocated GiB", name, pid, memory.time[which], levels)


def _series(frame: pd.DataFrame, key: str, gpu: OfGpus) -> Iterator[tuple[int, str, pd.DataFrame]]:
    for pair, rows in frame.groupby(["device", key], sort=False):
        device, name = cast("tuple[int, str]", pair)
        if device in gpu:
            yield gpu[device][0], name, rows


def _shares(work: GpuEvents, device: int) -> Iterator[tuple[str, Int64Array, Float64Array]]:
    """How busy a device is, and how much of the time only with communication, by bins."""
    own = work.trace.device == device
    start = work.start[own]
    end = work.end[own]
    edges = np.unique(np.linspace(start.min(), end.max(), _BINS + 1).astype(np.int64))
    if len(edges) < 2:
        return
    communicates = work.is_communication[own]
    busy = covered(start, end, edges[:-1], edges[1:])
    rest = covered(start[~communicates], end[~communicates], edges[:-1], edges[1:])
    for name, ns in (("GPU busy (%)", busy), ("exposed communication (%)", busy - rest)):
        if ns.any():
            share = np.append(100.0 * ns / np.diff(edges), 0.0)
            changes = np.diff(share, prepend=-1.0) != 0
            yield name, edges[changes], share[changes]


_OF_SEGMENT = ("kind", "category", "name", "operation", "stream", "edge", "known")
_NAMES = ("name", "operation", "kind")


@dataclass(frozen=True)
class Span:
    """A stretch of time, ns since the trace's first event."""

    lane: str
    name: str
    start: int
    end: int
    args: Mapping[str, object] = field(default_factory=dict)


def spans_of(analyzer: TreePerfAnalyzer, *, with_findings: bool) -> list[Span]:
    """All spans of a trace, or those that need no search and no replay."""
    spans = _iterations(analyzer.work)
    if len(analyzer.work):
        spans += _recording(analyzer.work)
        spans += [*_findings(analyzer), *_critical_path(analyzer)] if with_findings else []
    return spans


def _iterations(work: GpuEvents) -> list[Span]:
    """The iterations of the trace's first process that has any."""
    found = find_iterations(work.tree)
    columns = (found.number, found.process, found.start, found.end)
    return [
        Span("iterations", f"iteration {number}", int(start), int(end))
        for number, process, start, end in zip(*columns, strict=True)
        if process == found.process[0]
    ]


def _findings(analyzer: TreePerfAnalyzer) -> list[Span]:
    """What each finding claims, by device."""
    spans = []
    for finding in analyzer.findings().findings:
        if (claim := finding.claim) is None:
            continue
        told = {"title": finding.title, "confidence": finding.confidence, "advice": finding.advice}
        for each in claim.as_records():
            start, end = (claim.wall_start + int(str(each[key])) for key in ("start_ns", "end_ns"))
            args = {"device": each["device"], **told}
            spans.append(Span("findings", finding.id, start, end, args))
    return spans


def _recording(work: GpuEvents) -> list[Span]:
    """What of the recording cannot be judged: `hole`, `before`, `start_up`."""
    devices = find_tracks(work, "device").device.tolist()
    spans = []
    for each in recording_of(work).parts.to_dict("records"):
        told = {"device": devices[each["device"]], "what": each["what"], "place": each["place"]}
        spans.append(Span("recording", each["kind"], each["start"], each["end"], told))
    return spans


def _critical_path(analyzer: TreePerfAnalyzer) -> list[Span]:
    """The segments of the replay's critical path, at the replay's times; none if it is withheld."""
    if (simulation := analyzer.simulation()).state == "withheld":
        return []
    table = simulation.critical_path
    first = simulation.program.window[0]
    start = first + (table["start_us"] * NS_PER_US).round().astype("int64")
    end = start + (table["duration_us"] * NS_PER_US).round().astype("int64")
    args = cast("list[dict[str, object]]", table[list(_OF_SEGMENT)].to_dict("records"))
    return [
        Span("critical path", str(next(filter(None, map(told.get, _NAMES)))), begin, stop, told)
        for begin, stop, told in zip(start.tolist(), end.tolist(), args, strict=True)
    ]
