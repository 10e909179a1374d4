r"""Reads the container format of an Nsight Systems report: its sections, and its packed blocks.

Only the sections that a trace needs are read. The options of the profiler are never read, because
they contain the environment and the command line.

A report consists of:

* the text "NVIDIA Tegra Profiler Report ", a version, and ".\n";
* the sections;
* the footer, a message `{1: {1: name, 2: offset, 3: size}, 1: …}` that lists the sections;
* the offset of the footer (8 bytes), and the text "U3w[END]".

The section "Raw Sampling Data" consists of:

* the text "QDTEXT00";
* two messages, each with its length before it: facts, and a header;
* blocks of events;
* a block of strings;
* a message of threads, and a message of GPUs and streams;
* in some reports, a block of NVTX layouts.

A block consists of its packed size, its unpacked size, and the bytes of a raw LZ4 block.
"""

from __future__ import annotations

import struct
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
#: A footer with more bytes is damaged.
_MOST_FOOTER = 1 << 20
_LONGEST_VARINT = 10
#: Bytes that are searched at once for the raw data of a file without a footer.
_SEARCHED_AT_ONCE = 1 << 20


class DamagedReportError(Exception):
    """A report is damaged or cut off, or the file is not a report.

    Attributes:
        offset: the byte of the file where the problem is.
        problem: what is wrong there.
    """

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(problem)
        self.offset = offset
        self.problem = problem


class ReportSection(NamedTuple):
    """A range of bytes of the file."""

    start: int
    end: int


class Counts(NamedTuple):
    """The numbers of things in a report according to its header; None if it does not say."""

    events: int | None
    strings: int | None
    threads: int | None


@dataclass(frozen=True)
class RawData:
    """The offsets of the parts of the raw data in the file."""

    counts: Counts
    first_block: int  #: offset of the first block of events
    #: offset of the block of strings, which follows the events; None if the footer is lost
    strings: int | None
    #: offset of the block of NVTX layouts; None if there is none, or if the footer is lost
    layouts: int | None
    end: int


class ReportBlock(NamedTuple):
    """The position of a packed block in the file."""

    offset: int  #: first byte of the block, where its sizes are
    start: int  #: first byte of the packed data
    end: int  #: byte after the block
    size: int  #: number of bytes when unpacked


