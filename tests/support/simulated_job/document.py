"""What an engine recorded as trace events: the structure and order in which Kineto writes them."""

from __future__ import annotations

import hashlib
from itertools import count
from typing import TYPE_CHECKING, Any

from tests.support.simulated_job.machine import DEVICES_PER_NODE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.simulated_job.engine import Engine, Event
    from tests.support.simulated_job.schedule import Job

MARKER = "tracelens_ext_demo"

# Time stamps count microseconds from the base time, as PyTorch 2.3 and later write them. At
# this size a double still holds every nanosecond.
_BASE_TIME_NS = 1_748_736_000_000_000_000
_START_NS = 1_204_311_582_417_306
# What the first span of the profiler covers besides the recording.
_LEAD_NS = 152_400


def trace_document(job: Job, settings: dict[str, object]) -> dict[str, Any]:
    """The whole trace, its keys in Kineto's order."""
    engine = job.engine
    groups = list(job.groups.values())
    data = engine.machine.data
    vendor = settings["vendor"]
    digest = hashlib.sha256(f"{MARKER} {settings}".encode()).hexdigest()
    return {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": n, **data["device"]} for n in range(DEVICES_PER_NODE)
        ],
        **data["metadata"],
        **job.data["profiler"],
        MARKER: settings,
        "distributedInfo": {
            "backend": "nccl",
            "rank": engine.rank,
            "world_size": groups[0]["pg_size"],
            "pg_count": len(groups),
            "pg_config": groups,
            "nccl_version": "2.26.2",
        },
        "trace_id": digest[:32].upper(),
        "traceEvents": list(_events(engine)),
        "traceName": f"/tmp/demo_{vendor}.json",  # noqa: S108 - a text, not a file
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": _BASE_TIME_NS,
    }


def _events(engine: Engine) -> Iterator[Event]:
    """All events: what PyTorch saw, what the GPU's profiler saw, and the names."""
    recorded = engine.events
    index = count()
    recorded["cpu_op"].sort(key=lambda event: event["tid"])
    arrows = _forward_to_backward(recorded["cpu_op"])
    for kind in ("cpu_op", "memory", "python_function"):
        for event in recorded[kind]:
            event["args"]["Ev Idx"] = next(index)
            yield _timed(event)
            if id(event) in arrows:
                yield _arrow(event, "fwdbwd", *arrows[id(event)])
    started = {work["args"]["correlation"] for work in engine.gpu}
    for call in recorded["calls"]:
        number = call["args"]["correlation"]
        yield _timed(call)
        # Kineto starts an arrow only at calls that start work; the others get a lone end.
        yield _arrow(call, "ac2g", number, "s" if number in started else "f")
    for work in sorted(engine.gpu, key=lambda work: work["ts"]):
        yield _timed(work)
        yield _arrow(work, "ac2g", work["args"]["correlation"], "f")
    yield from map(_timed, engine.annotations.values())
    yield from _names(engine)
    yield from _session(engine)


def _forward_to_backward(ops: list[Event]) -> dict[int, tuple[int, str]]:
    """Number and end of the arrow at an operation: the innermost of a step and of its gradient."""
    ends: dict[str, dict[int, int]] = {"s": {}, "f": {}}
    for op in ops:
        if "Sequence number" in op["args"]:
            phase = "f" if op["args"]["Fwd thread id"] else "s"
            ends[phase][op["args"]["Sequence number"]] = id(op)
    linked = enumerate((number for number in ends["f"] if number in ends["s"]), start=1)
    return {ends[phase][number]: (n, phase) for n, number in linked for phase in "sf"}


def _us(nanoseconds: int) -> float:
    """A moment as the trace writes it."""
    return (_START_NS + nanoseconds) / 1000


def _timed(event: Event) -> Event:
    """The event with its times in microseconds."""
    times = {"ts": _us(event["ts"])} | (
        {"dur": event["dur"] / 1000} if "dur" in event else {}
    )
    return event | times


def _arrow(event: Event, kind: str, ident: int, phase: str) -> Event:
    """One end of an arrow between two events."""
    made = {"ph": phase, "id": ident, "pid": event["pid"], "tid": event["tid"]}
    made |= {"ts": _us(event["ts"]), "cat": kind, "name": kind}
    return made | ({"bp": "e"} if phase == "f" else {})


def _names(engine: Engine) -> Iterator[Event]:
    """What processes, devices, threads and streams are called, and their order on screen."""

    def named(kind: str, pid: int, tid: int, key: str, value: object) -> Event:
        made: Event = {
            "name": kind,
            "ph": "M",
            "ts": _us(engine.began),
            "pid": pid,
            "tid": tid,
        }
        return made | {"args": {key: value}}

    devices = DEVICES_PER_NODE + engine.machine.data["first_device"]
    processes = [(engine.process, "CPU", engine.process)]
    processes += [(i, f"GPU {i}", 5_000_000 + i) for i in range(devices)]
    for pid, label, order in processes:
        yield named("process_name", pid, 0, "name", "python3")
        yield named("process_labels", pid, 0, "labels", label)
        yield named("process_sort_index", pid, 0, "sort_index", order)
    streams = sorted({work["tid"] for work in engine.gpu})
    threads = [(engine.device, stream, f"stream {stream} ") for stream in streams]
    for thread, label in ((engine.main, "python3"), (engine.autograd, "pt_autograd_0")):
        threads.append((engine.process, thread.tid, f"thread {thread.tid} ({label})"))
    for pid, tid, name in threads:
        yield named("thread_name", pid, tid, "name", name)
        yield named("thread_sort_index", pid, tid, "sort_index", tid)


def _session(engine: Engine) -> Iterator[Event]:
    """The profiler's own span and the two marks of its window."""
    began = engine.began - _LEAD_NS
    ended = engine.ended
    spans: Event = {
        "pid": "Spans",
        "tid": "PyTorch Profiler",
        "name": "PyTorch Profiler (0)",
    }
    times = {"ts": _us(began), "dur": (ended - began) / 1000}
    yield {"ph": "X", "cat": "Trace", **times, **spans, "args": {"Op count": 0}}
    order: Event = {
        "name": "process_sort_index",
        "ph": "M",
        "ts": _us(began),
        "pid": "Spans",
    }
    yield order | {"tid": 0, "args": {"sort_index": 536_870_912}}
    mark: Event = {"name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g"}
    yield mark | {"pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": _us(began)}
    mark = {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": ""}
    yield mark | {"ts": _us(ended + _LEAD_NS)}
