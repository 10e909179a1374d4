"""The `nn.Module`s around GPU events: which part of the model launched each of them.

Modules are the Python frames that the profiler names `nn.Module: …`. They are nested in a tree of
their own together with the launches, which is hundreds of times smaller than the tree of all
frames.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracelens_ext.trace import (
    LAUNCH_KINDS,
    NONE,
    BoolArray,
    EventKind,
    Int32Array,
    Int64Array,
    Replays,
    Trace,
)
from tracelens_ext.trace.caching import cached_per_object
from tracelens_ext.trace.call_paths import CallPaths, find_paths
from tracelens_ext.trace.gpu_events import GpuEvents
from tracelens_ext.trace.lookup import values_at
from tracelens_ext.trace.nesting import ROOT, nearest_marked, nest

#: The names of the Python frames of modules begin with this.
MODULE_PREFIX = "nn.Module: "
#: Separates the modules of a path.
SEPARATOR = "/"
_NO_MODULE = "NA"
#: The number that PyTorch appends to the class of a module, such as in `Block_0`.
_INSTANCE_NUMBER = re.compile(r"_\d+$")


@dataclass(frozen=True, eq=False)
class ModuleFrames:
    """The m module frames of a trace, parents before children.

    Attributes:
        rows: the frames, (m,).
        parent: the index of the module frame around each frame, `ROOT` without one, (m,).
        of_gpu: the innermost module frame around each GPU event's launch, `NONE` without, (g,).
        of_forward: the innermost module frame around the forward operation whose backward pass
            launched the GPU event, `NONE` without, (g,).
    """

    rows: Int64Array
    parent: Int32Array
    of_gpu: Int64Array
    of_forward: Int64Array

    def paths(self, trace: Trace, *, instances: bool) -> tuple[CallPaths, list[str]]:
        """Return the `module_paths` of the frames."""
        return module_paths(trace, self.rows, self.parent, instances=instances)


def has_modules(trace: Trace) -> bool:
    """Tell whether a trace has `nn.Module` frames, recorded or replayed by CUDA graphs."""
    return bool(len(_module_rows(trace)) or _is_replayed_module(trace).any())


def module_of_gpu(
    gpu_events: GpuEvents, *, instances: bool = True
) -> tuple[Int64Array, list[str]]:
    """Return the path of modules of each GPU event.

    It is the path to the innermost module around the launch, or else around the forward operation
    whose backward pass launched the GPU event.

    Args:
        gpu_events: the GPU events.
        instances: True for paths of modules, such as `Model_0/Block_3`; False for paths of their
            classes.

    Returns:
        The code of each GPU event's path, `NONE` without a module, (g,), and the paths.
    """
    frames = find_module_frames(gpu_events)
    paths, labels = frames.paths(gpu_events.trace, instances=instances)
    return _path_of_gpu(frames, paths), paths.texts(labels, SEPARATOR)


def _path_of_gpu(frames: ModuleFrames, paths: CallPaths) -> Int64Array:
    """Return the index of each GPU event's path of modules, `NONE` without a module, (g,)."""
    frame = np.where(frames.of_gpu != NONE, frames.of_gpu, frames.of_forward)
    return values_at(paths.of_node, frame)


class ModuleStacks(NamedTuple):
    """The modules around launchers; each list has an item per launcher."""

    #: the class of the innermost module, such as `nn.Module: Linear`; `NA` without modules
    innermost_class: list[str]
    #: the name of the launcher and of all modules around it, innermost first, as the text of a
    #: list; names of modules begin with `nn.Module: `
    stacks: list[str]


def module_stacks(
    gpu_events: GpuEvents, launcher_of_gpu: Int64Array, names: list[str]
) -> ModuleStacks:
    """Return the modules around the first GPU event of each launcher.

    Args:
        gpu_events: the GPU events.
        launcher_of_gpu: the launcher of each GPU event, `NONE` without, (g,).
        names: the name of each launcher.
    """
    frames = find_module_frames(gpu_events)
    paths, labels = frames.paths(gpu_events.trace, instances=True)
    path_of_gpu = _path_of_gpu(frames, paths)

    path_of_launcher = np.full(len(names), NONE, dtype=np.int64)
    # A launcher's events are assigned from the last to the first, so the first one stays.
    last_to_first = np.flatnonzero(launcher_of_gpu != NONE)[::-1]
    path_of_launcher[launcher_of_gpu[last_to_first]] = path_of_gpu[last_to_first]

    modules_of_path = _modules_of_paths(paths, labels)
    innermost_classes = []
    stacks = []
    for name, path in zip(names, path_of_launcher.tolist(), strict=True):
        modules: list[str] = []
        innermost_class = _NO_MODULE
        if path != NONE:
            modules = modules_of_path[path]
            innermost_class = f"{MODULE_PREFIX}{_class_name(modules[0])}"
        innermost_classes.append(innermost_class)
        stacks.append(str([name] + [f"{MODULE_PREFIX}{module}" for module in modules]))
    return ModuleStacks(innermost_classes, stacks)


