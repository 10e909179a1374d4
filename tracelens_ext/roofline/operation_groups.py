"""The operations that launched GPU work, grouped by name and arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np

from tracelens_ext.analysis.operations.arguments import (
    ARGUMENTS,
    ParsedArgument,
    argument_values,
    parsed,
)
from tracelens_ext.analysis.operations.experts import (
    EXPERTS_BELOW,
    experts_below,
    is_of_experts,
)
from tracelens_ext.analysis.serving.steps import find_steps
from tracelens_ext.roofline.hlo import works_of
from tracelens_ext.roofline.operation import Operation
from tracelens_ext.roofline.serving import takes_lengths
from tracelens_ext.trace import NONE
from tracelens_ext.trace.grouping import inverse_permutation, number_groups, sums, texts
from tracelens_ext.trace.lookup import values_at

if TYPE_CHECKING:
    from tracelens_ext.analysis.operations.launchers import Launchers
    from tracelens_ext.analysis.serving.annotations import Batch
    from tracelens_ext.trace import BoolArray, Int64Array, IntArray
    from tracelens_ext.trace.gpu_events import GpuEvents

_Item = TypeVar("_Item")
#: The most groups that are kept apart, those with the longest GPU time. Recordings of real work
#: have some thousands.
MOST_OPERATIONS: Final = 20_000
#: The name of the group of all other operations.
OTHERS: Final = "(other operations)"
#: Copies that cross the link between host and device.
_HOST_COPY: Final = re.compile(r"memcpy.*(HtoD|DtoH|HtoH|Host)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class OperationGroups:
    """The operations that launched GPU work, in k groups of equal name and arguments."""

    operations: list[Operation]  #: name, arguments and kernels of each group
    #: for each argument of `ARGUMENTS` the k texts that tables show
    texts: dict[str, list[str]]
    count: Int64Array  #: number of calls, (k,)
    gpu_ns: Int64Array  #: busy time of the GPU events that the calls launched, (k,)
    #: the part of `gpu_ns` that is copies between host and device, (k,)
    host_copy_ns: Int64Array
    device: Int64Array  #: the device of the first GPU event of each group, (k,)
    #: the group of each GPU event, `NONE` for an event without a group, (g,)
    of_gpu: Int64Array
    first_gpu: Int64Array  #: the first GPU event of each call, in any order


class _Calls(NamedTuple):
    """The c launchers whose GPU work is selected."""

    launcher: Int64Array  #: index into the launchers, (c,)
    row: Int64Array  #: row of the launcher in the trace, (c,)
    first_gpu: Int64Array  #: first GPU event of the launcher, (c,)


class _Batches(NamedTuple):
    """The batches of a serving engine's steps, for the c calls whose model needs them."""

    #: index into `batches`, `NONE` for calls whose model needs none, (c,)
    batch_of_call: Int64Array
    batches: list[Batch]  #: the distinct batches


class _Arguments(NamedTuple):
    """The arguments of k groups."""

    values: list[list[object]]  #: for each argument of `ARGUMENTS` k values
    #: for each argument of `ARGUMENTS` the texts of the values
    texts: dict[str, list[str]]


class _Kernels(NamedTuple):
    """The GPU events of k groups."""

    names: list[list[str]]  #: the distinct names of each group
    host_copy_ns: Int64Array  #: time of copies between host and device, (k,)


