"""Operations of XLA: what the HLO of a profile of JAX says that an instruction computes and moves.

A multiply and an add are two operations. Products count as in "XLA operation semantics" of
openxla.org: `dot` sums over its contracting dimensions, `convolution` over the window and the input
features. Any other instruction that computes counts one for each element of its result. Bytes are
those of operands and results, each once; of an operand that a fusion takes slices of, the slices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens_ext.readers.xplane import hlo as xla
from tracelens_ext.readers.xplane.messages import message_class
from tracelens_ext.roofline.element_types import short_type
from tracelens_ext.roofline.operation import Cost, Engine, Models, Operation, required
from tracelens_ext.text import json_value
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
#: Instructions that compute nothing: they move data, or name it.
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
#: Beginnings of the targets of custom calls → the product that they compute.
_PRODUCTS: Final = {
    b"__cublas": "dot",
    b"__triton_gemm": "dot",
    b"__cudnn$convForward": "convolution",
    b"__cudnn$convBiasActivation": "convolution",
    b"__cudnn$convBackwardInput": "convolution of gradients",
    b"__cudnn$convBackwardFilter": "convolution of gradients",
    b"__cudnn$fmha": "attention",
}
_PRODUCTS_OF_ATTENTION: Final = 2
_PRODUCTS_OF_ATTENTION_GRADIENTS: Final = 5
#: Longer numbers are none of this world.
_MOST_DIGITS: Final = 18


@dataclass(eq=False)
class HloWork:
    """What an instruction does."""

    flops: int = 0  #: operations
    #: `dot`, `convolution`, `attention`, or one of the latter two `of gradients`: the largest
    #: product in it; empty for none
    product: str = ""
    kind: str = ""  #: the type of the elements that the product takes
    #: of the product: B, M, N, K of a `dot`; B, H, S, T, D of attention
    sizes: tuple[int, ...] = ()
    largest: int = field(init=False, repr=False)  #: operations of the product
    bytes: int = 0  #: bytes of operands and results
    #: stride, padding and dilation of an instruction with a window
    windows: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.largest = self.flops if self.product else -1

    @classmethod
    def of_parts(cls, parts: Iterable[HloWork | None]) -> HloWork | None:
        """Return what parts do together, None where that of one is not known.

        Bytes that parts hand to one another are none of memory's.
        """
        work = cls()
        for part in parts:
            if part is None:
                return None
            work.flops += part.flops
            if part.largest > work.largest:
                work.largest = part.largest
                work.product = part.product
                work.kind = part.kind
                work.sizes = part.sizes
        return work


@MODELS.add("hlo::*")
def instruction(operation: Operation) -> Cost:
    """A product of the matrix units, or else a fusion, whose bytes are what counts."""
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
    if not operation.tensors:
        return ""
    return max(operation.tensors, key=lambda tensor: tensor.written).kind


def _parameters(operation: Operation, work: HloWork) -> dict[str, object]:
    """Return what experts read of an instruction."""
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
    """The work of operations, where the programs of the trace tell it."""

    #: which of `works` each operation has, `NONE` for others, shape of the operations
    work_of_row: Int64Array
    works: list[HloWork]  #: the distinct ones


def works_of(trace: Trace, rows: IntArray) -> WorksOfOperations:
    """Find the work of operations, given by their rows, shape (n,)."""
    if not trace.programs:
        return WorksOfOperations(
            work_of_row=np.full(len(rows), NONE, dtype=np.int64), works=[]
        )
    codes, code_of_row = np.unique(trace.instructions.at(rows), return_inverse=True)
    index_of_code = np.full(len(codes), NONE, dtype=np.int64)
    works: list[HloWork] = []
    numbers: dict[str, int] = {}
    program_worker = cache(lambda program: Worker(trace.programs[program]))
    for place in np.flatnonzero(codes != NONE).tolist():
        program, instruction_place = divmod(int(codes[place]), 1 << PROGRAM_SHIFT)
        work = program_worker(program).work(instruction_place)
        if work is None:
            continue
        text = repr(work)
        if text not in numbers:
            numbers[text] = len(works)
            works.append(work)
        index_of_code[place] = numbers[text]
    return WorksOfOperations(index_of_code[code_of_row.reshape(-1)], works)


class Worker:
    """Finds the work of the instructions of a program, which is given as the message `HloProto`."""

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

    def work(self, place: int) -> HloWork | None:
        """Return what an instruction does; None for a call of code that is not known.

        Args:
            place: that of the instruction among all of the program.
        """
        message = self._instructions[place]
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
        """Return what an instruction computes; None where that is not known."""
        opcode = message.opcode
        if opcode in _CALLS:
            called = message.called_computation_ids
            return HloWork.of_parts(
                self._of_computation(number, depth - 1) for number in called
            )
        results = xla.results_of(message)
        operands = xla.operands_of(message, self._by_id)
        if opcode == b"custom-call":
            return _custom_call(message, operands, results)
        if opcode == b"dot":
            dot = message.dot
            return _dot(
                contracting=dot.lhs_contracting,
                batch_dimensions=dot.lhs_batch,
                operands=operands,
                results=results,
            )
        window = message.window.dimensions[: xla.MOST_DIMENSIONS]
        if opcode == b"convolution":
            holes = math.prod(max(dimension.base_dilation, 1) for dimension in window)
            return _convolution(
                product="convolution",
                message=message,
                arrays=operands[:2] + results,
                holes=holes,
            )
        elements = _elements(results)
        if opcode in _REDUCTIONS:
            window_elements = math.prod(max(dimension.size, 1) for dimension in window)
            if window_elements > 1:
                return HloWork(elements * window_elements)
            reduced_count = max(len(operands) // 2, 1)  # the others are initial values
            return HloWork(_elements(operands[:reduced_count]))
        return HloWork(0 if opcode in _MOVES else elements)

    def _of_computation(self, number: int, depth: int) -> HloWork | None:
        """Return what a computation does; None where that is not known, as of one in itself."""
        if number in self._work_of_computation:
            return self._work_of_computation[number]
        self._work_of_computation[number] = None
        computation = self._computations.get(number)
        if depth and computation is not None and computation.instructions:
            parts = (
                self._of_instruction(message, depth)
                for message in computation.instructions
            )
            self._work_of_computation[number] = HloWork.of_parts(parts)
        return self._work_of_computation[number]

    def _untouched_bytes(self, number: int) -> int:
        """Return the bytes of operands and results that a fusion neither reads nor writes.

        Of an operand that is only sliced it reads the slices. An update in place writes the update,
        and does not read what it is put into.
        """
        computation = self._computations.get(number)
        if computation is None:
            return 0
        users_of: dict[int, list[Message]] = {}
        for message in computation.instructions:
            for operand in message.operand_ids:
                users_of.setdefault(operand, []).append(message)
        untouched = 0
        for message in computation.instructions:
            whole = _bytes(xla.arrays_of(message.shape))
            touched = whole
            if message.opcode == b"parameter":
                touched = _bytes_read_by(
                    users=users_of.get(message.id, []),
                    parameter=message.id,
                    whole=whole,
                )
            elif (
                message.opcode == b"dynamic-update-slice"
                and message.id == computation.root
            ):
                touched = self._bytes_of_update(message)
            untouched += max(whole - touched, 0)
        return untouched

    def _bytes_of_update(self, message: Message) -> int:
        """Return the bytes of the second operand, which is written into the first."""
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
    #: the identifier of the instruction whose result is that of the computation
    root: int


def _bytes_read_by(users: Sequence[Message], parameter: int, whole: int) -> int:
    """Return how many bytes of a parameter its users read."""
    read = 0
    for user in users:
        is_first_operand = user.operand_ids[:1] == [parameter]
        if user.opcode in _SLICES and is_first_operand:
            read += _bytes(xla.arrays_of(user.shape))
        elif user.opcode != b"dynamic-update-slice" or not is_first_operand:
            return whole
    return min(read, whole)


def _bytes(arrays: Iterable[Shape]) -> int:
    return sum(array.bytes for array in arrays)


def _elements(arrays: Iterable[Shape]) -> int:
    return sum(array.elements for array in arrays)


def _custom_call(
    message: Message, operands: list[Shape], results: list[Shape]
) -> HloWork | None:
    """Return the product that a library computes; None for other calls."""
    target = message.custom_call_target
    product = _product_of_target(target)
    if not product or len(operands) < 2 or not results:
        return None
    config = json_value(message.backend_config)
    if product == "dot":
        dot = _member(config, "gemm_backend_config", "dot_dimension_numbers")
        if not isinstance(dot, dict):
            return None
        contracting = _whole_numbers(dot.get("lhs_contracting_dimensions"))
        batch = _whole_numbers(dot.get("lhs_batch_dimensions"))
        return _dot(
            contracting=contracting,
            batch_dimensions=batch,
            operands=operands,
            results=results,
        )
    if product == "attention":
        return _attention(target, config, operands[0])
    # As the forward convolution has them: input, filter, output.
    first = operands[0]
    second = operands[1]
    result = results[0]
    arrays = [first, second, result]
    if b"Input" in target:
        arrays = [result, second, first]
    elif b"Filter" in target:
        arrays = [first, result, second]
    return _convolution(product, message, arrays)


def _product_of_target(target: bytes) -> str:
    for beginning, product in _PRODUCTS.items():
        if target.startswith(beginning):
            return product
    return ""


def _dot(
    contracting: Iterable[int],
    batch_dimensions: Iterable[int],
    operands: list[Shape],
    results: list[Shape],
) -> HloWork:
    """Return the work of a product, by the dimensions of its first operand."""
    if len(operands) < 2 or not results:
        return HloWork()
    remaining = dict(enumerate(operands[0].dims))
    k = math.prod(remaining.pop(dimension, 1) for dimension in contracting)
    batch = math.prod(remaining.pop(dimension, 1) for dimension in batch_dimensions)
    m = math.prod(remaining.values())
    elements = results[0].elements
    n = elements // max(batch * m, 1)
    return HloWork(
        flops=2 * elements * k,
        product="dot",
        kind=operands[0].kind,
        sizes=(batch, m, n, k),
    )


def _convolution(
    product: str, message: Message, arrays: Sequence[Shape], holes: int = 1
) -> HloWork:
    """Return the work of a convolution.

    Args:
        product: what it is called.
        message: the instruction.
        arrays: input, filter and output of the forward convolution.
        holes: elements of the dilated input for each that is not 0.
    """
    if len(arrays) < 3:
        return HloWork()
    inputs, weight, output = arrays[:3]
    feature_dimension = message.convolution.kernel_output_feature
    features = 1
    if 0 <= feature_dimension < len(weight.dims):
        features = weight.dims[feature_dimension]
    summed = weight.elements // max(features, 1)
    flops = 2 * output.elements * summed // holes
    return HloWork(flops=flops, product=product, kind=inputs.kind)


def _attention(target: bytes, config: object, query: Shape) -> HloWork | None:
    """Return the products of attention: scores and their sums, with gradients five of that size."""
    settings = _member(config, "cudnn_fmha_backend_config")
    sizes = _whole_numbers(_member(settings, "intermediate_tensor_shape", "dimensions"))
    dot = _member(settings, "bmm1_dot_dimension_numbers")
    contracting = _whole_numbers(_member(dot, "lhs_contracting_dimensions"))
    if (
        len(sizes) != 4
        or len(contracting) != 1
        or not 0 <= contracting[0] < len(query.dims)
    ):
        return None
    head_size = query.dims[contracting[0]]
    product = "attention"
    count = _PRODUCTS_OF_ATTENTION
    if b"Backward" in target:
        product = "attention of gradients"
        count = _PRODUCTS_OF_ATTENTION_GRADIENTS
    return HloWork(
        flops=count * 2 * math.prod(sizes) * head_size,
        product=product,
        kind=query.kind,
        sizes=tuple(sizes) + (head_size,),
    )


def _member(value: object, *names: str) -> object:
    """Return a member of nested objects; None where there is none."""
    for name in names:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _whole_numbers(value: object) -> list[int]:
    """Return a list of whole numbers, which JSON of Protocol Buffers writes as texts."""
    if not isinstance(value, list):
        return []
    numbers = []
    for number in value:
        text = str(number)
        if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
            numbers.append(int(text))
    return numbers
