"""The operations that launched GPU work, grouped by name and arguments."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelens_ext.operations.launchers import (
    ARGUMENTS,
    EXPERTS_BELOW,
    Launchers,
    argument_values,
    experts_below,
    is_of_experts,
    parsed,
)
from tracelens_ext.roofline.attention import takes_lengths
from tracelens_ext.roofline.hlo import works_of
from tracelens_ext.roofline.operation import Operation
from tracelens_ext.serving.annotations import Batch
from tracelens_ext.serving.steps import find_steps
from tracelens_ext.trace import NONE, Int64Array, IntArray
from tracelens_ext.work.gpu_work import GpuWork
from tracelens_ext.work.grouping import inverse, number_groups, sums, texts

#: Copies that cross the link between host and device.
_HOST_COPY: Final = re.compile(r"memcpy.*(HtoD|DtoH|HtoH|Host)", re.IGNORECASE)
#: The longest so many operations are told apart; a recording of real work has some thousands.
MOST_OPERATIONS: Final = 20_000
#: What the operations beyond those are called together.
OTHERS: Final = "(other operations)"


@dataclass(frozen=True, eq=False)
class OperationGroups:
    """The operations that launched GPU work, by name and arguments; k groups."""

    operations: list[Operation]  #: name, arguments and kernels of each
    texts: dict[str, list[str]]  #: each argument of `ARGUMENTS` as the tables show it, k texts each
    count: Int64Array  #: calls, (k,)
    gpu_ns: Int64Array  #: busy time of what they launched, (k,)
    host_copy_ns: Int64Array  #: of it, copies between host and device, (k,)
    device: Int64Array  #: where the first GPU event of each ran, (k,)
    of_gpu: Int64Array  #: the group of each GPU event, `NONE` for one of none, (g,)
    first_gpu: Int64Array  #: the first GPU event of each call, in no order


def group_operations(
    work: GpuWork, launchers: Launchers, selected: npt.NDArray[np.bool_] | None = None
) -> OperationGroups:
    """Group the launchers of a trace by their names and arguments, the longest time first.

    Beyond `MOST_OPERATIONS` groups the shorter ones are one, the last: `OTHERS`, without arguments.
    A launcher takes part with all that it launched if its first GPU event is `selected`, (g,).
    """
    trace = work.trace
    launched = np.flatnonzero(launchers.of_gpu != NONE)[::-1]
    first_gpu = np.zeros(len(launchers), dtype=np.int64)
    first_gpu[launchers.of_gpu[launched]] = launched  # the last to be written is the first
    taken = np.flatnonzero(np.ones(len(launchers)) if selected is None else selected[first_gpu])
    rows = launchers.rows[taken]
    codes = [trace.arg(argument).at(rows) for argument in ARGUMENTS]
    batch, batches = _batches(work, trace.name[rows], first_gpu[taken])
    work_of, works = works_of(trace, rows)
    first, group = number_groups([trace.name[rows], *codes, batch, work_of])
    order = np.lexsort((first, -sums(group, launchers.direct_ns[taken], len(first))))
    group = np.minimum(inverse(order)[group], MOST_OPERATIONS)
    first = first[order][: MOST_OPERATIONS + 1]
    of_launcher = np.full(len(launchers) + 1, NONE, dtype=np.int64)
    of_launcher[taken] = group
    of_gpu = of_launcher[launchers.of_gpu]
    kernels, host_ns = _kernels(work, of_gpu, len(first))
    told = rows[first]
    names = texts(trace.name[told], trace.names)
    experts = np.flatnonzero(trace.named(trace.name[told], is_of_experts)).tolist()
    if len(first) > MOST_OPERATIONS:
        names[-1], kernels[-1], told[-1] = OTHERS, [], NONE
    values, shown = [], {}
    missing: tuple[object, str] = ((), "")
    for argument in ARGUMENTS:
        number, pairs = argument_values(trace, told, argument, parsed, missing)
        value, text = zip(*pairs, strict=True) if pairs else ((), ())
        values.append([value[i] for i in number.tolist()])
        shown[argument] = texts(number, text)
    for i in experts:
        for column, more in zip(values, _experts(work, int(rows[first[i]])), strict=False):
            column[i] = (*column[i], *more) if isinstance(column[i], tuple) else ()
    step = [batches[i] if i != NONE else None for i in batch[first].tolist()]
    done = [works[i] if i != NONE else None for i in work_of[first].tolist()]
    each = zip(names, map(tuple, kernels), zip(*values, strict=True), step, done, strict=True)
    operations = [Operation.of_arguments(*one) for one in each]
    return OperationGroups(
        operations,
        shown,
        np.bincount(group, minlength=len(first)),
        sums(group, launchers.direct_ns[taken], len(first)),
        host_ns,
        trace.device[first_gpu[taken[first]]],
        of_gpu,
        first_gpu[taken],
    )


def _batches(
    work: GpuWork, name: IntArray, first_gpu: Int64Array
) -> tuple[Int64Array, list[Batch]]:
    """The batch of each call whose model needs one, by the step that launched its work.

    Gives indices, `NONE` for the others, shape of `name`; and the distinct batches.
    """
    codes = np.full(len(name), NONE, dtype=np.int64)
    steps = find_steps(work.tree)
    distinct: dict[Batch, int] = {}
    if len(steps):
        needs = work.trace.named(name, takes_lengths)
        of_step = [distinct.setdefault(batch, len(distinct)) for batch in steps.batch]
        codes[needs] = np.array([*of_step, NONE])[steps.of_gpu[first_gpu[needs]]]
    return codes, list(distinct)


def _experts(work: GpuWork, row: int) -> tuple[tuple[object, ...], ...]:
    """Sizes and types of what experts take below the operation of an engine."""
    kept = work.trace.arg(EXPERTS_BELOW)
    code = int(kept.at(np.array([row]))[0])
    text = experts_below(work.tree, row) if code == NONE else (kept.texts or [])[code]
    return parsed(text)[0] if text else ()  # type: ignore[return-value]  # as `experts_below` wrote it


def _kernels(work: GpuWork, of_gpu: Int64Array, size: int) -> tuple[list[list[str]], Int64Array]:
    """The distinct GPU events of each group, and the time of its copies from and to the host."""
    launched = np.flatnonzero(of_gpu != NONE)
    group, name = of_gpu[launched], work.name[launched]
    first, _ = number_groups([group, name])
    kernels: list[list[str]] = [[] for _ in range(size)]
    for at in first.tolist():
        kernels[group[at]].append(work.trace.names[name[at]])
    copies = work.trace.named(name, _HOST_COPY.search)
    return kernels, sums(group[copies], work.duration[launched[copies]], size)
