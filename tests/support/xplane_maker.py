"""Small profiles of JAX made by hand: xplane files, and the JSON for trace viewers."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from tracelens_ext.readers import read_trace
from tracelens_ext.readers.builder import Interner
from tracelens_ext.readers.xplane.messages import message_class

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.make_trace import Document
    from tracelens_ext.trace import Trace

HOST = "/host:CPU"
GPU = "/device:GPU:0"
BF16 = 16
F32 = 11
U8 = 6
TUPLE = 13
_DETAILS = {"gpu_memcpy": "memcpy_details", "gpu_memset": "memset_details"}
_LINE = 3


def varint(number: int) -> bytes:
    """Return a varint: 7 bits per byte, the lowest first."""
    head = number & 0x7F
    rest = number >> 7
    return bytes([head | 0x80]) + varint(rest) if rest else bytes([head])


def field(number: int, content: bytes) -> bytes:
    """Return an encoded field with bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


class _Plane:
    def __init__(self) -> None:
        self.names: Interner[str] = Interner()
        self.stats: Interner[str] = Interner()
        self.lines: dict[tuple[int, str], list[Any]] = {}
        self.about: dict[str, Any] = {}
        self.programs: dict[str, bytes] = {}

    def stat(self, name: str, value: Any) -> Any:
        """Return a statistic; a text is stored as the name of another statistic, as JAX does."""
        values = {"uint64_value": value}
        if isinstance(value, str):
            values = {"ref_value": self.stats[value] + 1}
        elif isinstance(value, bytes):
            values = {"bytes_value": value}
        return message_class("XStat")(metadata_id=self.stats[name] + 1, **values)

    def content(self, name: str, start_ns: int, *, metadata_last: bool) -> bytes:
        about = [self.stat(*each) for each in self.about.items()]
        programs = {
            n: [self.stat("Hlo Proto", hlo)] for n, hlo in self.programs.items()
        }
        entry = message_class("EventMetadataEntry")
        metadata = message_class("XEventMetadata")
        events = [
            entry(key=code + 1, value=metadata(name=n.encode(), stats=programs.get(n)))
            for n, code in {
                **self.names,
                **{n: self.names[n] for n in programs},
            }.items()
        ]
        entry = message_class("StatMetadataEntry")
        metadata = message_class("XStatMetadata")
        stats = [
            entry(key=c + 1, value=metadata(name=n.encode()))
            for n, c in self.stats.items()
        ]
        plane = message_class("XPlane")(
            name=name.encode(), event_metadata=events, stat_metadata=stats, stats=about
        )
        lines = b"".join(
            field(_LINE, _line(number, called, events, start_ns))
            for (number, called), events in self.lines.items()
        )
        parts = [plane.SerializeToString(), lines]
        return b"".join(parts if not metadata_last else parts[::-1])


class XplaneMaker:
    """Collects events of planes; times are ns."""

    def __init__(self) -> None:
        self.planes: dict[str, _Plane] = {}
        self.start_ns = 1_000

    def plane(self, name: str) -> _Plane:
        return self.planes.setdefault(name, _Plane())

    def event(
        self,
        name: str,
        start: int,
        duration: int,
        plane: str = HOST,
        line: tuple[int, str] = (1, "main"),
        /,
        **stats: Any,
    ) -> Any:
        """Return the encoded event of a plane."""
        where = self.plane(plane)
        event = message_class("XEvent")(
            metadata_id=where.names[name] + 1,
            offset_ps=(start - self.start_ns) * 1000,
            duration_ps=duration * 1000,
            stats=[where.stat(*each) for each in stats.items()],
        )
        where.lines.setdefault(line, []).append(event)
        return event

    def gpu(
        self, name: str, start: int, duration: int, device: int = 0, /, **stats: Any
    ) -> Any:
        """An event of a stream."""
        line = 7, "Stream #7(Kernel)"
        return self.event(name, start, duration, f"/device:GPU:{device}", line, **stats)

    def launched(
        self,
        name: str,
        start: int,
        duration: int,
        /,
        *,
        at: int,
        correlation: int,
        device: int = 0,
        line: tuple[int, str] = (1, "main"),
        **stats: Any,
    ) -> None:
        """Add a kernel, and the call that starts it, which lasts 10 ns."""
        ids = {"correlation_id": correlation}
        self.event("cuLaunchKernel", at, 10, HOST, line, device_id=device, **ids)
        self.gpu(name, start, duration, device, **ids, **stats)

    def program(self, label: str, *computations: Any, **members: Any) -> None:
        """Add the HLO of a program; the last computation is its entry."""
        module = message_class("HloModule")(computations=computations, **members)
        content = message_class("HloProto")(hlo_module=module).SerializeToString()
        self.plane("/host:metadata").programs[label] = content

    @property
    def content(self) -> bytes:
        return self.written()

    def written(self, *, metadata_last: bool = False) -> bytes:
        """The file; in planes metadata may come after the lines."""
        planes = [
            plane.content(name, self.start_ns, metadata_last=metadata_last)
            for name, plane in self.planes.items()
        ]
        return b"".join(field(1, plane) for plane in planes) + field(4, b"worker-3")

    @property
    def for_viewers(self) -> bytes:
        """The JSON that JAX writes beside it: statistics are texts."""
        events: list[Any] = []
        for pid, (name, plane) in enumerate(self.planes.items(), start=701):
            events.append(_label("process_name", name, pid=pid))
            for (tid, called), line in plane.lines.items():
                events.append(_label("thread_name", called, pid=pid, tid=tid))
                names = list(plane.names)
                stats = list(plane.stats)
                for each in line:
                    args = {
                        stats[s.metadata_id - 1]: stats[s.ref_value - 1]
                        if s.ref_value
                        else str(s.uint64_value)
                        for s in each.stats
                    }
                    start_ps = self.start_ns * 1000 + each.offset_ps
                    times = {"ts": start_ps / 1e6, "dur": each.duration_ps / 1e6}
                    event = {"ph": "X", "pid": pid, "tid": tid, **times}
                    events.append(
                        event | {"name": names[each.metadata_id - 1], "args": args}
                    )
        document = {"displayTimeUnit": "ns", "traceEvents": [*events, {}]}
        return json.dumps(document).encode()

    def read(self) -> Trace:
        trace = read_trace(io.BytesIO(self.content))
        made = trace.provenance
        assert made.present == len(trace) + made.metadata_events + sum(
            made.dropped.values()
        )
        return trace


