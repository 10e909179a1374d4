"""Makes CPU operations for the HLO instructions that launched GPU work.

A JAX profile names the instruction of each kernel, but has no event on the host for that
instruction. Therefore an event is made around the launches of each call of an instruction, and
around it an annotation with its scope (`jit(f)/jit(main)/conv_general_dilated`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import Interner, distinct_rows, map_distinct_ids
from tracelens_ext.readers.xplane.programs import Arguments, Programs
from tracelens_ext.readers.xplane.recorded_events import RecordedEvents
from tracelens_ext.trace import NONE, EventKind, Int64Array


class DescribedOperations(NamedTuple):
    """Operations whose arguments are known, recorded and made ones."""

    rows: Int64Array  #: rows among all events, ascending, (a,)
    arguments: list[Arguments]  #: of each of these rows


class MadeEvents(NamedTuple):
    """The events that are added to the recorded ones, and the arguments of all operations."""

    columns: Mapping[str, Int64Array]  #: `ts`, `dur`, `name`, `lane`, `kind`, each (m,)
    operations: DescribedOperations


class _InstructionCalls(NamedTuple):
    """The calls of instructions, c of them; each array is of shape (c,)."""

    gpu_row: Int64Array  #: row of the first GPU event of the call
    launch_row: Int64Array  #: row of its first launch
    start: Int64Array  #: ns
    end: Int64Array  #: ns


class _LaunchedWork(NamedTuple):
    """GPU events, and the launch of each."""

    gpu_rows: Int64Array
    launch_rows: Int64Array


class OperationMaker:
    """Makes the operations of a profile.

    Args:
        recorded: the recorded events.
        names: names of events → their codes; the names of operations are added.
        texts: the texts of statistics, by code.
    """

    def __init__(
        self, recorded: RecordedEvents, names: Interner[str], texts: Sequence[str]
    ) -> None:
        self._recorded = recorded
        self._names = names
        self._texts = texts

    def make_operations(self, programs: Programs) -> MadeEvents:
        """Return events for the calls of instructions, and the arguments of all operations."""
        recorded = self._recorded
        calls = self._instruction_calls()
        call_count = len(calls.gpu_row)
        operation = recorded.stats["hlo_op"].at(calls.gpu_row)
        scope = recorded.stats["name"].at(calls.gpu_row)
        calls_with_scope = np.flatnonzero(scope != NONE)
        scope_count = len(calls_with_scope)
        # All scopes come before all operations: of two equal intervals the first is the parent.
        call_of_event = np.concatenate((calls_with_scope, np.arange(call_count)))
        text_of_event = np.concatenate((scope[calls_with_scope], operation))
        kind = np.full(len(call_of_event), EventKind.CPU_OP, dtype=np.int64)
        kind[:scope_count] = EventKind.USER_ANNOTATION
        columns = {
            "ts": calls.start[call_of_event],
            "dur": (calls.end - calls.start)[call_of_event],
            "name": map_distinct_ids(text_of_event, self._name_codes),
            "lane": recorded.columns["lane"][calls.launch_row[call_of_event]],
            "kind": kind,
        }
        recorded_operations = np.flatnonzero(recorded.kind == EventKind.CPU_OP)
        made_operations = len(recorded.kind) + scope_count + np.arange(call_count)
        operations = self._look_up_arguments(
            rows=np.concatenate((recorded_operations, made_operations)),
            describing_rows=np.concatenate((recorded_operations, calls.gpu_row)),
            programs=programs,
        )
        return MadeEvents(columns, operations)

    def _name_codes(self, text_codes: Int64Array) -> list[int]:
        """Return the codes of texts as names of events."""
        return [self._names[self._text(code)] for code in text_codes.tolist()]

    def _text(self, code: int) -> str:
        """Return a text by its code; an empty one for `NONE`."""
        if code == NONE:
            return ""
        return self._texts[code]

    def _look_up_arguments(
        self, rows: Int64Array, describing_rows: Int64Array, programs: Programs
    ) -> DescribedOperations:
        """Return those of o operations whose arguments a program has.

        Args:
            rows: the rows of the operations, ascending, (o,).
            describing_rows: for each operation, the row of a recorded event whose statistics name
                its program and its instruction, (o,).
            programs: the programs of the profile.
        """
        stats = self._recorded.stats
        distinct, index = distinct_rows(
            stats["program_id"].at(describing_rows),
            stats["hlo_module"].at(describing_rows),
            stats["hlo_op"].at(describing_rows),
        )
        distinct_arguments = []
        for program_id, module, operation in distinct:
            arguments = programs.arguments(
                program_id, self._text(module), self._text(operation)
            )
            distinct_arguments.append(arguments)
        described_rows = []
        arguments_of_rows = []
        for row, number in zip(rows.tolist(), index.tolist(), strict=True):
            arguments = distinct_arguments[number]
            if arguments is not None:
                described_rows.append(row)
                arguments_of_rows.append(arguments)
        return DescribedOperations(
            rows=np.array(described_rows, dtype=np.int64), arguments=arguments_of_rows
        )

    def _instruction_calls(self) -> _InstructionCalls:
        """Return the calls of instructions, c of them.

        Successive launches on a thread belong to one call as long as they are for the same
        instruction and device. A launch of the kernel that the call began with begins another call.
        Example: the launches `a1 a2 a1 a2 b1`, of the kernels of instructions `a` and `b`, are the
        calls `a1 a2`, `a1 a2` and `b1`.
        """
        recorded = self._recorded
        start = recorded.columns["ts"]
        lane = recorded.columns["lane"]
        work = self._launched_work()
        by_launch = np.lexsort(
            (start[work.gpu_rows], start[work.launch_rows], lane[work.launch_rows])
        )
        gpu_rows = work.gpu_rows[by_launch]
        launch_rows = work.launch_rows[by_launch]
        _, instruction = distinct_rows(
            recorded.stats["program_id"].at(gpu_rows),
            recorded.stats["hlo_module"].at(gpu_rows),
            recorded.stats["hlo_op"].at(gpu_rows),
            recorded.device[gpu_rows],
            lane[launch_rows],
        )
        is_other_instruction = np.diff(instruction, prepend=NONE) != 0
        is_other_launch = np.diff(launch_rows, prepend=NONE) != 0
        name = recorded.columns["name"][gpu_rows]
        index = np.arange(len(gpu_rows))
        # For each GPU event, the index of the first one in its run of the same instruction.
        first_of_run = np.maximum.accumulate(np.where(is_other_instruction, index, 0))
        is_first_kernel_again = is_other_launch & (name == name[first_of_run])
        begins = np.flatnonzero(is_other_instruction | is_first_kernel_again)
        end = start[launch_rows] + recorded.columns["dur"][launch_rows]
        if len(begins):
            end = np.maximum.reduceat(end, begins)  # the last end within each call
        first_launch = launch_rows[begins]
        return _InstructionCalls(
            gpu_row=gpu_rows[begins],
            launch_row=first_launch,
            start=start[first_launch],
            end=end,
        )

    def _launched_work(self) -> _LaunchedWork:
        """Return the GPU events of instructions with their launches.

        A launch of kernels of several instructions is that of a graph and is left out: no
        instruction launched these kernels itself.
        """
        recorded = self._recorded
        call_start = recorded.columns["ts"][recorded.call_rows]
        calls = recorded.call_rows[np.argsort(call_start, kind="stable")]
        launch_of_id = pd.Series(calls, index=recorded.correlation[calls])
        is_last_of_id = ~launch_of_id.index.duplicated(keep="last")
        launch_of_id = launch_of_id[(launch_of_id.index > 0) & is_last_of_id]
        operation_of_gpu_row = recorded.stats["hlo_op"].at(recorded.gpu_rows)
        has_operation = operation_of_gpu_row != NONE
        gpu_rows = recorded.gpu_rows[has_operation]
        operation = operation_of_gpu_row[has_operation]
        launches = launch_of_id.reindex(recorded.correlation[gpu_rows], fill_value=NONE)
        launch_rows = launches.to_numpy(dtype=np.int64)
        by_launch = pd.Series(operation).groupby(launch_rows)
        operations_of_launch = by_launch.transform("nunique").to_numpy()
        has_one_operation = operations_of_launch == 1
        is_usable = has_one_operation & (launch_rows != NONE)
        return _LaunchedWork(gpu_rows[is_usable], launch_rows[is_usable])
