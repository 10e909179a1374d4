"""The roofline of a trace: how close each operation comes to the limits of its GPU.

Roofline time is the larger of FLOPs / peak and bytes / bandwidth (Williams, Waterman, Patterson,
"Roofline: an insightful visual performance model", 2009). The figures of a row are sums over the
calls of an operation; ratios are ratios of such sums.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tracelens_ext.hooks import Offered, PluginRegistry, default_registry
from tracelens_ext.hooks.registry import call_within, one_line, time_limit
from tracelens_ext.lazy import pd
from tracelens_ext.roofline import operation_groups
from tracelens_ext.roofline.convolution import with_known_results
from tracelens_ext.roofline.explanations import reasons_for_slowness
from tracelens_ext.roofline.models import model_of, offered_models
from tracelens_ext.roofline.operation import (
    Cost,
    Engine,
    Model,
    NoModelError,
    Operation,
    require,
)
from tracelens_ext.roofline.operation_groups import (
    OTHERS,
    OperationGroups,
    group_operations,
)
from tracelens_ext.roofline.peaks import DevicePeaks, device_models, peaks_of_devices
from tracelens_ext.trace import NS_PER_MS

if TYPE_CHECKING:
    from tracelens_ext.analysis.operations.launchers import Launchers
    from tracelens_ext.trace import BoolArray
    from tracelens_ext.trace.gpu_events import GpuEvents

#: Names of kernels that compute single-precision products with the TF32 units. Hopper's `nvjet` and
#: CUTLASS' `s1688` kernels for single precision always use them.
_TF32: Final = re.compile(r"tf32|xf32|s1688|nvjet_s", re.IGNORECASE)
#: FLOPs or bytes of a call from this number on come from damaged arguments.
_IMPOSSIBLE_NUMBER: Final = 2**62
#: An operation that reaches this percentage of the roofline gets no reason for being slow.
_GOOD_PERCENT: Final = 60.0
#: A kernel shorter than this spends most of its time starting and ending.
_LAUNCH_NS: Final = 4_000
#: Characters of an error of a model that tables show.
_LONGEST_MESSAGE: Final = 200


@dataclass(eq=False)
class RooflineRow:
    """An operation, its cost, and its GPU time compared with the best case."""

    operation: Operation  #: name, arguments, kernels
    count: int  #: number of calls
    gpu_ns: int  #: GPU time of all calls
    #: True if most of the GPU time is copies between host and device
    is_host_copy: bool = False
    cost: Cost | None = None  #: the cost of a call; None without a model
    #: why the operation has no cost; None if it has one
    why_no_model: str | None = None
    model: str | None = None  #: the name of the model; None without one
    #: the best case of all calls; None without a model or a known device
    roofline_ns: float | None = None
    #: what limits the best case: `compute`, `memory` or `link`
    bound: str | None = None
    #: peak of the engine and type, 10^12 operations a second; None: not known
    peak: float | None = None
    #: the likely reason for the time lost; empty if nothing shows it
    why_slow: str = ""
    #: the GPU model that ran the operation; empty if all GPUs are of one model
    device_model: str = ""

    @property
    def lost_ns(self) -> float | None:
        """GPU time beyond the best case, never negative; None without a best case."""
        if self.roofline_ns is None:
            return None
        return max(0.0, self.gpu_ns - self.roofline_ns)


@dataclass(frozen=True, eq=False)
class Roofline:
    """The operations of a trace, compared with their best case."""

    groups: OperationGroups  #: the operations, the longest GPU time first
    #: a row for each operation of `groups`, in the same order
    rows: Sequence[RooflineRow]
    #: the peaks of each device that did the work, by its number; None for an unknown device
    peaks: Mapping[int, DevicePeaks | None]

    @property
    def has_shapes(self) -> bool:
        """True if arguments of operations were recorded."""
        return any(row.operation.types for row in self.rows)

    @cached_property
    def families(self) -> frozenset[str]:
        """The families of the operations that have a model."""
        return frozenset(row.cost.family for row in self.rows if row.cost)

    @cached_property
    def has_several_models(self) -> bool:
        """True if GPUs of several models did the work."""
        return any(row.device_model for row in self.rows)


class Modelled(NamedTuple):
    """The cost of an operation, or the reason why it has none."""

    cost: Cost | None  #: None without a model
    why_no_model: str | None = None  #: the reason; None if there is a cost


class BestCase(NamedTuple):
    """The shortest time that a call could take; None: not known."""

    roofline_ns: float | None = None
    bound: str | None = None  #: what limits the time: `compute`, `memory` or `link`
    peak: float | None = None  #: 10^12 operations a second of the engine and type


def find_roofline(
    gpu_events: GpuEvents,
    launchers: Launchers,
    own_peaks: DevicePeaks | None = None,
    selected: BoolArray | None = None,
    registry: PluginRegistry | None = None,
) -> Roofline:
    """Apply the models, and the peaks of the devices, to the operations of a trace.

    Args:
        gpu_events: the g GPU events.
        launchers: the operations that launched the GPU events.
        own_peaks: peaks to use for all devices; None: the peaks of each device.
        selected: which GPU events to look at, (g,), see `group_operations`; None: all.
        registry: the plugins to ask for models; None: the installed plugins.
    """
    registry = registry or default_registry()
    peaks = peaks_of_devices(gpu_events.trace, own_peaks)
    models_of_devices = device_models(gpu_events.trace, peaks)
    groups = group_operations(
        gpu_events=gpu_events,
        launchers=launchers,
        selected=selected,
        models_of_devices=models_of_devices,
    )
    operations = with_known_results(groups.operations)
    groups = replace(groups, operations=operations)
    offered = offered_models(registry)
    names = {operation.model_name for operation in groups.operations}
    models = {name: model_of(name, offered) for name in names}
    is_host_copy = (2 * groups.host_copy_ns > groups.gpu_ns).tolist()
    modelled = _model_operations(
        operations=groups.operations,
        models=models,
        is_host_copy=is_host_copy,
        registry=registry,
    )
    rows = []
    for group, operation in enumerate(groups.operations):
        row = RooflineRow(
            operation=operation,
            count=int(groups.count[group]),
            gpu_ns=int(groups.gpu_ns[group]),
            is_host_copy=is_host_copy[group],
            cost=modelled[group].cost,
            why_no_model=modelled[group].why_no_model,
        )
        device = int(groups.device[group])
        if row.cost is not None:
            model = models[operation.model_name]
            _add_best_case(row, row.cost, model, peaks[device])
        if operation.name != OTHERS:
            row.device_model = models_of_devices.get(device, "")
        rows.append(row)
    return Roofline(groups=groups, rows=rows, peaks=peaks)


def _model_operations(
    operations: Sequence[Operation],
    models: Mapping[str, Offered[Model] | None],
    is_host_copy: Sequence[bool],
    registry: PluginRegistry,
) -> list[Modelled]:
    """Return the cost of each operation, or the reason why it has none.

    One time limit applies to all models of a plugin together. If the plugin fails, none of its
    operations has a cost.
    """
    results: list[Modelled] = []
    # The indices of the operations whose models each plugin provides.
    operations_of_plugins: dict[str, list[int]] = {}
    for index, operation in enumerate(operations):
        offered = models[operation.model_name]
        if operation.name == OTHERS:
            most = f"{operation_groups.MOST_OPERATIONS:,}"
            reason = f"only the {most} longest operations of a trace have one"
            results.append(Modelled(None, reason))
        elif not operation.types:
            results.append(Modelled(None, "no shapes were recorded"))
        elif is_host_copy[index]:
            results.append(_apply_model(_host_copy, operation))
        elif offered is None:
            results.append(Modelled(None, f"no performance model for {operation.name}"))
        elif offered.plugin.own:
            results.append(_apply_model(offered.item, operation))
        else:
            plugin = offered.plugin.name
            operations_of_plugins.setdefault(plugin, []).append(index)
            # This answer stays if the plugin raises an error below.
            results.append(Modelled(None, f"the plugin {plugin} failed"))
    for plugin, indices in operations_of_plugins.items():
        operations_of_plugin = [operations[index] for index in indices]
        with registry.guard(plugin):
            answers = _ask_plugin(operations_of_plugin, models)
            for index, answer in zip(indices, answers, strict=True):
                results[index] = answer
    return results


def _ask_plugin(
    operations: Sequence[Operation], models: Mapping[str, Offered[Model] | None]
) -> list[Modelled]:
    """Return the answers of a plugin's models for its operations, within the time limit."""

    def ask() -> list[Modelled]:
        answers = []
        for operation in operations:
            offered = models[operation.model_name]
            if offered is not None:
                answers.append(_apply_model(offered.item, operation))
        return answers

    answers: list[Modelled] = call_within(time_limit(), ask)
    return answers


