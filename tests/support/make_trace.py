"""Small Kineto traces made by hand, the three layouts they come in, and what was read of them."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from tests.support.simulated_job import build_demo_trace
from tracelens_ext.trace import EventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracelens_ext.trace import Trace

Event = dict[str, Any]
Document = dict[str, Any]
Microseconds = int | float
Label = int | str

PROCESS = 100
THREAD = 1


@cache
def short_demo() -> Document:
    """One step of the demo, which tests share: who changes it copies it before."""
    return {**build_demo_trace(steps=1)}


class TraceMaker:
    """Collects events; each method adds one and answers its row in the trace.

    (The row is right as long as no metadata and no unusable event comes before.) Times are µs.
    """

    def __init__(self, process: Label = PROCESS, thread: Label = THREAD) -> None:
        self.process = process
        self.thread = thread
        self.events: list[Event] = []

    def add(self, event: Event) -> int:
        self.events.append(event)
        return len(self.events) - 1

    def document(self, **members: Any) -> Document:
        return {"schemaVersion": 1, **members, "traceEvents": self.events}

    def _span(
        self,
        category: str,
        name: str,
        start: Microseconds,
        duration: Microseconds,
        where: tuple[Label, Label],
        args: Mapping[str, Any],
    ) -> int:
        pid, tid = where
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
        return self.add(event | {"ts": start, "dur": duration, "args": dict(args)})

    def _host(
        self,
        category: str,
        name: str,
        start: Microseconds,
        duration: Microseconds,
        args: Mapping[str, Any],
        external_id: int | None = None,
        process: Label | None = None,
        thread: Label | None = None,
    ) -> int:
        where = (
            self.process if process is None else process,
            self.thread if thread is None else thread,
        )
        given = {} if external_id is None else {"External id": external_id}
        return self._span(category, name, start, duration, where, given | dict(args))

    def op(
        self,
        name: str,
        start: Microseconds,
        duration: Microseconds,
        *,
        external_id: int | None = None,
        args: Mapping[str, Any] | None = None,
        process: Label | None = None,
        thread: Label | None = None,
    ) -> int:
        """A CPU op."""
        args = args or {}
        return self._host(
            "cpu_op", name, start, duration, args, external_id, process, thread
        )

    def annotation(
        self,
        name: str,
        start: Microseconds,
        duration: Microseconds,
        *,
        external_id: int | None = None,
        thread: Label | None = None,
    ) -> int:
        """A user annotation."""
        return self._host(
            "user_annotation", name, start, duration, {}, external_id, thread=thread
        )

    def frame(
        self,
        name: str,
        start: Microseconds,
        duration: Microseconds,
        *,
        thread: Label | None = None,
    ) -> int:
        """A Python frame."""
        return self._host("python_function", name, start, duration, {}, thread=thread)

    def call(
        self,
        name: str,
        start: Microseconds,
        duration: Microseconds = 1,
        *,
        correlation: int | None = None,
        external_id: int | None = None,
        category: str = "cuda_runtime",
        args: Mapping[str, Any] | None = None,
        process: Label | None = None,
        thread: Label | None = None,
    ) -> int:
        """A runtime (or driver) call."""
        args = {
            **(args or {}),
            **({} if correlation is None else {"correlation": correlation}),
        }
        return self._host(
            category, name, start, duration, args, external_id, process, thread
        )

    def gpu(
        self,
        category: str,
        name: str,
        start: Microseconds,
        duration: Microseconds,
        *,
        correlation: int | None = None,
        device: int = 0,
        stream: int = 7,
        args: Mapping[str, Any] | None = None,
    ) -> int:
        """A kernel, memcpy, memset or annotation on a stream."""
        given: dict[str, Any] = {"device": device, "stream": stream}
        if correlation is not None:
            given["correlation"] = correlation
        where = (device, stream)
        return self._span(
            category, name, start, duration, where, given | dict(args or {})
        )

    def kernel(
        self,
        name: str,
        start: Microseconds,
        duration: Microseconds,
        *,
        correlation: int | None = None,
        device: int = 0,
        stream: int = 7,
    ) -> int:
        """A kernel."""
        return self.gpu(
            "kernel",
            name,
            start,
            duration,
            correlation=correlation,
            device=device,
            stream=stream,
        )

    def launched(
        self,
        name: str,
        start: Microseconds,
        duration: Microseconds,
        *,
        correlation: int,
        at: Microseconds,
        api: str = "cudaLaunchKernel",
        category: str = "kernel",
        device: int = 0,
        stream: int = 7,
    ) -> tuple[int, int]:
        """A runtime call and the GPU event that it starts; their rows."""
        launch = self.call(api, at, correlation=correlation)
        where: dict[str, Any] = {"device": device, "stream": stream}
        work = self.gpu(
            category, name, start, duration, correlation=correlation, **where
        )
        return launch, work

    def process_name(self, process: Label, name: Any) -> int:
        """A metadata event: no row."""
        args = {"name": name}
        event = {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "ts": 0}
        return self.add(event | {"args": args})


def cuda_graph_example() -> Document:
    """Three kernels of one `cudaGraphLaunch` that last 150, 80 and 220 µs."""
    maker = TraceMaker()
    maker.op("aten::something_around", 0, 100)
    maker.call("cudaGraphLaunch", 10, 20, correlation=42)
    maker.kernel("kernel_mha", 50, 150, correlation=42)
    maker.kernel("void tensorrt_llm::common::scaleMatrix<...>", 200, 80, correlation=42)
    maker.kernel("nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT", 280, 220, correlation=42)
    return maker.document()


# Layouts.


def kineto_layout(document: Document) -> str:
    """As the profiler writes: identity, times and arguments on lines of their own."""
    members = [
        f"  {json.dumps(key)}: {_kineto_member(key, document[key])}" for key in document
    ]
    return "{\n" + ",\n".join(members) + "\n}\n"


def _kineto_member(key: str, value: Any) -> str:
    if key != "traceEvents" or not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(map(_kineto_event, value)) + "\n  ]"


def _kineto_event(event: Any) -> str:
    if not isinstance(event, dict):
        return f"  {json.dumps(event)}"
    times = [key for key in event if key in ("ts", "dur")]
    first = [key for key in event if key not in ("ts", "dur", "args")]
    lines = [
        ", ".join(_pair(event, key) for key in keys) for keys in (first, times) if keys
    ]
    args = event.get("args")
    if isinstance(args, dict):
        inner = ", ".join(_pair(args, key) for key in args)
        lines.append('"args": {\n      ' + inner + "\n    }")
    elif "args" in event:
        lines.append(_pair(event, "args"))
    return "  {\n    " + ",\n    ".join(lines) + "\n  }"


def _pair(holder: Mapping[str, Any], key: str) -> str:
    return f"{json.dumps(key)}: {json.dumps(holder[key])}"


def indented_layout(document: Document) -> str:
    """As many tools rewrite traces."""
    return json.dumps(document, indent=2)


def one_line_layout(document: Document) -> str:
    """All on one line."""
    return json.dumps(document)


LAYOUTS: dict[str, Callable[[Document], str]] = {
    "kineto": kineto_layout,
    "indented": indented_layout,
    "one line": one_line_layout,
}


# What was read.


def rows_read(trace: Trace) -> list[dict[str, Any]]:
    """The events of a trace as plain values, arguments parsed; one that an event lacks is absent.

    `ts` and `dur` are ns, `ts` in the clock of the trace.
    """
    rows: list[dict[str, Any]] = [
        {
            "ts": int(trace.ts[row]) + trace.base_ns,
            "dur": int(trace.dur[row]),
            "name": trace.names[trace.name[row]],
            "kind": EventKind(trace.kind[row]),
            "thread": trace.threads[trace.thread[row]],
            "category": trace.categories[trace.category[row]],
            "correlation": int(trace.correlation[row]),
            "External id": int(trace.external_id[row]),
        }
        for row in range(len(trace))
    ]
    for name, column in trace.args.items():
        for row, value in zip(
            column.rows.tolist(), column.values.tolist(), strict=True
        ):
            rows[row][name] = (
                value if column.texts is None else json.loads(column.texts[value])
            )
    return rows
