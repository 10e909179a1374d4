"""The layers of a model, found as the block of kernels that repeats within a step.

Steps of one phase run the same kernels in the same order, or nearly so: of each phase the steps
with the most common order are looked at, on the stream that works longest. Each kernel name may
mark the layers; that one does whose stretches, from one such kernel to the next, are most alike.
Two stretches are alike when most of their kernels are the same, and both or neither have attention.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

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
#: Share of the kernels that two stretches have in common when they are alike.
_ALIKE: Final = 0.5
#: Share of the kernels in the best choice of layers that another has, to be as good.
_NEARLY: Final = 0.75
#: As for odd iterations: a layer is odd beyond so many median absolute deviations, and so much of
#: the median, of at least so many layers of one kind.
_ODD_BEYOND = 3
_ODD_AT_LEAST = 0.05
_ODD_AMONG = 5
_MOST_EVENTS: Final = 20_000  # of a step; more are no pass through a model
_MOST_NAMES: Final = 256  # that are tried, the most frequent ones
_Cut = tuple[int, int]  # first, and one past the last place


@dataclass(frozen=True, eq=False)
class PhaseLayers:
    """The layers of the steps of one phase that run the same kernels: s steps, m layers."""

    phase: str  #: of the steps
    of_phase: int  #: how many steps the phase has; s of them are looked at
    events: Int64Array  #: of each step the GPU events on its longest stream, by start, (s, n)
    begin: Int64Array  #: where each layer begins among those, (m,)
    end: Int64Array  #: one past its last, (m,)
    kind: Int64Array  #: equal for layers with the same kernels, numbered by first layer, (m,)
    busy_ns: Int64Array  #: busy time of each layer of each step, (s, m)
    span_ns: Int64Array  #: first start to last end of it, (s, m)


@cached_per_object
def find_layers(work: GpuEvents, steps: Steps) -> list[PhaseLayers]:
    """The layers of each phase in which there are some."""
    attention = work.trace.named(work.name, _ATTENTION.search)
    found = []
    for number, phase in enumerate(steps.phases):
        events = _common_steps(work, steps, np.flatnonzero(steps.phase_of_gpu == number))
        if events is None:
            continue
        bounds = repeating_block(work.name[events[0]], attention[events[0]])
        if not bounds:
            continue
        begin, end = np.array(bounds, dtype=np.int64).T
        kinds: Interner[bytes] = Interner()
        kind = np.array([kinds[work.name[events[0, a:b]].tobytes()] for a, b in bounds])
        # Busy time and span of each layer of each step.
        shape = len(events), len(bounds)
        owner = np.full(events.shape, NONE, dtype=np.int64)
        span = np.empty(shape, dtype=np.int64)
        for layer, (a, b) in enumerate(bounds):
            owner[:, a:b] = np.arange(layer, span.size, len(bounds))[:, None]
            span[:, layer] = work.end[events[:, a:b]].max(axis=1) - work.start[events[:, a]]
        busy = BusyTime(work.start[events].ravel(), work.end[events].ravel())
        busy_ns = busy.by_owner(owner.ravel(), span.size).reshape(shape)
        of_phase = int((steps.phase == number).sum())
        found.append(PhaseLayers(phase, of_phase, events, begin, end, kind, busy_ns, span))
    return found


def _common_steps(work: GpuEvents, steps: Steps, mine: Int64Array) -> Int64Array | None:
    """The GPU events of those steps whose kernels take longest in all, by step and start."""
    if not len(mine):
        return None
    track = find_tracks(work, "stream").of_gpu[mine]
    mine = mine[track == sums(track, work.duration[mine], int(track.max()) + 1).argmax()]
    mine = mine[np.lexsort((work.start[mine], steps.of_gpu[mine]))]
    cuts = np.flatnonzero(np.diff(steps.of_gpu[mine])) + 1
    by_order: defaultdict[bytes, list[Int64Array]] = defaultdict(list)
    for events in np.split(mine, cuts):
        by_order[work.name[events].tobytes()].append(events)
    longest = max(by_order.values(), key=lambda of: int(work.duration[np.concatenate(of)].sum()))
    return np.stack(longest) if len(longest[0]) <= _MOST_EVENTS else None


def repeating_block(names: Sequence[int] | Int64Array, attention: BoolArray) -> list[_Cut]:
    """The stretches of a sequence of names that repeat: first and one past the last place.

    At least two that follow one another; empty where nothing repeats.
    """
    codes = np.asarray(names, dtype=np.int64)
    order = np.argsort(codes, kind="stable")
    places = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    found: list[tuple[int, int, Int64Array]] = []
    for marks in sorted(places, key=len, reverse=True)[:_MOST_NAMES]:
        begin = marks - _shared_before(codes, marks)
        alike, length = _alike(codes, attention, begin)
        if alike.sum() >= 2:
            first, last = np.flatnonzero(alike)[[0, -1]].tolist()
            size = np.where(alike, length, -length)[first : last + 1].sum()
            found.append((int(size), int(alike.sum()), begin[first : last + 1]))
    if not found:
        return []
    # Pairs of layers are as alike as layers, so that the smaller stretches are the layers.
    enough = _NEARLY * max(size for size, *_ in found)
    among = (each for each in found if each[0] >= enough)
    *_, begin = max(among, key=lambda each: (each[1], each[0], -int(each[2][0])))
    return _bounds(codes, begin - _shared_before(codes, begin))


def _shared_before(codes: Int64Array, marks: Int64Array) -> int:
    """How many places before each mark hold the same names before all of them."""
    if len(marks) < 2:
        return 0
    before = 0
    most = min(int(np.diff(marks).min()) - 1, int(marks[0]))
    while before < most and (codes[marks - before - 1] == codes[marks[0] - before - 1]).all():
        before += 1
    return before


def _alike(codes: Int64Array, attention: BoolArray, at: Int64Array) -> tuple[BoolArray, Int64Array]:
    """Which stretches are like the main one, and how long each is.

    The last one is taken to be as long as the main one.
    """
    cuts = list(pairwise(at.tolist()))
    counts = Counter(codes[a:b].tobytes() for a, b in cuts)
    first, last = max(
        cuts,
        key=lambda cut: counts[codes[slice(*cut)].tobytes()] * (cut[1] - cut[0]),
        default=(0, 0),
    )
    if last - first < 2:  # a kernel that follows itself is no layer
        return np.zeros(len(at), dtype=bool), at
    cuts.append((int(at[-1]), min(int(at[-1]) + last - first, len(codes))))
    wanted = Counter(codes[first:last].tolist())
    with_attention = attention[first:last].any()
    same: dict[bytes, bool] = {}
    for a, b in cuts:
        if (key := codes[a:b].tobytes()) not in same:
            shared = (Counter(codes[a:b].tolist()) & wanted).total()
            enough = shared >= _ALIKE * max(b - a, last - first)
            same[key] = bool(enough and attention[a:b].any() == with_attention)
    alike = np.array([same[codes[a:b].tobytes()] for a, b in cuts])
    return alike, np.array([b - a for a, b in cuts])


def _bounds(codes: Int64Array, begin: Int64Array) -> list[_Cut]:
    """First and one past the last place of each layer; the last ends where it differs from all."""
    cuts = list(pairwise(begin.tolist()))
    tail = codes[begin[-1] :]
    longest = 1
    for a, b in dict.fromkeys(cuts):
        size = min(b - a, len(tail))
        differs = np.flatnonzero(codes[a : a + size] != tail[:size])
        longest = max(longest, int(differs[0]) if len(differs) else size)
    return [*cuts, (int(begin[-1]), int(begin[-1]) + longest)]


def layer_table(work: GpuEvents, steps: Steps) -> pd.DataFrame:
    """A row a phase and layer, in order; columns as the sheet `layers`."""
    parts = []
    for found in find_layers(work, steps):
        busy = found.busy_ns / NS_PER_US
        layer = np.arange(len(found.begin))
        mean = busy.mean(axis=0)
        columns = {
            "phase": found.phase,
            "layer": layer,
            "kind": found.kind,
            "kernels": found.end - found.begin,
            "steps": len(busy),
            "busy_time_us": mean,
            "std_busy_time_us": busy.std(axis=0, ddof=1) if len(busy) > 1 else 0.0,
            "min_busy_time_us": busy.min(axis=0),
            "max_busy_time_us": busy.max(axis=0),
            "span_us": found.span_ns.mean(axis=0) / NS_PER_US,
            "odd": _odd(found.kind, mean),
        }
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _odd(kind: Int64Array, busy: Float64Array) -> list[str]:
    """In what each layer is odd: its time among those of its kind, or its kernels."""
    of_kind = pd.Series(busy).groupby(kind)
    count = of_kind.transform("size")
    middle = of_kind.transform("median")
    away = (busy - middle).abs()
    least = _ODD_BEYOND * away.groupby(kind).transform("median")
    far = away > np.maximum(least, _ODD_AT_LEAST * middle)
    alone = (count == 1) & (count.max() > 1)
    odd = np.select([alone, far & (count >= _ODD_AMONG)], ["kernels", "time"], "")
    return [str(word) for word in odd]


def layer_kernel_table(work: GpuEvents, steps: Steps) -> pd.DataFrame:
    """The GPU events of one layer of each kind, in order; columns as the sheet `layer_kernels`.

    Kinds of a single layer are left out, unless there are no others.
    """
    code, labels = work.tree.cpu_op_label_of_gpu
    parts = []
    for found in find_layers(work, steps):
        counts = np.bincount(found.kind)
        for number in np.flatnonzero(counts > min(1, counts.max() - 1)).tolist():
            those = np.flatnonzero(found.kind == number)
            length = int(found.end[those[0]] - found.begin[those[0]])
            places = found.begin[those][:, None] + np.arange(length)
            events = found.events[:, places]  # step, layer, place
            first = events[0, 0]
            time = work.duration[events].mean(axis=(0, 1)) / NS_PER_US
            columns = {
                "phase": found.phase,
                "kind": number,
                "layers": len(those),
                "position": np.arange(len(first)),
                "kernel_name": texts(work.name[first], work.trace.names),
                "cpu_op": texts(code[first], labels),
                **{name: texts(its[first], of) for name, (its, of) in work.category_key.items()},
                "avg_duration_us": time,
                "% of layer": 100.0 * time / max(float(time.sum()), 1e-9),
            }
            parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def layer_notes(work: GpuEvents, steps: Steps) -> Iterator[str]:
    """The layers of each phase in a sentence: how many, their mean and spread."""
    for found in find_layers(work, steps):
        busy = found.busy_ns.mean(axis=0) / NS_PER_US
        kernels = found.end - found.begin
        of = " to ".join(map(str, sorted({kernels.min(), kernels.max()})))
        yield (
            f"{found.phase}: {len(busy):,} layers of {of} GPU events,"
            f" {busy.mean():,.1f} µs each (standard deviation {busy.std():,.1f} µs), by"
            f" {len(found.events):,} of {found.of_phase:,} steps, which run the same kernels."
        )