def _apply_model(model: Callable[[Operation], Cost], operation: Operation) -> Modelled:
    """Return the answer of a model; an error leaves only this operation without a cost."""
    try:
        cost = model(operation)
        are_possible = (
            0 <= int(cost.flops) < _IMPOSSIBLE_NUMBER
            and 0 <= int(cost.bytes) < _IMPOSSIBLE_NUMBER
        )
        require(are_possible, "the recorded sizes are impossible")
    except NoModelError as error:
        return Modelled(None, str(error))
    except Exception as error:  # noqa: BLE001  # arguments of traces, and plugins, can be anything
        return Modelled(
            cost=None,
            why_no_model=f"its model failed ({one_line(error)[:_LONGEST_MESSAGE]})",
        )
    return Modelled(cost)


def _host_copy(operation: Operation) -> Cost:
    """Return the cost of a copy between host and device: all its bytes cross the link.

    `copy_` has the target and the source as arguments. The smaller of them counts: a source that is
    broadcast crosses the link only once.
    """
    tensors = operation.tensors
    require(tensors, "the copied size is not recorded")
    copied = tensors[0]
    if operation.plain_name == "copy_":
        copied = min(tensors[:2], key=lambda tensor: tensor.written)
    return Cost(
        family="HostCopy",
        flops=0,
        bytes=copied.written,
        data_type="bytes",
        engine=Engine.LINK.value,
    )


