"""The roofline of a trace: how good each operation is, and how much time it loses.

Roofline time is the larger of FLOPs / peak and bytes / bandwidth (Williams, Waterman, Patterson,
"Roofline: an insightful visual performance model", 2009). A row's figures are sums over its calls;
ratios are ratios of sums.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import starmap
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelens_ext.analysis.operations.arguments import ARGUMENTS, argument_values, parsed
from tracelens_ext.analysis.operations.experts import EXPERTS_BELOW, experts_below, is_of_experts
from tracelens_ext.analysis.operations.launchers import Launchers
from tracelens_ext.analysis.serving.annotations import Batch
from tracelens_ext.analysis.serving.steps import find_steps
from tracelens_ext.hooks import Offered, PluginRegistry, default_registry
from tracelens_ext.hooks.registry import call_within, one_line, time_limit
from tracelens_ext.lazy import pd
from tracelens_ext.roofline.attention import takes_lengths
from tracelens_ext.roofline.gemm import product_sizes
from tracelens_ext.roofline.hlo import works_of
from tracelens_ext.roofline.models import model_of, offered_models
from tracelens_ext.roofline.operation import Cost, Model, NoModelError, Operation, Tensor, known
from tracelens_ext.roofline.peaks import (
    DevicePeaks,
    capability_of,
    device_models,
    peaks_of_devices,
)
from tracelens_ext.trace import NONE, NS_PER_MS, Int64Array, IntArray
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.grouping import inverse, number_groups, sums, texts

Modelled = tuple[Cost | None, str | None]

#: Kernels that compute single-precision products with the TF32 units; Hopper's `nvjet` and
#: CUTLASS' `s1688` kernels for single precision have no other.
_TF32: Final = re.compile(r"tf32|xf32|s1688|nvjet_s", re.IGNORECASE)
#: FLOPs and bytes of a call from here on are no numbers of this world.
_MOST: Final = 2**62
#: Above this share of the roofline nothing needs explaining.
_GOOD_PERCENT: Final = 60.0
#: A kernel shorter than this is mostly its own start and end.
_LAUNCH_NS: Final = 4_000
#: Bytes that tensor cores load at once: rows have to be multiples of it.
_ALIGNED_BYTES: Final = 16
#: The last wave of tiles leaves units idle when there are fewer waves than this.
_MANY_WAVES: Final = 4
#: Products that leave tensor cores idle: many in a batch, none of whose sizes fills a tile.
_MANY_SMALL = 256
_SMALL = 64
#: Batch, heads, queries, keys.
_DIMS_OF_SCORES: Final = 4
_ITEM: Final = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "tf32": 4}
_TILE: Final = re.compile(r"(?<![\dx])(\d{2,3})x(\d{2,3})(?:x\d{1,3})?(?![\dx])|MT(\d+)x(\d+)x\d+")
_OLD_KERNELS: Final = (
    (re.compile(r"cutlass_75|turing_"), 80, "kernels for Turing"),
    (re.compile(r"cutlass_70|volta_"), 80, "kernels for Volta"),
    (re.compile(r"ampere_|cutlass_80|sm80_"), 90, "kernels for Ampere"),
)
_MISALIGNED: Final = re.compile(r"align[12](?!\d)")


#: Copies that cross the link between host and device.
_HOST_COPY: Final = re.compile(r"memcpy.*(HtoD|DtoH|HtoH|Host)", re.IGNORECASE)
#: The longest so many operations are told apart; a recording of real work has some thousands.
MOST_OPERATIONS: Final = 20_000
#: What the operations beyond those are called together.
OTHERS: Final = "(other operations)"


@dataclass(eq=False)
class RooflineRow:
    """An operation, what it costs, and how its time compares with the best case."""

    operation: Operation  #: name, arguments, kernels
    count: int  #: its calls
    gpu_ns: int  #: their GPU time
    is_host_copy: bool = False  #: whether it copies between host and device for the most part
    cost: Cost | None = None  #: of a call; None without a model
    why_no_model: str | None = None  #: why there is none
    model: str | None = None  #: the name of the model; None without one
    #: the best case of all calls; None without a model or a known device
    roofline_ns: float | None = None
    bound: str | None = None  #: `compute`, `memory` or `link`: what limits the best case
    #: 10^12 operations a second of its engine and type; None where it is not known
    peak: float | None = None
    why_slow: str = ""  #: what shows of the reason for the time lost
    #: the GPU model that ran it, where GPUs of several models did the work; else empty
    device_model: str = ""

    @property
    def lost_ns(self) -> float | None:
        """GPU time beyond the best case."""
        return None if self.roofline_ns is None else max(0.0, self.gpu_ns - self.roofline_ns)


@dataclass(frozen=True, eq=False)
class OperationGroups:
    """The operations that launched GPU work, by name and arguments; k groups."""

    operations: list[Operation]  #: name, arguments and kernels of each
    texts: dict[str, list[str]]  #: each argument of `ARGUMENTS` as the tables show it, k texts each
    count: Int64Array  #: calls, (k,)
    gpu_ns: Int64Array  #: busy time of what they launched, (k,)
    host_copy_ns: Int64Array  #: of it, copies between host and device, (k,)
    device: Int64Array  #: where the first GPU event of each ran, (k,)
    of_gpu: Int64Array  #: the group of each GPU event, `NONE` for one of none, (g,)
    first_gpu: Int64Array  #: the first GPU event of each call, in no order


@dataclass(frozen=True, eq=False)
class Roofline:
    """The operations of a trace, compared with their best case."""

    groups: OperationGroups  #: the operations, the longest GPU time first
    rows: Sequence[RooflineRow]  #: the same, compared
    #: what each device that did the work could do; None for an unknown one
    peaks: Mapping[int, DevicePeaks | None]

    @property
    def has_shapes(self) -> bool:
        """Whether arguments of operations were recorded."""
        return any(row.operation.types for row in self.rows)

    @cached_property
    def has_several_models(self) -> bool:
        """Whether GPUs of several models did the work."""
        return any(row.device_model for row in self.rows)

    @cached_property
    def families(self) -> frozenset[str]:
        """The families of the operations that have a model."""
        return frozenset(row.cost.family for row in self.rows if row.cost)


def find_roofline(
    work: GpuEvents,
    launchers: Launchers,
    own_peaks: DevicePeaks | None = None,
    selected: npt.NDArray[np.bool_] | None = None,
    registry: PluginRegistry | None = None,
) -> Roofline:
    """Apply the models, and the peaks of the devices, to the operations of a trace.

    Those of the GPU events `selected`, (g,), see `group_operations`; of all by default.
    """
    registry = registry or default_registry()
    peaks = peaks_of_devices(work.trace, own_peaks)
    models_of_devices = device_models(work.trace, peaks)
    groups = group_operations(work, launchers, selected, models_of_devices)
    offered = offered_models(registry)
    names = {op.model_name for op in groups.operations}
    by_name = {name: model_of(name, offered) for name in names}
    host = (2 * groups.host_copy_ns > groups.gpu_ns).tolist()
    costs = _costs(groups.operations, by_name, host, registry)
    columns = groups.count.tolist(), groups.gpu_ns.tolist(), host
    each = zip(groups.operations, *columns, *zip(*costs, strict=True), strict=True)
    rows = [RooflineRow(*one) for one in each] if costs else []
    for row, device in zip(rows, groups.device.tolist(), strict=True):
        if row.cost is not None:
            _compare(row, row.cost, by_name[row.operation.model_name], peaks[device])
        if row.operation.name != OTHERS:
            row.device_model = models_of_devices.get(device, "")
    return Roofline(groups, rows, peaks)


def group_operations(
    work: GpuEvents,
    launchers: Launchers,
    selected: npt.NDArray[np.bool_] | None = None,
    models_of_devices: Mapping[int, str] | None = None,
) -> OperationGroups:
    """Group the launchers of a trace by their names and arguments, the longest time first.

    With `models_of_devices` (see `device_models`), what GPUs of two models did is two groups.

    Beyond `MOST_OPERATIONS` groups the shorter ones are one, the last: `OTHERS`, without arguments.
    A launcher takes part with all that it launched if its first GPU event is `selected`, (g,).
    """
    trace = work.trace
    launched = np.flatnonzero(launchers.of_gpu != NONE)[::-1]
    first_gpu = np.zeros(len(launchers), dtype=np.int64)
    first_gpu[launchers.of_gpu[launched]] = launched  # the last to be written is the first
    taken = np.flatnonzero(np.ones(len(launchers)) if selected is None else selected[first_gpu])
    rows = launchers.rows[taken]
    codes = [trace.arg(argument).at(rows) for argument in ARGUMENTS]
    batch, batches = _batches(work, trace.name[rows], first_gpu[taken])
    work_of, works = works_of(trace, rows)
    keys: list[IntArray] = [trace.name[rows], *codes, batch, work_of]
    if models_of_devices:
        keys.append(_model_numbers(trace.device[first_gpu[taken]], models_of_devices))
    first, group = number_groups(keys)
    order = np.lexsort((first, -sums(group, launchers.direct_ns[taken], len(first))))
    group = np.minimum(inverse(order)[group], MOST_OPERATIONS)
    first = first[order][: MOST_OPERATIONS + 1]
    of_launcher = np.full(len(launchers) + 1, NONE, dtype=np.int64)
    of_launcher[taken] = group
    of_gpu = of_launcher[launchers.of_gpu]
    kernels, host_ns = _kernels(work, of_gpu, len(first))
    told = rows[first]
    names = texts(trace.name[told], trace.names)
    experts = np.flatnonzero(trace.named(trace.name[told], is_of_experts)).tolist()
    if len(first) > MOST_OPERATIONS:
        names[-1], kernels[-1], told[-1] = OTHERS, [], NONE
    values = []
    shown = {}
    missing: tuple[object, str] = ((), "")
    for argument in ARGUMENTS:
        number, pairs = argument_values(trace, told, argument, parsed, missing)
        value, text = zip(*pairs, strict=True) if pairs else ((), ())
        values.append([value[i] for i in number.tolist()])
        shown[argument] = texts(number, text)
    for i in experts:
        for column, more in zip(values, _experts(work, int(rows[first[i]])), strict=False):
            column[i] = (*column[i], *more) if isinstance(column[i], tuple) else ()
    step = [batches[i] if i != NONE else None for i in batch[first].tolist()]
    done = [works[i] if i != NONE else None for i in work_of[first].tolist()]
    each = zip(names, map(tuple, kernels), zip(*values, strict=True), step, done, strict=True)
    operations = [Operation.of_arguments(*one) for one in each]
    count = np.bincount(group, minlength=len(first))
    gpu_ns = launchers.direct_ns[taken]
    figures = count, sums(group, gpu_ns, len(first)), host_ns
    device = trace.device[first_gpu[taken[first]]]
    return OperationGroups(operations, shown, *figures, device, of_gpu, first_gpu[taken])


def _model_numbers(device: IntArray, models_of_devices: Mapping[int, str]) -> Int64Array:
    """Return a number for the GPU model of each device: devices of one model have one number."""
    model_names = sorted(set(models_of_devices.values()))
    numbers = np.zeros(len(device), dtype=np.int64)
    for device_number, model_name in models_of_devices.items():
        numbers[device == device_number] = model_names.index(model_name)
    return numbers


def _batches(
    work: GpuEvents, name: IntArray, first_gpu: Int64Array
) -> tuple[Int64Array, list[Batch]]:
    """The batch of each call whose model needs one, by the step that launched its work.

    Gives indices, `NONE` for the others, shape of `name`; and the distinct batches.
    """
    codes = np.full(len(name), NONE, dtype=np.int64)
    steps = find_steps(work.tree)
    distinct: dict[Batch, int] = {}
    if len(steps):
        needs = work.trace.named(name, takes_lengths)
        of_step = [distinct.setdefault(batch, len(distinct)) for batch in steps.batch]
        codes[needs] = np.array([*of_step, NONE])[steps.of_gpu[first_gpu[needs]]]
    return codes, list(distinct)


def _experts(work: GpuEvents, row: int) -> tuple[tuple[object, ...], ...]:
    """Sizes and types of what experts take below the operation of an engine."""
    kept = work.trace.arg(EXPERTS_BELOW)
    code = int(kept.at(np.array([row]))[0])
    text = experts_below(work.tree, row) if code == NONE else (kept.texts or [])[code]
    return parsed(text)[0] if text else ()  # type: ignore[return-value]  # as `experts_below` wrote it


def _kernels(work: GpuEvents, of_gpu: Int64Array, size: int) -> tuple[list[list[str]], Int64Array]:
    """The distinct GPU events of each group, and the time of its copies from and to the host."""
    launched = np.flatnonzero(of_gpu != NONE)
    group = of_gpu[launched]
    name = work.name[launched]
    first, _ = number_groups([group, name])
    kernels: list[list[str]] = [[] for _ in range(size)]
    for at in first.tolist():
        kernels[group[at]].append(work.trace.names[name[at]])
    copies = work.trace.named(name, _HOST_COPY.search)
    return kernels, sums(group[copies], work.duration[launched[copies]], size)


def _costs(
    operations: Sequence[Operation],
    models: Mapping[str, Offered[Model] | None],
    host: Sequence[bool],
    registry: PluginRegistry,
) -> list[Modelled]:
    """The cost of each operation, or why it has none; a plugin's models have a time limit."""
    result: list[Modelled] = []
    of_plugins: dict[str, dict[int, tuple[Model, Operation]]] = defaultdict(dict)
    for i, (op, is_host) in enumerate(zip(operations, host, strict=True)):
        offered = models[op.model_name]
        each: Modelled = None, f"no performance model for {op.name}"
        if op.name == OTHERS:
            each = None, f"only the {MOST_OPERATIONS:,} longest operations of a trace have one"
        elif not op.types:
            each = None, "no shapes were recorded"
        elif is_host or (offered is not None and offered.plugin.own):
            each = _modelled(_host_copy if is_host or not offered else offered.item, op)
        elif offered is not None:
            each = None, f"the plugin {offered.plugin.name} failed"
            of_plugins[offered.plugin.name][i] = offered.item, op
        result.append(each)
    for plugin, asked in of_plugins.items():
        with registry.guard(plugin):
            found = call_within(time_limit(), partial(list, starmap(_modelled, asked.values())))
            for i, each in zip(asked, found, strict=True):
                result[i] = each
    return result


