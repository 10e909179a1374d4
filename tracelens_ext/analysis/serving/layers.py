"""The layers of a model, found as the block of kernels that repeats within a step.

The steps of a phase run nearly the same kernels in the same order. Of each phase, only the steps
with the most common order are analyzed, on the stream with the longest GPU time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracelens_ext.analysis.serving.repeating_blocks import Block, repeating_block
from tracelens_ext.analysis.serving.steps import Steps
from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import Interner
from tracelens_ext.trace import NONE, NS_PER_US, Float64Array, Int64Array
from tracelens_ext.trace.busy_time import BusyTime
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks
from tracelens_ext.trace.grouping import sums, texts

_ATTENTION: Final = re.compile(r"att(?:entio)?n|fmha|flash_fwd|mla", re.IGNORECASE)
#: The time of a layer is odd if it differs from the median of its kind by more than 3 median
#: absolute deviations and more than 5 % of the median. A kind with fewer than 5 layers has no odd
#: times. Odd iterations are found in the same way.
_ODD_DEVIATIONS = 3
_ODD_SHARE_OF_MEDIAN = 0.05
_MIN_LAYERS_OF_KIND = 5
#: A step with more GPU events is not a single pass through a model.
_MAX_EVENTS_OF_STEP: Final = 20_000


@dataclass(frozen=True, eq=False)
class PhaseLayers:
    """The m layers of the s steps of one phase that run the same kernels.

    Attributes:
        phase: the phase of the steps.
        phase_steps: the number of all steps of the phase; s of them are analyzed.
        events: the n GPU events of each step on the phase's longest stream, by start, (s, n).
        begin: the first place of each layer among the n events, (m,).
        end: one past the last place of each layer, (m,).
        kind: equal for layers with the same kernels, numbered by first layer, (m,).
        busy_ns: busy time of each layer of each step, (s, m).
        span_ns: time from first start to last end of each layer of each step, (s, m).
    """

    phase: str
    phase_steps: int
    events: Int64Array
    begin: Int64Array
    end: Int64Array
    kind: Int64Array
    busy_ns: Int64Array
    span_ns: Int64Array


@cached_per_object
def find_layers(gpu_events: GpuEvents, steps: Steps) -> list[PhaseLayers]:
    """Return the layers of each phase; phases without layers are left out."""
    is_attention = gpu_events.trace.named(gpu_events.name, _ATTENTION.search)
    phases_with_layers = []
    for phase_number, phase in enumerate(steps.phases):
        events_of_phase = np.flatnonzero(steps.phase_of_gpu == phase_number)
        events = _common_steps(gpu_events, steps, events_of_phase)
        if events is None:
            continue
        first_step = events[0]
        blocks = repeating_block(gpu_events.name[first_step], is_attention[first_step])
        if not blocks:
            continue
        begin, end = np.array(blocks, dtype=np.int64).T
        phases_with_layers.append(
            PhaseLayers(
                phase=phase,
                phase_steps=int((steps.phase == phase_number).sum()),
                events=events,
                begin=begin,
                end=end,
                kind=_kinds_of_layers(gpu_events.name[first_step], blocks),
                busy_ns=_busy_ns(gpu_events, events, blocks),
                span_ns=_span_ns(gpu_events, events, blocks),
            )
        )
    return phases_with_layers


def _common_steps(
    gpu_events: GpuEvents, steps: Steps, events_of_phase: Int64Array
) -> Int64Array | None:
    """Return the GPU events of the steps with the most common order of kernels, by start, (s, n).

    The most common order is the one with the longest total GPU time. Only the stream with the
    longest GPU time of the phase is analyzed.

    Args:
        gpu_events: all GPU events.
        steps: the steps of all phases.
        events_of_phase: the GPU events of the steps of one phase.

    Returns:
        None if the phase has no GPU events, or if its steps have too many.
    """
    if not len(events_of_phase):
        return None
    track = find_tracks(gpu_events, "stream").of_gpu[events_of_phase]
    duration_of_track = sums(
        group_index=track,
        values=gpu_events.duration[events_of_phase],
        group_count=int(track.max()) + 1,
    )
    events = events_of_phase[track == duration_of_track.argmax()]
    events = events[np.lexsort((gpu_events.start[events], steps.of_gpu[events]))]
    first_of_next_step = np.flatnonzero(np.diff(steps.of_gpu[events])) + 1
    steps_by_order: defaultdict[bytes, list[Int64Array]] = defaultdict(list)
    for events_of_step in np.split(events, first_of_next_step):
        order_of_kernels = gpu_events.name[events_of_step].tobytes()
        steps_by_order[order_of_kernels].append(events_of_step)

    def total_duration(same_order: list[Int64Array]) -> int:
        return int(gpu_events.duration[np.concatenate(same_order)].sum())

    longest = max(steps_by_order.values(), key=total_duration)
    if len(longest[0]) > _MAX_EVENTS_OF_STEP:
        return None
    return np.stack(longest)


def _kinds_of_layers(names: Int64Array, blocks: Sequence[Block]) -> Int64Array:
    """Return a number for each layer, equal for layers with the same kernels, (m,)."""
    numbers: Interner[bytes] = Interner()
    return np.array(
        [numbers[names[block.begin : block.end].tobytes()] for block in blocks]
    )


def _busy_ns(
    gpu_events: GpuEvents, events: Int64Array, blocks: Sequence[Block]
) -> Int64Array:
    """Return the busy time of each layer of each step, ns, (s, m)."""
    step_count = len(events)
    layer_count = len(blocks)
    # Layer l of step s is owner s * layer_count + l of its GPU events.
    owner_count = step_count * layer_count
    owner = np.full(events.shape, NONE, dtype=np.int64)
    for layer, block in enumerate(blocks):
        owner_in_step = np.arange(layer, owner_count, layer_count)
        owner[:, block.begin : block.end] = owner_in_step[:, None]
    busy_time = BusyTime(
        start=gpu_events.start[events].ravel(), end=gpu_events.end[events].ravel()
    )
    busy_ns = busy_time.by_owner(owner.ravel(), owner_count)
    return busy_ns.reshape(step_count, layer_count)


def _span_ns(
    gpu_events: GpuEvents, events: Int64Array, blocks: Sequence[Block]
) -> Int64Array:
    """Return the time from first start to last end of each layer of each step, ns, (s, m)."""
    span_ns = np.empty((len(events), len(blocks)), dtype=np.int64)
    for layer, block in enumerate(blocks):
        events_of_layer = events[:, block.begin : block.end]
        first_start = gpu_events.start[events_of_layer[:, 0]]
        last_end = gpu_events.end[events_of_layer].max(axis=1)
        span_ns[:, layer] = last_end - first_start
    return span_ns


def layer_table(gpu_events: GpuEvents, steps: Steps) -> pd.DataFrame:
    """Return a row per phase and layer, in order, with the columns of the table `layers`."""
    parts = [_layer_rows(layers) for layers in find_layers(gpu_events, steps)]
    return _concatenate_tables(parts)


def _layer_rows(layers: PhaseLayers) -> pd.DataFrame:
    busy_us = layers.busy_ns / NS_PER_US
    mean_us = busy_us.mean(axis=0)
    deviation_us: Float64Array | float = 0.0
    if len(busy_us) > 1:
        deviation_us = busy_us.std(axis=0, ddof=1)
    return pd.DataFrame(
        {
            "phase": layers.phase,
            "layer": np.arange(len(layers.begin)),
            "kind": layers.kind,
            "kernels": layers.end - layers.begin,
            "steps": len(busy_us),
            "busy_time_us": mean_us,
            "std_busy_time_us": deviation_us,
            "min_busy_time_us": busy_us.min(axis=0),
            "max_busy_time_us": busy_us.max(axis=0),
            "span_us": layers.span_ns.mean(axis=0) / NS_PER_US,
            "odd": _odd_aspects(layers.kind, mean_us),
        }
    )


def _odd_aspects(kind: Int64Array, busy: Float64Array) -> list[str]:
    """Return what is odd about each layer: its `kernels`, its `time`, or nothing.

    Args:
        kind: the kind of each layer, (m,).
        busy: the busy time of each layer, (m,).
    """
    by_kind = pd.Series(busy).groupby(kind)
    layers_of_kind = by_kind.transform("size")
    median = by_kind.transform("median")
    distance = (busy - median).abs()
    usual_distance = distance.groupby(kind).transform("median")
    limit = np.maximum(_ODD_DEVIATIONS * usual_distance, _ODD_SHARE_OF_MEDIAN * median)
    layers_repeat = layers_of_kind.max() > 1
    has_odd_kernels = (layers_of_kind == 1) & layers_repeat
    has_odd_time = (distance > limit) & (layers_of_kind >= _MIN_LAYERS_OF_KIND)
    odd = np.select([has_odd_kernels, has_odd_time], ["kernels", "time"], "")
    return [str(word) for word in odd]


def layer_kernel_table(gpu_events: GpuEvents, steps: Steps) -> pd.DataFrame:
    """Return the GPU events of one layer of each kind, with the columns of `layer_kernels`.

    Kinds with a single layer are left out, unless all kinds have only one.
    """
    parts = []
    for layers in find_layers(gpu_events, steps):
        layers_of_kind = np.bincount(layers.kind)
        min_layers = min(2, layers_of_kind.max())
        kinds = np.flatnonzero(layers_of_kind >= min_layers).tolist()
        parts += [_layer_kernel_rows(gpu_events, layers, kind) for kind in kinds]
    return _concatenate_tables(parts)


def _layer_kernel_rows(
    gpu_events: GpuEvents, layers: PhaseLayers, kind: int
) -> pd.DataFrame:
    """Return a row for each GPU event of a layer; times are means over all layers of its kind."""
    same_kind = np.flatnonzero(layers.kind == kind)
    first_layer = same_kind[0]
    length = int(layers.end[first_layer] - layers.begin[first_layer])
    places = layers.begin[same_kind][:, None] + np.arange(length)
    events = layers.events[:, places]  # shape (steps, layers of the kind, length)
    shown_events = events[0, 0]
    mean_us = gpu_events.duration[events].mean(axis=(0, 1)) / NS_PER_US
    op_code, op_labels = gpu_events.tree.cpu_op_label_of_gpu
    columns: dict[str, object] = {
        "phase": layers.phase,
        "kind": kind,
        "layers": len(same_kind),
        "position": np.arange(length),
        "kernel_name": texts(gpu_events.name[shown_events], gpu_events.trace.names),
        "cpu_op": texts(op_code[shown_events], op_labels),
    }
    for name, (code, labels) in gpu_events.category_key.items():
        columns[name] = texts(code[shown_events], labels)
    columns["avg_duration_us"] = mean_us
    columns["% of layer"] = 100.0 * mean_us / max(float(mean_us.sum()), 1e-9)
    return pd.DataFrame(columns)


def _concatenate_tables(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    if not parts:
        return pd.DataFrame()
    return pd.concat(parts, ignore_index=True)


def layer_notes(gpu_events: GpuEvents, steps: Steps) -> Iterator[str]:
    """Yield a sentence about the layers of each phase: their number, mean time and deviation."""
    for layers in find_layers(gpu_events, steps):
        busy_us = layers.busy_ns.mean(axis=0) / NS_PER_US
        kernels = layers.end - layers.begin
        lengths = sorted({kernels.min(), kernels.max()})
        kernel_counts = " to ".join(map(str, lengths))
        yield (
            f"{layers.phase}: {len(busy_us):,} layers of {kernel_counts} GPU events, "
            f"{busy_us.mean():,.1f} µs each (standard deviation {busy_us.std():,.1f} "
            f"µs), in the {len(layers.events):,} of {layers.phase_steps:,} steps that "
            "run the same kernels."
        )