def _line(number: int, name: str, events: list[Any], start_ns: int) -> bytes:
    line = message_class("XLine")(
        id=number,
        name=name.encode(),
        timestamp_ns=start_ns,
        events=[each.SerializeToString() for each in events],
    )
    content: bytes = line.SerializeToString()
    return content


def _label(kind: str, name: str, **where: int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, **where, "args": {"name": name}}


def xplane_of(document: Document) -> XplaneMaker:
    """What JAX's profiler would have recorded of the run in a trace of PyTorch's."""
    maker = XplaneMaker()
    threads: Interner[Any] = Interner()
    for each in document["traceEvents"]:
        if each.get("ph") != "X":
            continue
        args = each.get("args", {})
        category = each["cat"]
        start, duration = (round(1000 * each[key]) for key in ("ts", "dur"))
        ids = {"correlation_id": args["correlation"]} if "correlation" in args else {}
        if category in ("kernel", *_DETAILS):
            details = (
                {_DETAILS[category]: "kind:x size:64"} if category in _DETAILS else {}
            )
            line = args["stream"], f"Stream #{args['stream']}"
            plane = f"/device:GPU:{args['device']}"
            maker.event(each["name"], start, duration, plane, line, **ids, **details)
        elif category != "gpu_user_annotation":
            line = threads[each["tid"]], f"thread {each['tid']}"
            maker.event(each["name"], start, duration, HOST, line, **ids)
    return maker


# Programs.


def shape(kind: int, *dims: int) -> Any:
    return message_class("Shape")(element_type=kind, dimensions=dims)


def several(*shapes: Any) -> Any:
    return message_class("Shape")(element_type=TUPLE, tuple_shapes=shapes)


def instruction(
    number: int,
    name: str,
    opcode: str,
    result: Any,
    operands: Iterable[int] = (),
    **members: Any,
) -> Any:
    return message_class("HloInstruction")(
        id=number,
        name=name.encode(),
        opcode=opcode.encode(),
        shape=result,
        operand_ids=operands,
        **members,
    )


def computation(number: int, *instructions: Any) -> Any:
    """A computation; its last instruction is the root."""
    return message_class("HloComputation")(
        id=number, instructions=instructions, root_id=instructions[-1].id
    )


def training() -> XplaneMaker:
    """Two steps: a product, a fusion in two kernels, a copy; with the program that they are of."""
    maker = XplaneMaker()
    maker.program(
        "jit_step(5)",
        computation(
            1,
            instruction(10, "param_0", "parameter", shape(F32, 8, 16)),
            instruction(11, "tanh.1", "tanh", shape(F32, 8, 16), [10]),
        ),
        computation(
            2,
            instruction(20, "x", "parameter", shape(F32, 8, 32)),
            instruction(21, "w", "parameter", shape(F32, 32, 16)),
            instruction(
                22,
                "dot.1",
                "dot",
                shape(F32, 8, 16),
                [20, 21],
                dot={"lhs_contracting": [1]},
                metadata={"source_file": b"train.py", "source_line": 12},
            ),
            instruction(
                23,
                "loop_tanh_fusion",
                "fusion",
                shape(F32, 8, 16),
                [22],
                called_computation_ids=[1],
            ),
        ),
    )
    maker.plane(GPU).about = {
        "device_vendor": "Nvidia",
        "core_count": 132,
        "compute_cap_major": 9,
    }
    about: dict[str, Any] = {"hlo_module": "jit_step", "program_id": 5}
    for step in range(2):
        t = 10_000 * (step + 1)
        ids = 100 * (step + 1)
        maker.event("train", t, 5_000, step_num=step)
        maker.event("$train.py:12 step", t + 10, 4_000)
        maker.event("Execute", t + 100, 600)
        dot = {**about, "hlo_op": "dot.1", "name": "jit(step)/dot_general"}
        maker.launched("gemm", t + 1_000, 300, at=t + 200, correlation=ids, **dot)
        fused = {**about, "hlo_op": "loop_tanh_fusion", "name": "jit(step)/tanh"}
        for part in range(2):
            start = t + 1_400 + 200 * part
            at = t + 300 + 50 * part
            name = f"loop_tanh_fusion_{part}"
            maker.launched(name, start, 100, at=at, correlation=ids + 1 + part, **fused)
        copy = {
            "correlation_id": ids + 4,
            "memcpy_details": "kind:DtoH size:512 async:1",
        }
        maker.event("cuMemcpyDtoHAsync", t + 500, 20, **copy)
        maker.gpu("MemcpyD2H", t + 2_000, 80, **copy)
        maker.event("jit_step", t + 1_000, 900, GPU, (90, "XLA Modules"))
    return maker
