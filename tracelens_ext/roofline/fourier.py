"""Fourier transforms: 5·N·log2 N operations for N points, the usual convention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tracelens_ext.roofline.operation import Models, vector_cost

if TYPE_CHECKING:
    from tracelens_ext.roofline.operation import Cost, Operation, Tensor

MODELS = Models()


@MODELS.add("_fft_c2c", "_fft_r2c", "_fft_c2r", tensors=(0,))
def transform(operation: Operation, inputs: Tensor) -> Cost:
    """A transform along the given dimensions; real numbers (`r2c`, `c2r`) take half the operations.

    `r2c` writes n/2 + 1 complex numbers for each row of n real ones if its result is one-sided.
    `c2r` writes real numbers; their count per row is an argument.
    """
    rank = len(inputs.dims)
    dimensions = operation.wholes(1) or [rank - 1]
    points = 1
    for dimension in dimensions:
        if -rank <= dimension < rank:
            points *= inputs.dims[dimension]
    flops = 5 * inputs.elements * math.log2(max(points, 2))
    results = inputs.elements
    bytes_of_result = inputs.element_bytes
    if operation.plain_name != "_fft_c2c":
        flops = flops / 2
        last_size = inputs.dims[dimensions[-1]]
        rows = inputs.elements // max(1, last_size)
        if operation.plain_name == "_fft_r2c":
            is_one_sided = operation.value(3) is True
            if is_one_sided:
                results = rows * (last_size // 2 + 1)
            bytes_of_result = 2 * inputs.element_bytes
        else:
            results = rows * (operation.whole(3) or 2 * (last_size - 1))
            bytes_of_result = inputs.element_bytes // 2
    written = results * bytes_of_result
    return vector_cost(
        "FFT", inputs, math.ceil(flops), written, inputs, shape=inputs.dims
    )
