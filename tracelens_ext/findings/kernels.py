"""Kernels, by what they are called and how they are launched."""

from __future__ import annotations

import json
import math
import re
import shlex
from typing import Final

import numpy as np

from tracelens_ext.analysis.operations.arguments import argument_values
from tracelens_ext.categorize.kernel_names import short_name
from tracelens_ext.findings.finding import Finding
from tracelens_ext.findings.inspection import Inspection
from tracelens_ext.hooks import default_registry
from tracelens_ext.roofline.models import model_of, offered_models
from tracelens_ext.roofline.peaks import DevicePeaks, capability_of, shared_memory_of
from tracelens_ext.trace import NONE, NS_PER_MS, Device, Float64Array, Int64Array

#: Shorter kernels, and passes, are mostly their own start and end: `small-kernels`.
_SHORT_NS: Final = 5_000
_NVIDIA_WARP: Final = 32


def launch_geometry(inspection: Inspection) -> Finding | None:
    """Kernels of too few blocks for the multiprocessors of their device."""
    work = inspection.work
    blocks = _blocks_of(inspection)
    units = inspection.by_device(lambda *its: next((of.units for of in its if of and of.units), 0))
    there = np.maximum(units, 1)
    waves = np.ceil(blocks / there)
    # Several blocks may share a multiprocessor, so there are waves only of blocks that cannot.
    most = inspection.by_device(lambda *its: shared_memory_of(capability(*its)) or math.inf)
    apart = work.trace.arg("shared memory").at(work.rows, 0) * 2.0 > most
    few = (waves == 1) | ((waves == 2) & apart)
    few &= (units > 0) & (blocks - (waves - 1) * there < there / 2) & (work.duration >= _SHORT_NS)
    few &= work.is_kernel & ~work.is_communication
    if not few.any():
        return None
    mean = float(np.average(blocks[few], weights=work.duration[few]))
    share = np.where(few, 1 - blocks / np.maximum(waves * there, 1), 0.0)
    return inspection.claimed("launch-geometry", share, [mean, float(units[few].max())])


def capability(device: Device | None, peaks: DevicePeaks | None) -> int:
    """Ten times NVIDIA's compute capability; 0: not known, or of another maker."""
    if device and device.capability and device.warp == _NVIDIA_WARP and "AMD" not in device.name:
        return device.capability
    return capability_of(peaks.name) if peaks else 0


#: First template arguments, and operations on doubles; parameters of functions are no data.
_DOUBLE: Final = re.compile(r"<double\b|dgemm|d884|Cijk_\w+?_DB?_|lambda\(double(?:, double)*\)")
_NARROW: Final = re.compile(
    r"<float\b|nvjet|triton_|\bHalf\b|__half|bfloat16|[sh]gemm|s884|1688|16816|f16|f32|_SB_|_[HB]B?S?_",
    re.IGNORECASE,
)


def double_precision(inspection: Inspection) -> Finding | None:
    """Kernels that compute in fp64 in a program of fp32 or 16 bit."""
    double = inspection.named(_DOUBLE)
    if not double.any() or double.sum() >= (inspection.named(_NARROW) & ~double).sum():
        return None  # of a program that computes in double precision
    share = np.where(double, inspection.by_device(_saved), 0.0)
    return inspection.claimed("double-precision", share)


def _saved(_: Device | None, peaks: DevicePeaks | None) -> float:
    """The share of the time that single precision saves: half of the bytes, or what units lack."""
    rates = peaks.vector if peaks else {}
    return 1 - min(rates["fp64"] / rates["fp32"], 0.5) if {"fp64", "fp32"} <= {*rates} else 0.5


#: What a kernel is, its name, the share of its time that the usual kernel saves, and the data type
#: whose matrix units make it no fallback.
_FALLBACKS: Final = (
    ("naive kernels", r"(?<![a-z])naive|[_:]ref(erence)?_kernel|reference_(gemm|conv)", 0.75, ""),
    ("im2col for a product", r"im2col|Im[23]d2Col|col2im|vol2col|col2vol", 1.0, ""),
    ("4 bit without units for it", r"(?:matmul_ogs|gemm|moe)\w*mxfp4", 0.5, "fp4"),
    ("8 bit without units for it", r"(?:matmul_ogs|gemm|moe)\w*(?:fp8|e4m3|e5m2)", 0.5, "fp8"),
)
#: PyTorch's passes by names of kernels, a letter each, and rows of them for which there is a fused
#: kernel: SwiGLU and GEGLU, perhaps with the product beside them; RMSNorm.
_PASSES: Final = {
    "g": r"gemm|nvjet|Cijk_",
    "s": r"elementwise_kernel<.*(?:silu_kernel|GeluCUDAKernelImpl)",
    "m": r"elementwise_kernel<.*BinaryFunctor<.*MulFunctor",
    "p": r"pow_tensor_scalar_kernel",
    "e": r"MeanOps<",
    "a": r"CUDAFunctorOnSelf_add",
    "r": r"rsqrt_kernel",
    "c": r"_copy_kernel_cuda",
}
_ROWS: Final = (("activation and gate apart", "sg?m"), ("RMSNorm in parts", "pearmc?m"))
_STAYS: Final = "gc"  # the product; casts are findings of their own


