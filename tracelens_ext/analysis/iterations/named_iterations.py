"""Iterations by `ProfilerStep#N`, by another annotation, or by the steps of a serving engine."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens_ext.analysis.iterations.iterations import (
    ANNOTATION_KINDS,
    Iterations,
    find_iterations,
    iterations_of,
    spans_of_events,
)
from tracelens_ext.categorize.user_patterns import Expression, user_pattern
from tracelens_ext.trace import NONE, EventKind, Int64Array, Trace
from tracelens_ext.trace.call_tree import CallTree
from tracelens_ext.trace.sorted_groups import by_group_and_time, last_before, outermost

#: Python frames of the steps of a serving engine: vLLM and SGLang.
_ENGINE_STEP = re.compile(r".*: (?:execute_model|forward_batch_generation)$")


class NamedIterations(NamedTuple):
    """Iterations and their names."""

    iterations: Iterations
    labels: list[str]  #: the name of each
    #: number of annotations that were left out because another matching one contains them
    nested: int


def named_iterations(tree: CallTree, annotation: Expression | None) -> NamedIterations:
    """Return the iterations of a trace and their names.

    Args:
        tree: the call tree.
        annotation: a regular expression that is searched in the names of annotations; if none
            matches, in those of CPU ops. By default, iterations are the `ProfilerStep#N`, or the
            steps of a serving engine if there are none.
    """
    pattern = user_pattern(annotation, "annotation")
    if pattern is None:
        return _usual_iterations(tree)
    trace = tree.trace
    matches = trace.names_matching(pattern.search)
    rows = trace.rows_of(*ANNOTATION_KINDS)
    rows = rows[matches[trace.name[rows]]]
    annotations = rows[trace.kind[rows] == EventKind.USER_ANNOTATION]
    matching = annotations if len(annotations) else rows
    spans = spans_of_events(trace, matching)
    order = np.lexsort((matching, -spans.end, spans.start, spans.process))
    is_outermost = outermost(spans.process[order], spans.end[order])
    chosen = matching[order[is_outermost]]
    labels = [trace.name_of(row) for row in chosen.tolist()]
    iterations = iterations_of(tree, chosen, list(range(len(chosen))))
    return NamedIterations(
        iterations=iterations, labels=labels, nested=len(matching) - len(chosen)
    )


def _usual_iterations(tree: CallTree) -> NamedIterations:
    """Return the iterations by `ProfilerStep#N`, or by the steps of a serving engine."""
    trace = tree.trace
    steps = find_iterations(tree)
    frames = np.empty(0, dtype=np.int64)
    if not len(steps):
        frames = engine_frames(trace)
    if not len(frames):
        return NamedIterations(
            iterations=steps,
            labels=[f"ProfilerStep#{number}" for number in steps.number],
            nested=0,
        )
    process = trace.process_of_thread[trace.thread[frames]]
    by_process_and_time = np.lexsort((trace.ts[frames], process))
    frames = frames[by_process_and_time]
    labels = []
    for number, row in enumerate(frames.tolist()):
        _, _, name = trace.name_of(row).rpartition(": ")
        labels.append(f"{name}#{number}")
    return NamedIterations(
        iterations=iterations_of(tree, frames, list(range(len(frames)))),
        labels=labels,
        nested=0,
    )


def engine_frames(trace: Trace) -> Int64Array:
    """Return the rows of the outermost Python frames of an engine's steps, by thread and start.

    If the engine annotates its steps, the result is empty, because annotations name them better.
    """
    rows = trace.rows_named(_ENGINE_STEP, EventKind.PYTHON_FUNCTION)
    order = np.lexsort((rows, -trace.end_of(rows), trace.ts[rows], trace.thread[rows]))
    rows = rows[order]
    rows = rows[outermost(trace.thread[rows].astype(np.int64), trace.end_of(rows))]
    if _annotations_name_steps(trace, rows):
        return rows[:0]
    return rows


def _annotations_name_steps(trace: Trace, frames: Int64Array) -> bool:
    """Return True if an annotation encloses one of the frames and is less than twice as long."""
    annotations = trace.rows_of(EventKind.USER_ANNOTATION)
    annotations = annotations[
        by_group_and_time(trace.thread[annotations], trace.ts[annotations])
    ]
    last = last_before(
        group=trace.thread[annotations].astype(np.int64),
        time=trace.ts[annotations],
        query_group=trace.thread[frames].astype(np.int64),
        query_time=trace.ts[frames] + 1,
    )
    has_annotation = last != NONE
    frames = frames[has_annotation]
    latest_annotation = annotations[last[has_annotation]]
    encloses = trace.end_of(latest_annotation) >= trace.end_of(frames)
    has_similar_length = trace.dur[latest_annotation] < 2 * trace.dur[frames]
    return bool((encloses & has_similar_length).any())
