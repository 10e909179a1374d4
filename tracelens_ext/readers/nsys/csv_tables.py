"""Reads the CSV tables (reports) that `nsys stats` writes.

Supports: `cuda_gpu_kern_sum`, `cuda_gpu_mem_time_sum`, `cuda_gpu_mem_size_sum`,
`nvtx_gpu_proj_trace` and `cuda_gpu_trace`, under these names and those of 2022 and before
(`gpukernsum`, `gpumemtimesum`, `gpumemsizesum`, `nvtxgpuproj`, `gputrace`).

* The titles of the columns say which report a table is. Columns may be in any order.
* A title may have a unit, such as `Total Time (ms)`. Without a unit, times are in ns.
* Messages before the header and after the table are skipped.
* If a text contains several reports, as `nsys stats` prints them, the requested one is read.
* A table with a row for each grid and block size (`gpukernsum` of 2022, `cuda_gpu_kern_gb_sum`) is
  a kernel table. Its rows with the same name have to be summed.

Ignores: nothing; other reports are refused by name.
Format: the Nsight Systems Analysis Guide, "Statistical Reports".
"""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias

from tracelens_ext.errors import TraceFormatError
from tracelens_ext.lazy import pd
from tracelens_ext.readers import csv_rows
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.settings import DEFAULT_READING_OPTIONS, ReadingOptions

Row = Sequence[csv_rows.Cell]
Numbers = list[int | None]
Rows = Iterator[tuple[int, Row]]

#: A table: the path of a CSV file, a DataFrame, or rows: mappings, or sequences after a header.
TableSource: TypeAlias = "str | os.PathLike[str] | pd.DataFrame | Iterable[Any]"

_ROWS_AT_ONCE = 1 << 15
#: A file with more lines before the first header does not contain a report.
_MOST_LINES_BEFORE_HEADER = 1000
_REMEDY = "give a table written by `nsys stats --format csv`"


class NsysCsvReport(StrEnum):
    """The reports that are read, with the names that `nsys stats` gives them."""

    KERNELS = "cuda_gpu_kern_sum"
    MEMORY_TIME = "cuda_gpu_mem_time_sum"
    MEMORY_SIZE = "cuda_gpu_mem_size_sum"
    RANGES = "nvtx_gpu_proj_trace"
    GPU_TRACE = "cuda_gpu_trace"


