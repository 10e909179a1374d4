"""The model that is trained: a small multimodal transformer, described by its modules.

A convolution stem turns images into tokens; they join the text tokens and pass through blocks
of attention and a feed-forward part. The blocks differ, so that every kind of kernel has its
place: most are dense and compiled, one routes tokens to experts on other ranks, one computes in
8-bit floating point, one mixes with a state-space scan and a Fourier transform instead of
attention.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens_ext.demo.tape import Parameter
from tracelens_ext.demo.tensors import FLOAT, LONG, Argument, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracelens_ext.demo.collectives import Collectives
    from tracelens_ext.demo.engine import Simulator
    from tracelens_ext.demo.ops import Ops

BATCH = 1
TEXT_LENGTH = 4096
LENGTH = 8192
WIDTH = 1536
HEADS = 12
FEED_FORWARD = 4096
VOCABULARY = 16384
EXPERTS = 64
LOCAL_EXPERTS = 8
EXPERT_WIDTH = 1024
ROUTES = 2
# Experts get few rows each, so that a grouped multiplication is slower than one large one.
_GROUPED_EFFICIENCY = 0.65
IMAGES = (16, 3, 256, 256)

TOKENS = Tensor((BATCH, TEXT_LENGTH), LONG)
PIXELS = Tensor(IMAGES)
LABELS = Tensor((BATCH * LENGTH,), LONG)

_TORCH_MODULES = "torch/nn/modules"
_SOURCES = {
    "Linear": f"{_TORCH_MODULES}/linear.py(125): forward",
    "LayerNorm": f"{_TORCH_MODULES}/normalization.py(217): forward",
    "Dropout": f"{_TORCH_MODULES}/dropout.py(70): forward",
    "Embedding": f"{_TORCH_MODULES}/sparse.py(190): forward",
    "Conv2d": f"{_TORCH_MODULES}/conv.py(554): forward",
    "BatchNorm2d": f"{_TORCH_MODULES}/batchnorm.py(141): forward",
    "MaxPool2d": f"{_TORCH_MODULES}/pooling.py(213): forward",
    "SiLU": f"{_TORCH_MODULES}/activation.py(432): forward",
}


@dataclass(frozen=True, slots=True)
class Module:
    """An ``nn.Module`` instance as Python frames show it."""

    kind: str
    index: int
    source: str


class Builder:
    """Makes modules and parameters, numbered in the order they are made.

    Attributes:
        parameters: all made so far.
        bucket: the gradient bucket of the next parameters.
    """

    def __init__(self) -> None:
        self.parameters: list[Parameter] = []
        self.bucket = 0
        self._made: Counter[str] = Counter()

    def module(self, kind: str, line: int = 0) -> Module:
        """The next instance of a class; `line` is that of its ``forward`` in ``model.py``."""
        index = self._made[kind]
        self._made[kind] += 1
        return Module(kind, index, _SOURCES.get(kind, f"model.py({line}): forward"))

    def parameter(self, name: str, *shape: int, local: bool = False) -> Parameter:
        """A parameter; a `local` one is not reduced over the ranks."""
        made = Parameter(name, Tensor(shape), None if local else self.bucket)
        self.parameters.append(made)
        return made


@contextmanager
def calling(sim: Simulator, module: Module) -> Iterator[None]:
    """The Python frames of a module's call around what it does."""
    with (
        sim.frame(f"nn.Module: {module.kind}_{module.index}", module=module.index),
        sim.frame(f"{_TORCH_MODULES}/module.py(1773): _call_impl", us=1.0),
        sim.frame(module.source, us=1.4),
    ):
        yield


class LinearLayer:
    """``nn.Linear`` without bias."""

    def __init__(self, build: Builder, name: str, inner: int, outer: int) -> None:
        self.module = build.module("Linear")
        self.weight = build.parameter(f"{name}.weight", outer, inner)

    def __call__(self, ops: Ops, x: Tensor, role: str = "gemm") -> Tensor:
        """Multiply by the weight."""
        with calling(ops.sim, self.module):
            return ops.linear(x, self.weight, role=role)


