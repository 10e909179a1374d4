"""Selects the operations whose GPU time differs most between two traces."""

from __future__ import annotations

from dataclasses import replace

from tracelens_ext.errors import UsageError
from tracelens_ext.reproduce.selection import (
    OperationChoice,
    ReproductionContext,
    select_operations,
)
from tracelens_ext.reproduce.specification import (
    RecordedCall,
    RecordedOperation,
    Specification,
)


def select_changes(
    before: ReproductionContext, after: ReproductionContext, choice: OperationChoice
) -> Specification:
    """Return the operations of two traces, the largest difference in total GPU time first.

    `gpu_us` is the time in the later trace, and `before_us` the time in the earlier one.

    Raises:
        UsageError: there are no such operations.
    """
    every_operation = replace(choice, top=0)
    earlier = _by_call(select_operations(before, every_operation))
    later = _by_call(select_operations(after, every_operation))
    changes: dict[RecordedCall, float] = {}
    for call in {**later, **earlier}:
        changes[call] = abs(_total_us(later.get(call)) - _total_us(earlier.get(call)))
    most_first = sorted(changes, key=lambda call: -changes[call])
    changed = [call for call in most_first if changes[call]]
    if not changed:
        raise UsageError(
            "--compare: no operation takes a different time in the second trace"
        )
    if choice.top:
        changed = changed[: choice.top]
    operations = []
    for number, call in enumerate(changed, 1):
        operations.append(_combined(number, earlier.get(call), later.get(call)))
    source = f"{_name(before)} and {_name(after)}"
    return Specification(source, tuple(operations))


def _by_call(specification: Specification) -> dict[RecordedCall, RecordedOperation]:
    return {operation.call: operation for operation in specification.operations}


def _total_us(operation: RecordedOperation | None) -> float:
    if operation is None or operation.gpu_us is None:
        return 0.0
    return operation.gpu_us.total


def _combined(
    number: int,
    earlier: RecordedOperation | None,
    later: RecordedOperation | None,
) -> RecordedOperation:
    """Return an operation with its times in both traces; one of the traces may lack it."""
    before_us = None if earlier is None else earlier.gpu_us
    if later is not None:
        return replace(later, number=number, before_us=before_us)
    if earlier is None:
        raise ValueError("an operation is in at least one of the traces")
    return replace(earlier, number=number, gpu_us=None, before_us=before_us)


def _name(context: ReproductionContext) -> str:
    path = context.trace.provenance.path
    return path.replace("\\", "/").rpartition("/")[2]
