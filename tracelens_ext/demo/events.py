"""A recording as trace events: the structure and order in which Kineto writes them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tracelens_ext.demo.collectives import WORLD_SIZE, group_config
from tracelens_ext.demo.engine import AUTOGRAD_THREAD, MAIN_THREAD, PROCESS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens_ext.demo.records import Allocation, Call, GpuSpan, HostSpan, Recording
    from tracelens_ext.demo.vendors import Vendor

Event = dict[str, object]

# Time stamps count microseconds from the base time, as PyTorch 2.3 and later write them. At
# this size a double still holds every nanosecond.
_BASE_TIME_NS = 1_748_736_000_000_000_000
_START_NS = 1_204_311_582_417_306
# What the first span of the profiler covers besides the recording.
_LEAD_NS = 152_400
_DEVICE_SORT_INDEX = 5_000_000
_SPANS_SORT_INDEX = 536_870_912

MARKER = "tracelens_ext_demo"


def trace_document(
    recording: Recording, vendor: Vendor, *, seed: int, steps: int
) -> dict[str, object]:
    """The whole trace, its keys in Kineto's order."""
    label = f"{MARKER} {vendor.key} {seed} {steps}"
    digest = hashlib.sha256(label.encode()).hexdigest()
    return {
        "schemaVersion": 1,
        "deviceProperties": [dict(device) for device in vendor.device_properties],
        **vendor.metadata,
        "with_flops": 1,
        "with_modules": 1,
        "record_shapes": 1,
        "profile_memory": 1,
        "with_stack": 1,
        MARKER: {"vendor": vendor.key, "seed": seed, "steps": steps},
        "distributedInfo": {
            "backend": "nccl",
            "rank": 0,
            "world_size": WORLD_SIZE,
            "pg_count": len(group_config()),
            "pg_config": group_config(),
            "nccl_version": "2.26.2",
        },
        "trace_id": digest[:32].upper(),
        "traceEvents": _Writer(recording, vendor).events(),
        "traceName": f"/tmp/demo_{vendor.key}.json",  # noqa: S108 - a text, not a file
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": _BASE_TIME_NS,
    }


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000


def _ts(nanoseconds: int) -> float:
    return (_START_NS + nanoseconds) / 1000


