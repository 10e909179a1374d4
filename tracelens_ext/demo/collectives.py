"""Collectives on the communication stream, and the bucketed gradient reduction of DDP."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tracelens_ext.demo.tensors import Argument, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens_ext.demo.engine import Simulator
    from tracelens_ext.demo.tape import Parameter

WORLD_SIZE = 16
RANKS_PER_NODE = 8

_DTYPE_NAMES = {"c10::BFloat16": "BFloat16", "float": "Float", "long int": "Long"}
# Name, description and size by whether a collective stays inside one node.
_GROUPS = {
    False: ("0", "default_pg", WORLD_SIZE),
    True: ("1", "expert_parallel", RANKS_PER_NODE),
}
# Operation, annotation and `Collective name` by role.
_NAMES = {
    "all_reduce": ("c10d::allreduce_", "nccl:all_reduce", "allreduce"),
    "all_to_all": ("c10d::alltoall_base_", "nccl:all_to_all", "all_to_allv"),
    "broadcast": ("c10d::broadcast_", "nccl:broadcast", "broadcast"),
    "all_gather": ("c10d::_allgather_base_", "nccl:_all_gather_base", "_allgather_base"),
}


def group_config() -> list[dict[str, object]]:
    """The process groups: everybody for the gradients, one node for the experts."""
    return [
        {
            "pg_name": name,
            "pg_desc": description,
            "backend_config": "cuda:nccl",
            "pg_size": size,
            "ranks": list(range(size)),
        }
        for name, description, size in _GROUPS.values()
    ]


class Collectives:
    """Launches collectives as ``ProcessGroupNCCL`` does.

    Args:
        simulator: the machine.
    """

    def __init__(self, simulator: Simulator) -> None:
        self._sim = simulator

    def launch(
        self, role: str, tensor: Tensor, *, inside_node: bool = False, out_factor: int = 1
    ) -> None:
        """Start a collective: it waits for the compute stream and runs beside it.

        Args:
            role: a key of the kernel table, such as ``all_reduce``.
            tensor: the message.
            inside_node: over the fast links of one node instead of the network.
            out_factor: how many times larger the output is.
        """
        sim = self._sim
        op, annotation, name = _NAMES[role]
        metadata = _metadata(name, tensor, inside_node, out_factor)
        inputs: Sequence[Argument] = [[tensor], None, None, None, -1]
        with sim.op(op, inputs, us=9.0), sim.op("record_param_comms", [tensor], extra=metadata):
            sim.runtime("is_capturing")
            sim.order(sim.compute, sim.comm)
            with sim.annotation(annotation, us=6.0):
                us = sim.vendor.network_us(tensor.nbytes * out_factor, inside_node=inside_node)
                sim.launch(role, us, tensor.elements, stream=sim.comm, extra=metadata)
                sim.runtime("event_record")

    def wait(self) -> None:
        """Make the compute stream wait for the collectives started so far; the host goes on."""
        sim = self._sim
        metadata = {
            "Collective name": "wait",
            "dtype": "Byte",
            "In msg nelems": 0,
            "Out msg nelems": 0,
            "In split size": "[]",
            "Out split size": "[]",
            "Group size": 1,
            "Process Group Ranks": "[]",
        }
        with sim.op("record_param_comms", extra=metadata, us=3.0):
            sim.order(sim.comm, sim.compute)


class GradientReducer:
    """Reduces a bucket of gradients as soon as the last of them is complete.

    Args:
        collectives: what starts the reductions.
        parameters: all trained tensors.
    """

    def __init__(self, collectives: Collectives, parameters: Sequence[Parameter]) -> None:
        self._collectives = collectives
        reduced = [parameter for parameter in parameters if parameter.bucket is not None]
        self._sizes: Counter[int | None] = Counter()
        self._members: Counter[int | None] = Counter()
        for parameter in reduced:
            self._sizes[parameter.bucket] += parameter.tensor.elements
            self._members[parameter.bucket] += 1
        self._missing = Counter(self._members)

    def gradient_ready(self, parameter: Parameter) -> None:
        """Note a complete gradient; the last one of a bucket starts its reduction."""
        bucket = parameter.bucket
        if bucket is None:
            return
        self._missing[bucket] -= 1
        if self._missing[bucket] == 0:
            self._collectives.launch("all_reduce", Tensor((self._sizes[bucket],)))
            self._missing[bucket] = self._members[bucket]


def _metadata(name: str, tensor: Tensor, inside_node: bool, out_factor: int) -> dict[str, object]:
    """What the profiler notes about a collective, on the operation and on its kernel."""
    group, description, size = _GROUPS[inside_node]
    return {
        "Collective name": name,
        "In msg nelems": tensor.elements,
        "Out msg nelems": tensor.elements * out_factor,
        "Group size": size,
        "dtype": _DTYPE_NAMES[tensor.dtype],
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group,
        "Process Group Description": description,
        "Process Group Ranks": str(list(range(size))),
    }
