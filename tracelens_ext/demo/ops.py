"""PyTorch operations on the simulated machine: their nesting, kernels, costs and gradients."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from tracelens_ext.demo.simple_ops import SIMPLE, Simple
from tracelens_ext.demo.tensors import FP8, Argument, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.demo.engine import Simulator
    from tracelens_ext.demo.tape import Node, Parameter, Tape


class Ops:
    """Runs operations: opens their spans, launches their kernels, records their gradients.

    Args:
        simulator: the machine.
        tape: where gradients are recorded.
    """

    def __init__(self, simulator: Simulator, tape: Tape) -> None:
        self.sim = simulator
        self.tape = tape
        self._names = {"dnn": simulator.vendor.dnn, "Dnn": simulator.vendor.dnn.capitalize()}

    def run(
        self,
        kind: str,
        inputs: Sequence[Argument],
        out: Tensor,
        parameters: Sequence[Parameter] = (),
    ) -> Tensor:
        """One of the `SIMPLE` operations."""
        spec = SIMPLE[kind]
        node = None
        if spec.node:
            name = spec.node.format(**self._names)
            node = self.tape.record(name, lambda: self._simple_backward(spec, out), parameters)
        us = self.sim.vendor.traffic_us(spec.traffic * out.nbytes)
        with ExitStack() as stack:
            if spec.frame:
                stack.enter_context(self.sim.frame(spec.frame, us=0.8))
            self._nest(stack, spec.chain, inputs, node)
            self.empty(out, node)
            self.sim.launch(spec.role, us, out.elements)
        return out

    def linear(self, x: Tensor, weight: Parameter, *, role: str = "gemm") -> Tensor:
        """``torch.nn.functional.linear`` without a bias."""
        flat = x.flat()
        rows, inner = flat.shape
        outer = weight.tensor.shape[0]
        out = x.like(*x.shape[:-1], outer)
        node = self.tape.record(
            "MmBackward0", lambda: self._linear_backward(flat, weight), [weight]
        )
        sim, sequence = self.sim, node.sequence
        with (
            sim.frame("<built-in function linear>", us=0.8),
            sim.op("aten::linear", [x, weight.tensor, None], sequence=sequence),
        ):
            with (
                sim.op("aten::t", [weight.tensor], us=0.9),
                sim.op("aten::transpose", [weight.tensor, 0, 1], us=0.7),
            ):
                pass
            with sim.op("aten::matmul", [x, weight.tensor.transposed()], sequence=sequence):
                self.view(x, flat.shape)
                with sim.op("aten::mm", [flat, weight.tensor.transposed()], sequence=sequence):
                    self.empty(out, node)
                    self._before_gemm()
                    us = sim.vendor.gemm_us(rows, outer, inner)
                    sim.launch(role, us, rows * outer)
                self.view(out.flat(), out.shape)
        return out

    def fp8_linear(self, x: Tensor, weight: Parameter) -> Tensor:
        """A linear layer in 8-bit floating point: quantise, multiply; the gradient in bf16."""
        flat = x.flat()
        rows, inner = flat.shape
        outer = weight.tensor.shape[0]
        quantised = self.run("quantize", [flat, 128], flat.like(dtype=FP8))
        out = x.like(*x.shape[:-1], outer)
        node = self.tape.record(
            "Fp8LinearFnBackward", lambda: self._linear_backward(flat, weight), [weight]
        )
        transposed = weight.tensor.like(dtype=FP8).transposed()
        sim = self.sim
        with (
            sim.op("Fp8LinearFn", [x, weight.tensor], sequence=node.sequence),
            sim.op("aten::_scaled_mm", [quantised, transposed], sequence=node.sequence),
        ):
            self.empty(out, node)
            self._before_gemm()
            us = sim.vendor.gemm_us(rows, outer, inner, fp8=True)
            sim.launch("gemm_fp8", us, rows * outer)
        return out

    def attention(self, query: Tensor, causal: bool = True) -> Tensor:
        """Fused scaled-dot-product attention; key and value are shaped like the query."""
        batch, heads, length, width = query.shape
        flops = 4.0 * batch * heads * length * length * width / (2 if causal else 1)
        inputs: list[Argument] = [query, query, query, None, 0.0, causal, None]
        node = self.tape.record(
            "ScaledDotProductFlashAttentionBackward0",
            lambda: self._attention_backward(query, 2.5 * flops),
        )
        sim, sequence = self.sim, node.sequence
        outer = "aten::_scaled_dot_product_flash_attention"
        with (
            sim.frame("<built-in function scaled_dot_product_attention>", us=0.8),
            sim.op("aten::scaled_dot_product_attention", inputs, sequence=sequence, us=4.0),
            sim.op(outer, inputs[:3], sequence=sequence, us=3.0),
        ):
            for _ in range(3):
                with sim.op("aten::transpose", [query, 1, 2], us=0.8):
                    pass
            # The inner operation wants sequences before heads: the same memory, transposed.
            step = query.stride
            swapped = Tensor(
                (batch, length, heads, width), query.dtype, (step[0], step[2], step[1], step[3])
            )
            inner: list[Argument] = [swapped] * 3
            inner += [None, None, length, length, 0.0, causal, False]
            with sim.op("aten::_flash_attention_forward", inner, sequence=sequence, us=3.0):
                self.empty(query, node)
                us = sim.vendor.attention_us(flops)
                sim.launch("attention", us, batch * heads * length * 128)
        return query.like(batch, length, heads * width)

    def embedding(self, tokens: Tensor, weight: Parameter) -> Tensor:
        """Look up rows of a table; the gradient sorts the tokens and sums rows."""
        out = weight.tensor.like(*tokens.shape, weight.tensor.shape[1])
        node = self.tape.record(
            "EmbeddingBackward0", lambda: self._embedding_backward(out, tokens, weight), [weight]
        )
        inputs: list[Argument] = [weight.tensor, tokens, -1, False, False]
        sim = self.sim
        with (
            sim.frame("<built-in method embedding of type object at 0x7f3b2c8e1a20>", us=0.8),
            sim.op("aten::embedding", inputs, sequence=node.sequence),
            sim.op("aten::index_select", [weight.tensor, 0, tokens], sequence=node.sequence),
        ):
            self.empty(out, node)
            sim.launch("embedding", sim.vendor.traffic_us(2 * out.nbytes), out.elements)
        return out

    def convolution(self, x: Tensor, weight: Parameter, stride: int) -> Tensor:
        """A 2-D convolution with `same` padding."""
        channels = weight.tensor.shape[0]
        height, width = (size // stride for size in x.shape[2:])
        out = x.like(x.shape[0], channels, height, width)
        flops = 2.0 * out.elements * weight.tensor.elements / channels
        node = self.tape.record(
            "ConvolutionBackward0", lambda: self._convolution_backward(x, weight, flops), [weight]
        )
        inputs: list[Argument] = [x, weight.tensor, None, [stride, stride], [1, 1], [1, 1], 1]
        sim = self.sim
        with (
            sim.frame("<built-in method conv2d of type object at 0x7f3b2c8e1a20>", us=0.8),
            ExitStack() as stack,
        ):
            chain = ("aten::conv2d", "aten::convolution", "aten::_convolution")
            self._nest(stack, (*chain, "aten::{dnn}_convolution"), inputs, node)
            self.empty(out, node)
            sim.launch("conv", self._convolution_us(flops, x, out), out.elements)
        return out

    def compiled(self, role: str, backward_role: str, x: Tensor, out: Tensor) -> Tensor:
        """A region that ``torch.compile`` turned into one generated kernel."""
        node = self.tape.record(
            "CompiledFunctionBackward",
            lambda: self._compiled_graph(backward_role, [out, x], x, 2.5),
        )
        sim = self.sim
        with sim.op("Torch-Compiled Region: 0/0", us=6.0):
            with sim.op("AOTDispatcher Runtime Wrapper Prologue", us=1.5):
                pass
            with sim.op("CompiledFunction", [x], sequence=node.sequence, us=4.0):
                self._compiled_graph(role, [x, out], out, 3.0)
        return out

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> None:
        """The loss, in single precision."""
        flat = logits.flat()
        scores = flat.like(dtype="float")
        sim, vendor = self.sim, self.sim.vendor

        def launch(op: str, role: str, nbytes: float, inputs: Sequence[Argument]) -> None:
            with sim.op(op, inputs, us=2.0):
                block = sim.allocate(scores.nbytes)
                sim.launch(role, vendor.traffic_us(nbytes), flat.elements)
                sim.release(block)

        def softmax_backward() -> None:
            name = "aten::_log_softmax_backward_data"
            launch(name, "log_softmax_backward", 2.5 * scores.nbytes, [scores, scores, 1, 15])

        def loss_backward() -> None:
            launch("aten::nll_loss_backward", "nll_loss_backward", 4 * labels.elements, [labels])

        with (
            sim.frame("<built-in function cross_entropy_loss>", us=0.8),
            sim.op("aten::cross_entropy_loss", [flat, labels, None, 1, -100, 0.0], us=4.0),
        ):
            softmax = self.tape.record("LogSoftmaxBackward0", softmax_backward)
            with (
                sim.op("aten::log_softmax", [flat, 1, None], sequence=softmax.sequence),
                sim.op("aten::_log_softmax", [flat, 1, True], sequence=softmax.sequence),
            ):
                self.empty(scores, softmax)
                us = vendor.traffic_us(1.5 * scores.nbytes)
                sim.launch("log_softmax", us, flat.elements)
            loss = self.tape.record("NllLossBackward0", loss_backward)
            with (
                sim.op("aten::nll_loss_nd", [scores, labels], sequence=loss.sequence),
                sim.op("aten::nll_loss_forward", [scores, labels], sequence=loss.sequence),
            ):
                sim.launch("nll_loss", vendor.traffic_us(40 * labels.nbytes), 32)

    def item(self, value: Tensor, method: str = "item") -> None:
        """Read a value back: the host waits for everything queued before it."""
        sim = self.sim
        with (
            sim.frame(f"<built-in method {method} of Tensor object at 0x7f3a91c04d60>", us=0.8),
            sim.op("aten::item", [value], us=1.6),
            sim.op("aten::_local_scalar_dense", [value], us=1.8),
        ):
            sim.read_back(value.nbytes)

    def view(self, x: Tensor, shape: Sequence[int]) -> None:
        """A view: host time and nothing else."""
        with self.sim.op("aten::view", [x, list(shape)], us=0.9):
            pass

    def empty(self, out: Tensor, node: Node | None) -> None:
        """Allocate an output; kept for the backward pass when a node needs it."""
        sim = self.sim
        with sim.op("aten::empty", [list(out.shape), 15, 0, None, False, None], us=1.4):
            block = sim.allocate(out.nbytes)
        if node is None:
            sim.release(block)
        else:
            node.saved.append(block)

    def launch_in(
        self, op: str, inputs: Sequence[Argument], role: str, us: float, elements: int
    ) -> None:
        """One operation around one launch."""
        with self.sim.op(op, inputs):
            self.sim.launch(role, us, elements)

    # Gradients ------------------------------------------------------------------------------

    def _simple_backward(self, spec: Simple, out: Tensor) -> None:
        if not spec.backward_role:
            return
        us = self.sim.vendor.traffic_us(spec.backward_traffic * out.nbytes)
        with ExitStack() as stack:
            self._nest(stack, spec.backward_chain, [out, out], None)
            self.empty(out, None)
            self.sim.launch(spec.backward_role, us, out.elements)

    def _linear_backward(self, x: Tensor, weight: Parameter) -> None:
        rows, inner = x.shape
        outer = weight.tensor.shape[0]
        gradient = x.like(rows, outer)
        us = self.sim.vendor.gemm_us(rows, outer, inner)
        for left, right, role, size in (
            (gradient, weight.tensor, "gemm_dgrad", rows * inner),
            (gradient.transposed(), x, "gemm_wgrad", outer * inner),
        ):
            with self.sim.op("aten::mm", [left, right]):
                self.empty(x.like(size), None)
                self._before_gemm()
                self.sim.launch(role, us, size)

    def _attention_backward(self, query: Tensor, flops: float) -> None:
        sim = self.sim
        name = "aten::_scaled_dot_product_flash_attention_backward"
        inputs: list[Argument] = [query] * 5
        with (
            sim.op(name, inputs, us=3.0),
            sim.op("aten::_flash_attention_backward", inputs, us=3.0),
        ):
            self.empty(query, None)
            us = sim.vendor.attention_us(flops, backward=True)
            sim.launch("attention_backward", us, query.elements)

    def _embedding_backward(self, out: Tensor, tokens: Tensor, weight: Parameter) -> None:
        sim, vendor = self.sim, self.sim.vendor
        rows = weight.tensor.shape[0]
        inputs: list[Argument] = [out, tokens, rows, -1, False, False]
        with (
            sim.op("aten::embedding_backward", inputs),
            sim.op("aten::embedding_dense_backward", inputs[:5]),
        ):
            with sim.op("aten::zero_", [weight.tensor], us=1.2):
                sim.fill(weight.tensor.nbytes)
            sim.launch("sort", vendor.traffic_us(120 * tokens.nbytes), tokens.elements)
            sim.launch("embedding_scatter", vendor.traffic_us(3 * out.nbytes), out.elements)

    def _convolution_backward(self, x: Tensor, weight: Parameter, flops: float) -> None:
        sim = self.sim
        with sim.op("aten::convolution_backward", [x, x, weight.tensor]):
            for role in ("conv_dgrad", "conv_wgrad"):
                self.empty(x, None)
                sim.launch(role, self._convolution_us(flops, x, x), x.elements)

    # Pieces ---------------------------------------------------------------------------------

    def _nest(
        self, stack: ExitStack, chain: Sequence[str], inputs: Sequence[Argument], node: Node | None
    ) -> None:
        """Open the operations of a chain, each inside the one before."""
        sequence = node.sequence if node else None
        for name in chain:
            op = self.sim.op(name.format(**self._names), inputs, sequence=sequence)
            stack.enter_context(op)

    def _before_gemm(self) -> None:
        """What the vendor's matrix library asks of the runtime before it launches."""
        for key in self.sim.vendor.before_gemm:
            self.sim.runtime(key)

    def _convolution_us(self, flops: float, x: Tensor, out: Tensor) -> float:
        vendor = self.sim.vendor
        compute = flops / (0.35 * vendor.gemm_tflops * 1e6)
        return max(compute, vendor.traffic_us(2 * (x.nbytes + out.nbytes)))

    def _compiled_graph(
        self, role: str, inputs: Sequence[Argument], out: Tensor, traffic: float
    ) -> None:
        sim = self.sim
        name = sim.roles[role][0][0].name
        graph = "## Call CompiledFxGraph fq3v7lze5kdmcohxn2ruwby4s6tjaigp9 ##"
        with sim.annotation(graph), sim.op(name, inputs, us=5.0):
            self.empty(out, None)
            sim.launch(role, sim.vendor.traffic_us(traffic * out.nbytes), out.elements)