class Norm:
    """``nn.LayerNorm``."""

    def __init__(self, build: Builder, name: str) -> None:
        self.module = build.module("LayerNorm")
        self.parameters = [
            build.parameter(f"{name}.weight", WIDTH),
            build.parameter(f"{name}.bias", WIDTH),
        ]

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        weight, bias = (parameter.tensor for parameter in self.parameters)
        inputs: list[Argument] = [x, [WIDTH], weight, bias, 1e-5, True]
        with calling(ops.sim, self.module):
            return ops.run("layer_norm", inputs, x, self.parameters)


class Attention:
    """Causal self-attention with rotary positions."""

    def __init__(self, build: Builder, name: str) -> None:
        self.module = build.module("CausalSelfAttention", 88)
        self.project = LinearLayer(build, f"{name}.qkv", WIDTH, 3 * WIDTH)
        self.merge = LinearLayer(build, f"{name}.out", WIDTH, WIDTH)

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        """Mix the tokens of each sequence."""
        head = Tensor((BATCH, HEADS, LENGTH, WIDTH // HEADS))
        with calling(ops.sim, self.module):
            projected = self.project(ops, x)
            ops.view(projected, (BATCH, LENGTH, 3, HEADS, WIDTH // HEADS))
            rotated = head.like(2, *head.shape)
            ops.run("rope", [head, head], rotated)
            return self.merge(ops, ops.attention(head))


class GatedMlp:
    """The dense feed-forward part, its activation compiled."""

    def __init__(self, build: Builder, name: str, *, fp8: bool = False) -> None:
        self.module = build.module("GatedMLP", 131)
        self.fp8 = fp8
        self.up = LinearLayer(build, f"{name}.gate_up", WIDTH, 2 * FEED_FORWARD)
        self.down = LinearLayer(build, f"{name}.down", FEED_FORWARD, WIDTH)

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        """Expand, gate, contract."""
        with calling(ops.sim, self.module):
            expanded = self._multiply(ops, x, self.up)
            gated = x.like(*x.shape[:-1], FEED_FORWARD)
            ops.compiled("fused_swiglu", "fused_swiglu_backward", expanded, gated)
            return self._multiply(ops, gated, self.down)

    def _multiply(self, ops: Ops, x: Tensor, layer: LinearLayer) -> Tensor:
        if not self.fp8:
            return layer(ops, x)
        with calling(ops.sim, layer.module):
            return ops.fp8_linear(x, layer.weight)


class MixtureOfExperts:
    """The routed feed-forward part: experts live on the ranks of a node."""

    def __init__(self, build: Builder, name: str, collectives: Collectives) -> None:
        self.module = build.module("MixtureOfExperts", 187)
        self.collectives = collectives
        self.router = LinearLayer(build, f"{name}.router", WIDTH, EXPERTS)
        self.experts = [
            build.parameter(f"{name}.w13", LOCAL_EXPERTS, 2 * EXPERT_WIDTH, WIDTH, local=True),
            build.parameter(f"{name}.w2", LOCAL_EXPERTS, WIDTH, EXPERT_WIDTH, local=True),
        ]

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        """Choose experts, send the tokens there, compute, and bring the results back."""
        sim, vendor = ops.sim, ops.sim.vendor
        tokens = x.elements // WIDTH
        routed = Tensor((tokens * ROUTES, WIDTH))
        with calling(sim, self.module):
            scores = self.router(ops, x, role="gemm_small").flat().like(dtype=FLOAT)
            ops.run("softmax", [scores, -1, None], scores)
            gate_us = vendor.traffic_us(2 * scores.nbytes)
            inputs: list[Argument] = [scores, ROUTES]
            ops.launch_in("_moe_C::topk_softmax", inputs, "moe_gate", gate_us, scores.elements)
            ops.launch_in("_moe_C::moe_align_block_size", inputs, "moe_align", 9.0, tokens)
            # The host must know how many tokens each expert gets before it can send them.
            ops.item(Tensor((EXPERTS,), LONG), method="tolist")
            with sim.frame("model.py(174): split_sizes", us=22.0):
                pass
            node = ops.tape.record(
                "MoeExpertsFnBackward", lambda: self._backward(ops, routed), self.experts
            )
            with sim.op("MoeExpertsFn", [x], sequence=node.sequence):
                self._forward(ops, routed)
            ops.launch_in(
                "_moe_C::moe_sum", [routed], "moe_sum", vendor.traffic_us(3 * x.nbytes), x.elements
            )
        return x

    def _exchange(self, routed: Tensor) -> None:
        """Send the tokens to their experts, or back; nothing can be computed meanwhile."""
        self.collectives.launch("all_to_all", routed, inside_node=True)
        self.collectives.wait()

    def _multiply(self, ops: Ops, rows: int, weight: Parameter, repeats: int = 1) -> None:
        """The rows' experts at once; twice in the backward pass, for either operand."""
        _, outer, inner = weight.tensor.shape
        us = ops.sim.vendor.gemm_us(rows, outer, inner) / _GROUPED_EFFICIENCY
        inputs = [Tensor((rows, inner)), weight.tensor]
        for _ in range(repeats):
            ops.launch_in("_moe_C::grouped_gemm", inputs, "moe_gemm", us, rows * outer)

    def _forward(self, ops: Ops, routed: Tensor) -> None:
        rows, (up, down) = routed.shape[0], self.experts
        self._exchange(routed)
        self._multiply(ops, rows, up)
        self._activate(ops, rows, "_C::silu_and_mul", "silu_and_mul")
        self._multiply(ops, rows, down)
        self._exchange(routed)

    def _backward(self, ops: Ops, routed: Tensor) -> None:
        rows, (up, down) = routed.shape[0], self.experts
        self._exchange(routed)
        self._multiply(ops, rows, down, repeats=2)
        self._activate(ops, rows, "aten::silu_backward", "silu_backward")
        self._multiply(ops, rows, up, repeats=2)
        self._exchange(routed)

    def _activate(self, ops: Ops, rows: int, name: str, role: str) -> None:
        hidden = Tensor((rows, EXPERT_WIDTH))
        us = ops.sim.vendor.traffic_us(3 * hidden.nbytes)
        ops.launch_in(name, [hidden], role, us, hidden.elements)


class SpectralMixer:
    """Mixes tokens with a state-space scan and a Fourier filter instead of attention."""

    def __init__(self, build: Builder, name: str) -> None:
        self.module = build.module("SpectralMixer", 243)
        self.project = LinearLayer(build, f"{name}.in", WIDTH, 2 * WIDTH)
        self.merge = LinearLayer(build, f"{name}.out", WIDTH, WIDTH)

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        """Scan, filter in the frequency domain, gate."""
        spectrum = x.like(dtype="c10::complex<float>")
        with calling(ops.sim, self.module):
            self.project(ops, x)
            ops.run("scan", [x, x, x, x], x)
            ops.run("cast", [x, 6], x.like(dtype=FLOAT))
            ops.run("fft", [spectrum, None, 1, None], spectrum)
            ops.run("inverse_fft", [spectrum, None, 1, None], spectrum)
            ops.run("cast", [x, 15], x)
            ops.run("mul", [x, x], x)
            return self.merge(ops, x)


class Block:
    """One residual block: a token mixer, then a feed-forward part."""

    def __init__(
        self,
        build: Builder,
        index: int,
        mixer: Attention | SpectralMixer,
        feed_forward: GatedMlp | MixtureOfExperts,
    ) -> None:
        self.module = build.module("TransformerBlock", 291)
        self.norms = [Norm(build, f"blocks.{index}.ln{part}") for part in (1, 2)]
        self.dropouts = [build.module("Dropout") for _ in range(2)]
        self.parts = (mixer, feed_forward)

    def __call__(self, ops: Ops, x: Tensor) -> Tensor:
        """Both parts, each with its norm, dropout and residual."""
        with calling(ops.sim, self.module):
            for norm, part, dropout in zip(self.norms, self.parts, self.dropouts, strict=True):
                part(ops, norm(ops, x))
                with calling(ops.sim, dropout):
                    ops.run("dropout", [x, 0.1, True], x)
                ops.run("add", [x, x, 1], x)
        return x


class VisionStem:
    """Two strided convolutions with pooling: images to tokens."""

    _CHANNELS = (3, 64, 256)

    def __init__(self, build: Builder) -> None:
        self.module = build.module("VisionStem", 52)
        self.layers = []
        for index, size in enumerate((7, 3)):
            inner, outer = self._CHANNELS[index : index + 2]
            weight = build.parameter(f"stem.conv{index}.weight", outer, inner, size, size)
            scale = build.parameter(f"stem.bn{index}.weight", outer)
            kinds = ("Conv2d", "BatchNorm2d", "SiLU", "MaxPool2d")
            self.layers.append((weight, scale, [build.module(kind) for kind in kinds]))
        self.project = LinearLayer(build, "stem.project", self._CHANNELS[-1], WIDTH)

    def __call__(self, ops: Ops, images: Tensor) -> Tensor:
        """Tokens from images."""
        sim = ops.sim
        x = images
        with calling(sim, self.module):
            for weight, scale, (convolution, norm, activation, pool) in self.layers:
                with calling(sim, convolution):
                    x = ops.convolution(x, weight, stride=2)
                with calling(sim, norm):
                    ops.run("batch_norm", [x, scale.tensor, scale.tensor, True], x, [scale])
                with calling(sim, activation):
                    ops.run("silu", [x], x)
                batch, channels, height, width = x.shape
                small = x.like(batch, channels, height // 2, width // 2)
                with calling(sim, pool):
                    x = ops.run("max_pool", [x, [3, 3], [2, 2], [1, 1], [1, 1], False], small)
            tokens = x.like(BATCH, x.elements // (BATCH * x.shape[1]), x.shape[1])
            ops.run("contiguous", [tokens], tokens)
            return self.project(ops, tokens)


class HybridTransformer:
    """The whole model.

    Attributes:
        parameters: all trained tensors; buckets count from the last block to the first.
        blocks: the residual blocks.
    """

    def __init__(self, collectives: Collectives) -> None:
        build = Builder()
        self.module = build.module("HybridTransformer", 338)
        build.bucket = _BLOCK_COUNT + 1
        self.stem = VisionStem(build)
        self.embed = (build.module("Embedding"), build.parameter("embed", VOCABULARY, WIDTH))
        self.blocks = []
        for index in range(_BLOCK_COUNT):
            build.bucket = _BLOCK_COUNT - index
            name = f"blocks.{index}"
            mixer: Attention | SpectralMixer = Attention(build, name)
            feed_forward: GatedMlp | MixtureOfExperts
            if index == _SPECTRAL:
                mixer = SpectralMixer(build, name)
            if index == _ROUTED:
                feed_forward = MixtureOfExperts(build, name, collectives)
            else:
                feed_forward = GatedMlp(build, name, fp8=index == _FP8)
            self.blocks.append(Block(build, index, mixer, feed_forward))
        build.bucket = 0
        self.head = LinearLayer(build, "head", WIDTH, VOCABULARY)
        self.parameters = build.parameters

    def __call__(self, ops: Ops, tokens: Tensor, images: Tensor) -> Tensor:
        """The logits of every position."""
        sim = ops.sim
        embedding, table = self.embed
        with calling(sim, self.module):
            seen = self.stem(ops, images)
            with calling(sim, embedding):
                read = ops.embedding(tokens, table)
            x = ops.run("cat", [[seen, read], 1], read.like(BATCH, LENGTH, WIDTH))
            for block in self.blocks:
                x = block(ops, x)
            x = ops.compiled("fused_norm", "fused_sum", x, x)
            return self.head(ops, x)


_BLOCK_COUNT = 6
_ROUTED, _FP8, _SPECTRAL = 2, 3, 4
