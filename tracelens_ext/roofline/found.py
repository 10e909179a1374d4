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

from tracelens_ext.hooks import Offered, PluginRegistry, default_registry
from tracelens_ext.hooks.registry import call_within, one_line, time_limit
from tracelens_ext.lazy import pd
from tracelens_ext.operations.launchers import Launchers
from tracelens_ext.roofline.groups import MOST_OPERATIONS, OTHERS, OperationGroups, group_operations
from tracelens_ext.roofline.models import model_of, offered_models
from tracelens_ext.roofline.operation import (
    Cost,
    Model,
    NoModelError,
    Operation,
    Tensor,
    short_type,
)
from tracelens_ext.roofline.peaks import DevicePeaks, capability_of, peaks_of_devices
from tracelens_ext.roofline.products import product_sizes
from tracelens_ext.trace import NS_PER_MS
from tracelens_ext.work.gpu_work import GpuWork

Modelled = tuple[Cost | None, str]

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
_MANY_SMALL, _SMALL = 256, 64
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


@dataclass(frozen=True)
class RooflineRow:
    """An operation, what it costs, and how its time compares with the best case."""

    operation: Operation  #: name, arguments, kernels
    count: int  #: its calls
    gpu_ns: int  #: their GPU time
    cost: Cost | None = None  #: of a call; None without a model
    model: str | None = None  #: the name of the model; None without one
    why_no_model: str | None = None  #: why there is none
    #: the best case of all calls; None without a model or a known device
    roofline_ns: float | None = None
    bound: str | None = None  #: `compute`, `memory` or `link`: what limits the best case
    #: 10^12 operations a second of its engine and type; None where it is not known
    peak: float | None = None
    why_slow: str = ""  #: what shows of the reason for the time lost
    is_host_copy: bool = False  #: whether it copies between host and device for the most part

    @property
    def lost_ns(self) -> float | None:
        """GPU time beyond the best case."""
        return None if self.roofline_ns is None else max(0.0, self.gpu_ns - self.roofline_ns)


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
    def families(self) -> frozenset[str]:
        """The families of the operations that have a model."""
        return frozenset(row.cost.family for row in self.rows if row.cost)


def find_roofline(
    work: GpuWork,
    launchers: Launchers,
    own_peaks: DevicePeaks | None = None,
    selected: npt.NDArray[np.bool_] | None = None,
    registry: PluginRegistry | None = None,
) -> Roofline:
    """Apply the models, and the peaks of the devices, to the operations of a trace.

    Those of the GPU events `selected`, (g,), see `group_operations`; of all by default.
    """
    registry = registry or default_registry()
    groups = group_operations(work, launchers, selected)
    peaks = peaks_of_devices(work.trace, own_peaks)
    offered = offered_models(registry)
    by_name = {
        name: model_of(name, offered) for name in {op.model_name for op in groups.operations}
    }
    host = (2 * groups.host_copy_ns > groups.gpu_ns).tolist()
    costs = _costs(groups.operations, by_name, host, registry)
    columns = groups.count.tolist(), groups.gpu_ns.tolist(), groups.device.tolist()
    rows = []
    for op, count, ns, device, is_host, (cost, why) in zip(
        groups.operations, *columns, host, costs, strict=True
    ):
        row = RooflineRow(op, count, ns, is_host_copy=is_host)
        if cost is None:
            rows.append(replace(row, why_no_model=why))
        else:
            rows.append(_compared(row, cost, by_name[op.model_name], peaks[device]))
    return Roofline(groups, rows, peaks)


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
        said = f"no performance model for {op.name}"
        if op.name == OTHERS:
            said = f"only the {MOST_OPERATIONS:,} longest operations of a trace have one"
        elif not op.types:
            said = "no shapes were recorded"
        elif is_host or (offered is not None and offered.plugin.own):
            result.append(_modelled(_host_copy if is_host or not offered else offered.item, op))
            continue
        elif offered is not None:
            said = f"the plugin {offered.plugin.name} failed"
            of_plugins[offered.plugin.name][i] = offered.item, op
        result.append((None, said))
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
        if not 0 <= int(cost.flops) < _MOST or not 0 <= int(cost.bytes) < _MOST:
            raise NoModelError("the recorded sizes cannot be right")
    except NoModelError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001  # arguments of traces, and plugins, can be anything
        return None, f"its model failed ({one_line(error)[:200]})"
    return cost, ""


def _host_copy(op: Operation) -> Cost:
    """What crosses the link: the tensor that is copied, or a single number."""
    tensors = op.tensors
    if not tensors:
        raise NoModelError("what is copied is not recorded")
    moved = min(tensors[:2], key=lambda t: t.written) if op.plain_name == "copy_" else tensors[0]
    return Cost("HostCopy", 0, moved.written, "bytes", "link")


