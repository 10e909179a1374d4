"""What is read of the JSON of rocprofv3: its records, and what they refer to.

Format: `source/lib/output/generateJSON.cpp` of ROCprofiler-SDK.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from tracelens_ext.readers.rocprof.records import ALLOCATION, COUNTER, Agent, Handle
from tracelens_ext.readers.sqlite_columns import MISSING

_Whole = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class _Correlation(msgspec.Struct, frozen=True):
    internal: _Whole = 0


class _Record(msgspec.Struct):
    start_timestamp: _Whole = MISSING
    end_timestamp: _Whole = MISSING
    kind: _Whole = -1
    operation: _Whole = -1
    correlation_id: _Correlation = _Correlation()


class Call(_Record):
    """A record of an API, or of markers."""

    thread_id: _Whole = 0


class _DispatchInfo(msgspec.Struct, frozen=True):
    agent_id: Handle = Handle()
    queue_id: Handle = Handle()
    kernel_id: _Whole = 0


class Dispatch(_Record):
    """A record of `kernel_dispatch`."""

    dispatch_info: _DispatchInfo = _DispatchInfo()


class Copy(_Record):
    """A record of `memory_copy`."""

    src_agent_id: Handle = Handle()
    dst_agent_id: Handle = Handle()
    stream_id: Handle = Handle()
    bytes: _Whole = -1


class Symbol(msgspec.Struct):
    """A kernel."""

    kernel_id: _Whole = -1
    formatted_kernel_name: str | None = None
    demangled_kernel_name: str | None = None
    kernel_name: str | None = None


class Operations(msgspec.Struct):
    """A kind of records, and the names of its operations."""

    kind: str = ""
    operations: list[str] = []


class Message(msgspec.Struct):
    """The text of a roctx range or mark, by its correlation id."""

    key: _Whole = -1
    value: str = ""


_OF_ALL = {
    "start": "start_timestamp",
    "end": "end_timestamp",
    "kind": "kind",
    "operation": "operation",
    "correlation": "correlation_id.internal",
}
#: Column → where a record has it. Handles can be any number of 64 bits: they are numbered.
COLUMNS: dict[type, dict[str, str]] = {
    Call: _OF_ALL | {"thread": "thread_id"},
    Dispatch: _OF_ALL
    | {
        "kernel": "dispatch_info.kernel_id",
        "agent handle": "dispatch_info.agent_id.handle",
        "queue handle": "dispatch_info.queue_id.handle",
    },
    Copy: _OF_ALL
    | {
        "source handle": "src_agent_id.handle",
        "target handle": "dst_agent_id.handle",
        "stream handle": "stream_id.handle",
        "bytes": "bytes",
    },
}
#: Why records of a kind are left out.
LEFT_OUT = {
    "memory_allocation": ALLOCATION,
    "scratch_memory": ALLOCATION,
    "counter_collection": COUNTER,
}
_TYPES: dict[tuple[str, ...], type] = {
    ("agents",): Agent,
    ("kernel_symbols",): Symbol,
    ("strings", "buffer_records"): Operations,
    ("strings", "marker_api"): Message,
    ("buffer_records", "kernel_dispatch"): Dispatch,
    ("buffer_records", "memory_copy"): Copy,
}


def type_of(path: tuple[str, ...]) -> type:
    """What the items of a list are, by its place in a process; `Raw` of those that are not read."""
    if path[0] == "buffer_records" and path[-1].endswith("_api"):
        return Call
    return _TYPES.get(path, msgspec.Raw)
