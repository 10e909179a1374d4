"""Decodes the ranges that `torch.autograd.profiler.emit_nvtx` makes for operations of PyTorch."""

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
        name: the name of the operation.
        sequence: its sequence number; `NONE` if the text has none.
        call: the number of the call, which is higher than that of an outer call; `NONE` if the text
            has none.
        sizes: the shapes of the operands as JSON; empty if the text has none.
    """

    name: bytes
    sequence: int
    call: int
    sizes: bytes


def emitted_op(text: bytes) -> EmittedOperation | None:
    """Return the operation that the text of a range describes; None for any other text.

    Example: `aten::mm, seq = 12, op_id = 345, sizes = [[8, 4], [4, 2]]`.
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
    """The events that m ranges become; each array has the shape (m,).

    Attributes:
        name: code of the name.
        kind: `CPU_OP` for a range that describes an operation, else `USER_ANNOTATION`.
        call: number of the call; `NONE` for other ranges.
        sequence: sequence number; `NONE` for other ranges.
        dims: code of the text of the shapes; `NONE` for other ranges.
    """

    name: Int64Array
    kind: Int64Array
    call: Int64Array
    sequence: Int64Array
    dims: Int64Array


def describe_ranges(texts: Sequence[bytes], builder: TraceBuilder) -> RangeColumns:
    """Return the events that ranges become, given their texts; codes are those of a builder."""
    distinct: Interner[bytes] = Interner()
    codes = distinct.codes(texts, len(texts))
    descriptions = [_describe(text, builder) for text in distinct]
    columns = (
        np.array(descriptions, dtype=np.int64).reshape(-1, len(RangeColumns._fields)).T
    )
    return RangeColumns(*columns[:, codes])


def _describe(text: bytes, builder: TraceBuilder) -> tuple[int, ...]:
    """Return the fields of `RangeColumns` for one text."""
    operation = emitted_op(text)
    if operation is None:
        name = builder.names[text.decode("utf-8", "replace")]
        return name, EventKind.USER_ANNOTATION, NONE, NONE, NONE
    name = builder.names[operation.name.decode("utf-8", "replace")]
    dims = NONE
    if operation.sizes:
        dims = builder.texts[operation.sizes]
    return name, EventKind.CPU_OP, operation.call, operation.sequence, dims