def _compared(
    row: RooflineRow, cost: Cost, offered: Offered[Model] | None, peaks: DevicePeaks | None
) -> RooflineRow:
    tf32 = cost.engine == "matrix" and cost.data_type == "fp32"
    if tf32 and any(map(_TF32.search, row.operation.kernels)):
        cost = replace(cost, data_type="tf32")
    model = name_of(offered) if offered and cost.engine != "link" else "host_copy"
    best, bound, peak = _best_case(cost, peaks)
    best = None if best is None else best * row.count
    row = replace(row, cost=cost, model=model, roofline_ns=best, bound=bound, peak=peak)
    return replace(row, why_slow=_why_slow(row, cost, peaks))


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
    found = peaks.peak(cost.engine, cost.data_type)
    if found is None:
        # Without the peak of its type, compute-bound work has no best case.
        return (None, None, None) if cost.engine == "matrix" else (memory_ns, "memory", None)
    compute_ns = cost.flops / (found[0] * 1e3)
    bound = "compute" if compute_ns > memory_ns else "memory"
    return max(compute_ns, memory_ns), bound, found[0]


def _why_slow(row: RooflineRow, cost: Cost, peaks: DevicePeaks | None) -> str:
    """What shapes and kernel names show of the reason, the most telling first; else empty."""
    op, best_ns = row.operation, row.roofline_ns
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
    rows, groups = roofline.rows, roofline.groups
    gpu_ns = groups.gpu_ns.astype(np.float64)
    measured = np.where(gpu_ns > 0, gpu_ns, np.nan)  # work of no time has no rate
    # What is None becomes NaN.
    best_ns = np.array([row.roofline_ns for row in rows], dtype=np.float64)

    def told(*names: str, of: str = "") -> dict[str, list[Any]]:
        whole = [getattr(row, of) if of else row for row in rows]
        return {name: [getattr(each, name, None) for each in whole] for name in names}

    counted = told("flops", "bytes", of="cost")
    work = {name: pd.array(each, dtype="Int64") for name, each in counted.items()}
    rates = {  # 1,000 a ns are 10^12 a second
        name: work[of].to_numpy(np.float64, na_value=np.nan) * groups.count / measured / 1e3
        for name, of in (("tflops_per_s", "flops"), ("tb_per_s", "bytes"))
    }
    columns: dict[str, object] = {
        "op_name": [row.operation.name for row in rows],
        **told("family", of="cost"),
        **groups.texts,
        "count": groups.count,
        "gpu_time_ms": gpu_ns / NS_PER_MS,
        **work,
        **told("engine", "data_type", of="cost"),
        **told("model", "why_no_model"),
        **rates,
        "roofline_time_ms": best_ns / NS_PER_MS,
        **told("bound"),
        "% of roofline": best_ns / measured * 100,
        "time_lost_ms": np.maximum(gpu_ns - best_ns, 0.0) / NS_PER_MS,
        **told("why_slow"),
    }
    return pd.DataFrame(columns)


def roofline_peaks(roofline: Roofline) -> pd.DataFrame:
    """The peaks of the types in use (10^12 operations a second), and `memory` (10^12 bytes)."""
    roofs: dict[str, float] = {
        f"{row.cost.engine} {row.cost.data_type}": row.peak
        for row in reversed(roofline.rows)
        if row.cost is not None and row.peak is not None and row.cost.flops
    }
    if known := [peaks for peaks in roofline.peaks.values() if peaks is not None]:
        roofs["memory"] = known[0].memory / 1e3
    return pd.DataFrame({"what": list(roofs), "peak": list(roofs.values())})


_MOST_TENSORS: Final = 4


def shape_text(row: RooflineRow) -> str:
    """Types and sizes of the tensors; empty where none are recorded.

    A type is said again where it changes; single elements and what comes late are left out.
    """
    op = row.operation
    parts = [(short_type(t.kind), _sizes(t.dims)) for t in op.tensors if t.dims]
    parts += [
        ("", f"{len(parts)} × {_sizes(parts[0])}")
        for kind, parts in zip(op.types, op.dims, strict=False)
        if kind == "TensorList" and isinstance(parts, tuple) and parts
    ]
    product = row.cost is not None and row.cost.family in ("GEMM", "CONV_fwd")
    if product:  # neither what is added nor `out=`
        first = int(op.plain_name.startswith(("add", "_add", "badd")))
        parts = parts[first : first + 2]
    texts, before = [], ""
    for kind, text in parts[:_MOST_TENSORS]:
        texts.append(text if kind == before else f"{kind} {text}".lstrip())
        before = kind
    if len(parts) > _MOST_TENSORS:
        texts.append("…")
    return (" × " if product else ", ").join(texts)


def _sizes(dims: object) -> str:
    return f"[{','.join(map(str, dims))}]" if isinstance(dims, tuple) else "[…]"
