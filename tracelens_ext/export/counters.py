"""What an export draws besides events: levels over time, and spans in lanes of our own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np

from tracelens_ext.export.tracks import us_text
from tracelens_ext.intervals import covered
from tracelens_ext.iterations.iterations import find_iterations
from tracelens_ext.memory.events import read_memory_events
from tracelens_ext.recording.recording import recording_of
from tracelens_ext.timeline.timeline import copies, queue_levels
from tracelens_ext.trace import NS_PER_US
from tracelens_ext.work.gpu_work import find_lanes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.lazy import pd
    from tracelens_ext.trace import Float64Array, Int64Array, IntArray
    from tracelens_ext.work.gpu_work import GpuWork

_MOST_POINTS = 20_000
_BINS = 2_000
_GIB = 2**30


def counter_events(
    work: GpuWork,
    gpu: Mapping[int, tuple[int, Mapping[int, int]]],
    ours: int,
    shift: int,
    window: tuple[int, int],
) -> Iterator[str]:
    """The counters of a trace, as JSON texts.

    `gpu`: device → (its process, …), others have none; `ours`: the process of what belongs to no
    GPU; `shift`: ns that are added to all times; `window`: other levels are left out.
    """
    if not len(work):
        return

    def points(
        name: str, key: str, pid: int, time: Int64Array, level: IntArray | Float64Array
    ) -> Iterator[str]:
        order = np.argsort(time, kind="stable")
        time, level = time[order], level[order]
        first, last = np.searchsorted(time, window)
        inside = slice(max(int(first) - 1, 0), int(last))  # also the level at its start
        return _points(name, key, pid, time[inside], level[inside], shift)

    for device, (pid, _) in gpu.items():
        for name, time, share in _shares(work, device):
            yield from points(name, "value", pid, time, share)
    queues = queue_levels(work)
    queues["key"] = "stream " + queues["stream"].astype(str)
    for device, key, rows in _series(queues, "key"):
        if device in gpu:
            times, levels = rows["time_ns"].to_numpy(), rows["level"].to_numpy()
            yield from points("queue length", key, gpu[device][0], times, levels)
    for device, key, rows in _series(copies(work), "direction"):
        if device in gpu:
            ends = np.stack((rows["start_ns"], rows["end_ns"]), axis=1).ravel()
            speed = np.stack((rows["gb_per_s"], np.zeros(len(rows))), axis=1).ravel()
            yield from points("copy GB/s", key, gpu[device][0], ends, speed)
    memory = read_memory_events(work.trace)
    for at, device in enumerate(memory.devices.tolist()):
        which = memory.place == at
        pid = gpu[device][0] if device in gpu else ours
        name = f"device {device}" if device >= 0 else "host"
        levels = memory.level[which] / _GIB
        yield from points("allocated GiB", name, pid, memory.time[which], levels)


def _series(frame: pd.DataFrame, key: str) -> Iterator[tuple[int, str, pd.DataFrame]]:
    for pair, rows in frame.groupby(["device", key], sort=False):
        device, name = cast("tuple[int, str]", pair)
        yield device, name, rows


def _shares(work: GpuWork, device: int) -> Iterator[tuple[str, Int64Array, Float64Array]]:
    """How busy a device is, and how much of the time only with communication, by bins."""
    own = work.trace.device == device
    start, end = work.start[own], work.end[own]
    edges = np.unique(np.linspace(start.min(), end.max(), _BINS + 1).astype(np.int64))
    if len(edges) < 2:
        return
    communicates = work.is_communication[own]
    busy = covered(start, end, edges[:-1], edges[1:])
    rest = covered(start[~communicates], end[~communicates], edges[:-1], edges[1:])
    width = np.diff(edges)
    for name, ns in (("GPU busy (%)", busy), ("exposed communication (%)", busy - rest)):
        if ns.any():
            share = np.append(100.0 * ns / width, 0.0)
            changes = np.diff(share, prepend=-1.0) != 0
            yield name, edges[changes], share[changes]


def _points(
    name: str, key: str, pid: int, time: Int64Array, level: IntArray | Float64Array, shift: int
) -> Iterator[str]:
    """A counter; of too many points the highest of each stretch of them."""
    from json import dumps

    if len(time) > _MOST_POINTS:
        firsts = np.linspace(0, len(time), _MOST_POINTS, endpoint=False).astype(np.int64)
        time, level = time[firsts], np.maximum.reduceat(level, firsts)
    # The last of the levels at one instant is what stays.
    last = np.append(np.diff(time) > 0, True) if len(time) else np.zeros(0, dtype=bool)
    head = f'{{"ph": "C", "name": {dumps(name)}, "pid": {pid}, "tid": 0, "ts": '
    quoted = dumps(key)
    for at, value in zip((time[last] + shift).tolist(), level[last].tolist(), strict=True):
        yield f'{head}{us_text(at)}, "args": {{{quoted}: {round(value, 3)}}}}}'


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


def _iterations(work: GpuWork) -> list[Span]:
    """The iterations of the trace's first process that has any."""
    found = find_iterations(work.tree)
    return [
        Span("iterations", f"iteration {number}", int(start), int(end))
        for number, process, start, end in zip(
            found.number, found.process, found.start, found.end, strict=True
        )
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


def _recording(work: GpuWork) -> list[Span]:
    """What of the recording cannot be judged: `hole`, `before`, `start_up`."""
    devices = find_lanes(work, "device").device.tolist()
    return [
        Span(
            *("recording", each["kind"], each["start"], each["end"]),
            {"device": devices[each["device"]], "what": each["what"], "place": each["place"]},
        )
        for each in recording_of(work).parts.to_dict("records")
    ]


def _critical_path(analyzer: TreePerfAnalyzer) -> list[Span]:
    """The segments of the replay's critical path, at the replay's times; none if it is withheld."""
    simulation = analyzer.simulation()
    if simulation.state == "withheld":
        return []
    table, first = simulation.critical_path, simulation.program.window[0]
    start = first + (table["start_us"] * NS_PER_US).round().astype("int64")
    end = start + (table["duration_us"] * NS_PER_US).round().astype("int64")
    args = cast("list[dict[str, object]]", table[list(_OF_SEGMENT)].to_dict("records"))
    return [
        Span("critical path", str(next(filter(None, map(told.get, _NAMES)))), begin, stop, told)
        for begin, stop, told in zip(start.tolist(), end.tolist(), args, strict=True)
    ]
