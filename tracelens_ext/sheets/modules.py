"""The sheet `nn_modules`: GPU time by `nn.Module`."""

from __future__ import annotations

from tracelens_ext.modules.modules import has_modules
from tracelens_ext.report.charts import Chart
from tracelens_ext.sheets.sheet import GPU_EVENTS, Condition, Sheet

NN_MODULES = Sheet(
    name="nn_modules",
    shows="GPU time by nn.Module",
    columns="""
        path: classes, the outermost module first, joined by `/`; with `nn_module_instances=True`
            modules, `Block_0`, `Block_1`
        modules [modules]: how many there are of the path; not with `nn_module_instances=True`
        calls [calls]: how many
        kernels [GPU events]: launched within
        gpu_time_total_ms: busy time of those, summed over the calls
        gpu_time_self_ms: of those that no module within launched
        % of GPU busy time: of `gpu_time_total_ms` in the busy time of all GPU events
        top_category: when categories are on: that with the longest summed duration within
        top_category (% of kernel time): its share
        backward_time_ms: in training: busy time of what autograd launched for the operations of the
            module. It runs on another thread, outside of the module, and is in no other column.
        """,
    table=lambda analyzer, options: analyzer.get_df_nn_modules(
        instances=options.nn_module_instances
    ),
    options=["nn_module_instances"],
    when=[
        GPU_EVENTS,
        Condition(
            "the trace has Python frames of `nn.Module`s",
            lambda analyzer, _: has_modules(analyzer.trace),
        ),
    ],
    method="get_df_nn_modules()",
    charts=[
        Chart(
            "GPU time by module class, without the modules within",
            "nn_modules",
            "path",
            "gpu_time_self_ms",
            top=15,
            on="page",
        )
    ],
)

SHEETS = [NN_MODULES]
