"""What an instruction of the HLO has to compute and to move at the least.

A multiply and an add are two operations. Products count as in "XLA operation semantics" of
openxla.org: `dot` sums over its contracting dimensions, `convolution` over the window and the input
features. Any other instruction that computes counts one for each element of its result. Bytes are
those of operands and results, each once; of an operand that a fusion takes slices of, the slices.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.readers.xplane.hlo import (
    MOST_DIMENSIONS,
    Shape,
    arrays_of,
    instructions_of,
    message_class,
    operands_of,
    results_of,
    windows_of,
)
from tracelens_ext.trace import NONE, PROGRAM_SHIFT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracelens_ext.readers.xplane.hlo import Message
    from tracelens_ext.trace import Int64Array, IntArray, Trace

#: Instructions that compute nothing: they move data, or name it.
_MOVES: Final = frozenset(
    b"parameter constant bitcast bitcast-convert broadcast reshape transpose copy tuple slice pad"
    b" get-tuple-element concatenate reverse iota gather dynamic-slice dynamic-update-slice"
    b" convert select after-all optimization-barrier".split()
)
_SLICES: Final = (b"slice", b"dynamic-slice", b"gather")
_REDUCTIONS: Final = (b"reduce", b"reduce-window")
_CALLS: Final = (b"fusion", b"call", b"async-start")
_DEEPEST: Final = 20
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
_PRODUCTS_OF_ATTENTION: Final = {"attention": 2, "attention of gradients": 5}


@dataclass(eq=False)
class Work:
    """What an instruction does."""

    flops: int = 0  #: operations
    bytes: int = 0  #: bytes of operands and results
    #: `dot`, `convolution`, `attention`, or one of the latter two `of gradients`: the largest
    #: product in it; empty for none
    product: str = ""
    kind: str = ""  #: the type of the elements that the product takes
    #: of the product: B, M, N, K of a `dot`; B, H, S, T, D of attention
    sizes: tuple[int, ...] = ()
    #: stride, padding and dilation of an instruction with a window
    windows: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _largest: int = field(default=-1, repr=False)

    def add(self, other: Work) -> None:
        """Count what a part does; bytes within are none of memory's."""
        self.flops += other.flops
        if other._largest > self._largest:
            self._largest, self.product = other._largest, other.product
            self.kind, self.sizes = other.kind, other.sizes

    def add_product(self, product: str, flops: int, kind: str, sizes: tuple[int, ...] = ()) -> None:
        """Count a product."""
        self.flops += flops
        if flops > self._largest:
            self._largest, self.product, self.kind, self.sizes = flops, product, kind, sizes


def works_of(trace: Trace, rows: IntArray) -> tuple[Int64Array, list[Work]]:
    """The work of operations, where the programs of the trace tell it.

    Gives indices, `NONE` for the others, shape of `rows`; and the distinct works.
    """
    asked, place = np.unique(trace.instructions.at(rows), return_inverse=True)
    codes = np.full(len(asked), NONE, dtype=np.int64)
    programs: dict[int, Worker] = {}
    distinct: dict[str, int] = {}
    works: list[Work] = []
    for i, code in enumerate(asked.tolist()):
        if code == NONE:
            continue
        program, instruction = divmod(code, 1 << PROGRAM_SHIFT)
        if program not in programs:
            programs[program] = Worker(trace.programs[program])
        if (work := programs[program].work(instruction)) is not None:
            codes[i] = distinct.setdefault(repr(work), len(distinct))
            if len(works) < len(distinct):
                works.append(work)
    return codes[place.reshape(-1)], works