def _modelled(model: Callable[[Operation], Cost], op: Operation) -> Modelled:
    """What a model says; whatever it raises costs this operation alone."""
    try:
        cost = model(op)
        fits = 0 <= int(cost.flops) < _MOST and 0 <= int(cost.bytes) < _MOST
        known(fits, "the recorded sizes cannot be right")
    except NoModelError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001  # arguments of traces, and plugins, can be anything
        return None, f"its model failed ({one_line(error)[:200]})"
    return cost, None


def _host_copy(op: Operation) -> Cost:
    """What crosses the link: the tensor that is copied, or a single number."""
    tensors = known(op.tensors or None, "what is copied is not recorded")
    moved = min(tensors[:2], key=lambda t: t.written) if op.plain_name == "copy_" else tensors[0]
    return Cost("HostCopy", 0, moved.written, "bytes", "link")


def _compare(
    row: RooflineRow, cost: Cost, offered: Offered[Model] | None, peaks: DevicePeaks | None
) -> None:
    """Say how a row compares with the best case."""
    tf32 = cost.engine == "matrix" and cost.data_type == "fp32"
    if tf32 and any(map(_TF32.search, row.operation.kernels)):
        cost = row.cost = replace(cost, data_type="tf32")
    row.model = name_of(offered) if offered and cost.engine != "link" else "host_copy"
    best, row.bound, row.peak = _best_case(cost, peaks)
    row.roofline_ns = None if best is None else best * row.count
    row.why_slow = _why_slow(row, cost, peaks)


