"""Tables of the roofline: all operations, each family, peaks, iterations, phases of serving."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from tracelens_ext.analysis.iterations.selection import EventFilter
from tracelens_ext.lazy import pd
from tracelens_ext.report.tables.charts import Chart
from tracelens_ext.report.tables.columns import Column
from tracelens_ext.report.tables.conditions import GPU_EVENTS, Condition
from tracelens_ext.report.tables.options import ReportOptions
from tracelens_ext.report.tables.table import Table, Tables
from tracelens_ext.report.tables.views import ScreenView
from tracelens_ext.roofline import summary
from tracelens_ext.roofline.analysis import Roofline, roofline_table
from tracelens_ext.roofline.context import RooflineContext
from tracelens_ext.roofline.family_tables import PARAMETERS_OF_FAMILY, family_table
from tracelens_ext.roofline.utilization import utilization


def _has_shapes(context: RooflineContext, options: ReportOptions) -> bool:
    """Return whether shapes were recorded, or a table that needs them was requested by name."""
    if context.roofline(options.device_peaks).has_shapes:
        return True
    return options.names_any_of("roofline", "families", "mfu_by_iteration")


_SHAPES = Condition("shapes were recorded", _has_shapes)


def _table_of_roofline(
    make: Callable[[Roofline], pd.DataFrame],
) -> Callable[..., pd.DataFrame]:
    """Return a function that makes a table from the roofline of a context."""

    def table(
        context: RooflineContext,
        device_peaks: str | os.PathLike[str] | None = None,
        *,
        selection: EventFilter | None = None,
    ) -> pd.DataFrame:
        return make(context.roofline(device_peaks, selection))

    table.__doc__ = f"""{make.__doc__}

    Args:
        device_peaks: see `roofline.peaks.read_peaks`.
        selection: which GPU events are asked about, all by default.

    Raises:
        UsageError: the peaks cannot be read, or nothing is selected.
    """
    return table


def _peaks(
    context: RooflineContext, device_peaks: str | os.PathLike[str] | None = None
) -> pd.DataFrame:
    """The peaks that operations are judged by."""
    return summary.roofline_peaks(context.roofline(device_peaks))


def _utilization(
    context: RooflineContext,
    device_peaks: str | os.PathLike[str] | None = None,
    annotation: str | re.Pattern[str] | None = None,
    *,
    selection: EventFilter | None = None,
) -> pd.DataFrame:
    """Model FLOPs utilization (MFU) of each whole iteration."""
    roofline = context.roofline(device_peaks, selection)
    return utilization(context.gpu_events, roofline, annotation)


def _family(
    family: str,
    context: RooflineContext,
    device_peaks: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    return family_table(context.roofline(device_peaks), family)


def _has_family(family: str, context: RooflineContext, options: ReportOptions) -> bool:
    """Return whether an operation of a family has a performance model."""
    return family in context.roofline(options.device_peaks).families


def _notes(
    context: RooflineContext, options: ReportOptions, tables: Tables
) -> Iterator[str]:
    if "roofline" in tables:
        roofline = context.roofline(options.device_peaks)
        yield f"Roofline: {summary.modelled(roofline)}."
        yield from summary.advice(context.gpu_events, roofline)


_BOUND = Column("bound", "what limits the roofline time: `compute`, `memory` or `link`")
_SHARE_OF_ROOFLINE = Column(
    "% of roofline", "roofline time as a share of the GPU time", unit="%"
)
_TIME_LOST = Column("time_lost_ms", "GPU time beyond the roofline time; never negative")
_DEVICE_MODEL = Column(
    "device_model",
    "model of the GPU that ran the operations; present only if GPUs "
    "of several models did the work",
)
_WHY_SLOW = Column(
    "why_slow", "likely reason for the time lost, if names and shapes show one"
)
_GPU_TIME = Column(
    "gpu_time_ms",
    "busy time of the GPU events that a call launched, summed over the calls",
)
_TFLOPS_PER_S = Column(
    "tflops_per_s", "floating-point operations of all calls divided by their GPU time"
)
_TB_PER_S = Column("tb_per_s", "bytes of all calls divided by their GPU time")
#: Parameter of a performance model → its description, which holds for all families.
_PARAMETERS: Final = {
    "B": "batch size",
    "M": "number of rows of the product",
    "N": "number of columns of the product",
    "K": "length of the dimension that is summed over",
    "bias": "True if a bias is added",
    "stride_A": "strides of the first factor, in elements",
    "stride_B": "strides of the second factor, in elements",
    "dtype_A_B": "data types of the two factors; for attention, of query and key",
    "transpose": "whether each factor is stored by columns, in the order of BLAS",
    "convNd": "number of spatial dimensions: `conv1d`, `conv2d` or `conv3d`",
    "input_shape": "shape of the input",
    "filter_shape": "shape of the weight",
    "output_shape": "shape of the result",
    "dtype_input_weight": "data types of input and weight",
    "input_stride": "strides of the input, in elements",
    "weight_stride": "strides of the weight, in elements",
    "stride": "step of the convolution in each spatial dimension",
    "padding": "padding in each spatial dimension",
    "dilation": "dilation in each spatial dimension",
    "transposed_conv": "True for a transposed convolution",
    "output_padding": "padding of the result in each spatial dimension",
    "groups": "number of groups of channels",
    "dgrad": "True if the gradient of the input is computed",
    "wgrad": "True if the gradient of the weight is computed",
    "N_Q": "length of the query; for a serving step, number of tokens that it computes",
    "H_Q": "number of heads of the query",
    "N_KV": "length of key and value",
    "H_KV": "number of heads of key and value",
    "d_h_qk": "size of a head of query and key",
    "d_h_v": "size of a head of the value",
    "causal": "True for a causal mask",
    "c_sq": "number of tokens of the requests whose prompt the step reads",
    "c_sk": "sum of the key lengths of the requests whose prompt the step reads",
    "c_sqsq": "sum of the squared query lengths of the requests whose prompt the step reads",
    "c_sqsk": "sum of query length times key length of the requests whose prompt the step reads",
    "g_sq": "number of tokens of the requests for which the step generates",
    "g_sk": "sum of the key lengths of the requests for which the step generates",
    "g_sqsq": "sum of the squared query lengths of the requests for which the step generates",
    "g_sqsk": "sum of query length times key length of the requests for which the step generates",
    "dtype_Q": "data type of the query",
    "num_tokens": "number of tokens",
    "hidden_dim": "size of the hidden state",
    "inter_dim": "inner size of an expert",
    "num_experts": "number of experts",
    "topk": "number of experts for each token",
    "gated": "True if the experts have gated activations",
    "input_dtype": "data type of the input",
    "weight_dtype": "data type of the weights",
    "op_shape": "shape of the input",
    "dtype_in": "data type of the input",
    "stride_input": "strides of the input, in elements",
    "has_bias": "True if there is a bias",
    "is_affine": "True if there is a weight",
    "dtype_in_out": "data types of input and result",
    "stride_output": "strides of the result, in elements",
    "shape_in1": "shape of the first input",
    "shape_in2": "shape of the second input",
    "dtype_in1_in2_out": "data types of both inputs and the result",
    "stride_input1": "strides of the first input, in elements",
    "stride_input2": "strides of the second input, in elements",
    "num_input_elems": "number of elements of the input",
    "num_output_elems": "number of elements of the result",
    "reduce_type": "kind of the reduction, such as `sum`",
    "dims": "dimensions that are reduced",
}
#: The columns that follow the parameters in the table of a family.
_FAMILY_MEASUREMENTS = [
    Column("GFLOPS_first", "10⁹ floating-point operations per call"),
    Column(
        "Data Moved (MB)_first",
        "10⁶ bytes per call: each input is read once, and each result written once",
        unit="MB",
    ),
    Column(
        "FLOPS/Byte_first",
        "arithmetic intensity: floating-point operations divided by bytes",
    ),
    Column("TB/s", "bytes of all calls divided by their GPU time"),
    Column(
        "TFLOPS/s", "floating-point operations of all calls divided by their GPU time"
    ),
    Column(
        "Compute Spec", "engine and data type whose peak is used, such as `matrix_bf16`"
    ),
    Column("Input Dims_first", "dimensions of the inputs, as tuples"),
    Column("Input type_first", "data types of the inputs, as a tuple"),
    Column("Input Strides_first", "strides of the inputs in elements, as tuples"),
    Column("Concrete Inputs_first", "values of the scalar inputs, as a tuple"),
    Column("Kernel Time (µs)_mean", "mean GPU time of a call"),
    Column("Kernel Time (µs)_sum", "GPU time of all calls"),
    Column("name_count", "number of calls", unit="operations"),
    _BOUND,
    _SHARE_OF_ROOFLINE,
    _TIME_LOST,
    _WHY_SLOW,
    _DEVICE_MODEL,
]


def _family_columns(parameters: tuple[str, ...]) -> list[Column]:
    """Return the columns of the table of a family, given the names of its parameters."""
    columns = [Column("name", "name of the operation")]
    columns += [Column(f"param: {name}", _PARAMETERS[name]) for name in parameters]
    columns += _FAMILY_MEASUREMENTS
    return columns


ROOFLINE = Table(
    name="roofline",
    description="Each operation compared with the hardware limits, and the time lost",
    columns=[
        Column("op_name", "name of the *launcher*, as in `name` of `ops_unique_args`"),
        Column("family", "family of the performance model; empty without a model"),
        Column("Input Dims", "dimensions of the inputs, as tuples"),
        Column("Input type", "data types of the inputs, as a tuple"),
        Column("Input Strides", "strides of the inputs in elements, as tuples"),
        Column("Concrete Inputs", "values of the scalar inputs, as a tuple"),
        Column("count", "number of calls", unit="operations"),
        _GPU_TIME,
        Column("flops", "floating-point operations per call", unit="FLOP"),
        Column(
            "bytes",
            "least number of bytes per call that must cross the device "
            "memory, or the link",
            unit="bytes",
        ),
        Column(
            "engine",
            "what computes the operation: `matrix` or `vector` units, or "
            "`link` for copies between CPU and device",
        ),
        Column("data_type", "data type whose peak rate is used"),
        Column("model", "performance model that was used; empty without one"),
        Column(
            "why_no_model",
            "why the operation has no performance model; empty if it has one",
        ),
        _TFLOPS_PER_S,
        _TB_PER_S,
        Column(
            "roofline_time_ms",
            "least time that the hardware limits allow for all calls",
        ),
        _BOUND,
        _SHARE_OF_ROOFLINE,
        _TIME_LOST,
        _WHY_SLOW,
        _DEVICE_MODEL,
    ],
    build=_table_of_roofline(roofline_table),
    options=["device_peaks"],
    requires=[GPU_EVENTS, _SHAPES],
    notes=_notes,
    charts=[
        Chart(
            title="Roofline",
            sheet="roofline",
            label_column="op_name",
            value_column="time_lost_ms",
            kind="roofline",
            on="page",
        )
    ],
)


def _family_table(family: str, parameters: tuple[str, ...]) -> Table:
    """Declare the table of a family of operations."""
    return Table(
        name=family,
        description=f"Operations of the family {family}, with their parameters",
        columns=_family_columns(parameters),
        build=partial(_family, family),
        options=["device_peaks"],
        requires=[
            GPU_EVENTS,
            Condition(
                "an operation belongs to that family", partial(_has_family, family)
            ),
        ],
        analyzer_call=f'get_df_performance_model("{family}")',
    )


FAMILY_TABLES = [
    _family_table(family, parameters)
    for family, parameters in PARAMETERS_OF_FAMILY.items()
]


ROOFLINE_PEAKS = Table(
    name="roofline_peaks",
    description="Peak rates of the GPU for the data types in use",
    columns=[
        Column(
            "what",
            "what the peak is of: engine and data type, such as `matrix "
            "bf16`, or `memory`",
        ),
        Column(
            "peak",
            "peak rate: operations per second, or bytes per second for `memory`",
            unit="10¹²/s",
        ),
        Column(
            "device_model",
            "model of the GPU; present only if GPUs of several models did the work",
        ),
    ],
    build=_peaks,
    options=["device_peaks"],
    requires=[GPU_EVENTS, _SHAPES],
    enabled_by="tables",
    on_every_page=True,
)
FAMILIES = Table(
    name="families",
    description="Families of operations, compared with the hardware limits",
    columns=[
        Column(
            "family",
            "family of the performance model; `(no model)` for operations without one",
        ),
        _GPU_TIME,
        Column("gpu_time_percent", "share of the GPU time of all operations"),
        _TFLOPS_PER_S,
        _TB_PER_S,
        Column("modeled_percent", "share of the GPU time whose roofline time is known"),
        Column(
            "% of roofline",
            "roofline time as a share of the GPU time for which it is known; "
            "empty if that is less than half",
            unit="%",
        ),
        Column(
            "time_lost_ms", "GPU time beyond the roofline time, where that is known"
        ),
    ],
    build=_table_of_roofline(summary.family_summary),
    options=["device_peaks"],
    requires=[GPU_EVENTS, _SHAPES],
    enabled_by="tables",
    screen=ScreenView("By family"),
)
MFU_BY_ITERATION = Table(
    name="mfu_by_iteration",
    description="Model FLOPs utilization of each complete iteration, or of the whole trace if "
    "there is none",
    columns=[
        Column("iteration", "name of the iteration, or `the whole trace`"),
        Column("wall_time_ms", "duration of the iteration"),
        Column(
            "tflop",
            "10¹² floating-point operations of matrix products, convolutions "
            "and attention; empty if `modeled_percent` is below 50",
            unit="TFLOP",
        ),
        Column("tflops_per_s", "`tflop` divided by the wall time, per device"),
        Column(
            "mfu_percent",
            "time that these operations would take at the peak of their data "
            "types, as a share of the wall time of all devices; empty if "
            "`modeled_percent` is below 50",
        ),
        Column(
            "modeled_percent",
            "share of the GPU time of the operations that has a performance model",
        ),
    ],
    build=_utilization,
    options=["device_peaks", "annotation"],
    requires=[GPU_EVENTS, _SHAPES],
    enabled_by="tables",
    screen=ScreenView(
        "Model FLOPs utilization (matrix products, convolutions, attention; by wall "
        "time)"
    ),
)
