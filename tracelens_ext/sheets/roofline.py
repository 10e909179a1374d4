"""The sheet `roofline`, and a sheet for each of the families that experts look at."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tracelens_ext.lazy import pd
from tracelens_ext.report.charts import Chart
from tracelens_ext.roofline.families import FAMILIES
from tracelens_ext.sheets.sheet import GPU_EVENTS, Condition, Sheet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracelens_ext.analyzer import TreePerfAnalyzer
    from tracelens_ext.sheets.options import ReportOptions

_SHAPES = Condition(
    "shapes were recorded",
    lambda analyzer, options: analyzer.roofline(options.device_peaks).has_shapes,
)


def _family(family: str, analyzer: TreePerfAnalyzer, options: ReportOptions) -> pd.DataFrame:
    return analyzer.get_df_performance_model(family, options.device_peaks)


def _has(family: str) -> Condition:
    return Condition(
        "an operation is of that family",
        lambda analyzer, options: family in analyzer.roofline(options.device_peaks).families,
    )


def _notes(
    analyzer: TreePerfAnalyzer, options: ReportOptions, tables: Mapping[str, pd.DataFrame]
) -> Iterator[str]:
    from tracelens_ext.roofline.summary import advice, modelled

    if "roofline" in tables:
        roofline = analyzer.roofline(options.device_peaks)
        yield f"Roofline: {modelled(roofline)}."
        yield from advice(analyzer.work, roofline)


_LAST_COLUMNS = """bound: `compute`, `memory` or `link`: what limits the best case
            % of roofline [%]: the best case in percent of the GPU time
            time_lost_ms: GPU time beyond the best case, never negative
            why_slow: the reason, where names and shapes show one
            """
_FAMILY_COLUMNS = f"""
            name: the operation
            PARAMETERS: as the performance model has them; strides in elements
            GFLOPS_first: 10⁹ floating point operations of a call
            Data Moved (MB)_first [MB]: 10^6 bytes, of a call: inputs once, results once
            FLOPS/Byte_first: one by the other
            TB/s, TFLOPS/s: of all calls, by their GPU time
            Compute Spec: engine and data type, such as `matrix_bf16`
            Input Dims_first, Input type_first, Input Strides_first, Concrete Inputs_first: tuples
                as text
            Kernel Time (µs)_mean, Kernel Time (µs)_sum: GPU time of a call, and of all calls
            name_count [operations]: calls
            {_LAST_COLUMNS}"""

SHEETS = [
    Sheet(
        name="roofline",
        shows="Each operation against what the GPU can do, and the time lost",
        columns=f"""
            op_name: the *launcher*, as in `ops_unique_args`
            family: of the performance model
            Input Dims, Input type, Input Strides, Concrete Inputs: tuples as text
            count [operations]: calls
            gpu_time_ms: busy time of what all calls launched
            flops [FLOP]: floating point operations of a call
            bytes [bytes]: of a call: what crosses the device's memory at the least
            engine: `matrix`, `vector`, or `link` for copies between host and device
            data_type: whose peak it is judged by
            model: the performance model
            why_no_model: why there is none
            tflops_per_s, tb_per_s: of all calls, by their GPU time
            roofline_time_ms: the best case of all calls
            {_LAST_COLUMNS}""",
        table=lambda analyzer, options: analyzer.get_df_roofline(options.device_peaks),
        when=[GPU_EVENTS, _SHAPES],
        options=["device_peaks"],
        notes=_notes,
        method="get_df_roofline()",
        charts=[
            Chart(
                "Roofline",
                "roofline",
                "op_name",
                "time_lost_ms",
                kind="roofline",
                on="page",
            ),
        ],
    ),
    *(
        Sheet(
            name=family,
            shows=f"Operations of the family {family}, with their parameters",
            columns=_FAMILY_COLUMNS.replace(
                "PARAMETERS", ", ".join(f"param: {key}" for key in parameters.split())
            ),
            table=partial(_family, family),
            when=[GPU_EVENTS, _has(family)],
            options=["device_peaks"],
            method=f'get_df_performance_model("{family}")',
        )
        for family, parameters in FAMILIES.items()
    ),
]
