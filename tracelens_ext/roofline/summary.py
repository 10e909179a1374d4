"""What the roofline of a trace amounts to: by family, iteration and phase; how much is known."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracelens_ext.analysis.operations.arguments import ARGUMENTS
from tracelens_ext.analysis.operations.launchers import Launchers
from tracelens_ext.analysis.serving.steps import Steps
from tracelens_ext.errors import UsageError
from tracelens_ext.lazy import pd
from tracelens_ext.roofline.analysis import Roofline, RooflineRow, roofline_table
from tracelens_ext.roofline.peaks import DevicePeaks
from tracelens_ext.trace import NONE, NS_PER_MS, NS_PER_US, Trace
from tracelens_ext.trace.gpu_events import GpuEvents

#: What tables call the family of operations without a performance model.
NO_FAMILY = "(no model)"
#: Unlinked GPU time above this share deserves a word, percent.
_MANY_UNLINKED = 1.0
_NAMED = 3  # operations that a note names
_WHOLE_TRACE = "the whole trace"
_MOST_TENSORS: Final = 4  # that the text of shapes has


@dataclass(frozen=True)
class Modelled:
    """How much of the GPU time has a performance model."""

    percent: float  #: of the GPU time of operations, without copies between host and device
    #: names the operation without a model that takes longest, its percent, and why
    largest: str

    def __str__(self) -> str:
        return f"{self.percent:.1f} % of GPU time modelled{self.largest}"


def modelled(roofline: Roofline) -> Modelled:
    """How much of the GPU time of operations has FLOPs and bytes, and what has not."""
    rows = [row for row in roofline.rows if not row.is_host_copy]
    total = max(sum(row.gpu_ns for row in rows), 1)
    missing: Counter[tuple[str, str | None]] = Counter()
    for row in rows:
        if row.cost is None:
            missing[row.operation.name, row.why_no_model] += row.gpu_ns
    known = sum(row.gpu_ns for row in rows) - missing.total()
    largest = [
        f"; the largest without: {name} ({100.0 * ns / total:.1f} %), because {why}"
        for (name, why), ns in missing.most_common(1)
        if ns
    ]
    return Modelled(100.0 * known / total, "".join(largest))


def roofline_peaks(roofline: Roofline) -> pd.DataFrame:
    """The peaks of the types in use (10^12 operations a second), and `memory` (10^12 bytes)."""
    roofs: dict[tuple[str, str], float] = {
        (row.device_model, f"{row.cost.engine} {row.cost.data_type}"): row.peak
        for row in reversed(roofline.rows)
        if row.cost is not None and row.peak is not None and row.cost.flops
    }
    for peaks in roofline.peaks.values():
        if peaks is not None:
            model = peaks.name if roofline.has_several_models else ""
            roofs.setdefault((model, "memory"), peaks.memory / 1e3)
    what = [name for _, name in roofs]
    table = pd.DataFrame({"what": what, "peak": list(roofs.values())})
    if roofline.has_several_models:
        table["device_model"] = [model for model, _ in roofs]
        table = table.sort_values("device_model", kind="stable", ignore_index=True)
    return table


def shape_text(row: RooflineRow) -> str:
    """Types and sizes of the tensors; empty where none are recorded.

    A type is said again where it changes; single elements and what comes late are left out.
    """
    op = row.operation
    parts = [(t.short, _sizes(t.dims)) for t in op.tensors if t.dims]
    parts += [
        ("", f"{len(parts)} × {_sizes(parts[0])}")
        for kind, parts in zip(op.types, op.dims, strict=False)
        if kind == "TensorList" and isinstance(parts, tuple) and parts
    ]
    product = row.cost is not None and row.cost.family in ("GEMM", "CONV_fwd")
    if product:  # neither what is added nor `out=`
        first = int(op.plain_name.startswith(("add", "_add", "badd")))
        parts = parts[first : first + 2]
    texts = []
    before = ""
    for kind, text in parts[:_MOST_TENSORS]:
        texts.append(text if kind == before else f"{kind} {text}".lstrip())
        before = kind
    if len(parts) > _MOST_TENSORS:
        texts.append("…")
    return (" × " if product else ", ").join(texts)


def _sizes(dims: object) -> str:
    return f"[{','.join(map(str, dims))}]" if isinstance(dims, tuple) else "[…]"


def family_summary(roofline: Roofline) -> pd.DataFrame:
    """A row a family of operations, the longest GPU time first."""
    table = roofline_table(roofline).fillna({"family": NO_FAMILY})
    ns = roofline.groups.gpu_ns.astype(np.float64)
    count = roofline.groups.count
    modelled = table["flops"].notna()
    known = table["roofline_time_ms"].notna()
    times = {"ns": ns, "modelled_ns": ns * modelled, "known_ns": ns * known}
    work = {each: table[each].astype("float64") * count for each in ("flops", "bytes")}
    parts = table[["family", "time_lost_ms"]].assign(**times, **work)
    parts["best_ns"] = table["roofline_time_ms"] * NS_PER_MS
    sums = parts.groupby("family", sort=False).sum(min_count=1)
    sums = sums.sort_values("ns", ascending=False, kind="stable").reset_index()
    modelled_ns, known_ns = (its.where(its > 0) for its in (sums["modelled_ns"], sums["known_ns"]))
    sums["gpu_time_ms"] = sums["ns"] / NS_PER_MS
    sums["gpu_time_%"] = 100.0 * sums["ns"] / max(ns.sum(), 1)
    sums["tflops_per_s"] = sums["flops"] / modelled_ns / 1e3
    sums["tb_per_s"] = sums["bytes"] / modelled_ns / 1e3
    sums["% of roofline"] = 100.0 * sums["best_ns"] / known_ns
    told = ["family", "gpu_time_ms", "gpu_time_%", "tflops_per_s", "tb_per_s", "% of roofline"]
    return sums[[*told, "time_lost_ms"]].astype({"family": object})


def utilisation(
    work: GpuEvents, roofline: Roofline, annotation: str | re.Pattern[str] | None = None
) -> pd.DataFrame:
    """Model FLOPs utilisation (MFU) of each whole iteration; of the whole trace without any.

    It is the time that all products, convolutions and attention would take at the peak of their
    type, by the wall time; of several devices by the time of all of them.
    """
    from tracelens_ext.analysis.iterations.selection import named_iterations

    groups = roofline.groups
    group = groups.of_gpu[groups.first_gpu]
    unknown = 0.0 if roofline.families else np.nan
    figures = [
        (row.cost.flops, row.cost.flops / ((row.peak or np.nan) * 1e3))
        if row.cost and row.cost.engine == "matrix"
        else (unknown, unknown)
        for row in roofline.rows
    ]
    flops, at_peak_ns = np.array(figures, dtype=np.float64).reshape(-1, 2)[group].T
    iterations, names, _ = named_iterations(work.tree, annotation)
    of_call = iterations.of_gpu[groups.first_gpu]
    whole = np.flatnonzero(iterations.whole & np.isin(np.arange(len(iterations)), of_call))
    if len(whole):
        names = [names[i] for i in whole.tolist()]
        wall = (iterations.end - iterations.start)[whole]
        inside = of_call != NONE
        flops, at_peak_ns = (
            np.bincount(of_call[inside], values[inside], len(iterations))[whole].astype(np.float64)
            for values in (flops, at_peak_ns)
        )
    else:
        mine = groups.of_gpu != NONE
        names = [_WHOLE_TRACE]
        span = work.end[mine].max(initial=0) - work.start[mine].min(initial=np.iinfo(np.int64).max)
        wall = np.array([max(int(span), 0)], dtype=np.int64)
        flops = flops.sum(keepdims=True)
        at_peak_ns = at_peak_ns.sum(keepdims=True)
    table = pd.DataFrame({"iteration": names, "wall_time_ms": wall / NS_PER_MS})
    ns = np.maximum(wall, 1) * max(len(roofline.peaks), 1)
    table["tflop"], table["tflops_per_s"] = flops / 1e12, flops / ns / 1e3
    return table.assign(**{"mfu_%": 100.0 * at_peak_ns / ns})


def roofline_facts(trace: Trace, roofline: Roofline) -> list[tuple[str, object]]:
    """The devices and their peaks, and the totals: label and value."""
    facts: dict[str, object] = {}
    for number, peaks in roofline.peaks.items():
        device = trace.described(number)
        facts[f"Device {number}"] = (device and device.name) or "not named in the trace"
        facts[f"Peaks of device {number}"] = described(peaks)
    facts["GPU time of operations (ms)"] = sum(row.gpu_ns for row in roofline.rows) / NS_PER_MS
    facts["GPU time modelled (%)"] = modelled(roofline).percent
    if best := [row.roofline_ns for row in roofline.rows if row.roofline_ns is not None]:
        facts["Roofline time (ms)"] = sum(best) / NS_PER_MS
        facts["Time lost (ms)"] = sum(row.lost_ns or 0.0 for row in roofline.rows) / NS_PER_MS
    return [*facts.items()]


def described(peaks: DevicePeaks | None) -> str:
    """Peaks in a line: `H100 SXM: bf16 989.4, tf32 494.7 (matrix), … TFLOP/s; 3,350 GB/s`."""
    if peaks is None:
        return "unknown"
    engines = [
        f"{engine} " + ", ".join(f"{kind} {peak:,g}" for kind, peak in of_engine.items())
        for engine, of_engine in (("matrix", peaks.matrix), ("vector", peaks.vector))
        if of_engine
    ]
    link = f"; link to the host {peaks.link:,g} GB/s" if peaks.link else ""
    return f"{peaks.name}: {'; '.join(engines)} TFLOP/s; memory {peaks.memory:,g} GB/s{link}"


def advice(work: GpuEvents, roofline: Roofline) -> list[str]:
    """What the reader should know, a sentence each."""
    unlinked = 100.0 * int(work.duration[~work.tree.linked].sum()) / max(work.duration.sum(), 1)
    no_launch = f"{unlinked:.1f} % of the GPU time has no launch in the trace: it belongs to no"
    notes = [f"{no_launch} operation, and is not in the roofline."]
    notes = notes if unlinked >= _MANY_UNLINKED else []
    if not roofline.has_shapes and roofline.rows:
        no_shapes = "The trace has no shapes, so no operation has a performance model"
        return [*notes, f"{no_shapes}: torch.profiler.profile(record_shapes=True) records them."]
    if those := ", ".join(str(each) for each, peaks in roofline.peaks.items() if peaks is None):
        notes.append(
            f"The peaks of device {those} are not known, so there are no percentages: give them"
            " with --device-peaks, a file or the name of a known device such as 'H100 SXM'"
            " (device_peaks in Python)."
        )
    return notes + _over_the_roofline(roofline)


def _over_the_roofline(roofline: Roofline) -> list[str]:
    """What makes operations faster than their best case: the cache, if the data fits it."""
    notes: dict[str, dict[str, None]] = {}
    for row, device in zip(roofline.rows, roofline.groups.device.tolist(), strict=True):
        peaks = roofline.peaks[device]
        if row.cost is None or peaks is None or not (row.roofline_ns or 0.0) > row.gpu_ns > 0:
            continue
        what = "the model or the peaks are not right, or an unknown cache held the data"
        if row.bound == "memory" and row.cost.bytes <= peaks.cache * 1e6:
            what = "the data was in the cache, where bandwidth is higher than that of the device's"
            what += " memory"
        elif row.bound == "memory" and peaks.cache:
            what = "the data does not fit the cache, so the performance model counts too much"
        notes.setdefault(what, {})[row.operation.name] = None
    return [
        f"Over 100 % of roofline: {what} ({', '.join([*names][:_NAMED])})."
        for what, names in notes.items()
    ]


def with_roofline(
    frame: pd.DataFrame, roofline: Roofline, launchers: Launchers, steps: Steps
) -> pd.DataFrame:
    """The table of phases with what operations with a model could take at best."""
    first = roofline.groups.first_gpu
    best = np.array([row.roofline_ns for row in roofline.rows], dtype=np.float64)
    best = (best / roofline.groups.count)[roofline.groups.of_gpu[first]]
    known = ~np.isnan(best)
    if not known.any():
        return frame
    phase = steps.phase_of_gpu[first][known]
    count = len(steps.labels)
    time = launchers.direct_ns[launchers.of_gpu[first]][known]
    gpu_ns, best_ns = (np.bincount(phase, ns, count)[: len(frame)] for ns in (time, best[known]))
    percent = 100.0 * best_ns / np.where(gpu_ns > 0, gpu_ns, np.nan)
    at = list(frame.columns).index("tokens_per_s_without_idle")
    frame.insert(at + 1, "modelled_ms", gpu_ns / NS_PER_MS)
    frame.insert(at + 2, "roofline_time_ms", best_ns / NS_PER_MS)
    frame.insert(at + 3, "% of roofline", percent)
    return frame


#: Families with a sheet of their own, and the parameters of their models.
FAMILIES: Final = {
    "GEMM": "B M N K bias stride_A stride_B dtype_A_B transpose",
    "CONV_fwd": "convNd input_shape filter_shape output_shape dtype_input_weight input_stride"
    " weight_stride bias stride padding dilation transposed_conv output_padding groups",
    "CONV_bwd": "convNd input_shape filter_shape output_shape dtype_input_weight input_stride"
    " weight_stride stride padding dilation transposed_conv output_padding groups dgrad wgrad",
    "SDPA_fwd": "B N_Q H_Q N_KV H_KV d_h_qk d_h_v causal dtype_A_B",
    "SDPA_bwd": "B N_Q H_Q N_KV H_KV d_h_qk d_h_v causal dtype_A_B",
    "InferenceAttention_fwd": "N_Q H_Q H_KV d_h_qk d_h_v c_sq c_sk c_sqsq c_sqsk"
    " g_sq g_sk g_sqsq g_sqsk dtype_Q",
    "MoE_fused_fwd": "num_tokens hidden_dim inter_dim num_experts topk gated input_dtype"
    " weight_dtype",
    "Normalization": "op_shape dtype_in stride_input has_bias is_affine",
    "UnaryElementwise": "op_shape dtype_in_out stride_input stride_output",
    "BinaryElementwise": "shape_in1 shape_in2 dtype_in1_in2_out stride_input1 stride_input2",
    "Reduce_fwd": "op_shape num_input_elems num_output_elems dtype_in_out reduce_type dims",
}


def family_table(roofline: Roofline, family: str) -> pd.DataFrame:
    """The operations of a family, the longest GPU time first."""
    rows = enumerate(roofline.rows)
    found = {i: row.cost for i, row in rows if row.cost and row.cost.family == family}
    if not found and family not in FAMILIES:
        there = sorted(roofline.families | FAMILIES.keys())
        raise UsageError(f"there is no family {family!r}; there are {', '.join(there)}")
    told = (key for cost in found.values() for key in cost.parameters)
    named = dict.fromkeys(FAMILIES.get(family, "").split() or told)
    places = list(found)
    costs = list(found.values())
    table = roofline_table(roofline).iloc[places].reset_index(drop=True)
    flops, moved = (table[name].to_numpy(dtype=np.float64) for name in ("flops", "bytes"))
    gpu_us = roofline.groups.gpu_ns[places] / NS_PER_US
    count = roofline.groups.count[places]
    columns: dict[str, object] = {
        "name": table["op_name"],
        **{f"param: {key}": [_shown(c.parameters.get(key)) for c in costs] for key in named},
        "GFLOPS_first": flops / 1e9,
        "Data Moved (MB)_first": moved / 1e6,
        "FLOPS/Byte_first": np.divide(flops, moved, out=flops * np.nan, where=moved > 0),
        "TB/s": table["tb_per_s"],
        "TFLOPS/s": table["tflops_per_s"],
        "Compute Spec": [f"{cost.engine}_{cost.data_type}" for cost in costs],
        **{f"{argument}_first": table[argument] for argument in ARGUMENTS},
        "Kernel Time (µs)_mean": gpu_us / count,
        "Kernel Time (µs)_sum": gpu_us,
        "name_count": count,
        **{name: table[name] for name in ("bound", "% of roofline", "time_lost_ms", "why_slow")},
    }
    if roofline.has_several_models:
        columns["device_model"] = table["device_model"]
    return pd.DataFrame(columns)


def _shown(value: object) -> object:
    """Numbers and flags as they are, shapes as text."""
    return value if value is None or isinstance(value, int | float | str) else str(value)
