"""The layers of a model, found as the block of kernels that repeats within a step.

Steps of one phase run the same kernels in the same order, or nearly so: of each phase the steps
with the most common order are looked at, on the stream that works longest. Each kernel name may
mark the layers; that one does whose blocks, from one such kernel to the next, are most alike.
Two blocks are alike when most of their kernels are the same, and both or neither have attention.
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
#: Two blocks are alike when they have at least this share of their kernels in common.
_ALIKE: Final = 0.5
#: A choice of layers is as good as the best one if its layers have this share of its kernels.
_NEARLY: Final = 0.75
#: A layer is odd beyond so many median absolute deviations, and so much of the median, of at least
#: so many layers of one kind. Odd iterations are found the same way.
_ODD_BEYOND = 3
_ODD_AT_LEAST = 0.05
_ODD_AMONG = 5
_MOST_EVENTS: Final = 20_000  # of a step; more are no pass through a model
_MOST_NAMES: Final = 256  # that are tried, the most frequent ones


class Block(NamedTuple):
    """A part of a sequence of kernels: its first place, and one past its last."""

    begin: int
    end: int

    @property
    def length(self) -> int:
        """The number of kernels."""
        return self.end - self.begin


@dataclass(frozen=True, eq=False)
class PhaseLayers:
    """The m layers of the s steps of one phase that run the same kernels.

    Attributes:
        phase: the phase of the steps.
        of_phase: how many steps the phase has; s of them are looked at.
        events: the GPU events of each step on its longest stream, by start, shape (s, n).
        begin: where each layer begins among those, (m,).
        end: one past the last place of each layer, (m,).
        kind: equal for layers with the same kernels, numbered by first layer, (m,).
        busy_ns: busy time of each layer of each step, (s, m).
        span_ns: first start to last end of each layer of each step, (s, m).
    """

    phase: str
    of_phase: int
    events: Int64Array
    begin: Int64Array
    end: Int64Array
    kind: Int64Array
    busy_ns: Int64Array
    span_ns: Int64Array


@cached_per_object
def find_layers(gpu_events: GpuEvents, steps: Steps) -> list[PhaseLayers]:
    """Return the layers of each phase in which there are some."""
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
                of_phase=int((steps.phase == phase_number).sum()),
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
    """Return the GPU events of the steps whose order of kernels takes longest in all, (s, n).

    Only the stream on which the phase works longest is looked at. None without GPU events, and
    where a step has too many of them.
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
    step_ends = np.flatnonzero(np.diff(steps.of_gpu[events])) + 1
    steps_by_order: defaultdict[bytes, list[Int64Array]] = defaultdict(list)
    for events_of_step in np.split(events, step_ends):
        order_of_kernels = gpu_events.name[events_of_step].tobytes()
        steps_by_order[order_of_kernels].append(events_of_step)

    def total_duration(same_order: list[Int64Array]) -> int:
        return int(gpu_events.duration[np.concatenate(same_order)].sum())

    longest = max(steps_by_order.values(), key=total_duration)
    if len(longest[0]) > _MOST_EVENTS:
        return None
    return np.stack(longest)


def _kinds(names: Int64Array, blocks: Sequence[Block]) -> Int64Array:
    """Number the layers by their kernels, (m,): equal for layers with the same ones."""
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
    cell_count = step_count * layer_count
    owner = np.full(events.shape, NONE, dtype=np.int64)
    for layer, block in enumerate(blocks):
        cell_of_step = np.arange(layer, cell_count, layer_count)
        owner[:, block.begin : block.end] = cell_of_step[:, None]
    busy_time = BusyTime(
        start=gpu_events.start[events].ravel(), end=gpu_events.end[events].ravel()
    )
    return busy_time.by_owner(owner.ravel(), cell_count).reshape(
        step_count, layer_count
    )


def _span_ns(
    gpu_events: GpuEvents, events: Int64Array, blocks: Sequence[Block]
) -> Int64Array:
    """Return the time from first start to last end of each layer of each step, ns, (s, m)."""
    span = np.empty((len(events), len(blocks)), dtype=np.int64)
    for layer, block in enumerate(blocks):
        events_of_layer = events[:, block.begin : block.end]
        first_start = gpu_events.start[events_of_layer[:, 0]]
        last_end = gpu_events.end[events_of_layer].max(axis=1)
        span[:, layer] = last_end - first_start
    return span


