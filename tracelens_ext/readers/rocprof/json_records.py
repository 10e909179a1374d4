"""Reads the JSON of rocprofv3 (`--output-format json`), plain or gzipped, in bounded memory.

Supports: one or more processes; kernel dispatches, memory copies, and the calls of all APIs
(`hip_api`, `hsa_api`, `rccl_api` …); roctx ranges and marks.

* A record has indices instead of names: those of calls and copies refer to
  `strings.buffer_records`, those of kernels to `kernel_symbols`.
* The message of a roctx range or mark is in `strings.marker_api`, by correlation id.

Ignores: arguments of calls, and all other records, which are counted by kind.
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
from tracelens_ext.readers.builder import Interner, distinct_rows, map_distinct_ids
from tracelens_ext.readers.json_events import ANY_CUT, EventStream
from tracelens_ext.readers.json_text import REMEDY_DAMAGED
from tracelens_ext.readers.kineto.values import plain
from tracelens_ext.readers.rocprof import records as rocprof
from tracelens_ext.readers.salvage import salvage_notes
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.readers.tables import MISSING
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.text import encodable
from tracelens_ext.trace import NONE, EventKind, Int64Array, Trace

#: Kind of records → column → its parts, one for each batch of records.
ColumnParts = dict[EventKind, dict[str, list[Int64Array]]]

FORMAT = "rocprofv3 JSON"
ROOT = "rocprofiler-sdk-tool"

#: Members of a process that contain the lists of records, and the lists that the records refer to.
_OBJECTS_WITH_LISTS = ("strings", "buffer_records", "callback_records")
_WholeNumber = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
#: Number that a record has if the document leaves it out; 0 for all others.
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
#: Column → member of a record. Dots separate the names of nested members.
_MEMBERS_OF_ALL = {
    "start": "start_timestamp",
    "end": "end_timestamp",
    "kind": "kind",
    "operation": "operation",
    "correlation": "correlation_id.internal",
}
_MEMBERS_OF_CALLS = _MEMBERS_OF_ALL | {"thread": "thread_id"}
_MEMBERS_OF_DISPATCHES = _MEMBERS_OF_ALL | {
    "kernel": "dispatch_info.kernel_id",
    "device handle": "dispatch_info.agent_id.handle",
    "lane handle": "dispatch_info.queue_id.handle",
}
for _name in rocprof.GEOMETRY:  # `grid_size_x` is `dispatch_info.grid_size.x`
    _size, _, _axis = _name.rpartition("_")
    _MEMBERS_OF_DISPATCHES[_name] = f"dispatch_info.{_size}.{_axis}"
_MEMBERS_OF_COPIES = _MEMBERS_OF_ALL | {
    "source handle": "src_agent_id.handle",
    "target handle": "dst_agent_id.handle",
    "lane handle": "stream_id.handle",
    "bytes": "bytes",
}
#: Columns of each kind of record. A handle may be any number of 64 bits, even one that is too large
#: for a column of signed numbers. Handles are therefore replaced by small numbers.
_MEMBERS_OF_KIND = {
    EventKind.RUNTIME: _MEMBERS_OF_CALLS,
    EventKind.KERNEL: _MEMBERS_OF_DISPATCHES,
    EventKind.MEMCPY: _MEMBERS_OF_COPIES,
}


def _record_type(members: Iterable[str]) -> type:
    """Return a msgspec type for records with these members, all of them whole numbers.

    Example: `thread_id` and `dispatch_info.kernel_id` give a type with the fields `thread_id` and
    `dispatch_info`; the latter is a type with the field `kernel_id`.
    """
    nested_members: dict[str, list[str]] = {}
    for member in members:
        name, _, nested_member = member.partition(".")
        nested = nested_members.setdefault(name, [])
        if nested_member:
            nested.append(nested_member)
    fields: list[tuple[str, Any, Any]] = []
    for name, nested in nested_members.items():
        if nested:
            nested_type = _record_type(nested)
            fields.append((name, nested_type, nested_type()))
        elif name == "handle":
            fields.append((name, int, 0))
        else:
            default = _DEFAULTS.get(name, 0)
            fields.append((name, _WholeNumber, default))
    return msgspec.defstruct("Record", fields, frozen=True)


_CALL = _record_type(_MEMBERS_OF_CALLS.values())
_DISPATCH = _record_type(_MEMBERS_OF_DISPATCHES.values())
_COPY = _record_type(_MEMBERS_OF_COPIES.values())
_KIND_OF_RECORD = {
    _CALL: EventKind.RUNTIME,
    _DISPATCH: EventKind.KERNEL,
    _COPY: EventKind.MEMCPY,
}


class _Symbol(msgspec.Struct):
    """A kernel, with its name in up to three spellings."""

    kernel_id: _WholeNumber = -1
    formatted_kernel_name: str | None = None
    demangled_kernel_name: str | None = None
    kernel_name: str | None = None

    @property
    def shown_name(self) -> str | None:
        """The most readable spelling of the name that the document has."""
        return (
            self.formatted_kernel_name or self.demangled_kernel_name or self.kernel_name
        )


class _Operations(msgspec.Struct):
    """A kind of records (`HIP_RUNTIME_API`), and the names of its operations (`hipFree`)."""

    kind: str = ""
    operations: list[str] = []

    def name_of(self, operation: int) -> str:
        """The name of an operation by its index, or a substitute if the document has no name."""
        if 0 <= operation < len(self.operations):
            return self.operations[operation]
        return f"operation {operation}"


class _Message(msgspec.Struct):
    """The text of a roctx range or mark, by its correlation id."""

    key: _WholeNumber = -1
    value: str = ""


class _Process(NamedTuple):
    """The description of a process in the document."""

    pid: int | str
    command: str
    machine: str


class _ResolvedHandles(NamedTuple):
    """The meaning of the handles of a process, by the small numbers that replace them."""

    lane: Int64Array  #: the handle as the id of a queue or stream; `NONE` if it is too large
    gpu: Int64Array  #: the GPU whose handle it is; `NONE` if it is not that of a GPU


#: Path of a list within a process → type of its items.
_ITEM_TYPES: dict[tuple[str, ...], type] = {
    ("agents",): rocprof.Agent,
    ("kernel_symbols",): _Symbol,
    ("strings", "buffer_records"): _Operations,
    ("strings", "marker_api"): _Message,
    ("buffer_records", "kernel_dispatch"): _DISPATCH,
    ("buffer_records", "memory_copy"): _COPY,
}
#: Lists of records that are dropped, and the reason.
_REASON_OF_DROPPED_LIST = {
    "memory_allocation": rocprof.ALLOCATION,
    "scratch_memory": rocprof.ALLOCATION,
    "counter_collection": rocprof.COUNTER,
}


def _item_type(path: tuple[str, ...]) -> type:
    """Return the type of the items of a list, by the path of the list within its process.

    The type is `Raw` for a list whose items are not read.
    """
    if path[0] == "buffer_records" and path[-1].endswith("_api"):
        return _CALL
    return _ITEM_TYPES.get(path, msgspec.Raw)


def read(source: ByteSource) -> Trace:
    """Read a JSON document of rocprofv3."""
    document = _Document(source)
    records = document.records
    for items in document:
        document.add_items(items)
    document.finish_process()
    records.notes += salvage_notes(
        source=source,
        damage=document.damage,
        end_of_text=document.place,
        events=records.builder.present,
    )
    return records.finish(source.path, FORMAT, source.bytes_read)


def from_document(
    document: Mapping[str, object],
    path: str,
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
) -> Trace:
    """Return the trace of a document that is already parsed.

    Args:
        document: the parsed JSON.
        path: what messages call the document.
        reading: the options of the reader.

    Raises:
        TraceFormatError: the document is not JSON, or has no events.
    """
    try:
        text = msgspec.json.encode(document)
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"is not a JSON document ({error})"
        raise TraceFormatError(path, problem, "give it as loaded") from None
    with ByteSource(BytesIO(text), reading=reading) as source:
        source.path = path
        return read(source)


@cache
def _list_decoder(item_type: type) -> msgspec.json.Decoder[list[Any]]:
    return msgspec.json.Decoder(list.__class_getitem__(item_type))


class _Document(EventStream[list[Any]]):
    """The items of all lists of all processes of a document, in the order of the file.

    It is an `EventStream` and its own decoder, since the type of the items depends on the list.
    A process may list its records before the names that they refer to. Its records are therefore
    kept as columns until the process ends, and only then added to `records`.
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
        self._columns: ColumnParts = {}
        for kind in _MEMBERS_OF_KIND:
            self._columns[kind] = defaultdict(list)

    # Walking through the document.

    def _events_of_member(self, key: str) -> Iterator[list[Any]]:
        """Read a member of an object, whose key was just read; yield the items in its lists."""
        outer_path = self._path
        self._path = (*self._path, key)
        path = self._path[1:]
        is_root = self._path == (ROOT,)
        has_lists = len(path) == 1 and key in _OBJECTS_WITH_LISTS
        opening = self._text.next_byte()
        if is_root and opening == b"[":
            yield from self._processes()
        elif opening == b"{" and (is_root or has_lists):
            yield from self._events_of_object()
        elif opening == b"[" and path:
            yield from self._list(path)
        elif path == ("metadata",):
            self._metadata = self._text.read_value()
        else:
            # The program does not need the value; it is read to get to the next member.
            self._text.read_value()
        self._path = outer_path

    def _list(self, path: tuple[str, ...]) -> Iterator[list[Any]]:
        """Yield the items of the list that begins here."""
        text = self._text
        self._list_path = path
        if path[0] == "buffer_records" and not self.found_events:
            self.found_events = True
            text.event_count = 0  # counts records only, not the names before them
        # The base class looks for the end of an event only in text that it reads for a slice, so
        # text that was read ahead for an earlier list is put back, except for the bracket.
        text.put_back(text.rest[1:])
        text.rest = text.rest[:1]
        self._cut_pattern = ANY_CUT
        yield from self._events_of_array()

    def _can_salvage_events(self) -> bool:
        return self.found_events and super()._can_salvage_events()

    def _processes(self) -> Iterator[list[Any]]:
        """Yield the items in the lists of an array of processes."""
        text = self._text
        text.skip_byte()
        byte = text.next_byte()
        while byte == b"{":
            yield from self._events_of_object()
            self.finish_process()
            if text.next_byte() == b",":
                text.skip_byte()
            byte = text.next_byte()
        if not byte:
            text.refuse_as_cut_off()
        if byte != b"]":
            text.refuse("is not valid JSON", REMEDY_DAMAGED)
        text.skip_byte()

    # Decoding the items of the current list, whose path is `_list_path`.

    def decode(self, text: bytes) -> list[Any]:
        return _list_decoder(_item_type(self._list_path)).decode(text)

    def repair(self, events: list[object]) -> list[Any]:
        """Return items that `decode` refused, converted (such as texts to numbers).

        Items that cannot be converted are dropped and counted.
        """
        item_type = _item_type(self._list_path)
        repaired: list[Any] = []
        for event in events:
            with suppress(msgspec.MsgspecError, TypeError, ValueError, RecursionError):
                text = msgspec.json.encode(plain(event))
                repaired.append(msgspec.json.decode(text, type=item_type, strict=False))
        self.records.drop("records with another layout", len(events) - len(repaired))
        return repaired

    def add_items(self, items: list[Any]) -> None:
        """Keep the items of the current list until the process ends, or drop and count them."""
        path = self._list_path
        list_name = path[-1]
        item_type = _item_type(path)
        if item_type in _KIND_OF_RECORD:
            self._add_to_columns(_KIND_OF_RECORD[item_type], items)
        elif item_type is not msgspec.Raw:
            self._items[item_type] += items
        elif path[0] in ("buffer_records", "callback_records"):
            reason = _REASON_OF_DROPPED_LIST.get(list_name, "records of another kind")
            self.records.drop(reason=reason, count=len(items))

    def _add_to_columns(self, kind: EventKind, items: list[Any]) -> None:
        """Append records of a kind to the columns of the process."""
        columns = self._columns[kind]
        for name, member in _MEMBERS_OF_KIND[kind].items():
            values: Iterable[int] = map(attrgetter(member), items)
            if name.endswith("handle"):
                values = map(self._handles.__getitem__, values)
            column = np.fromiter(values, np.int64, len(items))
            columns[name].append(column)

    # Making events of the records of a process.

    def finish_process(self) -> None:
        """Add the records of the current process to `records`, and begin another process."""
        process = self._described_process()
        key = object()  # each process of the document is distinct, whatever its pid
        lane_of_number, gpu_of_number = self._resolved_handles(process.machine)
        for kind, parts_of_column in self._columns.items():
            if not parts_of_column:
                continue
            columns: dict[str, Int64Array] = {}
            for name, parts in parts_of_column.items():
                column = np.concatenate(parts)
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

    def _resolved_handles(self, machine: str) -> _ResolvedHandles:
        """Return the meaning of the handles that the records of the process contain."""
        gpu_of_handle = self._gpu_of_handle(machine)
        lanes = []
        gpus = []
        for handle in self._handles:
            is_usable = 0 <= handle < rocprof.MOST_ID
            if is_usable:
                lanes.append(handle)
            else:
                lanes.append(NONE)
            gpus.append(gpu_of_handle.get(handle, NONE))
        return _ResolvedHandles(
            lane=np.array(lanes, dtype=np.int64), gpu=np.array(gpus, dtype=np.int64)
        )

    def _name_records(self, kind: EventKind, columns: dict[str, Int64Array]) -> None:
        """Add the column `name` and, except for kernels, the column `domain`."""
        if kind == EventKind.KERNEL:
            kernel_ids = columns["kernel"]
            columns["name"] = map_distinct_ids(kernel_ids, self._kernel_name_codes)
            return
        columns["domain"], columns["name"] = self._domains_and_names(columns)
        if kind == EventKind.RUNTIME:
            self._name_markers(columns)

    def _name_markers(self, columns: dict[str, Int64Array]) -> None:
        """Name roctx ranges and marks after their message."""
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
        """Return the description of the current process, from its metadata."""
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
        """Add the GPUs of the process to `records`; return their numbers by handle of the agent."""
        agents = {agent.id.handle: agent for agent in self._items[rocprof.Agent]}
        gpu_of_handle = {}
        for handle, agent in agents.items():
            ordinal = agent.logical_node_type_id
            if agent.type == rocprof.GPU_AGENT and 0 <= ordinal < rocprof.MOST_GPUS:
                gpu_of_handle[handle] = self.records.device(machine, ordinal, agent)
        return gpu_of_handle

    def _domains_and_names(self, columns: dict[str, Int64Array]) -> Int64Array:
        """Return the codes of the domain and of the name of each of n records, (2, n).

        The kind of a record is an index into the list of kinds; its operation is an index into the
        operations of that kind.
        """
        builder = self.records.builder
        kinds: list[_Operations] = self._items[_Operations]
        distinct, index = distinct_rows(columns["kind"], columns["operation"])
        codes = []
        for kind, operation in distinct:
            operations = _Operations()
            if 0 <= kind < len(kinds):
                operations = kinds[kind]
            domain = builder.categories[operations.kind or f"kind {kind}"]
            name = builder.names[operations.name_of(operation)]
            codes.append((domain, name))
        return np.array(codes, dtype=np.int64)[index].T

    def _kernel_name_codes(self, kernel_ids: Int64Array) -> list[int]:
        """Return the code of the name of each kernel."""
        names = self.records.builder.names
        symbols = {
            symbol.kernel_id: symbol.shown_name for symbol in self._items[_Symbol]
        }
        codes = []
        for kernel_id in kernel_ids.tolist():
            name = rocprof.kernel_name(symbols.get(kernel_id), kernel_id)
            codes.append(names[name])
        return codes
