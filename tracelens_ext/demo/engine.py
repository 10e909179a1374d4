"""The machine: host threads that take time, and streams that run what the host launched.

Cause before effect, always. A host thread has a clock that every operation moves on. A launch
puts work on a stream; the work starts no sooner than the launch, the end of the work before it
on the stream, and the events the stream was told to wait for. A synchronisation moves the host's
clock to the end of the work. So nesting, correlation and every idle gap come out right by
construction, and nothing has to be arranged afterwards.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from tracelens_ext.demo.allocator import Allocator, Block
from tracelens_ext.demo.arguments import (
    blocks_for,
    copy_call_arguments,
    kernel_arguments,
    launch_arguments,
)
from tracelens_ext.demo.kernels import kernels_for
from tracelens_ext.demo.records import (
    Allocation,
    Call,
    Category,
    GpuKind,
    GpuSpan,
    HostSpan,
    Recording,
)
from tracelens_ext.demo.tensors import Argument, input_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracelens_ext.demo.vendors import Vendor

PROCESS = 41870
MAIN_THREAD = PROCESS
AUTOGRAD_THREAD = 42513

MEMSET = "graph_memset"

_HOST_SPREAD = 0.15
_GPU_SPREAD = 0.03
# After the work it waits for has ended, a blocked thread takes this long to go on.
_WAKE_US = 4.0


@dataclass(slots=True, eq=False)
class HostThread:
    """A host thread: its clock, and the spans that are open on it, outermost first."""

    tid: int
    now: int = 0
    open: dict[Category, list[HostSpan]] = field(
        default_factory=lambda: {"cpu_op": [], "user_annotation": [], "python_function": []}
    )

    def innermost(self, category: Category) -> HostSpan | None:
        """The innermost open span of a category."""
        spans = self.open[category]
        return spans[-1] if spans else None


@dataclass(slots=True, eq=False)
class Stream:
    """A queue of GPU work that runs in order: when it is free, and what it must wait for."""

    ident: int
    free_at: int = 0
    not_before: int = 0


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One node of a captured graph.

    Attributes:
        role: the kernels it launches; `MEMSET` is a memset, for which HIP has a kernel.
        us: device time.
        elements: how many elements it works on; bytes for a memset.
    """

    role: str
    us: float
    elements: int


