r"""The container of an Nsight Systems report: its sections, and the blocks of its raw data.

Of the sections only those that a trace needs are read: never the options of the profiler, which
hold the environment and the command line.

    "NVIDIA Tegra Profiler Report " X ".\n", sections,
    footer: { 1: { 1: name, 2: offset, 3: size } }, u64: offset of the footer, "U3w[END]"

Raw Sampling Data: "QDTEXT00", two messages with their lengths before them (facts, header), blocks
of events, a block of strings, a message of threads, a message of GPUs and streams, and in some
reports a block of NVTX layouts. A block: packed size, size, bytes of a raw LZ4 block.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from tracelens_ext.readers.nsys import lz4_block, protobuf
from tracelens_ext.readers.nsys.protobuf import DamagedMessageError

MAGIC = b"NVIDIA Tegra Profiler Report "
_TRAILER = struct.Struct("<Q8s")
_END_MARK = b"U3w[END]"
_RAW_MARK = b"QDTEXT00"
_COMPRESSION = b"lz4"
RAW_DATA = "Raw Sampling Data"
OFFSETS = "Sampling Data Offsets"
ABOUT = "UI Data"
_MOST_FOOTER = 1 << 20
_LONGEST_VARINT = 10
#: Where a file without a footer is searched for its raw data, a piece at a time.
_SEARCHED_AT_ONCE = 1 << 20


class DamagedReportError(Exception):
    """A report is damaged, cut off, or no report: at which byte, and what is wrong there."""

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(problem)
        self.offset = offset
        self.problem = problem


class ReportSection(NamedTuple):
    """A part of the file."""

    start: int
    end: int


class Counts(NamedTuple):
    """How much a report holds, as its header says; None where it does not."""

    events: int | None
    strings: int | None
    threads: int | None


@dataclass(frozen=True)
class RawData:
    """Where the parts of the raw data are; offsets in the file."""

    counts: Counts
    first_block: int
    #: where the block of strings begins, right behind the events; None without a footer
    strings: int | None
    #: where the block of NVTX layouts begins; None where there is none
    layouts: int | None
    end: int


class ReportBlock(NamedTuple):
    """A packed block."""

    offset: int  #: where it begins, with its sizes
    start: int  #: where its packed bytes begin
    end: int
    size: int  #: unpacked


class ReportFile:
    """An open report: `size` bytes, read from anywhere.

    Raises DamagedReportError for what is damaged, from all methods.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self.size = size
        length = min(size, len(MAGIC))
        beginning = self.read(0, length)
        if beginning != MAGIC:
            raise DamagedReportError(0, "it does not begin like one")

    def read(self, start: int, end: int) -> bytes:
        """The bytes of a range of the file."""
        self._file.seek(start)
        data = self._file.read(end - start)
        if len(data) != end - start:
            raise DamagedReportError(start + len(data), "the file ends there")
        return data

    def sections(self) -> dict[str, ReportSection]:
        """The sections that the footer lists, by name."""
        footer_end = self.size - _TRAILER.size
        if footer_end < len(MAGIC):
            raise DamagedReportError(
                offset=self.size,
                problem="the file ends there, without its list of sections",
            )
        footer, mark = _TRAILER.unpack(self.read(footer_end, self.size))
        if mark != _END_MARK:
            raise DamagedReportError(
                offset=self.size,
                problem="the file ends there, without its list of sections",
            )
        if not len(MAGIC) <= footer <= footer_end or footer_end - footer > _MOST_FOOTER:
            raise DamagedReportError(
                footer_end, "its list of sections is not in the file"
            )
        data = self.read(footer, footer_end)
        sections: dict[str, ReportSection] = {}
        try:
            for entry in protobuf.fields(data, 0, len(data)):
                if entry.number != 1 or entry.wire_type != protobuf.BYTES:
                    continue
                parts = {
                    part.number: part
                    for part in protobuf.fields(
                        data=data, start=entry.value, end=entry.end
                    )
                }
                if 1 not in parts:
                    raise DamagedMessageError
                name = data[parts[1].value : parts[1].end].decode("utf-8", "replace")
                start = parts[2].value if 2 in parts else 0
                size = parts[3].value if 3 in parts else 0
                if start > footer or size > footer - start:
                    raise DamagedReportError(footer, "a section is not within the file")
                sections[name] = ReportSection(start, start + size)
        except DamagedMessageError:
            raise DamagedReportError(
                footer, "its list of sections is damaged"
            ) from None
        return sections

    def raw_data(self, sections: dict[str, ReportSection]) -> RawData:
        """Where the parts of the raw data are."""
        if RAW_DATA not in sections or OFFSETS not in sections:
            raise DamagedReportError(self.size, "it has no section of events")
        section = sections[RAW_DATA]
        offsets = self._offsets(sections[OFFSETS])
        if (
            self.read(section.start, min(section.start + len(_RAW_MARK), section.end))
            != _RAW_MARK
        ):
            raise DamagedReportError(
                offset=section.start,
                problem="its events are stored in an unknown format",
            )
        counts, first_block = self._header(section)
        base = section.start + len(_RAW_MARK)
        places = [None if offset is None else base + offset for offset in offsets]
        strings, layouts = places
        if strings is None or not first_block <= strings <= section.end:
            raise DamagedReportError(
                offset=sections[OFFSETS].start,
                problem="its strings are not in the file",
            )
        if layouts is not None and not strings <= layouts <= section.end:
            raise DamagedReportError(
                offset=sections[OFFSETS].start,
                problem="its layouts are not in the file",
            )
        return RawData(
            counts=counts,
            first_block=first_block,
            strings=strings,
            layouts=layouts,
            end=section.end,
        )

    def raw_data_without_footer(self) -> RawData:
        """The same of a file whose end is lost; its raw data is searched for."""
        start = self._search(_RAW_MARK)
        counts, first_block = self._header(ReportSection(start, self.size))
        return RawData(
            counts=counts,
            first_block=first_block,
            strings=None,
            layouts=None,
            end=self.size,
        )

    def _search(self, mark: bytes) -> int:
        for start in range(len(MAGIC), self.size, _SEARCHED_AT_ONCE):
            end = min(start + _SEARCHED_AT_ONCE + len(mark) - 1, self.size)
            position = self.read(start, end).find(mark)
            if position >= 0:
                return start + position
        raise DamagedReportError(self.size, "the file ends there, before its events")

    def _offsets(self, section: ReportSection) -> tuple[int | None, int | None]:
        """Where strings and NVTX layouts begin, from the events' mark on."""
        data = self.read(*section)
        strings: int | None = None
        layouts: int | None = None
        try:
            for part in protobuf.fields(data, 0, len(data)):
                if part.number == 1 and data[part.value : part.end] != _COMPRESSION:
                    problem = "its events are compressed in an unknown format"
                    raise DamagedReportError(section.start, problem)
                if part.wire_type == protobuf.VARINT and part.number == 2:
                    strings = part.value
                if part.wire_type == protobuf.VARINT and part.number == 3:
                    layouts = part.value
        except DamagedMessageError:
            raise DamagedReportError(
                offset=section.start, problem="its list of offsets is damaged"
            ) from None
        return strings, layouts

    def _header(self, section: ReportSection) -> tuple[Counts, int]:
        """What the header says; and where the blocks begin. The facts before it are passed over."""
        facts = self.message(section.start + len(_RAW_MARK), section.end)
        header = self.message(facts.end, section.end)
        data = self.read(*header)
        numbers: dict[int, int] = {}
        try:
            for part in protobuf.fields(data, 0, len(data)):
                if part.wire_type == protobuf.VARINT:
                    numbers[part.number] = part.value
        except DamagedMessageError:
            raise DamagedReportError(header.start, "its header is damaged") from None
        return Counts(
            events=numbers.get(1), strings=numbers.get(3), threads=numbers.get(5)
        ), header.end

    def message(self, offset: int, end: int) -> ReportSection:
        """Where a message lies whose length is at a place of the file."""
        length, start = self._varint(offset, end)
        if length > end - start:
            raise DamagedReportError(offset, "a part is longer than the file")
        return ReportSection(start, start + length)

    def block(self, offset: int, end: int) -> ReportBlock:
        """The block that begins at a place of the file, its sizes checked."""
        packed, position = self._varint(offset, end)
        size, start = self._varint(position, end)
        if packed > end - start:
            raise DamagedReportError(offset, "a block is longer than the file")
        if size > packed * lz4_block.MOST_TIMES:
            raise DamagedReportError(offset, "a block cannot have its stated length")
        return ReportBlock(offset=offset, start=start, end=start + packed, size=size)

    def blocks(self, first: int, end: int) -> Iterator[ReportBlock]:
        """All blocks of a range, one after the other."""
        offset = first
        while offset < end:
            block = self.block(offset, end)
            yield block
            offset = block.end

    def unpack(self, block: ReportBlock) -> bytes:
        """The bytes of a block."""
        try:
            return lz4_block.unpack(self.read(block.start, block.end), block.size)
        except lz4_block.DamagedBlockError:
            raise DamagedReportError(
                offset=block.offset, problem="a block cannot be unpacked"
            ) from None

    def _varint(self, offset: int, end: int) -> tuple[int, int]:
        data = self.read(offset, min(offset + _LONGEST_VARINT, end))
        try:
            value, length = protobuf.varint(data, 0, len(data))
        except DamagedMessageError:
            raise DamagedReportError(offset, "a length is damaged") from None
        return value, offset + length
