"""Summaries of the roofline by family, iteration and phase, and notes on how much is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.roofline.analysis import Roofline, RooflineRow, roofline_table
from tracelens_ext.roofline.utilization import LEAST_COVERAGE
from tracelens_ext.trace import NS_PER_MS, Trace

if TYPE_CHECKING:
    from tracelens_ext.roofline.peaks import DevicePeaks
    from tracelens_ext.trace.gpu_events import GpuEvents

#: The family of operations without a performance model in tables.
NO_FAMILY: Final = "(no model)"
#: From this percentage of GPU time without a launch on, a note says so.
_MANY_UNLINKED: Final = 1.0
_NAMED_IN_NOTE: Final = 3  # operations
_MOST_TENSORS: Final = 4  # in the text of shapes


@dataclass(frozen=True)
class ModelledShare:
    """How much of the GPU time has a performance model."""

    #: percentage of the GPU time of operations, copies between host and device aside
    percent: float
    #: the end of a sentence: the longest operation without a model, its percentage, and the reason
    largest: str

    def __str__(self) -> str:
        return f"{self.percent:.1f} % of GPU time has a performance model{self.largest}"


def modelled(roofline: Roofline) -> ModelledShare:
    """Return how much of the GPU time has a performance model, and the largest part without."""
    rows = [row for row in roofline.rows if not row.is_host_copy]
    total_ns = max(sum(row.gpu_ns for row in rows), 1)
    missing_ns: Counter[tuple[str, str | None]] = Counter()
    for row in rows:
        if row.cost is None:
            missing_ns[row.operation.name, row.why_no_model] += row.gpu_ns
    modelled_ns = sum(row.gpu_ns for row in rows) - missing_ns.total()
    largest = ""
    for (name, reason), gpu_ns in missing_ns.most_common(1):
        if gpu_ns:
            percent = 100.0 * gpu_ns / total_ns
            largest = (
                f"; the largest without one: {name} ({percent:.1f} %), because {reason}"
            )
    return ModelledShare(100.0 * modelled_ns / total_ns, largest)


class _Roof(NamedTuple):
    """The label of a roof in the roofline chart."""

    device_model: str  #: empty if all GPUs are of one model
    what: str  #: engine and data type, or `memory`


def roofline_peaks(roofline: Roofline) -> pd.DataFrame:
    """Return the peaks of the data types in use and of the memory.

    They are in 10^12 operations or bytes a second. Each GPU model has peaks of its own if GPUs of
    several models did the work.
    """
    peaks_of_roofs: dict[_Roof, float] = {}
    # The longest operation comes last, so its peak is the one that stays.
    for row in reversed(roofline.rows):
        if row.cost is not None and row.peak is not None and row.cost.flops:
            roof = _Roof(
                device_model=row.device_model,
                what=f"{row.cost.engine} {row.cost.data_type}",
            )
            peaks_of_roofs[roof] = row.peak
    for peaks in roofline.peaks.values():
        if peaks is not None:
            device_model = peaks.name if roofline.has_several_models else ""
            peaks_of_roofs.setdefault(_Roof(device_model, "memory"), peaks.memory / 1e3)
    names = [roof.what for roof in peaks_of_roofs]
    table = pd.DataFrame({"what": names, "peak": list(peaks_of_roofs.values())})
    if not roofline.has_several_models:
        return table
    table["device_model"] = [roof.device_model for roof in peaks_of_roofs]
    return table.sort_values("device_model", kind="stable", ignore_index=True)


class _Shape(NamedTuple):
    """The type and the sizes of a tensor as text."""

    data_type: str
    sizes: str


def shape_text(row: RooflineRow) -> str:
    """Return types and sizes of an operation's tensors; empty if none are recorded.

    The text is `bf16 [8,16] × [16,4]` for a matrix product, and `bf16 [8,16], fp32 [8,16]` for
    another operation. A type is repeated only if it changes. Single elements are left out, and so
    are tensors behind the first `_MOST_TENSORS`.
    """
    operation = row.operation
    shapes = [
        _Shape(data_type=tensor.short_type, sizes=_sizes_text(tensor.dims))
        for tensor in operation.tensors
        if tensor.dims
    ]
    for kind, dims in zip(operation.types, operation.dims, strict=False):
        if kind == "TensorList" and isinstance(dims, tuple) and dims:
            shapes.append(_Shape("", f"{len(dims)} × {_sizes_text(dims[0])}"))
    is_product = row.cost is not None and row.cost.family in ("GEMM", "CONV_fwd")
    if is_product:
        # Only the two factors: neither the added matrix before them nor `out=` behind them.
        adds = operation.plain_name.startswith(("add", "_add", "badd"))
        first_factor = 1 if adds else 0
        shapes = shapes[first_factor : first_factor + 2]
    texts = []
    previous_type = ""
    for shape in shapes[:_MOST_TENSORS]:
        if shape.data_type == previous_type:
            texts.append(shape.sizes)
        else:
            texts.append(f"{shape.data_type} {shape.sizes}".lstrip())
        previous_type = shape.data_type
    if len(shapes) > _MOST_TENSORS:
        texts.append("…")
    separator = " × " if is_product else ", "
    return separator.join(texts)


def _sizes_text(dims: object) -> str:
    if not isinstance(dims, tuple):
        return "[…]"
    return f"[{','.join(map(str, dims))}]"


def family_summary(roofline: Roofline) -> pd.DataFrame:
    """Return a row for each family of operations, the longest GPU time first."""
    table = roofline_table(roofline).fillna({"family": NO_FAMILY})
    gpu_ns = roofline.groups.gpu_ns.astype(np.float64)
    calls = roofline.groups.count
    has_model = table["flops"].notna()
    has_best_case = table["roofline_time_ms"].notna()
    parts = table[["family", "time_lost_ms"]].assign(
        ns=gpu_ns,
        modelled_ns=gpu_ns * has_model,
        known_ns=gpu_ns * has_best_case,
        flops=table["flops"].astype("float64") * calls,
        bytes=table["bytes"].astype("float64") * calls,
        best_ns=table["roofline_time_ms"] * NS_PER_MS,
    )
    families = parts.groupby("family", sort=False).sum(min_count=1)
    families = families.sort_values("ns", ascending=False, kind="stable").reset_index()
    modelled_ns = families["modelled_ns"].where(families["modelled_ns"] > 0)
    known_ns = families["known_ns"].where(families["known_ns"] > 0)
    families["gpu_time_ms"] = families["ns"] / NS_PER_MS
    families["gpu_time_percent"] = 100.0 * families["ns"] / max(gpu_ns.sum(), 1)
    families["tflops_per_s"] = families["flops"] / modelled_ns / 1e3
    families["tb_per_s"] = families["bytes"] / modelled_ns / 1e3
    covered_percent = 100.0 * families["known_ns"] / families["ns"].clip(lower=1)
    families["modeled_percent"] = covered_percent
    share = 100.0 * families["best_ns"] / known_ns
    families["% of roofline"] = share.where(covered_percent >= LEAST_COVERAGE)
    columns = [
        "family",
        "gpu_time_ms",
        "gpu_time_percent",
        "tflops_per_s",
        "tb_per_s",
        "modeled_percent",
        "% of roofline",
        "time_lost_ms",
    ]
    return families[columns].astype({"family": object})


def roofline_facts(trace: Trace, roofline: Roofline) -> list[tuple[str, object]]:
    """Return labels and values: the devices with their peaks, and the totals."""
    facts: list[tuple[str, object]] = []
    for number, peaks in roofline.peaks.items():
        device = trace.described(number)
        device_name = device.name if device is not None else ""
        facts.append((f"Device {number}", device_name or "not recorded in the trace"))
        facts.append((f"Peaks of device {number}", described(peaks)))
    gpu_ns = sum(row.gpu_ns for row in roofline.rows)
    facts.append(("GPU time of operations (ms)", gpu_ns / NS_PER_MS))
    facts.append(("GPU time modeled (%)", modelled(roofline).percent))
    best_ns = [row.roofline_ns for row in roofline.rows if row.roofline_ns is not None]
    if best_ns:
        lost_ns = sum(row.lost_ns or 0.0 for row in roofline.rows)
        facts.append(("Roofline time (ms)", sum(best_ns) / NS_PER_MS))
        facts.append(("Time lost (ms)", lost_ns / NS_PER_MS))
    return facts


def described(peaks: DevicePeaks | None) -> str:
    """Return a line of text: `H100 SXM: matrix bf16 989.4, …; vector … TFLOP/s; memory …`."""
    if peaks is None:
        return "unknown"
    engines = [
        _engine_text("matrix", peaks.matrix),
        _engine_text("vector", peaks.vector),
    ]
    rates = "; ".join(text for text in engines if text)
    parts = [f"{peaks.name}: {rates} TFLOP/s", f"memory {peaks.memory:,g} GB/s"]
    if peaks.link:
        parts.append(f"link to the CPU {peaks.link:,g} GB/s")
    return "; ".join(parts)


def _engine_text(engine: str, peaks: Mapping[str, float]) -> str:
    if not peaks:
        return ""
    rates = ", ".join(f"{data_type} {peak:,g}" for data_type, peak in peaks.items())
    return f"{engine} {rates}"


def advice(gpu_events: GpuEvents, roofline: Roofline) -> list[str]:
    """Return notes on what the roofline of this trace lacks, one sentence each."""
    notes = []
    unlinked_ns = int(gpu_events.duration[~gpu_events.tree.linked].sum())
    unlinked_percent = 100.0 * unlinked_ns / max(gpu_events.duration.sum(), 1)
    if unlinked_percent >= _MANY_UNLINKED:
        notes.append(
            f"{unlinked_percent:.1f} % of the GPU time has no launch in the trace, so "
            "it belongs to no operation and is not in the roofline."
        )
    if not roofline.has_shapes and roofline.rows:
        notes.append(
            "The trace has no shapes, so no operation has a performance model; record "
            "them with torch.profiler.profile(record_shapes=True)."
        )
        return notes
    unknown = [str(device) for device, peaks in roofline.peaks.items() if peaks is None]
    if unknown:
        notes.append(
            f"The peaks of device {', '.join(unknown)} are unknown, so there are no "
            "percentages; give them with --device-peaks: a file, or the name of a "
            "known device such as 'H100 SXM' (device_peaks in Python)."
        )
    return notes + _notes_on_faster_operations(roofline)


def _notes_on_faster_operations(roofline: Roofline) -> list[str]:
    """Return a note for each reason why operations are faster than their roofline time.

    The reason is the cache if the data of the operation fits into it.
    """
    # The names of operations by reason, without repetition and in order.
    operations_of_reason: dict[str, dict[str, None]] = {}
    for row, device in zip(roofline.rows, roofline.groups.device.tolist(), strict=True):
        peaks = roofline.peaks[device]
        is_faster = (row.roofline_ns or 0.0) > row.gpu_ns > 0
        if row.cost is None or peaks is None or not is_faster:
            continue
        reason = "the model or the peaks are wrong, or an unknown cache held the data"
        if row.bound == "memory" and row.cost.bytes <= peaks.cache * 1e6:
            reason = (
                "the data was in the cache, which has a higher bandwidth than the "
                "device's memory"
            )
        elif row.bound == "memory" and peaks.cache:
            reason = (
                "the data does not fit into the cache, so the performance model "
                "counts too much"
            )
        operations_of_reason.setdefault(reason, {})[row.operation.name] = None
    notes = []
    for reason, operations in operations_of_reason.items():
        names = ", ".join(list(operations)[:_NAMED_IN_NOTE])
        notes.append(f"More than 100 % of the roofline, because {reason} ({names}).")
    return notes
