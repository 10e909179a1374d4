"""The work of XLA's instructions, from the HLO programs in profiles of JAX.

A multiply and an add are two operations. Products count as in "XLA operation semantics" of
openxla.org: `dot` sums over its contracting dimensions, `convolution` over the window and the input
features. Any other instruction that computes counts one operation for each element of its result.
Operands are read once and results written once; if a fusion only takes slices of an operand, only
the slices count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens_ext.readers.xplane import hlo as xla
from tracelens_ext.readers.xplane.messages import message_class
from tracelens_ext.roofline.element_types import short_type
from tracelens_ext.roofline.hlo_products import (
    HloWork,
    convolution_work,
    custom_call_work,
    dot_work,
)
from tracelens_ext.roofline.operation import Cost, Engine, Models, Operation, required
from tracelens_ext.trace import NONE, PROGRAM_SHIFT, Int64Array, IntArray, Trace

if TYPE_CHECKING:
    from tracelens_ext.readers.xplane.hlo import Shape
    from tracelens_ext.readers.xplane.messages import Message

MODELS = Models()
_FAMILIES: Final = {
    "dot": "GEMM",
    "convolution": "CONV_fwd",
    "convolution of gradients": "CONV_bwd",
    "attention": "SDPA_fwd",
    "attention of gradients": "SDPA_bwd",
}
_NAMES_OF_DOT_SIZES: Final = ("B", "M", "N", "K")
_NAMES_OF_ATTENTION_SIZES: Final = ("B", "H_Q", "N_Q", "N_KV", "d_h_qk")
#: Instructions that compute nothing: they move data or give it a name.
_MOVES: Final = frozenset(
    [
        b"parameter",
        b"constant",
        b"bitcast",
        b"bitcast-convert",
        b"broadcast",
        b"reshape",
        b"transpose",
        b"copy",
        b"tuple",
        b"slice",
        b"pad",
        b"get-tuple-element",
        b"concatenate",
        b"reverse",
        b"iota",
        b"gather",
        b"dynamic-slice",
        b"dynamic-update-slice",
        b"convert",
        b"select",
        b"after-all",
        b"optimization-barrier",
    ]
)
_SLICES: Final = (b"slice", b"dynamic-slice", b"gather")
_REDUCTIONS: Final = (b"reduce", b"reduce-window")
_CALLS: Final = (b"fusion", b"call", b"async-start")
_DEEPEST_CALL: Final = 20


@MODELS.add("hlo::*")
def instruction(operation: Operation) -> Cost:
    """An instruction of XLA: a product on the matrix units, or other work on the vector units."""
    attributes = operation.attributes
    called = attributes.get("target") or attributes.get("opcode")
    work = required(operation.work, f"the HLO does not describe what {called} computes")
    if work.product:
        engine = Engine.MATRIX
        kind = work.kind
    else:
        engine = Engine.VECTOR
        kind = _type_of_largest(operation)
    return Cost(
        family=_FAMILIES.get(work.product, "XLA"),
        flops=work.flops,
        bytes=work.bytes,
        data_type=short_type(kind),
        engine=engine.value,
        parameters=_parameters(operation, work),
    )


def _type_of_largest(operation: Operation) -> str:
    """Return the element type of the largest tensor argument; empty without one."""
    if not operation.tensors:
        return ""
    return max(operation.tensors, key=lambda tensor: tensor.written).kind


def _parameters(operation: Operation, work: HloWork) -> dict[str, object]:
    """Return the sizes and settings of an instruction for the tables."""
    if work.product.startswith("convolution") and len(operation.tensors) > 1:
        inputs, weight = operation.tensors[:2]
        return {
            "convNd": f"conv{len(inputs.dims) - 2}d",
            "input_shape": inputs.dims,
            "filter_shape": weight.dims,
            "output_shape": operation.attributes.get("result", ""),
            "dtype_input_weight": (inputs.kind, weight.kind),
            **work.windows,
        }
    names = _NAMES_OF_DOT_SIZES if work.product == "dot" else _NAMES_OF_ATTENTION_SIZES
    return dict(zip(names, work.sizes, strict=False))


class WorksOfOperations(NamedTuple):
    """The work of n operations, as far as the HLO programs in the trace tell it."""

    #: the index into `works` of each operation, `NONE` if its work is not known, (n,)
    work_of_row: Int64Array
    works: list[HloWork]  #: the distinct works


def works_of(trace: Trace, rows: IntArray) -> WorksOfOperations:
    """Find the work of the operations in n rows of a trace, (n,)."""
    if not trace.programs:
        return WorksOfOperations(
            work_of_row=np.full(len(rows), NONE, dtype=np.int64), works=[]
        )
    # A code holds the number of a program and, in its low bits, the number of an instruction.
    codes, code_of_row = np.unique(trace.instructions.at(rows), return_inverse=True)
    work_of_code = np.full(len(codes), NONE, dtype=np.int64)
    works: list[HloWork] = []
    index_of_text: dict[str, int] = {}  # of the work with this representation
    program_worker = cache(lambda program: Worker(trace.programs[program]))
    for code_index in np.flatnonzero(codes != NONE).tolist():
        program, instruction_number = divmod(int(codes[code_index]), 1 << PROGRAM_SHIFT)
        work = program_worker(program).work(instruction_number)
        if work is None:
            continue
        text = repr(work)
        if text not in index_of_text:
            index_of_text[text] = len(works)
            works.append(work)
        work_of_code[code_index] = index_of_text[text]
    return WorksOfOperations(work_of_code[code_of_row.reshape(-1)], works)


class Worker:
    """Finds the work of the instructions of a program, given as a serialized `HloProto`."""

    def __init__(self, program: bytes) -> None:
        module = message_class("HloProto").FromString(program).hlo_module
        self._instructions = xla.instructions_of(module)
        self._by_id = {message.id: message for message in self._instructions}
        self._computations = {
            computation.id: _Computation(
                instructions=computation.instructions, root=computation.root_id
            )
            for computation in module.computations
        }
        self._work_of_computation: dict[int, HloWork | None] = {}

    def work(self, number: int) -> HloWork | None:
        """Return the work of an instruction; None if it calls code that is not known.

        Args:
            number: the index of the instruction among all instructions of the program.
        """
        message = self._instructions[number]
        work = HloWork.of_parts([self._of_instruction(message, _DEEPEST_CALL)])
        if work is None:
            return None
        work.windows = xla.windows_of(message)
        operands = xla.operands_of(message, self._by_id)
        work.bytes = _bytes(operands) + _bytes(xla.results_of(message))
        if message.opcode == b"fusion":
            for computation in set(message.called_computation_ids):
                work.bytes -= self._untouched_bytes(computation)
        return work

    def _of_instruction(self, message: Message, depth: int) -> HloWork | None:
        """Return the operations of an instruction, without bytes; None if they are not known.

        Args:
            message: the instruction.
            depth: how many calls may be nested below it.
        """
        opcode = message.opcode
        if opcode in _CALLS:
            called = message.called_computation_ids
            return HloWork.of_parts(
                self._of_computation(computation, depth - 1) for computation in called
            )
        results = xla.results_of(message)
        operands = xla.operands_of(message, self._by_id)
        if opcode == b"custom-call":
            return custom_call_work(message, operands, results)
        if opcode == b"dot":
            dot = message.dot
            return dot_work(
                contracting=dot.lhs_contracting,
                batch_dimensions=dot.lhs_batch,
                operands=operands,
                results=results,
            )
        window = message.window.dimensions[: xla.MOST_DIMENSIONS]
        if opcode == b"convolution":
            dilation = math.prod(
                max(dimension.base_dilation, 1) for dimension in window
            )
            return convolution_work(
                product="convolution",
                message=message,
                arrays=operands[:2] + results,
                input_dilation=dilation,
            )
        elements = _elements(results)
        if opcode in _REDUCTIONS:
            window_elements = math.prod(max(dimension.size, 1) for dimension in window)
            if window_elements > 1:
                return HloWork(elements * window_elements)
            # The second half of the operands are the initial values.
            reduced_count = max(len(operands) // 2, 1)
            return HloWork(_elements(operands[:reduced_count]))
        if opcode in _MOVES:
            return HloWork(0)
        return HloWork(elements)

    def _of_computation(self, identifier: int, depth: int) -> HloWork | None:
        """Return the operations of a computation; None if they are not known.

        They are not known if the computation calls itself or calls are nested too deeply.
        """
        if identifier in self._work_of_computation:
            return self._work_of_computation[identifier]
        # A call of this computation below finds this None.
        self._work_of_computation[identifier] = None
        computation = self._computations.get(identifier)
        if depth and computation is not None and computation.instructions:
            parts = (
                self._of_instruction(message, depth)
                for message in computation.instructions
            )
            self._work_of_computation[identifier] = HloWork.of_parts(parts)
        return self._work_of_computation[identifier]

    def _untouched_bytes(self, identifier: int) -> int:
        """Return the bytes of operands and results that a fusion neither reads nor writes.

        Only the slices of an operand are read if the fusion takes nothing but slices of it. An
        update in place writes only the update, and does not read the array that it changes.

        Args:
            identifier: the computation that the fusion calls.
        """
        computation = self._computations.get(identifier)
        if computation is None:
            return 0
        users_of: dict[int, list[Message]] = {}
        for message in computation.instructions:
            for operand in message.operand_ids:
                users_of.setdefault(operand, []).append(message)
        untouched = 0
        for message in computation.instructions:
            all_bytes = _bytes(xla.arrays_of(message.shape))
            touched_bytes = all_bytes
            if message.opcode == b"parameter":
                touched_bytes = _bytes_read_by(
                    users=users_of.get(message.id, []),
                    parameter=message.id,
                    all_bytes=all_bytes,
                )
            elif (
                message.opcode == b"dynamic-update-slice"
                and message.id == computation.root
            ):
                touched_bytes = self._bytes_of_update(message)
            untouched += max(all_bytes - touched_bytes, 0)
        return untouched

    def _bytes_of_update(self, message: Message) -> int:
        """Return the bytes of the second operand of an update: the part that is written."""
        operands = message.operand_ids
        if len(operands) < 2:
            return 0
        update = self._by_id.get(operands[1])
        if update is None:
            return 0
        arrays = xla.arrays_of(update.shape)
        return _bytes(arrays)


class _Computation(NamedTuple):
    """A computation of a program."""

    instructions: Sequence[Message]
    #: the identifier of the instruction whose result is the result of the computation
    root: int


def _bytes_read_by(users: Sequence[Message], parameter: int, all_bytes: int) -> int:
    """Return how many bytes of a parameter its users read.

    Args:
        users: the instructions that have the parameter as an operand.
        parameter: its identifier.
        all_bytes: its size, which an instruction reads that does not only slice or update it.
    """
    read = 0
    for user in users:
        is_first_operand = user.operand_ids[:1] == [parameter]
        if user.opcode in _SLICES and is_first_operand:
            read += _bytes(xla.arrays_of(user.shape))
        elif user.opcode != b"dynamic-update-slice" or not is_first_operand:
            return all_bytes
    return min(read, all_bytes)


def _bytes(arrays: Iterable[Shape]) -> int:
    return sum(array.bytes for array in arrays)


def _elements(arrays: Iterable[Shape]) -> int:
    return sum(array.elements for array in arrays)