class _Writer:
    """Turns the records of one recording into events."""

    def __init__(self, recording: Recording, vendor: Vendor) -> None:
        self._recording = recording
        self._vendor = vendor
        self._next_index = 0
        linked = [number for number in recording.backward if number in recording.forward]
        self._flow_ids = {number: index for index, number in enumerate(linked, start=1)}

    def events(self) -> list[Event]:
        """All events: what PyTorch saw, what the GPU's profiler saw, and the names."""
        recording = self._recording
        spans = [span for span in recording.spans if span.category != "python_function"]
        events: list[Event] = []
        for tid in (MAIN_THREAD, AUTOGRAD_THREAD):
            for span in spans:
                if span.tid == tid:
                    events.extend(self._operation(span))
        events.extend(self._allocation(item) for item in recording.allocations)
        events.extend(
            self._frame(span) for span in recording.spans if span.category == "python_function"
        )
        for call in recording.calls:
            events.extend(self._call(call))
        for work in sorted(recording.gpu, key=lambda item: item.start):
            events.extend(self._gpu(work))
        events.extend(self._gpu_annotations())
        events.extend(self._names())
        events.extend(self._session())
        return events

    def _index(self) -> int:
        index = self._next_index
        self._next_index += 1
        return index

    def _host(self, span: HostSpan, args: dict[str, object]) -> Event:
        return {
            "ph": "X",
            "cat": span.category,
            "name": span.name,
            "pid": PROCESS,
            "tid": span.tid,
            "ts": _ts(span.start),
            "dur": _us(span.end - span.start),
            "args": {**args, "Ev Idx": self._index()},
        }

    def _operation(self, span: HostSpan) -> Iterator[Event]:
        """An operation or annotation, and the link between forward and backward at its start."""
        yield self._host(span, {"External id": span.ident, "Record function id": 0, **span.args})
        number = span.args.get("Sequence number")
        if not isinstance(number, int) or number not in self._flow_ids:
            return
        for phase, links in (("s", self._recording.forward), ("f", self._recording.backward)):
            if links[number] is span:
                yield _flow(phase, "fwdbwd", self._flow_ids[number], PROCESS, span.tid, span.start)

    def _frame(self, span: HostSpan) -> Event:
        args = dict(span.args)
        parent = args.pop("Python parent id")
        return self._host(span, {"Python parent id": parent, "Python id": span.ident, **args})

    def _allocation(self, item: Allocation) -> Event:
        return {
            "ph": "i",
            "cat": "cpu_instant_event",
            "s": "t",
            "name": "[memory]",
            "pid": PROCESS,
            "tid": item.tid,
            "ts": _ts(item.at),
            "args": {
                "Total Reserved": item.reserved,
                "Total Allocated": item.allocated,
                "Bytes": item.nbytes,
                "Addr": item.address,
                "Device Id": 0,
                "Device Type": self._vendor.memory_device_type,
                "Ev Idx": self._index(),
            },
        }

    def _call(self, call: Call) -> Iterator[Event]:
        api = self._vendor.api[call.key]
        rest = dict(call.args)
        args: dict[str, object] = {}
        if call.op is not None:
            args["External id"] = call.op
        if "kernel" in rest:
            args["kernel"] = rest.pop("kernel")
        args |= {self._vendor.api_key: api.ident, "correlation": call.correlation, **rest}
        yield {
            "ph": "X",
            "cat": api.category,
            "name": api.name,
            "pid": PROCESS,
            "tid": call.tid,
            "ts": _ts(call.start),
            "dur": _us(call.end - call.start),
            "args": args,
        }
        # Kineto starts an arrow only at calls that start work; the others get a lone end.
        phase = "s" if call.starts_work else "f"
        yield _flow(phase, "ac2g", call.correlation, PROCESS, call.tid, call.start)

    def _gpu(self, work: GpuSpan) -> Iterator[Event]:
        device = self._vendor.device
        args: dict[str, object] = {}
        # A HIP graph's kernels carry the launch's correlation id and no External id.
        if work.op is not None:
            args["External id"] = work.op
        if self._vendor.key == "nvidia":
            if work.kind == "kernel":
                args["queued"] = 0
            args |= {"device": device, "context": 1}
        else:
            args["device"] = device
        args |= {"stream": work.stream, "correlation": work.correlation, **work.args}
        yield {
            "ph": "X",
            "cat": work.kind,
            "name": work.name,
            "pid": device,
            "tid": work.stream,
            "ts": _ts(work.start),
            "dur": _us(work.end - work.start),
            "args": args,
        }
        yield _flow("f", "ac2g", work.correlation, device, work.stream, work.start)

    def _gpu_annotations(self) -> Iterator[Event]:
        """Each annotation's extent on each stream: from its first kernel to its last."""
        extents: dict[tuple[int, int], tuple[HostSpan, int, int]] = {}
        for work in self._recording.gpu:
            if work.annotation is None:
                continue
            key = (work.annotation.ident, work.stream)
            _, start, end = extents.get(key, (work.annotation, work.start, work.end))
            extents[key] = (work.annotation, min(start, work.start), max(end, work.end))
        for (ident, stream), (annotation, start, end) in extents.items():
            yield {
                "ph": "X",
                "cat": "gpu_user_annotation",
                "name": annotation.name,
                "pid": self._vendor.device,
                "tid": stream,
                "ts": _ts(start),
                "dur": _us(end - start),
                "args": {"External id": ident},
            }

    def _names(self) -> Iterator[Event]:
        """What processes, devices, threads and streams are called, and their order on screen."""
        devices = len(self._vendor.device_properties) + self._vendor.device
        processes = [(PROCESS, "CPU", PROCESS)]
        processes += [(i, f"GPU {i}", _DEVICE_SORT_INDEX + i) for i in range(devices)]
        for pid, label, order in processes:
            yield self._name("process_name", pid, 0, "name", "python3")
            yield self._name("process_labels", pid, 0, "labels", label)
            yield self._name("process_sort_index", pid, 0, "sort_index", order)
        streams = sorted({work.stream for work in self._recording.gpu})
        threads = [(self._vendor.device, stream, f"stream {stream} ") for stream in streams]
        threads += [
            (PROCESS, MAIN_THREAD, f"thread {MAIN_THREAD} (python3)"),
            (PROCESS, AUTOGRAD_THREAD, f"thread {AUTOGRAD_THREAD} (pt_autograd_0)"),
        ]
        for pid, tid, name in threads:
            yield self._name("thread_name", pid, tid, "name", name)
            yield self._name("thread_sort_index", pid, tid, "sort_index", tid)

    def _name(self, kind: str, pid: int, tid: int, key: str, value: object) -> Event:
        moment = _ts(self._recording.began)
        return {
            "name": kind,
            "ph": "M",
            "ts": moment,
            "pid": pid,
            "tid": tid,
            "args": {key: value},
        }

    def _session(self) -> Iterator[Event]:
        """The profiler's own span and the two marks of its window."""
        began = self._recording.began - _LEAD_NS
        ended = self._recording.ended
        yield {
            "ph": "X",
            "cat": "Trace",
            "ts": _ts(began),
            "dur": _us(ended - began),
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "name": "PyTorch Profiler (0)",
            "args": {"Op count": 0},
        }
        yield {
            "name": "process_sort_index",
            "ph": "M",
            "ts": _ts(began),
            "pid": "Spans",
            "tid": 0,
            "args": {"sort_index": _SPANS_SORT_INDEX},
        }
        yield {
            "name": "Iteration Start: PyTorch Profiler",
            "ph": "i",
            "s": "g",
            "pid": "Traces",
            "tid": "Trace PyTorch Profiler",
            "ts": _ts(began),
        }
        yield {
            "name": "Record Window End",
            "ph": "i",
            "s": "g",
            "pid": "",
            "tid": "",
            "ts": _ts(ended + _LEAD_NS),
        }


def _flow(phase: str, kind: str, ident: int, pid: int, tid: int, start: int) -> Event:
    """One end of an arrow between two events."""
    event: Event = {
        "ph": phase,
        "id": ident,
        "pid": pid,
        "tid": tid,
        "ts": _ts(start),
        "cat": kind,
        "name": kind,
    }
    if phase == "f":
        event["bp"] = "e"
    return event