def group_operations(
    gpu_events: GpuEvents,
    launchers: Launchers,
    selected: BoolArray | None = None,
    models_of_devices: Mapping[int, str] | None = None,
) -> OperationGroups:
    """Group the launchers of a trace by name and arguments, the longest GPU time first.

    If there are more than `MOST_OPERATIONS` groups, a last group `OTHERS`, without arguments,
    replaces the groups with the shortest time.

    Args:
        gpu_events: the g GPU events.
        launchers: the operations that launched the GPU events.
        selected: the selected GPU events, (g,). A launcher takes part with all its GPU events if
            the first of them is selected; None: all launchers take part.
        models_of_devices: the GPU model of each device if there are several models (see
            `peaks.device_models`). The work of each model then gets its own groups.
    """
    trace = gpu_events.trace
    calls = _selected_calls(launchers, selected)
    batch_of_call, batches = _batches_of_calls(gpu_events, calls)
    work_of_call, works = works_of(trace, calls.row)
    name = trace.name[calls.row]
    keys: list[IntArray] = [name]
    keys += [trace.arg(argument).at(calls.row) for argument in ARGUMENTS]
    keys += [batch_of_call, work_of_call]
    if models_of_devices:
        keys.append(_model_numbers(trace.device[calls.first_gpu], models_of_devices))
    gpu_ns = launchers.direct_ns[calls.launcher]
    first_call, group_of_call = _longest_groups(keys, gpu_ns)
    count = len(first_call)

    group_of_launcher = np.full(len(launchers), NONE, dtype=np.int64)
    group_of_launcher[calls.launcher] = group_of_call
    group_of_gpu = values_at(group_of_launcher, launchers.of_gpu)
    kernels = _kernels_of_groups(gpu_events, group_of_gpu, count)
    first_row = calls.row[first_call]
    names = texts(trace.name[first_row], trace.names)
    if count > MOST_OPERATIONS:
        names[-1] = OTHERS
        kernels.names[-1].clear()
    arguments = _arguments_of_groups(gpu_events, first_row)
    operations = []
    for index, call in enumerate(first_call.tolist()):
        operation = Operation.of_arguments(
            name=names[index],
            kernels=tuple(kernels.names[index]),
            arguments=[values[index] for values in arguments.values],
            batch=_item_at(batches, batch_of_call[call]),
            work=_item_at(works, work_of_call[call]),
        )
        operations.append(operation)
    return OperationGroups(
        operations=operations,
        texts=arguments.texts,
        count=np.bincount(group_of_call, minlength=count),
        gpu_ns=sums(group_of_call, gpu_ns, count),
        host_copy_ns=kernels.host_copy_ns,
        device=trace.device[calls.first_gpu[first_call]],
        of_gpu=group_of_gpu,
        first_gpu=calls.first_gpu,
    )


class _LongestGroups(NamedTuple):
    """The k groups of c calls, the longest GPU time first; the last may be of all others."""

    first_call: Int64Array  #: the first call of each group, (k,)
    group_of_call: Int64Array  #: (c,)


def _longest_groups(keys: Sequence[IntArray], gpu_ns: Int64Array) -> _LongestGroups:
    """Group calls whose keys are equal, the longest GPU time first.

    All groups from index `MOST_OPERATIONS` on become one.

    Args:
        keys: arrays of shape (c,).
        gpu_ns: the GPU time of each call, (c,).
    """
    first_call, group_of_call = number_groups(keys)
    total_ns = sums(group_of_call, gpu_ns, len(first_call))
    longest_first = np.lexsort((first_call, -total_ns))
    rank_of_group = inverse_permutation(longest_first)
    return _LongestGroups(
        first_call=first_call[longest_first][: MOST_OPERATIONS + 1],
        group_of_call=np.minimum(rank_of_group[group_of_call], MOST_OPERATIONS),
    )


def _selected_calls(launchers: Launchers, selected: BoolArray | None) -> _Calls:
    """Return the launchers whose first GPU event is selected."""
    linked_gpu = np.flatnonzero(launchers.of_gpu != NONE)
    last_to_first = linked_gpu[::-1]
    first_gpu = np.zeros(len(launchers), dtype=np.int64)
    # The GPU events of a launcher are written from its last to its first, and the first one stays.
    first_gpu[launchers.of_gpu[last_to_first]] = last_to_first
    launcher = np.arange(len(launchers))
    if selected is not None:
        launcher = np.flatnonzero(selected[first_gpu])
    return _Calls(
        launcher=launcher, row=launchers.rows[launcher], first_gpu=first_gpu[launcher]
    )


def _model_numbers(
    device: IntArray, models_of_devices: Mapping[int, str]
) -> Int64Array:
    """Return a number for the GPU model of each device number in an array.

    Devices of the same model get the same number.
    """
    model_names = sorted(set(models_of_devices.values()))
    numbers = np.zeros(len(device), dtype=np.int64)
    for device_number, model_name in models_of_devices.items():
        is_of_device = device == device_number
        numbers[is_of_device] = model_names.index(model_name)
    return numbers


