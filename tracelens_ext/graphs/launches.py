"""The graph launches of a trace, and how many tokens the step around each computes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tracelens_ext.nesting import ROOT, nearest_above
from tracelens_ext.trace import NONE, EventKind
from tracelens_ext.work.grouping import number_groups

if TYPE_CHECKING:
    from tracelens_ext.trace import Int64Array
    from tracelens_ext.tree import CallTree

#: How many tokens (requests, if the engine captures by them) an annotation says that a step has:
#: vLLM's two forms, xDiT's, ATOM's (with the padded size), SGLang's.
_SIZES: Final = (
    re.compile(r"execute_(\d{1,9})_context_"),
    re.compile(r"execute_context_\d+\((?:sq)?(\d{1,9}).*?\)_generation_\d+\((?:sq)?(\d{1,9})"),
    re.compile(r"execute_diffusion_(\d{1,9})_"),
    re.compile(r"(?:\w+_)?decode\[bs=\d+/(\d{1,9})"),
    re.compile(r"(?:step\[DECODE|(?:\w+_)?decode\[).*?\bbs=(\d{1,9})"),
    re.compile(r"(?:step\[|(?:\w+_)?prefill\[).*?\btoks?=(\d{1,9})"),
    re.compile(r"step\[.*?\bbs=(\d{1,9})"),
)


def tokens_of_step(annotation: str) -> int | None:
    """How many tokens an engine's annotation says that its step computes; None of another name."""
    for pattern in _SIZES:
        if found := pattern.match(annotation):
            return sum(map(int, found.groups()))
    return None


@dataclass(frozen=True, eq=False)
class GraphLaunches:
    """The graph launches that started GPU events, by thread and start, n of them."""

    rows: Int64Array  #: the launches, (n,)
    #: the GPU events of each by stream and start, places in `trace.gpu_rows`
    events: list[Int64Array]
    stream: Int64Array  #: a number for the stream of each of those, launch after launch
    step: Int64Array  #: a number for the step around each, another for each thread outside, (n,)
    annotation: list[str]  #: the name of that step; empty outside
    tokens: Int64Array  #: how many it computes, `NONE` outside, (n,)

    def by_step(self) -> list[list[int]]:
        """The launches of each step."""
        bounds = np.flatnonzero(np.diff(self.step)) + 1
        return [part.tolist() for part in np.split(np.arange(len(self.rows)), bounds) if len(part)]


def find_graph_launches(tree: CallTree) -> GraphLaunches:
    """The graph launches of a trace."""
    trace = tree.trace
    events = np.flatnonzero(tree.by_graph)
    launch, rows = tree.launch_of_gpu[events], trace.gpu_rows[events]
    _, stream = number_groups([trace.device[events], trace.stream[events]])
    order = np.lexsort((trace.ts[rows], stream, launch, trace.ts[launch], trace.thread[launch]))
    events, launch = events[order], launch[order]
    first = np.flatnonzero(np.diff(launch, prepend=NONE))
    rows = launch[first]
    sizes = {}
    for code in np.unique(trace.name[trace.rows_of(EventKind.USER_ANNOTATION)]).tolist():
        if (tokens := tokens_of_step(trace.names[code])) is not None:
            sizes[code] = tokens
    tells = np.isin(trace.name[tree.rows], list(sizes))
    tells &= trace.kind[tree.rows] == EventKind.USER_ANNOTATION
    around = nearest_above(tree.parent_position, tree.position[rows], tells)
    codes = np.where(around == ROOT, NONE, trace.name[tree.rows[around]]) if len(rows) else rows
    return GraphLaunches(
        rows=rows,
        events=np.split(events, first[1:]),
        stream=stream[order],
        step=np.where(around == ROOT, -1 - trace.thread[rows], around),
        annotation=[trace.names[code] if code != NONE else "" for code in codes.tolist()],
        tokens=np.array([sizes.get(code, NONE) for code in codes.tolist()], dtype=np.int64),
    )
