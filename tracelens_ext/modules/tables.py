"""The tables of GPU time by `nn.Module`."""

from __future__ import annotations

from tracelens_ext.modules.modules import call_tree, has_modules, nn_modules
from tracelens_ext.tables.charts import Chart
from tracelens_ext.tables.table import GPU_EVENTS, Condition, Table

NN_MODULES = Table(
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
    table=lambda work, options: nn_modules(work, instances=options.nn_module_instances),
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

TABLES = [NN_MODULES]
VIEWS = [
    Table(
        name="call_tree",
        shows="GPU time by module, operation and kernel, the largest kernels",
        columns="""
            node: its number
            parent: the node above it; -1 at the top
            label: module, operation or kernel; `other` for what is too small to be shown
            kind: `module`, `operation`, `kernel` or `other`
            category: of its kernels, or of most of them
            gpu_time_ns [ns]: summed durations of its GPU events
            """,
        table=call_tree,
        asked_by="call_tree",
        method='table("call_tree")',
        on_every_page=True,
        charts=[
            Chart("GPU time in the call tree", "call_tree", "label", "gpu_time_ns", "call_tree")
        ],
    )
]