def _batches_of_calls(gpu_events: GpuEvents, calls: _Calls) -> _Batches:
    """Find the batch of each call whose model needs one: the batch of the step it belongs to."""
    batch_of_call = np.full(len(calls.row), NONE, dtype=np.int64)
    steps = find_steps(gpu_events.tree)
    if not len(steps):
        return _Batches(batch_of_call, [])
    number_of_batch: dict[Batch, int] = {}
    for batch in steps.batch:
        number_of_batch.setdefault(batch, len(number_of_batch))
    batch_of_step = np.array([number_of_batch[batch] for batch in steps.batch])
    needs_batch = gpu_events.trace.named(
        gpu_events.trace.name[calls.row], takes_lengths
    )
    step = steps.of_gpu[calls.first_gpu[needs_batch]]
    batch_of_call[needs_batch] = values_at(batch_of_step, step)
    return _Batches(batch_of_call, list(number_of_batch))


def _kernels_of_groups(
    gpu_events: GpuEvents, group_of_gpu: Int64Array, count: int
) -> _Kernels:
    """Find the distinct names of the GPU events of each group, and the time of its host copies.

    Args:
        gpu_events: the g GPU events.
        group_of_gpu: the group of each GPU event, `NONE` for an event without a group, (g,).
        count: the number of groups.
    """
    linked_gpu = np.flatnonzero(group_of_gpu != NONE)
    group = group_of_gpu[linked_gpu]
    name = gpu_events.name[linked_gpu]
    first_of_pair, _ = number_groups([group, name])
    names: list[list[str]] = [[] for _ in range(count)]
    for event in first_of_pair.tolist():
        kernel = gpu_events.trace.names[name[event]]
        names[group[event]].append(kernel)
    is_host_copy = gpu_events.trace.named(name, _HOST_COPY.search)
    duration = gpu_events.duration[linked_gpu]
    return _Kernels(
        names=names,
        host_copy_ns=sums(
            group_index=group[is_host_copy],
            values=duration[is_host_copy],
            group_count=count,
        ),
    )


def _arguments_of_groups(gpu_events: GpuEvents, row: IntArray) -> _Arguments:
    """Return the arguments of the operations in k rows of the trace, (k,).

    With more than `MOST_OPERATIONS` rows, the last one stands for `OTHERS` and has no arguments.
    """
    trace = gpu_events.trace
    row_or_none = row.copy()
    if len(row) > MOST_OPERATIONS:
        row_or_none[-1] = NONE
    columns = []
    texts_of_arguments = {}
    without_argument = ParsedArgument((), "")
    for argument in ARGUMENTS:
        distinct = argument_values(
            trace=trace,
            rows=row_or_none,
            name=argument,
            convert=parsed,
            missing=without_argument,
        )
        columns.append([distinct.values[code].value for code in distinct.code.tolist()])
        texts_of_values = [parsed_argument.text for parsed_argument in distinct.values]
        texts_of_arguments[argument] = texts(distinct.code, texts_of_values)
    # Engines hide the weights of experts from their operation; append those found below it.
    has_experts = trace.named(trace.name[row], is_of_experts)
    for group in np.flatnonzero(has_experts).tolist():
        arguments_below = _arguments_of_experts(gpu_events, int(row[group]))
        for column, more_values in zip(columns, arguments_below, strict=False):
            values = column[group]
            if isinstance(values, tuple):
                column[group] = values + more_values
            else:
                column[group] = ()
    return _Arguments(columns, texts_of_arguments)


def _arguments_of_experts(
    gpu_events: GpuEvents, row: int
) -> tuple[tuple[object, ...], ...]:
    """Return sizes and types of the experts' tensors, found below the operation of an engine.

    An operation copied from the capture of a CUDA graph has them as an argument, because the
    operations below it are not copied.
    """
    recorded = gpu_events.trace.arg(EXPERTS_BELOW)
    code = int(recorded.at(np.array([row]))[0])
    if code == NONE:
        text = experts_below(gpu_events.tree, row)
    else:
        text = (recorded.texts or [])[code]
    if not text:
        return ()
    return parsed(text).value  # type: ignore[return-value]  # as `experts_below` wrote it


def _item_at(items: Sequence[_Item], index: int) -> _Item | None:
    """Return the item at an index; None for the index `NONE`."""
    return None if index == NONE else items[index]
