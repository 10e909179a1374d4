"""The specification of a script: what was recorded about operations, without the trace.

`tracelens-ext reproduce --json` prints it as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any, Final

import msgspec

from tracelens_ext.errors import UsageError

FORMAT: Final = "tracelens-ext operations"
VERSION: Final = 1


@dataclass(frozen=True)
class RecordedCall:
    """An operation and its n arguments, as PyTorch's profiler writes them."""

    name: str  #: such as `aten::mm`
    #: For each argument the sizes of a tensor, a list of sizes for a list of tensors, or an empty
    #: tuple, (n,).
    dims: tuple[Any, ...] = ()
    types: tuple[str, ...] = ()  #: such as `float`, `Scalar` or `TensorList`, (n,)
    #: strides in elements, structured like `dims`, (n,); None: not recorded
    strides: tuple[Any, ...] | None = None
    #: numbers and lists as text, empty for other arguments, (n,); None: not recorded
    concrete: tuple[str, ...] | None = None


@dataclass(frozen=True)
class RecordedTimes:
    """The GPU time of the calls of an operation, in µs."""

    median: float
    shortest: float
    longest: float
    total: float

    @property
    def are_finite(self) -> bool:
        """True if all times are finite."""
        times = (self.median, self.shortest, self.longest, self.total)
        return all(map(isfinite, times))


@dataclass(frozen=True)
class RecordedOperation:
    """An operation of a trace; calls with equal arguments are one operation."""

    number: int  #: number in the script, from 1
    call: RecordedCall
    calls: int = 1  #: number of calls in the trace
    gpu_us: RecordedTimes | None = None  #: in the trace, or in the later of two traces
    before_us: RecordedTimes | None = None  #: in the earlier of two traces
    kernels: tuple[str, ...] = ()  #: the names of the GPU events of a call
    #: the operations below a call, if they show what its arguments do not
    children: tuple[RecordedCall, ...] = ()
    flops: int | None = None  #: FLOPs of a call, by its performance model
    #: bytes that a call must move, by its performance model
    moved_bytes: int | None = None


@dataclass(frozen=True)
class Specification:
    """The operations of a script, in their order."""

    source: str  #: the name of the trace
    operations: tuple[RecordedOperation, ...]

    def as_json(self) -> str:
        """Return the JSON document, with one operation per line."""
        lines = [
            json.dumps(_without_defaults(operation)) for operation in self.operations
        ]
        head = json.dumps(
            {"format": FORMAT, "version": VERSION, "source": self.source}
        ).removesuffix("}")
        operations = ",\n".join(lines)
        return f'{head}, "operations": [\n{operations}\n]}}\n'


def _without_defaults(operation: RecordedOperation) -> dict[str, Any]:
    """Return an operation for JSON, without the facts that were not recorded."""
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
    """Return the specification in a JSON document.

    Raises:
        UsageError: the document is not a valid specification.
    """
    if document.get("version") != VERSION:
        raise UsageError(
            f"{path}: its version is {document.get('version')!r}, and this program reads"
            f" version {VERSION}; write it again with `tracelens-ext reproduce --json`"
        )
    try:
        parts = {
            "source": document.get("source"),
            "operations": _as_tuples(document.get("operations")),
        }
        specification = msgspec.convert(parts, Specification)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UsageError(
            f"{path}: not a valid specification of operations: {error}"
        ) from None
    numbers = [operation.number for operation in specification.operations]
    if len(set(numbers)) != len(numbers):
        raise UsageError(f"{path}: two of its operations have the same number")
    if min(numbers, default=1) < 1:
        raise UsageError(f"{path}: the number of an operation is less than 1")
    for operation in specification.operations:
        for times in (operation.gpu_us, operation.before_us):
            if times is not None and not times.are_finite:
                raise UsageError(
                    f"{path}: operation {operation.number} has a time that is not finite"
                )
    return specification


def _as_tuples(value: object) -> object:
    """Return a part of a JSON document with tuples in place of lists."""
    if isinstance(value, list):
        items = map(_as_tuples, value)
        return tuple(items)
    if isinstance(value, dict):
        return {key: _as_tuples(item) for key, item in value.items()}
    return value
