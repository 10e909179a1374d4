"""The events of an Nsight Systems report as the tables that its export would have.

Blocks are decoded one after the other; of each the columns that are read are kept, as small as
their values allow, and released when they are read.
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

#: Rows of a chunk, about.
_ROWS_AT_ONCE = 1 << 17
#: What reports may unpack to unless the user says so: as text that is gzipped.
_ALWAYS_BYTES = 2 * 10**8
_MOST_TIMES = 100
#: More strings are in no report, and would take minutes.
_MOST_STRINGS = 1 << 22
_NO_TEXT = -1
_PATH = re.compile(r"(?<![\w.])(?!/(?:proc|sys)/)(?:[A-Za-z]:)?[~.]{0,2}[\\/][^\s'\"]*")
_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+){1,3}")
STRINGS = "StringIds"
STRING = "value"
_THREADS = "ThreadNames"
_GPUS = "TARGET_INFO_GPU"
_META_DATA = "META_DATA_EXPORT"


class _NumberColumn(NamedTuple):
    """Whole numbers as what they are more than the least of them, in as few bytes as these take."""

    least: int
    above: npt.NDArray[np.integer]

    @classmethod
    def of(cls, values: Int64Array) -> _NumberColumn:
        least = int(values.min())
        span = int(values.max()) - least
        for dtype in (np.uint8, np.uint16, np.uint32):
            if span <= np.iinfo(dtype).max:
                return cls(least, (values - least).astype(dtype))
        return cls(0, values.copy())

    def fill(self, target: Int64Array) -> None:
        np.add(self.above, self.least, out=target, casting="unsafe", dtype=np.int64)


class _Texts(NamedTuple):
    """Texts, one after the other, and the length of each; `_NO_TEXT` where there is none."""

    joined: bytes
    lengths: npt.NDArray[np.int32]

    @classmethod
    def of(cls, data: bytes, starts: Int64Array, lengths: Int64Array) -> _Texts:
        has_text = starts != MISSING
        text_starts = starts[has_text].tolist()
        text_lengths = lengths[has_text].tolist()
        spans = zip(text_starts, text_lengths, strict=True)
        texts = [data[start : start + length] for start, length in spans]
        all_lengths = np.where(has_text, lengths, _NO_TEXT)
        return cls(joined=b"".join(texts), lengths=all_lengths.astype(np.int32))

    def split(self) -> Iterator[bytes | None]:
        position = 0
        for length in self.lengths.tolist():
            if length == _NO_TEXT:
                yield None
                continue
            yield self.joined[position : position + length]
            position += length


class _ReportPiece:
    """Consecutive rows of a table; a column is None once it is released."""

    def __init__(
        self, count: int, numbers: dict[str, _NumberColumn], texts: dict[str, _Texts]
    ) -> None:
        self.count = count
        self.numbers: dict[str, _NumberColumn] | None = numbers
        self.texts = texts

    def column(self, name: str) -> Int64Array:
        """A column of numbers."""
        values = np.full(self.count, MISSING, dtype=np.int64)
        if self.numbers is not None and name in self.numbers:
            self.numbers[name].fill(values)
        return values


class NsysReportTables(Tables):
    """The tables of a report; `read` decodes it.

    Attributes: `notes`, what was not read, a sentence each; `events` that were decoded.

    Args:
        path: what messages call the file.
        file: the report.
        most_bytes: what its blocks may unpack to; None for the default.
        progress: called with (bytes read, size of the file) after every block.
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
        #: what is wrong with it, where that was allowed
        self.damage: DamagedReportError | None = None
        self.names_are_lost = False
        self._file = file
        self._progress = progress
        self._most_bytes = most_bytes or max(_ALWAYS_BYTES, _MOST_TIMES * file.size)
        self._unpacked_bytes = 0
        self._behind_events = 0
        self._pieces: dict[str, list[_ReportPiece]] = {}
        self._counts: Counter[str] = Counter()
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
        """The columns of the tables that have rows."""
        return {name: self._columns[name] for name in self._pieces}

    # Reading.

    def read(self, *, allow_damage: bool) -> None:
        """Decode the report: all of it, or where damage is allowed what comes before that.

        Raises DamagedReportError, where `damage` is then kept instead; TraceTooLargeError.
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
                raw.counts.events, self.events, "events", self._behind_events
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
        """Decode the blocks of events."""
        offset = raw.first_block
        end = raw.end if raw.strings is None else raw.strings
        self._behind_events = offset
        while offset < end and not (
            raw.strings is None and self.events == raw.counts.events
        ):
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
            self._behind_events = offset
            if self._progress is not None:
                self._progress(offset, self.size)

    def _read_end(self, raw: RawData) -> None:
        """Read what is behind the events: strings, threads, GPUs."""
        start = self._behind_events if raw.strings is None else raw.strings
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
        self._unpacked_bytes += block.size
        if self._unpacked_bytes > self._most_bytes:
            problem = f"unpacks to more than {size_text(self._most_bytes)}"
            remedy = "if you trust it, raise the limit with --max-bytes"
            raise TraceTooLargeError(self.path, problem, remedy)
        return self._file.unpack(block)

    @staticmethod
    def _check_count(expected: int | None, count: int, what: str, offset: int) -> None:
        if expected is not None and expected != count:
            problem = f"it contains {count:,} {what}, but its header says {expected:,}"
            raise DamagedReportError(offset, problem)

    def _add_events(self, data: bytes, decoded: Decoded) -> None:
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
        packed = {name: _NumberColumn.of(values) for name, values in numbers.items()}
        self._pieces.setdefault(table, []).append(
            _ReportPiece(count=count, numbers=packed, texts=texts)
        )
        self._columns.setdefault(table, frozenset(tuple(numbers) + tuple(texts)))
        self._counts[table] += count

    def _count_unread(self, columns: Mapping[str, Int64Array]) -> None:
        """Count the events that are not read and are not known to be of no use."""
        kinds = columns["kind"]
        known_kinds = list(Kind)
        self._unread_kinds.update(_counted(kinds[~np.isin(kinds, known_kinds)]))
        classes = columns["call.eventClass"][kinds == Kind.CALL]
        self._unread_classes.update(
            _counted(classes[~np.isin(classes, _KNOWN_CLASSES)])
        )
        activities = columns["gpu.activity"][kinds == Kind.MEMORY]
        self._unread_activities.update(
            _counted(activities[~np.isin(activities, list(Activity))])
        )

    def _read_strings(self, block: ReportBlock) -> int:
        """Find where each text begins; what programs printed, behind them, is not looked at."""
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
        try:
            for machine in _messages(
                data=data, start=0, end=len(data), number=report_schema.MACHINES
            ):
                self._read_machine(data, machine)
        except DamagedMessageError:
            raise DamagedReportError(offset, "its list of GPUs is damaged") from None

    def _read_machine(self, data: bytes, machine: protobuf.MessageField) -> None:
        machine_id = MISSING
        for part in protobuf.fields(data=data, start=machine.value, end=machine.end):
            if part.number == report_schema.MACHINE_ID and part.wire_type == VARINT:
                machine_id = protobuf.signed(part.value)
        for parts in _messages(
            data=data,
            start=machine.value,
            end=machine.end,
            number=report_schema.MACHINE_PARTS,
        ):
            for gpu in _messages(
                data=data, start=parts.value, end=parts.end, number=report_schema.GPUS
            ):
                row = dict.fromkeys(report_schema.GPU_NUMBERS.values(), MISSING)
                row["vmId"] = machine_id
                name = (MISSING, 0)
                for part in protobuf.fields(data=data, start=gpu.value, end=gpu.end):
                    column = report_schema.GPU_NUMBERS.get(part.number)
                    if column is not None and part.wire_type == VARINT:
                        row[column] = protobuf.signed(part.value)
                    if (
                        part.number == report_schema.GPU_NAME
                        and part.wire_type == BYTES
                    ):
                        name = (part.value, part.end - part.value)
                numbers = {
                    column: np.array([n], dtype=np.int64) for column, n in row.items()
                }
                start, length = (np.array([n], dtype=np.int64) for n in name)
                self._add(_GPUS, 1, numbers, {"name": _Texts.of(data, start, length)})

    def _read_version(self, data: bytes) -> None:
        """Read which version wrote the report, and nothing else of its facts for the viewer."""
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
            return  # no event depends on it
        texts = {"name": _joined(facts), "value": _joined(facts.values())}
        self._add(_META_DATA, len(facts), {}, texts)

    # What the reader of exports asks for.

    def has_rows(self, table: str) -> bool:
        """Return True if a table is not empty."""
        return self._counts[table] > 0

    def chunks(
        self, table: str, columns: tuple[str, ...], where: Equal | None = None
    ) -> Iterator[dict[str, Int64Array]]:
        """Whole numbers of a table, some hundred thousand rows at a time, in the table's order."""
        releases = table in self._read_once and where is None
        all_pieces = self._pieces.get(table, [])
        for pieces in _grouped(all_pieces):
            chosen = [(piece, _rows_of(piece, where)) for piece in pieces]
            if any(len(rows) for _, rows in chosen):
                yield {
                    name: np.concatenate(
                        [piece.column(name)[rows] for piece, rows in chosen]
                    )
                    for name in columns
                }
            if releases:
                for piece in pieces:
                    piece.numbers = None

    def texts(
        self, table: str, column: str, where: Equal | None = None
    ) -> Iterator[bytes | None]:
        """The texts of a column in the table's order; None for a row, or a column, without."""
        releases = table in self._read_once and where is None
        for piece in self._pieces.get(table, []):
            rows = _rows_of(piece, where)
            if column in piece.texts:
                texts: list[bytes | None] = list(piece.texts[column].split())
            elif piece.numbers is not None and column in piece.numbers:
                texts = [b"%d" % number for number in piece.column(column).tolist()]
            else:
                texts = [None] * piece.count
            if releases:
                piece.texts = {}
            for row in rows.tolist():
                yield texts[row]

    def words(self, table: str, column: str) -> list[str]:
        """The texts of a column, without the folders of a user in them."""
        words = super().words(table, column)
        if (table, column) == (_DIAGNOSTICS, "text"):
            return [_PATH.sub("(a path)", word) for word in words]
        if (table, column) != (_PROCESSES, "name"):
            return words
        if self._version < _FIRST_WITH_PROCESS_NAMES:
            return [""] * len(words)
        programs = super().words(table, "program")
        return [
            name or _program_name(program)
            for name, program in zip(words, programs, strict=True)
        ]

    def look_up(self, table: str, column: str, ids: Int64Array) -> list[str | None]:
        """The strings that ids stand for; None of one that is not there."""
        if (table, column) != (STRINGS, STRING):
            return [None] * len(ids)
        is_there = (ids >= 0) & (ids < len(self._string_ends))
        texts: list[str | None] = []
        for number, is_known in zip(ids.tolist(), is_there.tolist(), strict=True):
            if is_known:
                text = self._strings[
                    self._string_starts[number] : self._string_ends[number]
                ]
                texts.append(text.decode("utf-8", "replace"))
            else:
                texts.append(None)
        return texts

    # What was not read.

    def notes(self) -> list[str]:
        """What the report holds and was not read, a sentence each."""
        notes = []
        for kinds, what in (
            (self._unread_kinds, "event of kind"),
            (self._unread_classes, "call of class"),
            (self._unread_activities, "operation on memory of kind"),
        ):
            notes += [
                _unread(count, what, "(none)" if kind == MISSING else str(kind))
                for kind, count in sorted(kinds.items())
            ]
        for (message, number), count in sorted(self._unread_fields.items()):
            name = EVENTS.messages[message].name
            named = (
                f"{number} or above"
                if number == protobuf.MOST_FIELDS - 1
                else f"{number}"
            )
            notes.append(_unread(count, f"value of {name}, field", named))
        return notes


