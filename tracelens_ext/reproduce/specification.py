"""What was recorded of operations: all that a script needs, without the trace.

The same as JSON is what `tracelens-ext reproduce --json` prints.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import msgspec

from tracelens_ext.errors import UsageError

FORMAT: Final = "tracelens-ext operations"
VERSION: Final = 1


@dataclass(frozen=True)
class RecordedCall:
    """An operation and its arguments, as PyTorch's profiler writes them, n of them."""

    name: str  #: such as `aten::mm`
    #: sizes of each argument, a list of sizes for a list of tensors, empty for others, (n,)
    dims: tuple[Any, ...] = ()
    types: tuple[str, ...] = ()  #: such as `float`, `Scalar` or `TensorList`, (n,)
    #: in elements, as `dims`; None where the trace has none, (n,)
    strides: tuple[Any, ...] | None = None
    #: numbers and lists as text, empty for others; None where the trace has none, (n,)
    concrete: tuple[str, ...] | None = None


@dataclass(frozen=True)
class RecordedTimes:
    """The GPU time of the calls of an operation, in µs."""

    median: float
    shortest: float
    longest: float
    total: float


@dataclass(frozen=True)
class RecordedOperation:
    """An operation of a trace: equal arguments are one."""

    number: int  #: in the script, from 1
    call: RecordedCall
    calls: int = 1  #: how often the trace has it
    gpu_us: RecordedTimes | None = None
    before_us: RecordedTimes | None = None  #: in the earlier of two traces
    kernels: tuple[str, ...] = ()  #: the names of the GPU events of a call
    #: the operations that a call consists of, where they tell what its arguments do not
    children: tuple[RecordedCall, ...] = ()
    flops: int | None = None  #: of a call, by its performance model
    moved_bytes: int | None = None  #: that a call must move, by its performance model


@dataclass(frozen=True)
class Specification:
    """The operations of a script, in their order."""

    source: str  #: the name of the trace
    operations: tuple[RecordedOperation, ...]

    def as_json(self) -> str:
        """Return the document, an operation a line."""
        lines = [
            json.dumps(_without_defaults(operation)) for operation in self.operations
        ]
        head = json.dumps(
            {"format": FORMAT, "version": VERSION, "source": self.source}
        ).removesuffix("}")
        operations = ",\n".join(lines)
        return f'{head}, "operations": [\n{operations}\n]}}\n'


def _without_defaults(operation: RecordedOperation) -> dict[str, Any]:
    """Return an operation as JSON has it: without what was not recorded."""
    document = {
        field.name: getattr(operation, field.name)
        for field in fields(operation)
        if getattr(operation, field.name) not in (None, ())
    }
    document["call"] = asdict(operation.call)
    if operation.children:
        document["children"] = [asdict(child) for child in operation.children]
    for name in ("gpu_us", "before_us"):
        times = getattr(operation, name)
        if times is not None:
            document[name] = asdict(times)
    return document


def is_specification(document: object) -> bool:
    """Return whether a JSON document is a specification of this program."""
    return isinstance(document, Mapping) and document.get("format") == FORMAT


def specification_of(document: Mapping[str, Any], path: Path) -> Specification:
    """Return the specification that a JSON document stands for.

    Raises:
        UsageError: it does not have the form of one.
    """
    if document.get("version") != VERSION:
        raise UsageError(
            f"{path}: has version {document.get('version')!r} of the specification, "
            f"but this program reads version {VERSION}; write it again with "
            "`reproduce --json`"
        )
    parts = {key: _as_tuples(document.get(key)) for key in ("source", "operations")}
    try:
        specification = msgspec.convert(parts, Specification)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{path}: is not a specification of operations: {error}"
        ) from None
    numbers = [operation.number for operation in specification.operations]
    if len(set(numbers)) != len(numbers):
        raise UsageError(f"{path}: has two operations with the same number")
    return specification


def _as_tuples(value: object) -> object:
    """Return a part of a JSON document with its lists as tuples."""
    if isinstance(value, list):
        return tuple(map(_as_tuples, value))
    if isinstance(value, dict):
        return {key: _as_tuples(item) for key, item in value.items()}
    return value
