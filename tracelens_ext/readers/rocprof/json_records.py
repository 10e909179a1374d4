"""Reader of the JSON of rocprofv3 (`--output-format json`), plain or gzipped, in bounded memory.

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
from typing import Annotated, Any

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

_GPU = 2
#: Objects of a process whose members are read one by one.
_WALKED = ("strings", "buffer_records", "callback_records")
_Whole = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
#: What a number is where a record does not tell it.
_DEFAULTS = dict.fromkeys(("start_timestamp", "end_timestamp", "x", "y", "z"), MISSING)
_DEFAULTS |= dict.fromkeys(("kind", "operation", "bytes"), -1)
_OF_ALL = {"start": "start_timestamp", "end": "end_timestamp", "kind": "kind"}
_OF_ALL |= {"operation": "operation", "correlation": "correlation_id.internal"}
#: Column → where a record has it. Handles can be any number of 64 bits: they are numbered.
_COLUMNS = {
    EventKind.RUNTIME: _OF_ALL | {"thread": "thread_id"},
    EventKind.KERNEL: _OF_ALL
    | {
        "kernel": "dispatch_info.kernel_id",
        "device handle": "dispatch_info.agent_id.handle",
        "lane handle": "dispatch_info.queue_id.handle",
        **{name: f"dispatch_info.{name[:-2]}.{name[-1]}" for name in rocprof.GEOMETRY},
    },
    EventKind.MEMCPY: _OF_ALL
    | {
        "source handle": "src_agent_id.handle",
        "target handle": "dst_agent_id.handle",
        "lane handle": "stream_id.handle",
        "bytes": "bytes",
    },
}


def _record(places: Iterable[str]) -> type:
    """A type with a whole number at each of these places, dots between the names on the way."""
    inner: dict[str, list[str]] = {}
    for place in places:
        name, _, rest = place.partition(".")
        inner.setdefault(name, []).extend([rest] * bool(rest))
    members: list[tuple[str, Any, Any]] = []
    for name, within in inner.items():
        if within:
            members.append((name, made := _record(within), made()))
        else:
            number: Any = int if name == "handle" else _Whole
            members.append((name, number, _DEFAULTS.get(name, 0)))
    return msgspec.defstruct("Record", members, frozen=True)


_RECORDS = {_record(places.values()): kind for kind, places in _COLUMNS.items()}
_CALL, _DISPATCH, _COPY = _RECORDS


_SHOWN_NAMES = ("formatted_kernel_name", "demangled_kernel_name", "kernel_name")
_NAMES_OF_SYMBOL = [(name, str | None, None) for name in _SHOWN_NAMES]
_SYMBOL = msgspec.defstruct("Symbol", [("kernel_id", _Whole, -1), *_NAMES_OF_SYMBOL])
#: A kind of records, and the names of its operations.
_OPERATIONS = msgspec.defstruct("Operations", [("kind", str, ""), ("operations", list[str], [])])
#: The text of a roctx range or mark, by its correlation id.
_MESSAGE = msgspec.defstruct("Message", [("key", _Whole, -1), ("value", str, "")])

_TYPES: dict[tuple[str, ...], type] = {
    ("agents",): rocprof.Agent,
    ("kernel_symbols",): _SYMBOL,
    ("strings", "buffer_records"): _OPERATIONS,
    ("strings", "marker_api"): _MESSAGE,
    ("buffer_records", "kernel_dispatch"): _DISPATCH,
    ("buffer_records", "memory_copy"): _COPY,
}
#: Why records of a kind are left out.
_LEFT_OUT = dict.fromkeys(("memory_allocation", "scratch_memory"), rocprof.ALLOCATION)
_LEFT_OUT["counter_collection"] = rocprof.COUNTER


def _type_of(path: tuple[str, ...]) -> type:
    """What the items of a list are, by its place in a process; `Raw` of those that are not read."""
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
    records.notes += salvage_notes(source, document.damage, document.place, records.builder.present)
    return records.finish(source.path, FORMAT, source.bytes_read)


def from_document(
    document: Mapping[str, object], path: str, reading: ReadingOptions = DEFAULT_READING_OPTIONS
) -> Trace:
    """The trace of a loaded document."""
    try:
        text = msgspec.json.encode(document)
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"is no JSON document ({error})"
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
        self._columns: Pieces = {kind: defaultdict(list) for kind in _COLUMNS}

    # What is where.

    def _member(self, key: str) -> Iterator[list[Any]]:
        outer = self._path
        self._path = (*self._path, key)
        path = self._path[1:]
        opening = self._next_byte()
        if self._path == (ROOT,) and opening == b"[":
            yield from self._processes()
        elif opening == b"{" and (self._path == (ROOT,) or (len(path) == 1 and key in _WALKED)):
            self._rest = self._rest[1:]
            yield from self._object()
        elif opening == b"[" and path:
            yield from self._list(path)
        elif path == ("metadata",):
            self._metadata = self._value()
        else:
            self._value()
        self._path = outer

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
            self._refuse("is not valid JSON", "record the trace again or repair the file")
        self._rest = self._rest[1:]

    # Items of the list that `_list_path` says.

    def decode(self, text: bytes) -> list[Any]:
        return _decoder_of(_type_of(self._list_path)).decode(text)

    def repair(self, events: list[object]) -> list[Any]:
        """Items with texts for numbers, say; those of another form are counted."""
        kind = _type_of(self._list_path)
        found: list[Any] = []
        for event in events:
            with suppress(msgspec.MsgspecError, TypeError, ValueError, RecursionError):
                text = msgspec.json.encode(plain(event))
                found.append(msgspec.json.decode(text, type=kind, strict=False))
        self.records.drop("records of another form", len(events) - len(found))
        return found

    def take(self, items: list[Any]) -> None:
        """Take items."""
        path = self._list_path
        kind = _type_of(path)
        if kind in _RECORDS:
            of_kind = _RECORDS[kind]
            for name, place in _COLUMNS[of_kind].items():
                values: Iterable[int] = map(attrgetter(place), items)
                if name.endswith("handle"):
                    values = map(self._handles.__getitem__, values)
                self._columns[of_kind][name].append(np.fromiter(values, np.int64, len(items)))
        elif kind is not msgspec.Raw:
            self._items[kind] += items
        elif path[0] in ("buffer_records", "callback_records"):
            self.records.drop(_LEFT_OUT.get(path[-1], "records of another kind"), len(items))

    # A process.

    def end_process(self) -> None:
        """Add its records to the trace; what follows is of another one."""
        key = object()
        (label, devices) = self._described()
        handles = list(self._handles)
        records = self.records
        names = self.records.builder.names
        numbers = [handle if 0 <= handle < rocprof.MOST_ID else NONE for handle in handles]
        gpus = [devices.get(handle, NONE) for handle in handles]
        messages = {item.key: item.value for item in self._items[_MESSAGE]}
        for kind, pieces in self._columns.items():
            if not pieces:
                continue
            columns = {name: np.concatenate(column) for name, column in pieces.items()}
            columns["process"] = np.full_like(columns["start"], records.process(key, *label))
            for name in [name for name in columns if name.endswith("handle")]:
                of_handle = np.array(numbers if name.startswith("lane") else gpus, dtype=np.int64)
                columns[name.removesuffix(" handle")] = of_handle[columns[name]]
            if kind == EventKind.KERNEL:
                columns["name"] = looked_up(columns["kernel"], self._kernel_names)
            else:
                columns["domain"], columns["name"] = self._names(columns)
            if kind == EventKind.RUNTIME:
                markers = records.kinds(columns["domain"]) == EventKind.USER_ANNOTATION
                for row in np.flatnonzero(markers).tolist():
                    if message := messages.get(int(columns["correlation"][row])):
                        columns["name"][row] = names[message]
            records.add(kind, columns)
        self._begin_process()

    def _described(self) -> tuple[tuple[int | str, str], dict[int, int]]:
        """The id and the command of the process, and the numbers of its GPUs by their handles."""
        about = self._metadata if isinstance(self._metadata, dict) else {}
        pid = about.get("pid")
        command = about.get("command")
        node = about.get("node")
        words = map(str, command) if isinstance(command, list) else ()
        machine = str(node.get("machine_id")) if isinstance(node, dict) else ""
        agents = {agent.id.handle: agent for agent in self._items[rocprof.Agent]}
        devices = {
            handle: self.records.device(machine, agent.logical_node_type_id, agent)
            for handle, agent in agents.items()
            if agent.type == _GPU and 0 <= agent.logical_node_type_id < rocprof.MOST_GPUS
        }
        return (pid if isinstance(pid, int) else "?", encodable(" ".join(words))), devices

    def _names(self, columns: dict[str, Int64Array]) -> Int64Array:
        """The codes of each record's kind, and of its operation: they are indices in tables."""
        builder = self.records.builder
        operations = self._items[_OPERATIONS]
        distinct, number = distinct_rows(columns["kind"], columns["operation"])
        codes = []
        for kind, operation in distinct:
            known: Any = operations[kind] if 0 <= kind < len(operations) else _OPERATIONS()
            of_kind = known.operations
            name = of_kind[operation] if 0 <= operation < len(of_kind) else f"operation {operation}"
            codes.append((builder.categories[known.kind or f"kind {kind}"], builder.names[name]))
        return np.array(codes, dtype=np.int64)[number].T

    def _kernel_names(self, ids: Int64Array) -> list[int]:
        spellings = attrgetter(*_SHOWN_NAMES)
        known = {symbol.kernel_id: spellings(symbol) for symbol in self._items[_SYMBOL]}
        names = self.records.builder.names
        codes = []
        for number in ids.tolist():
            formatted, demangled, own = known.get(number, (None, None, None))
            codes.append(names[rocprof.kernel_name(formatted or demangled or own, number)])
        return codes