# Finding the block that repeats.


class _LayerChoice(NamedTuple):
    """The layers that one kernel name marks.

    Attributes:
        blocks: how many blocks are alike.
        size: the number of their kernels, less those of blocks in between that are not alike.
        begin: where each block begins, those in between included.
    """

    blocks: int
    size: int
    begin: Int64Array


def repeating_block(
    names: Sequence[int] | Int64Array, attention: BoolArray
) -> list[Block]:
    """Return the blocks of a sequence of names that repeat, at least two in a row.

    Args:
        names: name codes, shape (n,).
        attention: which of them are attention, (n,).

    Returns:
        The blocks in order, each beginning where the one before ends; empty where nothing repeats.
    """
    codes = np.asarray(names, dtype=np.int64)
    choices = []
    for marks in _places_of_names(codes):
        begin = marks - _shared_before(codes, marks)
        is_alike, length = _alike(codes, attention, begin)
        if is_alike.sum() >= 2:
            first, last = np.flatnonzero(is_alike)[[0, -1]].tolist()
            signed_length = np.where(is_alike, length, -length)
            choices.append(
                _LayerChoice(
                    blocks=int(is_alike.sum()),
                    size=int(signed_length[first : last + 1].sum()),
                    begin=begin[first : last + 1],
                )
            )
    if not choices:
        return []
    # Pairs of layers are as alike as layers are, so the choice with the most blocks is right.
    enough = _NEARLY * max(choice.size for choice in choices)
    good_choices = [choice for choice in choices if choice.size >= enough]

    def preference(choice: _LayerChoice) -> tuple[int, int, int]:
        return choice.blocks, choice.size, -int(choice.begin[0])

    begin = max(good_choices, key=preference).begin
    return _blocks(codes, begin - _shared_before(codes, begin))


def _places_of_names(codes: Int64Array) -> list[Int64Array]:
    """Return the places of each of the most frequent names, the most frequent name first."""
    order = np.argsort(codes, kind="stable")
    is_last_of_name = np.diff(codes[order]) != 0
    first_of_name = np.flatnonzero(is_last_of_name) + 1
    places = np.split(order, first_of_name)
    places.sort(key=len, reverse=True)
    return places[:_MOST_NAMES]


def _shared_before(codes: Int64Array, marks: Int64Array) -> int:
    """Count the places before each mark that hold the same names before all of them."""
    if len(marks) < 2:
        return 0
    shortest_distance = int(np.diff(marks).min())
    most = min(shortest_distance - 1, int(marks[0]))
    for before in range(1, most + 1):
        names_before = codes[marks - before]
        if (names_before != names_before[0]).any():
            return before - 1
    return max(most, 0)


def _alike(
    codes: Int64Array, attention: BoolArray, begin: Int64Array
) -> tuple[BoolArray, Int64Array]:
    """Tell which blocks are like the main one, and how long each is.

    The main block is the one whose repetitions have most kernels. The last block, whose end is not
    known, is taken to be as long as the main one.
    """
    blocks = [Block(first, last) for first, last in pairwise(begin.tolist())]
    repetitions = Counter(_key(codes, block) for block in blocks)

    def kernels_of_repetitions(block: Block) -> int:
        return repetitions[_key(codes, block)] * block.length

    main = max(blocks, key=kernels_of_repetitions, default=Block(0, 0))
    if main.length < 2:  # a kernel that follows itself is no layer
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
        shared = (kernels & main_kernels).total()
        has_enough = shared >= _ALIKE * max(block.length, main.length)
        has_attention = attention[block.begin : block.end].any()
        is_alike_by_key[key] = bool(has_enough and has_attention == main_has_attention)
    is_alike = np.array([is_alike_by_key[_key(codes, block)] for block in blocks])
    return is_alike, np.array([block.length for block in blocks])


def _key(codes: Int64Array, block: Block) -> bytes:
    """Return what is equal for blocks of the same kernels."""
    return codes[block.begin : block.end].tobytes()


