"""Python frames of traces whose operations carry their call stack instead.

PyTorch before 1.12 recorded no frames; with `with_stack=True` each operation has an argument
`Call stack`, the innermost frame first:

    dataloader.py(518): __next__;train.py(42): <module>

A frame goes on as long as the operations of its thread, one after the other, have it in their
stacks, so that it also covers the time between them.
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
    """Frames that were made of stacks, f of them."""

    name: Int64Array  #: an index into the frames' names, (f,)
    start: Int64Array  #: ns since the trace's first event, (f,)
    end: Int64Array  #: likewise, (f,)
    thread: Int64Array  #: an index into the trace's threads, (f,)


def with_frames_of_call_stacks(trace: Trace) -> Trace:
    """Return a trace with the frames of its call stacks, if no frames were recorded."""
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
    order = np.lexsort((-trace.dur[rows], trace.ts[rows], trace.thread[rows]))
    names, frames = _all_frames(trace, rows[order], code[order], stacks)
    return _with_frames(trace, names, frames)


def _frames_of(text: str) -> list[str]:
    """Return the frames of a stack as the trace has it, the outermost first."""
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
    """Return the names of frames and the frames, level by level.

    Args:
        trace: the trace.
        rows: operations with a stack, by thread and start, (k,).
        code: the stack of each, an index into `stacks`, (k,).
        stacks: the frames of each stack, the outermost first.
    """
    number_of_name: dict[str, int] = {}
    number_of_path: dict[tuple[str, ...], int] = {}
    name_of_path: list[int] = []
    deepest = max(map(len, stacks), default=0)
    path_of_stack = np.full((len(stacks), deepest), NONE, dtype=np.int64)
    for stack_number, stack in enumerate(stacks):
        for level, frame in enumerate(stack):
            path = tuple(stack[: level + 1])
            if path not in number_of_path:
                number_of_path[path] = len(name_of_path)
                name = number_of_name.setdefault(frame, len(number_of_name))
                name_of_path.append(name)
            path_of_stack[stack_number, level] = number_of_path[path]
    names_of_paths = np.array(name_of_path, dtype=np.int64)
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
        name=names_of_paths[path_of_frame],
        start=np.concatenate([frames.start for frames in levels]),
        end=np.concatenate([frames.end for frames in levels]),
        thread=np.concatenate([frames.thread for frames in levels]),
    )
    return list(number_of_name), frames


def _frames_of_level(
    trace: Trace, rows: Int64Array, thread: Int64Array, path: Int64Array
) -> _Frames:
    """Return the frames of one level: runs of operations of one thread and path.

    The names of the frames are still those paths.
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
    """Return a trace with frames behind its other events."""
    count = len(frames.name)
    nothing = np.full(count, NONE)
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
        correlation=np.append(trace.correlation, nothing),
        external_id=np.append(trace.external_id, nothing),
        category=np.append(trace.category, category).astype(trace.category.dtype),
        names=trace.names + names,
        categories=categories,
    )
