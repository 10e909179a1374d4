"""Reads the JSON of rocprofv3 (`--output-format json`), plain or gzipped, in bounded memory.

Supports: one or more processes; kernel dispatches, memory copies, and the calls of all APIs
(`hip_api`, `hsa_api`, `rccl_api` …); roctx ranges and marks, which have their message among the
`strings`. Names of calls are indices into `strings.buffer_records`, kernels are looked up by id.
Ignores: all other records, counted with what they are; arguments of calls.
Format: `rocprofiler-sdk-tool` of ROCprofiler-SDK, `source/lib/output/generateJSON.cpp`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from io import BytesIO
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.builder import Interner, distinct_rows, looked_up
from tracelens_ext.readers.json_events import ANY_CUT, EventStream
from tracelens_ext.readers.kineto.reader import plain
from tracelens_ext.readers.rocprof import records as rocprof
from tracelens_ext.readers.source import ByteSource, salvage_notes
from tracelens_ext.readers.tables import MISSING
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.text import encodable
from tracelens_ext.trace import NONE, EventKind, Int64Array, Trace

Pieces = dict[EventKind, dict[str, list[Int64Array]]]

FORMAT = "rocprofv3 JSON"
ROOT = "rocprofiler-sdk-tool"

#: Objects of a process whose members are read one by one.
_WALKED = ("strings", "buffer_records", "callback_records")
_WholeNumber = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
#: What a number of a record is where it is left out; 0 for all others.
_DEFAULTS = {
    "start_timestamp": MISSING,
    "end_timestamp": MISSING,
    "x": MISSING,
    "y": MISSING,
    "z": MISSING,
    "kind": -1,
    "operation": -1,
    "bytes": -1,
}
_PLACES_OF_ALL = {
    "start": "start_timestamp",
    "end": "end_timestamp",
    "kind": "kind",
    "operation": "operation",
    "correlation": "correlation_id.internal",
}
_PLACES_OF_CALLS = _PLACES_OF_ALL | {"thread": "thread_id"}
_PLACES_OF_DISPATCHES = _PLACES_OF_ALL | {
    "kernel": "dispatch_info.kernel_id",
    "device handle": "dispatch_info.agent_id.handle",
    "lane handle": "dispatch_info.queue_id.handle",
}
for _name in rocprof.GEOMETRY:  # `grid_size_x` is at `dispatch_info.grid_size.x`
    _size, _, _axis = _name.rpartition("_")
    _PLACES_OF_DISPATCHES[_name] = f"dispatch_info.{_size}.{_axis}"
_PLACES_OF_COPIES = _PLACES_OF_ALL | {
    "source handle": "src_agent_id.handle",
    "target handle": "dst_agent_id.handle",
    "lane handle": "stream_id.handle",
    "bytes": "bytes",
}
#: Column → where a record has it. Handles can be any number of 64 bits: they are numbered.
_PLACES = {
    EventKind.RUNTIME: _PLACES_OF_CALLS,
    EventKind.KERNEL: _PLACES_OF_DISPATCHES,
    EventKind.MEMCPY: _PLACES_OF_COPIES,
}


def _record_type(places: Iterable[str]) -> type:
    """Return a type with a whole number at each place; dots part the names of nested members."""
    nested_places: dict[str, list[str]] = {}
    for place in places:
        name, _, place_within = place.partition(".")
        within = nested_places.setdefault(name, [])
        if place_within:
            within.append(place_within)
    members: list[tuple[str, Any, Any]] = []
    for name, within in nested_places.items():
        if within:
            nested_type = _record_type(within)
            members.append((name, nested_type, nested_type()))
        elif name == "handle":
            members.append((name, int, 0))
        else:
            default = _DEFAULTS.get(name, 0)
            members.append((name, _WholeNumber, default))
    return msgspec.defstruct("Record", members, frozen=True)


_CALL = _record_type(_PLACES_OF_CALLS.values())
_DISPATCH = _record_type(_PLACES_OF_DISPATCHES.values())
_COPY = _record_type(_PLACES_OF_COPIES.values())
_KIND_OF_RECORD = {
    _CALL: EventKind.RUNTIME,
    _DISPATCH: EventKind.KERNEL,
    _COPY: EventKind.MEMCPY,
}


class _Symbol(msgspec.Struct):
    """A kernel, and how its name is written."""

    kernel_id: _WholeNumber = -1
    formatted_kernel_name: str | None = None
    demangled_kernel_name: str | None = None
    kernel_name: str | None = None

    @property
    def shown_name(self) -> str | None:
        """The most readable name."""
        return (
            self.formatted_kernel_name or self.demangled_kernel_name or self.kernel_name
        )


class _Operations(msgspec.Struct):
    """A kind of records, and the names of its operations."""

    kind: str = ""
    operations: list[str] = []

    def name_of(self, operation: int) -> str:
        """The name of an operation, or its number."""
        if 0 <= operation < len(self.operations):
            return self.operations[operation]
        return f"operation {operation}"


class _Message(msgspec.Struct):
    """The text of a roctx range or mark, by its correlation id."""

    key: _WholeNumber = -1
    value: str = ""


class _Process(NamedTuple):
    """What the document says of a process."""

    pid: int | str
    command: str
    machine: str


_TYPES: dict[tuple[str, ...], type] = {
    ("agents",): rocprof.Agent,
    ("kernel_symbols",): _Symbol,
    ("strings", "buffer_records"): _Operations,
    ("strings", "marker_api"): _Message,
    ("buffer_records", "kernel_dispatch"): _DISPATCH,
    ("buffer_records", "memory_copy"): _COPY,
}
#: Why records of a kind are left out.
_LEFT_OUT = {
    "memory_allocation": rocprof.ALLOCATION,
    "scratch_memory": rocprof.ALLOCATION,
    "counter_collection": rocprof.COUNTER,
}


def _type_of(path: tuple[str, ...]) -> type:
    """Return the type of the items of a list at a place in a process; `Raw`: they are not read."""
    if path[0] == "buffer_records" and path[-1].endswith("_api"):
        return _CALL
    return _TYPES.get(path, msgspec.Raw)


def read(source: ByteSource) -> Trace:
    """Read a document."""
    document = _Document(source)
    records = document.records
    for items in document:
        document.take(items)
    document.end_process()
    records.notes += salvage_notes(
        source=source,
        damage=document.damage,
        at=document.place,
        events=records.builder.present,
    )
    return records.finish(source.path, FORMAT, source.bytes_read)


def from_document(
    document: Mapping[str, object],
    path: str,
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
) -> Trace:
    """Return the trace of a loaded document."""
    try:
        text = msgspec.json.encode(document)
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"is not a JSON document ({error})"
        raise TraceFormatError(path, problem, "give it as loaded") from None
    with ByteSource(BytesIO(text), reading=reading) as source:
        source.path = path
        return read(source)


@cache
def _decoder_of(kind: type) -> msgspec.json.Decoder[list[Any]]:
    return msgspec.json.Decoder(list.__class_getitem__(kind))


class _Document(EventStream[list[Any]]):
    """The items of all lists of all processes of a document, which it decodes itself.

    The records of a process are columns until all that they refer to is known.
    """

    def __init__(self, source: ByteSource) -> None:
        super().__init__(source, self)
        self.records = rocprof.RocprofRecords()
        self._path: tuple[str, ...] = ()
        self._list_path: tuple[str, ...] = ()  # such as `("buffer_records", "hip_api")`
        self._begin_process()

    def _begin_process(self) -> None:
        self._metadata: object = None
        self._items: defaultdict[type, list[Any]] = defaultdict(list)
        self._handles: Interner[int] = Interner()
        self._columns: Pieces = {}
        for kind in _PLACES:
            self._columns[kind] = defaultdict(list)

    # What is where.

    def _member(self, key: str) -> Iterator[list[Any]]:
        path_outside = self._path
        self._path = (*self._path, key)
        path = self._path[1:]
        is_root = self._path == (ROOT,)
        is_walked = len(path) == 1 and key in _WALKED
        is_object_with_records = is_root or is_walked
        opening = self._next_byte()
        if is_root and opening == b"[":
            yield from self._processes()
        elif opening == b"{" and is_object_with_records:
            self._rest = self._rest[1:]
            yield from self._object()
        elif opening == b"[" and path:
            yield from self._list(path)
        elif path == ("metadata",):
            self._metadata = self._value()
        else:
            self._value()
        self._path = path_outside

    def _list(self, path: tuple[str, ...]) -> Iterator[list[Any]]:
        self._list_path = path
        if path[0] == "buffer_records" and not self.found_events:
            self.found_events = True
            self._count = 0  # of records, and not of what they refer to
        # A slice that was read for a short list before this one is read again.
        self._source.unread(self._rest[1:])
        self._rest = self._rest[:1]
        self._at_end = False
        self._cut = ANY_CUT
        yield from self._array()

    def _holds_events(self) -> bool:
        return self.found_events and super()._holds_events()

    def _processes(self) -> Iterator[list[Any]]:
        self._rest = self._rest[1:]
        while (byte := self._next_byte()) == b"{":
            self._rest = self._rest[1:]
            yield from self._object()
            self.end_process()
            if self._next_byte() == b",":
                self._rest = self._rest[1:]
        if not byte:
            self._cut_off()
        if byte != b"]":
            self._refuse(
                "is not valid JSON", "record the trace again or repair the file"
            )
        self._rest = self._rest[1:]

    # Items of the list that `_list_path` says.

    def decode(self, text: bytes) -> list[Any]:
        return _decoder_of(_type_of(self._list_path)).decode(text)

    def repair(self, events: list[object]) -> list[Any]:
        """Return items that have texts for numbers, say; those of another form are counted."""
        item_type = _type_of(self._list_path)
        repaired: list[Any] = []
        for event in events:
            with suppress(msgspec.MsgspecError, TypeError, ValueError, RecursionError):
                text = msgspec.json.encode(plain(event))
                repaired.append(msgspec.json.decode(text, type=item_type, strict=False))
        self.records.drop("records with another layout", len(events) - len(repaired))
        return repaired

    def take(self, items: list[Any]) -> None:
        """Keep items of the current list."""
        path = self._list_path
        last_name = path[-1]
        item_type = _type_of(path)
        if item_type in _KIND_OF_RECORD:
            self._take_records(_KIND_OF_RECORD[item_type], items)
        elif item_type is not msgspec.Raw:
            self._items[item_type] += items
        elif path[0] in ("buffer_records", "callback_records"):
            reason = _LEFT_OUT.get(last_name, "records of another kind")
            self.records.drop(reason=reason, count=len(items))

    def _take_records(self, kind: EventKind, items: list[Any]) -> None:
        columns = self._columns[kind]
        for name, place in _PLACES[kind].items():
            values: Iterable[int] = map(attrgetter(place), items)
            if name.endswith("handle"):
                values = map(self._handles.__getitem__, values)
            column = np.fromiter(values, np.int64, len(items))
            columns[name].append(column)

    # A process.

    def end_process(self) -> None:
        """Add its records to the trace; what follows is of another one."""
        key = object()
        process = self._described_process()
        gpu_of_handle = self._gpu_of_handle(process.machine)
        lanes = []
        gpus = []
        for handle in self._handles:
            is_usable = 0 <= handle < rocprof.MOST_ID
            if is_usable:
                lanes.append(handle)
            else:
                lanes.append(NONE)
            gpus.append(gpu_of_handle.get(handle, NONE))
        lane_of_number = np.array(lanes, dtype=np.int64)
        gpu_of_number = np.array(gpus, dtype=np.int64)
        for kind, pieces in self._columns.items():
            if not pieces:
                continue
            columns: dict[str, Int64Array] = {}
            for name, column_pieces in pieces.items():
                column = np.concatenate(column_pieces)
                if name == "lane handle":
                    columns["lane"] = lane_of_number[column]
                elif name.endswith(" handle"):
                    columns[name.removesuffix(" handle")] = gpu_of_number[column]
                else:
                    columns[name] = column
            number = self.records.process(key, process.pid, process.command)
            columns["process"] = np.full_like(columns["start"], number)
            self._name_records(kind, columns)
            self.records.add(kind, columns)
        self._begin_process()

    def _name_records(self, kind: EventKind, columns: dict[str, Int64Array]) -> None:
        """Add the columns `name` and, but for kernels, `domain`."""
        if kind == EventKind.KERNEL:
            columns["name"] = looked_up(columns["kernel"], self._kernel_names)
            return
        columns["domain"], columns["name"] = self._domains_and_names(columns)
        if kind == EventKind.RUNTIME:
            self._name_markers(columns)

    def _name_markers(self, columns: dict[str, Int64Array]) -> None:
        """Give roctx ranges and marks their message as a name."""
        message_of_id = {item.key: item.value for item in self._items[_Message]}
        names = self.records.builder.names
        name = columns["name"]
        kind = self.records.kinds(columns["domain"])
        markers = np.flatnonzero(kind == EventKind.USER_ANNOTATION)
        ids = columns["correlation"][markers]
        for row, marker_id in zip(markers.tolist(), ids.tolist(), strict=True):
            message = message_of_id.get(marker_id)
            if message:
                name[row] = names[message]

    def _described_process(self) -> _Process:
        """Return what the metadata says of the process."""
        metadata = self._metadata if isinstance(self._metadata, dict) else {}
        pid = metadata.get("pid")
        if not isinstance(pid, int):
            pid = "?"
        command = ""
        if isinstance(metadata.get("command"), list):
            command = " ".join(map(str, metadata["command"]))
        machine = ""
        if isinstance(metadata.get("node"), dict):
            machine = str(metadata["node"].get("machine_id"))
        return _Process(pid=pid, command=encodable(command), machine=machine)

    def _gpu_of_handle(self, machine: str) -> dict[int, int]:
        """Return the number of each GPU of the process by the handle of its agent."""
        agents = {agent.id.handle: agent for agent in self._items[rocprof.Agent]}
        gpu_of_handle = {}
        for handle, agent in agents.items():
            ordinal = agent.logical_node_type_id
            if agent.type == rocprof.GPU_AGENT and 0 <= ordinal < rocprof.MOST_GPUS:
                gpu_of_handle[handle] = self.records.device(machine, ordinal, agent)
        return gpu_of_handle

    def _domains_and_names(self, columns: dict[str, Int64Array]) -> Int64Array:
        """Return the codes of each record's kind and operation, which are indices, (2, n)."""
        builder = self.records.builder
        kinds: list[_Operations] = self._items[_Operations]
        distinct, index = distinct_rows(columns["kind"], columns["operation"])
        codes = []
        for kind, operation in distinct:
            described = _Operations()
            if 0 <= kind < len(kinds):
                described = kinds[kind]
            domain = builder.categories[described.kind or f"kind {kind}"]
            name = builder.names[described.name_of(operation)]
            codes.append((domain, name))
        return np.array(codes, dtype=np.int64)[index].T

    def _kernel_names(self, ids: Int64Array) -> list[int]:
        """Return the codes of the names of kernels."""
        names = self.records.builder.names
        symbols = {
            symbol.kernel_id: symbol.shown_name for symbol in self._items[_Symbol]
        }
        codes = []
        for number in ids.tolist():
            shown_name = symbols.get(number)
            codes.append(names[rocprof.kernel_name(shown_name, number)])
        return codes
