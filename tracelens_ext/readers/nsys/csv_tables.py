"""Reader of the CSV tables that `nsys stats` makes, each recognized by the titles of its columns.

Supported: `cuda_gpu_kern_sum`, `cuda_gpu_mem_time_sum`, `cuda_gpu_mem_size_sum`,
`nvtx_gpu_proj_trace` and `cuda_gpu_trace`, under these names and those of 2022 and before
(`gpukernsum`, `gpumemtimesum`, `gpumemsizesum`, `nvtxgpuproj`, `gputrace`). A title tells the
unit, `Total Time (ms)`; without one a time is in ns. Columns may stand in any order, messages
before the header and after the table are skipped, and of a text that holds several reports (what
`nsys stats` prints) the wanted one is taken. Other reports are refused by their names. A kernel
table with a row for each grid and block size (`gpukernsum` of 2022, `cuda_gpu_kern_gb_sum`) is a
kernel table, whose rows of one name are to be summed. The reports and their columns are described
in the Nsight Systems Analysis Guide, "Statistical Reports".
"""

from __future__ import annotations

import csv
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import chain, islice
from typing import Any, TypeAlias

import numpy as np

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.lazy import pd
from tracelens_ext.readers import csv_rows
from tracelens_ext.readers.builder import Interner, TraceBuilder, map_distinct_rows
from tracelens_ext.readers.kineto.schema import MISSING_NS, WORDS
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions
from tracelens_ext.trace import MEMORY_KINDS, NONE, Device, EventKind, Int64Array, Trace

Row = Sequence[csv_rows.Cell]
Numbers = list[int | None]
Rows = Iterator[tuple[int, Row]]

#: A table: the path of a CSV file, a DataFrame, or rows: mappings, or sequences after a header.
TableSource: TypeAlias = "str | os.PathLike[str] | pd.DataFrame | Iterable[Any]"

_ROWS_AT_ONCE = 1 << 15
_MOST_PREAMBLE_LINES = 1000
_MAKE = "give a table written by `nsys stats --format csv`"


class NsysCsvReport(StrEnum):
    """The reports that are read, by the names that `nsys stats` gives them."""

    KERNELS = "cuda_gpu_kern_sum"
    MEMORY_TIME = "cuda_gpu_mem_time_sum"
    MEMORY_SIZE = "cuda_gpu_mem_size_sum"
    RANGES = "nvtx_gpu_proj_trace"
    GPU_TRACE = "cuda_gpu_trace"


