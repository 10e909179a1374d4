"""Decodes an Nsight Systems report into the tables that its export would have.

Blocks are decoded one after the other. Each block gives a part of some tables. Of the decoded
columns only those that are read are kept, in the smallest integer type that holds their values, and
a column is released once it was read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens_ext.errors import TraceTooLargeError
from tracelens_ext.readers.nsys import protobuf, report_schema
from tracelens_ext.readers.nsys.protobuf import (
    BYTES,
    VARINT,
    DamagedMessageError,
    Decoded,
)
from tracelens_ext.readers.nsys.report_file import (
    ABOUT,
    DamagedReportError,
    RawData,
    ReportBlock,
    ReportFile,
)
from tracelens_ext.readers.nsys.report_schema import EVENTS, THREADS, Activity, Kind
from tracelens_ext.readers.tables import MISSING, Equal, Tables
from tracelens_ext.settings import size_text
from tracelens_ext.trace import Int64Array

#: Approximate number of rows in a chunk.
_ROWS_AT_ONCE = 1 << 17
#: Unless the user sets a limit, a report may unpack to this many bytes, or to this many times its
#: size, whichever is more. The same limits hold for gzipped text.
_ALLOWED_BYTES = 2 * 10**8
_ALLOWED_EXPANSION = 100
#: A report with more strings is damaged; reading that many would take minutes.
_MOST_STRINGS = 1 << 22
#: Length that marks a missing text.
_NO_TEXT = -1
#: Paths in diagnostics; those in /proc and /sys say nothing about the user.
_PATH = re.compile(r"(?<![\w.])(?!/(?:proc|sys)/)(?:[A-Za-z]:)?[~.]{0,2}[\\/][^\s'\"]*")
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+){1,3}")
STRINGS = "StringIds"
STRING = "value"
_THREADS = "ThreadNames"
_GPUS = "TARGET_INFO_GPU"
_META_DATA = "META_DATA_EXPORT"


class _NumberColumn(NamedTuple):
    """Whole numbers, stored compactly as differences from the smallest of them."""

    least: int
    differences: npt.NDArray[np.integer]

    @classmethod
    def of(cls, values: Int64Array) -> _NumberColumn:
        least = int(values.min())
        span = int(values.max()) - least
        for dtype in (np.uint8, np.uint16, np.uint32):
            if span <= np.iinfo(dtype).max:
                return cls(least, (values - least).astype(dtype))
        return cls(0, values.copy())

    def write_to(self, target: Int64Array) -> None:
        """Write the numbers into an array of the same length."""
        np.add(
            self.differences, self.least, out=target, casting="unsafe", dtype=np.int64
        )


class _Texts(NamedTuple):
    """A column of texts."""

    joined: bytes  #: all texts, one after the other
    #: the length of each text; `_NO_TEXT` for a missing one
    lengths: npt.NDArray[np.int32]

    @classmethod
    def of(cls, data: bytes, starts: Int64Array, lengths: Int64Array) -> _Texts:
        """Return the texts at some positions of data; the start of a missing text is `MISSING`."""
        has_text = starts != MISSING
        text_starts = starts[has_text].tolist()
        text_lengths = lengths[has_text].tolist()
        spans = zip(text_starts, text_lengths, strict=True)
        texts = [data[start : start + length] for start, length in spans]
        all_lengths = np.where(has_text, lengths, _NO_TEXT)
        return cls(joined=b"".join(texts), lengths=all_lengths.astype(np.int32))

    def split(self) -> Iterator[bytes | None]:
        """Yield the texts one by one; None for a missing one."""
        position = 0
        for length in self.lengths.tolist():
            if length == _NO_TEXT:
                yield None
                continue
            yield self.joined[position : position + length]
            position += length


class _TablePart:
    """Consecutive rows of a table, from one block.

    Attributes:
        count: the number of rows.
        numbers: columns of numbers; None once they are released.
        texts: columns of texts; empty once they are released.
    """

    def __init__(
        self, count: int, numbers: dict[str, _NumberColumn], texts: dict[str, _Texts]
    ) -> None:
        self.count = count
        self.numbers: dict[str, _NumberColumn] | None = numbers
        self.texts = texts

    def column(self, name: str) -> Int64Array:
        """Return a column of numbers, (count,); all `MISSING` if the part does not have it."""
        values = np.full(self.count, MISSING, dtype=np.int64)
        if self.numbers is not None and name in self.numbers:
            self.numbers[name].write_to(values)
        return values

    def matching_rows(self, where: Equal | None) -> Int64Array:
        """Return the indices of the rows that meet a condition, or of all rows."""
        if where is None:
            return np.arange(self.count, dtype=np.int64)
        return np.flatnonzero(self.column(where.column) == where.value)


class NsysReportTables(Tables):
    """The tables of a report. `read` must be called first: it decodes the report.

    Args:
        path: the name of the file in messages.
        file: the open report.
        most_bytes: the number of bytes that its blocks may unpack to; None for the default.
        progress: called after every block with the bytes read so far and the size of the file.

    Attributes:
        events: the number of events that were decoded.
        damage: what is wrong with the report; None if nothing is, or if damage is not allowed.
        names_are_lost: True if the strings, with all names, could not be read.
    """

    def __init__(
        self,
        path: str,
        file: ReportFile,
        most_bytes: int | None = None,
        progress: Callable[[int, int | None], None] | None = None,
    ) -> None:
        self.path = path
        self.size = file.size
        self.events = 0
        self.damage: DamagedReportError | None = None
        self.names_are_lost = False
        self._file = file
        self._progress = progress
        allowed_bytes = max(_ALLOWED_BYTES, _ALLOWED_EXPANSION * file.size)
        self._most_bytes = most_bytes or allowed_bytes
        self._unpacked_bytes = 0
        # the offset after the last block of events that was decoded
        self._end_of_events = 0
        self._parts: dict[str, list[_TablePart]] = {}
        self._row_counts: Counter[str] = Counter()
        self._read_once = {
            table.name for table in report_schema.TABLES if table.read_once
        }
        self._columns = {
            table.name: frozenset(tuple(table.numbers) + tuple(table.texts))
            for table in report_schema.TABLES
        }
        self._version: tuple[int, ...] = _FIRST_WITH_PROCESS_NAMES
        self._strings = b""
        self._string_ends = np.zeros(0, dtype=np.int64)
        self._string_starts = self._string_ends
        self._unread_kinds: Counter[int] = Counter()
        self._unread_classes: Counter[int] = Counter()
        self._unread_activities: Counter[int] = Counter()
        self._unread_fields: Counter[tuple[int, int]] = Counter()

    @property
    def tables(self) -> Mapping[str, frozenset[str]]:  # type: ignore[override]
        """The columns of each table that has rows."""
        return {name: self._columns[name] for name in self._parts}

    # Reading.

    def read(self, *, allow_damage: bool) -> None:
        """Decode the report.

        Args:
            allow_damage: True if a damaged report is to be decoded as far as possible; `damage`
                then says what is wrong with it.

        Raises:
            DamagedReportError: the report is damaged, and damage is not allowed or hides all
                events.
            TraceTooLargeError: it unpacks to more bytes than are allowed.
        """
        try:
            sections = self._file.sections()
            raw = self._file.raw_data(sections)
            about = sections.get(ABOUT)
        except DamagedReportError as error:
            if not allow_damage:
                raise
            self.damage = error
            raw = self._file.raw_data_without_footer()
            about = None
        try:
            self._read_events(raw)
            self._check_count(
                raw.counts.events, self.events, "events", self._end_of_events
            )
            strings_are_known = True
        except DamagedReportError as error:
            if not allow_damage:
                raise
            self.damage = self.damage or error
            strings_are_known = raw.strings is not None
        try:
            if strings_are_known:
                self._read_end(raw)
        except DamagedReportError as error:
            if not allow_damage:
                raise
            self.damage = self.damage or error
        self.names_are_lost = not len(self._string_ends)
        if about is not None:
            self._read_version(self._file.read(*about))

    def _read_events(self, raw: RawData) -> None:
        """Decode the blocks of events.

        They end where the strings begin. If the footer, which says where, is lost, they end after
        the number of events in the header.
        """
        offset = raw.first_block
        end = raw.end if raw.strings is None else raw.strings
        self._end_of_events = offset
        while offset < end:
            if raw.strings is None and self.events == raw.counts.events:
                break
            block = self._file.block(offset, end)
            data = self._unpack(block)
            try:
                decoded = protobuf.decode(data, EVENTS)
            except DamagedMessageError:
                raise DamagedReportError(
                    offset, "a block of events is damaged"
                ) from None
            if (EVENTS.column(decoded, "kind") == MISSING).any():
                raise DamagedReportError(
                    offset, "a block of events contains one without a kind"
                )
            self._add_events(data, decoded)
            offset = block.end
            self._end_of_events = offset
            if self._progress is not None:
                self._progress(offset, self.size)

    def _read_end(self, raw: RawData) -> None:
        """Read the parts after the events: strings, threads, GPUs."""
        start = self._end_of_events if raw.strings is None else raw.strings
        strings = self._file.block(start, raw.end)
        count = self._read_strings(strings)
        self._check_count(raw.counts.strings, count, "strings", start)
        threads = self._file.message(strings.end, raw.end)
        count = self._read_threads(
            self._file.read(strings.end, threads.end), strings.end
        )
        self._check_count(raw.counts.threads, count, "threads", strings.end)
        last = self._file.message(threads.end, raw.end)
        self._read_gpus(self._file.read(*last), last.start)
        end = last.end
        if raw.layouts is not None:
            if raw.layouts != end:
                raise DamagedReportError(
                    end, "its layouts are not at the stated position"
                )
            end = self._file.block(end, raw.end).end
        if end != raw.end:
            raise DamagedReportError(end, "there is unknown data after its last part")

    def _unpack(self, block: ReportBlock) -> bytes:
        """Return the unpacked bytes of a block.

        Raises:
            TraceTooLargeError: the blocks so far unpack to more bytes than are allowed.
        """
        self._unpacked_bytes += block.size
        if self._unpacked_bytes > self._most_bytes:
            problem = f"unpacks to more than {size_text(self._most_bytes)}"
            remedy = "if you trust it, raise the limit with --max-bytes"
            raise TraceTooLargeError(self.path, problem, remedy)
        return self._file.unpack(block)

    @staticmethod
    def _check_count(expected: int | None, count: int, noun: str, offset: int) -> None:
        """Raise DamagedReportError if a number of things differs from that in the header."""
        if expected is not None and expected != count:
            problem = f"it contains {count:,} {noun}, but its header says {expected:,}"
            raise DamagedReportError(offset, problem)

    def _add_events(self, data: bytes, decoded: Decoded) -> None:
        """Add the events of a block to the tables that they are rows of."""
        columns = {
            name: decoded.values[number] for name, number in EVENTS.columns.items()
        }
        for table in report_schema.TABLES:
            rows = np.flatnonzero(table.rows(columns))
            if not len(rows):
                continue
            numbers = {
                name: columns[source][rows] for name, source in table.numbers.items()
            }
            texts = {}
            for name, source in table.texts.items():
                starts, lengths = EVENTS.spans(decoded, source)
                texts[name] = _Texts.of(data, starts[rows], lengths[rows])
            self._add(table.name, len(rows), numbers, texts)
        self.events += decoded.values.shape[1]
        self._count_unread(columns)
        self._unread_fields.update(decoded.unknown)

    def _add(
        self,
        table: str,
        count: int,
        numbers: dict[str, Int64Array],
        texts: dict[str, _Texts],
    ) -> None:
        """Add rows to a table."""
        compact = {name: _NumberColumn.of(values) for name, values in numbers.items()}
        part = _TablePart(count=count, numbers=compact, texts=texts)
        self._parts.setdefault(table, []).append(part)
        self._columns.setdefault(table, frozenset(tuple(numbers) + tuple(texts)))
        self._row_counts[table] += count

    def _count_unread(self, columns: Mapping[str, Int64Array]) -> None:
        """Count the events of unknown kinds, which are not read."""
        kinds = columns["kind"]
        is_unknown_kind = ~np.isin(kinds, list(Kind))
        self._unread_kinds.update(_value_counts(kinds[is_unknown_kind]))
        classes = columns["call.eventClass"][kinds == Kind.CALL]
        is_unknown_class = ~np.isin(classes, _KNOWN_CLASSES)
        self._unread_classes.update(_value_counts(classes[is_unknown_class]))
        activities = columns["gpu.activity"][kinds == Kind.MEMORY]
        is_unknown_activity = ~np.isin(activities, list(Activity))
        self._unread_activities.update(_value_counts(activities[is_unknown_activity]))

    def _read_strings(self, block: ReportBlock) -> int:
        """Find the position of each string, and return the number of strings.

        The block also has the output of programs, which is not read.
        """
        data = self._unpack(block)
        starts: list[int] = []
        ends: list[int] = []
        try:
            length, start = protobuf.varint(data, 0, len(data))
            if length != len(data) - start:
                raise DamagedMessageError
            for part in protobuf.fields(data, start, len(data)):
                if part.number == 1 and part.wire_type == BYTES:
                    starts.append(part.value)
                    ends.append(part.end)
                if len(starts) > _MOST_STRINGS:
                    raise DamagedMessageError
        except DamagedMessageError:
            raise DamagedReportError(block.offset, "its strings are damaged") from None
        self._strings = data
        self._string_starts = np.array(starts, dtype=np.int64)
        self._string_ends = np.array(ends, dtype=np.int64)
        return len(starts)

    def _read_threads(self, data: bytes, offset: int) -> int:
        """Add the table of threads from an encoded list, and return the number of threads."""
        try:
            decoded = protobuf.decode(data, THREADS)
        except DamagedMessageError:
            raise DamagedReportError(offset, "its threads are damaged") from None
        count = int(decoded.values.shape[1])
        if count:
            names = ("nameId", "priority", "globalTid")
            numbers = {
                name: THREADS.column(decoded, f"thread.{name}") for name in names
            }
            self._add(_THREADS, count, numbers, {})
        return count

    def _read_gpus(self, data: bytes, offset: int) -> None:
        """Add the table of GPUs from the message of GPUs and streams."""
        try:
            for machine in _nested_messages(
                data, 0, len(data), number=report_schema.MACHINES
            ):
                self._read_machine(data, machine)
        except DamagedMessageError:
            raise DamagedReportError(offset, "its list of GPUs is damaged") from None

    def _read_machine(self, data: bytes, machine: protobuf.MessageField) -> None:
        """Add the GPUs of a machine to the table of GPUs."""
        machine_id = MISSING
        for part in protobuf.fields(data, machine.value, machine.end):
            if part.number == report_schema.MACHINE_ID and part.wire_type == VARINT:
                machine_id = protobuf.signed(part.value)
        for parts in _nested_messages(
            data, machine.value, machine.end, number=report_schema.MACHINE_PARTS
        ):
            for gpu in _nested_messages(
                data, parts.value, parts.end, number=report_schema.GPUS
            ):
                self._read_gpu(data, gpu, machine_id)

    def _read_gpu(
        self, data: bytes, gpu: protobuf.MessageField, machine_id: int
    ) -> None:
        """Add a GPU to the table of GPUs."""
        row = dict.fromkeys(report_schema.GPU_NUMBERS.values(), MISSING)
        row["vmId"] = machine_id
        name_start = MISSING
        name_length = 0
        for part in protobuf.fields(data, gpu.value, gpu.end):
            column = report_schema.GPU_NUMBERS.get(part.number)
            if column is not None and part.wire_type == VARINT:
                row[column] = protobuf.signed(part.value)
            if part.number == report_schema.GPU_NAME and part.wire_type == BYTES:
                name_start = part.value
                name_length = part.end - part.value
        numbers = {
            column: np.array([value], dtype=np.int64) for column, value in row.items()
        }
        name = _Texts.of(
            data,
            starts=np.array([name_start], dtype=np.int64),
            lengths=np.array([name_length], dtype=np.int64),
        )
        self._add(_GPUS, 1, numbers, {"name": name})

    def _read_version(self, data: bytes) -> None:
        """Read the version that wrote the report from its section "UI Data", and nothing else."""
        facts = {"EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems"}
        try:
            for part in protobuf.fields(data, 0, len(data)):
                if part.number == report_schema.WRITTEN_BY and part.wire_type == BYTES:
                    text = data[part.value : part.end].decode("ascii", "replace")
                    version = _VERSION.match(text)
                    if version is not None:
                        facts["EXPORT_PRODUCT_VERSION"] = version[0]
                        self._version = tuple(int(n) for n in version[0].split(".")[:2])
        except DamagedMessageError:
            return  # no event depends on the version
        texts = {"name": _encoded_texts(facts), "value": _encoded_texts(facts.values())}
        self._add(_META_DATA, len(facts), {}, texts)

    # The methods of `Tables`, which the code that makes the trace calls.

    def has_rows(self, table: str) -> bool:
        """Return True if a table is not empty."""
        return self._row_counts[table] > 0

    def chunks(
        self, table: str, columns: tuple[str, ...], where: Equal | None = None
    ) -> Iterator[dict[str, Int64Array]]:
        """Yield columns of whole numbers in chunks of rows, in the order of the table."""
        is_last_use = table in self._read_once and where is None
        for parts in _groups_of_parts(self._parts.get(table, [])):
            rows_of_part = [part.matching_rows(where) for part in parts]
            if any(len(rows) for rows in rows_of_part):
                chunk = {}
                for name in columns:
                    columns_of_parts = []
                    for part, rows in zip(parts, rows_of_part, strict=True):
                        columns_of_parts.append(part.column(name)[rows])
                    chunk[name] = np.concatenate(columns_of_parts)
                yield chunk
            if is_last_use:
                for part in parts:
                    part.numbers = None

    def texts(
        self, table: str, column: str, where: Equal | None = None
    ) -> Iterator[bytes | None]:
        """Yield the texts of a column in the order of the table; None for a missing text."""
        is_last_use = table in self._read_once and where is None
        for part in self._parts.get(table, []):
            rows = part.matching_rows(where)
            if column in part.texts:
                texts: list[bytes | None] = list(part.texts[column].split())
            elif part.numbers is not None and column in part.numbers:
                texts = [b"%d" % number for number in part.column(column).tolist()]
            else:
                texts = [None] * part.count
            if is_last_use:
                part.texts = {}
            for row in rows.tolist():
                yield texts[row]

    def words(self, table: str, column: str) -> list[str]:
        """Return the texts of a column, without paths that may name folders of the user.

        A process without a name is named after its program.
        """
        texts = super().words(table, column)
        if (table, column) == (_DIAGNOSTICS, "text"):
            return [_PATH.sub("(a path)", text) for text in texts]
        if (table, column) != (_PROCESSES, "name"):
            return texts
        if self._version < _FIRST_WITH_PROCESS_NAMES:
            return [""] * len(texts)
        programs = super().words(table, "program")
        return [
            name or _program_name(program)
            for name, program in zip(texts, programs, strict=True)
        ]

    def look_up(self, table: str, column: str, ids: Int64Array) -> list[str | None]:
        """Return the string of each id; None for an unknown id, or for any other table."""
        if (table, column) != (STRINGS, STRING):
            return [None] * len(ids)
        texts: list[str | None] = []
        for string_id in ids.tolist():
            if not 0 <= string_id < len(self._string_ends):
                texts.append(None)
                continue
            start = self._string_starts[string_id]
            end = self._string_ends[string_id]
            texts.append(self._strings[start:end].decode("utf-8", "replace"))
        return texts

    def notes(self) -> list[str]:
        """Return sentences for the user about the parts of the report that were not read."""
        notes = _unread_notes("event of kind", self._unread_kinds)
        notes += _unread_notes("call of class", self._unread_classes)
        notes += _unread_notes("operation on memory of kind", self._unread_activities)
        for (message, field_number), count in sorted(self._unread_fields.items()):
            name = EVENTS.messages[message].name
            number = str(field_number)
            if field_number == protobuf.MOST_FIELDS - 1:
                number += " or above"
            notes.append(_unread_note(count, f"value of {name}, field", number))
        return notes


_DIAGNOSTICS = "DIAGNOSTIC_EVENT"
_PROCESSES = "PROCESSES"
#: In reports of earlier versions, the name of a process is that of the program that started it
#: (`nsys-launcher`), and their exports have no names of processes.
_FIRST_WITH_PROCESS_NAMES = (2021, 3)
_KNOWN_CLASSES = list(report_schema.CallClass)


def _program_name(program: str) -> str:
    """Return the name of a program: its relative path as the user called it, else its file name.

    Example: `bin/train` → `bin/train`, `/home/me/bin/train` → `train`.
    """
    if program.startswith(("/", "..", "~", "\\")) or program[1:2] == ":":
        return re.split(r"[\\/]", program)[-1]
    return program


def _value_counts(values: Int64Array) -> dict[int, int]:
    """Return the number of occurrences of each value."""
    distinct, counts = np.unique(values, return_counts=True)
    return dict(zip(distinct.tolist(), counts.tolist(), strict=True))


def _unread_notes(description: str, count_of_kind: Mapping[int, int]) -> list[str]:
    """Return a sentence for each kind of events that was not read."""
    notes = []
    for kind, count in sorted(count_of_kind.items()):
        number = str(kind)
        if kind == MISSING:
            number = "(none)"
        notes.append(_unread_note(count, description, number))
    return notes


def _unread_note(count: int, description: str, number: str) -> str:
    """Return a sentence such as `14 events of kind 152 were not read`.

    Args:
        count: 14.
        description: "event of kind"; its first word is made plural.
        number: "152".
    """
    if count == 1:
        return f"1 {description} {number} was not read"
    noun, _, further_words = description.partition(" ")
    return f"{count:,} {noun}s {further_words} {number} were not read"


def _nested_messages(
    data: bytes, start: int, end: int, number: int
) -> Iterator[protobuf.MessageField]:
    """Yield the nested messages that a message has in the field with a number."""
    for part in protobuf.fields(data, start, end):
        if part.number != number:
            continue
        if part.wire_type == BYTES:
            yield part


def _encoded_texts(texts: Iterable[str]) -> _Texts:
    encoded = [text.encode() for text in texts]
    lengths = [len(text) for text in encoded]
    return _Texts(
        joined=b"".join(encoded),
        lengths=np.array(lengths, dtype=np.int32),
    )


def _groups_of_parts(parts: list[_TablePart]) -> Iterator[list[_TablePart]]:
    """Yield consecutive parts in groups of at least `_ROWS_AT_ONCE` rows; the last may be less."""
    group: list[_TablePart] = []
    count = 0
    for part in parts:
        group.append(part)
        count += part.count
        if count >= _ROWS_AT_ONCE:
            yield group
            group = []
            count = 0
    if group:
        yield group
