"""Operations with arguments as PyTorch's profiler records them."""

from __future__ import annotations

from typing import Any

from tracelens_ext.reproduce.specification import RecordedCall, RecordedOperation

#: An argument: its type, dims, strides and text.
Entry = tuple[str, Any, Any, str]


def tensor(*sizes: int, kind: str = "float", strides: Any = None) -> Entry:
    """Return a tensor, contiguous unless it has strides."""
    if strides is None:
        step = 1
        steps = []
        for size in reversed(sizes):
            steps.append(step)
            step *= size
        strides = tuple(reversed(steps))
    return (kind, sizes, strides, "")


def scalar(text: str) -> Entry:
    """Return a number or a boolean."""
    return ("Scalar", (), (), text)


def numbers(text: str) -> Entry:
    """Return a list of numbers."""
    return ("ScalarList", (), (), text)


def operation(name: str, *entries: Entry, **facts: Any) -> RecordedOperation:
    """Return an operation with arguments; `facts` are those of `RecordedOperation`."""
    types, dims, strides, concrete = zip(*entries, strict=True)
    call = RecordedCall(name, dims, types, strides, concrete)
    return RecordedOperation(1, call, **facts)
