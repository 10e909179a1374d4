"""The machine: host threads that take time, and streams that run what the host launched.

Cause before effect, always. A host thread has a clock that every operation moves on. A launch
puts work on a stream; the work starts no sooner than the launch, the end of the work before it
on the stream, and the work that the stream was told to wait for. A synchronization moves the
host's clock to the end of the work. So nesting, correlation and every idle gap come out right.

Times are integer nanoseconds since the start of the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from tests.support.simulated_job.machine import DEVICES_PER_NODE
from tests.support.simulated_job.tensors import Inputs, Tensor, input_arguments

if TYPE_CHECKING:
    from tests.support.simulated_job.machine import Machine

Event = dict[str, Any]
Args = Mapping[str, object]
_NONE: Args = {}

_PROCESS = 41870
_SEGMENT = 20 << 20
_DEVICE_MEMORY = 0x7F20_0000_0000
_HOST_SPREAD = 0.15
_GPU_SPREAD = 0.03
# After the work it waits for has ended, a blocked thread takes this long to go on.
_WAKE_US = 4.0


@dataclass(slots=True)
class HostThread:
    """A host thread: its clock, and the spans that are open on it, by category."""

    tid: int
    now: int = 0
    open: dict[str, list[Event]] = field(
        default_factory=lambda: {
            "cpu_op": [],
            "user_annotation": [],
            "python_function": [],
        }
    )


class Engine:
    """One process that drives one device, under a profiler; keeps the events it records.

    Args:
        machine: whose device and profiler.
        seed: of the small variations in every duration.
        rank: which rank of the job it is; its node's device of that number.
        pace: how many times slower its device is than usual, and the largest share by which it
            may be faster at times.
        last_ends: when each collective ends on the rank that comes last to it, and so on all.

    Attributes:
        events: what the host did: ``cpu_op`` (with annotations), ``python_function``, ``calls``
            and ``memory``, in the order they began.
        gpu: all GPU work, in the order of the launches.
        annotations: the extent of each annotation on each stream.
        collective_ends: when each collective ended.
    """

    def __init__(
        self,
        machine: Machine,
        seed: int,
        rank: int = 0,
        pace: tuple[float, float] = (1.0, 0.0),
        last_ends: Sequence[int] = (),
    ) -> None:
        self.machine = machine
        self.rank = rank
        self._pace = pace
        self._last_ends = last_ends
        self.device = machine.data["first_device"] + rank % DEVICES_PER_NODE
        self.process = _PROCESS + rank
        self.main = HostThread(self.process)
        self.autograd = HostThread(self.process + 643)
        self.thread = self.main
        self.streams: dict[str, int] = machine.data["streams"]
        self._free_at = dict.fromkeys(self.streams, 0)
        self._not_before = dict.fromkeys(self.streams, 0)
        kinds = ("cpu_op", "python_function", "calls", "memory")
        self.events: dict[str, list[Event]] = {kind: [] for kind in kinds}
        self.gpu: list[Event] = []
        self.annotations: dict[tuple[int, int], Event] = {}
        self.collective_ends: list[int] = []
        self.began = self.ended = 0
        self._recording = False
        # All ranks of a job draw the same variations, so that the slowest is so everywhere.
        self._random = Random(f"tracelens-ext demo {seed}")
        self._rank_random = Random(f"{seed} {rank}")
        self._external = count(4097)
        self._correlation = count(51200)
        self._python = count(1)
        self._allocated = 0
        self._reserved = 0
        self._next_address = _DEVICE_MEMORY
        self._idle_blocks: dict[int, list[int]] = {}

    def start_profiler(self) -> None:
        """Begin to record; what is queued runs on unlinked."""
        self._recording = True
        self.began = self.thread.now
        self.spend(180.0)

    @property
    def settled(self) -> int:
        """When the host is done with what it does, and the device with what it was given."""
        return max(self.thread.now, *self._free_at.values())

    def stop_profiler(self) -> None:
        """End the recording; work that had started before it is dropped."""
        self.ended = self.thread.now
        self.gpu = [work for work in self.gpu if work["ts"] >= self.began]
        self._recording = False

    def spend(self, us: float) -> None:
        """Let time pass on the current host thread."""
        self.thread.now += self._vary(us, _HOST_SPREAD)

    @contextmanager
    def span(
        self, cat: str, name: str, us: float, args: Args = _NONE
    ) -> Iterator[None]:
        """A span around what happens inside, which itself takes `us`: half before, half after."""
        thread = self.thread
        is_frame = cat == "python_function"
        around = thread.open[cat]
        ids: dict[str, object]
        if is_frame:
            parent = around[-1]["args"]["Python id"] if around else None
            ids = {"Python parent id": parent, "Python id": next(self._python)}
        else:
            ids = {"External id": next(self._external), "Record function id": 0}
        event = self._event(cat, name, thread.now, {**ids, **args})
        around.append(event)
        if self._recording:
            self.events["python_function" if is_frame else "cpu_op"].append(event)
        self.spend(us / 2)
        yield
        self.spend(us / 2)
        event["dur"] = thread.now - event["ts"]
        around.pop()
        self.spend(0.25)

    @contextmanager
    def op(
        self,
        name: str,
        inputs: Inputs = (),
        us: float = 2.4,
        sequence: int = 0,
        args: Args = _NONE,
    ) -> Iterator[None]:
        """A CPU operation around what happens inside; `us` is what it takes by itself."""
        said: dict[str, object] = {}
        if sequence:
            backward = self.thread is self.autograd
            said = {"Sequence number": sequence, "Fwd thread id": 1 if backward else 0}
        said |= input_arguments(inputs, self.machine.data["fp8"])
        with self.span("cpu_op", name, us, {**said, **args}):
            yield

    def hand_over(self, thread: HostThread) -> None:
        """Let another thread go on while the current one waits for it."""
        thread.now = max(thread.now, self.thread.now)
        self.thread = thread
        self.spend(10.0)

    def call(self, key: str, args: Args = _NONE, us: float = 0.0) -> Event:
        """Make a runtime call on the current thread."""
        api = self.machine.calls[key]
        thread = self.thread
        ids = {}
        if thread.open["cpu_op"]:
            ids = {"External id": thread.open["cpu_op"][-1]["args"]["External id"]}
        ids |= {
            self.machine.data["call_id"]: api["id"],
            "correlation": next(self._correlation),
        }
        cat = api.get("cat", "cuda_runtime")
        event = self._event(cat, api["name"], thread.now, {**ids, **args})
        if self._recording:
            self.events["calls"].append(event)
        self.spend(us or api["us"])
        event["dur"] = thread.now - event["ts"]
        self.spend(0.3)
        return event

    def synchronize(self, *streams: str) -> None:
        """Block the host until a stream, or without one the device, has run dry."""
        call = self.call("stream_sync" if streams else "device_sync")
        self._wait_until(
            call, max(self._free_at[name] for name in streams or self.streams)
        )

    def order(self, first: str, then: str) -> None:
        """Make one stream wait for what is queued on another (event record, stream wait)."""
        record = self.call("event_record")
        self.call("stream_wait")
        after = max(self._free_at[first], record["ts"] + record["dur"])
        self._not_before[then] = max(self._not_before[then], after)

    def allocate(self, tensor: Tensor) -> tuple[int, int]:
        """Take device memory: an idle block of the size, or a new one; its address and size."""
        size = -(-max(1, tensor.nbytes) // 512) * 512
        idle = self._idle_blocks.setdefault(size, [])
        address = idle.pop() if idle else self._next_address
        if address == self._next_address:
            self._next_address += size
            self._reserved = (
                -(-(self._next_address - _DEVICE_MEMORY) // _SEGMENT) * _SEGMENT
            )
        self._note_memory(address, size)
        return address, size

    def release(self, block: tuple[int, int]) -> None:
        """Give device memory back."""
        address, size = block
        self._idle_blocks[size].append(address)
        self._note_memory(address, -size)

    def launch(
        self,
        role: str,
        us: float,
        elements: int,
        on: str = "compute",
        more: Args = _NONE,
        gap: float = 0.0,
    ) -> None:
        """Launch a role's kernels, which share `us` of device time, on a stream.

        After work that it waits for each starts after a gap, as long as usual unless given.
        """
        for kernel in self.machine.kernels[role]:
            if "before" in kernel:
                self.call(kernel["before"])
            shape = self.machine.launch_shape(kernel, elements)
            call = self.call(kernel["api"], self.machine.launch_args(kernel, shape))
            args = {**self.machine.kernel_args(kernel, shape), **more}
            self._enqueue(
                "kernel", kernel["name"], on, us * kernel["share"], call, args, gap
            )

    def launch_graph(self, nodes: Sequence[tuple[str, float, int]]) -> None:
        """Launch a captured graph: one call, one correlation id for all its work.

        Args:
            nodes: role, device time and elements of each; a role without kernels is a memset.
        """
        costs = self.machine.us
        kernels = self.machine.kernels
        us = self.machine.calls["graph_launch"]["us"] + costs["graph_node"] * len(nodes)
        call = self.call("graph_launch", us=us)
        for role, us, elements in nodes:
            if role not in kernels:
                self._move("gpu_memset", "Memset (Device)", elements, call)
            for kernel in kernels.get(role, ()):
                shape = self.machine.launch_shape(kernel, elements)
                args = self.machine.kernel_args(kernel, shape, graph=True)
                name = kernel["name"]
                part = us * kernel["share"]
                self._enqueue(
                    "kernel", name, "compute", part, call, args, costs["graph_gap"]
                )

    def copy(
        self,
        nbytes: int,
        direction: str,
        stream: str = "compute",
        host: str = "pageable",
    ) -> None:
        """Queue a copy, ``HtoD`` or ``DtoH``; and wait for it unless the memory is ``pinned``."""
        waits = host == "pageable"
        key = (
            "memcpy_blocking"
            if "memcpy_blocking" in self.machine.calls and waits
            else "memcpy"
        )
        call = self.call(key)
        ends = {"H": self.machine.data["host_memory"][host], "D": "Device"}
        name = f"Memcpy {direction} ({ends[direction[0]]} -> {ends[direction[3]]})"
        work = self._move("gpu_memcpy", name, nbytes, call, stream, direction)
        if key == "memcpy_blocking":
            self._wait_until(call, work["ts"] + work["dur"])
        elif waits:
            self.synchronize(stream)

    def fill(self, nbytes: int) -> None:
        """Queue a memset."""
        self._move("gpu_memset", "Memset (Device)", nbytes, self.call("memset"))

    def _vary(self, us: float, spread: float, faster: float = 0.0) -> int:
        """Nanoseconds around a duration, never less than one."""
        varied = us * 1000 * (1 + spread * (2 * self._random.random() - 1))
        return max(1, int(varied * (1 - faster)))

    def _event(self, cat: str, name: str, ts: int, args: dict[str, Any]) -> Event:
        event: Event = {"ph": "X", "cat": cat, "name": name, "pid": self.process}
        return event | {"tid": self.thread.tid, "ts": ts, "dur": 0, "args": args}

    def _wait_until(self, call: Event, moment: int) -> None:
        """Let a call last until some work has ended."""
        awake = moment + self._vary(_WAKE_US, _HOST_SPREAD)
        self.thread.now = max(call["ts"] + call["dur"], awake)
        call["dur"] = self.thread.now - call["ts"]
        self.spend(0.3)

    def _move(
        self,
        cat: str,
        name: str,
        nbytes: int,
        call: Event,
        on: str = "compute",
        kind: str = "",
    ) -> Event:
        """Put a copy or, without its `kind`, a fill on a stream."""
        us = self.machine.traffic_us(nbytes, "host" if kind else "memory")
        args: dict[str, object] = (
            {"kind": kind or "FillBuffer"} if self.machine.is_amd else {}
        )
        work = self._enqueue(cat, name, on, us, call, args | {"bytes": nbytes})
        work["args"]["memory bandwidth (GB/s)"] = nbytes / work["dur"]
        return work

    def _enqueue(
        self,
        cat: str,
        name: str,
        on: str,
        us: float,
        call: Event,
        args: Args,
        gap: float = 0.0,
    ) -> Event:
        """Put work on a stream and run it as soon as it may run."""
        number = self.streams[on]
        costs = self.machine.us
        ids = call["args"]
        launched = call["ts"] + self._vary(costs["launch_latency"], _HOST_SPREAD)
        free = self._free_at[on] + self._vary(gap or costs["stream_gap"], _HOST_SPREAD)
        start = max(launched, free, self._not_before[on])
        slower, faster = self._pace if on != "comm" else (1.0, 0.0)
        us = slower * max(us, costs["shortest_kernel"])
        end = start + self._vary(us, _GPU_SPREAD, faster * self._rank_random.random())
        if on == "comm":
            before = len(self.collective_ends)
            end = max([end, *self._last_ends[before : before + 1]])
            self.collective_ends.append(end)
        self._free_at[on] = end
        said: dict[str, Any] = {}
        if self._recording and "External id" in ids:
            said["External id"] = ids["External id"]
        if cat == "kernel" and not self.machine.is_amd:
            said["queued"] = 0
        said |= {"device": self.device} | (
            {} if self.machine.is_amd else {"context": 1}
        )
        said |= {"stream": number, "correlation": ids["correlation"], **args}
        event = self._event(cat, name, start, said)
        event |= {"pid": self.device, "tid": number, "dur": end - start}
        self.gpu.append(event)
        # The innermost annotation around the launch spans its work on the stream.
        for around in (
            self.thread.open["user_annotation"][-1:] if self._recording else ()
        ):
            ident = around["args"]["External id"]
            named = {"cat": "gpu_user_annotation", "name": around["name"]}
            extent = event | named | {"args": {"External id": ident}}
            extent = self.annotations.setdefault((ident, number), extent)
            extent["dur"] = end - extent["ts"]
        return event

    def _note_memory(self, address: int, nbytes: int) -> None:
        self._allocated += nbytes
        if self._recording:
            event: Event = {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": "[memory]",
            }
            event |= {
                "pid": self.process,
                "tid": self.thread.tid,
                "ts": self.thread.now,
            }
            event["args"] = {
                "Total Reserved": self._reserved,
                "Total Allocated": self._allocated,
                "Bytes": nbytes,
                "Addr": address,
                "Device Id": self.rank % DEVICES_PER_NODE,
                "Device Type": self.machine.data["memory_device_type"],
            }
            self.events["memory"].append(event)
        self.spend(0.2)