def _modules_of_paths(paths: CallPaths, labels: list[str]) -> list[list[str]]:
    """Return the modules of each path, innermost first."""
    modules_of_path: list[list[str]] = []
    for path_above, name in zip(
        paths.parent.tolist(), paths.name.tolist(), strict=True
    ):
        modules = [labels[name]]
        if path_above != ROOT:
            modules += modules_of_path[path_above]
        modules_of_path.append(modules)
    return modules_of_path


def _is_module(name: str) -> bool:
    return name.startswith(MODULE_PREFIX)


def _module_rows(trace: Trace) -> Int64Array:
    frames = trace.rows_of(EventKind.PYTHON_FUNCTION)
    rows: Int64Array = frames[trace.named(trace.name[frames], _is_module)]
    return rows


def _is_replayed_module(trace: Trace) -> BoolArray:
    """Tell which of the r events that CUDA graphs replay are module frames, (r,)."""
    is_frame = trace.kind[trace.recorded :] == EventKind.PYTHON_FUNCTION
    frames = np.flatnonzero(is_frame)
    names = trace.name[trace.recorded + frames]
    result = np.zeros(len(is_frame), dtype=bool)
    result[frames] = trace.named(names, _is_module)
    return result


@cached_per_object
def find_module_frames(gpu_events: GpuEvents) -> ModuleFrames:
    """Return the module frames of a trace, and those around each GPU event.

    Frames that a CUDA graph replays are within the frames around the launch of the graph.
    """
    trace = gpu_events.trace
    tree = gpu_events.tree
    modules = _module_rows(trace)
    forward = np.full(len(gpu_events), NONE, dtype=np.int64)
    located_rows = np.empty(0, dtype=np.int64)
    if len(modules) or trace.replays is not None:
        forward = forward_of_gpu(gpu_events)
        # If a graph replays an event, this is the launch of the graph. The parent of the event is a
        # captured launch, whose frame `_with_replayed_frames` finds.
        launches = tree.launch_of_gpu[tree.linked]
        forward_rows = forward[forward != NONE]
        located_rows = np.unique(np.concatenate((launches, forward_rows)))
    recorded = _nest_recorded(trace, modules, located_rows)
    frames = recorded
    if trace.replays is not None:
        frames = _with_replayed_frames(trace, trace.replays, recorded)
    return ModuleFrames(
        rows=frames.rows,
        parent=frames.parent.astype(np.int32),
        of_gpu=values_at(frames.frame_of_row, tree.parent_of_gpu),
        of_forward=values_at(frames.frame_of_row, forward),
    )


class _NestedFrames(NamedTuple):
    """The m module frames, and the frame around each event of a trace."""

    rows: Int64Array  #: the frames, parents before children, (m,)
    parent: Int64Array  #: the index of the frame around each frame, `ROOT` without one, (m,)
    #: the index of the frame around each event of the trace, `NONE` without, (n,)
    frame_of_row: Int64Array


def _nest_recorded(
    trace: Trace, modules: Int64Array, located_rows: Int64Array
) -> _NestedFrames:
    """Nest recorded module frames.

    Args:
        trace: the trace.
        modules: the module frames.
        located_rows: the other events to nest: launches and forward operations. The result has the
            frame around each of them, but not around any further event.
    """
    rows = np.concatenate((modules, located_rows))
    # If a frame and another event have equal times, the frame is the parent.
    rank = np.repeat((0, 1), (len(modules), len(located_rows)))
    is_leaf = np.isin(trace.kind[rows], LAUNCH_KINDS)
    nesting = nest(
        thread=trace.thread[rows],
        start=trace.ts[rows],
        end=trace.end_of(rows),
        tie=rank,
        childless=is_leaf,
    )
    is_module = rank[nesting.order] == 0
    frame_around = _frame_around(nesting.parent, is_module, first_index=0)
    # Both `ROOT` and `NONE` are -1, so an event without a frame around it gets `NONE`.
    frame_of_row = np.full(len(trace), NONE, dtype=np.int64)
    frame_of_row[rows[nesting.order]] = frame_around
    return _NestedFrames(
        rows=rows[nesting.order[is_module]],
        parent=frame_around[is_module],
        frame_of_row=frame_of_row,
    )