class Worker:
    """Finds the work of the instructions of a program, which is given as the message `HloProto`."""

    def __init__(self, program: bytes) -> None:
        module = message_class("HloProto").FromString(program).hlo_module
        self._instructions = instructions_of(module)
        self._by_id = {each.id: each for each in self._instructions}
        self._computations = {p.id: (p.instructions, p.root_id) for p in module.computations}
        self._found: dict[int, Work | None] = {}

    def work(self, place: int) -> Work | None:
        """What an instruction does, by its place; None for a call of code that is not known."""
        instruction = self._instructions[place]
        work = Work(windows=windows_of(instruction))
        if not self._count(instruction, work, _DEEPEST):
            return None
        results = results_of(instruction)
        work.bytes = sum(
            array.bytes for array in (*operands_of(instruction, self._by_id), *results)
        )
        if instruction.opcode == b"fusion":
            work.bytes -= sum(map(self._untouched, set(instruction.called_computation_ids)))
        return work

    def _count(self, each: Message, work: Work, depth: int) -> bool:
        """Count what an instruction computes; False where that is not known."""
        opcode, results = each.opcode, results_of(each)
        elements = sum(array.elements for array in results)
        if opcode in _CALLS:
            parts = [self._of_computation(n, depth - 1) for n in each.called_computation_ids]
            for part in parts:
                if part is None:
                    return False
                work.add(part)
            return True
        operands, window = operands_of(each, self._by_id), each.window.dimensions[:MOST_DIMENSIONS]
        if opcode == b"custom-call":
            return _count_custom_call(each, operands, results, work)
        if opcode == b"dot":
            _count_dot(each.dot.lhs_contracting, each.dot.lhs_batch, operands, results, work)
        elif opcode == b"convolution":
            holes = math.prod(max(d.base_dilation, 1) for d in window)
            _count_convolution("convolution", each, (*operands[:2], *results), work, holes)
        elif opcode in _REDUCTIONS:
            windows = math.prod(max(d.size, 1) for d in window)
            work.flops += (
                elements * windows
                if windows > 1
                else sum(array.elements for array in operands[: max(len(operands) // 2, 1)])
            )
        elif opcode not in _MOVES:
            work.flops += elements
        return True

    def _of_computation(self, number: int, depth: int) -> Work | None:
        """What a computation does; None where that is not known, as of one that calls itself."""
        if number not in self._found:
            self._found[number], work = None, Work()
            instructions, _ = self._computations.get(number, ((), 0))
            if depth and instructions and all(self._count(i, work, depth) for i in instructions):
                self._found[number] = work
        return self._found[number]

    def _untouched(self, computation: int) -> int:
        """Bytes of operands and results of a fusion that it neither reads nor writes.

        Of an operand that is only sliced it reads the slices. An update in place writes the update,
        and does not read what it is put into.
        """
        instructions, root = self._computations.get(computation, ((), 0))
        users: dict[int, list[Message]] = {}
        for each in instructions:
            for number in each.operand_ids:
                users.setdefault(number, []).append(each)
        saved = 0
        for each in instructions:
            whole = _bytes(arrays_of(each.shape))
            if each.opcode == b"parameter":
                saved += max(whole - self._read(each.id, users.get(each.id, []), whole), 0)
            elif each.opcode == b"dynamic-update-slice" and each.id == root:
                saved += max(whole - self._update(each), 0)
        return saved

    def _read(self, number: int, users: Sequence[Message], whole: int) -> int:
        read = 0
        for user in users:
            first = user.operand_ids[:1] == [number]
            if user.opcode in _SLICES and first:
                read += _bytes(arrays_of(user.shape))
            elif user.opcode != b"dynamic-update-slice" or not first:
                return whole
        return min(read, whole)

    def _update(self, each: Message) -> int:
        update = self._by_id.get(next(iter(each.operand_ids[1:2]), -1))
        return _bytes(arrays_of(update.shape)) if update is not None else 0


def _bytes(arrays: Iterable[Shape]) -> int:
    return sum(array.bytes for array in arrays)


def _count_custom_call(
    each: Message, operands: list[Shape], results: list[Shape], work: Work
) -> bool:
    target = each.custom_call_target
    product = next((p for begin, p in _PRODUCTS.items() if target.startswith(begin)), "")
    if not product or len(operands) < 2 or not results:
        return False
    config = _json(each.backend_config)
    if product == "dot":
        dot = _member(config, "gemm_backend_config", "dot_dimension_numbers")
        if not isinstance(dot, dict):
            return False
        contracting = _wholes(dot.get("lhs_contracting_dimensions"))
        _count_dot(contracting, _wholes(dot.get("lhs_batch_dimensions")), operands, results, work)
    elif product == "attention":
        return _count_attention(target, config, operands[0], work)
    else:  # as the forward convolution has them: input, filter, output
        x, y, z = operands[0], operands[1], results[0]
        placed = (
            (z, y, x) if b"Input" in target else (x, z, y) if b"Filter" in target else (x, y, z)
        )
        _count_convolution(product, each, placed, work)
    return True


def _count_dot(
    contracting: Iterable[int],
    batch: Iterable[int],
    operands: list[Shape],
    results: list[Shape],
    work: Work,
) -> None:
    if len(operands) < 2 or not results:
        return
    left = dict(enumerate(operands[0].dims))
    k = math.prod(left.pop(i, 1) for i in contracting)
    b = math.prod(left.pop(i, 1) for i in batch)
    m = math.prod(left.values())
    elements = results[0].elements
    sizes = (b, m, elements // max(b * m, 1), k)
    work.add_product("dot", 2 * elements * k, operands[0].kind, sizes)


def _count_convolution(
    product: str, each: Message, placed: tuple[Shape, ...], work: Work, holes: int = 1
) -> None:
    """Count a convolution.

    `placed`: input, filter and output of the forward convolution. `holes`: elements of the dilated
    input for each that is not 0.
    """
    if len(placed) < 3:
        return
    x, weight, output = placed[:3]
    features = dict(enumerate(weight.dims)).get(each.convolution.kernel_output_feature, 1)
    summed = weight.elements // max(features, 1)
    work.add_product(product, 2 * output.elements * summed // holes, x.kind)


def _count_attention(target: bytes, config: object, query: Shape, work: Work) -> bool:
    """Count products of attention: scores and their sums, with gradients five of that size."""
    about = _member(config, "cudnn_fmha_backend_config")
    sizes = _wholes(_member(about, "intermediate_tensor_shape", "dimensions"))
    contracting = _wholes(
        _member(about, "bmm1_dot_dimension_numbers", "lhs_contracting_dimensions")
    )
    if len(sizes) != 4 or len(contracting) != 1 or not 0 <= contracting[0] < len(query.dims):
        return False
    product = "attention of gradients" if b"Backward" in target else "attention"
    d = query.dims[contracting[0]]
    count = _PRODUCTS_OF_ATTENTION[product]
    work.add_product(product, count * 2 * math.prod(sizes) * d, query.kind, (*sizes, d))
    return True


def _json(text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _member(value: object, *names: str) -> object:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _wholes(value: object) -> list[int]:
    """Whole numbers, which JSON of Protocol Buffers writes as texts."""
    values = value if isinstance(value, list) else []
    return [int(v) for v in values if str(v).isascii() and str(v).isdigit() and len(str(v)) < 19]
