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
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.readers.xplane import hlo as xla
from tracelens_ext.roofline.operation import Cost, Models, Operation, known, named, short_type
from tracelens_ext.text import json_value
from tracelens_ext.trace import NONE, PROGRAM_SHIFT, Int64Array, IntArray, Trace

if TYPE_CHECKING:
    from tracelens_ext.readers.xplane.hlo import Message, Shape

MODELS = Models()
_FAMILIES: Final = {
    "dot": "GEMM",
    "convolution": "CONV_fwd",
    "convolution of gradients": "CONV_bwd",
    "attention": "SDPA_fwd",
    "attention of gradients": "SDPA_bwd",
}
_SIZES: Final = {"dot": ("B", "M", "N", "K")}
_SIZES_OF_ATTENTION: Final = ("B", "H_Q", "N_Q", "N_KV", "d_h_qk")
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
    **dict.fromkeys((b"__cublas", b"__triton_gemm"), "dot"),
    **dict.fromkeys((b"__cudnn$convForward", b"__cudnn$convBiasActivation"), "convolution"),
    b"__cudnn$convBackwardInput": "convolution of gradients",
    b"__cudnn$convBackwardFilter": "convolution of gradients",
    b"__cudnn$fmha": "attention",
}


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
        """What parts do, None where that of one is not known; bytes within are none of memory's."""
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


@MODELS.of("hlo")("hlo::*")
def instruction(op: Operation) -> Cost:
    """A product of the matrix units, or else a fusion, whose bytes are what counts."""
    about = op.attributes
    work = op.work
    called = about.get("target") or about.get("opcode")
    work = known(work, f"the HLO does not say what {called} computes")
    kind = work.kind
    engine = "matrix" if work.product else "vector"
    shown = _parameters(op, work)
    if not work.product:
        kind = max(op.tensors, key=lambda t: t.written).kind if op.tensors else ""
    family = _FAMILIES.get(work.product, "XLA")
    return Cost(family, work.flops, work.bytes, short_type(kind), engine, shown)


def _parameters(op: Operation, work: HloWork) -> dict[str, object]:
    if work.product.startswith("convolution") and len(op.tensors) > 1:
        (x, weight) = op.tensors[:2]
        result = op.attributes.get("result", "")
        names = "convNd input_shape filter_shape output_shape dtype_input_weight"
        shapes = f"conv{len(x.dims) - 2}d", x.dims, weight.dims, result
        return named(names, *shapes, (x.kind, weight.kind)) | work.windows
    return dict(zip(_SIZES.get(work.product, _SIZES_OF_ATTENTION), work.sizes, strict=False))


def works_of(trace: Trace, rows: IntArray) -> tuple[Int64Array, list[HloWork]]:
    """The work of operations, where the programs of the trace tell it.

    Gives indices, `NONE` for the others, shape of `rows`; and the distinct works.
    """
    if not trace.programs:
        return np.full(len(rows), NONE, dtype=np.int64), []
    asked, place = np.unique(trace.instructions.at(rows), return_inverse=True)
    codes = np.full(len(asked), NONE, dtype=np.int64)
    worker = cache(lambda program: Worker(trace.programs[program]))
    distinct: dict[str, tuple[int, HloWork]] = {}
    for i in np.flatnonzero(asked != NONE).tolist():
        program, number = divmod(int(asked[i]), 1 << PROGRAM_SHIFT)
        if (work := worker(program).work(number)) is not None:
            codes[i], _ = distinct.setdefault(repr(work), (len(distinct), work))
    return codes[place.reshape(-1)], [work for _, work in distinct.values()]


