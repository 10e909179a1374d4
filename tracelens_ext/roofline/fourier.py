"""Fourier transforms: 5·N·log2 N operations for each transform of N points (the usual count)."""

from __future__ import annotations

import math

from tracelens_ext.roofline.operation import Cost, Operation, short_type


def transform(op: Operation) -> Cost:
    """`_fft_c2c`, `_fft_r2c`, `_fft_c2r`: over the given dimensions."""
    x = op.need(0)
    dims = op.wholes(1) or [len(x.dims) - 1]
    points = math.prod(x.dims[d] for d in dims if -len(x.dims) <= d < len(x.dims))
    real = op.plain_name != "_fft_c2c"
    flops = math.ceil(5 * x.elements * math.log2(max(points, 2)) / (2 if real else 1))
    result = x.elements
    item = x.item
    if op.plain_name == "_fft_r2c":
        last = x.dims[dims[-1]]
        half = op.value(3) is True
        result = x.elements // max(1, last) * (last // 2 + 1) if half else x.elements
        item = 2 * x.item
    elif op.plain_name == "_fft_c2r":
        last, asked = x.dims[dims[-1]], op.whole(3)
        result = x.elements // max(1, last) * (asked or 2 * (last - 1))
        item = x.item // 2
    return Cost(
        "FFT", flops, x.read + result * item, short_type(x.kind), parameters={"shape": x.dims}
    )


MODELS = dict.fromkeys(("_fft_c2c", "_fft_r2c", "_fft_c2r"), transform)
