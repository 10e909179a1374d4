"""Tables of the operations of a family, with the parameters of their performance models."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracelens_ext.analysis.operations.arguments import ARGUMENTS
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.roofline.analysis import Roofline, roofline_table
from tracelens_ext.trace import NS_PER_US

_CONVOLUTION: Final = (
    "convNd",
    "input_shape",
    "filter_shape",
    "output_shape",
    "dtype_input_weight",
    "input_stride",
    "weight_stride",
)
_CONVOLUTION_SETTINGS: Final = (
    "stride",
    "padding",
    "dilation",
    "transposed_conv",
    "output_padding",
    "groups",
)
_ATTENTION: Final = (
    "B",
    "N_Q",
    "H_Q",
    "N_KV",
    "H_KV",
    "d_h_qk",
    "d_h_v",
    "causal",
    "dtype_A_B",
)
#: Families with a table of their own, and the parameters of their models.
PARAMETERS_OF_FAMILY: Final[dict[str, tuple[str, ...]]] = {
    "GEMM": (
        "B",
        "M",
        "N",
        "K",
        "bias",
        "stride_A",
        "stride_B",
        "dtype_A_B",
        "transpose",
    ),
    "CONV_fwd": _CONVOLUTION + ("bias",) + _CONVOLUTION_SETTINGS,
    "CONV_bwd": _CONVOLUTION + _CONVOLUTION_SETTINGS + ("dgrad", "wgrad"),
    "SDPA_fwd": _ATTENTION,
    "SDPA_bwd": _ATTENTION,
    "InferenceAttention_fwd": (
        "N_Q",
        "H_Q",
        "H_KV",
        "d_h_qk",
        "d_h_v",
        "c_sq",
        "c_sk",
        "c_sqsq",
        "c_sqsk",
        "g_sq",
        "g_sk",
        "g_sqsq",
        "g_sqsk",
        "dtype_Q",
    ),
    "MoE_fused_fwd": (
        "num_tokens",
        "hidden_dim",
        "inter_dim",
        "num_experts",
        "topk",
        "gated",
        "input_dtype",
        "weight_dtype",
    ),
    "Normalization": ("op_shape", "dtype_in", "stride_input", "has_bias", "is_affine"),
    "UnaryElementwise": ("op_shape", "dtype_in_out", "stride_input", "stride_output"),
    "BinaryElementwise": (
        "shape_in1",
        "shape_in2",
        "dtype_in1_in2_out",
        "stride_input1",
        "stride_input2",
    ),
    "Reduce_fwd": (
        "op_shape",
        "num_input_elems",
        "num_output_elems",
        "dtype_in_out",
        "reduce_type",
        "dims",
    ),
}


def family_table(roofline: Roofline, family: str) -> pd.DataFrame:
    """Return the operations of a family, the longest GPU time first.

    Raises:
        UsageError: neither the trace nor `PARAMETERS_OF_FAMILY` contains the family.
    """
    groups = []
    costs = []
    for group, row in enumerate(roofline.rows):
        if row.cost is not None and row.cost.family == family:
            groups.append(group)
            costs.append(row.cost)
    if not costs and family not in PARAMETERS_OF_FAMILY:
        known_families = ", ".join(
            sorted(roofline.families | PARAMETERS_OF_FAMILY.keys())
        )
        raise UsageError(
            f"there is no family {family!r}; the families are {known_families}"
        )
    names = PARAMETERS_OF_FAMILY.get(family) or [
        name for cost in costs for name in cost.parameters
    ]
    table = roofline_table(roofline).iloc[groups].reset_index(drop=True)
    flops = table["flops"].to_numpy(dtype=np.float64)
    moved = table["bytes"].to_numpy(dtype=np.float64)
    intensity = np.divide(
        flops, moved, out=np.full(len(flops), np.nan), where=moved > 0
    )
    gpu_us = roofline.groups.gpu_ns[groups] / NS_PER_US
    calls = roofline.groups.count[groups]
    columns: dict[str, object] = {"name": table["op_name"]}
    for name in dict.fromkeys(names):
        columns[f"param: {name}"] = [_cell(cost.parameters.get(name)) for cost in costs]
    columns["GFLOPS_first"] = flops / 1e9
    columns["Data Moved (MB)_first"] = moved / 1e6
    columns["FLOPS/Byte_first"] = intensity
    columns["TB/s"] = table["tb_per_s"]
    columns["TFLOPS/s"] = table["tflops_per_s"]
    columns["Compute Spec"] = [f"{cost.engine}_{cost.data_type}" for cost in costs]
    for argument in ARGUMENTS:
        columns[f"{argument}_first"] = table[argument]
    columns["Kernel Time (µs)_mean"] = gpu_us / calls
    columns["Kernel Time (µs)_sum"] = gpu_us
    columns["name_count"] = calls
    for name in ("bound", "% of roofline", "time_lost_ms", "why_slow"):
        columns[name] = table[name]
    if roofline.has_several_models:
        columns["device_model"] = table["device_model"]
    return pd.DataFrame(columns)


def _cell(value: object) -> object:
    """Return the content of a cell for a parameter: shapes become text."""
    if value is None or isinstance(value, int | float | str):
        return value
    return str(value)
