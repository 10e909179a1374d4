"""Captures of CUDA graphs, and traces that replay them, made by hand.

A graph is a list of operations; an operation has a name, a shape and the kernels that it launches.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.make_trace import TraceMaker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.make_trace import Document


@dataclass(frozen=True)
class Op:
    """An operation that was captured."""

    name: str
    kernels: Sequence[str]
    rows: int = 1  #: the first dimension of its input


@dataclass
class Recording:
    """A trace in which graphs are captured and replayed; time goes on by itself."""

    maker: TraceMaker = field(default_factory=TraceMaker)
    api: str = "hip"
    now: int = 0
    correlation: int = 0

    def capture(
        self,
        *graphs: Sequence[Op],
        annotation: str = "",
        named: bool = True,
        module: str = "",
    ) -> None:
        """Capture graphs one after the other, each in a module of its own if one is named."""
        begun = self.now
        self.now += 10
        for number, graph in enumerate(graphs):
            self._capture(graph, f"{module}_{number}" if module else "", named=named)
        if annotation:
            self.maker.annotation(annotation, begun, self.now - begun)
        self.now += 10

    def _capture(self, graph: Sequence[Op], module: str, *, named: bool) -> None:
        maker = self.maker
        maker.call(f"{self.api}StreamBeginCapture", self.now, 1)
        begun = self.now = self.now + 2
        for op in graph:
            args = {"Input Dims": [[op.rows, 8]], "Input type": ["float"]}
            maker.op(op.name, self.now, 3 * len(op.kernels) + 1, args=args)
            for kernel in op.kernels:
                self.correlation += 1
                call = {"copy": "MemcpyAsync", "fill": "MemsetAsync"}.get(
                    kernel, "LaunchKernel"
                )
                args = {"kernel": kernel} if named and call == "LaunchKernel" else {}
                maker.call(
                    self.api + call,
                    self.now + 1,
                    1,
                    correlation=self.correlation,
                    args=args,
                )
                self.now += 3
            self.now += 2
        if module:
            maker.frame(f"nn.Module: {module}", begun, self.now - begun)
        maker.call(f"{self.api}StreamEndCapture", self.now + 1, 1)
        self.now += 5

    def warm_up(self, graph: Sequence[Op]) -> None:
        """Run operations as they are captured later."""
        for op in graph:
            args = {"Input Dims": [[op.rows, 8]], "Input type": ["float"]}
            self.maker.op(op.name, self.now, 3 * len(op.kernels) + 1, args=args)
            for kernel in op.kernels:
                self.correlation += 1
                self.maker.launched(
                    kernel,
                    self.now + 2,
                    1,
                    correlation=self.correlation,
                    at=self.now + 1,
                )
                self.now += 3
            self.now += 2

    def launch(
        self, *kernels: str | tuple[str, int], annotation: str = "", duration: int = 10
    ) -> None:
        """Launch a graph that runs these kernels, each on stream 7 or the one that is given."""
        self.steps([kernels], annotation=annotation, duration=duration)

    def steps(
        self,
        launches: Sequence[Sequence[str | tuple[str, int]]],
        *,
        annotation: str = "",
        duration: int = 10,
    ) -> None:
        """Launch several graphs within one annotation."""
        begun = self.now
        for kernels in launches:
            self.correlation += 1
            self.now += 1
            self.maker.call(
                f"{self.api}GraphLaunch", self.now, 5, correlation=self.correlation
            )
            for each in kernels:
                name, stream = each if isinstance(each, tuple) else (each, 7)
                self.now += duration
                kinds = {"copy": "gpu_memcpy", "fill": "gpu_memset"}
                self.maker.gpu(
                    kinds.get(name, "kernel"),
                    name,
                    self.now,
                    duration,
                    correlation=self.correlation,
                    stream=stream,
                )
            self.now += duration + 1
        if annotation:
            self.maker.annotation(annotation, begun, self.now - begun)
        self.now += 10

    def document(self) -> Document:
        return self.maker.document()

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(self.document()))
        return path
