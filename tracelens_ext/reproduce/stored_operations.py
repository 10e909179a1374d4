"""Reads operations from files other than traces: specifications, and replay files of TraceLens.

A replay file (TraceLens, `EventReplay/batched_replay.py`) is a JSON list of
`{"op_name": …, "count": …, "replay_ir": {"list_pos_args": […], "list_kwargs": […]}}`; an argument
is `{"arg_name": …, "arg_type": …, "value": …}`, and the value of a tensor
`{"shape": …, "dtype": …, "strides": …}`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tracelens_ext.errors import UsageError
from tracelens_ext.reproduce.specification import (
    FORMAT,
    RecordedCall,
    RecordedOperation,
    Specification,
    is_specification,
    specification_of,
)

_GZIP: Final = b"\x1f\x8b"
#: Texts that a file of each kind contains in its first bytes, and a trace does not.
_SIGNS: Final = (FORMAT.encode(), b'"replay_ir"')
_BEGINNING_BYTES: Final = 65_536
#: More bytes than any such file has.
_MOST_BYTES: Final = 1_000_000_000


def read_stored_operations(path: Path) -> Specification | None:
    """Return the operations that a file stores; None for a file of another kind.

    Raises:
        UsageError: the file is damaged.
    """
    if not path.is_file():
        return None
    try:
        with _opened(path) as stream:
            beginning = stream.read(_BEGINNING_BYTES)
            if not any(sign in beginning for sign in _SIGNS):
                return None
            if b'"traceEvents"' in beginning:
                return None
            text = beginning + stream.read(_MOST_BYTES)
    except (OSError, EOFError, gzip.BadGzipFile):
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is not valid JSON: {error}") from None
    if is_specification(document):
        return specification_of(document, path)
    return _of_replay_file(document, path)


def _opened(path: Path) -> Any:  # noqa: ANN401  # two kinds of binary files
    with path.open("rb") as stream:
        is_packed = stream.read(2) == _GZIP
    return gzip.open(path) if is_packed else path.open("rb")


def _of_replay_file(document: object, path: Path) -> Specification:
    """Return the operations of a replay file of TraceLens."""
    entries = document if isinstance(document, list) else [document]
    operations = []
    for number, entry in enumerate(entries, 1):
        try:
            operations.append(_of_entry(number, entry))
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{path}: entry {number} is not a TraceLens replay operation: {error!r}"
            ) from None
    return Specification(path.name, tuple(operations))


def _of_entry(number: int, entry: Mapping[str, Any]) -> RecordedOperation:
    """Return the operation of an entry, with its arguments in the form of a trace."""
    replayed = entry["replay_ir"]
    arguments = list(replayed["list_pos_args"]) + list(replayed["list_kwargs"])
    recorded = [_as_recorded(argument["value"]) for argument in arguments]
    call = RecordedCall(
        name=str(entry["op_name"]),
        dims=tuple(argument.dims for argument in recorded),
        types=tuple(argument.type for argument in recorded),
        strides=tuple(argument.strides for argument in recorded),
        concrete=tuple(argument.text for argument in recorded),
    )
    calls = entry.get("count") or 1
    return RecordedOperation(number, call, calls=int(calls))


class _RecordedArgument(NamedTuple):
    """An argument in the form of a trace."""

    type: str = ""
    dims: tuple[Any, ...] = ()
    strides: tuple[Any, ...] = ()
    text: str = ""


def _as_recorded(value: object) -> _RecordedArgument:
    """Return the value of an argument in the form of a trace."""
    if isinstance(value, Mapping):
        return _RecordedArgument(
            type=str(value["dtype"]),
            dims=tuple(value["shape"]),
            strides=tuple(value["strides"]),
        )
    if isinstance(value, list):
        return _list_as_recorded(value)
    if isinstance(value, bool | int | float):
        return _RecordedArgument(type="Scalar", text=str(value))
    return _RecordedArgument()


def _list_as_recorded(values: list[Any]) -> _RecordedArgument:
    if values and isinstance(values[0], Mapping):
        return _RecordedArgument(
            type="TensorList",
            dims=tuple(tuple(value["shape"]) for value in values),
            strides=tuple(tuple(value["strides"]) for value in values),
        )
    items = ", ".join(map(str, values))
    return _RecordedArgument(type="ScalarList", text=f"[{items}]")