#: Other name of a column → its usual name. Names of columns are titles in lower case, without
#: blanks and unit.
_USUAL_NAME_OF = {
    "operations": "count",
    "instances": "count",
    "stream": "strm",
    "correlationid": "corrid",
    "projstart": "projectedstart",
    "projduration": "projectedduration",
}
#: Columns that are read if a report has them.
_OPTIONAL = {"device", "strm", "srcmemkd", "dstmemkd", "time"}
#: Name of a report, and the columns that it must have. The first report whose columns are all
#: present is that of a table, so reports with more specific columns come first.
_RECOGNIZED: tuple[tuple[str, tuple[str, ...]], ...] = (
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
class RowBatch:
    """Consecutive rows of a table, column by column.

    The methods that return numbers raise TraceFormatError for a cell that is not a number.
    """

    source: str  #: the name of the table in messages
    #: the line of each row in the file, or its number among the rows
    lines: Sequence[int]
    #: the cells of each column; a column that the table does not have consists of None
    columns: Mapping[str, Sequence[csv_rows.Cell]]
    #: the unit in the title of each column; None for a title without a unit
    units: Mapping[str, str | None]
    unfinished: bool = False  #: True if the file ends within the line of the last row

    def nanoseconds(self, column: str) -> Numbers:
        """Return the times in a column in ns; None for an empty cell."""
        return self._numbers(
            column, partial(csv_rows.nanoseconds, unit=self.units[column])
        )

    def sizes(self, column: str) -> Numbers:
        """Return the sizes in a column in bytes; None for an empty cell."""
        return self._numbers(column, partial(csv_rows.sizes, unit=self.units[column]))

    def whole(self, column: str) -> Numbers:
        """Return the whole numbers in a column; None for an empty cell."""
        return self._numbers(column, csv_rows.whole)

    def required(self, column: str, numbers: Sequence[int | None]) -> list[int]:
        """Return the numbers of a column, after checking that none is missing or negative.

        Raises:
            TraceFormatError: a number is missing or negative.
        """
        checked = []
        for line, number in zip(self.lines, numbers, strict=True):
            if number is None:
                raise self._bad_cell(line, column, "no number")
            if number < 0:
                raise self._bad_cell(line, column, "a negative number")
            checked.append(number)
        return checked

    def texts(self, column: str) -> list[str]:
        """Return the cells of a column as texts; an empty text for an empty cell."""
        return ["" if cell is None else str(cell) for cell in self.columns[column]]

    def _numbers(self, column: str, parse: Callable[[Row], Numbers]) -> Numbers:
        """Return the numbers of a column; an error names the first cell that cannot be parsed."""
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

    def _bad_cell(self, line: int, column: str, content: str) -> TraceFormatError:
        problem = f"line {line} has {content} in the column {column!r}"
        remedy = (
            "write numbers plainly, or with commas between groups of three digits; "
            "create the table again"
        )
        return TraceFormatError(self.source, problem, remedy)


@dataclass(frozen=True)
class NsysCsvTable:
    """An open report. Its rows can be read once."""

    source: str  #: the name of the table in messages
    batches: Iterator[RowBatch]  #: the rows, some thousands at a time


def open_report(
    source: TableSource | ByteSource,
    report: NsysCsvReport,
    *,
    label: str = "table",
    reading: ReadingOptions = DEFAULT_READING_OPTIONS,
) -> NsysCsvTable:
    """Find a report in a table.

    Args:
        source: the path of a CSV file, an open file, a DataFrame or rows.
        report: the report.
        label: the name of the table in messages, if it is not a file.
        reading: how files are read.

    Raises:
        TraceNotFoundError: the file cannot be opened.
        TraceFormatError: the table does not contain the report.
    """
    if isinstance(source, str | os.PathLike):
        label = os.fspath(source)
        rows = read_rows(label, reading)
    elif isinstance(source, ByteSource):
        label = source.path
        rows = csv_rows.rows_of(source, _REMEDY)
    else:
        rows = enumerate(_given_rows(source, label), start=1)
    titles = _find_header(rows, report, label)
    batches = _row_batches(rows, titles, report, label)
    return NsysCsvTable(source=label, batches=batches)


def report_of(titles: Sequence[csv_rows.Cell]) -> str | None:
    """Return the name of the report whose columns have these titles; None for no report."""
    columns = _columns_of(titles).keys()
    for name, required_columns in _RECOGNIZED:
        if columns >= set(required_columns):
            return name
    return None


def report_in(head: bytes) -> str | None:
    """Return the name of the first report in the beginning of a file; None for no report."""
    encoding = csv_rows.encoding_of(head)
    if encoding is None:
        return None
    lines = head.decode(encoding, "replace").split("\n")
    with suppress(csv.Error):
        for row in csv.reader(lines):
            report = report_of(row)
            if report is not None:
                return report
    return None


def _find_header(rows: Rows, report: NsysCsvReport, source: str) -> Row:
    """Skip the rows before a report, and return its titles.

    Raises:
        TraceFormatError: there is no such report.
    """
    other_reports: list[str] = []
    # The rows of another report are not headers, even if their cells look like titles.
    is_in_other_report = False
    lines_before_header = 0
    for _, row in rows:
        if len(row) <= 1:
            is_in_other_report = False
        name = None
        if not _is_blank(row) and not is_in_other_report:
            name = report_of(row)
        if name == report:
            return row
        if name is not None:
            other_reports.append(name)
            is_in_other_report = True
        elif not _is_blank(row) and not other_reports:
            lines_before_header += 1
            if lines_before_header > _MOST_LINES_BEFORE_HEADER:
                break
    problem = f"does not contain the report {report}"
    if other_reports:
        problem = f"contains the report {other_reports[0]} instead of {report}"
    remedy = (
        f"create it with: nsys stats -r {report} --format csv -o NAME FILE.nsys-rep"
    )
    raise TraceFormatError(source, problem, remedy)


def _row_batches(
    rows: Rows, titles: Row, report: NsysCsvReport, source: str
) -> Iterator[RowBatch]:
    """Yield the rows below the header of a report, some thousands at a time."""
    known_columns = set(dict(_RECOGNIZED)[report]) | set(_OPTIONAL)
    columns_to_read = {
        name: column
        for name, column in _columns_of(titles).items()
        if name in known_columns
    }
    units = {name: column.unit for name, column in columns_to_read.items()}
    body = _body(rows, len(titles), source)
    numbered_rows = list(islice(body, _ROWS_AT_ONCE))
    while numbered_rows:
        lines, rows_of_cells = zip(*numbered_rows, strict=True)
        cells: dict[str, Any] = defaultdict(partial(list, [None] * len(lines)))
        for name, column in columns_to_read.items():
            cells[name] = [row[column.position] for row in rows_of_cells]
        yield RowBatch(
            source=source,
            lines=lines,
            columns=cells,
            units=units,
            unfinished=isinstance(rows_of_cells[-1], csv_rows.UnfinishedRow),
        )
        numbered_rows = list(islice(body, _ROWS_AT_ONCE))


def _body(rows: Rows, width: int, source: str) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a table, up to the messages or the next report after it.

    Raises:
        TraceFormatError: a row has more or fewer cells than the header.
    """
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


class _Column(NamedTuple):
    """A column of a table."""

    position: int  #: its index in a row
    unit: str | None  #: the unit in its title; None without a unit


def _columns_of(titles: Sequence[csv_rows.Cell]) -> dict[str, _Column]:
    """Return the columns of a table by name, given their titles.

    Example: `Total Time (ms)` is the column `totaltime` with the unit `ms`. A column with another
    name than the usual one is in the result under both names.
    """
    columns: dict[str, _Column] = {}
    for position, title in enumerate(titles):
        text, _, text_after = str(title).strip().partition("(")
        unit = text_after.rstrip(") ").strip()
        letters = [letter for letter in text.casefold() if letter.isalnum()]
        columns.setdefault("".join(letters), _Column(position, unit or None))
    for other_name, usual_name in _USUAL_NAME_OF.items():
        if other_name in columns:
            columns.setdefault(usual_name, columns[other_name])
    return columns


def _is_blank(row: Row) -> bool:
    """Return True for a row without cells, or with one empty cell."""
    return not row or (len(row) == 1 and not str(row[0]).strip())


def read_rows(path: str, reading: ReadingOptions = DEFAULT_READING_OPTIONS) -> Rows:
    """Yield the number and the cells of each line of a CSV file.

    Raises:
        TraceNotFoundError: the file cannot be opened.
        TraceFormatError: the file is not CSV.
    """
    with ByteSource(path, reading=reading) as opened:
        yield from csv_rows.rows_of(opened, _REMEDY)


def _given_rows(source: object, label: str) -> Iterable[Row]:
    """Return the header and the rows of a DataFrame, or of rows.

    Raises:
        TypeError: the source is neither of them.
    """
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