class Simulator:
    """One process that drives one device, under a profiler.

    Args:
        vendor: the machine.
        seed: of the small variations in every duration.
    """

    def __init__(self, vendor: Vendor, seed: int) -> None:
        self.vendor = vendor
        self.roles = kernels_for(vendor.key)
        self.recording = Recording()
        self.main = HostThread(MAIN_THREAD)
        self.autograd = HostThread(AUTOGRAD_THREAD)
        self.thread = self.main
        self.compute = Stream(vendor.compute_stream)
        self.comm = Stream(vendor.comm_stream)
        self.copies = Stream(vendor.copy_stream)
        self._random = Random(f"tracelens-ext demo {seed}")  # noqa: S311 - not for secrets
        self._memory = Allocator()
        self._profiling = False
        self._next_external = 4097
        self._next_correlation = 51200
        self._next_python = 1

    # The profiler ---------------------------------------------------------------------------

    def start_profiler(self) -> None:
        """Begin to record: what is launched from here on; what is queued runs on unlinked."""
        self._profiling = True
        self.recording.began = self.thread.now
        self.spend(180.0)

    def stop_profiler(self) -> Recording:
        """End the recording and hand it over; work that had started before it is dropped."""
        self.recording.ended = self.thread.now
        began = self.recording.began
        self.recording.gpu = [work for work in self.recording.gpu if work.start >= began]
        self._profiling = False
        return self.recording

    # The host -------------------------------------------------------------------------------

    def spend(self, us: float) -> None:
        """Let time pass on the current host thread."""
        self.thread.now += self._vary(us, _HOST_SPREAD)

    @contextmanager
    def op(
        self,
        name: str,
        inputs: Sequence[Argument] = (),
        *,
        us: float = 2.4,
        sequence: int | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> Iterator[HostSpan]:
        """A CPU operation around what happens inside; `us` is what it takes by itself."""
        args: dict[str, object] = {}
        backward = self.thread is self.autograd
        if sequence is not None:
            args = {"Sequence number": sequence, "Fwd thread id": 1 if backward else 0}
        args |= input_arguments(inputs)
        args |= extra or {}
        with self._span("cpu_op", name, args, us) as span:
            if sequence is not None and self._profiling:
                links = self.recording.backward if backward else self.recording.forward
                links[sequence] = span
            yield span

    @contextmanager
    def annotation(self, name: str, us: float = 3.0) -> Iterator[HostSpan]:
        """A ``record_function`` range around what happens inside."""
        with self._span("user_annotation", name, {}, us) as span:
            yield span

    @contextmanager
    def frame(self, name: str, us: float = 1.1, module: int | None = None) -> Iterator[HostSpan]:
        """A Python frame around what happens inside."""
        parent = self.thread.innermost("python_function")
        args: dict[str, object] = {"Python parent id": parent.ident if parent else None}
        if module is not None:
            args["Python module id"] = module
        with self._span("python_function", name, args, us) as span:
            yield span

    @contextmanager
    def on_thread(self, thread: HostThread) -> Iterator[None]:
        """Let another thread work while the current one waits for it."""
        caller = self.thread
        thread.now = max(thread.now, caller.now)
        self.thread = thread
        self.spend(12.0)
        yield
        self.thread = caller
        caller.now = thread.now
        self.spend(9.0)

    # Memory ---------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Block:
        """Take device memory."""
        block = self._memory.take(nbytes)
        self._note_memory(block.address, block.nbytes)
        return block

    def release(self, block: Block) -> None:
        """Give device memory back."""
        self._memory.give_back(block)
        self._note_memory(block.address, -block.nbytes)

    # The device -----------------------------------------------------------------------------

    def launch(
        self,
        role: str,
        us: float,
        elements: int = 1,
        *,
        stream: Stream | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """Launch a role's kernels, which share `us` of device time, on a stream (compute)."""
        for kernel, share in self.roles[role]:
            grid = blocks_for(kernel, elements)
            call = self._call(kernel.launcher, launch_arguments(self.vendor, kernel, grid))
            args = kernel_arguments(self.vendor, kernel, grid)
            args |= extra or {}
            self._enqueue("kernel", kernel.name, stream or self.compute, us * share, call, args)

    def launch_graph(self, nodes: Sequence[GraphNode]) -> None:
        """Launch a captured graph on the compute stream: one call, one id for all its work."""
        cost = self.vendor.api["graph_launch"].cost_us + self.vendor.graph_node_us * len(nodes)
        call = self._call("graph_launch", {}, us=cost)
        gap = self.vendor.graph_gap_us
        for node in nodes:
            if node.role == MEMSET and node.role not in self.roles:
                self._enqueue_fill(node.elements, self.compute, call, graph_gap=gap)
                continue
            for kernel, share in self.roles[node.role]:
                grid = blocks_for(kernel, node.elements)
                args = kernel_arguments(self.vendor, kernel, grid, graph=True)
                us = node.us * share
                self._enqueue("kernel", kernel.name, self.compute, us, call, args, graph_gap=gap)

    def copy(
        self,
        direction: str,
        nbytes: int,
        *,
        stream: Stream | None = None,
        pinned: bool = True,
        api: str = "memcpy",
    ) -> GpuSpan:
        """Queue a copy: ``HtoD``, ``DtoH`` or ``DtoD``."""
        call = self._call(api, copy_call_arguments(self.vendor, direction, nbytes))
        host = self.vendor.memory_kinds[0 if pinned else 1]
        ends = {"H": host, "D": "Device"}
        name = f"Memcpy {direction} ({ends[direction[0]]} -> {ends[direction[3]]})"
        if direction == "DtoD":
            us = self.vendor.traffic_us(2 * nbytes)
        else:
            us = nbytes / (self.vendor.host_copy_gbps * 1e3) + 1.2
        args: dict[str, object] = {"kind": direction} if self.vendor.key == "amd" else {}
        args["bytes"] = nbytes
        work = self._enqueue("gpu_memcpy", name, stream or self.compute, us, call, args)
        work.args["memory bandwidth (GB/s)"] = nbytes / (work.end - work.start)
        if api == "memcpy_blocking":
            self._wait_until(call, work.end)
        return work

    def fill(self, nbytes: int, *, stream: Stream | None = None) -> None:
        """Queue a memset."""
        self._enqueue_fill(nbytes, stream or self.compute, self._call("memset", {}))

    def read_back(self, nbytes: int) -> None:
        """Copy a result to the host and wait for it, as ``item()`` and ``tolist()`` do."""
        if "memcpy_blocking" in self.vendor.api:
            self.copy("DtoH", nbytes, api="memcpy_blocking")
            return
        self.copy("DtoH", nbytes)
        self.synchronize(self.compute)

    def runtime(self, key: str) -> None:
        """A runtime call that starts nothing on the device."""
        self._call(key, {})

    def order(self, first: Stream, then: Stream) -> None:
        """Make one stream wait for what is queued on another (event record, stream wait)."""
        record = self._call("event_record", {})
        self._call("stream_wait", {})
        then.not_before = max(then.not_before, first.free_at, record.end)

    def synchronize(self, stream: Stream | None = None) -> None:
        """Block the host until a stream, or without one the device, has run dry."""
        call = self._call("stream_sync" if stream else "device_sync", {})
        streams = [stream] if stream else [self.compute, self.comm, self.copies]
        self._wait_until(call, max(queue.free_at for queue in streams))

    # Inside ---------------------------------------------------------------------------------

    def _vary(self, us: float, spread: float) -> int:
        """Nanoseconds around a duration, never less than one."""
        return max(1, int(us * 1000 * (1.0 + spread * (2.0 * self._random.random() - 1.0))))

    @contextmanager
    def _span(
        self, category: Category, name: str, args: dict[str, object], us: float
    ) -> Iterator[HostSpan]:
        """Open a span, spend half its own time before what is inside and half after."""
        thread = self.thread
        if category == "python_function":
            ident, self._next_python = self._next_python, self._next_python + 1
        else:
            ident, self._next_external = self._next_external, self._next_external + 1
        span = HostSpan(category, name, thread.tid, thread.now, ident, args)
        thread.open[category].append(span)
        if self._profiling:
            self.recording.spans.append(span)
        self.spend(us / 2)
        yield span
        self.spend(us / 2)
        span.end = thread.now
        thread.open[category].pop()
        self.spend(0.25)

    def _call(self, key: str, args: dict[str, object], us: float | None = None) -> Call:
        """Make a runtime call on the current thread."""
        thread = self.thread
        op = thread.innermost("cpu_op")
        call = Call(
            key, thread.tid, thread.now, self._next_correlation, op.ident if op else None, args
        )
        self._next_correlation += 1
        if self._profiling:
            self.recording.calls.append(call)
        self.spend(self.vendor.api[key].cost_us if us is None else us)
        call.end = thread.now
        self.spend(0.3)
        return call

    def _wait_until(self, call: Call, moment: int) -> None:
        """Let a call last until some work has ended."""
        awake = moment + self._vary(_WAKE_US, _HOST_SPREAD)
        call.end = max(call.end, awake)
        self.thread.now = call.end
        self.spend(0.3)

    def _enqueue(
        self,
        kind: GpuKind,
        name: str,
        stream: Stream,
        us: float,
        call: Call,
        args: dict[str, object],
        *,
        graph_gap: float | None = None,
    ) -> GpuSpan:
        """Put work on a stream and run it as soon as it may run."""
        gap = self.vendor.stream_gap_us if graph_gap is None else graph_gap
        start = max(
            call.start + self._vary(self.vendor.launch_latency_us, _HOST_SPREAD),
            stream.free_at + self._vary(gap, _HOST_SPREAD),
            stream.not_before,
        )
        end = start + self._vary(max(us, self.vendor.floor_us), _GPU_SPREAD)
        stream.free_at = end
        call.starts_work = True
        work = GpuSpan(
            kind,
            name,
            stream.ident,
            start,
            end,
            call.correlation,
            call.op if self._profiling else None,
            args,
            linked=self._profiling,
            in_graph=graph_gap is not None,
            annotation=self.thread.innermost("user_annotation") if self._profiling else None,
        )
        self.recording.gpu.append(work)
        return work

    def _enqueue_fill(
        self, nbytes: int, stream: Stream, call: Call, *, graph_gap: float | None = None
    ) -> None:
        us = self.vendor.traffic_us(nbytes)
        args: dict[str, object] = {"kind": "FillBuffer"} if self.vendor.key == "amd" else {}
        args["bytes"] = nbytes
        name = "Memset (Device)"
        work = self._enqueue("gpu_memset", name, stream, us, call, args, graph_gap=graph_gap)
        work.args["memory bandwidth (GB/s)"] = nbytes / (work.end - work.start)

    def _note_memory(self, address: int, nbytes: int) -> None:
        if self._profiling:
            memory = self._memory
            self.recording.allocations.append(
                Allocation(
                    self.thread.tid,
                    self.thread.now,
                    address,
                    nbytes,
                    memory.allocated,
                    memory.reserved,
                )
            )
        self.spend(0.2)
