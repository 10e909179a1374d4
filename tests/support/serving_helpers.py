"""Traces of a serving engine whose phases, tokens, busy times and layers are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.make_trace import Document, TraceMaker

if TYPE_CHECKING:
    from collections.abc import Sequence

BF16 = "c10::BFloat16"
LAYER = (
    "rms_norm",
    "gemm_qkv",
    "rotary",
    "flash_attn_fwd",
    "gemm_o",
    "rms_norm",
    "gemm_up",
    "silu",
)
#: A name of a step, and (tokens of query, tokens of keys) of each request: contexts, generations.
Requests = tuple[list[tuple[int, int]], list[tuple[int, int]]]


def sums(requests: list[tuple[int, int]]) -> tuple[int, int, int, int]:
    """Σ q, Σ k, Σ q², Σ q·k."""
    return (
        sum(q for q, _ in requests),
        sum(k for _, k in requests),
        sum(q * q for q, _ in requests),
        sum(q * k for q, k in requests),
    )


def vllm(context: list[tuple[int, int]], generation: list[tuple[int, int]]) -> str:
    """The annotation of vLLM with `detailed_trace_annotation`."""
    c = sums(context)
    g = sums(generation)
    said = ["sq{}sk{}sqsq{}sqsk{}".format(*each) for each in (c, g)]
    counts = (
        f"_context_{len(context)}({said[0]})_generation_{len(generation)}({said[1]})"
    )
    return f"execute_{c[0] + g[0]}{counts}"


def tensors(*dims: list[int], kinds: Sequence[str] = ()) -> dict[str, Any]:
    """The recorded arguments of an operation."""
    return {
        "Input Dims": list(dims),
        "Input type": list(kinds) or [BF16] * len(dims),
        "Input Strides": [[]] * len(dims),
        "Concrete Inputs": [""] * len(dims),
    }


@dataclass
class Engine:
    """Writes steps one after another; each kernel has a duration of its own in whole µs."""

    layers: int = 4
    layer: Sequence[str] = LAYER
    maker: TraceMaker = field(default_factory=TraceMaker)
    host: int = 0  #: when the next step begins on the host, µs
    gpu: int = 0  #: when the GPU is free, µs
    launched: int = 0

    def kernel(
        self, name: str, duration: int, *, at: int, idle: int = 0, stream: int = 7
    ) -> None:
        """Launch a kernel at a time of the host; it runs when the GPU is free, after `idle`."""
        self.launched += 1
        start = max(self.gpu + idle, at + 2)
        self.maker.launched(
            name, start, duration, correlation=self.launched, at=at, stream=stream
        )
        self.gpu = start + duration

    def step(
        self, *names: str, scale: int = 1, attention: dict[str, Any] | None = None
    ) -> int:
        """A step, whose annotations lie within one another; answers its busy time in µs."""
        begin = self.host
        kernels = [
            "embedding",
            *(name for _ in range(self.layers) for name in self.layer),
        ]
        kernels += ["rms_norm", "gemm_lm_head", "sample"]
        length = 10 * len(kernels) + 10
        for depth, name in enumerate(names):
            self.maker.annotation(name, begin + depth, length - 2 * depth)
        busy = 0
        for number, name in enumerate(kernels):
            at = begin + 5 + 10 * number
            duration = scale * (3 + number % len(self.layer))
            if attention is not None and name == "flash_attn_fwd":
                self.maker.op(
                    "vllm::unified_attention_with_output", at - 1, 4, args=attention
                )
            self.kernel(name, duration, at=at)
            busy += duration
        self.host = begin + length + 20
        return busy

    def outside(self, duration: int) -> None:
        """A kernel that no step launched."""
        self.kernel("memory_kernel", duration, at=self.host)
        self.host += 20

    def document(self) -> Document:
        return self.maker.document()
