"""The autograd tape: what forward operations leave behind, run in reverse by the engine thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracelens_ext.demo.allocator import Block
    from tracelens_ext.demo.engine import Simulator
    from tracelens_ext.demo.tensors import Tensor

_FIRST_SEQUENCE_NUMBER = 2310


@dataclass(frozen=True, slots=True)
class Parameter:
    """A trained tensor.

    Attributes:
        bucket: the gradient bucket that it is reduced in; none for experts, which no other
            rank holds.
    """

    name: str
    tensor: Tensor
    bucket: int | None = None


@dataclass(slots=True)
class Node:
    """One step of the backward pass.

    Attributes:
        name: of the autograd function, such as ``MmBackward0``.
        sequence: links it to the forward operation.
        run: its operations.
        parameters: whose gradients it completes.
        saved: activations that it is the last to need.
    """

    name: str
    sequence: int
    run: Callable[[], None]
    parameters: tuple[Parameter, ...] = ()
    saved: list[Block] = field(default_factory=list)


class Tape:
    """Collects nodes in forward order and runs them backward."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._nodes: list[Node] = []
        self._next_sequence = _FIRST_SEQUENCE_NUMBER

    def record(
        self, name: str, run: Callable[[], None], parameters: Sequence[Parameter] = ()
    ) -> Node:
        """Add a node; its sequence number goes on the forward operations."""
        node = Node(name, self._next_sequence, run, tuple(parameters))
        self._next_sequence += 1
        self._nodes.append(node)
        return node

    def backward(
        self, on_gradient: Callable[[Parameter], None], on_finish: Callable[[], None]
    ) -> None:
        """Run all nodes on the autograd thread, last first, and forget them.

        Args:
            on_gradient: called when a parameter's gradient is complete, as hooks are.
            on_finish: called on the same thread after the last node.
        """
        sim = self._simulator
        with sim.on_thread(sim.autograd):
            for node in reversed(self._nodes):
                self._run(node)
                for parameter in node.parameters:
                    self._accumulate(parameter, on_gradient)
            on_finish()
        self._nodes.clear()

    def _run(self, node: Node) -> None:
        sim = self._simulator
        outer = f"autograd::engine::evaluate_function: {node.name}"
        # The inner operation comes last and so carries the link to the forward.
        with (
            sim.op(outer, sequence=node.sequence, us=3.4),
            sim.op(node.name, sequence=node.sequence, us=2.0),
        ):
            node.run()
        for block in node.saved:
            sim.release(block)

    def _accumulate(self, parameter: Parameter, on_gradient: Callable[[Parameter], None]) -> None:
        sim = self._simulator
        accumulate = "torch::autograd::AccumulateGrad"
        with sim.op(f"autograd::engine::evaluate_function: {accumulate}", us=1.8):
            with (
                sim.op(accumulate, us=1.6),
                sim.op("aten::detach", [parameter.tensor], us=1.2),
                sim.op("detach", [parameter.tensor], us=0.6),
            ):
                pass
            on_gradient(parameter)