class Worker:
    """Finds the work of the instructions of a program, which is given as the message `HloProto`."""

    def __init__(self, program: bytes) -> None:
        module = xla.message_class("HloProto").FromString(program).hlo_module
        self._instructions = xla.instructions_of(module)
        self._by_id = {each.id: each for each in self._instructions}
        self._computations = {p.id: (p.instructions, p.root_id) for p in module.computations}
        self._found: dict[int, HloWork | None] = {}

    def work(self, place: int) -> HloWork | None:
        """What an instruction does, by its place; None for a call of code that is not known."""
        each = self._instructions[place]
        if (found := HloWork.of_parts([self._of_instruction(each, _DEEPEST)])) is None:
            return None
        found.windows = xla.windows_of(each)
        found.bytes = _bytes((*xla.operands_of(each, self._by_id), *xla.results_of(each)))
        if each.opcode == b"fusion":
            found.bytes -= sum(map(self._untouched, set(each.called_computation_ids)))
        return found

    def _of_instruction(self, each: Message, depth: int) -> HloWork | None:
        """What an instruction computes; None where that is not known."""
        opcode = each.opcode
        results = xla.results_of(each)
        if opcode in _CALLS:
            called = each.called_computation_ids
            return HloWork.of_parts([self._of_computation(n, depth - 1) for n in called])
        operands = xla.operands_of(each, self._by_id)
        window = each.window.dimensions[: xla.MOST_DIMENSIONS]
        if opcode == b"custom-call":
            return _custom_call(each, operands, results)
        if opcode == b"dot":
            return _dot(each.dot.lhs_contracting, each.dot.lhs_batch, operands, results)
        if opcode == b"convolution":
            holes = math.prod(max(d.base_dilation, 1) for d in window)
            return _convolution("convolution", each, (*operands[:2], *results), holes)
        elements = _elements(results)
        if opcode in _REDUCTIONS:
            windows = math.prod(max(d.size, 1) for d in window)
            reduced = operands[: max(len(operands) // 2, 1)]
            return HloWork(elements * windows if windows > 1 else _elements(reduced))
        return HloWork(0 if opcode in _MOVES else elements)

    def _of_computation(self, number: int, depth: int) -> HloWork | None:
        """What a computation does; None where that is not known, as of one that calls itself."""
        if number not in self._found:
            self._found[number] = None
            instructions, _ = self._computations.get(number, ((), 0))
            if depth and instructions:
                parts = (self._of_instruction(each, depth) for each in instructions)
                self._found[number] = HloWork.of_parts(parts)
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
            whole = touched = _bytes(xla.arrays_of(each.shape))
            if each.opcode == b"parameter":
                touched = _read(each.id, users.get(each.id, []), whole)
            elif each.opcode == b"dynamic-update-slice" and each.id == root:
                update = self._by_id.get(next(iter(each.operand_ids[1:2]), -1))
                touched = _bytes(xla.arrays_of(update.shape)) if update is not None else 0
            saved += max(whole - touched, 0)
        return saved


def _read(number: int, users: Sequence[Message], whole: int) -> int:
    """How many bytes of a parameter its users read."""
    read = 0
    for user in users:
        first = user.operand_ids[:1] == [number]
        if user.opcode in _SLICES and first:
            read += _bytes(xla.arrays_of(user.shape))
        elif user.opcode != b"dynamic-update-slice" or not first:
            return whole
    return min(read, whole)


def _bytes(arrays: Iterable[Shape]) -> int:
    return sum(array.bytes for array in arrays)


def _elements(arrays: Iterable[Shape]) -> int:
    return sum(array.elements for array in arrays)


def _custom_call(each: Message, operands: list[Shape], results: list[Shape]) -> HloWork | None:
    target = each.custom_call_target
    product = next((p for begin, p in _PRODUCTS.items() if target.startswith(begin)), "")
    if not product or len(operands) < 2 or not results:
        return None
    config = json_value(each.backend_config)
    if product == "dot":
        dot = _member(config, "gemm_backend_config", "dot_dimension_numbers")
        if not isinstance(dot, dict):
            return None
        summed, batch = (_wholes(dot.get(f"lhs_{k}_dimensions")) for k in ("contracting", "batch"))
        return _dot(summed, batch, operands, results)
    if product == "attention":
        return _attention(target, config, operands[0])
    # As the forward convolution has them: input, filter, output.
    x = operands[0]
    y = operands[1]
    z = results[0]
    placed = (z, y, x) if b"Input" in target else (x, z, y) if b"Filter" in target else (x, y, z)
    return _convolution(product, each, placed)


def _dot(
    contracting: Iterable[int], batch: Iterable[int], operands: list[Shape], results: list[Shape]
) -> HloWork:
    if len(operands) < 2 or not results:
        return HloWork()
    left = dict(enumerate(operands[0].dims))
    k = math.prod(left.pop(i, 1) for i in contracting)
    b = math.prod(left.pop(i, 1) for i in batch)
    m = math.prod(left.values())
    elements = results[0].elements
    sizes = (b, m, elements // max(b * m, 1), k)
    return HloWork(2 * elements * k, "dot", operands[0].kind, sizes)


def _convolution(product: str, each: Message, placed: tuple[Shape, ...], holes: int = 1) -> HloWork:
    """`placed`: input, filter and output of the forward convolution.

    `holes`: elements of the dilated input for each that is not 0.
    """
    if len(placed) < 3:
        return HloWork()
    x, weight, output = placed[:3]
    features = dict(enumerate(weight.dims)).get(each.convolution.kernel_output_feature, 1)
    summed = weight.elements // max(features, 1)
    return HloWork(2 * output.elements * summed // holes, product, x.kind)


def _attention(target: bytes, config: object, query: Shape) -> HloWork | None:
    """Products of attention: scores and their sums, with gradients five of that size."""
    about = _member(config, "cudnn_fmha_backend_config")
    sizes = _wholes(_member(about, "intermediate_tensor_shape", "dimensions"))
    dot = _member(about, "bmm1_dot_dimension_numbers")
    contracting = _wholes(_member(dot, "lhs_contracting_dimensions"))
    if len(sizes) != 4 or len(contracting) != 1 or not 0 <= contracting[0] < len(query.dims):
        return None
    product, count = ("attention of gradients", 5) if b"Backward" in target else ("attention", 2)
    d = query.dims[contracting[0]]
    return HloWork(count * 2 * math.prod(sizes) * d, product, query.kind, (*sizes, d))


def _member(value: object, *names: str) -> object:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _wholes(value: object) -> list[int]:
    """Whole numbers, which JSON of Protocol Buffers writes as texts."""
    values = value if isinstance(value, list) else []
    return [int(v) for v in values if str(v).isascii() and str(v).isdigit() and len(str(v)) < 19]