_DIAGNOSTICS = "DIAGNOSTIC_EVENT"
_PROCESSES = "PROCESSES"
#: Before, a process has the name of what began it (`nsys-launcher`), and exports have no names.
_FIRST_WITH_PROCESS_NAMES = (2021, 3)
_KNOWN_CLASSES = list(report_schema.CallClass)


def _program_name(program: str) -> str:
    """A program as it was called, if that was below the folder it ran in; else its file's name."""
    if program.startswith(("/", "..", "~", "\\")) or program[1:2] == ":":
        return re.split(r"[\\/]", program)[-1]
    return program


def _counted(values: Int64Array) -> dict[int, int]:
    """How often each value is there."""
    distinct, counts = np.unique(values, return_counts=True)
    return dict(zip(distinct.tolist(), counts.tolist(), strict=True))


def _unread(count: int, what: str, number: str) -> str:
    """Say how many things of a sort were not read: `14 events of kind 152 were not read`."""
    if count == 1:
        return f"1 {what} {number} was not read"
    noun, *others = what.split(" ")
    plural = " ".join([f"{noun}s"] + others)
    return f"{count:,} {plural} {number} were not read"


def _messages(
    data: bytes, start: int, end: int, number: int
) -> Iterator[protobuf.MessageField]:
    """The messages that are a field of a message."""
    for part in protobuf.fields(data, start, end):
        if part.number != number:
            continue
        if part.wire_type == BYTES:
            yield part


def _joined(texts: Iterable[str]) -> _Texts:
    encoded = [text.encode() for text in texts]
    lengths = [len(text) for text in encoded]
    return _Texts(
        joined=b"".join(encoded),
        lengths=np.array(lengths, dtype=np.int32),
    )


def _grouped(pieces: list[_ReportPiece]) -> Iterator[list[_ReportPiece]]:
    """The pieces in groups of about `_ROWS_AT_ONCE` rows."""
    group: list[_ReportPiece] = []
    count = 0
    for piece in pieces:
        group.append(piece)
        count += piece.count
        if count >= _ROWS_AT_ONCE:
            yield group
            group = []
            count = 0
    if group:
        yield group


def _rows_of(piece: _ReportPiece, where: Equal | None) -> Int64Array:
    if where is None:
        return np.arange(piece.count, dtype=np.int64)
    return np.flatnonzero(piece.column(where.column) == where.value)
