"""Makes Python frames for traces whose operations have a call stack as an argument.

PyTorch before 1.12 did not record frames. With `with_stack=True`, each operation has an argument
`Call stack`, with the innermost frame first:

    dataloader.py(518): __next__;train.py(42): <module>

A frame lasts as long as successive operations of its thread have it in their stacks. It therefore
also covers the time between these operations.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from tracelens_ext.trace import NONE, EventKind, Int64Array, Trace
from tracelens_ext.trace.grouping import maxima, minima

CALL_STACK: Final = "Call stack"
_SEPARATOR: Final = ";"
_CATEGORY: Final = "python_function"


class _Frames(NamedTuple):
    """The f frames that are made of stacks."""

    name: Int64Array  #: index of a name, (f,)
    start: Int64Array  #: ns since the first event of the trace, (f,)
    end: Int64Array  #: ns since the first event of the trace, (f,)
    thread: Int64Array  #: index of a thread of the trace, (f,)


def with_frames_of_call_stacks(trace: Trace) -> Trace:
    """Return a trace to which the frames of its call stacks are added.

    A trace with recorded frames, or without call stacks, is returned as it is.
    """
    column = trace.arg(CALL_STACK)
    if not len(column.rows) or trace.count_of(EventKind.PYTHON_FUNCTION):
        return trace
    rows = column.rows.astype(np.int64)
    stacks = [_frames_of(text) for text in column.texts or []]
    code = column.values.astype(np.int64)
    has_stack = np.array([bool(stack) for stack in stacks], dtype=bool)[code]
    rows = rows[has_stack]
    code = code[has_stack]
    if not len(rows):
        return trace
    by_thread_and_start = np.lexsort(
        (-trace.dur[rows], trace.ts[rows], trace.thread[rows])
    )
    rows = rows[by_thread_and_start]
    code = code[by_thread_and_start]
    names, frames = _all_frames(trace, rows, code, stacks)
    return _with_frames(trace, names, frames)


def _frames_of(text: str) -> list[str]:
    """Return the frames in the text of a call stack, with the outermost frame first."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if not isinstance(value, str):
        return []
    frames = [frame.strip() for frame in value.split(_SEPARATOR)]
    return [frame for frame in reversed(frames) if frame]


def _all_frames(
    trace: Trace, rows: Int64Array, code: Int64Array, stacks: list[list[str]]
) -> tuple[list[str], _Frames]:
    """Return the names of frames, and the frames of all levels of nesting, the outermost first.

    A path is a frame with all frames around it. Two successive operations are in the same frame of
    a level if they have the same path up to this level.

    Args:
        trace: the trace.
        rows: operations with a stack, sorted by thread and start, (k,).
        code: index of the stack of each operation in `stacks`, (k,).
        stacks: the frames of each stack, the outermost first.
    """
    number_of_name: dict[str, int] = {}
    number_of_path: dict[tuple[str, ...], int] = {}
    name_of_path: list[int] = []
    deepest = max(map(len, stacks), default=0)
    path_of_stack = np.full((len(stacks), deepest), NONE, dtype=np.int64)
    for stack_index, stack in enumerate(stacks):
        for level, frame in enumerate(stack):
            path = tuple(stack[: level + 1])
            if path not in number_of_path:
                number_of_path[path] = len(name_of_path)
                name = number_of_name.setdefault(frame, len(number_of_name))
                name_of_path.append(name)
            path_of_stack[stack_index, level] = number_of_path[path]
    thread = trace.thread[rows].astype(np.int64)
    levels = []
    for level in range(deepest):
        path_of_row = path_of_stack[code, level]
        frames_of_level = _frames_of_level(
            trace=trace, rows=rows, thread=thread, path=path_of_row
        )
        levels.append(frames_of_level)
    path_of_frame = np.concatenate([frames.name for frames in levels])
    frames = _Frames(
        name=np.array(name_of_path, dtype=np.int64)[path_of_frame],
        start=np.concatenate([frames.start for frames in levels]),
        end=np.concatenate([frames.end for frames in levels]),
        thread=np.concatenate([frames.thread for frames in levels]),
    )
    return list(number_of_name), frames


def _frames_of_level(
    trace: Trace, rows: Int64Array, thread: Int64Array, path: Int64Array
) -> _Frames:
    """Return the frames of one level: runs of successive operations of a thread with one path.

    Args:
        trace: the trace.
        rows: operations with a stack, sorted by thread and start, (k,).
        thread: thread of each operation, (k,).
        path: number of the path of each operation up to this level; `NONE` if its stack has fewer
            levels, (k,).

    Returns:
        The frames; `name` is the number of the path instead of a name.
    """
    begins = np.ones(len(rows), dtype=bool)
    begins[1:] = path[1:] != path[:-1]
    begins[1:] |= thread[1:] != thread[:-1]
    run = np.cumsum(begins) - 1
    count = int(run[-1]) + 1
    first = np.flatnonzero(begins)
    path_of_run = path[first]
    has_frame = path_of_run != NONE
    start = minima(group_index=run, values=trace.ts[rows], group_count=count)
    end = maxima(group_index=run, values=trace.end_of(rows), group_count=count)
    return _Frames(
        name=path_of_run[has_frame],
        start=start[has_frame],
        end=end[has_frame],
        thread=thread[first][has_frame],
    )


def _with_frames(trace: Trace, names: list[str], frames: _Frames) -> Trace:
    """Return a trace with frames added after its other events."""
    count = len(frames.name)
    no_ids = np.full(count, NONE)
    categories = list(trace.categories)
    if _CATEGORY not in categories:
        categories.append(_CATEGORY)
    category = np.full(count, categories.index(_CATEGORY))
    kind = np.full(count, EventKind.PYTHON_FUNCTION)
    name = frames.name + len(trace.names)
    return replace(
        trace,
        ts=np.append(trace.ts, frames.start),
        dur=np.append(trace.dur, frames.end - frames.start),
        name=np.append(trace.name, name).astype(trace.name.dtype),
        kind=np.append(trace.kind, kind).astype(trace.kind.dtype),
        thread=np.append(trace.thread, frames.thread).astype(trace.thread.dtype),
        correlation=np.append(trace.correlation, no_ids),
        external_id=np.append(trace.external_id, no_ids),
        category=np.append(trace.category, category).astype(trace.category.dtype),
        names=trace.names + names,
        categories=categories,
    )
