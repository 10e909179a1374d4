"""The tables of single families of operations, with the parameters that experts read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracelens_ext.analysis.launchers import ARGUMENTS
from tracelens_ext.errors import UsageError
from tracelens_ext.roofline.table import roofline_table

if TYPE_CHECKING:
    import pandas as pd

    from tracelens_ext.roofline.table import Roofline

#: Families with a sheet of their own, and the parameters of their models.
FAMILIES: Final = {
    "GEMM": "B M N K bias stride_A stride_B dtype_A_B transpose",
    "CONV_fwd": "convNd input_shape filter_shape output_shape dtype_input_weight input_stride"
    " weight_stride bias stride padding dilation transposed_conv output_padding groups",
    "CONV_bwd": "convNd input_shape filter_shape output_shape dtype_input_weight input_stride"
    " weight_stride stride padding dilation transposed_conv output_padding groups dgrad wgrad",
    "SDPA_fwd": "B N_Q H_Q N_KV H_KV d_h_qk d_h_v causal dtype_A_B",
    "SDPA_bwd": "B N_Q H_Q N_KV H_KV d_h_qk d_h_v causal dtype_A_B",
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
    import pandas as pd

    rows = [row for row in roofline.rows if row.cost is not None and row.cost.family == family]
    if not rows and family not in FAMILIES:
        there = sorted({row.cost.family for row in roofline.rows if row.cost} | FAMILIES.keys())
        raise UsageError(f"there is no family {family!r}; there are {', '.join(there)}")
    table = roofline_table(roofline)
    table = table[(table["family"] == family).to_numpy()].reset_index(drop=True)
    costs = [row.cost for row in rows if row.cost]
    named = dict.fromkeys(FAMILIES.get(family, "").split()) or dict.fromkeys(
        key for cost in costs for key in cost.parameters
    )
    gpu_us = table["gpu_time_ms"] * 1e3
    columns: dict[str, object] = {"name": table["op_name"]}
    for key in named:
        columns[f"param: {key}"] = pd.Series(
            [_shown(cost.parameters.get(key)) for cost in costs], dtype=object
        ).infer_objects()
    flops, moved = (table[name].astype("float64") for name in ("flops", "bytes"))
    columns |= {
        "GFLOPS_first": flops / 1e9,
        "Data Moved (MB)_first": moved / 1e6,
        "FLOPS/Byte_first": flops / moved.where(moved > 0),
        "TB/s": table["tb_per_s"],
        "TFLOPS/s": table["tflops_per_s"],
        "Compute Spec": [f"{cost.engine}_{cost.data_type}" for cost in costs],
        **{f"{argument}_first": table[argument] for argument in ARGUMENTS},
        "Kernel Time (µs)_mean": gpu_us / table["count"],
        "Kernel Time (µs)_sum": gpu_us,
        "name_count": table["count"],
    }
    last = ["bound", "% of roofline", "time_lost_ms", "why_slow"]
    return pd.DataFrame(columns | {name: table[name] for name in last})


def _shown(value: object) -> object:
    """Numbers and flags as they are, shapes as text."""
    return value if value is None or isinstance(value, int | float | str) else str(value)