def _with_replayed_frames(
    trace: Trace, replays: Replays, recorded: _NestedFrames
) -> _NestedFrames:
    """Return the recorded frames followed by the frames that graphs replay.

    The outermost replayed frames are within the recorded frame around the launch of their graph.
    """
    is_module = _is_replayed_module(trace)
    replayed_frame = _frame_around(
        parent=replays.parent, is_module=is_module, first_index=len(recorded.rows)
    )
    frame_of_launch = values_at(recorded.frame_of_row, replays.graph_launch)
    frame_around = np.where(replayed_frame == ROOT, frame_of_launch, replayed_frame)
    frame_of_row = recorded.frame_of_row.copy()
    frame_of_row[trace.recorded :] = frame_around
    replayed_rows = trace.recorded + np.flatnonzero(is_module)
    return _NestedFrames(
        rows=np.concatenate((recorded.rows, replayed_rows)),
        parent=np.concatenate((recorded.parent, frame_around[is_module])),
        frame_of_row=frame_of_row,
    )


def _frame_around(
    parent: Int32Array, is_module: BoolArray, first_index: int
) -> Int64Array:
    """Return the index of the module frame above each node of a forest, `ROOT` without one.

    Args:
        parent: the parent of each node, `ROOT` for a root, (m,).
        is_module: marks the nodes that are module frames, (m,).
        first_index: the index of the first module frame; the others follow in order.
    """
    index = np.full(len(is_module), ROOT, dtype=np.int64)
    index[is_module] = first_index + np.arange(is_module.sum())
    return values_at(index, nearest_marked(parent, is_module), missing=ROOT)


def forward_of_gpu(gpu_events: GpuEvents) -> Int64Array:
    """Return the forward operation whose backward pass launched each GPU event, (g,).

    It is `NONE` for GPU events that autograd did not launch. The operation in the backward pass is
    an autograd node, which the forward operation created.
    """
    tree = gpu_events.tree
    result = np.full(len(gpu_events), NONE, dtype=np.int64)
    if not tree.forward_of_backward:
        return result
    pairs = np.array(list(tree.forward_of_backward.items()), dtype=np.int64)
    backward_rows = pairs[:, 0]
    forward_rows = pairs[:, 1]
    forward = np.full(len(tree.rows), NONE, dtype=np.int64)
    forward[tree.position[backward_rows]] = forward_rows
    node_above = nearest_marked(tree.parent_position, forward != NONE)
    node_of_gpu = values_at(node_above, tree.launch_position_of_gpu, missing=ROOT)
    return values_at(forward, node_of_gpu)


def module_paths(
    trace: Trace, rows: Int64Array, parent: Int32Array, *, instances: bool
) -> tuple[CallPaths, list[str]]:
    """Return the paths of module frames, by module or by class, and the labels of their names.

    Args:
        trace: the trace.
        rows: the module frames, parents before children, (m,).
        parent: the index of the module frame around each frame, `ROOT` without one, (m,).
        instances: True for paths of modules, False for paths of their classes.
    """
    name_codes, label_of_frame = np.unique(trace.name[rows], return_inverse=True)
    names = [trace.names[code] for code in name_codes.tolist()]
    labels = [name.removeprefix(MODULE_PREFIX) for name in names]
    if not instances:
        labels, label_of_frame = _class_names(labels, label_of_frame)
    return find_paths(parent, label_of_frame), labels


def _class_names(
    labels: list[str], label_of_frame: Int64Array
) -> tuple[list[str], Int64Array]:
    """Return the classes of modules, and the class of each module frame.

    Args:
        labels: the names of modules.
        label_of_frame: index into `labels` of each module frame, (m,).

    Returns:
        The distinct classes, and the index of the class of each module frame, (m,).
    """
    code_of_class: dict[str, int] = {}
    class_of_label = []
    for label in labels:
        code = code_of_class.setdefault(_class_name(label), len(code_of_class))
        class_of_label.append(code)
    class_of_frame = np.array(class_of_label, dtype=np.int64)[label_of_frame]
    return list(code_of_class), class_of_frame


def _class_name(module: str) -> str:
    """Return the class of a module.

    The class of `Block_0` is `Block`. Layers that serving engines mark in CUDA graphs have a name
    and a number, such as `layers/0`, but no class; the name `layers` stands for it.
    """
    name, separator, _ = module.partition(SEPARATOR)
    if separator:
        return name
    return _INSTANCE_NUMBER.sub("", name)
