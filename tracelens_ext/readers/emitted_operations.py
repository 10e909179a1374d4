"""The text of ranges that `torch.autograd.profiler.emit_nvtx` makes: operations of PyTorch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens_ext.readers.builder import Interner, TraceBuilder
from tracelens_ext.trace import NONE, EventKind, Int64Array

_EMITTED = re.compile(
    rb", (?:seq = ([0-9]{1,18})(?:, op_id = ([0-9]{1,18}))?|op_id = ([0-9]{1,18}))"
    rb"(?:, sizes = (\[[0-9\[\], -]*\]))?(?:, input_op_ids = .*)?\Z",
    re.DOTALL,
)


class EmittedOperation(NamedTuple):
    """The operation that a range of `torch.autograd.profiler.emit_nvtx` describes.

    Attributes:
        name: the operation.
        sequence: its sequence number, `NONE` without.
        call: the number of the call, of which an outer one is lower; `NONE` without.
        sizes: the shapes as JSON; empty without.
    """

    name: bytes
    sequence: int
    call: int
    sizes: bytes


def emitted_op(text: bytes) -> EmittedOperation | None:
    """Return the operation that the text of a range describes; None of other texts.

    `aten::mm, seq = 12, op_id = 345, sizes = [[8, 4], [4, 2]]`
    """
    match = _EMITTED.search(text)
    if match is None or match.start() == 0:
        return None
    sequence, op_id, op_id_alone, sizes = match.groups()
    call = op_id or op_id_alone
    return EmittedOperation(
        name=text[: match.start()],
        sequence=int(sequence or NONE),
        call=int(call or NONE),
        sizes=sizes or b"",
    )


class RangeColumns(NamedTuple):
    """What the texts of m ranges say; each array has the shape (m,), with `NONE` for nothing.

    Attributes:
        name: code of the name.
        kind: the kind of event: `CPU_OP` of an emitted operation, else `USER_ANNOTATION`.
        call: the number of the call.
        sequence: the sequence number.
        dims: code of the text of shapes.
    """

    name: Int64Array
    kind: Int64Array
    call: Int64Array
    sequence: Int64Array
    dims: Int64Array


def describe_ranges(texts: Sequence[bytes], builder: TraceBuilder) -> RangeColumns:
    """Return what the texts of ranges say, with codes of a builder."""
    distinct: Interner[bytes] = Interner()
    codes = distinct.codes(texts, len(texts))
    descriptions = [_describe(text, builder) for text in distinct]
    columns = (
        np.array(descriptions, dtype=np.int64).reshape(-1, len(RangeColumns._fields)).T
    )
    return RangeColumns(*columns[:, codes])


def _describe(text: bytes, builder: TraceBuilder) -> tuple[int, ...]:
    """Return name, kind, call, sequence number and shapes of a text, in the order of fields."""
    operation = emitted_op(text)
    if operation is None:
        name = builder.names[text.decode("utf-8", "replace")]
        return name, EventKind.USER_ANNOTATION, NONE, NONE, NONE
    name = builder.names[operation.name.decode("utf-8", "replace")]
    dims = NONE
    if operation.sizes:
        dims = builder.texts[operation.sizes]
    return name, EventKind.CPU_OP, operation.call, operation.sequence, dims