def _blocks(codes: Int64Array, begin: Int64Array) -> list[Block]:
    """Return the block of each layer; the last one ends where it differs from all others."""
    blocks = [Block(first, last) for first, last in pairwise(begin.tolist())]
    last_begin = int(begin[-1])
    tail = codes[last_begin:]
    longest = 1
    for block in dict.fromkeys(blocks):
        size = min(block.length, len(tail))
        differences = np.flatnonzero(
            codes[block.begin : block.begin + size] != tail[:size]
        )
        equal_kernels = int(differences[0]) if len(differences) else size
        longest = max(longest, equal_kernels)
    blocks.append(Block(last_begin, last_begin + longest))
    return blocks


# Tables.


def layer_table(gpu_events: GpuEvents, steps: Steps) -> pd.DataFrame:
    """Return a row per phase and layer, in order; columns as the table `layers`."""
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
    """Say in what each layer is odd: its time among those of its kind, or its kernels."""
    by_kind = pd.Series(busy).groupby(kind)
    count = by_kind.transform("size")
    median = by_kind.transform("median")
    distance = (busy - median).abs()
    usual_distance = distance.groupby(kind).transform("median")
    limit = np.maximum(_ODD_BEYOND * usual_distance, _ODD_AT_LEAST * median)
    is_far = distance > limit
    has_several = count.max() > 1
    has_other_kernels = (count == 1) & has_several
    has_other_time = is_far & (count >= _ODD_AMONG)
    odd = np.select([has_other_kernels, has_other_time], ["kernels", "time"], "")
    return [str(word) for word in odd]


def layer_kernel_table(gpu_events: GpuEvents, steps: Steps) -> pd.DataFrame:
    """Return the GPU events of one layer of each kind, in order; columns as `layer_kernels`.

    Kinds of a single layer are left out, unless there are no others.
    """
    parts = []
    for layers in find_layers(gpu_events, steps):
        layers_of_kind = np.bincount(layers.kind)
        least = min(2, layers_of_kind.max())
        kinds = np.flatnonzero(layers_of_kind >= least).tolist()
        parts += [_layer_kernel_rows(gpu_events, layers, kind) for kind in kinds]
    return _concatenated(parts)


def _layer_kernel_rows(
    gpu_events: GpuEvents, layers: PhaseLayers, kind: int
) -> pd.DataFrame:
    """Return a row for each GPU event of a layer of a kind; times are means over those layers."""
    same_kind = np.flatnonzero(layers.kind == kind)
    first_layer = same_kind[0]
    length = int(layers.end[first_layer] - layers.begin[first_layer])
    places = layers.begin[same_kind][:, None] + np.arange(length)
    events = layers.events[:, places]  # shape (steps, layers of the kind, places)
    shown_step = events[0, 0]
    mean_us = gpu_events.duration[events].mean(axis=(0, 1)) / NS_PER_US
    op_code, op_labels = gpu_events.tree.cpu_op_label_of_gpu
    columns: dict[str, object] = {
        "phase": layers.phase,
        "kind": kind,
        "layers": len(same_kind),
        "position": np.arange(length),
        "kernel_name": texts(gpu_events.name[shown_step], gpu_events.trace.names),
        "cpu_op": texts(op_code[shown_step], op_labels),
    }
    for name, (code, labels) in gpu_events.category_key.items():
        columns[name] = texts(code[shown_step], labels)
    columns["avg_duration_us"] = mean_us
    columns["% of layer"] = 100.0 * mean_us / max(float(mean_us.sum()), 1e-9)
    return pd.DataFrame(columns)


def _concatenated(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    if not parts:
        return pd.DataFrame()
    return pd.concat(parts, ignore_index=True)


def layer_notes(gpu_events: GpuEvents, steps: Steps) -> Iterator[str]:
    """Yield a sentence about the layers of each phase: how many, their mean and spread."""
    for layers in find_layers(gpu_events, steps):
        busy_us = layers.busy_ns.mean(axis=0) / NS_PER_US
        kernels = layers.end - layers.begin
        lengths = sorted({kernels.min(), kernels.max()})
        kernel_counts = " to ".join(map(str, lengths))
        yield (
            f"{layers.phase}: {len(busy_us):,} layers of {kernel_counts} GPU events, "
            f"{busy_us.mean():,.1f} µs each (standard deviation {busy_us.std():,.1f} "
            f"µs), in the {len(layers.events):,} of {layers.of_phase:,} steps that "
            "run the same kernels."
        )
