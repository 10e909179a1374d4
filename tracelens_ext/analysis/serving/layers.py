"""The layers of a model, found as the block of kernels that repeats within a step.

The steps of a phase run nearly the same kernels in the same order. Of each phase, only the steps
with the most common order are analyzed, on the stream with the longest GPU time.

Each kernel name is tried as the mark of a layer: it divides the step into blocks, each from one
kernel of this name to the next. The name whose blocks are most alike gives the layers. Two blocks
are alike if most of their kernels are the same, and if both or neither of them contain attention.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.analysis.serving.steps import Steps
from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import Interner
from tracelens_ext.trace import NONE, NS_PER_US, BoolArray, Float64Array, Int64Array
from tracelens_ext.trace.busy_time import BusyTime
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.gpu_events import GpuEvents, find_tracks
from tracelens_ext.trace.grouping import sums, texts

_ATTENTION: Final = re.compile(r"att(?:entio)?n|fmha|flash_fwd|mla", re.IGNORECASE)
#: Two blocks are alike if at least this share of their kernels is the same.
_MIN_COMMON_SHARE: Final = 0.5
#: A choice of layers is good enough if it has at least this share of the kernels of the best one.
_GOOD_ENOUGH_SHARE: Final = 0.75
#: The time of a layer is odd if it differs from the median of its kind by more than 3 median
#: absolute deviations and more than 5 % of the median. A kind with fewer than 5 layers has no odd
#: times. Odd iterations are found in the same way.
_ODD_DEVIATIONS = 3
_ODD_SHARE_OF_MEDIAN = 0.05
_MIN_LAYERS_OF_KIND = 5
#: A step with more GPU events is not a single pass through a model.
_MAX_EVENTS_OF_STEP: Final = 20_000
#: Only the most frequent names are tried as marks of layers.
_MAX_NAMES: Final = 256


class Block(NamedTuple):
    """A range of places in a sequence of kernels."""

    begin: int  #: the first place
    end: int  #: one past the last place

    @property
    def length(self) -> int:
        """The number of kernels."""
        return self.end - self.begin


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
                kind=_kinds(gpu_events.name[first_step], blocks),
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


def _kinds(names: Int64Array, blocks: Sequence[Block]) -> Int64Array:
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


# The search for the block that repeats.


class _LayerChoice(NamedTuple):
    """The layers that one kernel name marks.

    Attributes:
        block_count: the number of blocks that are alike.
        score: the number of kernels in these blocks, minus the number of kernels in the blocks
            between them that are not alike.
        begin: the first place of each block, from the first to the last that is alike; blocks
            between them that are not alike are included.
    """

    block_count: int
    score: int
    begin: Int64Array


def repeating_block(
    names: Sequence[int] | Int64Array, attention: BoolArray
) -> list[Block]:
    """Return the repeating blocks of a sequence of names.

    Args:
        names: name codes, shape (n,).
        attention: marks the names of attention kernels, (n,).

    Returns:
        At least two blocks in order, each of which begins where the previous one ends; an empty
        list if nothing repeats.
    """
    codes = np.asarray(names, dtype=np.int64)
    choices = []
    for marks in _places_of_names(codes):
        begin = marks - _equal_names_before(codes, marks)
        is_alike, length = _compare_blocks(codes, attention, begin)
        if is_alike.sum() >= 2:
            first, last = np.flatnonzero(is_alike)[[0, -1]].tolist()
            signed_length = np.where(is_alike, length, -length)
            choices.append(
                _LayerChoice(
                    block_count=int(is_alike.sum()),
                    score=int(signed_length[first : last + 1].sum()),
                    begin=begin[first : last + 1],
                )
            )
    if not choices:
        return []
    # Two layers together are as alike as single layers, with nearly the same score. So of all good
    # choices, the one with the most blocks has single layers.
    min_score = _GOOD_ENOUGH_SHARE * max(choice.score for choice in choices)
    good_choices = [choice for choice in choices if choice.score >= min_score]

    def preference(choice: _LayerChoice) -> tuple[int, int, int]:
        return choice.block_count, choice.score, -int(choice.begin[0])

    begin = max(good_choices, key=preference).begin
    return _blocks(codes, begin - _equal_names_before(codes, begin))


def _places_of_names(codes: Int64Array) -> list[Int64Array]:
    """Return the places of each of the most frequent names, the most frequent name first."""
    order = np.argsort(codes, kind="stable")
    is_last_of_name = np.diff(codes[order]) != 0
    first_of_name = np.flatnonzero(is_last_of_name) + 1
    places = np.split(order, first_of_name)
    places.sort(key=len, reverse=True)
    return places[:_MAX_NAMES]


def _equal_names_before(codes: Int64Array, marks: Int64Array) -> int:
    """Return the number of places directly before the marks that have equal names at all marks.

    For the names a b M c a b M and the marks at M, the two places with a b come before both marks.
    """
    if len(marks) < 2:
        return 0
    shortest_distance = int(np.diff(marks).min())
    most = min(shortest_distance - 1, int(marks[0]))
    for distance in range(1, most + 1):
        names_before = codes[marks - distance]
        if (names_before != names_before[0]).any():
            return distance - 1
    return max(most, 0)


def _compare_blocks(
    codes: Int64Array, attention: BoolArray, begin: Int64Array
) -> tuple[BoolArray, Int64Array]:
    """Compare the blocks that begin at given places with the main block.

    The main block is the one whose repetitions have the most kernels in total. The end of the last
    block is unknown, so that block is assumed to be as long as the main block.

    Returns:
        Whether each block is like the main block, and the length of each block.
    """
    blocks = [Block(first, last) for first, last in pairwise(begin.tolist())]
    repetitions = Counter(_key(codes, block) for block in blocks)

    def kernels_of_repetitions(block: Block) -> int:
        return repetitions[_key(codes, block)] * block.length

    main = max(blocks, key=kernels_of_repetitions, default=Block(0, 0))
    if main.length < 2:  # a kernel that repeats directly is not a layer
        return np.zeros(len(begin), dtype=bool), begin
    last_begin = int(begin[-1])
    blocks.append(Block(last_begin, min(last_begin + main.length, len(codes))))
    main_kernels = Counter(codes[main.begin : main.end].tolist())
    main_has_attention = attention[main.begin : main.end].any()
    is_alike_by_key: dict[bytes, bool] = {}
    for block in blocks:
        key = _key(codes, block)
        if key in is_alike_by_key:
            continue
        kernels = Counter(codes[block.begin : block.end].tolist())
        common = (kernels & main_kernels).total()
        has_enough = common >= _MIN_COMMON_SHARE * max(block.length, main.length)
        has_attention = attention[block.begin : block.end].any()
        is_alike_by_key[key] = bool(has_enough and has_attention == main_has_attention)
    is_alike = np.array([is_alike_by_key[_key(codes, block)] for block in blocks])
    return is_alike, np.array([block.length for block in blocks])


def _key(codes: Int64Array, block: Block) -> bytes:
    """Return a key that is equal for blocks of the same kernels."""
    return codes[block.begin : block.end].tobytes()


def _blocks(codes: Int64Array, begin: Int64Array) -> list[Block]:
    """Return the block of each layer.

    A layer ends where the next one begins. The last layer ends where it stops agreeing with the
    earlier layer that agrees with it longest.
    """
    blocks = [Block(first, last) for first, last in pairwise(begin.tolist())]
    last_begin = int(begin[-1])
    codes_from_last = codes[last_begin:]
    last_length = 1
    for block in dict.fromkeys(blocks):
        size = min(block.length, len(codes_from_last))
        codes_of_block = codes[block.begin : block.begin + size]
        differences = np.flatnonzero(codes_of_block != codes_from_last[:size])
        equal_kernels = int(differences[0]) if len(differences) else size
        last_length = max(last_length, equal_kernels)
    blocks.append(Block(last_begin, last_begin + last_length))
    return blocks


# The tables of layers.


def layer_table(gpu_events: GpuEvents, steps: Steps) -> pd.DataFrame:
    """Return a row per phase and layer, in order, with the columns of the table `layers`."""
    parts = [_layer_rows(layers) for layers in find_layers(gpu_events, steps)]
    return _concatenated(parts)


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
            "odd": _odd(layers.kind, mean_us),
        }
    )


def _odd(kind: Int64Array, busy: Float64Array) -> list[str]:
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
    return _concatenated(parts)


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


def _concatenated(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
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
