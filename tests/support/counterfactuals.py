"""Problems of a known cost put into a trace: what a finding must see, and no other may.

At a moment when the GPU is idle and the host is between two operations everything is moved by the
cost: all that starts later, and the end of what is going on. What a problem does fills the room.
Documents are Kineto JSON; times are microseconds.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Event = dict[str, Any]
#: Type, sizes and, unless contiguous, strides.
Shape = tuple[str, list[int], list[int]]
Document = dict[str, Any]

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
#: Bytes and matrix operations a microsecond that good kernels reach, by the device's name.
RATES = {"H100": (2.5e6, 6e8), "MI300": (4.0e6, 7e8)}
_BYTES = {"c10::BFloat16": 2, "c10::Half": 2, "bool": 1, "float": 4, "long int": 8}


def read(path: Path) -> Document:
    """A trace document, gzipped or not."""
    data = path.read_bytes()
    document: Document = json.loads(
        gzip.decompress(data) if path.suffix == ".gz" else data
    )
    return document


@dataclass(frozen=True)
class Place:
    """A moment at which the GPU has nothing to do, or just ended something, and more comes."""

    at: float
    host: tuple[Any, Any]  #: process and thread that launch
    gpu: tuple[Any, Any]  #: device and stream of what comes next
    waits_for_host: bool  #: whether what comes next is launched later
    after_wait: bool  #: whether the host waited for the GPU when that ended its work


def spans(document: Document, *categories: str) -> list[Event]:
    """The events with a duration, of some categories."""
    return [
        e
        for e in document["traceEvents"]
        if e["ph"] == "X" and e.get("cat") in categories
    ]


def end(event: Event) -> float:
    """When an event ends."""
    time: float = event["ts"] + event["dur"]
    return time


def places(document: Document) -> list[Place]:
    """Where problems can be put in, by time: when the host is in no operation and no call."""
    calls = {e["args"].get("correlation"): e for e in spans(document, *CALLS)}
    outermost = _outermost_ops(document)
    found: list[Place] = []
    reach = float("inf")
    for work in sorted(spans(document, *GPU), key=lambda e: e["ts"]):
        call = calls.get(work["args"].get("correlation"))
        if call and work["ts"] >= reach:
            host = call["pid"], call["tid"]
            ops = outermost[host]
            where = (host, (work["pid"], work["tid"]))
            if op := _open(ops, call["ts"]):
                waited = _open(ops, reach)
                after = waited is not None and waited is not op
                if op["ts"] > reach:
                    found.append(
                        Place(op["ts"], *where, waits_for_host=True, after_wait=after)
                    )
                elif call["ts"] < reach and not waited:
                    found.append(
                        Place(reach, *where, waits_for_host=False, after_wait=False)
                    )
        reach = max(end(work), reach if reach < float("inf") else 0.0)
    return found


def _outermost_ops(document: Document) -> dict[tuple[Any, Any], list[Event]]:
    """The operations and calls of each thread that are in no other, by start."""
    result: dict[tuple[Any, Any], list[Event]] = {}
    ops = spans(document, "cpu_op", *CALLS)
    for op in sorted(ops, key=lambda e: (e["ts"], -e["dur"])):
        mine = result.setdefault((op["pid"], op["tid"]), [])
        if not mine or op["ts"] >= end(mine[-1]):
            mine.append(op)
    return result


def _open(ops: list[Event], time: float) -> Event | None:
    at = bisect_right(ops, time, key=lambda e: e["ts"]) - 1
    return ops[at] if at >= 0 and time <= end(ops[at]) else None


def moved(document: Document, at: float, by: float) -> Document:
    """The document with room made: what starts at a moment or later moves, what is open lasts."""
    events = []
    for event in document["traceEvents"]:
        if event["ph"] == "X" and event["ts"] < at < end(event):
            event = event | {"dur": event["dur"] + by}
        elif event.get("ts", 0) >= at and event["ph"] != "M":
            event = event | {"ts": event["ts"] + by}
        events.append(event)
    return document | {"traceEvents": events}


def tensor(kind: str, *shape: int) -> Shape:
    """A contiguous tensor."""
    return kind, [*shape], [math.prod(shape[at + 1 :]) for at in range(len(shape))]


class Room:
    """What a problem does in the room made for it; times count from its beginning.

    Args:
        place: where it is.
        cost: how long it is.
        document: whose habits it follows.
    """

    def __init__(self, document: Document, place: Place, cost: float) -> None:
        self.place = place
        self.cost = cost
        self.amd = any(
            call["name"].startswith("hip") for call in spans(document, *CALLS)
        )
        device = str((document.get("deviceProperties") or [{}])[0].get("name"))
        rates = [rates for name, rates in RATES.items() if name in device]
        self.rates = rates[0] if rates else None
        self.events: list[Event] = []
        self._ids = count(900_000_000)
        self._gpu_free = 10.0

    def span(self, cat: str, name: str, start: float, dur: float, **args: Any) -> None:
        """A host event."""
        pid, tid = self.place.host
        args = {"External id": next(self._ids)} | args
        self.events.append(self._event(cat, name, start, dur, pid, tid, args))

    def op(
        self, name: str, start: float, dur: float, *tensors: Shape, **args: Any
    ) -> None:
        """An operation on tensors."""
        said = {
            "Input Dims": [shape for _, shape, _ in tensors],
            "Input type": [kind for kind, *_ in tensors],
            "Input Strides": [strides for *_, strides in tensors],
            "Concrete Inputs": ["" for _ in tensors],
        }
        self.span("cpu_op", name, start, dur, **said | args)

    def call(self, name: str, start: float, dur: float) -> int:
        """A runtime call, by its CUDA name; its correlation."""
        number = next(self._ids)
        if self.amd:
            name = name.replace("cuda", "hip")
        self.span("cuda_runtime", name, start, dur, correlation=number)
        return number

    def work(
        self, cat: str, name: str, start: float, dur: float, call: int, **args: Any
    ) -> None:
        """A GPU event of a call."""
        pid, tid = self.place.gpu
        tid = args.pop("stream", tid)
        said = {"device": pid, "stream": tid, "correlation": call} | args
        self.events.append(self._event(cat, name, start, dur, pid, tid, said))
        self._gpu_free = start + dur

    def kernels(self, unit: list[tuple[str, list[Shape], str, float]]) -> None:
        """Operations with a kernel each, one after the other until the room is full.

        Args:
            unit: operation, its tensors, its kernel, the kernel's time relative to the others.
        """
        longest = sum(time for *_, time in unit)
        times = max(1, round((self.cost - 10.0) / longest))
        scale = (self.cost - 10.0) / (times * longest)
        for number, (op, tensors, kernel, time) in enumerate(unit * times):
            start = 7.0 * number * min(scale, 1.0)
            self.op(op, start, 6.0, *tensors)
            launched = self.call("cudaLaunchKernel", start + 1.0, 4.0)
            self.work("kernel", kernel, self._gpu_free, time * scale, launched)

    def moving(self, *tensors: Shape) -> float:
        """How long a good kernel takes to move tensors."""
        elements = [math.prod(shape) * _BYTES[kind] for kind, shape, _ in tensors]
        assert self.rates
        return sum(elements) / self.rates[0] + 2.0

    def _event(
        self,
        cat: str,
        name: str,
        start: float,
        dur: float,
        pid: Any,
        tid: Any,
        args: Any,
    ) -> Event:
        event = {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": pid,
            "tid": tid,
            "args": args,
        }
        return event | {"ts": self.place.at + start, "dur": dur}


def with_problem(
    document: Document, place: Place, cost: float, problem: Callable[[Room], None]
) -> Document:
    """The document with a problem of a cost at a place."""
    room = Room(document, place, cost)
    problem(room)
    changed = moved(document, place.at, cost)
    return changed | {"traceEvents": [*changed["traceEvents"], *room.events]}


def moments(document: Document, ident: str) -> Iterator[float]:
    """When something that is there already only has to last longer, to be a problem."""
    work = sorted(spans(document, *GPU), key=lambda e: e["ts"])
    first = work[0]["ts"]
    last = work[-1]["ts"]

    if ident == "host-bound":
        yield from (
            p.at for p in places(document) if p.waits_for_host and not p.after_wait
        )
        return
    categories, pattern, at = _LASTING[ident]
    for event in spans(document, *categories):
        moment = event["ts"] + at * event["dur"]
        if re.search(pattern, event["name"]) and first < moment < last:
            beside = sum(e["ts"] <= moment <= end(e) for e in work if e is not event)
            if not beside:
                yield moment


_LASTING = {
    "dataloader": (("user_annotation", "cpu_op"), r"^enumerate\(DataLoader\)", 0.7),
    "synchronization": (CALLS, r"^(cuda|hip)(Device|Stream)Synchronize", 0.95),
    "allocator": (CALLS, r"^(cuda|hip)(Malloc|Free)$", 0.5),
    "exposed-communication": (("kernel",), "nccl", 0.5),
    "exposed-copy": (("gpu_memcpy",), "HtoD|HostToDevice|DtoH", 0.5),
}