def name_of(offered: Offered[Model]) -> str:
    """What tables call a model: `home.function`."""
    module = str(getattr(offered.item, "__module__", "")).rpartition(".")[2]
    home = getattr(offered.item, "home", module) if offered.plugin.own else offered.plugin.name
    return f"{home}.{getattr(offered.item, '__name__', 'model')}"


def _best_case(
    cost: Cost, peaks: DevicePeaks | None
) -> tuple[float | None, str | None, float | None]:
    """The roofline time of a call in ns, what limits it, and the peak of its engine and type."""
    if peaks is None or (cost.engine == "link" and peaks.link is None):
        return None, None, None
    if cost.engine == "link":
        return cost.bytes / (peaks.link or 0.0), "link", None
    memory_ns = cost.bytes / peaks.memory  # 10^9 bytes a second are bytes a ns
    if (found := peaks.peak(cost.engine, cost.data_type)) is None:
        # Without the peak of its type, compute-bound work has no best case.
        return (None, None, None) if cost.engine == "matrix" else (memory_ns, "memory", None)
    compute_ns = cost.flops / (found[0] * 1e3)
    bound = "compute" if compute_ns > memory_ns else "memory"
    return max(compute_ns, memory_ns), bound, found[0]


def _why_slow(row: RooflineRow, cost: Cost, peaks: DevicePeaks | None) -> str:
    """What shapes and kernel names show of the reason, the most telling first; else empty."""
    op = row.operation
    best_ns = row.roofline_ns
    if best_ns is not None and 100.0 * best_ns >= _GOOD_PERCENT * row.gpu_ns:
        return ""
    found = []
    if cost.engine == "matrix":
        found += _of_matrix_work(op, cost, peaks)
    elif cost.engine == "vector":
        found += ["strided input"] if any(map(_is_strided, op.tensors)) else []
        if cost.family == "Softmax" and len(op.tensors[0].dims) >= _DIMS_OF_SCORES:
            found.append("scores of attention that is not fused")
    if row.gpu_ns < _LAUNCH_NS * row.count:
        found.append("too small to fill the GPU")
    return "; ".join(found)


