"""The operations that launched GPU work, in groups of equal names and arguments."""

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
#: The longest so many operations are told apart; a recording of real work has some thousands.
MOST_OPERATIONS: Final = 20_000
#: What the operations beyond those are called together.
OTHERS: Final = "(other operations)"
#: Copies that cross the link between host and device.
_HOST_COPY: Final = re.compile(r"memcpy.*(HtoD|DtoH|HtoH|Host)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class OperationGroups:
    """The operations that launched GPU work, by name and arguments; k groups."""

    operations: list[Operation]  #: name, arguments and kernels of each
    #: each argument of `ARGUMENTS` as the tables show it, k texts each
    texts: dict[str, list[str]]
    count: Int64Array  #: calls, (k,)
    gpu_ns: Int64Array  #: busy time of what they launched, (k,)
    host_copy_ns: Int64Array  #: of it, copies between host and device, (k,)
    device: Int64Array  #: where the first GPU event of each ran, (k,)
    of_gpu: Int64Array  #: the group of each GPU event, `NONE` for one of none, (g,)
    first_gpu: Int64Array  #: the first GPU event of each call, in no order


class _Calls(NamedTuple):
    """The launchers that take part, c of them."""

    launcher: Int64Array  #: index into the launchers, (c,)
    row: Int64Array  #: the event, (c,)
    first_gpu: Int64Array  #: its first GPU event, (c,)


class _Batches(NamedTuple):
    """What the steps compute whose calls have a model that needs it."""

    batch_of_call: Int64Array  #: the batch of each call, `NONE` for the others, (c,)
    batches: list[Batch]  #: the distinct ones


class _Arguments(NamedTuple):
    """The arguments of k groups."""

    values: list[list[object]]  #: of each argument of `ARGUMENTS` k values
    texts: dict[str, list[str]]  #: the same as tables show it


class _Kernels(NamedTuple):
    """The GPU events of k groups."""

    names: list[list[str]]  #: the distinct names of each
    host_copy_ns: Int64Array  #: the time of copies between host and device, (k,)


def group_operations(
    work: GpuEvents,
    launchers: Launchers,
    selected: BoolArray | None = None,
    models_of_devices: Mapping[int, str] | None = None,
) -> OperationGroups:
    """Group the launchers of a trace by their names and arguments, the longest time first.

    Beyond `MOST_OPERATIONS` groups the shorter ones are one, the last: `OTHERS`, without arguments.

    Args:
        work: the GPU events, g of them.
        launchers: what launched them.
        selected: a launcher takes part, with all that it launched, if its first GPU event is
            selected, (g,); None: all do.
        models_of_devices: the GPU model of each device, where there are several (see
            `peaks.device_models`): what GPUs of two models did is two groups.
    """
    trace = work.trace
    calls = _selected_calls(launchers, selected)
    batch_of_call, batches = _batches(work, calls)
    work_of_call, works = works_of(trace, calls.row)
    name = trace.name[calls.row]
    keys: list[IntArray] = [name]
    keys += [trace.arg(argument).at(calls.row) for argument in ARGUMENTS]
    keys += [batch_of_call, work_of_call]
    if models_of_devices:
        keys.append(_model_numbers(trace.device[calls.first_gpu], models_of_devices))
    first_call, group = number_groups(keys)
    gpu_ns = launchers.direct_ns[calls.launcher]
    total_ns = sums(group, gpu_ns, len(first_call))
    longest_first = np.lexsort((first_call, -total_ns))
    group = np.minimum(inverse_permutation(longest_first)[group], MOST_OPERATIONS)
    first_call = first_call[longest_first][: MOST_OPERATIONS + 1]
    count = len(first_call)

    group_of_launcher = np.full(len(launchers), NONE, dtype=np.int64)
    group_of_launcher[calls.launcher] = group
    group_of_gpu = values_at(group_of_launcher, launchers.of_gpu)
    kernels = _kernels(work, group_of_gpu, count)
    first_row = calls.row[first_call]
    names = texts(trace.name[first_row], trace.names)
    if count > MOST_OPERATIONS:
        names[-1] = OTHERS
        kernels.names[-1].clear()
    arguments = _arguments(work, first_row)
    operations = [
        Operation.of_arguments(
            name=names[number],
            kernels=tuple(kernels.names[number]),
            arguments=[values[number] for values in arguments.values],
            batch=_item_at(batches, batch_of_call[call]),
            work=_item_at(works, work_of_call[call]),
        )
        for number, call in enumerate(first_call.tolist())
    ]
    return OperationGroups(
        operations=operations,
        texts=arguments.texts,
        count=np.bincount(group, minlength=count),
        gpu_ns=sums(group, gpu_ns, count),
        host_copy_ns=kernels.host_copy_ns,
        device=trace.device[calls.first_gpu[first_call]],
        of_gpu=group_of_gpu,
        first_gpu=calls.first_gpu,
    )


def _selected_calls(launchers: Launchers, selected: BoolArray | None) -> _Calls:
    """Return the launchers whose first GPU event is selected."""
    linked_gpu = np.flatnonzero(launchers.of_gpu != NONE)
    last_to_first = linked_gpu[::-1]
    first_gpu = np.zeros(len(launchers), dtype=np.int64)
    # Of several values for one launcher the last that is written stays: its first GPU event.
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
    """Return a number for the GPU model of each device: devices of one model have one number."""
    model_names = sorted(set(models_of_devices.values()))
    numbers = np.zeros(len(device), dtype=np.int64)
    for device_number, model_name in models_of_devices.items():
        is_of_device = device == device_number
        numbers[is_of_device] = model_names.index(model_name)
    return numbers


def _batches(work: GpuEvents, calls: _Calls) -> _Batches:
    """Find the batch of each call whose model needs one, by the step that launched its work."""
    batch_of_call = np.full(len(calls.row), NONE, dtype=np.int64)
    steps = find_steps(work.tree)
    if not len(steps):
        return _Batches(batch_of_call, [])
    numbers: dict[Batch, int] = {}
    for batch in steps.batch:
        numbers.setdefault(batch, len(numbers))
    batch_of_step = np.array([numbers[batch] for batch in steps.batch])
    needs_batch = work.trace.named(work.trace.name[calls.row], takes_lengths)
    step = steps.of_gpu[calls.first_gpu[needs_batch]]
    batch_of_call[needs_batch] = values_at(batch_of_step, step)
    return _Batches(batch_of_call, list(numbers))


def _kernels(work: GpuEvents, group_of_gpu: Int64Array, count: int) -> _Kernels:
    """Find the distinct GPU events of each group, and the time of its host copies."""
    linked_gpu = np.flatnonzero(group_of_gpu != NONE)
    group = group_of_gpu[linked_gpu]
    name = work.name[linked_gpu]
    first_of_pair, _ = number_groups([group, name])
    names: list[list[str]] = [[] for _ in range(count)]
    for event in first_of_pair.tolist():
        kernel = work.trace.names[name[event]]
        names[group[event]].append(kernel)
    is_host_copy = work.trace.named(name, _HOST_COPY.search)
    duration = work.duration[linked_gpu]
    return _Kernels(
        names=names,
        host_copy_ns=sums(
            group_index=group[is_host_copy],
            values=duration[is_host_copy],
            group_count=count,
        ),
    )


def _arguments(work: GpuEvents, row: IntArray) -> _Arguments:
    """Return the arguments of operations, given by their rows, (k,).

    The last of more than `MOST_OPERATIONS` stands for all others, and has none.
    """
    trace = work.trace
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
    is_engine = trace.named(trace.name[row], is_of_experts)
    for place in np.flatnonzero(is_engine).tolist():
        below = _arguments_below(work, int(row[place]))
        for column, more in zip(columns, below, strict=False):
            value = column[place]
            column[place] = value + more if isinstance(value, tuple) else ()
    return _Arguments(columns, texts_of_arguments)


def _arguments_below(work: GpuEvents, row: int) -> tuple[tuple[object, ...], ...]:
    """Return sizes and types of what experts take below the operation of an engine."""
    kept = work.trace.arg(EXPERTS_BELOW)
    code = int(kept.at(np.array([row]))[0])
    text = experts_below(work.tree, row) if code == NONE else (kept.texts or [])[code]
    if not text:
        return ()
    return parsed(text).value  # type: ignore[return-value]  # as `experts_below` wrote it


def _item_at(items: Sequence[_Item], index: int) -> _Item | None:
    """Return an item by its index; None for `NONE`."""
    return None if index == NONE else items[index]