class ReportFile:
    """An open report.

    All methods raise DamagedReportError if the part that they read is damaged.

    Args:
        file: the seekable file.
        size: its size in bytes.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self.size = size
        length = min(size, len(MAGIC))
        beginning = self.read(0, length)
        if beginning != MAGIC:
            raise DamagedReportError(0, "it does not begin like one")

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes of a range of the file."""
        self._file.seek(start)
        data = self._file.read(end - start)
        if len(data) != end - start:
            raise DamagedReportError(start + len(data), "the file ends there")
        return data

    def sections(self) -> dict[str, ReportSection]:
        """Return the sections that the footer lists, by name."""
        footer_start, footer_end = self._footer()
        data = self.read(footer_start, footer_end)
        sections: dict[str, ReportSection] = {}
        try:
            for entry in protobuf.fields(data, 0, len(data)):
                if entry.number != 1 or entry.wire_type != protobuf.BYTES:
                    continue
                parts = {
                    part.number: part
                    for part in protobuf.fields(data, entry.value, entry.end)
                }
                if 1 not in parts:
                    raise DamagedMessageError
                name = data[parts[1].value : parts[1].end].decode("utf-8", "replace")
                start = parts[2].value if 2 in parts else 0
                size = parts[3].value if 3 in parts else 0
                if start > footer_start or size > footer_start - start:
                    problem = "a section is not within the file"
                    raise DamagedReportError(footer_start, problem)
                sections[name] = ReportSection(start, start + size)
        except DamagedMessageError:
            problem = "its list of sections is damaged"
            raise DamagedReportError(footer_start, problem) from None
        return sections

    def _footer(self) -> ReportSection:
        """Return the range of the footer, which lists the sections."""
        footer_end = self.size - _TRAILER.size
        if footer_end < len(MAGIC):
            raise DamagedReportError(
                offset=self.size,
                problem="the file ends there, without its list of sections",
            )
        footer_start, mark = _TRAILER.unpack(self.read(footer_end, self.size))
        if mark != _END_MARK:
            raise DamagedReportError(
                offset=self.size,
                problem="the file ends there, without its list of sections",
            )
        is_in_file = len(MAGIC) <= footer_start <= footer_end
        if not is_in_file or footer_end - footer_start > _MOST_FOOTER:
            problem = "its list of sections is not in the file"
            raise DamagedReportError(footer_end, problem)
        return ReportSection(footer_start, footer_end)

    def raw_data(self, sections: dict[str, ReportSection]) -> RawData:
        """Find the parts of the raw data of a report whose sections are known."""
        if RAW_DATA not in sections or OFFSETS not in sections:
            raise DamagedReportError(self.size, "it has no section of events")
        section = sections[RAW_DATA]
        strings, layouts = self._part_offsets(sections[OFFSETS])
        mark_end = min(section.start + len(_RAW_MARK), section.end)
        if self.read(section.start, mark_end) != _RAW_MARK:
            raise DamagedReportError(
                offset=section.start,
                problem="its events are stored in an unknown format",
            )
        counts, first_block = self._header(section)
        if strings is not None:
            strings += mark_end
        if layouts is not None:
            layouts += mark_end
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
        """Find the parts of the raw data of a report whose end, with the footer, is lost."""
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
        """Return the offset of the first occurrence of a mark in the file."""
        for start in range(len(MAGIC), self.size, _SEARCHED_AT_ONCE):
            end = min(start + _SEARCHED_AT_ONCE + len(mark) - 1, self.size)
            position = self.read(start, end).find(mark)
            if position >= 0:
                return start + position
        raise DamagedReportError(self.size, "the file ends there, before its events")

    def _part_offsets(self, section: ReportSection) -> tuple[int | None, int | None]:
        """Return the offsets of the strings and of the NVTX layouts; None if there are none.

        They count from the end of the mark with which the raw data begins.
        """
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
        """Return the counts in the header of the raw data, and the offset of the first block."""
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
        counts = Counts(
            events=numbers.get(1), strings=numbers.get(3), threads=numbers.get(5)
        )
        return counts, header.end

    def message(self, offset: int, end: int) -> ReportSection:
        """Return the range of a message; its length is stored before it, at `offset`."""
        length, start = self._varint(offset, end)
        if length > end - start:
            raise DamagedReportError(offset, "a part is longer than the file")
        return ReportSection(start, start + length)

    def block(self, offset: int, end: int) -> ReportBlock:
        """Return the position of the block that begins at `offset`, after a check of its sizes."""
        packed_size, position = self._varint(offset, end)
        size, start = self._varint(position, end)
        if packed_size > end - start:
            raise DamagedReportError(offset, "a block is longer than the file")
        if size > packed_size * lz4_block.MOST_EXPANSION:
            raise DamagedReportError(offset, "a block cannot have its stated length")
        block_end = start + packed_size
        return ReportBlock(offset=offset, start=start, end=block_end, size=size)

    def unpack(self, block: ReportBlock) -> bytes:
        """Return the unpacked bytes of a block."""
        try:
            return lz4_block.unpack(self.read(block.start, block.end), block.size)
        except lz4_block.DamagedBlockError:
            raise DamagedReportError(
                offset=block.offset, problem="a block cannot be unpacked"
            ) from None

    def _varint(self, offset: int, end: int) -> tuple[int, int]:
        """Return the number that is stored at `offset`, and the offset after it."""
        data = self.read(offset, min(offset + _LONGEST_VARINT, end))
        try:
            value, length = protobuf.varint(data, 0, len(data))
        except DamagedMessageError:
            raise DamagedReportError(offset, "a length is damaged") from None
        return value, offset + length
