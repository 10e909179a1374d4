"""The graph launches of a trace, their GPU events, and the steps that they belong to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.trace import NONE, EventKind, Int64Array, Trace
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.grouping import number_groups
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT, nearest_above

#: Patterns for the number of tokens in the annotation of a step (of requests, for an engine that
#: captures graphs by the number of requests): vLLM's two forms, xDiT's, ATOM's (which has the
#: padded size), and three of SGLang's. A step has the sum of the groups.
_TOKENS_IN_ANNOTATION: Final = (
    re.compile(r"execute_(\d{1,9})_context_"),
    re.compile(
        r"execute_context_\d+\((?:sq)?(\d{1,9}).*?\)_generation_\d+\((?:sq)?(\d{1,9})"
    ),
    re.compile(r"execute_diffusion_(\d{1,9})_"),
    re.compile(r"(?:\w+_)?decode\[bs=\d+/(\d{1,9})"),
    re.compile(r"(?:step\[DECODE|(?:\w+_)?decode\[).*?\bbs=(\d{1,9})"),
    re.compile(r"(?:step\[|(?:\w+_)?prefill\[).*?\btoks?=(\d{1,9})"),
    re.compile(r"step\[.*?\bbs=(\d{1,9})"),
)


def tokens_of_step(annotation: str) -> int | None:
    """Return the number of tokens in an engine's annotation of a step; None for other names."""
    for pattern in _TOKENS_IN_ANNOTATION:
        sizes = pattern.match(annotation)
        if sizes:
            return sum(map(int, sizes.groups()))
    return None


@dataclass(frozen=True, eq=False)
class GraphLaunches:
    """The n graph launches that started GPU events, by thread and start."""

    rows: Int64Array  #: the launches, (n,)
    #: the GPU events of each launch by stream and start, as places in `trace.gpu_rows`
    events: list[Int64Array]
    #: a number for the stream of each GPU event, launch after launch
    stream: Int64Array
    #: a number for the step around each launch; launches outside of steps share a number per
    #: thread, (n,)
    step: Int64Array
    annotation: list[str]  #: the name of each launch's step; empty outside of steps
    #: the number of tokens that each launch's step computes, `NONE` outside of steps, (n,)
    tokens: Int64Array


def find_graph_launches(tree: CallTree) -> GraphLaunches:
    """Return the graph launches of a trace that started GPU events."""
    trace = tree.trace
    events = np.flatnonzero(tree.by_graph)
    _, stream_of_event = number_groups([trace.device[events], trace.stream[events]])
    order = _by_launch_and_stream(tree, events, stream_of_event)
    events = events[order]
    launch_of_event = tree.launch_of_gpu[events]
    first_events = np.flatnonzero(np.diff(launch_of_event, prepend=NONE))
    rows = launch_of_event[first_events]
    steps = _steps_of_launches(tree, rows)
    return GraphLaunches(
        rows=rows,
        events=np.split(events, first_events[1:]),
        stream=stream_of_event[order],
        step=steps.number,
        annotation=steps.annotation,
        tokens=steps.tokens,
    )


def _by_launch_and_stream(
    tree: CallTree, events: Int64Array, stream_of_event: Int64Array
) -> Int64Array:
    """Return the order of GPU events by thread and start of their launch, stream and start, (e,).

    Args:
        tree: the call tree.
        events: the GPU events of graph launches, (e,).
        stream_of_event: a number for the stream of each of these, (e,).
    """
    trace = tree.trace
    launch = tree.launch_of_gpu[events]
    sort_keys = (  # lexsort: the last key is the first criterion
        trace.ts[trace.gpu_rows[events]],
        stream_of_event,
        launch,
        trace.ts[launch],
        trace.thread[launch],
    )
    return np.lexsort(sort_keys)


class _LaunchSteps(NamedTuple):
    """The step around each of n graph launches; the fields are those of `GraphLaunches`."""

    number: Int64Array  #: `GraphLaunches.step`, (n,)
    annotation: list[str]
    tokens: Int64Array  #: (n,)


def _steps_of_launches(tree: CallTree, rows: Int64Array) -> _LaunchSteps:
    """Return the step around each graph launch.

    Args:
        tree: the call tree.
        rows: the graph launches, (n,).
    """
    trace = tree.trace
    tokens_by_name = _tokens_by_name(trace)
    is_annotation = trace.kind[tree.rows] == EventKind.USER_ANNOTATION
    is_step_name = np.isin(trace.name[tree.rows], list(tokens_by_name))
    is_step = is_annotation & is_step_name
    step_position = nearest_above(
        parent=tree.parent_position, nodes=tree.position[rows], marked=is_step
    )
    step_row = values_at(tree.rows, step_position)
    step_name = values_at(trace.name, step_row).tolist()
    annotations = []
    tokens = []
    for name in step_name:
        annotation = ""
        if name != NONE:
            annotation = trace.names[name]
        annotations.append(annotation)
        tokens.append(tokens_by_name.get(name, NONE))
    # Positions are not negative, so negative numbers of threads cannot be taken for steps.
    outside_steps = -1 - trace.thread[rows]
    return _LaunchSteps(
        number=np.where(step_position == ROOT, outside_steps, step_position),
        annotation=annotations,
        tokens=np.array(tokens, dtype=np.int64),
    )


def _tokens_by_name(trace: Trace) -> dict[int, int]:
    """Return the number of tokens of each step, by the code of its annotation's name."""
    annotations = trace.rows_of(EventKind.USER_ANNOTATION)
    tokens_by_name = {}
    distinct_names = np.unique(trace.name[annotations])
    for name in distinct_names.tolist():
        tokens = tokens_of_step(trace.names[name])
        if tokens is not None:
            tokens_by_name[name] = tokens
    return tokens_by_name
