"""Selects operations of a trace for a script, and collects what was recorded about them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from tracelens_ext.analysis.context import AnalysisContext
from tracelens_ext.analysis.operations.arguments import (
    ARGUMENTS,
    argument_values,
    parsed,
)
from tracelens_ext.analysis.operations.launchers import Launchers
from tracelens_ext.categorize.user_patterns import user_pattern
from tracelens_ext.compatibility.earlier_names import new_finding_id
from tracelens_ext.errors import UsageError
from tracelens_ext.findings.finding import Finding, Findings
from tracelens_ext.lazy import pd
from tracelens_ext.reproduce.indexing import SHOWN_BY_CHILDREN
from tracelens_ext.reproduce.specification import (
    RecordedCall,
    RecordedOperation,
    RecordedTimes,
    Specification,
)
from tracelens_ext.roofline.analysis import Roofline
from tracelens_ext.roofline.operation import Cost
from tracelens_ext.trace import NONE, NS_PER_US, BoolArray, Int64Array, IntArray
from tracelens_ext.trace.grouping import inverse_permutation, number_groups, sums
from tracelens_ext.trace.lookup import values_at

#: Number of operations in a script by default.
DEFAULT_TOP: Final = 10
#: The most names of kernels that are kept for an operation.
_MOST_KERNELS: Final = 20
#: The most operations below an operation that are kept.
_MOST_CHILDREN: Final = 200


class ReproductionContext(AnalysisContext, Protocol):
    """A trace whose operations are to be reproduced."""

    @property
    def launchers(self) -> Launchers:
        """The operations that launched GPU work."""

    def roofline(self) -> Roofline:
        """Return the operations and their roofline times."""

    def findings(self) -> Findings:
        """Return the findings of the trace."""

    def get_df_kernel_launchers_unique_args(self) -> pd.DataFrame:
        """Return GPU time by operation and its arguments."""


@dataclass(frozen=True)
class OperationChoice:
    """The conditions that selected operations meet; None: no condition."""

    op: str | re.Pattern[str] | None = None  #: a pattern in the names of operations
    row: int | None = None  #: a row of the table `ops_unique_args`, from 1
    finding: str | None = None  #: the id of a finding
    top: int = DEFAULT_TOP  #: maximum number, longest GPU time first; 0 for all


class _Calls(NamedTuple):
    """The c CPU operations that launched GPU work, in k groups of equal name and arguments.

    Groups are numbered by their total time, the longest first.
    """

    launcher: Int64Array  #: index of each call into the launchers, (c,)
    group: Int64Array  #: the group of each call, (c,)
    first: Int64Array  #: the first call of each group, (k,)
    total_ns: Int64Array  #: GPU time of each group, (k,)


def select_operations(
    context: ReproductionContext, choice: OperationChoice
) -> Specification:
    """Return what was recorded about the selected operations.

    Raises:
        UsageError: no operation is selected.
    """
    calls = _grouped_calls(context)
    if not len(calls.first):
        raise UsageError(
            f"{context.trace.provenance.path}: no CPU operation of this trace launched GPU work;"
            " record with torch.profiler and both activities, CPU and CUDA"
        )
    chosen = np.flatnonzero(_chosen_groups(context, calls, choice))
    if not len(chosen):
        raise UsageError(_no_match_message(choice))
    if choice.top and choice.row is None:
        chosen = chosen[: choice.top]
    operations = _operations(context, calls, chosen)
    source = PurePath(context.trace.provenance.path).name
    return Specification(source, _with_costs(context, operations))


def chosen_of_specification(
    specification: Specification, choice: OperationChoice, path: PurePath
) -> Specification:
    """Return the selected operations of a specification, with their old numbers.

    Raises:
        UsageError: no operation is selected, or the choice needs the trace.
    """
    if choice.row is not None or choice.finding is not None:
        raise UsageError(f"{path}: --row and --finding need the trace itself")
    pattern = user_pattern(choice.op, "op")
    operations = [
        operation
        for operation in specification.operations
        if pattern is None or pattern.search(operation.call.name)
    ]
    if choice.top:
        operations = operations[: choice.top]
    if not operations:
        raise UsageError(f"{path}: no operation is selected")
    return replace(specification, operations=tuple(operations))


def _grouped_calls(context: ReproductionContext) -> _Calls:
    """Group the operations that launched GPU work by name and arguments, longest time first."""
    trace = context.trace
    launchers = context.launchers
    is_operation = np.isin(trace.kind[launchers.rows], trace.operation_kinds)
    launcher = np.flatnonzero(is_operation)
    rows = launchers.rows[launcher]
    keys: list[IntArray] = [trace.name[rows]]
    keys += [trace.arg(argument).at(rows) for argument in ARGUMENTS]
    first, group = number_groups(keys)
    total_ns = sums(group, launchers.direct_ns[launcher], len(first))
    longest_first = np.lexsort((first, -total_ns))
    return _Calls(
        launcher=launcher,
        group=inverse_permutation(longest_first)[group],
        first=first[longest_first],
        total_ns=total_ns[longest_first],
    )


def _chosen_groups(
    context: ReproductionContext, calls: _Calls, choice: OperationChoice
) -> BoolArray:
    """Return which groups meet all conditions, (k,)."""
    trace = context.trace
    is_chosen = np.ones(len(calls.first), dtype=bool)
    pattern = user_pattern(choice.op, "op")
    if pattern is not None:
        rows = context.launchers.rows[calls.launcher[calls.first]]
        is_chosen &= trace.names_matching(pattern.search)[trace.name[rows]]
    if choice.row is not None:
        is_chosen &= _groups_of_row(context, calls, choice.row)
    if choice.finding is not None:
        is_chosen &= _groups_of_finding(context, calls, choice.finding)
    return is_chosen


def _groups_of_row(context: ReproductionContext, calls: _Calls, row: int) -> BoolArray:
    """Return the group that a row of `ops_unique_args` belongs to, (k,)."""
    table = context.get_df_kernel_launchers_unique_args()
    if not 1 <= row <= len(table):
        raise UsageError(
            f"--row {row}: the table ops_unique_args of this trace has rows 1 to {len(table)}"
        )
    event = int(table["ex_UID"].iloc[row - 1])
    rows_of_calls = context.launchers.rows[calls.launcher]
    groups = calls.group[rows_of_calls == event]
    if not len(groups):
        name = table["name"].iloc[row - 1]
        raise UsageError(
            f"--row {row}: {name} is a launch without a CPU operation around it, so "
            "it cannot be called in isolation"
        )
    is_chosen = np.zeros(len(calls.first), dtype=bool)
    is_chosen[groups] = True
    return is_chosen


def _groups_of_finding(
    context: ReproductionContext, calls: _Calls, finding_id: str
) -> BoolArray:
    """Return the groups behind a finding, (k,).

    These are the operations that launched the GPU events of the finding. If the finding is about
    idle time, they are the operations that it names as places.
    """
    finding = _finding(context.findings(), finding_id)
    launchers = context.launchers
    is_chosen = np.zeros(len(calls.first), dtype=bool)
    events = np.zeros(0, dtype=np.int64)
    if finding.claim is not None:
        events = finding.claim.events
    if len(events):
        group_of_launcher = np.full(len(launchers), NONE, dtype=np.int64)
        group_of_launcher[calls.launcher] = calls.group
        groups = values_at(group_of_launcher, launchers.of_gpu[events])
        is_chosen[groups[groups != NONE]] = True
        return is_chosen
    names = {place.name for place in finding.where.get("operations", ())}
    trace = context.trace
    rows = launchers.rows[calls.launcher[calls.first]]
    is_chosen |= trace.names_matching(names.__contains__)[trace.name[rows]]
    return is_chosen


def _finding(findings: Findings, finding_id: str) -> Finding:
    for finding in findings.findings:
        if finding.id == new_finding_id(finding_id):
            return finding
    available = ", ".join(finding.id for finding in findings.findings) or "none"
    raise UsageError(
        f"--finding {finding_id}: the trace has no such finding; it has: {available}"
    )


def _no_match_message(choice: OperationChoice) -> str:
    """Return the message for a choice that matches no operation."""
    conditions = []
    if choice.op is not None:
        pattern = getattr(choice.op, "pattern", choice.op)
        conditions.append(f"--op {pattern}")
    if choice.row is not None:
        conditions.append(f"--row {choice.row}")
    if choice.finding is not None:
        conditions.append(f"--finding {choice.finding}")
    return (
        f"{' '.join(conditions)}: no operation with GPU work matches; the table"
        " ops_unique_args of tracelens-ext report lists them, without communication"
    )


def _operations(
    context: ReproductionContext, calls: _Calls, chosen: Int64Array
) -> list[RecordedOperation]:
    """Return what was recorded about some groups, numbered from 1."""
    launchers = context.launchers
    first_rows = launchers.rows[calls.launcher[calls.first[chosen]]]
    recorded_calls = _recorded_calls(context, first_rows)
    times = _times(launchers, calls)
    kernels = _kernels(context, calls, chosen)
    operations = []
    for index, group in enumerate(chosen.tolist()):
        call = recorded_calls[index]
        children: tuple[RecordedCall, ...] = ()
        if call.name in SHOWN_BY_CHILDREN:
            children = _children(context, int(first_rows[index]))
        operation = RecordedOperation(
            number=index + 1,
            call=call,
            calls=len(times[group]),
            gpu_us=_statistics(times[group]),
            kernels=kernels[index],
            children=children,
        )
        operations.append(operation)
    return operations


def _times(launchers: Launchers, calls: _Calls) -> list[Int64Array]:
    """Return the GPU times of the calls of each group, ns, ascending; k arrays."""
    duration = launchers.direct_ns[calls.launcher]
    order = np.lexsort((duration, calls.group))
    later_groups = np.arange(1, len(calls.first))
    starts = np.searchsorted(calls.group[order], later_groups)
    return np.split(duration[order], starts)


def _statistics(durations_ns: Int64Array) -> RecordedTimes:
    """Return statistics of the GPU times of calls, which are in ascending order."""
    durations_us = durations_ns / NS_PER_US
    total_ns = int(durations_ns.sum())
    return RecordedTimes(
        median=float(np.median(durations_us)),
        shortest=float(durations_us[0]),
        longest=float(durations_us[-1]),
        total=total_ns / NS_PER_US,
    )


def _kernels(
    context: ReproductionContext, calls: _Calls, chosen: Int64Array
) -> list[tuple[str, ...]]:
    """Return the distinct names of the GPU events of each chosen group, sorted."""
    launchers = context.launchers
    gpu_events = context.gpu_events
    # From groups to launchers to GPU events: the index in `chosen`, `NONE` for all others.
    index_of_group = np.full(len(calls.first), NONE, dtype=np.int64)
    index_of_group[chosen] = np.arange(len(chosen))
    index_of_launcher = np.full(len(launchers), NONE, dtype=np.int64)
    index_of_launcher[calls.launcher] = index_of_group[calls.group]
    index_of_gpu = values_at(index_of_launcher, launchers.of_gpu)
    events = np.flatnonzero(index_of_gpu != NONE)
    index = index_of_gpu[events]
    name = gpu_events.name[events]
    first_of_pair, _ = number_groups([index, name])
    names: list[list[str]] = [[] for _ in range(len(chosen))]
    for event in first_of_pair.tolist():
        names[index[event]].append(gpu_events.trace.names[name[event]])
    return [tuple(sorted(names_of_group)[:_MOST_KERNELS]) for names_of_group in names]


def _children(context: ReproductionContext, row: int) -> tuple[RecordedCall, ...]:
    """Return the operations below an event, in order of start."""
    tree = context.tree
    trace = context.trace
    position = int(tree.position[row])
    first_child = position + 1
    end = int(tree.subtree_end[position])
    rows = tree.rows[first_child:end]
    is_operation = np.isin(trace.kind[rows], trace.operation_kinds)
    operations = rows[is_operation]
    return tuple(_recorded_calls(context, operations[:_MOST_CHILDREN]))


def _recorded_calls(
    context: ReproductionContext, rows: Int64Array
) -> list[RecordedCall]:
    """Return the names and arguments of some events."""
    trace = context.trace
    columns = []
    for argument in ARGUMENTS:
        distinct = argument_values(
            trace, rows, argument, lambda text: parsed(text).value, None
        )
        values = [distinct.values[code] for code in distinct.code.tolist()]
        columns.append([_entries(value) for value in values])
    dims, types, strides, concrete = columns
    calls = []
    for index, name in enumerate(trace.name[rows].tolist()):
        call = RecordedCall(
            name=trace.names[name],
            dims=dims[index] or (),
            types=_texts(types[index]) or (),
            strides=strides[index],
            concrete=_texts(concrete[index]),
        )
        calls.append(call)
    return calls


def _entries(value: object) -> tuple[Any, ...] | None:
    """Return the entries of an argument; None if it is missing or not a list."""
    return value if isinstance(value, tuple) else None


def _texts(entries: tuple[Any, ...] | None) -> tuple[str, ...] | None:
    return None if entries is None else tuple(map(str, entries))


def _with_costs(
    context: ReproductionContext, operations: list[RecordedOperation]
) -> tuple[RecordedOperation, ...]:
    """Return operations with the FLOPs and bytes of their performance models."""
    costs: dict[RecordedCall, Cost] = {}
    with context.failures.isolate("The performance models"):
        for row in context.roofline().rows:
            recorded = row.operation
            if row.cost is None:
                continue
            key = _key(recorded.name, recorded.dims, recorded.types, recorded.concrete)
            costs[key] = row.cost
    result = []
    for operation in operations:
        call = operation.call
        cost = costs.get(_key(call.name, call.dims, call.types, call.concrete or ()))
        if cost is not None:
            operation = replace(
                operation, flops=int(cost.flops), moved_bytes=int(cost.bytes)
            )
        result.append(operation)
    return tuple(result)


def _key(
    name: str,
    dims: Sequence[object],
    types: Sequence[str],
    concrete: Sequence[str],
) -> RecordedCall:
    """Return a key for operations that have the same performance model and cost."""
    return RecordedCall(name, tuple(dims), tuple(types), None, tuple(concrete))
