"""What the roofline of a trace amounts to: by family, by iteration, and how much of it is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.trace import NONE, NS_PER_MS

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Sequence

    from tracelens_ext.roofline.found import Roofline, RooflineRow
    from tracelens_ext.roofline.peaks import DevicePeaks
    from tracelens_ext.trace import Float64Array, Trace
    from tracelens_ext.work.gpu_work import GpuWork

#: What tables call the family of operations without a performance model.
NO_FAMILY = "(no model)"
#: Unlinked GPU time above this share deserves a word, percent.
_MANY_UNLINKED = 1.0
FAMILY_COLUMNS: Final = (
    *("family", "gpu_time_ms", "gpu_time_%", "tflops_per_s", "tb_per_s", "% of roofline"),
    "time_lost_ms",
)
_NAMED = 3  # operations that a note names
_WHOLE_TRACE = "the whole trace"


@dataclass(frozen=True)
class Modelled:
    """How much of the GPU time has a performance model."""

    percent: float  #: of the GPU time of operations, without copies between host and device
    #: the operation without a model that takes longest: name, percent, why; or None.
    largest: tuple[str, float, str] | None

    def __str__(self) -> str:
        said = f"{self.percent:.1f} % of GPU time modelled"
        if self.largest is None:
            return said
        name, percent, why = self.largest
        return f"{said}; the largest without: {name} ({percent:.1f} %), because {why}"


def modelled(roofline: Roofline) -> Modelled:
    """How much of the GPU time of operations has FLOPs and bytes, and what has not."""
    rows = [row for row in roofline.rows if not row.is_host_copy]
    total = max(sum(row.gpu_ns for row in rows), 1)
    known = sum(row.gpu_ns for row in rows if row.cost is not None)
    missing: dict[tuple[str, str], int] = {}
    for row in rows:
        if row.cost is None and row.gpu_ns:
            key = row.operation.name, row.why_no_model or ""
            missing[key] = missing.get(key, 0) + row.gpu_ns
    largest = None
    if missing:
        (name, why), ns = max(missing.items(), key=lambda item: item[1])
        largest = name, 100.0 * ns / total, why
    return Modelled(100.0 * known / total, largest)


def family_summary(roofline: Roofline) -> pd.DataFrame:
    """A row a family of operations, the longest GPU time first.

    Returns:
        Columns `family`, `gpu_time_ms`, `gpu_time_%`, `tflops_per_s`, `tb_per_s`,
        `% of roofline`, `time_lost_ms`; sums over the rows, and ratios of sums. What is not known
        is empty.
    """
    families: dict[str, list[RooflineRow]] = {}
    for row in roofline.rows:
        families.setdefault(row.cost.family if row.cost else NO_FAMILY, []).append(row)
    total = max(sum(row.gpu_ns for row in roofline.rows), 1)
    records = []
    for family, rows in families.items():
        ns = sum(row.gpu_ns for row in rows)
        known = [row for row in rows if row.roofline_ns is not None]
        records.append(
            {
                "family": family,
                "gpu_time_ms": ns / NS_PER_MS,
                "gpu_time_%": 100.0 * ns / total,
                "tflops_per_s": _rate(rows, lambda cost: cost.flops),
                "tb_per_s": _rate(rows, lambda cost: cost.bytes),
                "% of roofline": _percent(known),
                "time_lost_ms": lost_ms(known) if known else np.nan,
            }
        )
    columns = {**dict.fromkeys(FAMILY_COLUMNS, "float64"), "family": "object"}
    frame = pd.DataFrame(records, columns=list(columns)).astype(columns)
    return frame.sort_values("gpu_time_ms", ascending=False, kind="stable", ignore_index=True)


def lost_ms(rows: Iterable[RooflineRow]) -> float:
    """The time lost by some operations together."""
    return sum(row.lost_ns or 0.0 for row in rows) / NS_PER_MS


def _rate(rows: Sequence[RooflineRow], of: Callable[..., int]) -> float:
    """Operations or bytes over time, 10^12 a second."""
    ns = sum(row.gpu_ns for row in rows if row.cost)
    done = sum(of(row.cost) * row.count for row in rows if row.cost)
    return done / ns / 1e3 if ns else np.nan


def _percent(rows: Sequence[RooflineRow]) -> float:
    ns = sum(row.gpu_ns for row in rows)
    return 100.0 * sum(row.roofline_ns or 0.0 for row in rows) / ns if ns else np.nan


def utilisation(
    work: GpuWork, roofline: Roofline, annotation: str | re.Pattern[str] | None = None
) -> pd.DataFrame:
    """Model FLOPs utilisation (MFU) of each whole iteration; of the whole trace without any.

    It is the time that all products, convolutions and attention would take at the peak of their
    type, by the wall time; of several devices by the time of all of them.

    Args:
        work: the GPU events.
        roofline: the operations.
        annotation: which annotations are iterations; see `iteration_table`.

    Returns:
        Columns `iteration`, `wall_time_ms`, `tflop` (of the model), `tflops_per_s`, and `mfu_%`,
        empty where the peaks are not known; all three where no operation has a model.
    """
    from tracelens_ext.iterations.measured import named_iterations

    groups = roofline.groups
    group = groups.of_gpu[groups.first_gpu]
    costs = [
        row.cost if row.cost and row.cost.engine == "matrix" else None for row in roofline.rows
    ]
    flops = _each(cost.flops if cost else 0.0 for cost in costs)[group]
    if not any(row.cost for row in roofline.rows):
        flops[:] = np.nan
    at_peak_ns = _each(
        0.0 if cost is None else np.nan if row.peak is None else cost.flops / (row.peak * 1e3)
        for row, cost in zip(roofline.rows, costs, strict=True)
    )[group]
    at_peak_ns += 0.0 * flops  # not known where those are not
    iterations, labels, _ = named_iterations(work.tree, annotation)
    of_call = iterations.of_gpu[groups.first_gpu]
    whole = np.flatnonzero(iterations.whole & np.isin(np.arange(len(iterations)), of_call))
    if len(whole):
        names = [labels[i] for i in whole.tolist()]
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
        flops, at_peak_ns = flops.sum(keepdims=True), at_peak_ns.sum(keepdims=True)
    seconds = np.maximum(wall, 1) * max(len(roofline.peaks), 1)
    return pd.DataFrame(
        {
            "iteration": names,
            "wall_time_ms": wall / NS_PER_MS,
            "tflop": flops / 1e12,
            "tflops_per_s": flops / seconds / 1e3,
            "mfu_%": 100.0 * at_peak_ns / seconds,
        }
    )


def _each(values: Iterable[float]) -> Float64Array:
    return np.array(list(values), dtype=np.float64)


def roofline_facts(trace: Trace, roofline: Roofline) -> list[tuple[str, object]]:
    """The devices and their peaks, and the totals: label and value."""
    facts: list[tuple[str, object]] = []
    for number, peaks in roofline.peaks.items():
        device = trace.described(number)
        name = device.name if device is not None else ""
        facts += [
            (f"Device {number}", name or "not named in the trace"),
            (f"Peaks of device {number}", described(peaks)),
        ]
    rows = roofline.rows
    facts += [
        ("GPU time of operations (ms)", sum(row.gpu_ns for row in rows) / NS_PER_MS),
        ("GPU time modelled (%)", modelled(roofline).percent),
    ]
    known = [row for row in rows if row.roofline_ns is not None]
    if known:
        roofline_ms = sum(row.roofline_ns or 0.0 for row in known) / NS_PER_MS
        facts += [("Roofline time (ms)", roofline_ms), ("Time lost (ms)", lost_ms(known))]
    return facts


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


def advice(work: GpuWork, roofline: Roofline) -> list[str]:
    """What the reader should know, a sentence each."""
    notes = []
    unlinked = 100.0 * int(work.duration[~work.tree.linked].sum()) / max(work.duration.sum(), 1)
    if unlinked >= _MANY_UNLINKED:
        notes.append(
            f"{unlinked:.1f} % of the GPU time has no launch in the trace: it belongs to no"
            " operation, and is not in the roofline."
        )
    if not roofline.has_shapes and roofline.rows:
        notes.append(
            "The trace has no shapes, so no operation has a performance model:"
            " torch.profiler.profile(record_shapes=True) records them."
        )
        return notes
    if unknown := [number for number, peaks in roofline.peaks.items() if peaks is None]:
        those = ", ".join(map(str, unknown))
        notes.append(
            f"The peaks of device {those} are not known, so there are no percentages: give them"
            " with --device-peaks, a file or the name of a known device such as 'H100 SXM'"
            " (device_peaks in Python)."
        )
    return notes + _over_the_roofline(roofline)


def _over_the_roofline(roofline: Roofline) -> list[str]:
    """What makes operations faster than their best case: the cache, if the data fits it."""
    notes: dict[str, list[str]] = {}
    for row, device in zip(roofline.rows, roofline.groups.device.tolist(), strict=True):
        peaks = roofline.peaks[device]
        if row.cost is None or peaks is None or not (row.roofline_ns or 0.0) > row.gpu_ns > 0:
            continue
        fits = row.bound == "memory" and row.cost.bytes <= peaks.cache * 1e6
        what = (
            "the data was in the cache, where bandwidth is higher than that of the device's memory"
            if fits
            else "the data does not fit the cache, so the performance model counts too much"
            if row.bound == "memory" and peaks.cache
            else "the model or the peaks are not right, or an unknown cache held the data"
        )
        notes.setdefault(what, []).append(row.operation.name)
    return [
        f"Over 100 % of roofline: {what} ({', '.join(list(dict.fromkeys(names))[:_NAMED])})."
        for what, names in notes.items()
    ]
