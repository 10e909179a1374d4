"""Reads rocpd: the SQLite database that rocprofv3 writes by default since ROCm 7.

Supports: kernel dispatches, memory copies, calls, roctx ranges and marks. A file may contain
several processes; the names of the tables of a process end with its guid.

* Schema 3.0.x stores process, thread, agent, queue and stream in each row; schema 4.1.0 stores them
  in `rocpd_track`. The columns of each table decide, not the version.
* A dispatch belongs to the call (region) whose event has the same `stack_id`. `correlation_id` is
  not used: the profiled program sets it.

Ignores: views, arguments of calls and other samples than marks; counters and memory allocations,
which are counted.
Format: `source/share/rocprofiler-sdk-rocpd` of ROCm/rocm-systems.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec
import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.lazy import pd
from tracelens_ext.readers.builder import map_distinct_ids, map_distinct_rows
from tracelens_ext.readers.rocprof import records as rocprof
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.readers.sqlite_columns import Database
from tracelens_ext.readers.tables import MISSING
from tracelens_ext.text import NO_NAME, json_value, one_line
from tracelens_ext.trace import NONE, EventKind, Int64Array, Trace

Columns = dict[str, Int64Array]

FORMAT = "rocprofv3 database (rocpd)"

#: Tables whose rows are dropped, and the reason.
_REASON_OF_DROPPED_TABLE = {
    "rocpd_memory_allocate": rocprof.ALLOCATION,
    "rocpd_pmc_event": rocprof.COUNTER,
}
_STRING = "rocpd_string"
#: Columns that say where a record happened.
_LOCATION = ("pid", "tid", "agent_id", "queue_id", "stream_id")


class RocpdDatabase(Database):
    """A database of rocprofv3 that is open for reading."""

    format = "rocprofv3 database"
    remedy = f"record again with: {rocprof.RECORD}"

    def _is_ours(self) -> bool:
        has_regions = any(name.startswith("rocpd_region") for name in self.tables)
        return has_regions and bool(self.guids)

    @property
    def guids(self) -> list[str]:
        """The guids with which the names of tables end, one per recorded process, sorted."""
        names = [name for name in self.tables if name.startswith(_STRING)]
        return sorted(name.removeprefix(_STRING) for name in names)


def read(source: ByteSource) -> Trace:
    """Read a database."""
    with RocpdDatabase(source.path, source.file_or_bytes()) as database:
        records = rocprof.RocprofRecords()
        guids = database.guids
        for number, guid in enumerate(guids):
            dispatches = f"rocpd_kernel_dispatch{guid}"
            if dispatches not in database.tables:
                problem = f"is a damaged {database.format} (it has no table {one_line(dispatches)})"
                raise TraceFormatError(source.path, problem, database.remedy)
            if source.progress is not None:
                source.progress(database.size * number // len(guids), database.size)
            _Tables(database=database, guid=guid, records=records).read()
        versions = {_schema_version(database, guid) for guid in guids} - {""}
        format_name = FORMAT
        if versions:
            format_name += f" (schema {', '.join(sorted(versions))})"
        return records.finish(source.path, format_name, database.size)


def _schema_version(database: RocpdDatabase, guid: str) -> str:
    """Return the version of the schema of a process; empty if it is not stored."""
    table = f"rocpd_metadata{guid}"
    tags = database.words(table, "tag")
    values = database.words(table, "value")
    for tag, value in zip(tags, values, strict=True):
        if tag == "schema_version":
            return value
    return ""


class _Tables:
    """Reads the tables of one guid: those of one process, though several are read as well."""

    def __init__(
        self, database: RocpdDatabase, guid: str, records: rocprof.RocprofRecords
    ) -> None:
        self._database = database
        self._guid = guid
        self._records = records
        self._names = records.builder.names
        self._categories = records.builder.categories
        self._tracks = self._by_id("rocpd_track", *_LOCATION, "name_id")
        self._threads = self._by_id("rocpd_info_thread", "tid")
        self._events = self._by_id("rocpd_event", "stack_id", "category_id")
        self._processes: dict[int, int] = {}  # by row id of `rocpd_info_process`
        self._gpu_of_agent: dict[int, int] = {}

    def read(self) -> None:
        """Add all records."""
        self._describe_processes()
        self._describe_agents()
        self._read_calls()
        self._read_marks()
        self._read_dispatches()
        self._read_copies()
        for table, reason in _REASON_OF_DROPPED_TABLE.items():
            self._records.drop(reason, self._database.count(table + self._guid))

    # Records.

    def _read_calls(self) -> None:
        for chunk in self._chunks("rocpd_region", "start", "end", "name_id", "tid"):
            self._add_calls(chunk)

    def _read_marks(self) -> None:
        """Add the marks of roctx; other samples are not analyzed."""
        for chunk in self._chunks("rocpd_sample", "timestamp", "name_id", "tid"):
            kind = self._records.kinds(chunk["domain"])
            is_mark = kind == EventKind.USER_ANNOTATION
            other_samples = int(np.count_nonzero(~is_mark))
            self._records.drop("samples that are not marks", other_samples)
            chunk["start"] = chunk["timestamp"]
            chunk["end"] = chunk["timestamp"]
            marks = {column: values[is_mark] for column, values in chunk.items()}
            self._add_calls(marks)

    def _read_dispatches(self) -> None:
        """Add kernel dispatches."""
        columns = (
            "start",
            "end",
            "kernel_id",
            "agent_id",
            "queue_id",
        ) + rocprof.GEOMETRY
        for chunk in self._chunks("rocpd_kernel_dispatch", *columns):
            chunk["name"] = map_distinct_ids(
                chunk["kernel_id"], self._kernel_name_codes
            )
            chunk["device"] = self._device(chunk["agent_id"])
            chunk["lane"] = chunk["queue_id"]
            self._records.add(EventKind.KERNEL, chunk)

    def _read_copies(self) -> None:
        """Add memory copies."""
        columns = (
            "start",
            "end",
            "name_id",
            "src_agent_id",
            "dst_agent_id",
            "stream_id",
            "size",
        )
        for chunk in self._chunks("rocpd_memory_copy", *columns):
            chunk["name"] = map_distinct_ids(chunk["name_id"], self._name_codes)
            chunk["source"] = self._device(chunk["src_agent_id"])
            chunk["target"] = self._device(chunk["dst_agent_id"])
            chunk["lane"] = chunk["stream_id"]
            chunk["bytes"] = chunk["size"]
            self._records.add(EventKind.MEMCPY, chunk)

    def _chunks(self, table: str, *columns: str) -> Iterator[Columns]:
        """Yield chunks of a table, with the columns `process`, `correlation` and `domain` added.

        A column that the table does not have is taken from the track of each record.
        """
        full_name = table + self._guid
        columns_of_table = self._database.tables.get(full_name, frozenset())
        stored_columns = []
        track_columns = []
        for name in columns + ("pid", "event_id"):
            if name in columns_of_table:
                stored_columns.append(name)
            else:
                track_columns.append(name)
        stored_columns.append("track_id")
        for chunk in self._database.chunks(full_name, tuple(stored_columns)):
            chunk |= _columns_at(self._tracks, chunk["track_id"], *track_columns)
            event = _columns_at(
                self._events, chunk["event_id"], "stack_id", "category_id"
            )
            chunk["correlation"] = event["stack_id"]
            chunk["domain"] = map_distinct_ids(event["category_id"], self._domain_codes)
            chunk["process"] = map_distinct_rows(self._process, chunk["pid"])
            yield chunk

    def _add_calls(self, chunk: Columns) -> None:
        """Add calls, ranges and marks, with their names and threads."""
        chunk["name"] = map_distinct_ids(chunk["name_id"], self._name_codes)
        self._name_markers(chunk)
        # `tid` of a record is the id of a row of `rocpd_info_thread`, which has the system's id.
        thread_row = chunk["tid"]
        thread_id = _columns_at(self._threads, thread_row, "tid")["tid"]
        chunk["thread"] = np.where(thread_id == MISSING, thread_row, thread_id)
        self._records.add(EventKind.RUNTIME, chunk)

    def _name_markers(self, chunk: Columns) -> None:
        """Name ranges and marks after their message.

        Older versions name a marker after the call (`roctxRangePush`) and keep the message with
        the event, as JSON in `extdata`.
        """
        is_name_of_call = [name.startswith("roctx") for name in self._names]
        is_named_after_call = np.array(is_name_of_call, dtype=bool)[chunk["name"]]
        is_marker = self._records.kinds(chunk["domain"]) == EventKind.USER_ANNOTATION
        rows = np.flatnonzero(is_marker & is_named_after_call)
        texts = self._look_up("rocpd_event", "extdata", chunk["event_id"][rows])
        for row, text in zip(rows.tolist(), texts, strict=True):
            members = json_value(text or "")
            if not isinstance(members, dict):
                continue
            message = members.get("message")
            if message and isinstance(message, str):
                chunk["name"][row] = self._names[message]

    # Processes and agents.

    def _describe_processes(self) -> None:
        """Add the processes and the names of their threads to the records."""
        process_table = "rocpd_info_process"
        processes = self._all(process_table, "id", "pid")
        row_ids = processes["id"].tolist()
        pids = processes["pid"].tolist()
        commands = self._words(process_table, "command")
        for row_id, pid, command in zip(row_ids, pids, commands, strict=True):
            key = (self._guid, row_id)
            self._processes[row_id] = self._records.process(key, pid, command)

        thread_table = "rocpd_info_thread"
        threads = self._all(thread_table, "pid", "tid")
        process_rows = threads["pid"].tolist()
        thread_ids = threads["tid"].tolist()
        names = self._words(thread_table, "name")
        for row_id, thread_id, name in zip(
            process_rows, thread_ids, names, strict=True
        ):
            if name and row_id in self._processes:
                label = self._records.processes[self._processes[row_id]]
                self._records.thread_names[label, thread_id] = name

    def _describe_agents(self) -> None:
        """Add the GPUs to the records.

        The number of a GPU is its index among the GPUs, else its index among all agents, else the
        id of its row.
        """
        table = "rocpd_info_agent"
        numbers = self._all(table, "type_index", "absolute_index", "id", "nid")
        machines = self._look_up("rocpd_info_node", "machine_id", numbers["nid"])
        agent_types = self._words(table, "type")
        products = self._words(table, "product_name")
        names = self._words(table, "name")
        descriptions = self._words(table, "extdata")
        for row, agent_type in enumerate(agent_types):
            if agent_type != "GPU":
                continue
            agent = rocprof.Agent()
            with suppress(msgspec.MsgspecError):
                agent = msgspec.json.decode(descriptions[row], type=rocprof.Agent)
            agent.name = names[row]
            agent.product_name = products[row]
            agent_id = int(numbers["id"][row])
            indices = (
                numbers["type_index"][row],
                numbers["absolute_index"][row],
                agent_id,
            )
            ordinal = _first_usable(map(int, indices))
            gpu = self._records.device(machines[row], ordinal, agent)
            self._gpu_of_agent[agent_id] = gpu

    def _process(self, row_id: int) -> int:
        """Return the number of the process that a row of `rocpd_info_process` describes.

        If the row does not exist, its id takes the place of the pid.
        """
        if row_id not in self._processes:
            pid: int | str = row_id
            if row_id == MISSING:
                pid = "?"
            self._processes[row_id] = self._records.process((self._guid, row_id), pid)
        return self._processes[row_id]

    def _device(self, agent_ids: Int64Array) -> Int64Array:
        """Return the number of the GPU that each agent is, (m,); `NONE` for other agents."""
        return map_distinct_rows(
            lambda agent_id: self._gpu_of_agent.get(agent_id, NONE), agent_ids
        )

    # Names.

    def _domain_codes(self, category_ids: Int64Array) -> list[int]:
        """Return the code of the name of each category; a missing category has an empty name."""
        table = "rocpd_info_category"  # since 4.1.0
        if table + self._guid in self._database.tables:
            names = self._look_up(table, "name", category_ids)
        else:
            names = self._look_up(_STRING, "string", category_ids)
        return [self._categories[name or ""] for name in names]

    def _name_codes(self, ids: Int64Array) -> list[int]:
        return [
            self._names[text or NO_NAME]
            for text in self._look_up(_STRING, "string", ids)
        ]

    def _kernel_name_codes(self, ids: Int64Array) -> list[int]:
        """Return the code of the name of each kernel."""
        table = "rocpd_info_kernel_symbol"
        shown_names = self._look_up(table, "display_name", ids)
        symbol_names = self._look_up(table, "kernel_name", ids)
        codes = []
        for number, shown_name, symbol in zip(
            ids.tolist(), shown_names, symbol_names, strict=True
        ):
            codes.append(self._names[rocprof.kernel_name(shown_name or symbol, number)])
        return codes

    # The tables of this guid.

    def _all(self, table: str, *columns: str) -> Columns:
        return self._database.whole(table + self._guid, *columns)

    def _words(self, table: str, column: str) -> list[str]:
        return self._database.words(table + self._guid, column)

    def _look_up(self, table: str, column: str, ids: Int64Array) -> list[str | None]:
        return self._database.look_up(table + self._guid, column, ids)

    def _by_id(self, table: str, *columns: str) -> pd.DataFrame:
        """Return a small table as a frame indexed by id; the first row of an id counts."""
        rows = pd.DataFrame(self._all(table, "id", *columns))
        return rows.drop_duplicates("id").set_index("id")


def _first_usable(ordinals: Iterable[int]) -> int:
    """Return the first plausible number of a GPU; 0 if none is plausible."""
    for ordinal in ordinals:
        if 0 <= ordinal < rocprof.MOST_GPUS:
            return ordinal
    return 0


def _columns_at(table: pd.DataFrame, ids: Int64Array, *columns: str) -> Columns:
    """Return columns of the rows that have the given ids, each (m,); `MISSING` without a row."""
    rows = table.reindex(index=ids, columns=list(columns), fill_value=MISSING)
    return {name: rows[name].to_numpy(dtype=np.int64) for name in columns}
