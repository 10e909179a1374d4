"""Reader of the JSON of rocprofv3 (`--output-format json`), plain or gzipped, in bounded memory.

Supports: one or more processes; kernel dispatches, memory copies, and the calls of all APIs
(`hip_api`, `hsa_api`, `rccl_api` …); roctx ranges and marks, which have their message among the
`strings`. Names of calls are indices into `strings.buffer_records`, kernels are looked up by id.
Ignores: all other records, counted with what they are; arguments of calls.
Format: `rocprofiler-sdk-tool` of ROCprofiler-SDK, `source/lib/output/generateJSON.cpp`.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from io import BytesIO
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.readers.builder import Interner, distinct_rows, looked_up
from tracelens_ext.readers.json_events import ANY_CUT, SLICE_BYTES, EventStream
from tracelens_ext.readers.kineto.reader import plain
from tracelens_ext.readers.rocprof.records import (
    COLUMNS,
    DISPATCH,
    LEFT_OUT,
    MOST_GPUS,
    MOST_ID,
    Agent,
    Call,
    Dispatch,
    Message,
    Operations,
    RocprofRecords,
    Symbol,
    kernel_name,
    type_of,
)
from tracelens_ext.readers.source import ByteSource, salvage_notes
from tracelens_ext.settings import AS_USUAL, ReadingOptions
from tracelens_ext.text import encodable
from tracelens_ext.trace import NONE, EventKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tracelens_ext.trace import Int64Array, Trace

FORMAT = "rocprofv3 JSON"
ROOT = "rocprofiler-sdk-tool"

_GPU = 2
#: Objects of a process whose members are read one by one.
_WALKED = ("strings", "buffer_records", "callback_records")


def read(source: ByteSource) -> Trace:
    """Read a document."""
    records = RocprofRecords()
    decoder = _Decoder(records)
    stream = _RecordStream(source, decoder, SLICE_BYTES)
    for items in stream:
        decoder.process.take(decoder.path, items)
    decoder.end_process()
    present = records.builder.present
    records.notes += salvage_notes(source, stream.damage, stream.place, present)
    return records.finish(source.path, FORMAT, source.bytes_read)


def from_document(
    document: Mapping[str, object], path: str, reading: ReadingOptions = AS_USUAL
) -> Trace:
    """The trace of a loaded document."""
    try:
        text = msgspec.json.encode(document)
    except (TypeError, ValueError, RecursionError) as error:
        raise TraceFormatError(
            path, f"is no JSON document ({error})", "give it as loaded"
        ) from None
    with ByteSource(BytesIO(text), reading=reading) as source:
        source.path = path
        return read(source)


class _Decoder:
    """Decodes the items of the list that is being read.

    `path` is where the list is in `process`, such as `("buffer_records", "hip_api")`.
    """

    def __init__(self, records: RocprofRecords) -> None:
        self._records = records
        self._known: dict[type, msgspec.json.Decoder[list[Any]]] = {}
        self._type: type = msgspec.Raw
        self.path: tuple[str, ...] = ()
        self._count = 0
        self.process = _Process(records, 0)

    def begin_list(self, path: tuple[str, ...]) -> None:
        """The next items are of this list."""
        self.path, self._type = path, type_of(path)
        if self._type not in self._known:
            self._known[self._type] = msgspec.json.Decoder(list[self._type])  # type: ignore[name-defined]

    def end_process(self) -> None:
        """The next items are of another process."""
        self.process.finish()
        self._count += 1
        self.process = _Process(self._records, self._count)

    def decode(self, text: bytes) -> list[Any]:
        return self._known[self._type].decode(text)

    def repair(self, events: list[object]) -> list[Any]:
        """Items with texts for numbers, say; those of another form are counted."""
        found = []
        for event in events:
            with suppress(msgspec.MsgspecError, TypeError, ValueError, RecursionError):
                text = msgspec.json.encode(plain(event))
                found.append(msgspec.json.decode(text, type=self._type, strict=False))
        self._records.drop("records of another form", len(events) - len(found))
        return found


class _RecordStream(EventStream[list[Any]]):
    """The items of all lists of all processes of a document."""

    _decoder: _Decoder

    def __init__(self, source: ByteSource, decoder: _Decoder, slice_bytes: int) -> None:
        super().__init__(source, decoder, slice_bytes)
        self._path: tuple[str, ...] = ()

    def _member(self, key: str) -> Iterator[list[Any]]:
        outer, self._path = self._path, (*self._path, key)
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
            self._decoder.process.metadata = self._value()
        else:
            self._value()
        self._path = outer

    def _list(self, path: tuple[str, ...]) -> Iterator[list[Any]]:
        if path[0] == "buffer_records" and not self.found_events:
            self.found_events = True
            self._count = 0  # of records, and not of what they refer to
        self._decoder.begin_list(path)
        # A slice that was read for a short list before this one is read again.
        self._source.unread(self._rest[1:])
        self._rest, self._at_end, self._cut = self._rest[:1], False, ANY_CUT
        yield from self._array()

    def _holds_events(self) -> bool:
        return self.found_events and super()._holds_events()

    def _processes(self) -> Iterator[list[Any]]:
        self._rest = self._rest[1:]
        while (byte := self._next_byte()) == b"{":
            self._rest = self._rest[1:]
            yield from self._object()
            self._decoder.end_process()
            if self._next_byte() == b",":
                self._rest = self._rest[1:]
        if not byte:
            self._cut_off()
        if byte != b"]":
            self._refuse("is not valid JSON", "record the trace again or repair the file")
        self._rest = self._rest[1:]


class _Process:
    """The records of one process, as columns until all that they refer to is known."""

    def __init__(self, records: RocprofRecords, number: int) -> None:
        self._records, self._number = records, number
        self.metadata: object = None
        self._agents: dict[int, Agent] = {}
        self._symbols: dict[int, Symbol] = {}
        self._operations: list[Operations] = []
        self._messages: dict[int, str] = {}
        self._handles: Interner[int] = Interner()
        self._columns: dict[type, dict[str, list[Int64Array]]] = {
            kind: defaultdict(list) for kind in COLUMNS
        }

    def take(self, path: tuple[str, ...], items: list[Any]) -> None:
        """Take items of a list."""
        kind = type_of(path)
        if kind in COLUMNS:
            self._take_records(kind, items)
        elif kind is Agent:
            self._agents |= {item.id.handle: item for item in items}
        elif kind is Symbol:
            self._symbols |= {item.kernel_id: item for item in items}
        elif kind is Operations:
            self._operations += items
        elif kind is Message:
            self._messages |= {item.key: item.value for item in items}
        elif path[0] in ("buffer_records", "callback_records"):
            self._records.drop(LEFT_OUT.get(path[-1], "records of another kind"), len(items))

    def _take_records(self, kind: type, items: list[Any]) -> None:
        for name, place in COLUMNS[kind].items():
            values: Iterable[int] = map(attrgetter(place), items)
            if name.endswith("handle"):
                values = map(self._handles.__getitem__, values)
            self._columns[kind][name].append(np.fromiter(values, np.int64, len(items)))

    def finish(self) -> None:
        """Add the records to the trace."""
        about = self.metadata if isinstance(self.metadata, dict) else {}
        pid, command, node = about.get("pid"), about.get("command"), about.get("node")
        words = map(str, command) if isinstance(command, list) else ()
        machine = str(node.get("machine_id")) if isinstance(node, dict) else ""
        devices = {
            handle: self._records.device(machine, agent.logical_node_type_id)
            for handle, agent in self._agents.items()
            if agent.type == _GPU and 0 <= agent.logical_node_type_id < MOST_GPUS
        }
        for handle, device in devices.items():
            self._records.describe(self._agents[handle].device(device))
        handles = list(self._handles)
        numbers = np.array([h if 0 <= h < MOST_ID else NONE for h in handles], dtype=np.int64)
        device_of = np.array([devices.get(handle, NONE) for handle in handles], dtype=np.int64)
        for kind, pieces in self._columns.items():
            if not pieces:
                continue
            columns = {name: np.concatenate(column) for name, column in pieces.items()}
            process = self._records.process(
                self._number, pid if isinstance(pid, int) else "?", encodable(" ".join(words))
            )
            columns["process"] = np.full(len(columns["start"]), process)
            if kind is Call:
                self._add_calls(columns)
            elif kind is Dispatch:
                self._add_dispatches(columns, device_of, numbers)
            else:
                self._add_copies(columns, device_of, numbers)

    def _add_calls(self, columns: dict[str, Int64Array]) -> None:
        builder = self._records.builder
        columns["domain"], columns["name"] = self._words(columns)
        kinds = self._records.kinds(columns["domain"])
        markers = np.flatnonzero(kinds == EventKind.USER_ANNOTATION)
        ids = columns["correlation"][markers].tolist()
        for row, message in zip(markers.tolist(), map(self._messages.get, ids), strict=True):
            if message:
                columns["name"][row] = builder.names[message]
        self._records.add_calls(columns)

    def _words(self, columns: dict[str, Int64Array]) -> tuple[Int64Array, Int64Array]:
        """The codes of each record's kind, and of its operation, which are indices in tables."""
        builder = self._records.builder
        distinct, number = distinct_rows(columns["kind"], columns["operation"])
        codes = []
        for kind, operation in distinct:
            known = self._operations[kind] if 0 <= kind < len(self._operations) else Operations()
            names = known.operations
            name = names[operation] if 0 <= operation < len(names) else f"operation {operation}"
            word = known.kind or f"kind {kind}"
            codes.append((builder.categories[word], builder.names[name]))
        table = np.array(codes, dtype=np.int64).reshape(-1, 2)[number]
        return table[:, 0], table[:, 1]

    def _add_dispatches(
        self, columns: dict[str, Int64Array], device_of: Int64Array, number_of: Int64Array
    ) -> None:
        names = self._records.builder.names
        columns["name"] = looked_up(
            columns["kernel"], lambda ids: [names[self._kernel_name(n)] for n in ids.tolist()]
        )
        columns["domain"] = np.full(
            len(columns["name"]), self._records.builder.categories[DISPATCH]
        )
        columns["device"] = device_of[columns["agent handle"]]
        columns["lane"] = number_of[columns["queue handle"]]
        self._records.add_work(EventKind.KERNEL, columns)

    def _kernel_name(self, kernel_id: int) -> str:
        found = self._symbols.get(kernel_id, Symbol())
        shown = found.formatted_kernel_name or found.demangled_kernel_name or found.kernel_name
        return kernel_name(shown, kernel_id)

    def _add_copies(
        self, columns: dict[str, Int64Array], device_of: Int64Array, number_of: Int64Array
    ) -> None:
        columns["domain"], columns["name"] = self._words(columns)
        source, target = device_of[columns["source handle"]], device_of[columns["target handle"]]
        columns["device"] = self._records.device_of_copy(columns["name"], source, target)
        columns["lane"] = number_of[columns["stream handle"]]
        self._records.add_work(EventKind.MEMCPY, columns)
