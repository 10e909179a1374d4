"""The roofline of a trace: how good each operation is, and how much time it loses.

Roofline time is the larger of FLOPs / peak and bytes / bandwidth (Williams, Waterman, Patterson,
"Roofline: an insightful visual performance model", 2009). A row's figures are sums over its calls;
ratios are ratios of sums.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.analysis.codes import dense_codes
from tracelens_ext.analysis.launchers import ARGUMENTS
from tracelens_ext.analysis.op_arguments import as_tuples
from tracelens_ext.roofline.models import model_of
from tracelens_ext.roofline.operation import Cost, NoModelError, Operation
from tracelens_ext.roofline.reasons import why_slow
from tracelens_ext.trace import NONE, NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from tracelens_ext.analysis.gpu_work import GpuWork
    from tracelens_ext.analysis.launchers import Launchers
    from tracelens_ext.roofline.models import Model
    from tracelens_ext.roofline.peaks import DevicePeaks
    from tracelens_ext.trace import Int64Array

#: Copies that cross the link between host and device.
_HOST_COPY: Final = re.compile(r"memcpy.*(HtoD|DtoH|HtoH|Host)", re.IGNORECASE)
#: Kernels that compute single-precision products with the TF32 units; Hopper's `nvjet` and
#: CUTLASS' `s1688` kernels for single precision have no other.
_TF32: Final = re.compile(r"tf32|xf32|s1688|nvjet_s", re.IGNORECASE)

COLUMNS: Final = (
    *("op_name", "family", *ARGUMENTS, "count", "gpu_time_ms", "flops", "bytes", "engine"),
    *("data_type", "model", "why_no_model", "tflops_per_s", "tb_per_s", "roofline_time_ms"),
    *("bound", "% of roofline", "time_lost_ms", "why_slow"),
)


@dataclass(frozen=True, eq=False)
class OperationGroups:
    """The operations that launched GPU work, by name and arguments; k groups.

    Attributes:
        operations: name, arguments and kernels of each.
        texts: each argument of `ARGUMENTS` as the tables show it, k texts each.
        count: calls, (k,).
        gpu_ns: busy time of what they launched, (k,).
        host_copy_ns: of it, copies between host and device, (k,).
        of_launcher: the group of each launcher.
    """

    operations: list[Operation]
    texts: dict[str, list[str]]
    count: Int64Array
    gpu_ns: Int64Array
    host_copy_ns: Int64Array
    of_launcher: Int64Array


def group_operations(work: GpuWork, launchers: Launchers) -> OperationGroups:
    """Group the launchers of a trace by their names and arguments, the longest time first."""
    trace, rows = work.trace, launchers.rows
    columns = [trace.arg(argument) for argument in ARGUMENTS]
    codes = [column.at(rows) for column in columns]
    first, group = dense_codes([trace.name[rows], *codes])
    count = np.bincount(group, minlength=len(first))
    gpu_ns = _sums(group, launchers.direct_ns, len(first))
    kernels, host_ns = _kernels(work, launchers, group, len(first))
    order = np.lexsort((first, -gpu_ns))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    raw = [
        [column.texts[i] if i != NONE and column.texts else "" for i in code[first[order]].tolist()]
        for column, code in zip(columns, codes, strict=True)
    ]
    names = [trace.names[i] for i in trace.name[rows[first[order]]].tolist()]
    operations = [
        Operation.from_json(name, dims, types, strides, concrete, tuple(kernels[i]))
        for i, (name, dims, types, strides, concrete) in zip(
            order.tolist(), zip(names, *raw, strict=True), strict=True
        )
    ]
    return OperationGroups(
        operations,
        {a: list(map(as_tuples, texts)) for a, texts in zip(ARGUMENTS, raw, strict=True)},
        count[order],
        gpu_ns[order],
        host_ns[order],
        place[group],
    )


def _sums(group: Int64Array, values: Int64Array, size: int) -> Int64Array:
    result = np.zeros(size, dtype=np.int64)
    np.add.at(result, group, values)
    return result


def _kernels(
    work: GpuWork, launchers: Launchers, group: Int64Array, size: int
) -> tuple[list[list[str]], Int64Array]:
    """The distinct GPU events of each group, and the time of its copies from and to the host."""
    launched = np.flatnonzero(launchers.of_gpu != NONE)
    of_gpu = group[launchers.of_gpu[launched]]
    names = work.trace.names
    first, pair = dense_codes([of_gpu, work.name[launched]])
    del pair
    kernels: list[list[str]] = [[] for _ in range(size)]
    owners, codes = of_gpu[first].tolist(), work.name[launched[first]].tolist()
    for owner, code in zip(owners, codes, strict=True):
        kernels[owner].append(names[code])
    is_host_copy = np.fromiter((bool(_HOST_COPY.search(n)) for n in names), bool, len(names))
    copies = is_host_copy[work.name[launched]]
    host_ns = _sums(of_gpu[copies], work.duration[launched[copies]], size)
    return kernels, host_ns


@dataclass(frozen=True)
class Judged:
    """An operation, what it costs, and how its time compares with the best case.

    Attributes:
        operation: name, arguments, kernels.
        count: its calls.
        gpu_ns: their GPU time.
        cost: of a call; None without a model.
        model: the name of the model; None without one.
        why_no_model: why there is none.
        roofline_ns: the best case of all calls; None without a model or a known device.
        bound: `compute`, `memory` or `link`: what limits the best case.
        why_slow: what shows of the reason for the time lost.
    """

    operation: Operation
    count: int
    gpu_ns: int
    cost: Cost | None
    model: str | None
    why_no_model: str | None
    roofline_ns: float | None
    bound: str | None
    why_slow: str


def judge(
    groups: OperationGroups, models: Mapping[str, Model], peaks: DevicePeaks | None
) -> list[Judged]:
    """Apply the models, and the peaks of the device, to the operations of a trace."""
    rows = zip(
        groups.operations,
        groups.count.tolist(),
        groups.gpu_ns.tolist(),
        groups.host_copy_ns.tolist(),
        strict=True,
    )
    return [_judged(op, n, ns, host, models, peaks) for op, n, ns, host in rows]


def _judged(
    op: Operation,
    count: int,
    gpu_ns: int,
    host_ns: int,
    models: Mapping[str, Model],
    peaks: DevicePeaks | None,
) -> Judged:
    model = model_of(op.name, models)
    cost, reason = None, None
    if not op.types:
        reason = "no shapes were recorded"
    elif 2 * host_ns > gpu_ns:
        cost, reason = _host_copy(op)
    elif model is None:
        reason = f"no performance model for {op.name}"
    else:
        try:
            cost = model(op)
        except NoModelError as error:
            reason = str(error)
    if cost is None:
        return Judged(op, count, gpu_ns, None, None, reason, None, None, "")
    cost = _with_used_type(cost, op)
    name = "host_copy" if cost.engine == "link" else _name_of(model)
    best, bound = _best_case(cost, peaks)
    total = None if best is None else best * count
    why = why_slow(op, cost, peaks, gpu_ns, total, count)
    return Judged(op, count, gpu_ns, cost, name, None, total, bound, why)


def _host_copy(op: Operation) -> tuple[Cost | None, str | None]:
    """What crosses the link: the tensor that is copied, or a single number."""
    tensors = op.tensors
    if not tensors:
        return None, "what is copied is not recorded"
    moved = min(tensors[:2], key=lambda t: t.written) if op.plain_name == "copy_" else tensors[0]
    return Cost("HostCopy", 0, moved.written, "bytes", "link"), None


def _with_used_type(cost: Cost, op: Operation) -> Cost:
    """Single-precision products whose kernels use TF32 are judged by it."""
    if cost.engine != "matrix" or cost.data_type != "fp32":
        return cost
    if any(_TF32.search(kernel) for kernel in op.kernels):
        return replace(cost, data_type="tf32")
    return cost


def _name_of(model: Model | None) -> str:
    home = getattr(model, "__module__", "").rpartition(".")[2]
    return f"{home}.{getattr(model, '__name__', 'model')}"


def _best_case(cost: Cost, peaks: DevicePeaks | None) -> tuple[float | None, str | None]:
    """The roofline time of a call in ns, and what limits it."""
    if peaks is None:
        return None, None
    if cost.engine == "link":
        return (None, None) if peaks.link is None else (cost.bytes / peaks.link, "link")
    memory_ns = cost.bytes / peaks.memory  # 10^9 bytes a second are bytes a ns
    peak = peaks.peak(cost.engine, cost.data_type)
    if peak is None:
        return memory_ns, "memory"
    compute_ns = cost.flops / (peak[0] * 1e3)
    return (compute_ns, "compute") if compute_ns > memory_ns else (memory_ns, "memory")


def roofline_table(groups: OperationGroups, judged: Sequence[Judged]) -> pd.DataFrame:
    """A row for each operation and its arguments, the longest GPU time first.

    Returns:
        The columns of `COLUMNS`: `flops` and `bytes` are whole numbers of one call, `gpu_time_ms`,
        `roofline_time_ms` and `time_lost_ms` sums over `count` calls; None where there is no model.
    """
    import pandas as pd

    gpu_ms = groups.gpu_ns / NS_PER_MS
    columns: dict[str, object] = {
        "op_name": [j.operation.name for j in judged],
        "family": [j.cost.family if j.cost else None for j in judged],
        **groups.texts,
        "count": groups.count,
        "gpu_time_ms": gpu_ms,
        "flops": pd.array([j.cost.flops if j.cost else None for j in judged], dtype="object"),
        "bytes": pd.array([j.cost.bytes if j.cost else None for j in judged], dtype="object"),
        "engine": [j.cost.engine if j.cost else None for j in judged],
        "data_type": [j.cost.data_type if j.cost else None for j in judged],
        "model": [j.model for j in judged],
        "why_no_model": [j.why_no_model for j in judged],
        **_rates(judged),
        "bound": [j.bound for j in judged],
        "% of roofline": _percents(judged),
        "time_lost_ms": [
            None if j.roofline_ns is None else max(0.0, j.gpu_ns - j.roofline_ns) / NS_PER_MS
            for j in judged
        ],
        "why_slow": [j.why_slow for j in judged],
    }
    frame = pd.DataFrame(columns)
    numbers = ["tflops_per_s", "tb_per_s", "roofline_time_ms", "% of roofline", "time_lost_ms"]
    return frame.astype(dict.fromkeys(numbers, "float64"))[list(COLUMNS)]


def _rates(judged: Sequence[Judged]) -> dict[str, list[float | None]]:
    """Operations and bytes of all calls over their time; 1,000 bytes a ns are a TB/s."""
    some = [j if j.cost and j.gpu_ns else None for j in judged]
    return {
        "tflops_per_s": [
            j.cost.flops * j.count / j.gpu_ns / 1e3 if j and j.cost else None for j in some
        ],
        "tb_per_s": [
            j.cost.bytes * j.count / j.gpu_ns / 1e3 if j and j.cost else None for j in some
        ],
        "roofline_time_ms": [
            None if j.roofline_ns is None else j.roofline_ns / NS_PER_MS for j in judged
        ],
    }


def _percents(judged: Sequence[Judged]) -> list[float | None]:
    return [
        None if j.roofline_ns is None or not j.gpu_ns else 100.0 * j.roofline_ns / j.gpu_ns
        for j in judged
    ]