def _is_strided(tensor: Tensor) -> bool:
    """Whether the innermost of its dimensions that has several elements is not contiguous."""
    if len(tensor.dims) < 2 or len(tensor.strides) != len(tensor.dims):
        return False
    sizes = zip(reversed(tensor.dims), reversed(tensor.strides), strict=True)
    return next((stride for size, stride in sizes if size > 1), 1) > 1


def _of_matrix_work(op: Operation, cost: Cost, peaks: DevicePeaks | None) -> list[str]:
    found = []
    if cost.data_type == "fp32" and (peaks is None or "tf32" in peaks.matrix):
        found.append("single precision without TF32")
    batch, m, n, k = product_sizes(cost)
    step = _ALIGNED_BYTES // _ITEM.get(cost.data_type, _ALIGNED_BYTES)
    odd = [f"{name}={size}" for name, size in (("N", n), ("K", k)) if size % step and size > 1]
    if odd:
        found.append(f"{', '.join(odd)} not a multiple of {step}")
    if batch >= _MANY_SMALL and 0 < max(m, n, k) <= _SMALL:
        found.append(f"{batch:,} small products of {m}x{n}x{k}")
    if any(_MISALIGNED.search(kernel) for kernel in op.kernels):
        found.append("kernel for unaligned data")
    generation = capability_of(peaks.name) if peaks is not None else 0  # of NVIDIA's alone
    found += [
        said
        for pattern, needed, said in _OLD_KERNELS
        if generation >= needed and any(map(pattern.search, op.kernels))
    ][:1]
    tile = next((t for kernel in op.kernels if (t := _TILE.search(kernel))), None)
    if peaks is not None and peaks.units and tile is not None and batch * m * n:
        rows, columns = (int(t) for t in tile.groups() if t)
        tiles = batch * -(-m // max(rows, 1)) * -(-n // max(columns, 1))
        waves = tiles / peaks.units
        if waves < 1:
            found.append(f"{tiles} tiles of {rows}x{columns} for {peaks.units} compute units")
        elif waves < _MANY_WAVES and waves % 1 and waves / -(-waves // 1) < 0.8:
            found.append(f"{waves:.1f} waves of tiles: the last leaves units idle")
    return found


def roofline_table(roofline: Roofline) -> pd.DataFrame:
    """A row for each operation and its arguments, the longest GPU time first."""
    rows = roofline.rows
    groups = roofline.groups
    gpu_ns = groups.gpu_ns.astype(np.float64)
    measured = np.where(gpu_ns > 0, gpu_ns, np.nan)  # work of no time has no rate
    # What is None becomes NaN.
    best_ns = np.array([row.roofline_ns for row in rows], dtype=np.float64)

    def told(*names: str) -> dict[str, list[Any]]:
        of = {name: [row if hasattr(row, name) else row.cost for row in rows] for name in names}
        return {name: [getattr(each, name, None) for each in its] for name, its in of.items()}

    work = {name: pd.array(each, dtype="Int64") for name, each in told("flops", "bytes").items()}
    rates = [  # 1,000 a ns are 10^12 a second
        each.to_numpy(np.float64, na_value=np.nan) * groups.count / measured / 1e3
        for each in work.values()
    ]
    lost_ns = np.maximum(gpu_ns - best_ns, 0.0)
    name = [row.operation.name for row in rows]
    columns: dict[str, object] = {"op_name": name} | told("family") | groups.texts
    columns |= {"count": groups.count, "gpu_time_ms": gpu_ns / NS_PER_MS}
    columns |= work
    columns |= told("engine", "data_type", "model", "why_no_model")
    columns |= {"tflops_per_s": rates[0], "tb_per_s": rates[1]}
    columns["roofline_time_ms"] = best_ns / NS_PER_MS
    columns |= told("bound")
    columns |= {"% of roofline": best_ns / measured * 100, "time_lost_ms": lost_ns / NS_PER_MS}
    columns |= told("why_slow")
    if roofline.has_several_models:
        columns |= told("device_model")
    return pd.DataFrame(columns)
