"""The tables of single families of operations, with the parameters that experts read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.operations.launchers import ARGUMENTS
from tracelens_ext.trace import NS_PER_MS, NS_PER_US

if TYPE_CHECKING:
    from tracelens_ext.roofline.found import Roofline
    from tracelens_ext.trace import Float64Array

#: Families with a sheet of their own, and the parameters of their models.
FAMILIES: Final = {
    "GEMM": "B M N K bias stride_A stride_B dtype_A_B transpose",
    "CONV_fwd": "convNd input_shape filter_shape output_shape dtype_input_weight input_stride"
    " weight_stride bias stride padding dilation transposed_conv output_padding groups",
    "CONV_bwd": "convNd input_shape filter_shape output_shape dtype_input_weight input_stride"
    " weight_stride stride padding dilation transposed_conv output_padding groups dgrad wgrad",
    "SDPA_fwd": "B N_Q H_Q N_KV H_KV d_h_qk d_h_v causal dtype_A_B",
    "SDPA_bwd": "B N_Q H_Q N_KV H_KV d_h_qk d_h_v causal dtype_A_B",
    "InferenceAttention_fwd": "N_Q H_Q H_KV d_h_qk d_h_v c_sq c_sk c_sqsq c_sqsk"
    " g_sq g_sk g_sqsq g_sqsk dtype_Q",
    "MoE_fused_fwd": "num_tokens hidden_dim inter_dim num_experts topk gated input_dtype"
    " weight_dtype",
    "Normalization": "op_shape dtype_in stride_input has_bias is_affine",
    "UnaryElementwise": "op_shape dtype_in_out stride_input stride_output",
    "BinaryElementwise": "shape_in1 shape_in2 dtype_in1_in2_out stride_input1 stride_input2",
    "Reduce_fwd": "op_shape num_input_elems num_output_elems dtype_in_out reduce_type dims",
}


def family_table(roofline: Roofline, family: str) -> pd.DataFrame:
    """The operations of a family, the longest GPU time first.

    Args:
        roofline: the operations of a trace.
        family: one of `FAMILIES`, or another that has rows.

    Returns:
        Columns `name`, `param: …`, `GFLOPS_first`, `Data Moved (MB)_first` (10^6 bytes),
        `FLOPS/Byte_first`, `TB/s`, `TFLOPS/s`, `Compute Spec`, the arguments, `Kernel Time
        (µs)_mean`, `Kernel Time (µs)_sum`, `name_count`, and of `roofline_table` `bound`,
        `% of roofline`, `time_lost_ms`, `why_slow`.

    Raises:
        UsageError: there is no such family.
    """
    found = [
        (i, r, r.cost) for i, r in enumerate(roofline.rows) if r.cost and r.cost.family == family
    ]
    if not found and family not in FAMILIES:
        there = sorted(roofline.families | FAMILIES.keys())
        raise UsageError(f"there is no family {family!r}; there are {', '.join(there)}")
    named = dict.fromkeys(FAMILIES.get(family, "").split()) or dict.fromkeys(
        key for _, _, cost in found for key in cost.parameters
    )
    rows, costs = [row for _, row, _ in found], [cost for _, _, cost in found]
    flops, moved, count, gpu_ns, best_ns, lost_ns = (
        np.array([np.nan if n is None else n for n in numbers], dtype=np.float64)
        for numbers in (
            [cost.flops for cost in costs],
            [cost.bytes for cost in costs],
            [row.count for row in rows],
            [row.gpu_ns for row in rows],
            [row.roofline_ns for row in rows],
            [row.lost_ns for row in rows],
        )
    )
    texts = roofline.groups.texts
    columns: dict[str, object] = {
        "name": [row.operation.name for row in rows],
        **{f"param: {key}": [_shown(c.parameters.get(key)) for c in costs] for key in named},
        "GFLOPS_first": flops / 1e9,
        "Data Moved (MB)_first": moved / 1e6,
        "FLOPS/Byte_first": _ratio(flops, moved),
        "TB/s": _ratio(moved * count, gpu_ns) / 1e3,
        "TFLOPS/s": _ratio(flops * count, gpu_ns) / 1e3,
        "Compute Spec": [f"{cost.engine}_{cost.data_type}" for cost in costs],
        **{f"{a}_first": [texts[a][i] for i, _, _ in found] for a in ARGUMENTS},
        "Kernel Time (µs)_mean": gpu_ns / count / NS_PER_US,
        "Kernel Time (µs)_sum": gpu_ns / NS_PER_US,
        "name_count": count.astype(np.int64),
        "bound": [row.bound for row in rows],
        "% of roofline": 100.0 * _ratio(best_ns, gpu_ns),
        "time_lost_ms": lost_ns / NS_PER_MS,
        "why_slow": [row.why_slow for row in rows],
    }
    return pd.DataFrame(columns)


def _ratio(part: Float64Array, whole: Float64Array) -> Float64Array:
    """One by the other, NaN where there is nothing to divide by."""
    result: Float64Array = np.full(len(part), np.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result


def _shown(value: object) -> object:
    """Numbers and flags as they are, shapes as text."""
    return value if value is None or isinstance(value, int | float | str) else str(value)
