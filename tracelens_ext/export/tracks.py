"""The processes and threads of an export: a rank is a host process and one process a GPU."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tracelens_ext.export.lanes import fit_lanes
from tracelens_ext.trace import GPU_KINDS, NONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens_ext.trace import Int64Array, Trace
    from tracelens_ext.work.gpu_work import GpuWork


@dataclass
class Tracks:
    """Numbers for processes and threads, all different, and the events that name them.

    Attributes:
        events: the metadata events so far, as JSON texts.
        recorded: [pid, tid, process, thread] of each lane, the last two as the trace spells them.
    """

    events: list[str] = field(default_factory=list)
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
    """Where the exported events of a trace are drawn, m of them.

    Attributes:
        pid, tid: of each, (m,).
        lane: 0 for the first of its track, (m,).
        gpu: device → (pid, stream → tid of its first lane).
    """

    pid: Int64Array
    tid: Int64Array
    lane: Int64Array
    gpu: dict[int, tuple[int, dict[int, int]]]


def place(tracks: Tracks, work: GpuWork, rows: Int64Array, label: str, error: str) -> Placed:
    """Number the processes and threads of a trace.

    Args:
        tracks: what is numbered already; grows.
        work: the trace.
        rows: the events that are exported, (m,).
        label: the rank in words; empty where there is one trace only.
        error: how well its clock is known; empty to say nothing.
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