def fallback_kernels(inspection: Inspection) -> Finding | None:
    """Naive and emulating kernels; without shapes also passes in a row that one could compute."""
    share = np.zeros(len(inspection.work))
    kind = np.full(len(inspection.work), NONE)
    for number, (_, pattern, saved, its) in enumerate(_FALLBACKS):
        which = inspection.named(re.compile(pattern, re.IGNORECASE)) & (kind == NONE)
        if its and which.any():
            peaks = inspection.roofline.peaks.items()
            lack = [device for device, known in peaks if known and its not in known.matrix]
            which &= np.isin(inspection.work.trace.device, lack)
        share[which], kind[which] = saved, number
    if not inspection.roofline.has_shapes:
        _add_rows(inspection, share, kind)
    labels = [text for text, *_ in (*_FALLBACKS, *_ROWS)]
    return inspection.claimed("fallback-kernels", share, kinds={"reasons": (kind, labels)})


def _add_rows(inspection: Inspection, share: Float64Array, kind: Int64Array) -> None:
    """Set the share and the kind of passes in a row: all goes but the time of the longest."""
    work = inspection.work
    (order, stream) = inspection.stream_order
    letters = np.full(len(work), ord("."), dtype=np.uint8)
    for letter, pattern in _PASSES.items():
        letters[inspection.named(re.compile(pattern))] = ord(letter)
    kernels = work.is_kernel[order]
    order = order[kernels]
    stream = stream[kernels]
    blocks = _blocks_of(inspection)
    text = letters[order].tobytes().decode("ascii")
    for number, (_, pattern) in enumerate(_ROWS, start=len(_FALLBACKS)):
        for row in re.finditer(pattern, text):
            mine = order[row.start() : row.end()]
            passes = mine[[letter not in _STAYS for letter in row[0]]]
            ns = work.duration[passes]
            first = blocks[passes[0]]
            apart = stream[row.start()] != stream[row.end() - 1] or ns.max() < _SHORT_NS
            if not apart and (len(passes) > 2 or (first == blocks[passes[1]]) & (first > 0)):
                share[passes], kind[passes] = 1 - ns.max() / ns.sum(), number


#: A launch takes the host about this long (the call 3 µs, PyTorch around it more), and the GPU two
#: or three to start and end a kernel: what a shorter one computes is the smaller part of its cost.
_LAUNCH_NS: Final = 5_000
#: Fewer in a row lie between the large kernels of any model.
_RUN: Final = 8


def small_kernels(inspection: Inspection) -> Finding | None:
    """Runs of kernels shorter than their launch; the holes between them are `host-bound`."""
    work = inspection.work
    wall = inspection.wall
    order, stream = inspection.stream_order
    short = (work.duration < _LAUNCH_NS)[order] & ~work.is_communication[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (stream[1:] != stream[:-1]) | (short[1:] != short[:-1])
    run = np.cumsum(begins) - 1
    mine = short & (wall.free & work.is_kernel)[order]
    count = np.bincount(run[mine], minlength=int(run[-1]) + 1)
    chosen = np.zeros(len(work), dtype=bool)
    chosen[order] = mine & (count >= _RUN)[run]
    share = np.zeros(len(work))
    share[order] = 1.0 - 1.0 / np.maximum(count, 1)[run]  # one kernel of each run stays
    claim = wall.claim_events(chosen, share)
    claimed = work.duration[claim.events]
    median = float(np.median(claimed)) / 1e3 if len(claimed) else 0.0
    numbers = len(claimed), int((count >= _RUN).sum()), median, wall.mean_ms(claimed)
    return inspection.finding("small-kernels", claim, numbers)


_MOST: Final = 0.5
_COMMANDS: Final = {
    "ncu": "ncu --set full --kernel-name {name} --launch-count 3 -o dominant <your command>",
    "rocprof-compute": "rocprof-compute profile -n dominant -k {name} -- <your command>",
}


def dominant_kernel(inspection: Inspection) -> Finding | None:
    """One kernel is over half of GPU time, and no model knows it; informs."""
    work = inspection.work
    time = np.bincount(work.name, work.duration, minlength=1)
    largest = int(time.argmax())
    total = float(time.sum())
    mine = (work.name == largest) & work.is_kernel & ~(work.is_communication | work.is_copy)
    alone = np.count_nonzero(time) < 2  # what is nothing else needs nobody to point to it
    if alone or not mine.any() or time[largest] <= _MOST * total:
        return None
    # Where one lacks shapes, these are what to record first.
    models = offered_models(default_registry())
    known = inspection.by_operation(lambda row: bool(model_of(row.operation.model_name, models)))
    if work.duration[mine & (known == 0)].sum() <= _MOST * total:
        return None
    name = short_name(work.trace.names[largest]).partition("<")[0].partition("(")[0].strip()
    command = _COMMANDS[inspection.kernel_profiler].format(name=shlex.quote(name))
    about = inspection.wall.about(mine)
    numbers = (int(mine.sum()), float(time[largest]) / NS_PER_MS)
    told = {"part": 100 * time[largest] / total, "name": name, "command": command}
    return inspection.finding("dominant-kernel", about, numbers, told=told)


def _blocks_of(inspection: Inspection) -> Float64Array:
    """How many blocks each GPU event has; 0: not recorded, (g,)."""
    trace = inspection.work.trace
    rows = inspection.work.rows
    if trace.arg("grid").texts is None:
        return trace.arg("grid").at(rows, 0).astype(np.float64)
    code, numbers = argument_values(trace, rows, "grid", _product, 0.0)
    return np.array(numbers, dtype=np.float64)[code]


def _product(text: str) -> float:
    """Blocks of `[512, 1, 1]`; 0 for anything else."""
    try:
        total = math.prod(map(int, json.loads(text)))
        return float(total) if 0 < total < 2**53 else 0.0
    except (ValueError, TypeError, OverflowError, RecursionError):
        return 0.0