def _add_best_case(
    row: RooflineRow,
    cost: Cost,
    offered: Offered[Model] | None,
    peaks: DevicePeaks | None,
) -> None:
    """Set the model, the best case and the reason for the time lost in a row."""
    is_single_precision = cost.engine == Engine.MATRIX and cost.data_type == "fp32"
    has_tf32_kernel = any(_TF32.search(kernel) for kernel in row.operation.kernels)
    if is_single_precision and has_tf32_kernel:
        cost = replace(cost, data_type="tf32")
        row.cost = cost
    row.model = "host_copy"
    if offered is not None and cost.engine != Engine.LINK:
        row.model = name_of(offered)
    best = _best_case(cost, peaks)
    if best.roofline_ns is not None:
        row.roofline_ns = best.roofline_ns * row.count
    row.bound = best.bound
    row.peak = best.peak
    row.why_slow = _why_slow(row, cost, peaks)


def name_of(offered: Offered[Model]) -> str:
    """Return the name of a model in tables: `gemm.mm` if it is built in, else `PLUGIN.function`."""
    function_name = getattr(offered.item, "__name__", "model")
    if not offered.plugin.own:
        return f"{offered.plugin.name}.{function_name}"
    module = str(getattr(offered.item, "__module__", ""))
    return f"{module.rpartition('.')[2]}.{function_name}"


def _best_case(cost: Cost, peaks: DevicePeaks | None) -> BestCase:
    """Return the best case of a call."""
    if peaks is None:
        return BestCase()
    if cost.engine == Engine.LINK:
        if peaks.link is None:
            return BestCase()
        link_ns = cost.bytes / peaks.link
        return BestCase(link_ns, "link")
    memory_ns = cost.bytes / peaks.memory  # 10^9 bytes a second are bytes a ns
    peak = peaks.peak(cost.engine, cost.data_type)
    if peak is None:
        # Without the peak of its type, compute-bound work has no best case.
        if cost.engine == Engine.MATRIX:
            return BestCase()
        return BestCase(memory_ns, "memory")
    operations_per_ns = peak.tera_operations * 1e3
    compute_ns = cost.flops / operations_per_ns
    bound = "compute" if compute_ns > memory_ns else "memory"
    return BestCase(
        roofline_ns=max(compute_ns, memory_ns), bound=bound, peak=peak.tera_operations
    )


def _why_slow(row: RooflineRow, cost: Cost, peaks: DevicePeaks | None) -> str:
    """Return the likely reasons for the time lost; empty if little is lost."""
    best_ns = row.roofline_ns
    if best_ns is not None and 100.0 * best_ns >= _GOOD_PERCENT * row.gpu_ns:
        return ""
    reasons = reasons_for_slowness(row.operation, cost, peaks)
    if row.gpu_ns < _LAUNCH_NS * row.count:
        reasons.append("too small to fill the GPU")
    return "; ".join(reasons)


def roofline_table(roofline: Roofline) -> pd.DataFrame:
    """Return a row for each operation and its arguments, the longest GPU time first."""
    rows = roofline.rows
    groups = roofline.groups
    gpu_ns = groups.gpu_ns.astype(np.float64)
    # Operations that took no time have no rate.
    measured_ns = np.where(gpu_ns > 0, gpu_ns, np.nan)
    # None becomes NaN.
    best_ns = np.array([row.roofline_ns for row in rows], dtype=np.float64)
    flops = pd.array(_attribute_of_costs(rows, "flops"), dtype="Int64")
    moved = pd.array(_attribute_of_costs(rows, "bytes"), dtype="Int64")
    total_flops = flops.to_numpy(np.float64, na_value=np.nan) * groups.count
    total_bytes = moved.to_numpy(np.float64, na_value=np.nan) * groups.count
    columns: dict[str, object] = {
        "op_name": [row.operation.name for row in rows],
        "family": _attribute_of_costs(rows, "family"),
        **groups.texts,
        "count": groups.count,
        "gpu_time_ms": gpu_ns / NS_PER_MS,
        "flops": flops,
        "bytes": moved,
        "engine": _attribute_of_costs(rows, "engine"),
        "data_type": _attribute_of_costs(rows, "data_type"),
        "model": [row.model for row in rows],
        "why_no_model": [row.why_no_model for row in rows],
        # 1,000 per ns are 10^12 per second.
        "tflops_per_s": total_flops / measured_ns / 1e3,
        "tb_per_s": total_bytes / measured_ns / 1e3,
        "roofline_time_ms": best_ns / NS_PER_MS,
        "bound": [row.bound for row in rows],
        "% of roofline": best_ns / measured_ns * 100,
        "time_lost_ms": np.maximum(gpu_ns - best_ns, 0.0) / NS_PER_MS,
        "why_slow": [row.why_slow for row in rows],
    }
    if roofline.has_several_models:
        columns["device_model"] = [row.device_model for row in rows]
    return pd.DataFrame(columns)


def _attribute_of_costs(rows: Sequence[RooflineRow], attribute: str) -> list[Any]:
    """Return an attribute of the cost of each row; None for a row without a cost."""
    return [getattr(row.cost, attribute, None) for row in rows]
