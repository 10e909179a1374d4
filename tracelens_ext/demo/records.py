"""What the simulation records: host spans, runtime calls, GPU work and allocations.

Times are integer nanoseconds since the start of the simulation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Category = Literal["cpu_op", "user_annotation", "python_function"]
GpuKind = Literal["kernel", "gpu_memcpy", "gpu_memset"]


@dataclass(slots=True, eq=False)
class HostSpan:
    """An operation, annotation or Python frame on a host thread.

    Attributes:
        ident: its External id, or its Python id for a frame.
        args: arguments beyond the ids, in the order they are written.
    """

    category: Category
    name: str
    tid: int
    start: int
    ident: int
    args: dict[str, object]
    end: int = -1


@dataclass(slots=True, eq=False)
class Call:
    """A runtime or driver call.

    Attributes:
        key: what the simulator called: a key of `Vendor.api`.
        starts_work: whether GPU work carries this call's correlation id.
        op: External id of the innermost operation around the call, if there is one.
    """

    key: str
    tid: int
    start: int
    correlation: int
    op: int | None
    args: dict[str, object]
    starts_work: bool = False
    end: int = -1


@dataclass(slots=True, eq=False)
class GpuSpan:
    """A kernel, copy or fill on a stream.

    Attributes:
        args: arguments beyond device, stream and correlation, in the order they are written.
        linked: whether the launch is in the trace.
        in_graph: whether a graph launch started it.
        annotation: the innermost annotation around its launch.
    """

    kind: GpuKind
    name: str
    stream: int
    start: int
    end: int
    correlation: int
    op: int | None
    args: dict[str, object]
    linked: bool
    in_graph: bool = False
    annotation: HostSpan | None = None


@dataclass(slots=True, eq=False)
class Allocation:
    """Memory taken (positive) or given back (negative), with the totals after it."""

    tid: int
    at: int
    address: int
    nbytes: int
    allocated: int
    reserved: int


@dataclass(slots=True, eq=False)
class Recording:
    """Everything one simulated profiling session has seen, in the order it began.

    Attributes:
        began: when the profiler started.
        ended: when it stopped.
        forward: the innermost forward operation of each sequence number.
        backward: the backward operation of each sequence number.
    """

    began: int = 0
    ended: int = 0
    spans: list[HostSpan] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    gpu: list[GpuSpan] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    forward: dict[int, HostSpan] = field(default_factory=dict)
    backward: dict[int, HostSpan] = field(default_factory=dict)
