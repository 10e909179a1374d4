"""Plays the training job that ``job.json`` describes on an engine.

The file is a list of statements, objects whose first key says what to do and so which method
here does it: open a Python frame, a module, an annotation or an operation around others (``do``),
launch, wait for a collective, and so on. ``use`` plays one of the ``parts``, ``call`` one of the
differentiable ``operations``; further keys of these two name tensors. Of an operation the
statements of ``forward`` stand each inside the one before, and the backward pass plays
``backward``. ``engine`` calls a method of the engine; in an ``op`` with the first tensor's bytes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from typing import TYPE_CHECKING, Any

from tests.support.simulated_job.engine import Engine
from tests.support.simulated_job.machine import DEVICES_PER_NODE, read_data
from tests.support.simulated_job.tensors import (
    Argument,
    Names,
    Tensor,
    number,
    tensors_in,
    value,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Statement = dict[str, Any]

_NO_PROBLEMS: Mapping[str, float] = {}
# What a problem repeats is played as often to learn how long it takes.
_TRIALS = 8
_MODULE_CALL = "torch/nn/modules/module.py(1773): _call_impl"


@dataclass(slots=True)
class Node:
    """One step of the backward pass: what a differentiable operation leaves behind."""

    operation: Statement
    names: Names
    sequence: int
    #: memory that it is the last to need
    saved: list[tuple[int, int]] = field(default_factory=list)


class Job:
    """The job on one engine.

    Args:
        engine: what plays it.
        ranks: how many ranks are simulated; one alone is of a larger job.
        problems: what each problem that it has costs, in milliseconds of the whole trace.
        fixed: whether the data loader has been fixed, so that the job hardly waits for it.
    """

    def __init__(
        self,
        engine: Engine,
        ranks: int = 1,
        problems: Mapping[str, float] = _NO_PROBLEMS,
        *,
        fixed: bool = False,
    ) -> None:
        self.engine = engine
        self.fixed = fixed
        self.data = read_data("job")
        self.parts = self.data["parts"]
        world = range(ranks if ranks > 1 else self.data["world_size"])
        first = engine.rank - engine.rank % DEVICES_PER_NODE
        members = {"world": world, "node": world[first : first + DEVICES_PER_NODE]}
        self.groups: dict[str, dict[str, Any]] = {
            key: said | {"pg_size": len(members[key]), "ranks": list(members[key])}
            for key, said in self.data["groups"].items()
        }
        names = self._inside(self.data["tensors"], self.data["sizes"])
        trained = list(self._parameters(self.parts["step"], names))
        self.names = {**names, "PARAMETERS": sum(tensor.elements for tensor in trained)}
        self.names |= {
            "parameters": trained,
            "steps": [Tensor((), "f32")] * len(trained),
        }
        self.steps = range(0)
        self._problems = problems
        self._owed = dict.fromkeys(problems, 0.0)
        for ident in problems:
            self._put_in(read_data("problems")[ident])
        self._sequences = count(2310)
        self._node: Node | None = None
        self._tape: list[Node] = []
        self._unreduced = 0
        self._modules: Counter[str] = Counter()

    def run(self, steps: int) -> None:
        """The end of an earlier step, then that many steps under the profiler."""
        self.play(self.parts["before"], self.names)
        self.engine.start_profiler()
        first = self.data["first_step"]
        self.steps = range(first, first + steps)
        self.play(self.parts["main"], self.names)
        self.engine.stop_profiler()

    def play(self, statements: Sequence[Statement], names: Names) -> None:
        """One statement after the other."""
        for said in statements:
            getattr(self, f"_{next(iter(said))}")(said, names)

    def _every_step(self, said: Statement, names: Names) -> None:
        for step in self.steps:
            self._modules.clear()
            self._annotation(
                {"annotation": f"ProfilerStep#{step}", **said}, {**names, "step": step}
            )

    def _odd_step(self, said: Statement, names: Names) -> None:
        if str(names["step"]).endswith(said["odd_step"]):
            self.play(said["do"], names)

    def _repeat(self, said: Statement, names: Names) -> None:
        for _ in range(said["repeat"]):
            self.play(said["do"], names)

    def _put_in(self, problem: Statement) -> None:
        """Play a problem's statements before or after the part that it names."""
        where = "before" if "before" in problem else "after"
        part = self.parts[problem[where]]
        at = 0 if where == "before" else len(part)
        part[at:at] = problem["do"]

    def _lasting(self, said: Statement, names: Names) -> None:
        """Repeat what a problem repeats until it has cost this step's share of its milliseconds.

        Of what is repeated `saved` is the share that a remedy wins. All ranks repeat it as often.
        """
        ident = said["lasting"]
        ending = said.get("in_steps", "")
        steps = [str(step) for step in self.steps if str(step).endswith(ending)]
        if str(names["step"]) not in steps:
            return
        trial = Job(Engine(self.engine.machine, seed=0))
        trial.play(said["do"] * _TRIALS, names)
        saved_ns = said.get("saved", 1.0) * trial.engine.settled / _TRIALS
        self._owed[ident] += self._problems[ident] * 1e6 / len(steps) / saved_ns
        times = round(self._owed[ident])
        self._owed[ident] -= times
        self.play(said["do"] * times, names)

    def _use(self, said: Statement, names: Names) -> None:
        self.play(self.parts[said["use"]], self._inside(said, names))

    def _frame(self, said: Statement, names: Names) -> None:
        duration_us = said.get("us", 1.1)
        if self.fixed:
            duration_us = said.get("fixed_us", duration_us)
        with self.engine.span("python_function", said["frame"], duration_us):
            self.play(said.get("do", ()), names)

    def _annotation(self, said: Statement, names: Names) -> None:
        with self.engine.span(
            "user_annotation", said["annotation"], said.get("us", 3.0)
        ):
            self.play(said["do"], names)

    def _module(self, said: Statement, names: Names) -> None:
        """The Python frames of an ``nn.Module``'s call; instances count up within a step."""
        (kind, source) = said["module"]
        span = self.engine.span
        number = self._modules[kind]
        self._modules[kind] += 1
        ident = {"Python module id": number}
        with (
            span("python_function", f"nn.Module: {kind}_{number}", 1.1, ident),
            span("python_function", _MODULE_CALL, 1.0),
            span("python_function", source, 1.4),
        ):
            self.play(said["do"], names)

    def _call(self, said: Statement, names: Names) -> None:
        """A differentiable operation: its forward pass, and a note for the backward pass."""
        operation = self.data["operations"][said["call"]]
        names = self._inside(said, names)
        if "node" in operation:
            self._node = Node(operation, names, next(self._sequences))
            self._tape.append(self._node)
        chain = reversed(operation["forward"])
        self.play([reduce(lambda inner, outer: outer | {"do": [inner]}, chain)], names)
        self._node = None

    def _op(self, said: Statement, names: Names) -> None:
        spelled = said.get("amd") if self.engine.machine.is_amd else None
        name, *inputs = spelled or said["op"]
        values: list[Argument] = [value(item, names) for item in inputs]
        sequence = self._node.sequence if self._node else 0
        with self.engine.op(name, values, us=said.get("us", 2.4), sequence=sequence):
            self._aside(said.get("first", ()), names)
            moves = [
                *values,
                *self._allocate(tensors_in(value(said.get("out"), names))),
            ]
            if "launch" in said:
                self._launch({"moves": moves} | said, names)
            if "engine" in said:
                self._engine(said, names, tensors_in(moves)[0].nbytes)
            self.play(said.get("do", ()), names)
            self._aside(said.get("then", ()), names)

    def _aside(self, ops: Sequence[Sequence[Any]], names: Names) -> None:
        """Operations that only take the host's time."""
        for name, *inputs in ops:
            with self.engine.op(name, [value(item, names) for item in inputs], us=0.9):
                pass

    def _allocate(self, made: list[Tensor]) -> list[Tensor]:
        """Memory for what an operation makes, kept for the backward pass if there is one."""
        for tensor in made:
            shape: list[Argument] = [
                list(tensor.shape),
                tensor.type_number,
                0,
                None,
                False,
                None,
            ]
            with self.engine.op("aten::empty", shape, us=1.4):
                block = self.engine.allocate(tensor)
            if self._node:
                self._node.saved.append(block)
            else:
                self.engine.release(block)
        return made

    def _engine(self, said: Statement, _: Names, *first: int) -> None:
        method, *arguments = said["engine"]
        getattr(self.engine, method)(*first, *arguments)

    def _launch(self, said: Statement, names: Names) -> None:
        self.engine.launch(*self._cost(said, names), gap=said.get("gap_us", 0.0))

    def _graph(self, said: Statement, names: Names) -> None:
        """Launch a captured graph: its layers as often as there are, and what is around them."""
        graph = self.data["graphs"][said["graph"]]
        nodes = [*graph["first"], *graph["layer"] * graph["layers"], *graph["then"]]
        self.engine.launch_graph([self._cost(node, names) for node in nodes])

    def _cost(self, said: Statement, names: Names) -> tuple[str, float, int]:
        """Role, device time and elements: by FLOPs and the tensors moved, or ``gpu_us``."""
        moved = tensors_in(value(list(said["moves"]), names))
        flops = said.get("flops", "0")
        if flops == "mm":
            flops = f"2*{moved[0].elements}*{moved[1].shape[-1]}"
        nbytes = sum(tensor.nbytes for tensor in moved)
        us = self.engine.machine.kernel_us(said["launch"], nbytes, number(flops, names))
        elements = max((tensor.elements for tensor in moved), default=1)
        return said["launch"], said.get("gpu_us", us), elements

    def _collective(self, said: Statement, names: Names) -> None:
        """Start a collective: it waits for the compute stream and runs beside it."""
        engine = self.engine
        kind = self.data["collectives"][said["collective"]]
        (tensor,) = tensors_in(value(said["tensor"], names))
        group = self.groups[kind["group"]]
        out = tensor.elements * (group["pg_size"] if "gathers" in kind else 1)
        metadata = self.data["wait"] | {
            "Collective name": kind["name"],
            "In msg nelems": tensor.elements,
            "Out msg nelems": out,
            "Group size": group["pg_size"],
            "dtype": {"bf16": "BFloat16", "f32": "Float"}[tensor.dtype],
            "Process Group Name": group["pg_name"],
            "Process Group Description": group["pg_desc"],
            "Process Group Ranks": str(group["ranks"]),
        }
        us = 11.0 + engine.machine.traffic_us(
            tensor.nbytes // tensor.elements * out, kind["over"]
        )
        with (
            engine.op(kind["op"], [[tensor], None, None, None, -1], us=9.0),
            engine.op("record_param_comms", [tensor], args=metadata),
        ):
            engine.call("is_capturing")
            engine.order("compute", "comm")
            with engine.span("user_annotation", kind["annotation"], 6.0):
                engine.launch(said["collective"], us, tensor.elements, "comm", metadata)
                engine.call("event_record")

    def _wait(self, _said: Statement, _names: Names) -> None:
        """Make the compute stream wait for the collectives started so far; the host goes on."""
        with self.engine.op("record_param_comms", args=self.data["wait"], us=3.0):
            self.engine.order("comm", "compute")

    def _backward(self, said: Statement, names: Names) -> None:
        """Run the tape from its end on the autograd thread, reducing gradients in buckets."""
        self.engine.hand_over(self.engine.autograd)
        for node in reversed(self._tape):
            self._run_node(node)
            for name in node.operation.get("grads", ()):
                self._accumulate(value(name, node.names), node.operation)
        self._reduce_bucket()
        self._wait(said, names)
        self.engine.hand_over(self.engine.main)
        self._tape.clear()

    def _run_node(self, node: Node) -> None:
        op = self.engine.op
        data = node.operation
        name = data["node"].format(Library=self.engine.machine.data["library"])
        made = [element["out"] for element in data["forward"] if "out" in element]
        gradients: list[Argument] = [value(out, node.names) for out in made[-1:]]
        # The inner operation comes last and so carries the link to the forward.
        with (
            op(f"autograd::engine::evaluate_function: {name}", (), 3.4, node.sequence),
            op(name, gradients, 2.0, node.sequence),
        ):
            self.play(data.get("backward", ()), node.names)
        for block in node.saved:
            self.engine.release(block)

    def _accumulate(self, gradient: Argument, operation: Statement) -> None:
        """A complete gradient; the last one of a bucket starts its reduction."""
        op = self.engine.op
        name = "torch::autograd::AccumulateGrad"
        with op(f"autograd::engine::evaluate_function: {name}", us=1.8):
            with op(name, [gradient], us=1.6), op("aten::detach", [gradient], us=1.2):
                pass
            if "local" not in operation:
                self._unreduced += sum(
                    tensor.elements for tensor in tensors_in(gradient)
                )
            if self._unreduced >= self.data["bucket_elements"]:
                self._reduce_bucket()

    def _reduce_bucket(self) -> None:
        if self._unreduced:
            bucket = Tensor((self._unreduced,))
            self._collective(
                {"collective": "all_reduce", "tensor": "bucket"}, {"bucket": bucket}
            )
        self._unreduced = 0

    def _inside(self, said: Statement, names: Names) -> dict[str, Argument]:
        """The names inside a part or operation: with those that it and the statement add."""
        added = (
            self.data["operations"].get(said.get("call"), {}).get("names", {}) | said
        )
        new = {key: said for key, said in added.items() if key not in ("use", "call")}
        return {**names, **{key: value(said, names) for key, said in new.items()}}

    def _parameters(
        self, statements: Sequence[Statement], names: Names
    ) -> Iterator[Tensor]:
        """The trained tensors of all operations, in the order of the forward pass."""
        for said in statements:
            if "call" in said:
                grads = self.data["operations"][said["call"]].get("grads", [])
                yield from tensors_in(value(grads, self._inside(said, names)))
            if "use" in said:
                yield from self._parameters(
                    self.parts[said["use"]], self._inside(said, names)
                )
            yield from self._parameters(said.get("do", ()), names)