#: Another spelling of a title → its column, all without blanks, in lower case.
_SPELLINGS = {"operations": "count", "instances": "count", "stream": "strm"}
_SPELLINGS |= {"correlationid": "corrid", "projstart": "projectedstart"}
_SPELLINGS |= {"projduration": "projectedduration"}
#: Columns that are read where they are there.
_OPTIONAL = {"device", "strm", "srcmemkd", "dstmemkd", "time"}
#: What has all these columns is that report; the first that fits, so the special come first.
_RECOGNISED: tuple[tuple[str, tuple[str, ...]], ...] = (
    (NsysCsvReport.RANGES, ("name", "projectedstart", "projectedduration")),
    ("cuda_api_trace", ("start", "duration", "name", "result")),
    (NsysCsvReport.GPU_TRACE, ("start", "duration", "corrid", "name")),
    ("nvtx_pushpop_trace", ("start", "end", "duration", "durchild", "name")),
    ("nvtx_kern_sum", ("nvtxrange", "kernelname")),
    ("cuda_kern_exec_trace", ("apistart", "kernelname")),
    ("cuda_kern_exec_sum", ("apiname", "kernelname")),
    ("nvtx_gpu_proj_sum", ("range", "totalprojtime")),
    ("nvtx_sum or nvtx_pushpop_sum", ("totaltime", "range")),
    ("cuda_gpu_sum or cuda_api_gpu_sum", ("totaltime", "category", "operation")),
    (NsysCsvReport.MEMORY_TIME, ("totaltime", "count", "operation")),
    (NsysCsvReport.MEMORY_SIZE, ("total", "count", "operation")),
    ("cuda_api_sum or osrt_sum", ("totaltime", "numcalls", "name")),
    (NsysCsvReport.KERNELS, ("totaltime", "instances", "name")),
    ("another summary of nsys stats", ("totaltime", "name")),
)


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a table, column by column."""

    source: str  #: what messages call the table
    #: where each row stands in the file, or its number among the rows
    lines: Sequence[int]
    #: the cells by column, named as its title without unit, blanks and case; else None each
    columns: Mapping[str, Sequence[csv_rows.Cell]]
    #: the unit that a column's title tells, None without
    units: Mapping[str, str | None]
    unfinished: bool = False  #: True if the line of the last row does not end

    def nanoseconds(self, column: str) -> Numbers:
        """The times of a column in ns; None for an empty cell."""
        return self._numbers(
            column, partial(csv_rows.nanoseconds, unit=self.units[column])
        )

    def sizes(self, column: str) -> Numbers:
        """The sizes of a column in bytes; as `nanoseconds`."""
        return self._numbers(column, partial(csv_rows.sizes, unit=self.units[column]))

    def whole(self, column: str) -> Numbers:
        """The whole numbers of a column; None for an empty cell."""
        return self._numbers(column, csv_rows.whole)

    def required(self, column: str, numbers: Sequence[int | None]) -> list[int]:
        """Numbers of which none may be missing or negative."""
        checked = []
        for line, number in zip(self.lines, numbers, strict=True):
            if number is None:
                raise self._bad_cell(line, column, "no number")
            if number < 0:
                raise self._bad_cell(line, column, "a negative number")
            checked.append(number)
        return checked

    def texts(self, column: str) -> list[str]:
        """The texts of a column."""
        return ["" if cell is None else str(cell) for cell in self.columns[column]]

    def _numbers(self, column: str, parse: Callable[[Row], Numbers]) -> Numbers:
        try:
            return parse(self.columns[column])
        except csv_rows.UnknownUnitError as error:
            problem = f"the unit {error} of the column {column!r} is unknown"
            remedy = "create it again with nsys stats --timeunit nsec"
            raise TraceFormatError(self.source, problem, remedy) from None
        except ValueError:
            for line, cell in zip(self.lines, self.columns[column], strict=True):
                try:
                    parse([cell])
                except ValueError:
                    raise self._bad_cell(line, column, f"{str(cell)[:40]!r}") from None
            raise

    def _bad_cell(self, line: int, column: str, what: str) -> TraceFormatError:
        problem = f"line {line} has {what} in the column {column!r}"
        remedy = (
            "write numbers plainly, or with commas between groups of three digits; "
            "create the table again"
        )
        return TraceFormatError(self.source, problem, remedy)


@dataclass(frozen=True)
class NsysCsvTable:
    """A report, its rows still to be read, once."""

    source: str  #: what messages call it
    pieces: Iterator[Piece]  #: the rows, some thousands at a time


def open_report(
    source: TableSource | ByteSource,
    report: NsysCsvReport,
    *,
    label: str = "table",
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
) -> NsysCsvTable:
    """Find a report in a CSV file (its path, or opened), a DataFrame or rows.

    Raises TraceNotFoundError, or TraceFormatError where it holds no such report. `label` is what
    messages call a table that is no file.
    """
    if isinstance(source, str | os.PathLike):
        label = os.fspath(source)
        rows = _read_file(label, reading)
    elif isinstance(source, ByteSource):
        label = source.path
        rows = csv_rows.rows_of(source, _MAKE)
    else:
        rows = enumerate(_given_rows(source, label), start=1)
    return NsysCsvTable(
        source=label,
        pieces=_pieces(
            rows=rows, titles=_header(rows, report, label), report=report, source=label
        ),
    )


def report_of(titles: Sequence[csv_rows.Cell]) -> str | None:
    """The name of the report that has columns of these titles; None for no report."""
    columns = _places(titles).keys()
    return next((name for name, wanted in _RECOGNISED if columns >= set(wanted)), None)


def report_in(head: bytes) -> str | None:
    """The name of the report that a file begins with (behind messages), None for no report."""
    if (encoding := csv_rows.encoding_of(head)) is None:
        return None
    with suppress(csv.Error):
        named = map(report_of, csv.reader(head.decode(encoding, "replace").split("\n")))
        return next(filter(None, named), None)
    return None


def _header(rows: Rows, report: NsysCsvReport, source: str) -> Row:
    """The titles of the wanted report; what comes before it is skipped."""
    seen: list[str] = []
    header_may_come = True
    preamble = 0
    for _, row in rows:
        header_may_come = header_may_come or len(row) <= 1
        name = None if _is_blank(row) or not header_may_come else report_of(row)
        if name == report:
            return row
        if name is not None:
            seen.append(name)
            header_may_come = False
        elif (
            not _is_blank(row)
            and not seen
            and (preamble := preamble + 1) > _MOST_PREAMBLE_LINES
        ):
            break
    what = (
        f"contains the report {seen[0]} instead of {report}"
        if seen
        else f"does not contain the report {report}"
    )
    remedy = (
        f"create it with: nsys stats -r {report} --format csv -o NAME FILE.nsys-rep"
    )
    raise TraceFormatError(source, what, remedy)


def _pieces(
    rows: Rows, titles: Row, report: NsysCsvReport, source: str
) -> Iterator[Piece]:
    known_columns = set(dict(_RECOGNISED)[report]) | set(_OPTIONAL)
    places = {
        column: column_place
        for column, column_place in _places(titles).items()
        if column in known_columns
    }
    units = {column: unit for column, (_, unit) in places.items()}
    body = _body(rows, len(titles), source)
    while some := list(islice(body, _ROWS_AT_ONCE)):
        lines, cells = zip(*some, strict=True)
        columns: dict[str, Any] = defaultdict(partial(list, [None] * len(lines)))
        columns |= {
            name: [row[place] for row in cells] for name, (place, _) in places.items()
        }
        yield Piece(
            source=source,
            lines=lines,
            columns=columns,
            units=units,
            unfinished=isinstance(cells[-1], csv_rows.UnfinishedRow),
        )


def _body(rows: Rows, width: int, source: str) -> Iterator[tuple[int, Row]]:
    """The rows of a table, up to the messages or the next report behind it."""
    after_blank = False
    for line, row in rows:
        if len(row) == width and not after_blank:
            yield line, row
        elif _is_blank(row):
            after_blank = True
        elif after_blank and (len(row) != width or report_of(row) is not None):
            return
        elif len(row) == width:
            yield line, row
            after_blank = False
        elif len(row) == 1:  # a message
            return
        else:
            problem = f"line {line} has {len(row)} cells, but its header has {width}"
            raise TraceFormatError(
                source, problem, "create it again; it may be truncated"
            )


def _places(titles: Sequence[csv_rows.Cell]) -> dict[str, tuple[int, str | None]]:
    """Column → its place and the unit that its title tells; spellings unified."""
    places: dict[str, tuple[int, str | None]] = {}
    for place, title in enumerate(titles):
        name, _, behind_name = str(title).strip().partition("(")
        unit = behind_name.rstrip(") ").strip()
        letters = [letter for letter in name.casefold() if letter.isalnum()]
        places.setdefault("".join(letters), (place, unit or None))
    for other, column in _SPELLINGS.items():
        if other in places:
            places.setdefault(column, places[other])
    return places


def _is_blank(row: Row) -> bool:
    return not row or (len(row) == 1 and not str(row[0]).strip())


def _read_file(path: str, reading: ReadingOptions) -> Rows:
    with ByteSource(path, reading=reading) as opened:
        yield from csv_rows.rows_of(opened, _MAKE)


def _given_rows(source: object, label: str) -> Iterable[Row]:
    """The header and the rows of a DataFrame, or of a list."""
    if isinstance(source, pd.DataFrame):
        return chain([list(source.columns)], source.itertuples(index=False, name=None))
    if isinstance(source, Iterable) and not isinstance(source, str | bytes | Mapping):
        rows = list(source)
        if rows and all(isinstance(row, Mapping) for row in rows):
            titles = list(rows[0])
            return chain(
                [titles], ([row.get(title) for title in titles] for row in rows)
            )
        if all(
            isinstance(row, Sequence) and not isinstance(row, str | bytes)
            for row in rows
        ):
            return rows
    expected = f"{label}: a table is a path, a DataFrame, or a list of rows"
    raise TypeError(f"{expected}, not {type(source).__name__}")


FORMAT = "nsys stats cuda_gpu_trace (CSV)"

_KINDS = (("[CUDA memcpy", EventKind.MEMCPY), ("[CUDA memset", EventKind.MEMSET))
#: How tables spell the kinds of memory.
_MEMORY = {"pageable": 0, "pinned": 1, "device": 2, "array": 3, "managed": 4}
_ORDINAL = re.compile(r"(.*?)\s*\((\d{1,9})\)\s*", re.DOTALL)
_MOST_ID = 2**62


def read(source: TableSource | ByteSource) -> Trace:
    """Read a `cuda_gpu_trace` table: GPU events without launches, in ns since the recording began.

    `threads` are (device, stream). Grid and block sizes, registers and throughput are ignored.
    """
    table = open_report(source, NsysCsvReport.GPU_TRACE)
    builder = TraceBuilder()
    devices: dict[str, Device] = {}
    for piece in table.pieces:
        _add(piece, builder, devices)
    if not builder.present:
        remedy = "record it again with: nsys profile -t cuda,nvtx"
        raise TraceFormatError(table.source, "contains no events", remedy)
    described = {
        device.ordinal: device for device in reversed(devices.values()) if device.name
    }
    return builder.finish(
        devices=tuple(described[number] for number in sorted(described)),
        path=table.source,
        format_name=FORMAT,
        bytes_read=source.bytes_read if isinstance(source, ByteSource) else 0,
        notes=("The table has no launches, so all GPU events are unlinked.",),
    )


def _device_of(text: str, devices: dict[str, Device]) -> Device:
    """Return the device that a text names.

    `NVIDIA H100 (1)` is number 1; devices without a number get one in order of first sight.
    """
    match = _ORDINAL.fullmatch(text)
    if match is not None:
        return Device(ordinal=int(match[2]), name=match[1])
    ordinal = 0
    for other in devices:
        if not _ORDINAL.fullmatch(other):
            ordinal += 1
    return Device(ordinal=ordinal, name=text)


def _kind_of(name: str) -> EventKind:
    """Return the kind of a GPU event with this name."""
    for beginning, kind in _KINDS:
        if name.startswith(beginning):
            return kind
    return EventKind.KERNEL


def _add(piece: Piece, builder: TraceBuilder, devices: dict[str, Device]) -> None:
    names = piece.texts("name")
    count = len(names)
    device_texts = piece.texts("device")
    for text in dict.fromkeys(device_texts):
        if text not in devices:
            devices[text] = _device_of(text, devices)
    ordinals = [devices[text].ordinal for text in device_texts]
    device = np.array(ordinals, dtype=np.int64)
    stream = _ids(piece.whole("strm"))
    distinct_names: Interner[str] = Interner()
    name = distinct_names.codes(names, count)
    kinds = [_kind_of(text) for text in distinct_names]
    numbers = {
        "correlation": _ids(piece.whole("corrid")),
        "device": device,
        "stream": stream,
    }
    for argument, column in zip(MEMORY_KINDS, ("srcmemkd", "dstmemkd"), strict=True):
        if column in piece.columns:
            codes = [_MEMORY.get(text.lower(), NONE) for text in piece.texts(column)]
            numbers[argument] = np.array(codes, dtype=np.int64)
    rows = np.arange(count)
    builder.add(
        {
            "ts": _filled(piece.nanoseconds("start")),
            "dur": _filled(piece.nanoseconds("duration")),
            "name": builder.names.codes(distinct_names, len(distinct_names))[name],
            "kind": np.array(kinds, dtype=np.int64)[name],
            "thread": map_distinct_rows(
                lambda *place: builder.threads[place], device, stream
            ),
            "category": builder.categories.codes(
                (WORDS[kind] for kind in kinds), len(kinds)
            )[name],
        },
        {argument: (rows, values) for argument, values in numbers.items()},
        {},
    )


def _filled(values: Sequence[int | None]) -> Int64Array:
    """Numbers; `MISSING_NS` for those that are missing: the builder counts out such times."""
    return np.array(
        [MISSING_NS if value is None else value for value in values], dtype=np.int64
    )


def _ids(values: Sequence[int | None]) -> Int64Array:
    """Ids; `NONE` for one that is missing or no id."""
    ids = _filled(values)
    return np.where((ids < 0) | (ids >= _MOST_ID), NONE, ids)
